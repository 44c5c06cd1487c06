"""make lib && python3 examples/use_lib.py

tegroup on a GPU from Python: libtegroup.so through ctypes, torch for memory. Forward, dgrad and wgrad of four experts, the
sizes on the device, against FP64 products of the same BF16 operands. The exit status is 1 where an error is too large.
"""
import os
import sys

import torch

import tegroup_ctypes as tg

DTYPES = {torch.bfloat16: tg.TEGROUP_DTYPE_BF16, torch.float16: tg.TEGROUP_DTYPE_F16, torch.float32: tg.TEGROUP_DTYPE_F32,
          torch.int32: tg.TEGROUP_DTYPE_I32, torch.int64: tg.TEGROUP_DTYPE_I64}
library = tg.load(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "libtegroup.so"))


def aligned(size):
    """Device bytes; the address is a multiple of what tegroup asks for, as that of any torch allocation of its own."""
    memory = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
    assert memory.data_ptr() % tg.TEGROUP_ALIGNMENT == 0
    return memory


def routed(counts, capacity):
    """The shape of `capacity` rows of which expert g owns counts[g], prepared, and the memory that it needs."""
    sizes = library.tegroup_sizes_of(counts.data_ptr(), DTYPES[counts.dtype], tg.TEGROUP_SPACE_DEVICE)
    shape, layout = library.tegroup_shape_of(counts.numel(), capacity, 1, sizes), tg.tegroup_layout()
    library.tegroup_snapshot_layout(shape, layout)
    snapshot = aligned(layout.total_bytes)
    library.tegroup_shape_prepare(shape, snapshot.data_ptr(), layout.total_bytes, torch.cuda.current_stream().cuda_stream)
    return shape, snapshot


def operand(tensor, shape=None):
    """A weight [groups, rows, cols], or with a shape an activation [capacity, cols]."""
    if shape is None:
        return library.tegroup_tensor_uniform(*tensor.shape, DTYPES[tensor.dtype], tensor.data_ptr())
    return library.tegroup_tensor_of(shape, tensor.shape[-1], DTYPES[tensor.dtype], tensor.data_ptr())


def multiply(op, a, b, d):
    """Plan and run one grouped product. A program that trains would keep the plan."""
    desc = tg.tegroup_gemm_desc(op=op, space=tg.TEGROUP_SPACE_DEVICE, a=a, b=b, d=d)
    plan = tg.tegroup_plan()
    library.tegroup_plan_make(desc, None, plan)
    workspace = aligned(plan.workspace_bytes)
    desc.options.workspace, desc.options.workspace_bytes = workspace.data_ptr(), plan.workspace_bytes
    library.tegroup_gemm(plan, desc, torch.cuda.current_stream().cuda_stream)
    return plan


def compare(name, plan, got, parts):
    """parts: (slice of got, FP64 operands whose product it should be). Errors are relative to the sum of the terms' sizes."""
    errors = [torch.zeros(1, dtype=torch.float64, device="cuda")]
    for where, x, y in parts:
        off, size = (got[where].double() - x @ y).abs(), x.abs() @ y.abs()
        errors.append(torch.where(size > 0, off / size, off).flatten())
    worst = torch.cat(errors).max().item()  # a NaN among them is the largest
    ok = worst <= max(x.shape[1] for _, x, _ in parts) * 2.0 ** -23  # tensor cores may cut where FP32 would round
    print("%-8s %s: largest error %.1e of the terms' sizes  %s" % (
        name, library.tegroup_backend_name(plan.backend).decode(), worst, "ok" if ok else "FAILED"))
    return ok


def main():
    torch.manual_seed(1)
    routing, capacity, n, k = [200, 0, 1, 311], 600, 256, 192
    counts = torch.tensor(routing, dtype=torch.int64, device="cuda")
    x = torch.randn(capacity, k, device="cuda").bfloat16()
    w = torch.randn(len(routing), n, k, device="cuda").bfloat16()
    dy = torch.randn(capacity, n, device="cuda").bfloat16()
    y = torch.full((capacity, n), float("nan"), device="cuda")
    dx = torch.full((capacity, k), float("nan"), device="cuda")
    dw = torch.full((len(routing), n, k), float("nan"), device="cuda")
    shape, _kept = routed(counts, capacity)
    plans = [multiply(tg.TEGROUP_OP_FORWARD, operand(x, shape), operand(w), operand(y, shape)),
             multiply(tg.TEGROUP_OP_DGRAD, operand(dy, shape), operand(w), operand(dx, shape)),
             multiply(tg.TEGROUP_OP_WGRAD, operand(dy, shape), operand(x, shape), operand(dw))]
    ends = torch.tensor(routing).cumsum(0).tolist()
    rows = [slice(end - count, end) for end, count in zip(ends, routing)]
    x, w, dy = x.double(), w.double(), dy.double()
    good = [compare("forward", plans[0], y, [(r, x[r], w[g].T) for g, r in enumerate(rows)]),
            compare("dgrad", plans[1], dx, [(r, dy[r], w[g]) for g, r in enumerate(rows)]),
            compare("wgrad", plans[2], dw, [(g, dy[r].T, x[r]) for g, r in enumerate(rows)])]
    untouched = y[ends[-1]:].isnan().all().item() and dx[ends[-1]:].isnan().all().item()
    print("rows past the last %s" % ("untouched" if untouched else "OVERWRITTEN"))
    return not (all(good) and untouched)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("use_lib.py: no GPU")
    sys.exit(main())
