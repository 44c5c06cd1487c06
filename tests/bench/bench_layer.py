#!/usr/bin/env python3
"""The forward pass of one MoE layer on a GPU, from router logits and tokens to the layer's output, in a CUDA graph: tegroup
beside torch. Everything that a caller must run is counted: router, permutation, prepared sizes, permute, fc1, activation, fc2, combine.

Contestants take turns in random order, with L2 cold. torch is at its best setting: its grouped_mm after a sort; and, for few tokens,
one batched product with gathered weights; each also compiled by torch.compile, if --compile is given. tegroup's plan is told the rows
that there are; "planned for MOST" has a plan, and buffers, for the most tokens of the list. Each result is compared with FP32
arithmetic before it is timed. Needs torch; build with: make build/libtegroup.so.

  bench_layer.py --tokens 1,8,64,512 --experts 128 --k 8 --hidden 2048 --ffn 768
"""
import argparse
import ctypes
import datetime
import json
import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/bench"), str(ROOT / "examples")]
import bench_gpu
import tegroup_ctypes as tg


class Layer:
    """Weights and the operands of one number of tokens."""

    def __init__(self, torch, options, tokens, weights):
        self.torch, self.o, self.tokens, (self.fc1, self.fc2) = torch, options, tokens, weights
        self.x = torch.randn(tokens, options.hidden, dtype=torch.bfloat16, device="cuda")
        self.logits = torch.randn(tokens, options.experts, dtype=torch.bfloat16, device="cuda")

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


class Tegroup:
    """The layer through libtegroup.so, for up to `most` tokens."""

    def __init__(self, torch, library, layer, most, expected):
        self.torch, self.lib, self.kept = torch, tg.load(library), []
        o, device, tokens, rows = layer.o, tg.TEGROUP_SPACE_DEVICE, layer.tokens, most * layer.o.k
        matrix = lambda shape, dtype: self.matrix(torch.empty(shape, dtype=dtype, device="cuda"))
        logits, x, self.y = self.matrix(layer.logits), self.matrix(layer.x), torch.empty_like(layer.x)
        weights, indices = matrix((tokens, o.k), torch.float32), matrix((tokens, o.k), torch.int32)
        counts = torch.zeros(1, o.experts, dtype=torch.int64, device="cuda")
        self.router = tg.tegroup_router_desc(space=device, experts=o.experts, k=o.k, normalize=1, logits=logits, weights=weights, indices=indices,
                                             probabilities=matrix((tokens, o.experts), torch.float32), counts=self.matrix(counts))
        self.workspace(self.router, "tegroup_router_layout")
        self.shape = self.lib.tegroup_shape_of(o.experts, rows, 0, self.lib.tegroup_sizes_of(counts.data_ptr(), tg.TEGROUP_DTYPE_I64, device))
        self.layout = tg.tegroup_layout()
        self.lib.tegroup_snapshot_layout(self.shape, self.layout)
        self.shape.snapshot = self.memory(self.layout.total_bytes)
        row_of_slot, slot_of_row = matrix((tokens, o.k), torch.int64), matrix((1, rows), torch.int64)
        self.permutation = tg.tegroup_permutation_desc(space=device, indices=indices, shape=self.shape, row_of_slot=row_of_slot, slot_of_row=slot_of_row)
        self.workspace(self.permutation, "tegroup_permutation_layout")
        permuted, out = (torch.zeros(rows, o.hidden, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        self.permute = tg.tegroup_permute_desc(space=device, k=o.k, tokens=x, row_of_slot=row_of_slot, permuted=self.matrix(permuted))
        self.combine = tg.tegroup_combine_desc(space=device, permuted=self.matrix(out), row_of_slot=row_of_slot, weights=weights, tokens=self.matrix(self.y))
        bf16 = tg.TEGROUP_DTYPE_BF16
        uniform = lambda w: tg.tegroup_mlp_weights(weight=self.lib.tegroup_tensor_uniform(o.experts, w.shape[1], w.shape[2], bf16, w.data_ptr()))
        ragged = lambda t: self.lib.tegroup_tensor_of(self.shape, o.hidden, bf16, t.data_ptr())
        self.mlp = tg.tegroup_mlp_desc(space=device, fc1=uniform(layer.fc1), fc2=uniform(layer.fc2), activation=tg.TEGROUP_ACTIVATION_SWIGLU,
                                       input=ragged(permuted), out=ragged(out), options=tg.tegroup_options(expected_rows=expected * o.k))
        self.plan = tg.tegroup_mlp_plan()
        self.lib.tegroup_mlp_plan_make(self.mlp, None, self.plan)
        self.mlp.options.workspace_bytes = self.plan.workspace_bytes
        self.mlp.options.workspace = self.memory(self.plan.workspace_bytes)
        self.kept += [layer, counts, permuted, out]

    def memory(self, size):
        whole = self.torch.empty(size + tg.TEGROUP_ALIGNMENT, dtype=self.torch.uint8, device="cuda")
        self.kept.append(whole)
        return whole.data_ptr() + -whole.data_ptr() % tg.TEGROUP_ALIGNMENT

    def matrix(self, t):
        self.kept.append(t)
        types = {self.torch.bfloat16: tg.TEGROUP_DTYPE_BF16, self.torch.float32: tg.TEGROUP_DTYPE_F32, self.torch.int32: tg.TEGROUP_DTYPE_I32,
                 self.torch.int64: tg.TEGROUP_DTYPE_I64}
        return self.lib.tegroup_matrix_of(t.data_ptr(), t.shape[0], t.shape[1], types[t.dtype])

    def workspace(self, desc, calculator):
        layout = tg.tegroup_layout()
        getattr(self.lib, calculator)(desc, layout)
        desc.workspace, desc.workspace_bytes = self.memory(layout.total_bytes), layout.total_bytes

    def __call__(self):
        stream = self.torch.cuda.current_stream().cuda_stream
        self.lib.tegroup_router(self.router, stream)
        self.lib.tegroup_shape_prepare(self.shape, self.shape.snapshot, self.layout.total_bytes, stream)
        self.lib.tegroup_permutation_make(self.permutation, stream)
        self.lib.tegroup_permute(self.permute, stream)
        self.lib.tegroup_mlp_forward(self.plan, self.mlp, stream)
        self.lib.tegroup_combine(self.combine, stream)
        return self.y


def captured(torch, call, reference):
    """A function that replays the call, once its result has been held against the reference."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    graph.replay()
    torch.cuda.synchronize()
    error = float((result.float() - reference).norm() / reference.norm())
    if not error < 0.02:
        raise ValueError(f"wrong numbers (relative error {error:.3g})")
    return graph.replay


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="1,8,64,512")
    for name, value in (("experts", 128), ("k", 8), ("hidden", 2048), ("ffn", 768), ("rounds", 51)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--batched-up-to", type=int, default=16, help="tokens up to which weights are gathered for a batched product")
    parser.add_argument("--compile", action="store_true", help="torch.compile's contestants, too")
    parser.add_argument("--library", default=str(ROOT / "build/libtegroup.so"))
    parser.add_argument("--out", help="a JSON file for the figures")
    options = parser.parse_args()
    import torch
    torch.manual_seed(1)
    device, rng = bench_gpu.Device(torch), random.Random(1)
    random_ = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16, device="cuda") * shape[-1] ** -0.5
    weights = (random_(options.experts, 2 * options.ffn, options.hidden), random_(options.experts, options.hidden, options.ffn))
    all_tokens = [int(t) for t in options.tokens.split(",")]
    figures = dict(machine=torch.cuda.get_device_name(), driver=device.driver(), cuda=torch.version.cuda, torch=torch.__version__, cublas=device.cublas(),
                   date=str(datetime.date.today()), command=" ".join(sys.argv), us={})
    print(", ".join(f"{name} {value}" for name, value in figures.items() if name != "us"), flush=True)
    for tokens in all_tokens:
        layer = Layer(torch, options, tokens, weights)
        reference, calls = layer.reference(), {}
        makers = {"tegroup": lambda: Tegroup(torch, options.library, layer, tokens, tokens),
                  f"tegroup planned for {max(all_tokens)}": lambda: Tegroup(torch, options.library, layer, max(all_tokens), max(all_tokens)),
                  "torch grouped_mm": lambda: layer.grouped}
        if tokens <= options.batched_up_to:
            makers["torch batched"] = lambda: layer.batched
        if options.compile:
            for name in [n for n in makers if n.startswith("torch")]:
                makers[name + ", compiled"] = lambda make=makers[name]: torch.compile(make(), fullgraph=True)
        for name, make in makers.items():
            try:
                calls[name] = captured(torch, make(), reference)
            except Exception as reason:  # noqa: BLE001 - a contestant that cannot run is said to, and the others run
                print(f"{tokens} tokens: {name}: NOT MEASURED: {str(reason).splitlines()[0][:200]}")
        us, _, _ = bench_gpu.measure(device, calls, options.rounds, rng, warm_up=5, reads=True)
        best = min(t["median"] for name, t in us.items() if name.startswith("torch"))
        figures["us"][tokens] = us
        for name, t in us.items():
            print(f"{tokens:5d} tokens  {name:28s} {t['median']:8.1f} us  ({t['p10']:.1f} to {t['p90']:.1f})  torch's best / it {best / t['median']:.2f}", flush=True)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(figures, indent=1))


main()
