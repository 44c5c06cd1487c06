/* ---- Hopper GEMM: the epilogue ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "core/activation_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/activation_formulas.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "cuda/activation_epilogue.h"
#include "cuda/functor.h"
#include "cuda/call.h"
#include "cuda/hopper.h"
#include "cuda/sm90_tiles.h"

#if TEGROUP_IMPL_HOPPER
/* ---- C and bias ---- */

/* The terms beta * C + scale * bias for the sums of one thread. As wgmma lays sums out, a thread has two adjacent
 * columns of each eight columns (an "eight"), in two lines that are eight apart. */
template <typename SHAPE, typename FUNCTOR = tegroup_impl_as_is, bool FLIPS = SHAPE::FLIPS>
struct tegroup_impl_sm90_terms {
    static constexpr bool BIAS = SHAPE::ADDS_BIAS && tegroup_impl_adds_bias<FUNCTOR>::value;
    static constexpr int EIGHTS = SHAPE::COLS / 8;
    float alpha, beta;
    float by[SHAPE::PARTS][2];       /* scale of the bias for each of this thread's lines */
    float bias[(EIGHTS + 7) / 8][2]; /* Lane 8 q + t has columns 2 q and 2 q + 1 of eights t, t + 8, ... */

    /* The column of D that column `i` of the tile is. */
    static __device__ __forceinline__ int64_t column(const tegroup_impl_sm90_call &call,
                                                     const tegroup_impl_sm90_item &item, int i) {
        const int half = item.cols / 2;
        if (!SHAPE::ACTIVATES || call.epilogue.activation.interleaved) return item.j0 + i;
        return item.j0 / 2 + i % half + i / half * call.epilogue.activation.output.cols;
    }
    __device__ __forceinline__ tegroup_impl_sm90_terms(const tegroup_impl_sm90_call &call,
                                                       const tegroup_impl_sm90_item &item, int first_line) {
        const tegroup_gemm_desc &desc = call.call.desc;
        const int lane = (int)threadIdx.x & 31;
        alpha = item.alpha;
        beta = item.beta;
        if (!BIAS || !call.has_bias) return;
        const tegroup_impl_block place = tegroup_impl_locate(&desc.bias, NULL, item.group);
        const bool apart = SHAPE::ACTIVATES && SHAPE::OP == TEGROUP_OP_FORWARD && call.up.apart;
        const int64_t gates = call.epilogue.activation.output.cols;
        const char *ups = apart ? tegroup_impl_gpu_group(call.up.bias, item.group) : NULL;
#pragma unroll
        for (int e = 0; e < (EIGHTS + 7) / 8; e++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int64_t col = column(call, item, (e * 8 + lane % 8) * 8 + lane / 8 * 2 + i);
                const bool there = e * 8 + lane % 8 < EIGHTS && col < desc.d.shape.cols;
                const bool up = apart && col >= gates;
                bias[e][i] = there ? tegroup_impl_gpu_load(desc.bias.dtype, up ? ups : place.base,
                                                           up ? col - gates : place.first + col)
                                   : 0.0f;
            }
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int line = first_line + m * 64 + (int)threadIdx.x / 32 % 4 * 16 + half * 8 + lane / 4;
                by[m][half] = desc.row_scale_dtype == TEGROUP_DTYPE_UNSET || line >= item.lines
                                  ? 1.0f
                                  : tegroup_impl_gpu_load_scale(
                                      desc.row_scale_dtype, desc.row_scale,
                                      item.first_row[TEGROUP_IMPL_A] + item.i0 + line
                                          + (call.ragged[TEGROUP_IMPL_A] ? 0 : item.group * desc.a.shape.rows));
            }
    }
    __device__ __forceinline__ void add(float c, float *x) const { *x = tegroup_impl_gpu_fma(beta, c, *x); }
    /* x: two columns of the upper line, then two of the lower one. */
    __device__ __forceinline__ void add_bias(int m, int eight, float *x) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float b = __shfl_sync(0xffffffffu, bias[eight / 8][i], (int)(threadIdx.x & 3) * 8 + eight % 8);
            x[i] = tegroup_impl_gpu_fma(by[m][0], b, x[i]);
            x[2 + i] = tegroup_impl_gpu_fma(by[m][1], b, x[2 + i]);
        }
    }
};

/* Of a flipped tile, whose lines are columns of D. */
template <typename SHAPE, typename FUNCTOR> struct tegroup_impl_sm90_terms<SHAPE, FUNCTOR, true> {
    static constexpr bool BIAS = SHAPE::ADDS_BIAS && tegroup_impl_adds_bias<FUNCTOR>::value;
    const tegroup_gemm_desc &desc;
    float alpha, beta;
    float bias[SHAPE::PARTS][2]; /* of this thread's lines */
    int64_t row0;                /* of the tile, as row_scale counts */
    int32_t rows;

    __device__ __forceinline__ tegroup_impl_sm90_terms(const tegroup_impl_sm90_call &call,
                                                       const tegroup_impl_sm90_item &item, int first_line)
        : desc(call.call.desc), alpha(item.alpha), beta(item.beta), rows(item.rows) {
        if (!BIAS || !call.has_bias) return;
        const tegroup_impl_block place = tegroup_impl_locate(&desc.bias, NULL, item.group);
        row0 = item.first_row[TEGROUP_IMPL_A] + item.j0
               + (call.ragged[TEGROUP_IMPL_A] ? 0 : item.group * desc.a.shape.rows);
#pragma unroll
        for (int i = 0; i < 2 * SHAPE::PARTS; i++) {
            const int line =
                first_line + i / 2 * 64 + (int)threadIdx.x / 32 % 4 * 16 + i % 2 * 8 + (int)(threadIdx.x & 31) / 4;
            bias[i / 2][i % 2] = line < item.lines ? tegroup_impl_gpu_load(desc.bias.dtype, place.base,
                                                                           place.first + item.i0 + line)
                                                   : 0.0f;
        }
    }
    /* Never called: a flipped tile has no C. */
    __device__ __forceinline__ void add(float c, float *x) const { *x = tegroup_impl_gpu_fma(beta, c, *x); }
    /* x: two columns of the upper line, then two of the lower one. */
    __device__ __forceinline__ void add_bias(int m, int eight, float *x) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = eight * 8 + (int)(threadIdx.x & 3) * 2 + i;
            const float by = desc.row_scale_dtype == TEGROUP_DTYPE_UNSET || row >= rows
                                 ? 1.0f
                                 : tegroup_impl_gpu_load_scale(desc.row_scale_dtype, desc.row_scale, row0 + row);
            x[i] = tegroup_impl_gpu_fma(by, bias[m][0], x[i]);
            x[2 + i] = tegroup_impl_gpu_fma(by, bias[m][1], x[2 + i]);
        }
    }
};

/* Where the sums of one thread lie, which begin with its upper line and first column, for its functor; the built-in
 * store need not know. */
template <typename SHAPE, typename FUNCTOR> struct tegroup_impl_sm90_own {
    int32_t lines, cols; /* of the tile, from there on */
    tegroup_element first;

    __device__ __forceinline__ tegroup_impl_sm90_own(const tegroup_impl_sm90_call &call,
                                                     const tegroup_impl_sm90_item &item, int first_line) {
        const tegroup_tensor &d = call.call.desc.d;
        const int64_t *start = call.call.views[TEGROUP_IMPL_D].start;
        const int me = tegroup_impl_thread(), line = first_line + me / 32 % 4 * 16 + me % 32 / 4, col = me % 4 * 2;
        const int64_t all = SHAPE::FLIPS ? call.call.desc.a.shape.cols : d.shape.cols,
                      row0 = start ? start[item.group] : item.group * d.shape.rows;
        lines = item.lines - line;
        cols = (SHAPE::FITS ? item.rows : (int32_t)tegroup_impl_min(item.cols, all - item.j0)) - col;
        first.group = item.group;
        first.row = row0 + (SHAPE::FLIPS ? item.j0 + col : item.i0 + line);
        first.col = SHAPE::FLIPS ? item.i0 + line : item.j0 + col;
    }
    __device__ __forceinline__ tegroup_element at(int line, int col) const {
        tegroup_element element = first;
        element.row += SHAPE::FLIPS ? col : line;
        element.col += SHAPE::FLIPS ? line : col;
        return element;
    }
};
template <typename SHAPE> struct tegroup_impl_sm90_own<SHAPE, tegroup_impl_as_is> {
    __device__ __forceinline__ tegroup_impl_sm90_own(const tegroup_impl_sm90_call &, const tegroup_impl_sm90_item &,
                                                     int) {}
};

/* Copies a slab in which D's columns end, element by element, to the group's rows from i0 up to `lines` and its columns
 * from j0 on. It is out of line because, inlined into every store, it would be a third of the code. */
template <bool WIDE>
static __device__ __noinline__ void tegroup_impl_sm90_copy(const tegroup_impl_gpu_call *call, int32_t group,
                                                           uint32_t slab, int32_t i0, int32_t lines, int32_t j0) {
    typedef typename tegroup_impl_if<WIDE, float, uint16_t>::type element;
    const int each = 16 / (int)sizeof(element);
    const tegroup_impl_block d = tegroup_impl_locate(&call->desc.d, &call->views[TEGROUP_IMPL_D], group);
    element *to = (element *)d.base + d.first + i0 * d.ld + j0;
    const char *from = (const char *)__cvta_shared_to_generic(slab);
#pragma unroll 1
    for (int i = (int)threadIdx.x % 128; i < 64 * 8; i += 128) {
        const int row = i / 8, chunk = i % 8;
        if (i0 + row >= lines) break;
        const element *source = (const element *)(from + row * 128 + (chunk ^ (row & 7)) * 16);
        for (int e = 0; e < each && j0 + chunk * each + e < d.cols; e++) to[row * d.ld + chunk * each + e] = source[e];
    }
}

/* ---- activation ---- */

/* The offset of a 16-byte chunk in a piece, which has 64 rows of 64 bytes in TMA's 64-byte swizzle. */
static __device__ __forceinline__ uint32_t tegroup_impl_sm90_in_piece(int row, int chunk) {
    return (uint32_t)(row * 64 + (chunk ^ (row / 2 & 3)) * 16);
}

/* Activates sixteen lines of a set, from `line` on. A lane has two results of every second line, and handles four of
 * its lines at a time. scale: lane i has that of line i. */
template <bool BF16, tegroup_activation KIND, bool INTERLEAVED, int PIECE>
static __device__ __forceinline__ void tegroup_impl_sm90_activate_lines(const tegroup_impl_sm90_call &call,
                                                                        uint32_t set, int line, float scale) {
    const tegroup_activation_desc &f = call.epilogue.activation;
    const float alpha = (float)f.alpha, limit = (float)f.limit;
    const int lane = tegroup_impl_thread() % 32, word = lane % 16;
    /* The offset of the lane's word of a piece and, for interleaved pairs, of two words in the first two pieces. */
    const uint32_t one = set + tegroup_impl_sm90_in_piece(line + lane / 16, word / 4) + (uint32_t)(word % 4 * 4),
                   two = set + (uint32_t)(word / 8 * PIECE) + tegroup_impl_sm90_in_piece(line + lane / 16, word % 8 / 2)
                         + (uint32_t)(word % 2 * 8);
#pragma unroll 1
    for (int from = 0; from < 16; from += 8) {
        uint32_t first[4], second[4];
#pragma unroll
        for (int r = 0; r < 4; r++) { /* These rows are two apart, so the swizzle XORs their chunks with r. */
            const uint32_t down = (uint32_t)((from + 2 * r) * 64), turn = (uint32_t)(r * 16);
            if (!INTERLEAVED) {
                asm volatile("ld.shared.u32 %0, [%1];" : "=r"(first[r]) : "r"((one ^ turn) + down) : "memory");
                asm volatile("ld.shared.u32 %0, [%1];" : "=r"(second[r]) : "r"((one ^ turn) + down + PIECE) : "memory");
            } else
                asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                             : "=r"(first[r]), "=r"(second[r])
                             : "r"((two ^ turn) + down)
                             : "memory");
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const float by = __shfl_sync(0xffffffffu, scale, from + 2 * r + lane / 16),
                        low = tegroup_impl_low_half(first[r], BF16), high = tegroup_impl_high_half(first[r], BF16),
                        low2 = tegroup_impl_low_half(second[r], BF16), high2 = tegroup_impl_high_half(second[r], BF16);
            const float y0 = tegroup_impl_activation_f32(KIND, 1, alpha, limit, low, INTERLEAVED ? high : low2),
                        y1 = tegroup_impl_activation_f32(KIND, 1, alpha, limit, INTERLEAVED ? low2 : high, high2);
            asm volatile("st.shared.u32 [%0], %1;" ::"r"((one ^ (uint32_t)(r * 16))
                                                         + (uint32_t)((from + 2 * r) * 64 + 2 * PIECE)),
                         "r"(tegroup_impl_two_halves(__fmul_rn(by, y0), __fmul_rn(by, y1), BF16))
                         : "memory");
        }
    }
}

#if TEGROUP_IMPL_ACTIVATION_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
static __device__ __forceinline__ void tegroup_impl_sm90_load_chunk(uint32_t from, uint32_t (&word)[4]) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(from)
                 : "memory");
}
static __device__ __forceinline__ void tegroup_impl_sm90_store_chunk(uint32_t to, const uint32_t (&word)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3])
                 : "memory");
}

/* Differentiates sixteen lines of a set. Its third piece holds the gradient of the activation, which is replaced by
 * the activation itself; gates and ups are replaced by their gradients. A lane has eight columns of a line, and a warp
 * eight lines at a time. Only the first `cols` of the set's 32 columns exist; the others may give NaN, so sums leave
 * them out. Lane i has the scale of line i, and returns the line's sum of gradient times result, added up in the order
 * of tegroup_impl_activation_grad_kernel, where a thread has eight columns or, interleaved, four. */
template <bool BF16, tegroup_activation KIND, bool INTERLEAVED, int PIECE>
static __device__ __forceinline__ float tegroup_impl_sm90_differentiate_lines(const tegroup_impl_sm90_call &call,
                                                                              uint32_t set, int line, int32_t cols,
                                                                              float scale) {
    const float alpha = (float)call.epilogue.activation.alpha, limit = (float)call.epilogue.activation.limit;
    const int lane = tegroup_impl_thread() % 32, chunk = lane % 4, row = line + lane / 4;
    const uint32_t first = INTERLEAVED
                               ? set + (uint32_t)(chunk / 2 * PIECE) + tegroup_impl_sm90_in_piece(row, chunk % 2 * 2)
                               : set + tegroup_impl_sm90_in_piece(row, chunk),
                   second = INTERLEAVED ? first ^ 16 : first + PIECE,
                   activated = set + 2 * PIECE + tegroup_impl_sm90_in_piece(row, chunk);
    float sum = 0;
#pragma unroll 1
    for (int from = 0; from < 16; from += 8) {
        const uint32_t down = (uint32_t)(from * 64);
        const float by = __shfl_sync(0xffffffffu, scale, from + lane / 4);
        uint32_t x[2][4], y[4];
        tegroup_impl_sm90_load_chunk(first + down, x[0]);
        tegroup_impl_sm90_load_chunk(second + down, x[1]);
        tegroup_impl_sm90_load_chunk(activated + down, y);
        const float part = tegroup_impl_differentiate_eight<KIND, INTERLEAVED>(alpha, limit, BF16, by, x, y);
        tegroup_impl_sm90_store_chunk(first + down, x[0]);
        tegroup_impl_sm90_store_chunk(second + down, x[1]);
        tegroup_impl_sm90_store_chunk(activated + down, y);
        const float all = tegroup_impl_tree(chunk * 8 < cols ? part : 0.0f, 4, 32),
                    its = __shfl_sync(0xffffffffu, all, lane % 8 * 4);
        if (lane / 8 == from / 8) sum = its;
    }
    return sum;
}
#endif

template <bool BF16, int PIECE>
static __device__ __forceinline__ void tegroup_impl_sm90_activate(const tegroup_impl_sm90_call &call, uint32_t set,
                                                                  int line, float scale) {
#define TEGROUP_IMPL_CALL(kind)                                                                                        \
    if (call.epilogue.activation.interleaved)                                                                          \
        tegroup_impl_sm90_activate_lines<BF16, kind, true, PIECE>(call, set, line, scale);                             \
    else tegroup_impl_sm90_activate_lines<BF16, kind, false, PIECE>(call, set, line, scale);
    TEGROUP_IMPL_BY_GATED(call.epilogue.activation.activation, TEGROUP_IMPL_CALL)
#undef TEGROUP_IMPL_CALL
}

template <bool BF16, int PIECE>
static __device__ __forceinline__ float tegroup_impl_sm90_differentiate(const tegroup_impl_sm90_call &call,
                                                                        uint32_t set, int line, int32_t cols,
                                                                        float scale) {
#if TEGROUP_IMPL_ACTIVATION_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
#define TEGROUP_IMPL_CALL(kind)                                                                                        \
    if (call.epilogue.activation.interleaved)                                                                          \
        return tegroup_impl_sm90_differentiate_lines<BF16, kind, true, PIECE>(call, set, line, cols, scale);           \
    return tegroup_impl_sm90_differentiate_lines<BF16, kind, false, PIECE>(call, set, line, cols, scale);
    TEGROUP_IMPL_BY_GATED(call.epilogue.activation.activation, TEGROUP_IMPL_CALL)
#undef TEGROUP_IMPL_CALL
#else
    return 0;
#endif
}
#endif
