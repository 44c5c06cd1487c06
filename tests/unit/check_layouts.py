"""Layouts of scales against numpy's own reshapes and transpositions: check_layouts.py LIBTEGROUP [CASES]. Used by test_layouts_oracle.sh.

The swizzle is that of torch's tests of scaled products: rows and columns padded to 128 and 4, cut into tiles, each tile turned so that
its four strips of 32 rows lie side by side. Packed exponents are DeepGEMM's: [k / 4][rows up to 4] int32, the first k lowest.
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples"))
sys.dont_write_bytecode = True
import tegroup_ctypes as tg  # noqa: E402

SWIZZLED = {"MXFP8": ("F8E4M3", 32), "MXFP4": ("F4E2M1", 32), "NVFP4": ("F4E2M1", 16), "MXFP8_32X32": ("F8E5M2", 32), "NVFP4_16X16": ("F4E2M1", 16)}


def padded(scales, rows, cols):
    """[groups, r, c] with zeros up to multiples of rows and cols."""
    return np.pad(scales, ((0, 0), (0, -scales.shape[1] % rows), (0, -scales.shape[2] % cols)))


def swizzled(scales):
    full = padded(scales, 128, 4)
    groups, rows, cols = full.shape
    tiles = full.reshape(groups, rows // 128, 4, 32, cols // 4, 4)  # group, tile row, strip, row, tile column, column
    return tiles.transpose(0, 1, 4, 3, 2, 5).reshape(-1)


def words(exponents):
    full = padded(exponents, 4, 4).astype("<u4")
    groups, rows, cols = full.shape
    four = full.reshape(groups, rows, cols // 4, 4)
    return (four << np.array([0, 8, 16, 24], "<u4")).sum(-1, dtype="<u4").transpose(0, 2, 1).reshape(-1)


def convert(library, tensor, scales, result, **fields):
    """Plain row-major scales [groups, rows, blocks], or what `tensor` says, into `result`, poisoned before."""
    desc = tg.tegroup_scale_convert_desc(space=tg.TEGROUP_SPACE_HOST)
    setattr(desc, "from", tensor)  # a word of Python's
    desc.to = tensor
    source = getattr(desc, "from")
    source.scale_inv, desc.to.scale_inv = scales.ctypes.data, result.ctypes.data
    source.scale_outer_stride, source.scale_inner_stride = scales.shape[-1], 1
    for name, value in fields.items():
        setattr(desc.to, name, value)
    layout = tg.tegroup_layout()
    library.tegroup_tensor_layout(desc.to, tg.TEGROUP_COPIES_ROWWISE, layout)
    assert layout.items[1].bytes == result.nbytes, (layout.items[1].bytes, result.nbytes)
    result.view(np.uint8)[:] = 0xA5
    library.tegroup_scale_convert(desc, None)


def uniform(library, scaling, dtype, groups, rows, cols):
    tensor = library.tegroup_tensor_uniform(groups, rows, cols, getattr(tg, "TEGROUP_DTYPE_" + dtype), None)
    tensor.scaling = getattr(tg, "TEGROUP_SCALING_" + scaling)
    return tensor


def one(library, random):
    groups, rows, cols = int(random.integers(1, 5)), int(random.integers(1, 300)), 2 * int(random.integers(1, 700))
    scaling = random.choice(list(SWIZZLED))
    dtype, block = SWIZZLED[scaling]
    tensor, blocks = uniform(library, scaling, dtype, groups, rows, cols), -(-cols // block)
    scales = random.integers(0, 256, (groups, rows, blocks), dtype=np.uint8)
    wanted = swizzled(scales)
    result = np.empty_like(wanted)
    convert(library, tensor, scales, result)
    assert (result == wanted).all(), ("swizzle", scaling, groups, rows, cols)
    if scaling.startswith("MX"):
        wanted = words(scales)
        result = np.empty_like(wanted)
        convert(library, tensor, scales, result, scale_dtype=tg.TEGROUP_DTYPE_I32)
        assert (result == wanted).all(), ("words", scaling, groups, rows, cols)
    # F32, 1 x 128: powers of two as words, any numbers in cuBLASLt's packing
    tensor, blocks = uniform(library, "BLOCK_1X128", "F8E4M3", groups, rows, cols), -(-cols // 128)
    exponents = random.integers(1, 255, (groups, rows, blocks), dtype=np.uint8)
    wanted = words(exponents)
    result = np.empty_like(wanted)
    convert(library, tensor, np.ldexp(np.float32(1), exponents.astype(np.int32) - 127).astype(np.float32), result, scale_dtype=tg.TEGROUP_DTYPE_I32)
    assert (result == wanted).all(), ("words of F32", groups, rows, cols)
    scales = random.standard_normal((groups, rows, blocks)).astype(np.float32)
    wanted = padded(scales, 4, 1).transpose(0, 2, 1).reshape(-1)
    result = np.empty_like(wanted)
    convert(library, tensor, scales, result)
    assert (result == wanted).all(), ("1x128", groups, rows, cols)
    # compact blocks of a checkpoint, BF16 ones too
    tensor = uniform(library, "BLOCK_128X128", "F8E4M3", groups, rows, cols)
    scales = random.standard_normal((groups, -(-rows // 128), blocks)).astype(np.float32)
    wanted = padded(scales, 1, 4).reshape(-1)
    result = np.empty_like(wanted)
    convert(library, tensor, scales, result)
    assert (result == wanted).all(), ("128x128", groups, rows, cols)


def main(path, cases=400):
    library, random = tg.load(path), np.random.default_rng(77)
    for _ in range(int(cases)):
        one(library, random)
    print("%s cases" % cases)


main(*sys.argv[1:])
