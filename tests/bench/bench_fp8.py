#!/usr/bin/env python3
"""SM90's products of FP8 on a GPU, beside torch._scaled_grouped_mm with a scale a row (with its fast accumulation, which does not
promote sums): TFLOP/s, and TB/s of the weights for few rows. Calls take turns in random order, each in a CUDA graph. Each result is
compared with a product of what the quantised operands mean. Needs torch; build with: make build/libtegroup.so.

  bench_fp8.py --shapes "dsv3 ep32 fc1,dsv3 ep8 decode fc1" --ops forward,dgrad,wgrad
"""
import argparse
import ctypes
import json
import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/bench"), str(ROOT / "examples")]
import tables
import tegroup_ctypes as tg

OPS = {"forward": tg.TEGROUP_OP_FORWARD, "dgrad": tg.TEGROUP_OP_DGRAD, "wgrad": tg.TEGROUP_OP_WGRAD}
PRESETS = {"TENSOR": "TE_CURRENT", "ROW": "FBGEMM_ROW", "BLOCK_1X128": "DEEPGEMM", "BLOCK_128X128": "TE_BLOCK"}


class Product:
    """X [rows, k] and W [groups, n, k] of BF16; groups of `sizes` rows."""

    def __init__(self, torch, library, sizes, n, k, tunes):
        groups, rows = len(sizes), sum(sizes)
        self.tunes, self.torch, self.lib, self.groups, self.rows, self.n, self.k, self.kept = tunes, torch, library, groups, rows, n, k, []
        self.group = max(g for g in range(groups) if sizes[g]) # whose result is compared
        self.of_group = slice(sum(sizes[:self.group]), sum(sizes[:self.group + 1]))
        self.x = torch.randn(rows, k, dtype=torch.bfloat16, device="cuda")
        self.w = torch.randn(groups, n, k, dtype=torch.bfloat16, device="cuda")
        self.dy = torch.randn(rows, n, dtype=torch.bfloat16, device="cuda")
        self.counts = torch.tensor(sizes, dtype=torch.int64, device="cuda")
        self.ends = torch.cumsum(self.counts, 0).to(torch.int32)
        sizes = library.tegroup_sizes_of(self.counts.data_ptr(), tg.TEGROUP_DTYPE_I64, tg.TEGROUP_SPACE_DEVICE)
        self.shape = library.tegroup_shape_of(groups, rows, k, sizes)
        layout = tg.tegroup_layout()
        library.tegroup_snapshot_layout(self.shape, layout)
        self.snapshot = self.room(layout.total_bytes)
        library.tegroup_shape_prepare(self.shape, self.snapshot.data_ptr(), layout.total_bytes, None)

    def room(self, bytes):
        self.kept.append(self.torch.empty(max(bytes, 1), dtype=self.torch.uint8, device="cuda"))
        return self.kept[-1]

    def ragged(self, source, dtype):
        shape = tg.tegroup_shape.from_buffer_copy(self.shape)
        shape.cols = source.shape[1]
        return self.lib.tegroup_tensor_of(shape, source.shape[1], dtype, source.data_ptr())

    def uniform(self, source, dtype):
        return self.lib.tegroup_tensor_uniform(*source.shape, dtype, source.data_ptr())

    def quantised(self, plain, scaling, columnwise):
        """The copy of a tensor that a product reads, and what it means in BF16."""
        out = type(plain).from_buffer_copy(plain)
        out.data = None
        out.dtype, out.scaling = tg.TEGROUP_DTYPE_F8E4M3, getattr(tg, "TEGROUP_SCALING_" + scaling)
        out.columnwise_order = tg.TEGROUP_COLUMNWISE_TRANSPOSED
        layout = tg.tegroup_layout()
        self.lib.tegroup_tensor_layout(out, tg.TEGROUP_COPIES_COLUMNWISE if columnwise else tg.TEGROUP_COPIES_ROWWISE, layout)
        for item, field in enumerate(("data", "scale_inv", "columnwise_data", "columnwise_scale_inv")):
            if layout.items[item].bytes:
                setattr(out, field, self.room(layout.items[item].bytes).data_ptr())
        if scaling == "TENSOR":
            out.amax = self.room(4 * self.groups).data_ptr()
        rule = self.lib.tegroup_scale_rule_of(getattr(tg, "TEGROUP_SCALE_" + PRESETS[scaling]))
        self.lib.tegroup_quantize(tg.tegroup_quantize_desc(space=tg.TEGROUP_SPACE_DEVICE, input=plain, output=out, rule=rule), None)
        return out

    def meaning(self, tensor, like, columnwise):
        back = self.torch.empty_like(like)
        plain = (self.ragged if like.dim() == 2 else self.uniform)(back, tg.TEGROUP_DTYPE_BF16)
        self.lib.tegroup_dequantize(tg.tegroup_dequantize_desc(space=tg.TEGROUP_SPACE_DEVICE, input=tensor, columnwise=int(columnwise), output=plain), None)
        self.torch.cuda.synchronize()
        return back

    def case(self, op, scalings, fast=False):
        """A call and the largest error of one group of its result, relative to the largest value there."""
        torch, bf16, f32 = self.torch, tg.TEGROUP_DTYPE_BF16, tg.TEGROUP_DTYPE_F32
        wgrad, dgrad = op == "wgrad", op == "dgrad"
        a_of, b_of = (self.x if op == "forward" else self.dy), (self.x if wgrad else self.w)
        a = self.quantised(self.ragged(a_of, bf16), scalings[0], wgrad)
        b = self.quantised((self.ragged if wgrad else self.uniform)(b_of, bf16), scalings[1], wgrad or dgrad)
        d = torch.zeros((self.groups, self.n, self.k) if wgrad else (self.rows, self.k if dgrad else self.n),
                        dtype=torch.float32 if wgrad else torch.bfloat16, device="cuda")
        out = self.uniform(d, f32) if wgrad else self.ragged(d, bf16)
        desc = tg.tegroup_gemm_desc(op=OPS[op], space=tg.TEGROUP_SPACE_DEVICE, a=a, b=b, d=out)
        desc.options.backend = tg.TEGROUP_BACKEND_SM90
        desc.options.compute = tg.TEGROUP_COMPUTE_FAST_ACCUM if fast else tg.TEGROUP_COMPUTE_F32
        desc.options.expected_rows = self.rows
        plan = tg.tegroup_plan()
        self.lib.tegroup_plan_make(desc, None, plan)
        desc.options.workspace_bytes = plan.workspace_bytes
        if plan.workspace_bytes:
            desc.options.workspace = self.room(plan.workspace_bytes).data_ptr()
        times = self.tune(plan, desc) if self.tunes else []
        self.lib.tegroup_gemm(plan, desc, None)
        torch.cuda.synchronize()
        g, rows = self.group, self.of_group
        of_a, of_b = self.meaning(a, a_of, wgrad)[rows].float(), self.meaning(b, b_of, wgrad or dgrad)
        of_b = (of_b[rows] if wgrad else of_b[g]).float()
        want = of_a.T @ of_b if wgrad else of_a @ of_b if dgrad else of_a @ of_b.T
        got = (d[g] if wgrad else d[rows]).float()
        error = ((got - want).abs().max() / want.abs().max()).item()
        self.kept.append(d)
        return lambda s: self.lib.tegroup_gemm(plan, desc, s), error, f"{plan.tile_m}x{plan.tile_n}" + "".join(f" {1e3 * t:.0f}" for t in times)

    def tune(self, plan, desc):
        """The plan gets the kernel that is fastest here; milliseconds of each."""
        torch, times = self.torch, (ctypes.c_float * tg.TEGROUP_TUNE_CANDIDATES)(*[-1] * tg.TEGROUP_TUNE_CANDIDATES)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(), end.record()
        self.lib.tegroup_plan_tune(plan, tg.tegroup_tune_desc(gemm=ctypes.addressof(desc), overwrite=1, rounds=7, begin=begin.cuda_event, end=end.cuda_event,
                                                              milliseconds=ctypes.addressof(times)), None)
        return [t for t in times if t >= 0]

    def torch_rowwise(self):
        torch = self.torch
        amax = lambda t: t.abs().amax(-1).float() / 448
        sx, sw = amax(self.x), amax(self.w)
        x = (self.x.float() / sx[:, None]).to(torch.float8_e4m3fn)
        w = torch.stack([(of.float() / s[:, None]).to(torch.float8_e4m3fn) for of, s in zip(self.w, sw)])
        return lambda s: torch._scaled_grouped_mm(x, w.transpose(-2, -1), sx, sw, offs=self.ends, out_dtype=torch.bfloat16, use_fast_accum=True)


def graph_of(torch, call):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call(stream.cuda_stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(torch.cuda.current_stream().cuda_stream)
    return graph


def median_us(torch, graphs, flush, repeats, reads=False):
    """Of each graph, taken in turns in random order; flush: what is written, or read, before each, so that operands come from memory."""
    times = {name: [] for name in graphs}
    for _ in range(repeats):
        for name in random.sample(list(graphs), len(graphs)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if flush is not None and reads:
                flush.sum()
            elif flush is not None:
                flush.zero_()
            begin.record()
            graphs[name].replay()
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e3)
    return {name: sorted(of)[len(of) // 2] for name, of in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=[], help="parts of names in shapes.json, separated by commas; all")
    parser.add_argument("--splits", type=lambda text: text.split(","), default=["uniform"], help="uniform, zipf16, routed")
    parser.add_argument("--ops", default="forward,dgrad,wgrad")
    parser.add_argument("--held-out", metavar="SEED", type=int, nargs="?", const=0, help="the shapes of held_out.json first whose rows FP8 kernels take, sizes drawn anew, or from a seed")
    parser.add_argument("--tune", action="store_true", help="take the fastest kernel of each plan; microseconds of each stand behind the tile")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--library", default=str(ROOT / "build/libtegroup.so"))
    parser.add_argument("--out", help="JSON")
    o = parser.parse_args()
    import torch
    library, results = tg.load(o.library), []
    flush = torch.zeros(64 << 20, dtype=torch.float32, device="cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'shape':32} {'op':8} {'what':28} {'tile':8} {'us':>8} {'TFLOP/s':>8} {'TB/s of W':>10} {'error':>9}")
    shapes = tables.load(ROOT / "tests/bench/shapes.json")
    problems = tables.problems(shapes["gemm"] + shapes["fp8"], o.shapes, [None], o.splits)
    if o.held_out is not None:
        seed = o.held_out or random.SystemRandom().randrange(1, 1 << 31)
        print(f"held-out shapes, sizes drawn from seed {seed}")
        held_out = tables.held_out(tables.load(ROOT / "tests/bench/held_out.json")["gemm"], o.shapes, [None], seed)
        problems = [p for p in held_out if p["N"] % 16 == 0 and p["K"] % 16 == 0] + problems
    for p in problems:
        shape, n, k = f"{p['name']} {p['split']}", p["N"], p["K"]
        rows, active = sum(p["sizes"]), sum(size > 0 for size in p["sizes"])
        product = Product(torch, library, p["sizes"], n, k, o.tune)
        for op in o.ops.split(","):
            pairs = [("BLOCK_1X128", "BLOCK_1X128")] if op == "wgrad" else [("ROW", "ROW"), ("BLOCK_1X128", "BLOCK_128X128"), ("TENSOR", "TENSOR")]
            cases = {" x ".join(pair): product.case(op, pair) for pair in pairs}
            if op != "wgrad":
                cases |= {" x ".join(pair) + " fast": product.case(op, pair, True) for pair in pairs if pair[0] in ("ROW", "TENSOR")}
            if op == "forward":
                cases["torch rowwise fast"] = (product.torch_rowwise(), float("nan"), "")
            times = median_us(torch, {name: graph_of(torch, case[0]) for name, case in cases.items()}, flush, o.repeats, tables.reads_alone(dict(p, op=op)))
            for name, us in times.items():
                line = {"shape": shape, "op": op, "what": name, "tile": cases[name][2], "us": us, "tflops": 2e-6 * rows * n * k / us,
                        "weights_tbs": 1e-6 * active * n * k / us, "error": cases[name][1]}
                results.append(line)
                print(f"{shape:32} {op:8} {name:28} {line['tile']:8} {us:8.1f} {line['tflops']:8.0f} {line['weights_tbs']:10.2f} {line['error']:9.1e}", flush=True)
        del product, cases
        torch.cuda.empty_cache()
    if o.out:
        pathlib.Path(o.out).write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "results": results}, indent=1))


if __name__ == "__main__":
    main()
