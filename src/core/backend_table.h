/* ---- Backend and quirk tables ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "core/checks.h"

#define TEGROUP_IMPL_DT(name) (1u << TEGROUP_DTYPE_##name)
#define TEGROUP_IMPL_SC(name) (1u << TEGROUP_SCALING_##name)
#define TEGROUP_IMPL_HALVES (TEGROUP_IMPL_DT(F16) | TEGROUP_IMPL_DT(BF16))
#define TEGROUP_IMPL_FP8 (TEGROUP_IMPL_DT(F8E4M3) | TEGROUP_IMPL_DT(F8E5M2))
#define TEGROUP_IMPL_RESULTS (TEGROUP_IMPL_HALVES | TEGROUP_IMPL_DT(F32))
#define TEGROUP_IMPL_COMMON (TEGROUP_FEATURE_GROUP_SCALARS | TEGROUP_FEATURE_LISTS)
#define TEGROUP_IMPL_BUNDLED                                                                                           \
    (TEGROUP_FEATURE_DEVICE_SIZES | TEGROUP_IMPL_COMMON | TEGROUP_FEATURE_BIAS | TEGROUP_FEATURE_TAIL                  \
     | TEGROUP_FEATURE_SM_LIMIT)
#define TEGROUP_IMPL_CUBLASLT (TEGROUP_IMPL_COMMON | TEGROUP_FEATURE_IRREGULAR)

/* What each backend does where. Explain, plan, checks and docs/backends.md read this table and nothing else. */
TEGROUP_API const tegroup_backend_rule *tegroup_backend_rules(int32_t *count) {
    static const tegroup_backend_rule table[] = {
        /* backend, SM from, to, cuBLASLt from, operands, results, scalings, features, alignment, known from */
        {TEGROUP_BACKEND_SM90, 90, 90, 0, TEGROUP_IMPL_HALVES, TEGROUP_IMPL_RESULTS, TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_BUNDLED | TEGROUP_FEATURE_GATHER | TEGROUP_FEATURE_FUNCTOR, 16,
         "TMA asks for 16-byte rows; a's and b's may be copied"},
        {TEGROUP_BACKEND_SM90, 90, 90, 0, TEGROUP_IMPL_DT(BF16) | TEGROUP_IMPL_FP8 | TEGROUP_IMPL_DT(F4E2M1),
         TEGROUP_IMPL_RESULTS,
         TEGROUP_IMPL_SC(NONE) | TEGROUP_IMPL_SC(MXFP8) | TEGROUP_IMPL_SC(MXFP8_32X32) | TEGROUP_IMPL_SC(MXFP4)
             | TEGROUP_IMPL_SC(NVFP4) | TEGROUP_IMPL_SC(NVFP4_16X16),
         TEGROUP_IMPL_BUNDLED | TEGROUP_FEATURE_GATHER, 16,
         "quantised operands are decoded to BF16 in workspace, weights of most forward products in registers"},
        {TEGROUP_BACKEND_SM90, 90, 90, 0, TEGROUP_IMPL_FP8, TEGROUP_IMPL_RESULTS,
         TEGROUP_IMPL_SC(TENSOR) | TEGROUP_IMPL_SC(ROW) | TEGROUP_IMPL_SC(BLOCK_1X128) | TEGROUP_IMPL_SC(BLOCK_128X128),
         TEGROUP_IMPL_BUNDLED, 16, "wgmma of FP8, whose sums of 128 of k are added in FP32; TMA asks for 16-byte rows"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 100, 110, 130300, TEGROUP_IMPL_DT(F16),
         TEGROUP_IMPL_DT(F16) | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_CUBLASLT | TEGROUP_FEATURE_DEVICE_SIZES, 0, "TransformerEngine pull request 2765"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 100, 110, 130300, TEGROUP_IMPL_DT(BF16),
         TEGROUP_IMPL_DT(BF16) | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_CUBLASLT | TEGROUP_FEATURE_DEVICE_SIZES, 0, "TransformerEngine pull request 2765"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 90, 90, 130400, TEGROUP_IMPL_DT(F16),
         TEGROUP_IMPL_DT(F16) | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_CUBLASLT | TEGROUP_FEATURE_DEVICE_SIZES, 0,
         "TransformerEngine, cublaslt_grouped_gemm.cu; per-group scalars by experiment with 13.10"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 90, 90, 130400, TEGROUP_IMPL_DT(BF16),
         TEGROUP_IMPL_DT(BF16) | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_CUBLASLT | TEGROUP_FEATURE_DEVICE_SIZES, 0,
         "TransformerEngine, cublaslt_grouped_gemm.cu; per-group scalars by experiment with 13.10"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 90, 90, 130500, TEGROUP_IMPL_FP8, TEGROUP_IMPL_RESULTS,
         TEGROUP_IMPL_SC(TENSOR), TEGROUP_IMPL_COMMON | TEGROUP_FEATURE_DEVICE_SIZES, 0,
         "TransformerEngine, cublaslt_grouped_gemm.cu; values, odd rows and promoted sums by experiment with 13.10"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 90, 90, 130400, TEGROUP_IMPL_FP8, TEGROUP_IMPL_RESULTS,
         TEGROUP_IMPL_SC(BLOCK_1X128) | TEGROUP_IMPL_SC(BLOCK_128X128),
         TEGROUP_IMPL_COMMON | TEGROUP_FEATURE_DEVICE_SIZES, 0,
         "TransformerEngine, cublaslt_grouped_gemm.cu; values, odd rows and promoted sums by experiment with 13.10"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 100, 110, 130300, TEGROUP_IMPL_FP8, TEGROUP_IMPL_RESULTS,
         TEGROUP_IMPL_SC(MXFP8) | TEGROUP_IMPL_SC(MXFP8_32X32), TEGROUP_IMPL_COMMON | TEGROUP_FEATURE_DEVICE_SIZES, 0,
         "TransformerEngine, cublaslt_grouped_gemm.cu; compiled, never run by tegroup"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 100, 110, 130400, TEGROUP_IMPL_DT(F4E2M1),
         TEGROUP_IMPL_DT(BF16) | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_SC(NVFP4) | TEGROUP_IMPL_SC(NVFP4_16X16),
         TEGROUP_IMPL_COMMON | TEGROUP_FEATURE_DEVICE_SIZES, 0,
         "TransformerEngine, cublaslt_grouped_gemm.cu; compiled, never run by tegroup"},
        {TEGROUP_BACKEND_PORTABLE, 80, 999, 0, TEGROUP_IMPL_HALVES | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_RESULTS,
         TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_BUNDLED | TEGROUP_FEATURE_IRREGULAR | TEGROUP_FEATURE_MIXED | TEGROUP_FEATURE_FUNCTOR, 0,
         "mma.sync of SM80"},
        {TEGROUP_BACKEND_PORTABLE, 80, 999, 0, TEGROUP_IMPL_HALVES | TEGROUP_IMPL_FP8, TEGROUP_IMPL_RESULTS,
         TEGROUP_IMPL_SC(NONE) | TEGROUP_IMPL_SC(TENSOR) | TEGROUP_IMPL_SC(ROW) | TEGROUP_IMPL_SC(BLOCK_1X128)
             | TEGROUP_IMPL_SC(BLOCK_128X128) | TEGROUP_IMPL_SC(BLOCK_32X32),
         TEGROUP_IMPL_BUNDLED | TEGROUP_FEATURE_IRREGULAR, 0,
         "mma.sync of SM80 in BF16 or F16, in which values are exact; F32 scales multiply sums"},
        {TEGROUP_BACKEND_PORTABLE, 80, 999, 0, TEGROUP_IMPL_DT(BF16) | TEGROUP_IMPL_FP8 | TEGROUP_IMPL_DT(F4E2M1),
         TEGROUP_IMPL_RESULTS,
         TEGROUP_IMPL_SC(NONE) | TEGROUP_IMPL_SC(MXFP8) | TEGROUP_IMPL_SC(MXFP8_32X32) | TEGROUP_IMPL_SC(MXFP4)
             | TEGROUP_IMPL_SC(NVFP4) | TEGROUP_IMPL_SC(NVFP4_16X16),
         TEGROUP_IMPL_BUNDLED | TEGROUP_FEATURE_IRREGULAR, 0,
         "mma.sync of SM80 in BF16, in which values times their scales are exact"},
        {TEGROUP_BACKEND_CUBLASLT_LOOP, 70, 999, 120000, TEGROUP_IMPL_DT(F16),
         TEGROUP_IMPL_DT(F16) | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_CUBLASLT | TEGROUP_FEATURE_HOST_SIZES, 0,
         "cuBLAS documentation, cublasLtMatmul; with C the product may be rounded to d's type first (seen with 13.1)"},
        {TEGROUP_BACKEND_CUBLASLT_LOOP, 70, 999, 120000, TEGROUP_IMPL_DT(BF16),
         TEGROUP_IMPL_DT(BF16) | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_CUBLASLT | TEGROUP_FEATURE_HOST_SIZES, 0,
         "cuBLAS documentation, cublasLtMatmul; with C the product may be rounded to d's type first (seen with 13.1)"},
        {TEGROUP_BACKEND_CUBLASLT_LOOP, 70, 999, 120000, TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_DT(F32),
         TEGROUP_IMPL_SC(NONE), TEGROUP_IMPL_CUBLASLT | TEGROUP_FEATURE_HOST_SIZES, 0,
         "cuBLAS documentation, cublasLtMatmul"},
        {TEGROUP_BACKEND_CPU, 0, 0, 0, TEGROUP_IMPL_FLOATS | TEGROUP_IMPL_FP8 | TEGROUP_IMPL_DT(F4E2M1),
         TEGROUP_IMPL_FLOATS, (1u << TEGROUP_SCALING_COUNT) - 1,
         TEGROUP_IMPL_COMMON | TEGROUP_FEATURE_HOST_SIZES | TEGROUP_FEATURE_HOST_MEMORY | TEGROUP_FEATURE_IRREGULAR
             | TEGROUP_FEATURE_BIAS | TEGROUP_FEATURE_TAIL | TEGROUP_FEATURE_F64 | TEGROUP_FEATURE_GATHER
             | TEGROUP_FEATURE_MIXED,
         0, "plain C"},
    };
    if (count) *count = (int32_t)(sizeof table / sizeof table[0]);
    return table;
}
#undef TEGROUP_IMPL_CUBLASLT
#undef TEGROUP_IMPL_BUNDLED
#undef TEGROUP_IMPL_COMMON
#undef TEGROUP_IMPL_RESULTS
#undef TEGROUP_IMPL_FP8
#undef TEGROUP_IMPL_HALVES
#undef TEGROUP_IMPL_SC
#undef TEGROUP_IMPL_DT

/* Known-bad combinations. */
TEGROUP_API const tegroup_quirk *tegroup_quirks(int32_t *count) {
    static const tegroup_quirk table[] = {
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, 130300, 90, 110, TEGROUP_QUIRK_WGRAD, TEGROUP_QUIRK_REFUSE,
         "has a known fault: weight gradients are wrong when a group is empty",
         "https://github.com/NVIDIA/TransformerEngine/pull/2765"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, 130800, 90, 110, TEGROUP_QUIRK_ALWAYS, TEGROUP_QUIRK_SEPARATE,
         "has a known fault: stale tensor-map descriptors in a shared workspace hang the second replay of a graph",
         "https://github.com/NVIDIA/TransformerEngine/pull/3171"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 130700, 130800, 103, 110, TEGROUP_QUIRK_ALWAYS, TEGROUP_QUIRK_REFUSE,
         "has a known fault: one grouped algorithm silently corrupts results on B300 and Rubin",
         "https://github.com/NVIDIA/TransformerEngine/pull/3475"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, 130801, 90, 110, TEGROUP_QUIRK_ALWAYS, TEGROUP_QUIRK_REFUSE,
         "has a known fault: grouped products may corrupt data (this covers the older reports above, unless it is "
         "ignored)",
         "warning that TransformerEngine 2.20.2 prints for grouped GEMM below cuBLAS 13.8.1"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, TEGROUP_QUIRK_UNFIXED, 90, 110, TEGROUP_QUIRK_MISALIGNED_LD,
         TEGROUP_QUIRK_REFUSE,
         "has a known fault: a leading dimension that is not a multiple of 16 bytes returns SUCCESS and wrong numbers",
         "seen with cuBLAS 13.10.0.20 on an H200, BF16, k = 260 and n = 516: relative error 1.4"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, 131000, 90, 90, TEGROUP_QUIRK_GROUP_SCALARS, TEGROUP_QUIRK_REFUSE,
         "has a known fault: alpha and beta in device memory are not known to be honoured",
         "TransformerEngine refuses them on SM90; shown right by a value test with 13.10.0.20"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, TEGROUP_QUIRK_UNFIXED, 90, 110, TEGROUP_QUIRK_MISALIGNED_COLS,
         TEGROUP_QUIRK_REFUSE,
         "has a known fault: where d's columns are not a multiple of 16 bytes, the bytes after them are overwritten",
         "seen with cuBLAS 13.10.0.20 on an H200: tests/gpu/test_gpu.cu, F16, 35 columns in rows of 48"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, TEGROUP_QUIRK_UNFIXED, 100, 110, TEGROUP_QUIRK_GROUP_SCALARS,
         TEGROUP_QUIRK_REFUSE, "may have a fault: alpha and beta in device memory have met no value test on this GPU",
         "not run there by tegroup; TransformerEngine passes them"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, TEGROUP_QUIRK_UNFIXED, 90, 110, TEGROUP_QUIRK_ACCUMULATED_HALVES,
         TEGROUP_QUIRK_AVOID,
         "has a known fault: results are wrong where c and d are one layout and one list, so c gets its own",
         "seen with cuBLAS 13.10.0.20 on an H200: the GPU suite, errors of 1.7 to 146 bounds"},
        {TEGROUP_BACKEND_CUBLASLT_LOOP, 0, TEGROUP_QUIRK_UNFIXED, 70, 999, TEGROUP_QUIRK_ACCUMULATED_HALVES,
         TEGROUP_QUIRK_AVOID, "is not trusted where c and d are one layout, as cublaslt_grouped is not: c gets its own",
         "not seen here by itself; one rule serves both"},
        {TEGROUP_BACKEND_CUBLASLT_LOOP, 0, TEGROUP_QUIRK_UNFIXED, 70, 999, TEGROUP_QUIRK_ADDED_HALVES,
         TEGROUP_QUIRK_AVOID,
         "rounds alpha times the sum to d's type before it adds where c is d, and nowhere else: c is copied into d "
         "first",
         "seen with cuBLAS 13.1; tests/gpu/test_invariance.cu"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, 130401, 100, 110, TEGROUP_QUIRK_NVFP4, TEGROUP_QUIRK_REFUSE,
         "has a known fault: NVFP4's scale of a whole group may be dropped",
         "cuBLAS release notes: CUDA 13.2 Update 1, fixed in 13.4.1"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, TEGROUP_QUIRK_UNFIXED, 100, 110, TEGROUP_QUIRK_SUMMED_BLOCKS,
         TEGROUP_QUIRK_REFUSE,
         "may have a fault: sums over rows that do not fill MXFP8's blocks of 32 have met no value test on this GPU",
         "not run there by tegroup; TransformerEngine passes groups of whole blocks"},
    };
    if (count) *count = (int32_t)(sizeof table / sizeof table[0]);
    return table;
}

/* Does the caller take the risk of what goes wrong in this case? */
TEGROUP_IMPL_STATIC int tegroup_impl_quirk_ignored(const tegroup_gemm_desc *desc, tegroup_quirk_case when) {
    int32_t count, i;
    const tegroup_quirk *quirks = tegroup_quirks(&count);
    for (i = 0; i < count; i++)
        if (quirks[i].when == when && desc->options.ignore_quirks >> i & 1u) return 1;
    return 0;
}

/* Must the library be called in another way than the plain one, so that this does not happen? */
TEGROUP_IMPL_STATIC int tegroup_impl_quirk_avoided(tegroup_backend backend, int32_t sm, int32_t cublaslt_version,
                                                   tegroup_quirk_case when) {
    int32_t count, i;
    const tegroup_quirk *quirks = tegroup_quirks(&count);
    for (i = 0; i < count; i++)
        if (quirks[i].action == TEGROUP_QUIRK_AVOID && quirks[i].when == when && quirks[i].backend == backend
            && sm >= quirks[i].sm_min && sm <= quirks[i].sm_max && cublaslt_version >= quirks[i].cublaslt_from
            && cublaslt_version < quirks[i].cublaslt_below)
            return 1;
    return 0;
}
