/* ---- Activation kernels ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/activation_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "core/activation_formulas.h"
#include "cuda/rows.h"
#include "cuda/activation_epilogue.h"

/* @each-real */
static __device__ __forceinline__ REAL tegroup_impl_activation(tegroup_activation kind, bool half, REAL alpha,
                                                               REAL limit, REAL gate, REAL up) {
    return tegroup_impl_activation_FSUF(kind, half, alpha, limit, gate, up);
}
static __device__ __forceinline__ REAL tegroup_impl_activation_grad(tegroup_activation kind, bool half, REAL alpha,
                                                                    REAL limit, REAL gate, REAL up, REAL grad,
                                                                    REAL *grad_gate, REAL *grad_up) {
    return tegroup_impl_activation_grad_FSUF(kind, half, alpha, limit, gate, up, grad, grad_gate, grad_up);
}
/* One element at a time. This is not inlined: the path is slow in any case, and stays small this way. */
static __device__ __noinline__ REAL tegroup_impl_activation_call(tegroup_activation kind, bool half, REAL alpha,
                                                                 REAL limit, REAL gate, REAL up, REAL grad,
                                                                 REAL *grad_gate, REAL *grad_up) {
    return tegroup_impl_activation_grad_FSUF(kind, half, alpha, limit, gate, up, grad, grad_gate, grad_up);
}
/* @end */

/* Whether both matrices have elements of 16 bits. */
static __device__ __forceinline__ bool tegroup_impl_halves(const tegroup_matrix &a, const tegroup_matrix &b) {
    return tegroup_impl_bits(a.dtype) == 16 && tegroup_impl_bits(b.dtype) == 16;
}

/* What a thread holds of a row of gates and ups, and of the row of half as many elements beside it: two steps of the
 * first, in their order in memory (by halves: gates, then ups; interleaved: pairs), and one step of the second. Without
 * gates and ups the first step is all there is, and the second is filled with ones. `together` rows are held at a time;
 * more would take registers, and with fewer registers more blocks are resident, which keeps memory busier than more
 * loads in flight in each. */
template <typename ACCESS, bool INTERLEAVED, bool SPLIT = false> struct tegroup_impl_pairs {
    typedef typename ACCESS::real real;
    typedef typename ACCESS::raw raw;
    typedef raw one;
    enum { count = ACCESS::lanes, together = 2 };
    raw step[2];

    static __device__ __forceinline__ int64_t at(int64_t c, int64_t steps, int half) {
        return INTERLEAVED ? 2 * c + half : c + half * steps;
    }
    static __device__ __forceinline__ int gate(int i) { return INTERLEAVED ? 2 * i : i; }
    static __device__ __forceinline__ int up(int i) { return INTERLEAVED ? 2 * i + 1 : count + i; }

    __device__ __forceinline__ void load(const tegroup_matrix &m, const char *row, int64_t c, int64_t steps,
                                         bool gated) {
        real ones[count];
#pragma unroll
        for (int i = 0; i < count; i++) ones[i] = 1;
        step[0] = ACCESS::load(m, row, at(c, steps, 0));
        step[1] = gated ? ACCESS::load(m, row, at(c, steps, 1)) : ACCESS::pack(ones);
    }
    __device__ __forceinline__ void unpack(real *both) const {
        ACCESS::unpack(step[0], both);
        ACCESS::unpack(step[1], both + count);
    }
    static __device__ __forceinline__ void store(const tegroup_matrix &m, char *row, int64_t c, int64_t steps,
                                                 bool gated, const real *both) {
        ACCESS::store(m, row, at(c, steps, 0), ACCESS::pack(both));
        if (gated) ACCESS::store(m, row, at(c, steps, 1), ACCESS::pack(both + count));
    }
    static __device__ __forceinline__ one load_one(const tegroup_matrix &m, const char *row, int64_t c) {
        return ACCESS::load(m, row, c);
    }
    static __device__ __forceinline__ void unpack_one(one v, real *x) { ACCESS::unpack(v, x); }
};

/* Interleaved vectors that are written back: one step of pairs, and half a step of the other row. Neighbouring threads
 * then write neighbouring bytes, whereas two steps at a time would write half of each memory sector, twice. */
template <typename ACCESS> struct tegroup_impl_pairs<ACCESS, true, true> {
    typedef typename ACCESS::real real;
    typedef uint2 one;
    enum { count = ACCESS::lanes / 2, together = 4 };
    uint4 step;

    static __device__ __forceinline__ int gate(int i) { return 2 * i; }
    static __device__ __forceinline__ int up(int i) { return 2 * i + 1; }

    __device__ __forceinline__ void load(const tegroup_matrix &m, const char *row, int64_t c, int64_t, bool) {
        step = ACCESS::load(m, row, c);
    }
    __device__ __forceinline__ void unpack(real *both) const { ACCESS::unpack(step, both); }
    static __device__ __forceinline__ void store(const tegroup_matrix &m, char *row, int64_t c, int64_t, bool,
                                                 const real *both) {
        ACCESS::store(m, row, c, ACCESS::pack(both));
    }
    static __device__ __forceinline__ one load_one(const tegroup_matrix &, const char *row, int64_t c) {
        return ((const uint2 *)row)[c];
    }
    static __device__ __forceinline__ void unpack_one(one v, real *x) {
        real full[2 * count];
        ACCESS::unpack(make_uint4(v.x, v.y, 0, 0), full);
#pragma unroll
        for (int i = 0; i < count; i++) x[i] = full[i];
    }
};

/* Blocks of the forward kernel that should fit a multiprocessor; one of SM75 has room for 1,024 threads. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
enum { TEGROUP_IMPL_ACTIVATION_BLOCKS = 4 };
#else
enum { TEGROUP_IMPL_ACTIVATION_BLOCKS = 5 };
#endif

/* y[i] = scale * f(gate[i], up[i]) for what a thread holds of a row. */
template <typename ACCESS, bool GATED, typename PAIRS, typename REAL>
static __device__ __forceinline__ void tegroup_impl_activation_step(const tegroup_activation_desc &desc, bool half,
                                                                    REAL alpha, REAL limit, REAL scale, const PAIRS &x,
                                                                    REAL *y) {
    const int count = PAIRS::count;
    REAL both[2 * count];
    x.unpack(both);
    if (ACCESS::lanes == 1) {
        y[0] = scale
               * tegroup_impl_activation_call(desc.activation, half, alpha, limit, both[0], both[1], (REAL)0, &both[0],
                                              &both[1]);
        return;
    }
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    _Pragma("unroll") for (int i = 0; i < count; i++) y[i] =                                                           \
        scale * tegroup_impl_activation(kind, half, alpha, limit, both[PAIRS::gate(i)], both[PAIRS::up(i)]);
    if (GATED) TEGROUP_IMPL_BY_GATED(desc.activation, TEGROUP_IMPL_LOOP)
    else TEGROUP_IMPL_BY_PLAIN(desc.activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
}

/* A thread reads a step of the rows that it holds before it writes there, so output may be input if both are as
 * wide. */
template <typename ACCESS, bool INTERLEAVED, bool GATED>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS, TEGROUP_IMPL_ACTIVATION_BLOCKS)
    tegroup_impl_activation_kernel(const __grid_constant__ tegroup_activation_desc desc) {
    typedef typename ACCESS::real real;
    typedef tegroup_impl_pairs<ACCESS, INTERLEAVED> pairs;
    const int count = pairs::count;
    const tegroup_impl_units units(desc.snapshot, desc.output.rows);
    const int64_t steps = desc.output.cols / count;
    const real alpha = (real)desc.alpha, limit = (real)desc.limit;
    const bool gated = ACCESS::lanes == 1 ? (bool)tegroup_impl_gated(desc.activation) : GATED,
               half = ACCESS::lanes == 1 ? tegroup_impl_halves(desc.input, desc.output) : ACCESS::lanes == 8;
    for (int64_t unit = blockIdx.x; unit < units.count; unit += gridDim.x) {
        int64_t first;
        const int32_t rows = units.at(unit, &first);
        if (rows == 0) continue;
#pragma unroll 1
        for (int from = 0; from < rows; from += pairs::together) {
            const char *in[pairs::together];
            char *out[pairs::together];
            real scale[pairs::together];
#pragma unroll
            for (int r = 0; r < pairs::together; r++) { /* past the unit's last row, that row is read again */
                const int64_t row = first + tegroup_impl_min(from + r, rows - 1);
                in[r] = ACCESS::row(desc.input, row);
                out[r] = ACCESS::row(desc.output, row);
                scale[r] = tegroup_impl_weight<real>(desc.row_scale, row, 0);
            }
            for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
                pairs x[pairs::together];
#pragma unroll
                for (int r = 0; r < pairs::together; r++) x[r].load(desc.input, in[r], c, steps, gated);
#pragma unroll
                for (int r = 0; r < pairs::together; r++) {
                    if (from + r >= rows) break;
                    real y[count];
                    tegroup_impl_activation_step<ACCESS, GATED>(desc, half, alpha, limit, scale[r], x[r], y);
                    ACCESS::store(desc.output, out[r], c, ACCESS::pack(y));
                }
            }
        }
    }
}

static inline tegroup_status tegroup_impl_cuda_activation_forward(const tegroup_activation_desc *desc,
                                                                  struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->input, &desc->output};
    const int64_t width = desc->output.cols, units = tegroup_impl_ceil_div(desc->output.rows, TEGROUP_IMPL_ROWS_UNIT);
    tegroup_activation_desc d = *desc;
    if (desc->output.rows == 0 || width == 0) return TEGROUP_OK;
    d.alpha = tegroup_impl_alpha(desc->activation, desc->alpha);
    d.limit = tegroup_impl_limit(desc->activation, desc->limit);
    d.input = tegroup_impl_cuda_matrix(&desc->input);
    d.row_scale = tegroup_impl_cuda_matrix(&desc->row_scale);
    d.output = tegroup_impl_cuda_matrix(&desc->output);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows(desc->interleaved ? tegroup_impl_activation_kernel<__VA_ARGS__, true, true>          \
                                  : tegroup_impl_gated(desc->activation)                                               \
                                      ? tegroup_impl_activation_kernel<__VA_ARGS__, false, true>                       \
                                      : tegroup_impl_activation_kernel<__VA_ARGS__, false, false>,                     \
                                  &d, width, __VA_ARGS__::lanes, units, stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 2, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}

#if !defined(TEGROUP_NO_BACKWARD)
/* The gradients of gates and ups for what a thread holds of a row. Returns its contribution to the gradient of the
 * row's scale: for one element `sum` plus it, for several elements their own sum, without `sum`. */
template <typename ACCESS, bool GATED, typename PAIRS, typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_activation_grad_step(const tegroup_activation_backward_desc &desc,
                                                                         bool half, REAL alpha, REAL limit, REAL scale,
                                                                         const PAIRS &x, const typename PAIRS::one &dy,
                                                                         REAL sum, REAL *out) {
    const int count = PAIRS::count;
    REAL both[2 * count], grad[count], part = 0;
    x.unpack(both);
    PAIRS::unpack_one(dy, grad);
    if (ACCESS::lanes == 1) {
        const REAL value = tegroup_impl_activation_call(desc.activation, half, alpha, limit, both[0], both[1],
                                                        scale * grad[0], &out[0], &out[1]);
        return fma(grad[0], value, sum);
    }
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    _Pragma("unroll") for (int i = 0; i < count; i++) {                                                                \
        const int g = PAIRS::gate(i), u = PAIRS::up(i);                                                                \
        const REAL value = tegroup_impl_activation_grad(kind, half, alpha, limit, both[g], both[u], scale * grad[i],   \
                                                        &out[g], &out[u]);                                             \
        part = fma(grad[i], value, part);                                                                              \
    }
    if (GATED) TEGROUP_IMPL_BY_GATED(desc.activation, TEGROUP_IMPL_LOOP)
    else TEGROUP_IMPL_BY_PLAIN(desc.activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
    return part;
}

/* A thread reads a step of every operand before it writes there, so grad_input may be one of them. The rows' addresses
 * are computed anew in each step: held across steps, as in the kernel above, they would spill registers. */
template <typename ACCESS, bool INTERLEAVED, bool GATED>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS, 4)
    tegroup_impl_activation_grad_kernel(const __grid_constant__ tegroup_activation_backward_desc desc) {
    typedef typename ACCESS::real real;
    typedef tegroup_impl_pairs<ACCESS, INTERLEAVED, (INTERLEAVED && ACCESS::lanes > 1)> pairs;
    const int count = pairs::count, lane = (int)threadIdx.x % 32;
    const tegroup_impl_units units(desc.snapshot, desc.grad_output.rows);
    const int64_t steps = desc.grad_output.cols / count;
    const real alpha = (real)desc.alpha, limit = (real)desc.limit;
    const bool gated = ACCESS::lanes == 1 ? (bool)tegroup_impl_gated(desc.activation) : GATED,
               half = ACCESS::lanes == 1 ? tegroup_impl_halves(desc.input, desc.grad_input)
                                               && tegroup_impl_halves(desc.grad_output, desc.grad_input)
                                         : ACCESS::lanes == 8,
               wants_sum = desc.grad_row_scale.dtype != TEGROUP_DTYPE_UNSET;
    for (int64_t unit = blockIdx.x; unit < units.count; unit += gridDim.x) {
        int64_t first;
        const int32_t rows = units.at(unit, &first);
        real sum[TEGROUP_IMPL_ROWS_UNIT] = {0, 0, 0, 0};
        if (rows == 0) continue;
        for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
            const int there = (int)tegroup_impl_min(32, steps - (c - lane));
#pragma unroll
            for (int from = 0; from < TEGROUP_IMPL_ROWS_UNIT; from += pairs::together) {
                pairs x[pairs::together];
                typename pairs::one dy[pairs::together];
                if (from >= rows) break;
#pragma unroll
                for (int r = 0; r < pairs::together; r++) {
                    const int64_t row = first + tegroup_impl_min(from + r, rows - 1);
                    x[r].load(desc.input, ACCESS::row(desc.input, row), c, steps, gated);
                    dy[r] = pairs::load_one(desc.grad_output, ACCESS::row(desc.grad_output, row), c);
                }
#pragma unroll
                for (int r = 0; r < pairs::together; r++) {
                    if (from + r >= rows) break;
                    const int64_t row = first + from + r;
                    const real scale = tegroup_impl_weight<real>(desc.row_scale, row, 0);
                    real out[2 * count];
                    real part = tegroup_impl_activation_grad_step<ACCESS, GATED>(desc, half, alpha, limit, scale, x[r],
                                                                                 dy[r], sum[from + r], out);
                    if (ACCESS::lanes == 1) sum[from + r] = part;
                    if (desc.grad_input.data) /* else row_scale's gradient alone is wanted */
                        pairs::store(desc.grad_input, ACCESS::row(desc.grad_input, row), c, steps, gated, out);
                    if (ACCESS::lanes == 1 || !wants_sum) continue;
                    if (gated) part = tegroup_impl_tree((float)part, TEGROUP_IMPL_ROW_SUM_COLS / count, there);
                    if (!gated || lane % (TEGROUP_IMPL_ROW_SUM_COLS / count) == 0) sum[from + r] += part;
                }
            }
        }
        if (wants_sum) {
            const real total = tegroup_impl_block_sums(sum);
            if ((int32_t)threadIdx.x < rows)
                tegroup_impl_set_weight(desc.grad_row_scale, first + threadIdx.x, 0, total);
        }
    }
}

static inline tegroup_status tegroup_impl_cuda_activation_backward(const tegroup_activation_backward_desc *desc,
                                                                   struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->input, &desc->grad_output, &desc->grad_input};
    const int64_t width = desc->grad_output.cols,
                  units = tegroup_impl_ceil_div(desc->grad_output.rows, TEGROUP_IMPL_ROWS_UNIT);
    tegroup_activation_backward_desc d = *desc;
    if (desc->grad_output.rows == 0 || (width == 0 && desc->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET))
        return TEGROUP_OK;
    d.alpha = tegroup_impl_alpha(desc->activation, desc->alpha);
    d.limit = tegroup_impl_limit(desc->activation, desc->limit);
    d.input = tegroup_impl_cuda_matrix(&desc->input);
    d.row_scale = tegroup_impl_cuda_matrix(&desc->row_scale);
    d.grad_output = tegroup_impl_cuda_matrix(&desc->grad_output);
    d.grad_input = tegroup_impl_cuda_matrix(&desc->grad_input);
    d.grad_row_scale = tegroup_impl_cuda_matrix(&desc->grad_row_scale);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows(desc->interleaved ? tegroup_impl_activation_grad_kernel<__VA_ARGS__, true, true>     \
                                  : tegroup_impl_gated(desc->activation)                                               \
                                      ? tegroup_impl_activation_grad_kernel<__VA_ARGS__, false, true>                  \
                                      : tegroup_impl_activation_grad_kernel<__VA_ARGS__, false, false>,                \
                                  &d, width, __VA_ARGS__::lanes, units, stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 3, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}
#endif /* TEGROUP_NO_BACKWARD */
