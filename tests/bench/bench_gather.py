#!/usr/bin/env python3
"""SM90's products whose rows are picked by an index, beside the same products of a permuted copy, and beside that copy made first by
tegroup_permute: those of the MoE layers of shapes.json, BF16, microseconds. Routing is even or zipf. Calls take turns in random
order, each in a CUDA graph; results are the same bits. Needs torch; build with: make build/libtegroup.so.

  bench_gather.py --shapes "7b fine-grained,qwen3-30b" --ops forward,dgrad,wgrad
"""
import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/bench"), str(ROOT / "examples")]
import tables
import tegroup_ctypes as tg
from bench_fp8 import OPS, graph_of, median_us

# product: (operation, whether it is fc1's, the operand that is gathered)
PRODUCTS = {"fc1 forward": ("forward", True, "a"), "fc2 dgrad": ("dgrad", False, "a"), "fc1 wgrad": ("wgrad", True, "b"), "fc2 wgrad": ("wgrad", False, "a")}


class Layer:
    def __init__(self, torch, library, shape, zipf):
        self.torch, self.lib, self.kept, self.shape = torch, library, [], shape
        tokens, k, groups = shape["T"], shape["top_k"], shape["E"]
        chance = torch.arange(1, groups + 1, device="cuda", dtype=torch.float32) ** (-0.8 if zipf else 0)
        experts = torch.multinomial(chance[torch.randperm(groups, device="cuda")].expand(tokens, groups), k)
        self.slots = experts.flatten().argsort(stable=True)
        self.row_of_slot = self.slots.argsort()
        self.counts = torch.bincount(experts.flatten(), minlength=groups)
        self.rows, self.tokens, self.k, self.groups = tokens * k, tokens, k, groups
        sizes = library.tegroup_sizes_of(self.counts.data_ptr(), tg.TEGROUP_DTYPE_I64, tg.TEGROUP_SPACE_DEVICE)
        self.ragged_shape, layout = library.tegroup_shape_of(groups, self.rows, 0, sizes), tg.tegroup_layout()
        library.tegroup_snapshot_layout(self.ragged_shape, layout)
        self.ragged_shape.snapshot = self.room(layout.total_bytes)
        torch.cuda.synchronize()
        library.tegroup_shape_prepare(self.ragged_shape, self.ragged_shape.snapshot, layout.total_bytes, None)

    def room(self, size):
        self.kept.append(self.torch.empty(size + 256, dtype=self.torch.uint8, device="cuda"))
        return self.kept[-1].data_ptr() + -self.kept[-1].data_ptr() % 256

    def ragged(self, t):
        return self.lib.tegroup_tensor_of(self.ragged_shape, t.shape[1], tg.TEGROUP_DTYPE_BF16, t.data_ptr())

    def permute(self, source, to):
        matrix = lambda t, dtype: self.lib.tegroup_matrix_of(t.data_ptr(), *t.shape, dtype)
        index = self.row_of_slot.view(self.tokens, self.k)
        self.kept += [index, source, to]
        desc = tg.tegroup_permute_desc(space=tg.TEGROUP_SPACE_DEVICE, k=self.k, tokens=matrix(source, tg.TEGROUP_DTYPE_BF16),
                                       row_of_slot=matrix(index, tg.TEGROUP_DTYPE_I64), permuted=matrix(to, tg.TEGROUP_DTYPE_BF16))
        return lambda stream: self.lib.tegroup_permute(desc, stream)

    def product(self, op, gathered, a, b, d):
        """gathered: None, or the operand whose rows are picked."""
        uniform = lambda t: self.lib.tegroup_tensor_uniform(*t.shape, tg.TEGROUP_DTYPE_BF16, t.data_ptr())
        desc = tg.tegroup_gemm_desc(op=OPS[op], space=tg.TEGROUP_SPACE_DEVICE, a=self.ragged(a), b=(self.ragged if op == "wgrad" else uniform)(b),
                                    d=(uniform if op == "wgrad" else self.ragged)(d))
        desc.options.backend, desc.options.expected_rows = tg.TEGROUP_BACKEND_SM90, self.rows
        if gathered:
            setattr(desc, "gather_" + gathered, tg.tegroup_gather(slot_of_row=self.slots.data_ptr(), rows=self.tokens, slots=self.k))
        plan = tg.tegroup_plan()
        self.lib.tegroup_plan_make(desc, None, plan)
        desc.options.workspace_bytes = plan.workspace_bytes
        desc.options.workspace = self.room(plan.workspace_bytes)
        self.kept += [a, b, d]
        return lambda stream: self.lib.tegroup_gemm(plan, desc, stream), f"{plan.tile_m}x{plan.tile_n}"

    def contestants(self, op, fc1, operand):
        torch, (width, ffn) = self.torch, (self.shape["d"], self.shape["n"])
        new = lambda *like: torch.randn(*like, dtype=torch.bfloat16, device="cuda")
        source, permuted = new(self.tokens, width), torch.empty(self.rows, width, dtype=torch.bfloat16, device="cuda")
        across = 2 * ffn if fc1 else ffn  # columns of the rows beside those of the tokens
        weights = (self.groups, across, width) if fc1 else (self.groups, width, ffn)
        if op == "wgrad":
            other, d = new(self.rows, across), [torch.empty(weights, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
            operands = lambda rows: (rows, other) if operand == "a" else (other, rows)
        else:
            other, d = new(*weights), [torch.empty(self.rows, across, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
            operands = lambda rows: (rows, other)
        copy = self.permute(source, permuted)
        plain, tile = self.product(op, None, *operands(permuted), d[0])
        gathered, of = self.product(op, operand, *operands(source), d[1])

        def first(stream):
            copy(stream)
            plain(stream)
        first(None), gathered(None)
        torch.cuda.synchronize()
        if not torch.equal(d[0], d[1]):
            raise SystemExit("gathered rows give other results")
        return {"permuted": plain, "copied first": first, "gathered": gathered}, f"{tile} {of}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=[], help="parts of names of layers in shapes.json; all")
    parser.add_argument("--ops", default="forward,dgrad,wgrad")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--library", default=str(ROOT / "build/libtegroup.so"))
    o = parser.parse_args()
    import torch
    library = tg.load(o.library)
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'layer':32} {'product':12} {'tiles':16} {'permuted':>9} {'copied':>9} {'gathered':>9} {'copied / gathered':>18}")
    for shape in tables.load(ROOT / "tests/bench/shapes.json")["layer"]:
        if o.shapes and not any(name in shape["name"] for name in o.shapes):
            continue
        for zipf in (False, True):
            layer = Layer(torch, library, shape, zipf)
            for name, (op, fc1, operand) in PRODUCTS.items():
                if op not in o.ops.split(","):
                    continue
                calls, tiles = layer.contestants(op, fc1, operand)
                us = median_us(torch, {each: graph_of(torch, call) for each, call in calls.items()}, flush, o.repeats)
                print(f"{shape['name'] + (', zipf' if zipf else ''):32} {name:12} {tiles:16} {us['permuted']:9.1f} {us['copied first']:9.1f} {us['gathered']:9.1f} "
                      f"{us['copied first'] / us['gathered']:18.2f}", flush=True)
                torch.cuda.empty_cache()
            del layer


if __name__ == "__main__":
    main()
