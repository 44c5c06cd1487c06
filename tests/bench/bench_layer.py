#!/usr/bin/env python3
"""One MoE layer on a GPU, from router logits and tokens to the layer's output and, in training, to all gradients (tokens, logits,
weights, in BF16), in CUDA graphs: tegroup_moe_plan's calls beside torch. Everything that a caller must run is counted.

Contestants take turns in random order, with L2 cold. torch is at its best setting: its grouped_mm after a sort, also compiled by
torch.compile if --compile is given, and for few tokens one batched product with gathered weights. tegroup's plan is told the rows
that there are; "planned for MOST" has a plan, and buffers, for the most tokens of the list. With --formats the layer is timed
again with weights that a format holds, their codes in order and interleaved, beside BF16 weights of the same values. Each output is
held against FP32 arithmetic before it is timed, and each gradient against torch's. Needs torch; build with: make build/libtegroup.so.

  bench_layer.py --tokens 1,8,64,512 --experts 128 --k 8 --hidden 2048 --ffn 768   forward, for inference
  bench_layer.py --formats mxfp4 --experts 32 --k 4 --hidden 2880 --ffn 2880       the same, and with weights of MXFP4
  bench_layer.py --layers 7b,qwen3-30b --compile                                   forward and step of the layers of shapes.json
"""
import argparse
import ctypes
import datetime
import json
import pathlib
import random
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/bench"), str(ROOT / "examples")]
import bench_gpu
import tegroup_ctypes as tg


class Layer:
    """Weights and the operands of one number of tokens. Popularity of experts follows 1/rank^skew, and the draw besides."""

    def __init__(self, torch, shape, tokens, weights, skew=0.0):
        self.torch, self.o, self.tokens, (self.fc1, self.fc2) = torch, shape, tokens, weights
        self.x = torch.randn(tokens, shape.hidden, dtype=torch.bfloat16, device="cuda")
        rank = torch.randperm(shape.experts, device="cuda") + 1
        self.logits = (torch.randn(tokens, shape.experts, device="cuda") - 2 * skew * rank.float().log()).bfloat16()
        self.dy = torch.randn_like(self.x)
        self.inputs = [self.x, self.logits, self.fc1, self.fc2]

    def choice(self):
        probabilities = self.torch.softmax(self.logits.float(), -1)
        weights, experts = self.torch.topk(probabilities, self.o.k)
        return weights / weights.sum(-1, keepdim=True), experts

    def activate(self, h):
        gate, up = h.chunk(2, -1)
        return self.torch.nn.functional.silu(gate) * up

    def reference(self):
        weights, experts = self.choice()
        y = self.torch.zeros(self.tokens, self.o.hidden, device="cuda")
        for e in experts.unique().tolist():
            token, slot = (experts == e).nonzero(as_tuple=True)
            h = self.x[token].float() @ self.fc1[e].float().t()
            y.index_add_(0, token, (self.activate(h) @ self.fc2[e].float().t()) * weights[token, slot, None])
        return y

    def grouped(self):
        torch, k = self.torch, self.o.k
        grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        weights, experts = self.choice()
        flat = experts.view(-1)
        order = flat.argsort(stable=True)
        ends = (flat[None] == torch.arange(self.o.experts, device="cuda")[:, None]).sum(1).cumsum(0).to(torch.int32)
        h = self.activate(grouped_mm(self.x[order // k], self.fc1.transpose(1, 2), offs=ends))
        out = grouped_mm(h, self.fc2.transpose(1, 2), offs=ends) * weights.view(-1)[order][:, None].bfloat16()
        return torch.zeros_like(self.x).index_add_(0, order // k, out)

    def batched(self):
        torch, k = self.torch, self.o.k
        weights, experts = self.choice()
        flat = experts.view(-1)
        x = self.x.repeat_interleave(k, 0)[:, :, None]
        h = self.activate(torch.bmm(self.fc1[flat], x)[:, :, 0])
        out = torch.bmm(self.fc2[flat], h[:, :, None])[:, :, 0].view(self.tokens, k, -1)
        return (out * weights[:, :, None].bfloat16()).sum(1)

    def step(self, forward):
        """Forward and backward: the output, and the gradients of tokens, logits and weights."""
        def call():
            for t in self.inputs:
                t.requires_grad_(True)
            y = forward()
            return (y.detach(), *self.torch.autograd.grad(y, self.inputs, self.dy))
        return call

    def active_bytes(self):
        """Of the weights that this routing reads."""
        return int(self.choice()[1].unique().numel()) * 3 * self.o.hidden * self.o.ffn * 2


FORMATS = dict(mxfp4=("MXFP4", "F4E2M1", "OCP_MX"), nvfp4=("NVFP4", "F4E2M1", "TE_NVFP4"), mxfp8=("MXFP8", "F8E4M3", "TE_MXFP8"))


class Quantised:
    """Weights in a format, their codes in order and interleaved. What they were made of becomes what they mean."""

    def __init__(self, torch, lib, plain, name):
        scaling, dtype, rule = FORMATS[name]
        tensor = lambda dtype, data: lib.tegroup_tensor_uniform(*plain.shape, getattr(tg, "TEGROUP_DTYPE_" + dtype), data)
        room = lambda size: torch.zeros(size, dtype=torch.uint8, device="cuda")
        values, self.in_order, layout = tensor("BF16", plain.data_ptr()), tensor(dtype, None), tg.tegroup_layout()
        self.in_order.scaling = getattr(tg, "TEGROUP_SCALING_" + scaling)
        lib.tegroup_tensor_layout(self.in_order, tg.TEGROUP_COPIES_ROWWISE, layout)
        self.kept = [room(layout.items[i].bytes) for i in (0, 0, 1)]
        self.in_order.data, self.in_order.scale_inv = self.kept[0].data_ptr(), self.kept[2].data_ptr()
        space = tg.TEGROUP_SPACE_DEVICE
        lib.tegroup_quantize(tg.tegroup_quantize_desc(
            space=space, input=values, output=self.in_order, rule=lib.tegroup_scale_rule_of(getattr(tg, "TEGROUP_SCALE_" + rule))), None)
        lib.tegroup_dequantize(tg.tegroup_dequantize_desc(space=space, input=self.in_order, output=values), None)
        self.interleaved = type(self.in_order).from_buffer_copy(self.in_order)
        self.interleaved.data, self.interleaved.code_order = self.kept[1].data_ptr(), tg.TEGROUP_CODES_INTERLEAVED
        lib.tegroup_code_convert(tg.tegroup_code_convert_desc(space=space, **{"from": self.in_order, "to": self.interleaved}), None)
        torch.cuda.synchronize()


class Tegroup:
    """The layer through libtegroup.so, planned for `most` tokens; train: 0 inference, 1 forward and backward, 2 with recompute.
    quantised: fc1's and fc2's weights in a format, in place of the layer's."""

    def __init__(self, torch, library, layer, most, train=0, quantised=None):
        self.torch, self.lib, self.kept, self.train = torch, tg.load(library), [layer], train
        o, bf16 = layer.o, tg.TEGROUP_DTYPE_BF16
        empty = lambda *like: torch.empty(*like, dtype=torch.bfloat16, device="cuda")
        self.results = [empty(layer.tokens, o.hidden)]
        if train:
            self.results += [torch.empty_like(t) for t in layer.inputs]

        def weights(of, gradient):
            if quantised:
                return tg.tegroup_mlp_weights(weight=quantised[gradient - 3])
            uniform = lambda t: self.lib.tegroup_tensor_uniform(o.experts, of.shape[1], of.shape[2], bf16, t.data_ptr())
            return tg.tegroup_mlp_weights(weight=uniform(of), **(dict(main_grad=uniform(self.results[gradient])) if train else {}))

        def desc_of(tokens):
            matrix = lambda t, cols: self.lib.tegroup_matrix_of(t.data_ptr(), tokens, cols, bf16)
            backward = dict(grad_output=matrix(layer.dy, o.hidden), grad_tokens=matrix(self.results[1], o.hidden),
                            grad_logits=matrix(self.results[2], o.experts)) if train else {}
            return tg.tegroup_moe_desc(
                space=tg.TEGROUP_SPACE_DEVICE, tokens=matrix(layer.x, o.hidden), output=matrix(self.results[0], o.hidden),
                router=tg.tegroup_router_desc(k=o.k, normalize=1, logits=matrix(layer.logits, o.experts)),
                experts=tg.tegroup_mlp_desc(fc1=weights(layer.fc1, 3), fc2=weights(layer.fc2, 4), activation=tg.TEGROUP_ACTIVATION_SWIGLU,
                                            recompute=int(train == 2), options=tg.tegroup_options(expected_rows=layer.tokens * o.k)), **backward)

        self.plan, self.desc = tg.tegroup_moe_plan(), desc_of(layer.tokens)
        self.lib.tegroup_moe_plan_make(desc_of(most), None, self.plan)
        options = self.desc.experts.options
        options.workspace, options.workspace_bytes = self.memory(self.plan.workspace_bytes), self.plan.workspace_bytes
        for name in ("saved_by_forward", "saved_by_dgrad"):
            size = getattr(self.plan, name + "_bytes")
            if size:
                setattr(self.desc, name, self.memory(size))
                setattr(self.desc, name + "_bytes", size)

    def memory(self, size):
        whole = self.torch.empty(size + tg.TEGROUP_ALIGNMENT, dtype=self.torch.uint8, device="cuda")
        self.kept.append(whole)
        return whole.data_ptr() + -whole.data_ptr() % tg.TEGROUP_ALIGNMENT

    def forward(self):
        self.lib.tegroup_moe_forward(self.plan, self.desc, self.torch.cuda.current_stream().cuda_stream)
        return self.results[:1]

    def step(self):
        stream = self.torch.cuda.current_stream().cuda_stream
        self.forward()
        self.lib.tegroup_moe_dgrad(self.plan, self.desc, stream)
        self.lib.tegroup_moe_wgrad(self.plan, self.desc, stream)
        return self.results


def captured(torch, call, wanted):
    """A function that replays the call, once its results have been held against those wanted; and how many launches it is."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        results = call()
    graph.instantiate()
    nodes = ctypes.c_size_t()
    ctypes.CDLL("libcudart.so.13").cudaGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(nodes))
    graph.replay()
    torch.cuda.synchronize()
    for i, (result, want) in enumerate(zip(results if isinstance(results, (list, tuple)) else [results], wanted)):
        error = float((result.detach().float() - want.float()).norm() / want.float().norm())
        if not error < 0.02:
            raise ValueError(f"wrong numbers (result {i}, relative error {error:.3g})")
    return lambda kept=call: graph.replay(), nodes.value # the graph reads and writes what belongs to the call


class Bench:
    def __init__(self, torch, options):
        self.torch, self.options, self.device, self.rng = torch, options, bench_gpu.Device(torch), random.Random(1)
        self.figures = dict(machine=torch.cuda.get_device_name(), driver=self.device.driver(), cuda=torch.version.cuda, torch=torch.__version__,
                            cublas=self.device.cublas(), date=str(datetime.date.today()), command=" ".join(sys.argv), us={})
        print(", ".join(f"{name} {value}" for name, value in self.figures.items() if name != "us"), flush=True)

    def weights(self, shape):
        of = lambda *extents: self.torch.randn(*extents, dtype=self.torch.bfloat16, device="cuda") * extents[-1] ** -0.5
        return of(shape.experts, 2 * shape.ffn, shape.hidden), of(shape.experts, shape.hidden, shape.ffn)

    def compare(self, title, makers, wanted, note=lambda us: ""):
        """Times what `makers` make, by turns, and prints a line each."""
        calls, launches = {}, {}
        for name, make in makers.items():
            try:
                calls[name], launches[name] = captured(self.torch, make(), wanted)
            except Exception as reason:  # noqa: BLE001 - a contestant that cannot run is said to, and the others run
                print(f"{title}: {name}: NOT MEASURED: {str(reason).splitlines()[0][:200]}", flush=True)
        us, _, _ = bench_gpu.measure(self.device, calls, self.options.rounds, self.rng, warm_up=5, reads=True)
        best = min((t["median"] for name, t in us.items() if name.startswith("torch")), default=float("nan"))
        self.figures["us"][title] = us
        for name, t in us.items():
            print(f"{title:34s} {name:28s} {t['median']:9.1f} us  ({t['p10']:.1f} to {t['p90']:.1f}), {launches[name]:3d} nodes, torch's best / it "
                  f"{best / t['median']:.2f}{note(t['median'])}", flush=True)

    def compiled(self, makers):
        if self.options.compile:
            for name in [n for n in makers if n.startswith("torch")]:
                makers[name + ", compiled"] = lambda make=makers[name]: self.torch.compile(make(), fullgraph=True)
        return makers

    def inference(self, shape, all_tokens, name=None):
        weights, library, quantised = self.weights(shape), self.options.library, {}
        if name:
            of_both = [Quantised(self.torch, tg.load(library), of, name) for of in weights]
            quantised = {f"tegroup {name}": [q.in_order for q in of_both], f"tegroup {name}, interleaved": [q.interleaved for q in of_both]}
        for tokens in all_tokens:
            layer = Layer(self.torch, shape, tokens, weights)
            makers = {"tegroup": lambda: Tegroup(self.torch, self.options.library, layer, tokens).forward,
                      f"tegroup planned for {max(all_tokens)}": lambda: Tegroup(self.torch, self.options.library, layer, max(all_tokens)).forward,
                      "torch grouped_mm": lambda: layer.grouped}
            if tokens <= self.options.batched_up_to:
                makers["torch batched"] = lambda: layer.batched
            for title, given in quantised.items():
                makers[title] = lambda given=given: Tegroup(self.torch, library, layer, tokens, quantised=given).forward
            read, title = layer.active_bytes(), f"{shape.name}{' of ' + name if name else ''} {tokens} tokens"
            self.compare(title, self.compiled(makers), [layer.reference()], lambda us: "" if name else f", {read / us / 1e6:.2f} TB/s of weights")

    def training(self, shape, skew):
        layer = Layer(self.torch, shape, shape.tokens, self.weights(shape), skew)
        flops = 6 * shape.tokens * shape.k * shape.hidden * shape.ffn
        wanted = layer.step(layer.grouped)()
        for t in layer.inputs:
            t.requires_grad_(False)
        wanted = [layer.reference(), *wanted[1:]]
        title = f"{shape.name}{', zipf' if skew else ''}"
        make = {train: lambda train=train: Tegroup(self.torch, self.options.library, layer, shape.tokens, train) for train in (1, 2)}
        for train, name in ((1, "kept"), (2, "recomputed")):
            plan = make[train]().plan
            tokens = 2 * shape.tokens * shape.hidden # X, which the caller keeps
            print(f"{title}, activations {name}: {(plan.saved_by_forward_bytes + tokens) / 1e6:.1f} MB from forward to backward, X among them, {plan.saved_by_dgrad_bytes / 1e6:.1f} MB "
                  f"from dgrad to wgrad, workspace {plan.workspace_bytes / 1e6:.1f} MB; SonicMoE keeps {(tokens + 4 * shape.tokens * shape.k * shape.ffn) / 1e6:.1f} MB")
        torch_ = self.compiled({"torch grouped_mm": lambda: layer.grouped})
        self.compare(title + " forward", {"tegroup": lambda: make[1]().forward, "tegroup, recompute": lambda: make[2]().forward, **torch_}, wanted,
                     lambda us: f", {flops / us / 1e6:.0f} TFLOP/s")
        self.compare(title + " step", {"tegroup": lambda: make[1]().step, "tegroup, recompute": lambda: make[2]().step,
                                       **{name: (lambda m=m: layer.step(m())) for name, m in torch_.items()}}, wanted, lambda us: f", {3 * flops / us / 1e6:.0f} TFLOP/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="1,8,64,512")
    for name, value in (("experts", 128), ("k", 8), ("hidden", 2048), ("ffn", 768), ("rounds", 51)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--formats", default="", help="weights in these, too: mxfp4, nvfp4, mxfp8, separated by commas")
    parser.add_argument("--layers", help="training instead: those layers of shapes.json whose names begin so, separated by commas; all: every one")
    parser.add_argument("--zipf", action="store_true", help="--layers: uneven routing, too")
    parser.add_argument("--batched-up-to", type=int, default=16, help="tokens up to which weights are gathered for a batched product")
    parser.add_argument("--compile", action="store_true", help="torch.compile's contestants, too")
    parser.add_argument("--library", default=str(ROOT / "build/libtegroup.so"))
    parser.add_argument("--out", help="a JSON file for the figures")
    options = parser.parse_args()
    import torch
    torch.manual_seed(1)
    bench = Bench(torch, options)
    if options.layers is None:
        shape = types.SimpleNamespace(name="layer", experts=options.experts, k=options.k, hidden=options.hidden, ffn=options.ffn)
        for name in [None, *filter(None, options.formats.split(","))]:
            bench.inference(shape, [int(t) for t in options.tokens.split(",")], name)
    else:
        for l in json.loads((ROOT / "tests/bench/shapes.json").read_text())["layer"]:
            if options.layers != "all" and not l["name"].startswith(tuple(options.layers.split(","))):
                continue
            shape = types.SimpleNamespace(name=l["name"], tokens=l["T"], experts=l["E"], k=l["top_k"], hidden=l["d"], ffn=l["n"])
            for skew in (0.0, 0.5)[:1 + options.zipf]:
                bench.training(shape, skew)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(bench.figures, indent=1))


main()
