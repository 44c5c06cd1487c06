#!/usr/bin/env python3
"""Grouped products on a GPU: every backend of tegroup beside torch grouped_mm, cuBLASLt's grouped matmul called by hand, and
one dense product of equal FLOPs; at decode also a kernel that only reads the weights. Beside uneven groups (zipf16, forward
and dgrad) sm90 also runs even ones, and beside gradients added to FP32 those that overwrite BF16: figures of one by the other are
of turns alike.

Contestants take turns in random order inside this process. L2 is cold: 256 MB go through it before each turn, and leave it as the
products that are measured do, full of lines that were written, or, before those that read the weights for a few rows, that were only
read (lines that were written must go to memory before others come). CUDA events give the times. Before that each one's result
is compared with torch.mm, group by group; a contestant that is refused or wrong is listed with its reason and not timed. A backend that takes longer on the host than on the GPU (cublaslt_loop with many groups)
is timed as it is, waiting included. Needs torch; build with: make build/libtegroup.so build/libhost_calls.so.

cuBLASLt's grouped matmul needs cuBLAS 13.3 (13.4 on Hopper), and torch may bring an older one. --cublaslt FILE is what is called
by hand and what tegroup is given; torch keeps the copy that it brings, for the dense product, too. LD_PRELOAD=FILE makes torch
use FILE as well: do that if the two copies do not get on. Without the option everyone uses the copy that torch brings. The
output lists what was loaded.

Problems with even groups come first. A call that runs out of --seconds stops before the next problem; run it again with
--merge on the file that it wrote, and it goes on where it stopped. With --seconds 0 it only merges, prints and writes.

--beside NAME=FILE has the backends of another build of libtegroup.so take turns, too: two revisions of a kernel, compared.

  bench_gpu.py --cublaslt /opt/cublas/lib/libcublasLt.so.13 --splits uniform --out build/one.json
  bench_gpu.py --cublaslt /opt/cublas/lib/libcublasLt.so.13 --merge build/one.json --out build/two.json
  bench_gpu.py --seconds 0 --merge build/two.json --into docs/lab/all-backends.md
  bench_gpu.py --held-out --backends sm90        and shapes that no constant was fitted to
  bench_gpu.py --beside before=../before/build/libtegroup.so --backends sm90 --ops forward,dgrad
"""
import argparse
import copy
import ctypes
import datetime
import importlib.util
import json
import pathlib
import random
import shlex
import sys
import time
from ctypes import addressof, byref, c_float, c_int, c_size_t, c_uint, c_void_p

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/bench"), str(ROOT / "examples")]
import cublaslt
import tables
import tegroup_ctypes as tg

FLUSH_BYTES = 256 << 20
CUBLAS_WORKSPACE_BYTES = 32 << 20
HOST_CALLS, HOST_TURNS = 10000, 20


# ---- measuring ----

def measure(device, contestants, rounds, rng, warm_up=2, reads=False):
    """Microseconds of every contestant in every round, and the clock and power seen while they ran. reads: they write next to
    nothing, and find L2 as such a call leaves it."""
    us, sampled = {name: [] for name in contestants}, []
    for turn in range(-warm_up, rounds):
        order = list(contestants)
        rng.shuffle(order)
        spans = [(name, device.span(contestants[name], reads)) for name in order]
        if turn >= 0:
            sampled.append(device.sample())
        device.wait()
        if turn >= 0:
            for name, span in spans:
                us[name].append(device.microseconds(span))
    clocks, powers = zip(*sampled)
    return {name: tables.spread(times) for name, times in us.items()}, tables.spread(clocks)["median"], tables.spread(powers)["median"]


class Device:
    """The GPU through torch, a stream of our own, and NVML's clock and power."""

    def __init__(self, torch):
        self.torch = torch
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.raw = self.stream.cuda_stream
        self.flush = torch.zeros(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")
        self.properties = torch.cuda.get_device_properties(0)
        self.nvml = self.handle = None
        try:
            self.nvml, self.handle = ctypes.CDLL("libnvidia-ml.so.1"), c_void_p()
            if self.nvml.nvmlInit_v2() or (self.nvml.nvmlDeviceGetHandleByUUID(f"GPU-{self.properties.uuid}".encode(), byref(self.handle))
                                           and self.nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(self.handle))):
                self.nvml = None
        except OSError:
            self.nvml = None

    def span(self, call, reads):
        events = self.torch.cuda.Event(enable_timing=True), self.torch.cuda.Event(enable_timing=True)
        if reads:
            self.flush.sum()
        else:
            self.flush.zero_()
        events[0].record(self.stream)
        call()
        events[1].record(self.stream)
        return events

    def microseconds(self, span):
        return span[0].elapsed_time(span[1]) * 1e3

    def wait(self):
        self.stream.synchronize()

    def sample(self):
        """SM clock in MHz and power in W; zeros where NVML does not say."""
        clock, power = c_uint(), c_uint()
        if self.nvml:
            self.nvml.nvmlDeviceGetClockInfo(self.handle, 1, byref(clock))
            self.nvml.nvmlDeviceGetPowerUsage(self.handle, byref(power))
        return clock.value, power.value / 1000

    def driver(self):
        text = ctypes.create_string_buffer(96)
        if self.nvml:
            self.nvml.nvmlSystemGetDriverVersion(text, 96)
        return text.value.decode()

    @staticmethod
    def cublas():
        """The version of the cuBLAS that torch brought."""
        part, parts = c_int(), []
        try:
            library = ctypes.CDLL("libcublas.so.13")
        except OSError:
            return "unknown"
        for i in range(3):
            library.cublasGetProperty(i, byref(part))
            parts.append(str(part.value))
        return ".".join(parts)

    def event(self):
        """A torch event that exists: torch makes it when it is first recorded."""
        event = self.torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return event

    def rates(self, helper):
        """What this card gives: dense BF16, copies (read plus write), reads."""
        torch, n = self.torch, 8192
        a, b, c = (torch.randn(n, n, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        big, other = (torch.zeros(1 << 30, dtype=torch.float32, device="cuda") for _ in range(2))
        writing = dict(dense=lambda: torch.mm(a, b, out=c), copy=lambda: other.copy_(big))
        reading = dict(sum=big.sum, amax=big.amax, norm=lambda: torch.linalg.vector_norm(big), kernel=reader(torch, helper, self.raw, [big.data_ptr()], 4 << 30),
                       mv=lambda v=other[:1 << 14]: torch.mv(big.view(1 << 16, 1 << 14), v))
        us, _, _ = measure(self, writing, 15, random.Random(1), warm_up=5)
        read, _, _ = measure(self, reading, 15, random.Random(1), warm_up=5, reads=True)
        return dict(dense_flops=2 * n ** 3 / us["dense"]["median"] * 1e6, copy_bytes=2 * (4 << 30) / us["copy"]["median"] * 1e6,
                    read_bytes=max((4 << 30) / t["median"] for t in read.values()) * 1e6)


# ---- contestants ----

class Operands:
    """The tensors of one problem, and what torch.mm makes of them group by group."""

    def __init__(self, torch, p, check=True):
        random_ = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16, device="cuda")
        x, y = (p["T"], p["K"]), (p["T"], p["N"])
        weights = (p["E"], p["N"], p["K"])
        self.torch, self.p, self.wgrad = torch, p, p["op"].startswith("wgrad")
        self.a = random_(*(x if p["op"] == "forward" else y))
        self.b = random_(*x) if self.wgrad else random_(*weights)
        shape = weights if self.wgrad else y if p["op"] == "forward" else x
        self.d = torch.empty(shape, dtype=torch.float32 if p["op"] == "wgrad32" else torch.bfloat16, device="cuda")
        self.ends = torch.tensor(p["sizes"], device="cuda").cumsum(0).to(torch.int32)
        self.workspace = torch.empty(CUBLAS_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self.start = 1.0 if p["op"] == "wgrad32" else float("nan")
        self.groups = [g for g in range(p["E"]) if p["sizes"][g] > 0]
        if check:
            self.reference = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
            starts = [sum(p["sizes"][:g]) for g in range(p["E"])]
            for g in self.groups:
                rows = slice(starts[g], starts[g] + p["sizes"][g])
                if self.wgrad:
                    torch.mm(self.a[rows].t(), self.b[rows], out=self.reference[g])
                else:
                    torch.mm(self.a[rows], self.b[g].t() if p["op"] == "forward" else self.b[g], out=self.reference[rows])

    def wrong(self, call):
        """None when a call gives the reference's numbers, else what is wrong. Weight gradients of empty groups are not looked at."""
        self.d.fill_(self.start)
        result = call()
        d = self.d if result is None else result
        error = square = 0.0
        pieces = self.groups if self.wgrad else range(0, self.p["T"], 4096)
        for piece in pieces:
            at = piece if self.wgrad else slice(piece, piece + 4096)
            reference = self.reference[at].float()
            got = d[at].float() - (1.0 if self.p["op"] == "wgrad32" else 0.0)
            error = error + (got - reference).square().sum(dtype=self.torch.float64)
            square = square + reference.square().sum(dtype=self.torch.float64)
        relative = float(error / square) ** 0.5
        return None if relative < 0.01 else f"wrong numbers (relative error {relative:.3g})"


def torch_call(o):
    grouped_mm = getattr(o.torch.nn.functional, "grouped_mm", None) or o.torch._grouped_mm
    a, b, offs = o.a, o.b, o.ends
    if o.p["op"] == "forward":
        b = b.transpose(-2, -1)
    elif o.wgrad:
        a = a.t()
    return lambda: grouped_mm(a, b, offs=offs)


def dense_call(o):
    """[T, n, k] with the first expert's weights."""
    weights = o.b[0].t() if o.p["op"] == "forward" else o.b[0]
    return lambda: o.torch.mm(o.a, weights, out=o.d)


def bindings_of(library):
    """tegroup_ctypes of the checkout whose build/ holds the library: another revision's structs may be others."""
    script = pathlib.Path(library).resolve().parents[1] / "examples/tegroup_ctypes.py"
    if not script.exists() or script == pathlib.Path(tg.__file__).resolve():
        return tg
    spec = importlib.util.spec_from_file_location(f"tegroup_ctypes_{len(sys.modules)}", script)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Tegroup:
    """libtegroup.so and the descriptors that it takes."""

    def __init__(self, library, lt, device, only=()):
        self.tg = tg = bindings_of(library)
        self.lib, self.lt, self.device = tg.load(library), lt, device
        self.backends = [b for b in range(1, tg.TEGROUP_BACKEND_COUNT) if b != tg.TEGROUP_BACKEND_CPU and (not only or self.name(b).split()[1] in only)]
        self.functions = None
        if "tegroup_cublaslt_functions" in tg.structs:  # those of the library called by hand, whatever else is loaded
            self.functions = tg.tegroup_cublaslt_functions()
            for name, _ in self.functions._fields_:
                if hasattr(lt.lib, name):
                    setattr(self.functions, name, ctypes.cast(getattr(lt.lib, name), c_void_p).value)
        self.streams = [device.torch.cuda.Stream() for _ in range(4)]
        self.events = [device.event() for _ in range(5)]
        self.stream_list = (c_void_p * 4)(*(s.cuda_stream for s in self.streams))
        self.event_list = (c_void_p * 5)(*(e.cuda_event for e in self.events))

    def name(self, backend):
        return "tegroup " + self.lib.tegroup_backend_name(backend).decode()

    def call(self, o, backend, tune=False, times=None, most=False):
        """A planned product: a function that enqueues it, with what it needs kept alive. Refused says why not. times: gets what tuning measured.
        most: the plan is told the rows of the largest group, too, and not only of all."""
        torch, p, lib, tg = self.device.torch, o.p, self.lib, self.tg
        space = tg.TEGROUP_SPACE_HOST if backend == tg.TEGROUP_BACKEND_CUBLASLT_LOOP else tg.TEGROUP_SPACE_DEVICE
        counts = torch.tensor(p["sizes"], dtype=torch.int64, device="cpu" if space == tg.TEGROUP_SPACE_HOST else "cuda")
        kept = [counts, o]

        def memory(bytes_, where):
            """At a multiple of TEGROUP_ALIGNMENT."""
            whole = torch.empty(bytes_ + tg.TEGROUP_ALIGNMENT, dtype=torch.uint8, device=where)
            kept.append(whole)
            return whole.data_ptr() + -whole.data_ptr() % tg.TEGROUP_ALIGNMENT

        sizes = lib.tegroup_sizes_of(counts.data_ptr(), tg.TEGROUP_DTYPE_I64, space)
        shape, layout = lib.tegroup_shape_of(p["E"], p["T"], 0, sizes), tg.tegroup_layout()
        lib.tegroup_snapshot_layout(shape, layout)
        shape.snapshot = memory(layout.total_bytes, counts.device)

        def tensor(data, ragged, cols):
            dtype = tg.TEGROUP_DTYPE_F32 if data.dtype == torch.float32 else tg.TEGROUP_DTYPE_BF16
            if ragged:
                return lib.tegroup_tensor_of(shape, cols, dtype, data.data_ptr())
            return lib.tegroup_tensor_uniform(p["E"], p["N"], cols, dtype, data.data_ptr())

        n, k = p["N"], p["K"]
        op, *cols = {"forward": (tg.TEGROUP_OP_FORWARD, k, k, n), "dgrad": (tg.TEGROUP_OP_DGRAD, n, k, k)}.get(p["op"], (tg.TEGROUP_OP_WGRAD, n, k, k))
        desc = tg.tegroup_gemm_desc(
            op=op, space=tg.TEGROUP_SPACE_DEVICE, accumulate=int(p["op"] == "wgrad32"),
            options=tg.tegroup_options(backend=backend, expected_rows=p["T"], expected_rows_max=max(p["sizes"]) if most else 0, cublaslt=self.lt.handle,
                                       cublas_workspace_bytes=CUBLAS_WORKSPACE_BYTES, data_alignment_bytes=256),
            a=tensor(o.a, True, cols[0]), b=tensor(o.b, o.wgrad, cols[1]), d=tensor(o.d, not o.wgrad, cols[2]))
        if self.functions is not None:
            desc.options.cublaslt_functions = addressof(self.functions)
        if backend == tg.TEGROUP_BACKEND_CUBLASLT_LOOP:
            desc.options.streams, desc.options.events, desc.options.stream_count = addressof(self.stream_list), addressof(self.event_list), 4

        verdicts = (tg.tegroup_verdict * (tg.TEGROUP_BACKEND_COUNT - 1))()
        lib.tegroup_explain(desc, None, verdicts)
        verdict = next(v for v in verdicts if v.backend == backend)
        if verdict.status != tg.TEGROUP_OK:
            text = ctypes.create_string_buffer(400)
            lib.tegroup_verdict_text(verdict, text, 400)
            raise tg.Refused(verdict.status, " ".join(text.value.decode().split()[1:]))
        plan, error = tg.tegroup_plan(), tg.tegroup_error()
        lib.tegroup_plan_make(desc, None, plan)
        first_tile = plan.tile_m, plan.tile_n
        desc.options.workspace_bytes = plan.workspace_bytes
        desc.options.workspace = memory(desc.options.workspace_bytes, "cuda")
        torch.cuda.synchronize()  # what torch wrote is there, on whatever stream
        lib.tegroup_shape_prepare(shape, shape.snapshot, layout.total_bytes, self.device.raw)
        if tune:
            if "tegroup_plan_tune" not in tg.functions:
                raise tg.Refused(tg.TEGROUP_ERROR_NOT_BUILT, "tegroup_plan_tune is not in this version")
            begin, end = self.device.event(), self.device.event()
            flush = self.device.flush
            rounds = 60 if p["kind"] == "decode" else 0  # of a call of 40 us single times differ by 5%, and candidates by less
            lib.tegroup_plan_tune(plan, tg.tegroup_tune_desc(gemm=addressof(desc), begin=begin.cuda_event, end=end.cuda_event, overwrite=1, any_numerics=1,
                                                             flush=flush.data_ptr(), flush_bytes=FLUSH_BYTES, rounds=rounds,
                                                             milliseconds=addressof(times) if times else None), self.device.raw)
        gemm, arguments = lib.raw.tegroup_gemm, (plan, desc, self.device.raw, error)

        def run():
            if gemm(*arguments):
                lib.tegroup_gemm(*arguments[:3])  # again, for its words
        run.kept, run.arguments, run.first_tile = kept, arguments, first_tile
        return run


def reader(torch, helper, stream, pieces, each):
    """A kernel that reads pieces of memory, `each` bytes long, and does nothing else."""
    listed = torch.tensor(pieces, dtype=torch.int64, device="cuda")

    def run():
        code = helper.host_read(c_void_p(listed.data_ptr()), c_size_t(len(pieces)), c_size_t(each), c_void_p(stream))
        if code:
            raise RuntimeError(f"CUDA error {code} of the kernel that reads")
    return run


def read_call(o, helper, stream):
    """The weights of groups with rows are read: what memory gives at this size, with the cold start of any kernel."""
    each = o.p["N"] * o.p["K"] * 2
    return reader(o.torch, helper, stream, [o.b.data_ptr() + g * each for g in o.groups], each)


def beside_call(o, tegroup):
    """What sm90 is measured beside itself by: name and call; None where there is nothing."""
    p, other = o.p, copy.copy(o)
    if p["kind"] != "prefill":
        return None
    if p["split"] == "zipf16" and not o.wgrad:
        other.p = dict(p, sizes=tables.sizes(p, "uniform"))
        return tables.EVEN, tegroup.call(other, tg.TEGROUP_BACKEND_SM90)
    if p["op"] == "wgrad32":
        other.p, other.d = dict(p, op="wgrad"), o.torch.empty(o.d.shape, dtype=o.torch.bfloat16, device="cuda")
        call = tegroup.call(other, tg.TEGROUP_BACKEND_SM90)
        call.kept.append(other)
        return tables.OVERWRITES, call
    return None


def contestants_of(problem, o, device, lt, tegroup, others, helper, refused, rng):
    """Everyone who can run the problem and gets it right, by name; the others' reasons go into refused."""
    found, notes = {}, {}

    def enter(name, make):
        try:
            call = make()
            why = o.wrong(call)
        except (cublaslt.Refused, *(each.tg.Refused for each in (tegroup, *others.values())), RuntimeError, NotImplementedError) as error:
            why = (str(error).splitlines() or ["refused"])[0]
        if why:
            refused[name] = why
        else:
            found[name] = call

    if problem["op"] != "wgrad32":
        enter(tables.TORCH, lambda: torch_call(o))
    else:
        refused[tables.TORCH] = "wgrad32: grouped_mm does not accumulate"
    try:
        by_hand = cublaslt.Grouped(lt, device.torch, problem, o.a, o.b, o.d, o.workspace, device.raw)
    except cublaslt.Refused as error:
        refused[tables.FIRST] = refused[tables.BEST] = str(error)
    else:
        offered = {}
        for i in range(len(by_hand.algorithms)):
            call = by_hand.call(i)
            try:
                if not o.wrong(call):
                    offered[i] = call
            except cublaslt.Refused:
                pass
        if 0 in offered:
            found[tables.FIRST] = offered[0]
        else:
            refused[tables.FIRST] = "the first algorithm failed or was wrong"
        if offered:
            us, _, _ = measure(device, offered, 9, rng, reads=tables.reads_alone(problem))
            best = min(us, key=lambda i: us[i]["median"])
            notes["cublaslt"] = dict(offered=len(by_hand.algorithms), right=len(offered), best=best)
            if best != 0:
                found[tables.BEST] = offered[best]
    for backend in tegroup.backends:
        enter(tegroup.name(backend), lambda: tegroup.call(o, backend))
        if backend == tg.TEGROUP_BACKEND_SM90:
            enter(tables.KNOWN, lambda: tegroup.call(o, backend, most=True))
        for name, other in others.items():
            enter(tegroup.name(backend) + tables.OF + name, lambda: other.call(o, backend))
    if tg.TEGROUP_BACKEND_CUBLASLT_GROUPED in tegroup.backends:
        enter(tables.TUNED, lambda: tegroup.call(o, tg.TEGROUP_BACKEND_CUBLASLT_GROUPED, tune=True))
    if tables.HOPPER in found:
        found.update([beside] if (beside := beside_call(o, tegroup)) else [])
    if problem["op"] in ("forward", "dgrad"):
        found[tables.DENSE] = dense_call(o)
        if problem["kind"] == "decode":
            found[tables.READ] = read_call(o, helper, device.raw)
    return found, notes


# ---- host time ----

class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2"""
    _fields_ = [("function", c_void_p), ("extents", c_uint * 7), ("parameters", c_void_p), ("extra", c_void_p), ("kernel", c_void_p), ("context", c_void_p)]


def kernels_of(call, stream, first=False):
    """Argument bytes of each kernel that a call enqueues, or of the first one, read from a captured graph."""
    cuda, graph, count, sizes = ctypes.CDLL("libcuda.so.1"), c_void_p(), c_size_t(), []

    def must(code):
        if code:
            raise RuntimeError(f"CUDA driver error {code} while looking at a captured call")
    must(cuda.cuStreamBeginCapture_v2(c_void_p(stream), 2))
    try:
        call()
    finally:
        must(cuda.cuStreamEndCapture(c_void_p(stream), byref(graph)))
    get_nodes = cuda.cuGraphGetRootNodes if first else cuda.cuGraphGetNodes
    must(get_nodes(graph, None, byref(count)))
    nodes = (c_void_p * count.value)()
    must(get_nodes(graph, nodes, byref(count)))
    for node in nodes:
        kind, params = c_int(), KernelNode()
        must(cuda.cuGraphNodeGetType(c_void_p(node), byref(kind)))
        if kind.value != 0:
            continue
        must(cuda.cuGraphKernelNodeGetParams_v2(c_void_p(node), byref(params)))
        info, of = (cuda.cuFuncGetParamInfo, params.function) if params.function else (cuda.cuKernelGetParamInfo, params.kernel)
        offset, size, total, index = c_size_t(), c_size_t(), 0, 0
        while info(c_void_p(of), c_size_t(index), byref(offset), byref(size)) == 0:
            total, index = offset.value + size.value, index + 1
        sizes.append(total)
    cuda.cuGraphDestroy(graph)
    return sizes


def host_times(device, lt, tegroup, helper, rng):
    """Microseconds of the host for a call on tiny groups. A call and what is taken off it take turns: a host has slower minutes, too."""
    out = []

    def timed(calls):
        """calls: functions of the helper, each with its arguments but the last two."""
        us, each = [(c_float * HOST_CALLS)() for _ in calls], HOST_CALLS // HOST_TURNS
        for turn in range(HOST_TURNS):
            for i in rng.sample(range(len(calls)), len(calls)):
                function, *arguments = calls[i]
                code = function(*arguments, each, byref(us[i], 4 * turn * each))
                if code:
                    raise cublaslt.Refused(f"a timed call returned {code}")
        return [tables.spread(times) for times in us]

    for groups in (32, 128):
        problem = dict(op="forward", E=groups, T=4 * groups, N=128, K=128, sizes=[4] * groups)
        o = Operands(device.torch, problem, check=False)
        for backend in tegroup.backends:
            if backend == tg.TEGROUP_BACKEND_CUBLASLT_LOOP:
                continue
            try:
                call = tegroup.call(o, backend)
                plan, desc, stream, error = call.arguments
                calls = [(helper.host_gemm, ctypes.cast(tegroup.lib.raw.tegroup_gemm, c_void_p), byref(plan), byref(desc), c_void_p(stream), byref(error))]
                grouped = backend == tg.TEGROUP_BACKEND_CUBLASLT_GROUPED
                sizes = kernels_of(call, device.raw, first=grouped)  # what comes after the set-up is cublasLtMatmul's
                calls.append((helper.host_empty, (c_int * len(sizes))(*sizes), len(sizes), c_void_p(stream)))
                what = f"{len(sizes)} empty kernel{'s' * (len(sizes) != 1)} of {'+'.join(map(str, sizes))} bytes"
                if grouped:
                    by_hand = cublaslt.Grouped(lt, device.torch, problem, o.a, o.b, o.d, o.workspace, device.raw)
                    *pointers, bytes_, _ = by_hand.arguments_of(0)
                    values = (c_void_p * 14)(*(a.value if isinstance(a, c_void_p) else a for a in pointers))
                    calls.append((helper.host_matmul, ctypes.cast(lt.matmul, c_void_p), values, c_size_t(bytes_), c_void_p(stream)))
                    what = "cublasLtMatmul and " + what
                us, *others = timed(calls)
            except (cublaslt.Refused, tg.Refused, RuntimeError) as refusal:
                print(f"host time of {tegroup.name(backend)}, {groups} groups: {str(refusal).splitlines()[0]}", file=sys.stderr)
                continue
            minus = {k: sum(other[k] for other in others) for k in us}
            out.append(dict(contestant=tegroup.name(backend), E=groups, us=us, minus=what, minus_us=minus, net_us=us["median"] - minus["median"]))
    return out


# ---- the program ----

def run(options, known):
    """Measure what is not known yet, until the time is over."""
    begin = time.monotonic()
    import torch
    torch.cuda.init()
    device = Device(torch)
    lt = cublaslt.CublasLt(options.cublaslt or "libcublasLt.so.13")
    tegroup = Tegroup(options.library, lt, device, options.backends)
    others = {name: Tegroup(file, lt, device, options.backends) for name, file in options.beside}
    helper = ctypes.CDLL(str(options.helper))
    loaded = sorted({line.split()[-1] for line in open("/proc/self/maps") if "libcublasLt.so" in line})
    rng = random.Random()
    machine = (f"{device.properties.name} ({device.properties.multi_processor_count} SMs), driver {device.driver()}, CUDA {torch.version.cuda}, torch "
               f"{torch.__version__}, cuBLAS {device.cublas()}, cuBLASLt {lt.version}, tegroup {tegroup.lib.tegroup_version()}")
    result = dict(runs=[dict(machine=machine, date=datetime.date.today().isoformat(), command=options.command, rounds=options.rounds,
                             cublaslt_loaded=loaded, rates=device.rates(helper))], problems=[], host=[])
    print(f"{machine}\ncublaslt loaded: {' '.join(loaded)}\nrates: {result['runs'][0]['rates']}", flush=True)
    done = {tables.key(p) for p in known["problems"]}
    if not known["host"]:
        result["host"] = host_times(device, lt, tegroup, helper, rng)
    left = [p for p in options.problems if tables.key(p) not in done]
    while left and time.monotonic() - begin < options.seconds:
        problem = left.pop(0)
        o, refused = Operands(torch, problem), {}
        contestants, notes = contestants_of(problem, o, device, lt, tegroup, others, helper, refused, rng)
        us, clock, power = measure(device, contestants, options.rounds, rng, reads=tables.reads_alone(problem))
        if tables.FIRST in us and tables.BEST not in us and tables.BEST not in refused:
            us[tables.BEST] = us[tables.FIRST]
        measured = dict({k: v for k, v in problem.items() if k != "sizes"}, run=0, us=us, refused=refused, notes=notes, clock_mhz=clock, power_w=power,
                        floors_us=tables.floors_us(problem, result["runs"][0]["rates"]), rows=problem["sizes"])
        result["problems"].append(measured)
        print(" ".join(tables.key(problem)), {name: round(t["median"], 1) for name, t in us.items()}, flush=True)
        options.out.write_text(json.dumps(tables.merge([known, result])) + "\n")
        del o, contestants
        torch.cuda.empty_cache()
    if left:
        print(f"{len(left)} problems left: run again with --merge {options.out}")
    return result


def arguments(words):
    listed = lambda allowed: lambda text: [w for w in text.split(",") if w in allowed or sys.exit(f"{w}: choose from {', '.join(allowed)}")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=[], help="parts of names, separated by commas; all")
    parser.add_argument("--ops", type=listed(tables.OPS), default=list(tables.OPS), help=",".join(tables.OPS))
    parser.add_argument("--splits", type=listed(tables.SPLITS), default=list(tables.SPLITS), help=",".join(tables.SPLITS))
    parser.add_argument("--backends", type=lambda text: text.split(","), default=[], help="those of tegroup by name, such as sm90; all")
    parser.add_argument("--sweep", action="store_true", help="at last a forward product with 16 to 8192 rows a group")
    parser.add_argument("--held-out", metavar="SEED", type=int, nargs="?", const=0, help="the shapes of held_out.json, too, sizes drawn anew, or from a seed")
    parser.add_argument("--held-out-alone", action="store_true", help="and none of shapes.json")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=500, help="begin no problem later than this; 500")
    parser.add_argument("--cublaslt", metavar="FILE", help="the cuBLASLt to call by hand and through tegroup")
    parser.add_argument("--library", type=pathlib.Path, default=ROOT / "build/libtegroup.so")
    parser.add_argument("--beside", metavar="NAME=FILE", type=lambda text: tuple(text.split("=", 1)), action="append", default=[], help="another build; again for more")
    parser.add_argument("--helper", type=pathlib.Path, default=ROOT / "build/libhost_calls.so")
    parser.add_argument("--merge", type=pathlib.Path, nargs="*", default=[], help="results to keep: their problems are not measured again")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/bench_gpu.json", help="build/bench_gpu.json; a table goes beside it (.md)")
    parser.add_argument("--into", metavar="PAGE", help="put the table between the markers of this page, such as docs/lab/all-backends.md")
    options = parser.parse_args(words)
    options.command = shlex.join(["tests/bench/bench_gpu.py", *words])
    options.problems = tables.problems(tables.load(ROOT / "tests/bench/shapes.json")["gemm"], options.shapes, options.ops, options.splits)
    if options.held_out is not None:
        seed = options.held_out or random.SystemRandom().randrange(1, 1 << 31)
        print(f"held-out shapes, sizes drawn from seed {seed}")
        held_out = tables.held_out(tables.load(ROOT / "tests/bench/held_out.json")["gemm"], options.shapes, options.ops, seed)
        options.problems = held_out if options.held_out_alone else held_out + options.problems
    if options.sweep:
        options.problems += tables.sweep(options.shapes)
    return options


def main(words):
    options = arguments(words)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    result = tables.merge(tables.load(path) for path in options.merge)
    if options.seconds > 0:
        result = tables.merge([result, run(options, result)])
    lines, good = tables.summary(result)
    text = tables.table(result) + "\n".join(["", "What is required of backends other than sm90, and the worst of it:", "", *(f"- {line}" for line in lines), ""])
    options.out.write_text(json.dumps(result) + "\n")
    options.out.with_suffix(".md").write_text(text)
    if options.into:
        tables.put_between_markers(options.into, text)
    print(text, *tables.beside_rivals(result), *tables.other_builds(result), sep="\n")
    return 0 if good else 1  # 1: a required ratio fails


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
