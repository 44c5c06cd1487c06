"""Compare tegroup's conversions with ml_dtypes and its scale rules with numpy, bit for bit: check_formats.py LIBRARY.

LIBRARY is built by test_formats_oracles.sh from check_formats.c. It is loaded once everything that is expected has been
computed: where its flags are -ffast-math, loading it has the processor flush subnormal numbers. Each rule is written down from
the source that docs/formats.md names, in single precision as there.
"""
import ctypes
import sys

import ml_dtypes
import numpy as np

F32, U32 = np.float32, np.uint32
E4M3, E5M2, E2M1, E8M0 = 5, 6, 7, 8  # tegroup_dtype
TYPES = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2, E2M1: ml_dtypes.float4_e2m1fn, E8M0: ml_dtypes.float8_e8m0fnu}
LARGEST = {E4M3: F32(448), E5M2: F32(57344), E2M1: F32(6)}
SATURATED = {E4M3: 0x7E, E5M2: 0x7B, E2M1: 7, E8M0: 254}
NAN_CODE = {E4M3: 0x7F, E5M2: 0x7F, E2M1: 7, E8M0: 255}
FLOAT_MAX = np.finfo(F32).max
CURRENT, DELAYED, BLOCK, BLOCK_F32, MXFP8, NVFP4, DEEPGEMM, DEEPGEMM_UE8M0, DEEPSEEK, FBGEMM, OCP = range(1, 12)
SCALE = {MXFP8: E8M0, NVFP4: E4M3, OCP: E8M0}  # the others': F32
PRESETS = ["", "TE_CURRENT", "TE_DELAYED", "TE_BLOCK", "TE_BLOCK_F32", "TE_MXFP8", "TE_NVFP4", "DEEPGEMM", "DEEPGEMM_UE8M0",
           "DEEPSEEK", "FBGEMM_ROW", "OCP_MX"]


def bits(x):
    return np.ascontiguousarray(x, F32).view(U32)


def from_bits(u):
    return np.ascontiguousarray(u, U32).view(F32)


def encoded(dtype, x):
    """Codes by ml_dtypes where it rounds to a finite value, and else as docs/formats.md has them."""
    kept = np.abs(x)
    code = kept.astype(TYPES[dtype]).view(np.uint8).astype(U32)
    if dtype == E8M0:  # ml_dtypes has NaN for 0 and negative values, and 2^-126 for what lies between 2^-127 and it
        code = np.where(kept < F32(2.0**-126), kept >= F32(1.5 * 2.0**-127), code)
    sign = U32(0) if dtype == E8M0 else np.where(np.signbit(x), 8 if dtype == E2M1 else 0x80, 0).astype(U32)
    largest = F32(2.0**127) if dtype == E8M0 else LARGEST[dtype]
    return np.where(np.isnan(x), NAN_CODE[dtype], np.where(kept >= largest, SATURATED[dtype], code).astype(U32) | sign).astype(U32)


def power_up(x):
    """The smallest power of two that is not below x, in E8M0."""
    fraction, exponent = np.frexp(x)  # x = fraction * 2^exponent, fraction from 0.5
    code = np.clip(exponent + 126 + (fraction != 0.5), 0, 254)
    return np.where(np.isnan(x), 255, np.where(np.isinf(x), 254, np.where(x == 0, 0, code))).astype(U32)


def power_of(code):
    return np.where(code == 255, F32(np.nan), np.ldexp(F32(1), code.astype(np.int32) - 127)).astype(F32)


def transformer_engine(amax, largest, power_of_two):
    """recipe_common.cuh, compute_scale_from_amax with epsilon 0"""
    scale = largest / amax
    scale = np.where(np.isinf(scale), FLOAT_MAX, scale).astype(F32)
    if power_of_two:
        scale = from_bits(bits(scale) & U32(0xFF800000))
    scale = np.where(np.isinf(amax) | (amax == 0) | np.isnan(amax), F32(1), scale).astype(F32)
    return scale, F32(1) / scale


def mxfp8(amax, largest):
    """ptx_arch_spec.cuh and ptx.cuh, float_to_e8m0 and exp2f_rcp"""
    code = power_up(amax * F32(1 / float(largest)))
    return power_of(np.where(code == 255, 255, 254 - code)), power_of(code)


def nvfp4_global(amax):
    """core_nvfp4.cuh, compute_global_encode_scaling_factor_FP4"""
    scale = np.fmin(F32(448 * 6) / amax, FLOAT_MAX)
    return np.where((amax == 0) | (scale == 0), F32(1), scale).astype(F32)


def nvfp4(amax, group):
    """core_nvfp4.cuh, compute_decoding_scaling_factor, and quantize_transpose_nvfp4.cuh, block_scale_inverse"""
    encode = nvfp4_global(group)
    decode = F32(1) / encode
    stored = np.fmin(amax * (encode * F32(F32(1) / F32(6))), FLOAT_MAX)
    stored = np.fmin(stored, F32(448)).astype(TYPES[E4M3]).astype(F32)
    return np.fmin(F32(1) / (stored * decode), FLOAT_MAX), stored


def deepgemm(amax, largest, ue8m0):
    """math.py, per_token_cast_to_fp8 and ceil_to_ue8m0"""
    scale = np.maximum(amax, F32(1e-4)) / largest  # maximum: NaN stays, as in torch's clamp
    if ue8m0:
        u = bits(scale)
        exponent = np.clip((u >> 23 & 0xFF) + ((u & 0x7FFFFF) != 0), 1, 254).astype(U32)
        scale = np.where(np.isnan(scale), F32(np.nan), from_bits(exponent << 23)).astype(F32)  # NaN: a stated difference
    return F32(1) / scale, scale


def deepseek(amax, largest):
    """kernel.py, act_quant_kernel; the multiplier is none of its own, and 0 where it divides 0 by 0"""
    scale = amax / largest
    return np.where(scale == 0, F32(0), F32(1) / scale).astype(F32), scale


def fbgemm(amax, largest):
    """quantize_test.py, fp8_row_quantize_ref"""
    scale = np.minimum(largest / amax, F32(448 * 512))
    return scale, F32(1) / scale


def ocp(amax, dtype):
    """MX 1.0, section 6.3; infinity counts as 2^128"""
    exponent = np.where(np.isinf(amax), 129, np.frexp(amax)[1]) - 1 - {E4M3: 8, E5M2: 15, E2M1: 2}[dtype]
    code = np.where(np.isnan(amax), 255, np.where(amax == 0, 0, np.clip(exponent + 127, 0, 254)))
    return power_of(np.where(code == 255, 255, 254 - code)), power_of(code)


def block_scales(preset, dtype, amax, group, given):
    largest = LARGEST[dtype]
    return {
        CURRENT: lambda: transformer_engine(amax, largest, False),
        DELAYED: lambda: (given, F32(1) / given),
        BLOCK: lambda: transformer_engine(amax, largest, True),
        BLOCK_F32: lambda: transformer_engine(amax, largest, False),
        MXFP8: lambda: mxfp8(amax, largest),
        NVFP4: lambda: nvfp4(amax, group),
        DEEPGEMM: lambda: deepgemm(amax, largest, False),
        DEEPGEMM_UE8M0: lambda: deepgemm(amax, largest, True),
        DEEPSEEK: lambda: deepseek(amax, largest),
        FBGEMM: lambda: fbgemm(amax, largest),
        OCP: lambda: ocp(amax, dtype),
    }[preset]()


def amaxes(random, largest):
    """10^5 of them: any pattern, powers of two times the largest value and their neighbours, and special ones."""
    count = 100000
    any_pattern = from_bits(random.integers(0, 0x7F800000, count * 6 // 10, dtype=U32))
    usual = np.abs(random.normal(size=count * 3 // 10)).astype(F32) * np.exp2(random.integers(-20, 20, count * 3 // 10)).astype(F32)
    powers = (largest * np.exp2(np.arange(-140.0, 120.0))).astype(F32)
    near = np.concatenate([powers, np.nextafter(powers, F32(np.inf)), np.nextafter(powers, F32(0))])
    special = np.array([0, 1e-45, 3e-45, 1e-40, 1.1754944e-38, 1e-4, 0.0001000001, 1 / 512, FLOAT_MAX, np.inf, np.nan], F32)
    return np.concatenate([any_pattern, usual, near, special])


def cases(random):
    """(name, function of the library, expected arrays): what to call and what it must give."""
    halves = np.arange(65536, dtype=np.uint16)
    values = np.concatenate([halves.view(ml_dtypes.bfloat16).astype(F32), halves.view(np.float16).astype(F32),
                             from_bits(random.integers(0, 2**32, 1000000, dtype=U32))])
    for dtype, kind in TYPES.items():
        codes = np.arange(16 if dtype == E2M1 else 256, dtype=U32)
        yield "decode " + kind.__name__, "decode", (dtype, codes), [codes.astype(np.uint8).view(kind).astype(F32)]
        yield "encode " + kind.__name__, "encode", (dtype, values), [encoded(dtype, values)]
    for preset in range(1, len(PRESETS)):
        for dtype in (E2M1,) if preset == NVFP4 else (E4M3, E5M2, E2M1):
            amax = amaxes(random, LARGEST[dtype])
            if preset == NVFP4:
                amax = amax[~np.isnan(amax)]  # TransformerEngine takes NaN for the largest F32: a stated difference
            group = np.where(random.random(amax.size) < 0.3, amax, random.permutation(amax)).astype(F32)
            given = np.exp2(random.normal(size=amax.size) * 20).astype(F32)
            multiplier, stored = block_scales(preset, dtype, amax, group, given)
            x = (amax * (2 * random.random(amax.size) - 1)).astype(F32)
            scaled = np.where(stored != 0, x / stored, x * F32(0)) if preset == DEEPSEEK else x * multiplier
            scale = SCALE.get(preset, 2)
            yield (f"{PRESETS[preset]} {TYPES[dtype].__name__}", "quantise",
                   (preset, dtype, scale, amax, nvfp4_global(group) if preset == NVFP4 else given, x),
                   [multiplier, stored, encoded(dtype, scaled.astype(F32))])
    group = amaxes(random, F32(2688))
    group = group[~np.isnan(group)]
    yield "NVFP4's global scale", "globals", (group,), [nvfp4_global(group)]


def call(library, function, arguments):
    arrays = [a for a in arguments if isinstance(a, np.ndarray)]
    size = arrays[0].size
    results = [np.full(size, 0xFFFFFFFF, U32) for _ in range({"quantise": 3}.get(function, 1))]
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in map(np.ascontiguousarray, arrays)]
    numbers = [ctypes.c_int(a) for a in arguments if not isinstance(a, np.ndarray)]
    getattr(library, "check_" + function)(*numbers, ctypes.c_long(size), *pointers, *[r.ctypes.data_as(ctypes.c_void_p) for r in results])
    return arrays, results


def main(path):
    with np.errstate(all="ignore"):
        wanted = list(cases(np.random.default_rng(20)))
    library = ctypes.CDLL(path)
    bad = checked = 0
    for name, function, arguments, expected in wanted:
        arrays, results = call(library, function, arguments)
        for got, want in zip(results, expected):
            nan = np.isnan(want) & np.isnan(got.view(F32)) if want.dtype == F32 else False
            wrong = np.flatnonzero((got != want.view(U32)) & ~nan)
            checked += want.size
            bad += wrong.size
            for i in wrong[:3]:
                print(f"{name}: of {[float(a[i]) for a in arrays]} want {want.view(U32)[i]:08x}, got {got[i]:08x}")
    print(f"{checked} numbers compared, {bad} wrong")
    return bad > 0 or checked < 3000000


sys.exit(main(*sys.argv[1:]))
