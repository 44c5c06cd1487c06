/* ---- Router launches ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "moe/routing_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "core/checks.h"
#include "moe/router_scheme.h"
#include "moe/router.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "moe/count_cuda.h"
#include "moe/router_batch_cuda.h"
#include "moe/router_choice_cuda.h"
#include "moe/router_gradient_cuda.h"
#include "moe/router_scheme_launch_cuda.h"

/* How the rows of a matrix may be read. */
static inline tegroup_impl_router_access tegroup_impl_cuda_router_access(const tegroup_matrix *m, int is_f64) {
    const int64_t bytes = tegroup_impl_bits(m->dtype) / 8;
    if (m->dtype == TEGROUP_DTYPE_F64 || (is_f64 && m->dtype != TEGROUP_DTYPE_F32) || m->cols % 4 != 0
        || tegroup_impl_matrix_ld(m) % 4 != 0 || !tegroup_impl_aligned(m->data, (size_t)(4 * bytes)))
        return TEGROUP_IMPL_ROUTER_ELEMENTS;
    return m->dtype == TEGROUP_DTYPE_F32 ? TEGROUP_IMPL_ROUTER_FLOATS : TEGROUP_IMPL_ROUTER_HALVES;
}

/* Launches a kernel over batches of `tokens`, each with `bytes` of shared memory besides its row. out: what is written
 * row by row; where nothing is, any matrix of as many rows. There are at most three blocks a multiprocessor, as each
 * adds its counts to the same few addresses. For few tokens blocks are smaller, so that every multiprocessor has
 * some. */
template <typename DESC>
static inline tegroup_status tegroup_impl_cuda_router_launch(void (*kernel)(const DESC, const tegroup_impl_router_way),
                                                             const DESC *desc, tegroup_impl_router_way *way,
                                                             const tegroup_matrix *out, int32_t tokens, int64_t bytes,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    const int64_t rows = out->rows, batches = tegroup_impl_ceil_div(rows, tokens);
    int device = 0, multiprocessors = 0, shared = 0;
    int64_t warps, fit, warp_bytes, blocks, block_bytes;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "space", "there must be a current device", error));
    way->out_element = tegroup_impl_bits(out->dtype) / 8;
    way->out_piece = tegroup_impl_cuda_piece(out);
    way->out_whole = way->out_piece == 16 && out->ld == out->cols && out->cols % 4 == 0;
    way->token_bytes = (int32_t)(tegroup_impl_ceil_div(bytes, 16) | 1) * 16;
    warp_bytes = (int64_t)tokens * (way->row_bytes + way->token_bytes);
    fit = (shared / 3 - 1024 - way->block_bytes) / warp_bytes; /* 1024: what CUDA reserves in each block */
    if (fit < 1) fit = 1;
    warps = tegroup_impl_clamp(tegroup_impl_ceil_div(batches, 3 * multiprocessors), 1,
                               tegroup_impl_min(fit, TEGROUP_IMPL_ROUTER_WARPS));
    blocks = tegroup_impl_min(tegroup_impl_ceil_div(batches, warps), 3 * multiprocessors);
    block_bytes = way->block_bytes + warps * warp_bytes;
    way->batches = tegroup_impl_ceil_div(batches, blocks * warps) * blocks * warps;
    way->each = rows / way->batches;
    way->longer = rows % way->batches;
    way->k = (uint32_t)desc->k;
    way->per_k = 65535 / way->k + 1;
    /* the same value in every call: other threads launch this kernel, too */
    code = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared - 1024);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "space", "the device must have the shared memory", error));
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(kernel, (unsigned)blocks, 32u * (unsigned)warps, (size_t)block_bytes, stream, *desc, *way),
        "stream", "the kernel must launch", error);
}

static inline tegroup_status tegroup_impl_cuda_router(const tegroup_router_desc *desc, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    const int is_f64 = tegroup_impl_router_real(desc) == TEGROUP_DTYPE_F64;
    const int64_t real_bytes = is_f64 ? 8 : 4;
    const int64_t room = tegroup_impl_align(desc->experts, 4),
                  bytes = (tegroup_impl_align(room / 4, 4) + 2 + 2 * (desc->k + 1)) * real_bytes;
    tegroup_impl_router_way way;
    tegroup_router_desc d = *desc;
    if (tegroup_impl_router_schemed(desc)) return tegroup_impl_cuda_scheme(desc, stream, error);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_image((const void *)tegroup_impl_router_sums_kernel, error));
    memset(&way, 0, sizeof way);
    way.in = tegroup_impl_cuda_router_access(&desc->logits, is_f64);
    way.histogram = desc->counts.dtype != TEGROUP_DTYPE_UNSET && desc->experts <= TEGROUP_IMPL_ROUTER_HISTOGRAM;
    way.row_bytes = (int32_t)(room * real_bytes);
    way.block_bytes = way.histogram ? (int32_t)tegroup_impl_align(4 * desc->experts, 16) : 0;
    d.logits = tegroup_impl_cuda_matrix(&desc->logits);
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    /* A single batch is a single block, which writes the counts. */
#define TEGROUP_IMPL_LAUNCH(real, lanes, quads, turns)                                                                 \
    if (!way.histogram || desc->logits.rows > 32 / (lanes) * (turns))                                                  \
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_clear_counts(&desc->counts, stream, error));                                \
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_router_launch(tegroup_impl_router_kernel<real, lanes, quads, turns>, &d, &way,  \
                                                     d.probabilities.dtype ? &d.probabilities : &d.logits,             \
                                                     32 / (lanes) * (turns), bytes, stream, error))
    if (desc->logits.rows == 0) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_clear_counts(&desc->counts, stream, error));
    } else if (is_f64 && desc->experts <= 1024) {
        TEGROUP_IMPL_LAUNCH(double, 32, 8, 1);
    } else if (is_f64) {
        TEGROUP_IMPL_LAUNCH(double, 32, 32, 1);
    } else if (desc->experts <= 128) {
        TEGROUP_IMPL_LAUNCH(float, 8, 4, 4);
    } else if (desc->experts <= 256) {
        TEGROUP_IMPL_LAUNCH(float, 16, 4, 4);
    } else if (desc->experts <= 512) {
        TEGROUP_IMPL_LAUNCH(float, 32, 4, 4);
    } else {
        TEGROUP_IMPL_LAUNCH(float, 32, 32, 1);
    }
#undef TEGROUP_IMPL_LAUNCH
    if (!desc->balance_loss) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
        tegroup_impl_launch(tegroup_impl_router_sums_kernel,
                            dim3((unsigned)(desc->experts + 31) / 32, TEGROUP_IMPL_ROUTER_RUNS), 256, 0, stream, d),
        "stream", "the kernel must launch", error));
    return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_router_loss_kernel, 1, 1024, 0, stream, d),
                                    "stream", "the kernel must launch", error);
}

#if !defined(TEGROUP_NO_BACKWARD)
static inline tegroup_status tegroup_impl_cuda_router_backward(const tegroup_router_backward_desc *desc,
                                                               struct CUstream_st *stream, tegroup_error *error) {
    const int is_f64 = desc->probabilities.dtype == TEGROUP_DTYPE_F64;
    const int64_t real_bytes = is_f64 ? 8 : 4, room = tegroup_impl_align(desc->experts, 4),
                  bytes = desc->k * (real_bytes + 4);
    tegroup_impl_router_way way;
    tegroup_router_backward_desc d = *desc;
    if (desc->probabilities.rows == 0) return TEGROUP_OK;
    if (tegroup_impl_backward_schemed(&desc->scheme, &desc->loss_gradients))
        return tegroup_impl_cuda_scheme_backward(desc, stream, error);
    memset(&way, 0, sizeof way);
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    d.grad_weights = tegroup_impl_cuda_matrix(&desc->grad_weights);
    d.grad_logits = tegroup_impl_cuda_matrix(&desc->grad_logits);
    way.in_piece = tegroup_impl_cuda_piece(&d.probabilities);
    way.in_whole = way.in_piece == 16 && d.probabilities.ld == d.probabilities.cols && desc->experts % 4 == 0;
    way.row_bytes = (int32_t)(room * (real_bytes + (desc->grad_logits.dtype == TEGROUP_DTYPE_F64 ? 8 : real_bytes)));
    way.by_fours = d.indices.dtype == TEGROUP_DTYPE_I32 && tegroup_impl_cuda_piece(&d.grad_weights) == 16
                   && tegroup_impl_cuda_piece(&d.indices) == 16;
    /* for more experts there is no room for the balance gradients, and they are computed again for every token */
    way.block_bytes = desc->experts <= 1024 ? (int32_t)(room * real_bytes) : 0;
    if (desc->balance_coefficient != 0) way.per_count = tegroup_impl_router_per_count(desc);
#define TEGROUP_IMPL_LAUNCH(real, lanes, quads, turns)                                                                 \
    return tegroup_impl_cuda_router_launch(tegroup_impl_router_grad_kernel<real, lanes, quads, turns>, &d, &way,       \
                                           &d.grad_logits, 32 / (lanes) * (turns), bytes, stream, error)
    if (is_f64 && desc->experts <= 1024) TEGROUP_IMPL_LAUNCH(double, 32, 8, 1);
    if (is_f64) TEGROUP_IMPL_LAUNCH(double, 32, 32, 1);
    if (desc->experts <= 128) TEGROUP_IMPL_LAUNCH(float, 8, 4, 4);
    if (desc->experts <= 256) TEGROUP_IMPL_LAUNCH(float, 16, 4, 4);
    if (desc->experts <= 512) TEGROUP_IMPL_LAUNCH(float, 32, 4, 4);
    TEGROUP_IMPL_LAUNCH(float, 32, 32, 1);
#undef TEGROUP_IMPL_LAUNCH
}
#endif /* TEGROUP_NO_BACKWARD */
