/* ---- Router: a warp's batch of tokens ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "cpu/vectors.h"
#include "cpu/real.h"
#include "cuda/rows.h"

/* A warp takes a batch of tokens at a time. LANES lanes compute a token's softmax in registers, TURNS tokens one after
 * another; quad q of a token's experts is in the registers of lane q % LANES. To choose, the lanes share out the batch:
 * each has one token, or an equal part of one token's experts. Probabilities lie in shared memory, beside them the
 * maximum of each quad; a lane has the maximum of every four quads in registers. The best expert is found on the way
 * down this tree, and taking it out changes only that path. With four warps a block and three blocks a multiprocessor a
 * lane has 168 registers. With fewer some are spilled, and a read from local memory waits for all loads in flight. */
enum { TEGROUP_IMPL_ROUTER_WARPS = 4, TEGROUP_IMPL_ROUTER_HISTOGRAM = 1024 };

template <typename REAL> struct alignas(16) tegroup_impl_quad { REAL x[4]; };

static __device__ __forceinline__ float tegroup_impl_larger(float a, float b) { return fmaxf(a, b); }
static __device__ __forceinline__ double tegroup_impl_larger(double a, double b) { return fmax(a, b); }
static __device__ __forceinline__ float tegroup_impl_smaller(float a, float b) { return fminf(a, b); }
static __device__ __forceinline__ double tegroup_impl_smaller(double a, double b) { return fmin(a, b); }

template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_quad_max(const tegroup_impl_quad<REAL> &v) {
    return tegroup_impl_larger(tegroup_impl_larger(v.x[0], v.x[1]), tegroup_impl_larger(v.x[2], v.x[3]));
}

/* The largest value that is left after the largest, or one of its equals, is taken out. */
template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_quad_second(const tegroup_impl_quad<REAL> &v) {
    return tegroup_impl_larger(
        tegroup_impl_smaller(tegroup_impl_larger(v.x[0], v.x[1]), tegroup_impl_larger(v.x[2], v.x[3])),
        tegroup_impl_larger(tegroup_impl_smaller(v.x[0], v.x[1]), tegroup_impl_smaller(v.x[2], v.x[3])));
}

/* Reads a whole quad from shared memory in one access; reading its elements takes several. */
static __device__ __forceinline__ tegroup_impl_quad<float> tegroup_impl_quad_at(const float *from) {
    const float4 x = *(const float4 *)(const void *)from;
    const tegroup_impl_quad<float> v = {{x.x, x.y, x.z, x.w}};
    return v;
}
static __device__ __forceinline__ tegroup_impl_quad<double> tegroup_impl_quad_at(const double *from) {
    return *(const tegroup_impl_quad<double> *)(const void *)from;
}

/* The first element that equals the largest. */
template <typename REAL>
static __device__ __forceinline__ int32_t tegroup_impl_quad_find(const tegroup_impl_quad<REAL> &v, REAL largest) {
    int32_t at = 3;
    if (v.x[2] == largest) at = 2;
    if (v.x[1] == largest) at = 1;
    if (v.x[0] == largest) at = 0;
    return at;
}

/* All bits that are set in any of the floats. */
static __device__ __forceinline__ uint32_t tegroup_impl_quad_bits(const tegroup_impl_quad<float> &v) {
    return __float_as_uint(v.x[0]) | __float_as_uint(v.x[1]) | __float_as_uint(v.x[2]) | __float_as_uint(v.x[3]);
}
static __device__ __forceinline__ uint32_t tegroup_impl_quad_bits(const tegroup_impl_quad<double> &) { return 1; }

template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_quad_sum(const tegroup_impl_quad<REAL> &v) {
    return (v.x[0] + v.x[1]) + (v.x[2] + v.x[3]);
}

template <typename REAL, int LANES> static __device__ __forceinline__ REAL tegroup_impl_lanes_max(REAL x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x = tegroup_impl_larger(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

template <typename REAL, int LANES> static __device__ __forceinline__ REAL tegroup_impl_lanes_sum(REAL x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* e^x for the softmax, for x <= 0; its relative error is at most (1.5 |x| + 9) 2^-24. The hardware's power of two
 * flushes results below 2^-126 to zero, so it computes the square root of the result. */
static __device__ __forceinline__ float tegroup_impl_softmax_exp(float x) {
    float root;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(__fmul_rn(x, 0.7213475204444817f)));
    return __fmul_rn(root, root);
}
static __device__ __noinline__ double tegroup_impl_softmax_exp(double x) { return tegroup_impl_exp_f64(x); } /* long */

/* x / y without a branch. It is rounded as a division is if the result is finite and neither y, its reciprocal nor the
 * result is denormal. A result that is not finite becomes NaN. */
static __device__ __forceinline__ float tegroup_impl_quotient(float x, float y) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
    const float q = __fmul_rn(x, r);
    return __fmaf_rn(__fmaf_rn(-q, y, x), r, q);
}
static __device__ __forceinline__ double tegroup_impl_quotient(double x, double y) { return x / y; }

/* As tegroup_impl_choice_grad_f32, with quotients without a branch. */
static __device__ __forceinline__ float tegroup_impl_choice_grad(float g, float dot, float chosen, int32_t normalize) {
    return normalize ? tegroup_impl_quotient(g - tegroup_impl_quotient(dot, chosen), chosen) : g;
}
static __device__ __forceinline__ double tegroup_impl_choice_grad(double g, double dot, double chosen,
                                                                  int32_t normalize) {
    return tegroup_impl_choice_grad_f64(g, dot, chosen, normalize);
}

/* How a matrix's rows are read: element by element, or four floats or halves at a time. */
typedef enum tegroup_impl_router_access {
    TEGROUP_IMPL_ROUTER_ELEMENTS,
    TEGROUP_IMPL_ROUTER_FLOATS,
    TEGROUP_IMPL_ROUTER_HALVES
} tegroup_impl_router_access;

/* What both router kernels need besides the descriptor. */
typedef struct tegroup_impl_router_way {
    double per_count;               /* backward: see tegroup_impl_router_per_count */
    int64_t batches, each, longer;  /* number of batches; tokens in each; how many have one more */
    tegroup_impl_router_access in;  /* forward: how rows are read */
    int32_t in_piece, in_whole;     /* backward: bytes of a piece of a row; whether a batch's rows are one copy */
    int32_t out_piece, out_whole;   /* the same for rows that are written */
    int32_t out_element;            /* bytes of an element of these */
    int32_t histogram;              /* forward: assignments are counted a block at a time */
    int32_t block_bytes;            /* bytes that a block's warps share: the histogram, or balance gradients */
    int32_t row_bytes, token_bytes; /* bytes of a token's rows; of what else it has, behind all rows */
    uint32_t k, per_k;              /* choices of a token; 2^16 / k, rounded up */
    int32_t by_fours;               /* backward: choices are copied four at a time */
} tegroup_impl_router_way;

static __device__ __forceinline__ char *tegroup_impl_router_memory() {
    extern __shared__ uint4 tegroup_impl_router_shared[];
    return (char *)tegroup_impl_router_shared;
}

/* Starts a copy into shared memory that occupies no register; before SM80 it copies at once. */
template <typename T> static __device__ __forceinline__ void tegroup_impl_copy_soon(T *to, const T *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from),
                 "n"(sizeof(T))
                 : "memory");
#else
    *to = *from;
#endif
}
static __device__ __forceinline__ void tegroup_impl_copies_done() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* ---- rows between global and shared memory, a batch's at a time ---- */

template <typename T>
static __device__ __forceinline__ void tegroup_impl_router_copy(char *to, const char *from, int32_t bytes) {
    for (int32_t at = (int32_t)threadIdx.x % 32 * (int32_t)sizeof(T); at < bytes; at += 32 * (int32_t)sizeof(T))
        *(T *)(void *)(to + at) = *(const T *)(const void *)(from + at);
}
template <typename T>
static __device__ __forceinline__ void tegroup_impl_router_copy_soon(char *to, const char *from, int32_t bytes) {
    for (int32_t at = (int32_t)threadIdx.x % 32 * (int32_t)sizeof(T); at < bytes; at += 32 * (int32_t)sizeof(T))
        tegroup_impl_copy_soon((T *)(void *)(to + at), (const T *)(const void *)(from + at));
}

/* Starts copying a batch's rows of floats or doubles into shared memory, `pitch` bytes apart. On SM90 the bulk copy
 * engine copies them all at once if they are contiguous. */
static __device__ __forceinline__ void tegroup_impl_router_fetch(const tegroup_matrix &m,
                                                                 const tegroup_impl_router_way &way, char *rows,
                                                                 int32_t pitch, uint64_t *barrier, int64_t first,
                                                                 int32_t live) {
    const int64_t element = tegroup_impl_bits(m.dtype) / 8;
    const int32_t bytes = (int32_t)(m.cols * element);
    const char *from = (const char *)m.data + first * m.ld * element;
#if __CUDA_ARCH__ >= 900
    if (way.in_whole) {
        if (threadIdx.x % 32 == 0 && live > 0)
            asm volatile(
                "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%3], %2;\n"
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    (uint32_t)__cvta_generic_to_shared(rows)),
                "l"(from), "r"(live * bytes), "r"((uint32_t)__cvta_generic_to_shared(barrier))
                : "memory");
        return;
    }
#endif
    for (int32_t place = 0; place < live; place++, from += m.ld * element, rows += pitch)
        if (way.in_piece == 16) tegroup_impl_router_copy_soon<uint4>(rows, from, bytes);
        else if (way.in_piece == 8) tegroup_impl_router_copy_soon<uint2>(rows, from, bytes);
        else tegroup_impl_router_copy_soon<uint32_t>(rows, from, bytes);
}
/* Waits until those copies have arrived, and all others that the warp's lanes have started. */
static __device__ __forceinline__ void tegroup_impl_router_fetched(const tegroup_impl_router_way &way,
                                                                   uint64_t *barrier, uint32_t parity) {
    tegroup_impl_copies_done();
#if __CUDA_ARCH__ >= 900
    if (way.in_whole)
        asm volatile("{.reg .pred over;\n"
                     "again: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                     "@!over bra again;}" ::"r"((uint32_t)__cvta_generic_to_shared(barrier)),
                     "r"(parity)
                     : "memory");
#endif
    __syncwarp();
}

/* Copies a batch's rows, `pitch` bytes apart, out of shared memory, which must not change until the copy is done. On
 * SM90 the bulk copy engine takes contiguous rows all at once: ordinary stores share a queue with the lanes' reads of
 * shared memory, which would wait with them when memory is slow to take the stores. */
static __device__ __forceinline__ void tegroup_impl_router_store(const tegroup_matrix &m,
                                                                 const tegroup_impl_router_way &way, const char *rows,
                                                                 int32_t pitch, int64_t first, int32_t live) {
    const int32_t bytes = (int32_t)m.cols * way.out_element;
    char *to = (char *)m.data + first * m.ld * way.out_element;
#if __CUDA_ARCH__ >= 900
    if (way.out_whole) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                         "cp.async.bulk.commit_group;" ::"l"(to),
                         "r"((uint32_t)__cvta_generic_to_shared(rows)), "r"(live * bytes)
                         : "memory");
        return;
    }
#endif
    __syncwarp();
    for (int32_t place = 0; place < live; place++, to += m.ld * way.out_element, rows += pitch)
        if (way.out_piece == 16) tegroup_impl_router_copy<uint4>(to, rows, bytes);
        else if (way.out_piece == 8) tegroup_impl_router_copy<uint2>(to, rows, bytes);
        else if (way.out_piece == 4) tegroup_impl_router_copy<uint32_t>(to, rows, bytes);
        else tegroup_impl_router_copy<uint16_t>(to, rows, bytes);
}
static __device__ __forceinline__ void tegroup_impl_router_store_done() {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
    __syncwarp();
}

/* ---- a warp's batch ---- */

/* Makes the compiler compute a pointer here, once. Otherwise it computes the pointer at each use, in 64-bit
 * arithmetic. */
template <typename T> static __device__ __forceinline__ T *tegroup_impl_router_fixed(T *p) {
    asm volatile("" : "+l"(p));
    __builtin_assume(__isGlobal(p));
    return p;
}

/* A warp's batch of tokens, and a lane's part of it. Neighbouring warps have neighbouring batches, and batches differ
 * in length by at most one token, so memory is read in order and all warps have the same work. What a token has besides
 * its row has an odd number of 16-byte pieces, so that lanes with a token each do not all hit the same bank. */
template <typename REAL, int LANES, int QUADS, int TURNS> struct tegroup_impl_router_batch {
    typedef tegroup_impl_quad<REAL> quad;
    enum { tokens = 32 / LANES * TURNS };

    int64_t index, first; /* number of the batch; of its first token */
    int32_t live;         /* number of its tokens */
    quad v[TURNS][QUADS];

    __device__ __forceinline__ explicit tegroup_impl_router_batch(const tegroup_impl_router_way &way)
        : index((int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) {
        find(way);
    }
    /* Moves on to the warp's next batch; behind the last one all are empty. */
    __device__ __forceinline__ void advance(const tegroup_impl_router_way &way) {
        index += (int64_t)gridDim.x * (blockDim.x / 32);
        find(way);
    }
    __device__ __forceinline__ void find(const tegroup_impl_router_way &way) {
        first = index * way.each + tegroup_impl_min(index, way.longer);
        live = index < way.batches ? (int32_t)way.each + (index < way.longer) : 0;
    }
    static __device__ __forceinline__ int32_t part() { return (int32_t)threadIdx.x % LANES; }
    static __device__ __forceinline__ int32_t quad_of(int j) { return j * LANES + part(); }
    static __device__ __forceinline__ int32_t place(int turn) {
        return turn * (32 / LANES) + (int32_t)threadIdx.x % 32 / LANES;
    }
    /* Where the row of the batch's token number `at` begins. */
    template <typename T> __device__ __forceinline__ T *row_of(const tegroup_matrix &m, int32_t at) const {
        return (T *)m.data + first * m.ld + (uint32_t)at * m.ld;
    }
    /* The lane's j-th quad; the row's last quad in place of one that the row does not have. */
    static __device__ __forceinline__ int32_t quad_within(int j, int64_t cols) {
        return min(quad_of(j), (int32_t)(((uint32_t)cols + 3) / 4) - 1);
    }

    /* Starts the loads of the batch. Places behind the last token repeat it. Halves stay halves, in half of a quad.
     * Rows that are read element by element are loaded by settle(). */
    __device__ __forceinline__ void load(const tegroup_matrix &m, tegroup_impl_router_access access) {
        if (live <= 0) return;
        const int32_t end = live - 1;
        if (access == TEGROUP_IMPL_ROUTER_FLOATS) {
            const float *start = tegroup_impl_router_fixed(row_of<const float>(m, 0));
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++) {
                const float4 *row = (const float4 *)(start + (uint32_t)min(place(turn), end) * m.ld);
#pragma unroll
                for (int j = 0; j < QUADS; j++) {
                    const float4 x = row[quad_within(j, m.cols)];
                    v[turn][j].x[0] = (REAL)x.x;
                    v[turn][j].x[1] = (REAL)x.y;
                    v[turn][j].x[2] = (REAL)x.z;
                    v[turn][j].x[3] = (REAL)x.w;
                }
            }
        } else if (access == TEGROUP_IMPL_ROUTER_HALVES) {
            const uint16_t *start = tegroup_impl_router_fixed(row_of<const uint16_t>(m, 0));
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++) {
                const uint2 *row = (const uint2 *)(start + (uint32_t)min(place(turn), end) * m.ld);
#pragma unroll
                for (int j = 0; j < QUADS; j++) {
                    const uint2 x = row[quad_within(j, m.cols)];
                    v[turn][j].x[0] = (REAL)__uint_as_float(x.x);
                    v[turn][j].x[1] = (REAL)__uint_as_float(x.y);
                }
            }
        }
    }

    /* Loads the rows that load() left out, by way of the batch's rows in shared memory. Elements behind a row's end in
     * its last quad are set to `rest`. */
    __device__ __forceinline__ void settle(const tegroup_matrix &m, const tegroup_impl_router_way &way, char *rows,
                                           REAL rest) {
        if (way.in != TEGROUP_IMPL_ROUTER_ELEMENTS) return;
        const int32_t bytes = tegroup_impl_bits(m.dtype) / 8, cols = (int32_t)m.cols;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const char *row = (const char *)m.data + (first + min(place(turn), live - 1)) * m.ld * bytes;
            REAL *to = (REAL *)(rows + place(turn) * way.row_bytes);
#pragma unroll 1
            for (int32_t e = part(); e < (cols + 3) / 4 * 4; e += LANES)
                to[e] = e < cols ? tegroup_impl_load_as(m.dtype, row, e, rest) : rest;
            __syncwarp();
#pragma unroll
            for (int j = 0; j < QUADS; j++) v[turn][j] = ((const quad *)to)[quad_within(j, cols)];
            __syncwarp(); /* other lanes read the last quad, too */
        }
    }

    /* Reads rows of numbers from shared memory. Places behind the last token repeat it. The row's last quad, filled up
     * with zeros, stands in for quads that the row does not have. */
    __device__ __forceinline__ void read(const char *rows, int32_t pitch, int32_t cols) {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
            for (int j = 0; j < QUADS; j++)
                v[turn][j] = tegroup_impl_quad_at((const REAL *)(rows + min(place(turn), live - 1) * pitch)
                                                  + 4 * quad_within(j, cols));
        if (cols % 4 != 0)
#pragma unroll
            for (int j = 0; j < QUADS; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (4 * quad_within(j, cols) + i >= cols)
#pragma unroll
                        for (int turn = 0; turn < TURNS; turn++) v[turn][j].x[i] = 0;
    }

    /* Writes the numbers to shared memory as rows of the matrix. */
    __device__ __forceinline__ void put(const tegroup_matrix &m, char *rows, int32_t pitch) const {
        if (m.dtype == TEGROUP_DTYPE_F32) {
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
                for (int j = 0; j < QUADS; j++)
                    if (4 * quad_of(j) < m.cols)
                        ((float4 *)(rows + place(turn) * pitch))[quad_of(j)] =
                            make_float4((float)v[turn][j].x[0], (float)v[turn][j].x[1], (float)v[turn][j].x[2],
                                        (float)v[turn][j].x[3]);
        } else if (m.dtype != TEGROUP_DTYPE_F64 && sizeof(REAL) == 4) {
            const bool bf16 = m.dtype == TEGROUP_DTYPE_BF16;
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
                for (int j = 0; j < QUADS; j++)
                    if (4 * quad_of(j) < m.cols)
                        ((uint2 *)(rows + place(turn) * pitch))[quad_of(j)] =
                            make_uint2(tegroup_impl_two_halves((float)v[turn][j].x[0], (float)v[turn][j].x[1], bf16),
                                       tegroup_impl_two_halves((float)v[turn][j].x[2], (float)v[turn][j].x[3], bf16));
        } else { /* doubles become halves directly, so as not to be rounded twice */
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
                for (int j = 0; j < QUADS; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (4 * quad_of(j) + i < m.cols)
                            tegroup_impl_store_as(m.dtype, rows + place(turn) * pitch, 4 * quad_of(j) + i,
                                                  v[turn][j].x[i]);
        }
    }

    /* Whether every number of the warp's is a half's, of at most 11 significant bits: a float that was a half has its
     * last 13 bits clear. Doubles never count, as they may have been rounded. */
    __device__ __forceinline__ bool halves(tegroup_dtype dtype) const {
        if (dtype != TEGROUP_DTYPE_F32) return dtype != TEGROUP_DTYPE_F64;
        uint32_t bits = 0;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
            for (int j = 0; j < QUADS; j++) bits |= tegroup_impl_quad_bits(v[turn][j]);
        return !__any_sync(0xffffffffu, bits & 0x1fff);
    }

    /* Converts halves to numbers. */
    __device__ __forceinline__ void widen(bool bf16) {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                const uint32_t low = __float_as_uint((float)v[turn][j].x[0]),
                               high = __float_as_uint((float)v[turn][j].x[1]);
                v[turn][j].x[0] = (REAL)tegroup_impl_low_half(low, bf16);
                v[turn][j].x[1] = (REAL)tegroup_impl_high_half(low, bf16);
                v[turn][j].x[2] = (REAL)tegroup_impl_low_half(high, bf16);
                v[turn][j].x[3] = (REAL)tegroup_impl_high_half(high, bf16);
            }
    }
};

/* The slots of a warp's batch in the order in which its lanes take them, UNIT in a row each: the token's place in the
 * batch, and the choice. */
template <int UNIT> struct tegroup_impl_router_slots {
    uint32_t at, place, choice;

    __device__ __forceinline__ explicit tegroup_impl_router_slots(const tegroup_impl_router_way &way)
        : at(threadIdx.x % 32 * UNIT) {
        find(way);
    }
    __device__ __forceinline__ void advance(const tegroup_impl_router_way &way) {
        at += 32 * UNIT;
        find(way);
    }
    __device__ __forceinline__ void find(const tegroup_impl_router_way &way) {
        place = at * way.per_k >> 16; /* exact while at * (k * per_k - 2^16) < 2^16 */
        choice = at - place * way.k;
    }
};
