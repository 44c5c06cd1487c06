/* ---- Portable GEMM: the kernels ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "core/activation_types.h"
#include "base/build.h"
#include "cuda/portable_decoded.h"
#include "core/activation_formulas.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "cuda/activation_epilogue.h"
#include "cuda/walk.h"
#include "cuda/functor.h"
#include "cuda/call.h"
#include "cuda/portable_tiles.h"
#include "cuda/portable_store.h"

/* What multiplies sums over parts of k before they are added up: in most kernels nothing does. For others see
 * tegroup_impl_portable_factors. */
struct tegroup_impl_portable_no_factors {
    static constexpr bool PROMOTE = false;
    __device__ __forceinline__ void before(int32_t) {}
    __device__ __forceinline__ bool after(int32_t) { return false; }
    static constexpr bool one_column = true;
    __device__ __forceinline__ float row(int) const { return 1; }
    __device__ __forceinline__ float column(int) const { return 1; }
};

/* A block's work on one tile: the ring of pipeline stages, fragments and sums. */
template <bool BF16, int OP, int TILE_M_, int TILE_N_, int WARPS_M, int WARPS_N, int STAGES, bool FUSED = false,
          typename FACTORS = tegroup_impl_portable_no_factors>
struct tegroup_impl_portable_block {
    static constexpr int TILE_M = TILE_M_, TILE_N = TILE_N_, TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K;
    static constexpr int WARPS = WARPS_M * WARPS_N, THREADS = WARPS * 32;
    static constexpr int WARP_N = TILE_N / WARPS_N, MI = TILE_M / WARPS_M / 16, NI = WARP_N / 8, PAIRS = NI / 2;
    static constexpr int STEPS = TILE_K / 16, CHUNKS = TILE_N / 8, LINES_A_PASS = THREADS / CHUNKS;
    static constexpr int PADDED_N = TILE_N + 8; /* eight rows of a fragment hit different banks */
    static constexpr bool A_ALONG_K = OP != TEGROUP_OP_WGRAD, B_ALONG_K = OP == TEGROUP_OP_FORWARD;
    static constexpr bool TWICE = FUSED && B_ALONG_K; /* B's lines may be half gates, half ups */
    static constexpr int A_BYTES = TILE_M * TILE_K * 2, STAGE_BYTES = A_BYTES + TILE_N * TILE_K * 2,
                         RING_BYTES = STAGES * STAGE_BYTES, SUMS_BYTES = TILE_M * PADDED_N * 4;
    /* The sums overwrite the ring in the end. 128: room to align it. */
    static constexpr int SHARED_BYTES = (RING_BYTES > SUMS_BYTES ? RING_BYTES : SUMS_BYTES) + 128;
    static constexpr bool SHARED = A_ALONG_K && MI == 4; /* warps share the rows that a group's last tile has */
    static_assert(PAIRS % 2 == 0, "B's two sets of fragments alternate");

    uint32_t ring, place;      /* the ring; the thread's own place in its first stage */
    uint32_t at_a, at_b, skip; /* the lane's place in A's and B's part of a stage; see tegroup_impl_fragment */
    tegroup_impl_loader<TILE_M, A_ALONG_K, THREADS> load_a;
    tegroup_impl_loader<TILE_N, B_ALONG_K, THREADS, TWICE> load_b;
    int32_t left, reading; /* steps of TILE_K left, this one included; its stage */
    int32_t rows;          /* m16 blocks that a warp works on */
    float sum[MI][NI][4];
    FACTORS factors;
    float total[FACTORS::PROMOTE ? MI : 1][NI][4]; /* of sums over parts of k */
    uint32_t fa[MI][4], fb[2][4];

    __device__ __forceinline__ int warp_m(int thread) const { return thread / 32 % WARPS_M * rows * 16; }
    static __device__ __forceinline__ int warp_n(int thread) { return thread / 32 / WARPS_M * WARP_N; }

    __device__ __forceinline__ explicit tegroup_impl_portable_block(const void *memory) {
        ring = tegroup_impl_shared(memory);
        place = ring + load_a.place();
    }

    /* Starts the first loads of a tile. The ring must be free. */
    template <typename FUNCTOR>
    __device__ __forceinline__ void open(const tegroup_impl_gpu_tile &tile, const FUNCTOR &) {
        load_b.open(tile.b, tile.b_row, tile.n);
        begin(tile);
    }
    __device__ __forceinline__ void open(const tegroup_impl_gpu_tile &tile, const tegroup_impl_gpu_epilogue &epilogue,
                                         const tegroup_impl_gpu_up &up) {
        if (halves(epilogue)) { /* half a tile of gates, and half of ups */
            const char *gates = tile.b - tile.col / 2 * tile.b_row;
            load_b.open_twice(gates, tile.b_row, tile.n / 2, epilogue.activation.output.cols);
            if (up.apart)
                load_b.move_second(gates, tegroup_impl_gpu_group(up.weight, tile.group) + tile.col / 2 * tile.b_row,
                                   tile.b_row);
        } else load_b.open(tile.b, tile.b_row, tile.n);
        begin(tile);
    }
    static __device__ __forceinline__ bool halves(const tegroup_impl_gpu_epilogue &epilogue) {
        return OP == TEGROUP_OP_FORWARD && !epilogue.activation.interleaved;
    }
    __device__ __forceinline__ void begin(const tegroup_impl_gpu_tile &tile) {
        load_a.open(tile.a, tile.a_row, tile.m);
        reading = 0;
#pragma unroll 1
        for (left = (int32_t)((tile.k + TILE_K - 1) / TILE_K) + STAGES - 1; reading < STAGES - 1; reading++, left--) {
            load_into_a<false>(tile, reading);
            load_into_b<false>(tile, reading);
            advance(tile);
        }
        reading = 0;
    }
    /* Elements of k in the step that is STAGES - 1 after the current one. */
    __device__ __forceinline__ int32_t loadable(const tegroup_impl_gpu_tile &tile) const {
        return left > STAGES ? TILE_K : (int32_t)((uint32_t)(tile.k - 1) % TILE_K) + 1;
    }
    template <bool WHOLE>
    __device__ __forceinline__ void load_into_a(const tegroup_impl_gpu_tile &tile, int32_t stage) {
        if (left >= STAGES)
            load_a.template load<WHOLE>(place + (uint32_t)(stage * STAGE_BYTES), tile.a_row, loadable(tile));
    }
    template <bool WHOLE>
    __device__ __forceinline__ void load_into_b(const tegroup_impl_gpu_tile &tile, int32_t stage) {
        if (left >= STAGES)
            load_b.template load<WHOLE>(place + (uint32_t)(stage * STAGE_BYTES + A_BYTES), tile.b_row, loadable(tile));
        tegroup_impl_cp_commit(); /* even an empty group, so that the count of pending groups stays right */
    }
    /* Moves on to the next step's addresses. This comes long after the loads: a warp that changes an address register
     * which a queued load has not read yet has to wait. */
    __device__ __forceinline__ void advance(const tegroup_impl_gpu_tile &tile) {
        load_a.advance(tile.a_row);
        load_b.advance(tile.b_row);
    }
    __device__ __forceinline__ int32_t free_stage() const { return reading == 0 ? STAGES - 1 : reading - 1; }
    /* Waits until the next step's stage has arrived. Behind the barrier the stage that was read last is free. */
    __device__ __forceinline__ void arrive() {
        tegroup_impl_cp_wait<STAGES - 2>();
        __syncthreads();
    }

    __device__ __forceinline__ void fetch_a(int kk, int i) {
        tegroup_impl_ldmatrix<!A_ALONG_K>(fa[i], ring + (uint32_t)(reading * STAGE_BYTES)
                                                     + tegroup_impl_fragment<A_ALONG_K>(at_a, 0, kk, i));
    }
    __device__ __forceinline__ void fetch_b(int kk, int pair) {
        tegroup_impl_ldmatrix<!B_ALONG_K>(
            fb[pair % 2], ring + (uint32_t)(reading * STAGE_BYTES)
                              + tegroup_impl_fragment<B_ALONG_K>(at_b, WARP_N % 64 ? skip : 0, kk, pair));
    }

    /* One k16 of a step. B's fragments are loaded one pair of n8 blocks ahead of their mma, A's for the next k16 row by
     * row during the last pair. Registers have room for one set of A's only; the other warp of the SM sub-partition
     * fills the gaps. */
    template <bool WHOLE, int ROWS, int KK>
    __device__ __forceinline__ void sixteen(const tegroup_impl_gpu_tile &tile, bool more) {
        constexpr int NEXT = (KK + 1) % STEPS;
#pragma unroll
        for (int pair = 0; pair < PAIRS; pair++) {
            const bool last = pair + 1 == PAIRS;
            if (last && NEXT == 0) {
                advance(tile);
                arrive();
                reading = reading + 1 == STAGES ? 0 : reading + 1;
            }
            if (!last) fetch_b(KK, pair + 1);
            else if (NEXT > 0 || more) fetch_b(NEXT, 0);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                tegroup_impl_mma<BF16>(sum[i][2 * pair], fa[i], fb[pair % 2][0], fb[pair % 2][1]);
                tegroup_impl_mma<BF16>(sum[i][2 * pair + 1], fa[i], fb[pair % 2][2], fb[pair % 2][3]);
                if (last && (NEXT > 0 || more)) fetch_a(NEXT, i);
            }
            if (WHOLE && pair == 1 && KK == 0) load_into_a<true>(tile, free_stage());
            if (WHOLE && pair == 1 && KK == 1) load_into_b<true>(tile, free_stage());
        }
    }
    template <int ROWS> __device__ __forceinline__ void fetch() {
#pragma unroll
        for (int i = 0; i < ROWS; i++) fetch_a(0, i);
        fetch_b(0, 0);
    }
    /* Steps whose loads may end within a chunk load between k16 steps, while no fragments occupy registers. */
    template <bool WHOLE, int ROWS> __device__ __forceinline__ void steps(const tegroup_impl_gpu_tile &tile) {
        if (WHOLE) fetch<ROWS>();
#pragma unroll 1
        for (; left > 0; left--) {
            factors.before(left);
            if (!WHOLE) {
                load_into_a<false>(tile, free_stage());
                load_into_b<false>(tile, free_stage());
                fetch<ROWS>();
            }
            sixteen<WHOLE, ROWS, 0>(tile, true);
            sixteen<WHOLE, ROWS, 1>(tile, true);
            sixteen<WHOLE, ROWS, 2>(tile, true);
            sixteen<WHOLE, ROWS, 3>(tile, WHOLE && left > 1);
            if (factors.after(left)) promote<ROWS>();
        }
    }
    /* Adds the sums over a part of k, times their factors, and begins the next. */
    template <int ROWS> __device__ __forceinline__ void promote() {
        if (factors.one_column) promote_by<ROWS, true>();
        else promote_by<ROWS, false>();
    }
    template <int ROWS, bool ONE_COLUMN> __device__ __forceinline__ void promote_by() {
        const int me = tegroup_impl_thread(), from_m = warp_m(me) + me % 32 / 4, from_n = warp_n(me) + me % 4 * 2;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float factor = tegroup_impl_gpu_mul(factors.row(from_m + i * 16 + e / 2 * 8),
                                                              factors.column(ONE_COLUMN ? 0 : from_n + j * 8 + e % 2));
                    float &to = total[FACTORS::PROMOTE ? i : 0][j][e];
                    to = tegroup_impl_gpu_fma(sum[i][j][e], factor, to);
                    sum[i][j][e] = 0;
                }
    }
    __device__ __forceinline__ void multiply(const tegroup_impl_gpu_tile &tile) {
        /* The four 8x8 matrices of a fragment run along m first in A, along k first in B. */
        const int me = tegroup_impl_thread(), matrix = me % 32 / 8, r = me % 8,
                  least = (tile.m + WARPS_M * 16 - 1) / (WARPS_M * 16);
        const bool whole = load_a.whole() && load_b.whole() && tile.k % TILE_K == 0;
        rows = SHARED && whole && least < MI ? least : MI;
        at_a = tegroup_impl_fragments<A_ALONG_K>(warp_m(me), matrix & 1, matrix >> 1, r);
        skip = (uint32_t)(warp_n(me) % 64 / 32 * 8192);
        at_b = A_BYTES + tegroup_impl_fragments<B_ALONG_K>(warp_n(me), matrix >> 1, matrix & 1, r);
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][j][e] = total[FACTORS::PROMOTE ? i : 0][j][e] = 0;
        if (tile.k > 0) {
            arrive();
            if (SHARED && rows == 1) steps<true, 1>(tile);
            else if (SHARED && rows == 2) steps<true, 2>(tile);
            else if (SHARED && rows == 3) steps<true, 3>(tile);
            else if (whole) steps<true, MI>(tile);
            else steps<false, MI>(tile);
        }
        if (FACTORS::PROMOTE) {
#pragma unroll
            for (int i = 0; i < MI; i++)
#pragma unroll
                for (int j = 0; j < NI; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) sum[i][j][e] = total[FACTORS::PROMOTE ? i : 0][j][e];
        }
        tegroup_impl_cp_wait<0>();
        __syncthreads(); /* the ring is free */
    }

    /* A functor with members reads what others read, too. It is given all sums before any is stored, so that what it
     * reads of a row or a column is read once, and, of a whole tile, without branches in between. One without members,
     * as the built-in store is, is called where a sum is stored, by result. */
    template <typename FUNCTOR>
    __device__ __forceinline__ void apply(const tegroup_impl_gpu_tile &shared, const FUNCTOR &functor) {
        if (__is_empty(FUNCTOR)) return;
        const tegroup_impl_gpu_tile tile = shared;
        if (tile.m == TILE_M && tile.n == TILE_N) apply_to<true>(tile, functor);
        else apply_to<false>(tile, functor);
    }
    template <bool WHOLE, typename FUNCTOR>
    __device__ __forceinline__ void apply_to(const tegroup_impl_gpu_tile &tile, const FUNCTOR &functor) {
        const int me = tegroup_impl_thread(), from_m = warp_m(me) + me % 32 / 4, from_n = warp_n(me) + me % 4 * 2;
#pragma unroll
        for (int i = 0; i < MI * 2; i++)
            if (i / 2 < rows) {
#pragma unroll
                for (int j = 0; j < NI * 2; j++) {
                    float &x = sum[i / 2][j / 2][i % 2 * 2 + j % 2];
                    x = tegroup_impl_gpu_apply<WHOLE>(tile, from_m + i * 8, from_n + j / 2 * 8 + j % 2,
                                                      tegroup_impl_gpu_mul(tile.alpha, x), functor);
                }
            }
    }
    template <typename FUNCTOR>
    static __device__ __forceinline__ float result(const tegroup_impl_gpu_tile &tile, float alpha, int line, int col,
                                                   float x, const FUNCTOR &functor) {
        if (!__is_empty(FUNCTOR)) return x;
        return tegroup_impl_gpu_apply<false>(tile, line, col, tegroup_impl_gpu_mul(alpha, x), functor);
    }

    /* Results go through shared memory, where the ring was, so that neighbouring threads store neighbouring columns.
     * store_plainly puts what the functor makes of alpha times the sums there as two-byte elements, ready to be copied
     * to D. */
    template <typename FUNCTOR>
    __device__ __forceinline__ void store_plainly(bool bf16, const tegroup_impl_gpu_tile &tile, unsigned char *memory,
                                                  const FUNCTOR &functor) {
        const float alpha = tile.alpha;
        apply(tile, functor);
        const int me = tegroup_impl_thread(), from_m = warp_m(me) + me % 32 / 4, from_n = warp_n(me) + me % 4 * 2;
        uint16_t *results = (uint16_t *)memory;
#pragma unroll
        for (int i = 0; i < MI * 2; i++)
            if (i / 2 < rows) {
#pragma unroll
                for (int j = 0; j < NI; j++)
                    *(uint32_t *)(results + (from_m + i * 8) * PADDED_N + from_n + j * 8) = tegroup_impl_two_halves(
                        result(tile, alpha, from_m + i * 8, from_n + j * 8, sum[i / 2][j][i % 2 * 2], functor),
                        result(tile, alpha, from_m + i * 8, from_n + j * 8 + 1, sum[i / 2][j][i % 2 * 2 + 1], functor),
                        bf16);
            }
        __syncthreads();
        const int line = me / CHUNKS, first = me % CHUNKS * 8;
        const int64_t row = tile.d_row;
        const int32_t lines = line < LINES_A_PASS && first < tile.n ? tile.m : 0;
        char *to = tile.d + line * row + first * 2;
        const uint16_t *from = results + line * PADDED_N + first;
#pragma unroll 8
        for (int i = line; i < lines; i += LINES_A_PASS, from += LINES_A_PASS * PADDED_N, to += LINES_A_PASS * row)
            *(uint4 *)to = *(const uint4 *)from;
    }
    /* put, for all other epilogues, leaves the sums there as they are. */
    __device__ __forceinline__ void put(unsigned char *memory) const {
        const int me = tegroup_impl_thread(), from_m = warp_m(me) + me % 32 / 4, from_n = warp_n(me) + me % 4 * 2;
        float *sums = (float *)memory;
#pragma unroll
        for (int i = 0; i < MI * 2; i++)
            if (i / 2 < rows) {
#pragma unroll
                for (int j = 0; j < NI; j++)
                    *(float2 *)(sums + (from_m + i * 8) * PADDED_N + from_n + j * 8) =
                        make_float2(sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
            }
        __syncthreads();
    }
    template <typename FUNCTOR>
    __device__ __forceinline__ void store(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &shared,
                                          unsigned char *memory, const FUNCTOR &functor) {
        const int me = tegroup_impl_thread(), line = me / CHUNKS, first = me % CHUNKS * 8;
        const float *sums = (const float *)memory;
        put(memory);
        const tegroup_impl_gpu_tile tile = shared;
#pragma unroll 2
        for (int i = line; i < (line < LINES_A_PASS ? tile.m : 0); i += LINES_A_PASS)
            tegroup_impl_gpu_finish(desc, tile, i, first, sums + i * PADDED_N + first, functor);
    }
    template <typename FUNCTOR>
    __device__ __forceinline__ void finish(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &tile,
                                           unsigned char *memory, const FUNCTOR &functor) {
        if (tegroup_impl_gpu_plain(desc, tile))
            store_plainly(desc.d.dtype == TEGROUP_DTYPE_BF16, tile, memory, functor);
        else store(desc, tile, memory, functor);
    }

#if TEGROUP_IMPL_ACTIVATION_KERNELS
    /* With an activation or its gradient, a thread finishes eight columns of its output in a row at a time. */
    __device__ __forceinline__ void finish(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &shared,
                                           unsigned char *memory, const tegroup_impl_gpu_epilogue &epilogue,
                                           const tegroup_impl_gpu_up &up) {
        put(memory);
        const tegroup_impl_gpu_tile tile = shared;
        if (OP == TEGROUP_OP_FORWARD) activate(desc, tile, (const float *)memory, epilogue, up);
#if TEGROUP_IMPL_BACKWARD_KERNELS
        else differentiate(desc, tile, (const float *)memory, epilogue);
#endif
    }
    /* Where a row's eight gates begin that belong to eight columns from column `col` of the activation's output on; or,
     * interleaved, the first eight of sixteen gates and ups. others: bytes from there to the other eight. */
    static __device__ __forceinline__ char *eight(const tegroup_matrix &m, bool interleaved, int64_t row, int64_t col) {
        return (char *)m.data + (row * m.ld + (interleaved ? 2 * col : col)) * 2;
    }
    static __device__ __forceinline__ int64_t others(const tegroup_activation_desc &f) {
        return f.interleaved ? 16 : f.output.cols * 2;
    }
    static __device__ __forceinline__ void take(const float *sums, float alpha, bool empty, float (&x)[8]) {
        const float4 low = ((const float4 *)sums)[0], high = ((const float4 *)sums)[1];
        const float sum[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = empty ? 0.0f : tegroup_impl_gpu_mul(alpha, sum[e]);
    }
    static __device__ __forceinline__ void activate(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &tile,
                                                    const float *sums, const tegroup_impl_gpu_epilogue &epilogue,
                                                    const tegroup_impl_gpu_up &up) {
        const tegroup_activation_desc &f = epilogue.activation;
        const bool interleaved = f.interleaved;
        const float alpha = (float)f.alpha, limit = (float)f.limit;
        const int me = tegroup_impl_thread(), first = me % (CHUNKS / 2) * 8;
        const int64_t col = tile.col / 2 + first;
        if (col >= f.output.cols) return;
#pragma unroll 1
        for (int i = me / (CHUNKS / 2); i < tile.m; i += 2 * LINES_A_PASS) {
            const int64_t row = tile.row + i;
            const float scale = tegroup_impl_weight<float>(f.row_scale, row, 0),
                        by = tile.scale ? tegroup_impl_gpu_load_scale(desc.row_scale_dtype, tile.scale, i) : 1.0f;
            uint32_t x[2][4], y[4];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int at = interleaved ? 2 * first + half * 8 : first + half * 64;
                const int64_t column = interleaved ? 2 * col + half * 8 : col + half * f.output.cols;
                float z[8], bias[8];
                take(sums + i * PADDED_N + at, tile.alpha, tile.k == 0, z);
                if (tile.bias) {
                    const int bytes = desc.bias.dtype == TEGROUP_DTYPE_F32 ? 4 : 2;
                    const char *from = half && up.apart ? tegroup_impl_gpu_group(up.bias, tile.group)
                                                              + (column - f.output.cols) * bytes
                                                        : tile.bias + (column - tile.col) * bytes;
                    tegroup_impl_gpu_load8(desc.bias.dtype, from, 8, bias);
#pragma unroll
                    for (int e = 0; e < 8; e++) z[e] = tegroup_impl_gpu_fma(by, bias[e], z[e]);
                }
#pragma unroll
                for (int e = 0; e < 4; e++) x[half][e] = tegroup_impl_two_halves(z[2 * e], z[2 * e + 1], BF16);
            }
#define TEGROUP_IMPL_CALL(kind)                                                                                        \
    if (interleaved) tegroup_impl_activate_eight<kind, true>(alpha, limit, BF16, scale, x, y);                         \
    else tegroup_impl_activate_eight<kind, false>(alpha, limit, BF16, scale, x, y);
            TEGROUP_IMPL_BY_GATED(f.activation, TEGROUP_IMPL_CALL)
#undef TEGROUP_IMPL_CALL
            if (epilogue.keeps_d) {
                char *to = eight(f.input, interleaved, row, col);
                *(uint4 *)to = make_uint4(x[0][0], x[0][1], x[0][2], x[0][3]);
                *(uint4 *)(to + others(f)) = make_uint4(x[1][0], x[1][1], x[1][2], x[1][3]);
            }
            *(uint4 *)eight(f.output, false, row, col) = make_uint4(y[0], y[1], y[2], y[3]);
        }
    }
#if TEGROUP_IMPL_BACKWARD_KERNELS
    static __device__ __forceinline__ void differentiate(const tegroup_gemm_desc &desc,
                                                         const tegroup_impl_gpu_tile &tile, const float *sums,
                                                         const tegroup_impl_gpu_epilogue &epilogue) {
        const tegroup_activation_desc &f = epilogue.activation;
        const bool interleaved = f.interleaved;
        const float alpha = (float)f.alpha, limit = (float)f.limit;
        const int me = tegroup_impl_thread(), first = me % CHUNKS * 8;
        const int64_t col = tile.col + first;
        const char *from = eight(f.input, interleaved, tile.row + me / CHUNKS, col);
        uint4 one = make_uint4(0, 0, 0, 0), two = one; /* of the thread's next row, loaded early */
        if (me / CHUNKS < tile.m && col < f.output.cols) {
            one = *(const uint4 *)from;
            two = *(const uint4 *)(from + others(f));
        }
#pragma unroll 1
        for (int line = 0; line < tile.m; line += LINES_A_PASS) { /* all lanes of a warp take part in the sums */
            const int i = line + me / CHUNKS;
            const int64_t row = tile.row + i;
            const bool there = i < tile.m && col < f.output.cols;
            uint32_t x[2][4] = {{one.x, one.y, one.z, one.w}, {two.x, two.y, two.z, two.w}};
            float part = 0;
            from += LINES_A_PASS * f.input.ld * 2;
            if (i + LINES_A_PASS < tile.m && col < f.output.cols) {
                one = *(const uint4 *)from;
                two = *(const uint4 *)(from + others(f));
            }
            if (there) {
                const float scale = tegroup_impl_weight<float>(f.row_scale, row, 0);
                uint32_t y[4];
                float dy[8];
                take(sums + i * PADDED_N + first, tile.alpha, tile.k == 0, dy);
#pragma unroll
                for (int e = 0; e < 4; e++) y[e] = tegroup_impl_two_halves(dy[2 * e], dy[2 * e + 1], BF16);
#define TEGROUP_IMPL_CALL(kind)                                                                                        \
    part = interleaved ? tegroup_impl_differentiate_eight<kind, true>(alpha, limit, BF16, scale, x, y)                 \
                       : tegroup_impl_differentiate_eight<kind, false>(alpha, limit, BF16, scale, x, y);
                TEGROUP_IMPL_BY_GATED(f.activation, TEGROUP_IMPL_CALL)
#undef TEGROUP_IMPL_CALL
                char *to = eight(epilogue.grad_input, interleaved, row, col);
                *(uint4 *)to = make_uint4(x[0][0], x[0][1], x[0][2], x[0][3]);
                *(uint4 *)(to + others(f)) = make_uint4(x[1][0], x[1][1], x[1][2], x[1][3]);
                if (epilogue.activates_again)
                    *(uint4 *)eight(f.output, false, row, col) = make_uint4(y[0], y[1], y[2], y[3]);
            }
            if (!epilogue.row_sums) continue;
            part = tegroup_impl_tree(part, TEGROUP_IMPL_ROW_SUM_COLS / 8, 32);
            if (there && me % 4 == 0)
                epilogue.row_sums[col / TEGROUP_IMPL_ROW_SUM_COLS * desc.d.shape.rows + row] = part;
        }
    }
#endif
#endif
};

/* What a block does. The epilogue is that of all tiles: a functor, or an activation and where its ups are. */
template <typename BLOCK, bool NAMES_GROUP, typename... EPILOGUE>
static __device__ __forceinline__ void tegroup_impl_portable_work(const tegroup_impl_gpu_call &call,
                                                                  const EPILOGUE &...epilogue) {
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    /* Aligned to 128 bytes, as the swizzle needs: debug and relocatable builds do not honour a larger __align__. */
    unsigned char *const ring = tegroup_impl_memory + (128 - tegroup_impl_shared(tegroup_impl_memory) % 128) % 128;
    constexpr int FOUND = TEGROUP_IMPL_PORTABLE_FOUND;
    /* The tiles found last, and those found before, of which others may still read the last one. */
    __shared__ tegroup_impl_gpu_tile tiles[2 * FOUND];
    __shared__ tegroup_impl_gpu_walk<BLOCK::TILE_M, BLOCK::TILE_N, NAMES_GROUP> walk;
    BLOCK block(ring);
    const int32_t warp = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x / 32, 0), lane = (int32_t)threadIdx.x & 31;
    if (warp == 0) walk.begin(call);
    for (int32_t round = 0;; round++) {
        if (warp == 0 && round % FOUND == 0)
            walk.find(call, tegroup_impl_gpu_number((uint32_t)(round + lane)),
                      lane < FOUND ? &tiles[(round + lane) % (2 * FOUND)] : NULL);
        __syncthreads(); /* the tile is known, and nobody reads the last tile's shared memory any more */
        const tegroup_impl_gpu_tile &tile = tiles[round % (2 * FOUND)];
        if (!tile.valid) break;
        block.open(tile, epilogue...);
        block.multiply(tile);
        block.finish(call.desc, tile, ring, epilogue...);
    }
}

template <bool BF16, int OP, int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int STAGES>
static __global__ void __launch_bounds__(WARPS_M *WARPS_N * 32)
    tegroup_impl_portable_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap(); /* compiled for older GPUs only; the plan refuses before this is launched */
#else
    typedef tegroup_impl_portable_block<BF16, OP, TILE_M, TILE_N, WARPS_M, WARPS_N, STAGES> block;
    tegroup_impl_portable_work<block, false>(call, tegroup_impl_as_is());
#endif
}

template <bool BF16, int OP, int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int STAGES, typename FUNCTOR>
static __global__ void __launch_bounds__(WARPS_M *WARPS_N * 32)
    tegroup_impl_portable_functor_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                         const __grid_constant__ FUNCTOR functor) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    typedef tegroup_impl_portable_block<BF16, OP, TILE_M, TILE_N, WARPS_M, WARPS_N, STAGES> block;
    tegroup_impl_portable_work<block, true>(call, functor);
#endif
}

#if TEGROUP_IMPL_FUSED_KERNELS
template <bool BF16, int OP>
using tegroup_impl_portable_fused_block = tegroup_impl_portable_block<BF16, OP, 128, 128, 2, 2, 3, true>;

template <bool BF16, int OP>
static __global__ void __launch_bounds__(128)
    tegroup_impl_portable_fused_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                       const __grid_constant__ tegroup_impl_gpu_epilogue epilogue,
                                       const __grid_constant__ tegroup_impl_gpu_up up) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    typedef tegroup_impl_portable_fused_block<BF16, OP> block;
    tegroup_impl_portable_work<block, block::TWICE>(call, epilogue, up);
#endif
}
#endif
