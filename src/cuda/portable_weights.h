/* ---- Portable GEMM: weights that are decoded in registers ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/build.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/problem.h"
#include "core/quantised.h"
#include "cuda/decoded.h"
#include "cuda/functor.h"
#include "cuda/call.h"
#include "cuda/codes.h"
#include "cuda/portable_tiles.h"
#include "cuda/portable_store.h"
#include "cuda/portable.h"

/* Forward products of few rows a group, and dgrads by the transposed copy of the weights: what they take is reading
 * weights. A ring of stages brings their codes, of E4M3 or E2M1, to shared memory as they are, with scales of 8 bits.
 * The product is multiplied transposed, as weights times rows: a thread then has the codes of two lines of weights in
 * the registers that mma.sync takes, where it decodes them, and a tile may have as few as 8 rows. Sums are those of the
 * BF16 product of the decoded numbers, in its order. Scales of F32 multiply sums (cuda/portable_promoted.h). */

/* Where weights are. Of lists, every group has its own buffers. */
typedef struct tegroup_impl_portable_held {
    const char *codes;
    const uint8_t *scales;
    const void *const *code_lists, *const *scale_lists;
    int64_t group_bytes, line_bytes;              /* of codes */
    int64_t scale_group_bytes, scale_lines_bytes; /* the latter of 128 lines */
    float alpha;                                  /* where the descriptor has none */
} tegroup_impl_portable_held;

/* BITS: of a code. E4M3: scales are, one for 16 of k (NVFP4); else they are E8M0, one for 32; or of F32, by FACTORS. */
template <int BITS, bool E4M3, typename FACTORS = tegroup_impl_portable_no_factors>
struct tegroup_impl_portable_weights_block {
    static constexpr bool PROMOTE = FACTORS::PROMOTE;
    static constexpr int TILE_M = PROMOTE ? 32 : 64; /* two sets of sums have room for half as many rows */
    static constexpr int TILE_N = 128, TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, THREADS = 128, STAGES = 4;
    static constexpr int MI = 2, NI = TILE_M / 8; /* a warp has 32 lines of weights, and all rows */
    static constexpr int LINE = TILE_K * BITS / 8, CHUNKS_A_LINE = LINE / 16, CODES_BYTES = TILE_N * LINE;
    static constexpr int ROWS_BYTES = TILE_M * TILE_K * 2, PADDED = TILE_N + 8;
    static constexpr int SCALES_BYTES = PROMOTE ? 0 : 512; /* of 128 lines, 4 of each */
    static constexpr int STAGE_BYTES = ROWS_BYTES + CODES_BYTES + SCALES_BYTES,
                         SHARED_BYTES = STAGES * STAGE_BYTES + 128;
    static_assert(TILE_M * PADDED * 4 <= STAGES * STAGE_BYTES, "sums are put where the ring was");

    uint32_t ring;
    tegroup_impl_loader<TILE_M, true, THREADS> load_rows;
    const char *codes, *scales; /* of the tile's lines */
    int64_t line_bytes;
    bool aligned;
    float sum[MI][NI][4];
    FACTORS factors;
    float total[MI][PROMOTE ? NI : 1][4]; /* of sums over parts of k */

    __device__ __forceinline__ explicit tegroup_impl_portable_weights_block(const void *memory)
        : ring(tegroup_impl_shared(memory)) {}

    static __device__ __forceinline__ int me() { return (int)threadIdx.x; }

    /* ---- loading ---- */

    __device__ __forceinline__ void open(const tegroup_impl_gpu_tile &tile, const tegroup_impl_portable_held &held) {
        const int32_t g = tile.group;
        const char *const first =
            held.code_lists ? (const char *)held.code_lists[g] : held.codes + g * held.group_bytes;
        const char *const scale = held.scale_lists ? (const char *)held.scale_lists[g]
                                                   : (const char *)held.scales + g * held.scale_group_bytes;
        line_bytes = held.line_bytes;
        codes = first + tile.col * line_bytes;
        scales = scale + tile.col / TILE_N * held.scale_lines_bytes;
        aligned = (((uintptr_t)codes | (uintptr_t)scales | (uintptr_t)line_bytes) & 15) == 0;
        load_rows.open(tile.a, tile.a_row, tile.m);
    }
    __device__ __forceinline__ void open(const tegroup_impl_gpu_tile &tile, const tegroup_impl_gpu_codes &weights) {
        line_bytes = weights.line_stride;
        codes = weights.data + weights.at;
        scales = NULL;
        aligned = weights.aligned;
        load_rows.open(tile.a, tile.a_row, tile.m);
    }
    /* Loads step s, if it exists. Lines that do not exist are left as they are: so are their results. */
    __device__ __forceinline__ void load(const tegroup_impl_gpu_tile &tile, int64_t s) {
        const uint32_t stage = ring + (uint32_t)(s % STAGES) * STAGE_BYTES, to = stage + ROWS_BYTES;
        if (s * TILE_K < tile.k) {
            load_rows.template load<false>(stage + load_rows.place(), tile.a_row, TILE_K);
            load_rows.advance(tile.a_row);
#pragma unroll
            for (int i = 0; i < CHUNKS_A_LINE; i++) {
                const int chunk = me() + i * THREADS, line = chunk / CHUNKS_A_LINE;
                copy(line < tile.n, to + (uint32_t)(chunk * 16),
                     codes + line * line_bytes + s * LINE + chunk % CHUNKS_A_LINE * 16);
            }
            if (!PROMOTE)
                copy(me() < SCALES_BYTES / 16, to + CODES_BYTES + (uint32_t)(me() * 16),
                     scales + (E4M3 ? s : s / 2) * SCALES_BYTES + me() * 16);
        }
        tegroup_impl_cp_commit(); /* even an empty group, so that the count of pending groups stays right */
    }
    /* 16 bytes, if they exist; byte by byte where the tensor is not aligned. */
    __device__ __forceinline__ void copy(bool there, uint32_t to, const char *from) const {
        if (aligned) tegroup_impl_cp_async_if<16>(there, to, from);
        else if (there)
#pragma unroll 1
            for (int i = 0; i < 16; i++)
                asm volatile("st.shared.u8 [%0], %1;" ::"r"(to + (uint32_t)i), "r"((uint32_t)(uint8_t)from[i])
                             : "memory");
    }

    /* ---- decoding ---- */

    static __device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b) {
        return tegroup_impl_gpu_mul2(a, b, true);
    }
    /* The codes of a half, NaN of E4M3 as 480. */
    static __device__ __forceinline__ uint32_t of_e4m3(uint32_t two) {
        return mul2(tegroup_impl_gpu_two_of_e4m3(two), tegroup_impl_gpu_decoding_of(TEGROUP_DTYPE_F8E4M3, true).power);
    }
    static __device__ __forceinline__ uint32_t with_nans(uint32_t value, uint32_t nans) {
        return value | (nans - (nans >> 15));
    }
    static __device__ __forceinline__ uint32_t of_e2m1(uint32_t byte) {
        return mul2(tegroup_impl_gpu_two_of_e2m1(byte), tegroup_impl_gpu_decoding_of(TEGROUP_DTYPE_F4E2M1, true).power);
    }
    /* The codes of a line that this thread multiplies, of one half of a step: two for each half of both sixteens. from:
     * the line's. Returns what is not 0 if one is NaN, which NANS makes of it. */
    template <bool NANS>
    static __device__ __forceinline__ uint32_t decode(uint32_t from, int half_step, uint32_t (&values)[2][2]) {
        const uint32_t quarter = threadIdx.x % 4;
        uint32_t any = 0;
        if (BITS == 4) {
            const uint4 chunk = tegroup_impl_load_chunk(from + (uint32_t)(half_step * 16));
            const uint32_t pick = 0x1111u * quarter;
            values[0][0] = of_e2m1(__byte_perm(chunk.x, 0, pick));
            values[0][1] = of_e2m1(__byte_perm(chunk.y, 0, pick));
            values[1][0] = of_e2m1(__byte_perm(chunk.z, 0, pick));
            values[1][1] = of_e2m1(__byte_perm(chunk.w, 0, pick));
        } else {
            const uint32_t pick = 0x1100u + 0x2222u * quarter; /* bytes 2q, 2q, 2q + 1, 2q + 1 of eight */
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint4 chunk = tegroup_impl_load_chunk(from + (uint32_t)(half_step * 32 + i * 16));
                const uint32_t two[2] = {__byte_perm(chunk.x, chunk.y, pick), __byte_perm(chunk.z, chunk.w, pick)};
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    any |= tegroup_impl_gpu_nans_of_e4m3(two[j]);
                    values[i][j] =
                        NANS ? with_nans(of_e4m3(two[j]), tegroup_impl_gpu_nans_of_e4m3(two[j])) : of_e4m3(two[j]);
                }
            }
        }
        return any;
    }
    /* The scales of both sixteens, twice each. four: those of a line that lie together; first: which is the first. */
    static __device__ __forceinline__ void decode_scales(uint32_t four, uint32_t first, uint32_t (&by)[2]) {
        if (E4M3) {
            const uint32_t codes = __byte_perm(four, 0, 0x1100u + 0x1111u * first),
                           two = with_nans(of_e4m3(codes), tegroup_impl_gpu_nans_of_e4m3(codes));
            by[0] = __byte_perm(two, 0, 0x1010);
            by[1] = __byte_perm(two, 0, 0x3232);
        } else {
            const uint32_t half = tegroup_impl_gpu_half_of_scale(true, four >> 8 * first & 0xffu);
            by[0] = by[1] = half | half << 16;
        }
    }

    /* A thread's first line of weights; its others are 8 apart. */
    static __device__ __forceinline__ uint32_t first_line() { return threadIdx.x / 32 * 32 + threadIdx.x % 32 / 4; }

    /* Decodes what this thread multiplies of a half of step s. scale: the four of each of its lines. */
    template <bool NANS>
    static __device__ __forceinline__ bool hold(uint32_t stage, int64_t s, int half, const uint32_t (&scale)[2 * MI],
                                                uint32_t (&held)[2][MI][4]) {
        uint32_t any = 0;
#pragma unroll
        for (int i = 0; i < MI * 2; i++) {
            uint32_t values[2][2], by[2];
            any |= decode<NANS>(stage + ROWS_BYTES + (first_line() + (uint32_t)i * 8) * LINE, half, values);
            if (!PROMOTE)
                decode_scales(scale[i], E4M3 ? (uint32_t)half * 2 : (uint32_t)(s % 2) * 2 + (uint32_t)half, by);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t two = values[j / 2][j % 2];
                held[j / 2][i / 2][i % 2 + j % 2 * 2] = PROMOTE ? two : mul2(two, by[j / 2]);
            }
        }
        return any != 0;
    }

    /* ---- products ---- */

    __device__ __forceinline__ void step(const tegroup_impl_gpu_tile &tile, int64_t s) {
        const uint32_t stage = ring + (uint32_t)(s % STAGES) * STAGE_BYTES, matrix = threadIdx.x % 32 / 8,
                       r = threadIdx.x % 8,
                       rows = stage + tegroup_impl_fragments<true>(0, (int)matrix >> 1, (int)matrix & 1, (int)r);
        uint32_t scale[2 * MI];
        /* Scales are swizzled: line l has its four at 16 * (l % 32) + 4 * (l / 32). */
#pragma unroll
        for (int i = 0; i < MI * 2; i++) {
            const uint32_t l = first_line() + (uint32_t)i * 8;
            scale[i] =
                PROMOTE ? 0u : tegroup_impl_load_word(stage + ROWS_BYTES + CODES_BYTES + l % 32 * 16 + l / 32 * 4);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t held[2][MI][4]; /* of both sixteens */
            if (__any_sync(0xffffffffu, hold<false>(stage, s, half, scale, held)))
                (void)hold<true>(stage, s, half, scale, held);
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int pair = 0; pair < NI / 2; pair++) {
                    uint32_t x[4];
                    if (pair * 16 >= tile.m) break;
                    tegroup_impl_ldmatrix<false>(x, tegroup_impl_fragment<true>(rows, 0, half * 2 + j, pair));
#pragma unroll
                    for (int i = 0; i < MI; i++) {
                        tegroup_impl_mma<true>(sum[i][pair * 2], held[j][i], x[0], x[1]);
                        tegroup_impl_mma<true>(sum[i][pair * 2 + 1], held[j][i], x[2], x[3]);
                    }
                }
        }
    }
    /* Adds the sums over a part of k, times their factors, and begins the next. */
    __device__ __forceinline__ void promote(int32_t rows) {
        float lines[2 * MI];
#pragma unroll
        for (int i = 0; i < 2 * MI; i++) lines[i] = factors.column((int)first_line() + i * 8);
#pragma unroll
        for (int j = 0; j < NI; j++) {
            if (j * 8 >= rows) break;
            const float row[2] = {factors.row(j * 8 + me() % 4 * 2), factors.row(j * 8 + me() % 4 * 2 + 1)};
#pragma unroll
            for (int i = 0; i < MI; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float &to = total[i][PROMOTE ? j : 0][e];
                    to = tegroup_impl_gpu_fma(sum[i][j][e], tegroup_impl_gpu_mul(row[e % 2], lines[i * 2 + e / 2]), to);
                    sum[i][j][e] = 0;
                }
        }
    }
    __device__ __forceinline__ void multiply(const tegroup_impl_gpu_tile &shared) {
        const tegroup_impl_gpu_tile tile = shared;
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][j][e] = total[i][PROMOTE ? j : 0][e] = 0;
        const int64_t count = (tile.k + TILE_K - 1) / TILE_K;
#pragma unroll 1
        for (int64_t s = 0; s < STAGES - 1; s++) load(tile, s);
#pragma unroll 1
        for (int64_t s = 0; s < count; s++) {
            const int32_t left = (int32_t)(count - s);
            factors.before(left);
            tegroup_impl_cp_wait<STAGES - 2>();
            __syncthreads(); /* the step is there, and that before it has been multiplied */
            load(tile, s + STAGES - 1);
            step(tile, s);
            if (factors.after(left)) promote(tile.m);
        }
        if (PROMOTE) {
#pragma unroll
            for (int i = 0; i < MI; i++)
#pragma unroll
                for (int j = 0; j < NI; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) sum[i][j][e] = total[i][PROMOTE ? j : 0][e];
        }
        tegroup_impl_cp_wait<0>();
        __syncthreads(); /* the ring is free */
    }

    /* Sums go through shared memory, which turns them. */
    template <typename FUNCTOR>
    __device__ __forceinline__ void finish(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &shared,
                                           unsigned char *memory, const FUNCTOR &functor) const {
        const tegroup_impl_gpu_tile tile = shared;
        float *const sums = (float *)memory, *const to = sums + me() % 4 * 2 * PADDED + me() / 32 * 32 + me() % 32 / 4;
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) to[(j * 8 + e % 2) * PADDED + i * 16 + e / 2 * 8] = sum[i][j][e];
        __syncthreads();
        constexpr int CHUNKS = TILE_N / 8;
        const int first = me() % CHUNKS * 8;
#pragma unroll 1
        for (int row = me() / CHUNKS; row < tile.m; row += THREADS / CHUNKS)
            tegroup_impl_gpu_finish(desc, tile, row, first, sums + row * PADDED + first, functor);
    }
    __device__ __forceinline__ void finish(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &shared,
                                           unsigned char *memory, const tegroup_impl_portable_held &held) const {
        tegroup_impl_gpu_tile tile = shared;
        tile.alpha = tegroup_impl_scaled_alpha(&desc, tile.group, (double)held.alpha);
        finish(desc, tile, memory, tegroup_impl_as_is());
    }
};

template <int BITS, bool E4M3>
static __global__ void __launch_bounds__(tegroup_impl_portable_weights_block<BITS, E4M3>::THREADS)
    tegroup_impl_portable_weights_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                         const __grid_constant__ tegroup_impl_portable_held held) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    tegroup_impl_portable_work<tegroup_impl_portable_weights_block<BITS, E4M3>, true>(call, held);
#endif
}

/* desc: rows of BF16, weights as they are read. */
static inline tegroup_status tegroup_impl_portable_weights_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                                struct CUstream_st *stream, tegroup_error *error) {
    tegroup_gemm_desc read = *desc;
    tegroup_impl_gpu_call call;
    tegroup_impl_portable_held held;
    void *arguments[2] = {&call, &held};
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    read.op = TEGROUP_OP_FORWARD;
    if (desc->op == TEGROUP_OP_DGRAD) read.b = tegroup_impl_turned(&desc->b);
    call = tegroup_impl_gpu_call_of(&read);
    memset(&held, 0, sizeof held);
    const int64_t bits = tegroup_impl_bits(read.b.dtype), ld = tegroup_impl_ld(&read.b);
    const tegroup_impl_scale_grid grid = tegroup_impl_scale_grid_alone(
        &read.b, tegroup_scaling_info(read.b.scaling), tegroup_impl_sides_of(read.b.shape.rows, read.b.shape.cols), 0);
    held.alpha = call.alpha;
    held.codes = (const char *)read.b.data;
    held.scales = (const uint8_t *)read.b.scale_inv;
    if (tegroup_impl_listed(&read.b)) {
        held.code_lists = (const void *const *)read.b.pointers;
        held.scale_lists = (const void *const *)read.b.scale_pointers;
    }
    held.line_bytes = ld * bits / 8;
    held.group_bytes = tegroup_impl_stride_bytes(&read.b);
    held.scale_group_bytes = grid.count;
    held.scale_lines_bytes = grid.inner_extent * 128;
    TEGROUP_IMPL_TRY(tegroup_impl_launch_planned(plan, arguments, stream, error));
    return tegroup_impl_cuda_rest(&call, stream, error);
}
