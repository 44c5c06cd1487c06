#!/usr/bin/env python3
"""Quantise and dequantise on a GPU, beside a copy of as many bytes by torch: microseconds, bytes a second, and the part of the copy's
rate that they reach. Calls take turns with the copy, with L2 cold, each in a CUDA graph. Needs torch; build with: make build/libtegroup.so.

  bench_quantize.py --rows 32768 --cols 7168 --groups 32
"""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples")]
import tegroup_ctypes as tg

# scaling, type of the data, preset of the rule
CASES = [("TENSOR", "F8E4M3", "TE_CURRENT"), ("ROW", "F8E4M3", "FBGEMM_ROW"), ("BLOCK_1X128", "F8E4M3", "DEEPGEMM"),
         ("BLOCK_128X128", "F8E4M3", "TE_BLOCK"), ("MXFP8", "F8E4M3", "TE_MXFP8"), ("MXFP4", "F4E2M1", "OCP_MX"), ("NVFP4", "F4E2M1", "TE_NVFP4")]
COPIES = {"rowwise": 1, "columnwise": 2, "both": 3}


class Tensors:
    """The source in BF16, ragged rows in groups of one size each; what is quantised of it; and the way back."""

    def __init__(self, torch, library, o):
        self.torch, self.lib, self.o = torch, library, o
        self.source = torch.randn(o.rows, o.cols, dtype=torch.bfloat16, device="cuda")
        self.again = torch.empty_like(self.source)
        self.counts = torch.full((o.groups,), o.rows // o.groups, dtype=torch.int64, device="cuda")
        sizes = library.tegroup_sizes_of(self.counts.data_ptr(), tg.TEGROUP_DTYPE_I64, tg.TEGROUP_SPACE_DEVICE)
        self.shape = library.tegroup_shape_of(o.groups, o.rows, o.cols, sizes)
        layout = tg.tegroup_layout()
        library.tegroup_snapshot_layout(self.shape, layout)
        self.snapshot = torch.empty(layout.total_bytes, dtype=torch.uint8, device="cuda")
        library.tegroup_shape_prepare(self.shape, self.snapshot.data_ptr(), layout.total_bytes, None)
        self.plain = library.tegroup_tensor_of(self.shape, o.cols, tg.TEGROUP_DTYPE_BF16, self.source.data_ptr())

    def case(self, scaling, dtype, preset, copies, transposed):
        """Descriptors of both calls, the memory that they keep alive, and the bytes that each reads and writes at least."""
        torch, kept = self.torch, []
        out = self.lib.tegroup_tensor_of(self.shape, self.o.cols, getattr(tg, "TEGROUP_DTYPE_" + dtype), None)
        out.scaling = getattr(tg, "TEGROUP_SCALING_" + scaling)
        out.columnwise_order = tg.TEGROUP_COLUMNWISE_TRANSPOSED if transposed else tg.TEGROUP_COLUMNWISE_AS_DATA
        layout = tg.tegroup_layout()
        self.lib.tegroup_tensor_layout(out, copies, layout)
        written = 0
        for item, field in enumerate(("data", "scale_inv", "columnwise_data", "columnwise_scale_inv", "global_scale_inv")):
            if layout.items[item].bytes:
                kept.append(torch.empty(layout.items[item].bytes, dtype=torch.uint8, device="cuda"))
                setattr(out, field, kept[-1].data_ptr())
                written += layout.items[item].bytes
        kept.append(torch.empty(self.o.groups, dtype=torch.float32, device="cuda"))
        if scaling in ("TENSOR", "NVFP4"):
            out.amax = kept[-1].data_ptr()
        rule = self.lib.tegroup_scale_rule_of(getattr(tg, "TEGROUP_SCALE_" + preset))
        quantize = tg.tegroup_quantize_desc(space=tg.TEGROUP_SPACE_DEVICE, input=self.plain, output=out, rule=rule)
        back = self.lib.tegroup_tensor_of(self.shape, self.o.cols, tg.TEGROUP_DTYPE_BF16, self.again.data_ptr())
        dequantize = tg.tegroup_dequantize_desc(space=tg.TEGROUP_SPACE_DEVICE, input=out, columnwise=int(copies == 2), output=back)
        return quantize, dequantize, kept, self.source.numel() * 2 + written


def graph_of(torch, call):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call(stream.cuda_stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(torch.cuda.current_stream().cuda_stream)
    return graph


def median_us(torch, graphs, flush, repeats):
    """Of each graph, taken in turns."""
    times = [[] for _ in graphs]
    for _ in range(repeats):
        for graph, of in zip(graphs, times):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            of.append(begin.elapsed_time(end) * 1e3)
    return [sorted(of)[len(of) // 2] for of in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32768)
    parser.add_argument("--cols", type=int, default=7168)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--library", default=str(ROOT / "build/libtegroup.so"))
    parser.add_argument("--out", help="JSON")
    o = parser.parse_args()
    import torch
    tensors = Tensors(torch, tg.load(o.library), o)
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    results = []
    print(f"{torch.cuda.get_device_name()}: [{o.rows}, {o.cols}] BF16 in {o.groups} groups")
    print(f"{'scaling':14} {'call':22} {'us':>8} {'TB/s':>6} {'of the copy':>12}")
    for scaling, dtype, preset in CASES:
        for name, copies in COPIES.items():
            for transposed in ((False, True) if copies & 2 else (False,)):
                quantize, dequantize, kept, moved = tensors.case(scaling, dtype, preset, copies, transposed)
                # copies of other sizes took a quarter longer at times, which would flatter the calls
                a, b = (torch.empty(moved // 2 // 256 * 256, dtype=torch.uint8, device="cuda") for _ in range(2))
                calls = {"quantise": lambda s: tensors.lib.tegroup_quantize(quantize, s)}
                if copies != 3:
                    calls["dequantise"] = lambda s: tensors.lib.tegroup_dequantize(dequantize, s)
                graphs = [graph_of(torch, call) for call in calls.values()] + [graph_of(torch, lambda s: b.copy_(a))]
                *times, copy = median_us(torch, graphs, flush, o.repeats)
                for call, us in zip(calls, times):
                    label = f"{call} {name}{' turned' if transposed else ''}"
                    print(f"{scaling:14} {label:22} {us:8.1f} {moved / us * 1e-6:6.2f} {copy / us:12.2f}")
                    results.append({"scaling": scaling, "call": label, "us": us, "bytes": moved, "copy_us": copy})
                del kept, a, b
    if o.out:
        pathlib.Path(o.out).write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "rows": o.rows, "cols": o.cols, "groups": o.groups,
                                                   "results": results}, indent=1))


if __name__ == "__main__":
    main()
