/* ---- cuBLASLt: functions, descriptors, algorithms ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/cublaslt_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "formats/scale_layout.h"
#include "core/field_names.h"
#include "core/problem.h"
#include "core/backend_table.h"
#include "core/numerics.h"
#include "core/choice.h"
#include "core/quantised.h"

#if !defined(_WIN32)
#include <dlfcn.h>
#endif

/* Constants of cublasLt.h, which is not included: the installed header may be older than the library that is loaded. */
enum {
    TEGROUP_IMPL_LT_F32 = 0,   /* CUDA_R_32F     */
    TEGROUP_IMPL_LT_F16 = 2,   /* CUDA_R_16F     */
    TEGROUP_IMPL_LT_BF16 = 14, /* CUDA_R_16BF    */
    TEGROUP_IMPL_LT_E4M3 = 28, /* CUDA_R_8F_E4M3 */
    TEGROUP_IMPL_LT_E5M2 = 29, /* CUDA_R_8F_E5M2 */
    TEGROUP_IMPL_LT_E2M1 = 33, /* CUDA_R_4F_E2M1 */
    /* CUBLAS_COMPUTE_32F, and 32F_PEDANTIC, which uses neither TF32 nor emulation whatever the environment says */
    TEGROUP_IMPL_LT_COMPUTE_32F = 68,
    TEGROUP_IMPL_LT_COMPUTE_32F_PEDANTIC = 69,
    TEGROUP_IMPL_LT_POINTER_MODE = 2,      /* CUBLASLT_MATMUL_DESC_POINTER_MODE: 0 host, 1 device     */
    TEGROUP_IMPL_LT_TRANSA = 3,            /* CUBLASLT_MATMUL_DESC_TRANSA: 0 CUBLAS_OP_N, 1 _T        */
    TEGROUP_IMPL_LT_TRANSB = 4,            /* CUBLASLT_MATMUL_DESC_TRANSB                             */
    TEGROUP_IMPL_LT_A_SCALES = 17,         /* CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, then _B           */
    TEGROUP_IMPL_LT_FAST_SUMS = 25,        /* CUBLASLT_MATMUL_DESC_FAST_ACCUM                         */
    TEGROUP_IMPL_LT_A_SCALE_MODE = 31,     /* CUBLASLT_MATMUL_DESC_A_SCALE_MODE, then _B: see below   */
    TEGROUP_IMPL_LT_ALPHA_STRIDE = 39,     /* CUBLASLT_MATMUL_DESC_ALPHA_BATCH_STRIDE                 */
    TEGROUP_IMPL_LT_BETA_STRIDE = 40,      /* CUBLASLT_MATMUL_DESC_BETA_BATCH_STRIDE                  */
    TEGROUP_IMPL_LT_BATCH_INVARIANCE = 41, /* CUBLASLT_MATMUL_DESC_BATCH_INVARIANCE_FLAGS             */
    TEGROUP_IMPL_LT_ROWS_COLS_WIDTH =
        12,                            /* CUBLASLT_GROUPED_MATRIX_LAYOUT_ROWS_COLS_ARRAY_INTEGER_WIDTH: 1 = 64 bits */
    TEGROUP_IMPL_LT_LD_WIDTH = 13,     /* CUBLASLT_GROUPED_MATRIX_LAYOUT_LD_ARRAY_INTEGER_WIDTH   */
    TEGROUP_IMPL_LT_MAX_WORKSPACE = 1, /* CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES                */
    TEGROUP_IMPL_LT_REDUCTIONS = 3,    /* CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: 0 = k is not split */
    TEGROUP_IMPL_LT_ALIGNMENT_A = 5,   /* CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, then _B, _C, _D    */
    TEGROUP_IMPL_LT_AVERAGE_K = 13,    /* CUBLASLT_MATMUL_PREF_GROUPED_AVERAGE_REDUCTION_DIM      */
    TEGROUP_IMPL_LT_AVERAGE_ROWS = 14, /* CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_ROWS        */
    TEGROUP_IMPL_LT_AVERAGE_COLS = 15  /* CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_COLS        */
};

/* Storage for any of cuBLASLt's opaque descriptors: several times as large as any version needs. */
typedef struct tegroup_impl_lt_opaque {
    uint64_t words[64];
} tegroup_impl_lt_opaque;

typedef struct tegroup_impl_lt_matmul {
    tegroup_impl_lt_opaque desc, a, b, c, d;
    int32_t in_place; /* C is given as D: with D's layout and list of addresses */
} tegroup_impl_lt_matmul;

static inline int tegroup_impl_lt_avoids(const tegroup_plan *plan, tegroup_quirk_case when) {
    return tegroup_impl_quirk_avoided(plan->backend, plan->sm, plan->cublaslt_version, when);
}

/* Whether C is given as D, with D's layout and list of addresses: if there is no other C, and no quirk forbids it. The
 * library adds to D 5 to 10% faster when it can tell that C is D. */
static inline int32_t tegroup_impl_lt_in_place(const tegroup_plan *plan) {
    const tegroup_problem *p = &plan->problem;
    return p->c == TEGROUP_DTYPE_UNSET
           && (!p->accumulate || p->d == TEGROUP_DTYPE_F32
               || !tegroup_impl_lt_avoids(plan, TEGROUP_QUIRK_ACCUMULATED_HALVES));
}

static inline tegroup_impl_lt_opaque *tegroup_impl_lt_c(tegroup_impl_lt_matmul *m) {
    return m->in_place ? &m->d : &m->c;
}

typedef struct tegroup_impl_lt_result { /* cublasLtMatmulHeuristicResult_t */
    tegroup_impl_choice algorithm;      /* cublasLtMatmulAlgo_t            */
    size_t workspace_bytes;
    int32_t state;
    float waves;
    int32_t reserved[4];
} tegroup_impl_lt_result;

/* What plan.algorithm holds for both cuBLASLt backends. */
typedef struct tegroup_impl_lt_plan {
    tegroup_cublaslt_functions functions;
    tegroup_impl_choice algorithm; /* what runs; until it is tuned, the library's first offer */
    tegroup_impl_choice unaligned; /* loop: for addresses aligned to their element only */
    int32_t has_algorithm;         /* 0: no group has terms to sum, so the library is not called */
    int32_t has_unaligned;
    int32_t alignment; /* bytes that addresses must be a multiple of for `algorithm` */
} tegroup_impl_lt_plan;
static_assert(sizeof(tegroup_impl_lt_plan) <= sizeof(((tegroup_plan *)0)->algorithm), "the plan holds it");

#define TEGROUP_IMPL_SIGNATURE(name, result, arguments) typedef result(*tegroup_impl_##name) arguments;
TEGROUP_CUBLASLT_LIST(TEGROUP_IMPL_SIGNATURE)
#undef TEGROUP_IMPL_SIGNATURE
#define TEGROUP_IMPL_LT(functions, name) (reinterpret_cast<tegroup_impl_##name>((functions)->name))

static inline tegroup_impl_lt_plan tegroup_impl_lt_plan_of(const tegroup_plan *plan) {
    tegroup_impl_lt_plan lt;
    memcpy(&lt, plan->algorithm, sizeof lt);
    return lt;
}

/* Finds the library's functions: the caller's, or those of the shared object that holds the cublasLtMatmul that the
 * process would call. A library that was loaded privately is found by its usual names. Nothing is loaded here. */
static inline tegroup_cublaslt_functions tegroup_impl_lt_find(const tegroup_gemm_desc *desc) {
    const tegroup_cublaslt_functions *given = desc->options.cublaslt_functions;
    tegroup_cublaslt_functions f;
    memset(&f, 0, sizeof f);
    if (given) memcpy(&f, given, given->struct_size);
    f.struct_size = sizeof f;
    if (given) return f;
#if !defined(_WIN32)
    static const char *const names[] = {"libcublasLt.so.14", "libcublasLt.so.13", "libcublasLt.so.12",
                                        "libcublasLt.so"};
    void *matmul = dlsym(RTLD_DEFAULT, "cublasLtMatmul"), *library = NULL;
    Dl_info info;
    if (matmul && dladdr(matmul, &info) && info.dli_fname) library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    for (int32_t i = 0; !matmul && !library && i < 4; i++) library = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD);
#define TEGROUP_IMPL_FIND(name, result, arguments)                                                                     \
    f.name = reinterpret_cast<tegroup_function>(dlsym(library ? library : RTLD_DEFAULT, #name));
    TEGROUP_CUBLASLT_LIST(TEGROUP_IMPL_FIND)
#undef TEGROUP_IMPL_FIND
    if (library) dlclose(library); /* whoever loaded the library still holds it */
#endif
    return f;
}

/* The library's version; 0 unless every function was found. The grouped one is newer than the others and may be
 * missing. */
static inline int32_t tegroup_impl_cuda_cublaslt_version(const tegroup_gemm_desc *desc) {
    tegroup_cublaslt_functions f = tegroup_impl_lt_find(desc);
    int complete = 1;
    if (!f.cublasLtGroupedMatrixLayoutInit_internal) f.cublasLtGroupedMatrixLayoutInit_internal = f.cublasLtGetVersion;
#define TEGROUP_IMPL_FOUND(name, result, arguments) complete &= f.name != NULL;
    TEGROUP_CUBLASLT_LIST(TEGROUP_IMPL_FOUND)
#undef TEGROUP_IMPL_FOUND
    return complete ? (int32_t)TEGROUP_IMPL_LT(&f, cublasLtGetVersion)() : 0;
}

static inline tegroup_status tegroup_impl_lt_status(int code, const char *field, const char *rule,
                                                    tegroup_error *error) {
    if (code == 0) return TEGROUP_OK;
    (void)tegroup_impl_fail(error, TEGROUP_ERROR_CUBLAS, field, rule, 0, code);
    if (error) error->native = code;
    return TEGROUP_ERROR_CUBLAS;
}

/* Sets an attribute in the width that the library gives it. All of them are integers, and hosts are little-endian. */
typedef int (*tegroup_impl_lt_get)(const void *, int, void *, size_t, size_t *);
typedef int (*tegroup_impl_lt_set)(void *, int, const void *, size_t);
static inline int tegroup_impl_lt_put(tegroup_function get, tegroup_function set, tegroup_impl_lt_opaque *object,
                                      int attribute, int64_t value) {
    size_t bytes = 0;
    int code = reinterpret_cast<tegroup_impl_lt_get>(get)(object, attribute, NULL, 0, &bytes);
    if (code != 0) return code;
    if (bytes > sizeof value) return 7; /* CUBLAS_STATUS_INVALID_VALUE: not an integer */
    return reinterpret_cast<tegroup_impl_lt_set>(set)(object, attribute, &value, bytes);
}

static inline int tegroup_impl_lt_dtype(tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_F32      ? TEGROUP_IMPL_LT_F32
           : dtype == TEGROUP_DTYPE_BF16   ? TEGROUP_IMPL_LT_BF16
           : dtype == TEGROUP_DTYPE_F16    ? TEGROUP_IMPL_LT_F16
           : dtype == TEGROUP_DTYPE_F8E4M3 ? TEGROUP_IMPL_LT_E4M3
           : dtype == TEGROUP_DTYPE_F8E5M2 ? TEGROUP_IMPL_LT_E5M2
                                           : TEGROUP_IMPL_LT_E2M1;
}

/* cublasLtMatmulMatrixScale_t, as a grouped matmul takes it: each mode then has a list of the groups' scales. */
static inline int tegroup_impl_lt_scale_mode(tegroup_scaling scaling) {
    switch (scaling) {
    case TEGROUP_SCALING_BLOCK_1X128: return 4;   /* CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F           */
    case TEGROUP_SCALING_BLOCK_128X128: return 5; /* CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F       */
    case TEGROUP_SCALING_MXFP8:
    case TEGROUP_SCALING_MXFP8_32X32: return 2; /* CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0            */
    case TEGROUP_SCALING_NVFP4:
    case TEGROUP_SCALING_NVFP4_16X16: return 1; /* CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3            */
    default: return 6;                          /* CUBLASLT_MATMUL_MATRIX_SCALE_PER_BATCH_SCALAR_32F   */
    }
}

/* Are alpha and beta read in device memory? Scales of NVFP4's groups are part of alpha. */
static inline int tegroup_impl_lt_device_scalars(const tegroup_problem *p) {
    return p->alpha_space == TEGROUP_SPACE_DEVICE || p->beta_space == TEGROUP_SPACE_DEVICE
           || tegroup_scaling_info(p->a_scaling)->scale_dtype == TEGROUP_DTYPE_F8E4M3;
}

/* Is what a product sums over contiguous in the operand? */
static inline int tegroup_impl_lt_along_k(const tegroup_problem *p, tegroup_impl_operand operand) {
    return !tegroup_impl_sums_rows(p->op, operand) || tegroup_impl_plans_transposed(p, operand);
}

/* Describes the matmul. Scalars in device memory are arrays of pointers if the matmul is grouped, else one number
 * each. */
static inline int tegroup_impl_lt_describe(const tegroup_cublaslt_functions *f, const tegroup_problem *p, int grouped,
                                           tegroup_impl_lt_opaque *desc) {
    const int device_scalars = tegroup_impl_lt_device_scalars(p);
    const tegroup_function get = f->cublasLtMatmulDescGetAttribute, set = f->cublasLtMatmulDescSetAttribute;
    int code = TEGROUP_IMPL_LT(f, cublasLtMatmulDescInit_internal)(
        desc, sizeof *desc,
        p->a == TEGROUP_DTYPE_F32 ? TEGROUP_IMPL_LT_COMPUTE_32F_PEDANTIC : TEGROUP_IMPL_LT_COMPUTE_32F,
        TEGROUP_IMPL_LT_F32);
    if (!code)
        code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_TRANSA, tegroup_impl_lt_along_k(p, TEGROUP_IMPL_B));
    if (!code)
        code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_TRANSB, !tegroup_impl_lt_along_k(p, TEGROUP_IMPL_A));
    if (!code) code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_POINTER_MODE, device_scalars);
    if (!code && device_scalars && grouped) code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_ALPHA_STRIDE, 1);
    if (!code && device_scalars && grouped) code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_BETA_STRIDE, 1);
    /* unset, this follows an environment variable; older libraries have neither */
    if (!code) (void)tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_BATCH_INVARIANCE, 0);
    return code;
}

/* The mean of the groups' expected rows, at least 1. */
static inline int64_t tegroup_impl_lt_mean(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    return tegroup_impl_max(1,
                            tegroup_impl_ceil_div(tegroup_impl_expected_rows(desc, p), tegroup_impl_max(1, p->groups)));
}

/* The size of a group as cuBLASLt sees it: rows and columns of its column-major D, and the terms of a sum. */
typedef struct tegroup_impl_lt_size {
    int64_t rows, cols, k;
} tegroup_impl_lt_size;

static inline tegroup_impl_lt_size tegroup_impl_lt_size_of(const tegroup_problem *p, int64_t rows) {
    tegroup_impl_lt_size size;
    size.rows = p->op == TEGROUP_OP_FORWARD ? p->n : p->k;
    size.cols = p->op == TEGROUP_OP_WGRAD ? p->n : rows;
    size.k = p->op == TEGROUP_OP_FORWARD ? p->k : p->op == TEGROUP_OP_DGRAD ? p->n : rows;
    return size;
}

/* The distances in bytes between rows and between groups of what is read of an operand, as one number of their bits.
 * Those of a transposed copy follow sizes that the device knows, in steps of at least 16 bytes of FP8. */
static inline int64_t tegroup_impl_lt_distances(const tegroup_tensor *t, const tegroup_problem *p,
                                                tegroup_impl_operand operand, int64_t ld) {
    if (tegroup_impl_plans_transposed(p, operand)) return 16;
    return ld * tegroup_impl_bits(t->dtype) / 8 | tegroup_impl_stride_bytes(t);
}

/* The largest power of two, at most `most`, that divides all distances in bytes between rows and between groups. */
static inline int32_t tegroup_impl_lt_alignment(const tegroup_gemm_desc *desc, const tegroup_problem *p, int32_t most) {
    const int64_t a = tegroup_impl_bits(p->a) / 8, d = tegroup_impl_bits(p->d) / 8;
    const int64_t all = tegroup_impl_lt_distances(&desc->a, p, TEGROUP_IMPL_A, p->lda)
                        | tegroup_impl_lt_distances(&desc->b, p, TEGROUP_IMPL_B, p->ldb) | p->ldc * d | p->ldd * d
                        | tegroup_impl_stride_bytes(&desc->c) | tegroup_impl_stride_bytes(&desc->d);
    int32_t alignment = most;
    int packed = !p->lda || !p->ldb || !p->ldd || (p->c && !p->ldc); /* groups of any width, packed one after another */
    for (int i = 0; i < 4; i++) packed |= p->has_elements[i];
    if (packed) return (int32_t)tegroup_impl_min(a, d);
    while (all % alignment != 0) alignment /= 2;
    return alignment;
}

enum { TEGROUP_IMPL_LT_OFFERED = 8 }; /* the most algorithms that one query returns */

/* Asks the library for algorithms, fastest first by its own estimate. Returns how many there are. */
static inline int32_t tegroup_impl_lt_offers(const tegroup_cublaslt_functions *f, struct cublasLtContext *handle,
                                             tegroup_impl_lt_matmul *m, int64_t workspace_bytes, int32_t alignment,
                                             const tegroup_impl_lt_size *grouped, tegroup_impl_choice *algorithms,
                                             int32_t most, int *code) {
    const tegroup_function get = f->cublasLtMatmulPreferenceGetAttribute, set = f->cublasLtMatmulPreferenceSetAttribute;
    tegroup_impl_lt_opaque preference;
    tegroup_impl_lt_result results[TEGROUP_IMPL_LT_OFFERED];
    int found = 0;
    int32_t count = 0;
    memset(results, 0, sizeof results);
    *code = TEGROUP_IMPL_LT(f, cublasLtMatmulPreferenceInit_internal)(&preference, sizeof preference);
    if (!*code) *code = tegroup_impl_lt_put(get, set, &preference, TEGROUP_IMPL_LT_MAX_WORKSPACE, workspace_bytes);
    for (int i = 0; i < 4 && !*code; i++)
        *code = tegroup_impl_lt_put(get, set, &preference, TEGROUP_IMPL_LT_ALIGNMENT_A + i, alignment);
    if (grouped) {
        if (!*code) *code = tegroup_impl_lt_put(get, set, &preference, TEGROUP_IMPL_LT_AVERAGE_ROWS, grouped->rows);
        if (!*code) *code = tegroup_impl_lt_put(get, set, &preference, TEGROUP_IMPL_LT_AVERAGE_COLS, grouped->cols);
        if (!*code) *code = tegroup_impl_lt_put(get, set, &preference, TEGROUP_IMPL_LT_AVERAGE_K, grouped->k);
    } else if (!*code) {
        *code = tegroup_impl_lt_put(get, set, &preference, TEGROUP_IMPL_LT_REDUCTIONS, 0);
    }
    if (*code) return 0;
    *code = TEGROUP_IMPL_LT(f, cublasLtMatmulAlgoGetHeuristic)(handle, &m->desc, &m->a, &m->b, tegroup_impl_lt_c(m),
                                                               &m->d, &preference, most, results, &found);
    if (*code) return 0;
    for (int i = 0; i < found && i < most; i++)
        if (results[i].state == 0 && (int64_t)results[i].workspace_bytes <= workspace_bytes)
            algorithms[count++] = results[i].algorithm;
    return count;
}
/* The status when the library has no algorithm, or could not be asked. Of its codes CUBLAS_STATUS_SUCCESS,
 * INVALID_VALUE, ARCH_MISMATCH and NOT_SUPPORTED mean that it has none. */
static inline tegroup_status tegroup_impl_lt_nothing(int code, tegroup_error *error) {
    if (code != 0 && code != 7 && code != 8 && code != 15)
        return tegroup_impl_lt_status(code, "options.cublaslt", "must be a handle that can be asked for algorithms",
                                      error);
    (void)tegroup_impl_fail(error, TEGROUP_ERROR_UNSUPPORTED, "options.backend",
                            "must be another one: cuBLASLt offers no algorithm for this", 1, 0);
    if (error) error->native = code;
    return TEGROUP_ERROR_UNSUPPORTED;
}

/* Puts an algorithm into the plan. The bits of a result depend on the library's version, the algorithm and whether the
 * library is told that it adds to D, so numerics_id covers them. */
static inline void tegroup_impl_lt_planned(tegroup_plan *plan, const tegroup_impl_lt_plan *lt) {
    const int32_t adds_to_d = plan->problem.accumulate && tegroup_impl_lt_in_place(plan);
    uint64_t id = tegroup_impl_numerics_id(&plan->problem, plan->backend, plan->sm);
    id = tegroup_impl_hash(id, &plan->cublaslt_version, sizeof plan->cublaslt_version);
    id = tegroup_impl_hash(id, &adds_to_d, sizeof adds_to_d);
    if (lt->has_algorithm) id = tegroup_impl_hash(id, &lt->algorithm, sizeof lt->algorithm);
    plan->numerics_id = id;
    memcpy(plan->algorithm, lt, sizeof *lt);
}

static inline tegroup_impl_choice tegroup_impl_lt_chosen(const tegroup_plan *plan) {
    return tegroup_impl_lt_plan_of(plan).algorithm;
}
static inline tegroup_status tegroup_impl_lt_take(tegroup_plan *plan, const tegroup_impl_choice *choice,
                                                  tegroup_error *) {
    tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
    lt.algorithm = *choice;
    tegroup_impl_lt_planned(plan, &lt);
    return TEGROUP_OK;
}
