/* ---- Portable GEMM: products of quantised operands ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/convert.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/quantised.h"
#include "cuda/functor.h"
#include "cuda/call.h"
#include "cuda/codes.h"
#include "cuda/portable_tiles.h"
#include "cuda/portable_store.h"

/* One kernel for every format, operation and storage order, from SM80 on. Values of 8 and 4 bits are exact in BF16, so
 * their codes are decoded on the way to shared memory, by arithmetic on bits that is the same on every GPU, and
 * multiplied by mma.sync in BF16 with FP32 sums (in F16 beside an operand of F16, where E4M3 and E5M2 are exact, too).
 * The products are exact then, and sums are those of the BF16 kernel; Hopper's FP8 instructions keep about 14 bits of
 * a sum (DeepSeek-V3 technical report, section 3.3.2), so this kernel does not use them (sm90_fp8.h does, for 128 of k
 * at a time).
 *
 * Scales of 8 bits are multiplied into the values: a product of both is exact in BF16, or is rounded to it once. Scales
 * of F32 are not: the sum over a block of k that shares its scales is multiplied by them and added to the result's,
 * sum = fma(partial, scale of the row * scale of the column, sum), where the product of the scales is rounded to FP32.
 *
 * k is walked in steps of up to 64. While one is multiplied, the codes of the next are on their way to registers, and
 * the scales of the one after. A step ends where a block of k with a scale of F32 ends, and with a part of the rows,
 * and is filled up with zeros. So each element is summed over k in one order, whatever the tile. */

/* A step of the walk along k; count is 0 behind the last. */
typedef struct tegroup_impl_gpu_step {
    int64_t k;
    int32_t count;
    bool ends; /* a sum over k is to be multiplied by its scales */
} tegroup_impl_gpu_step;

/* Elements of k, from this one on, that a step may take of the operand: no scale of F32 begins anew within it, and one
 * of 8 bits only where a sixteenth element does. */
static __device__ __forceinline__ int64_t tegroup_impl_gpu_codes_run(const tegroup_impl_gpu_codes &codes, int64_t k,
                                                                     bool promotes) {
    const tegroup_impl_scale_grid &grid = codes.of.grid;
    if (!codes.of.facts || (!promotes && !codes.k_is_inner)) return TEGROUP_IMPL_BLOCK_OF_ALL;
    const int64_t shared = tegroup_impl_scale_shared(&grid, k, !codes.k_is_inner);
    const bool in_parts = grid.columnwise && grid.parts > 1;
    const int64_t at = in_parts ? k % grid.part_rows : k;
    if (promotes || at % TEGROUP_IMPL_PORTABLE_TILE_K != 0) return shared;
    return in_parts ? grid.part_rows - at : TEGROUP_IMPL_BLOCK_OF_ALL;
}

struct tegroup_impl_formats_block {
    static constexpr int TILE = 128, TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, THREADS = 256, MI = 4, NI = 4;
    static constexpr int PART_BYTES = TILE * TILE_K * 2, STAGE_BYTES = 2 * PART_BYTES, PADDED = TILE + 8;
    static constexpr int SHARED_BYTES = TILE * PADDED * 4 + 128; /* for sums, where two stages were; aligned */
    static_assert(TILE * PADDED * 4 >= 2 * STAGE_BYTES, "two stages");
    static constexpr int PIECES = TILE * TILE_K / 16, PASSES = PIECES / THREADS; /* of an operand */

    /* Scales of a step: of 8 bits as halves of BF16, one for each piece if they are along the lines, else one for each
     * line and sixteen of k; or of F32, one for each line of both operands. */
    union scales {
        uint16_t halves[2][4 * TILE];
        float factors[2][TILE];
    };

    float part[MI][NI][4], sum[MI][NI][4]; /* sums over a block of k, and of such sums with their scales */
    uint32_t raw[2][PASSES][8], code[4];   /* codes and scales of steps to come */

    /* ---- steps ---- */

    static __device__ __forceinline__ tegroup_impl_gpu_step step(const tegroup_impl_gpu_codes (&codes)[2], int64_t k,
                                                                 int64_t end, bool promotes) {
        const int64_t run = tegroup_impl_min(tegroup_impl_min(tegroup_impl_gpu_codes_run(codes[0], k, promotes),
                                                              tegroup_impl_gpu_codes_run(codes[1], k, promotes)),
                                             end - k);
        tegroup_impl_gpu_step step;
        step.k = k;
        step.count = (int32_t)tegroup_impl_clamp(run, 0, TILE_K);
        step.ends = promotes && step.count > 0 && run == step.count;
        return step;
    }

    /* ---- scales ---- */

    /* Which line and which k of a step a thread's scale number i of an operand belongs to. */
    static __device__ __forceinline__ void place(const tegroup_impl_gpu_codes &codes, int i, int32_t *line,
                                                 int32_t *k) {
        const int e = (int)threadIdx.x + i * THREADS;
        *line = codes.k_is_inner ? e % TILE : e % (TILE / 16) * 16;
        *k = codes.k_is_inner ? e / TILE * 16 : e / (TILE / 16);
    }
    static __device__ __forceinline__ uint32_t scale(const tegroup_impl_gpu_codes &codes, int64_t line, int64_t k) {
        const int64_t i = codes.first_line + line, outer = codes.k_is_inner ? i : k, inner = codes.k_is_inner ? k : i;
        return tegroup_impl_load_code(codes.of.scale_dtype, codes.of.scales,
                                      tegroup_impl_scale_at(&codes.of.grid, outer, inner));
    }
    __device__ __forceinline__ void load_scales(const tegroup_impl_gpu_codes (&codes)[2],
                                                const tegroup_impl_gpu_step &step, bool promotes) {
#pragma unroll
        for (int i = 0; i < 4; i++) code[i] = 0; /* of what does not exist: 0 times 0 is no NaN */
        if (promotes) {
            const tegroup_impl_gpu_codes &mine = codes[threadIdx.x / TILE];
            const int32_t line = (int32_t)threadIdx.x % TILE;
            if (mine.of.facts && step.ends && line < mine.lines) code[0] = scale(mine, line, step.k);
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const tegroup_impl_gpu_codes &of = codes[i / 2];
            int32_t line, k;
            place(of, i % 2, &line, &k);
            if (of.of.facts && line < of.lines && k < step.count) code[i] = scale(of, line, step.k + k) | 0x100u;
        }
    }
    __device__ __forceinline__ void store_scales(const tegroup_impl_gpu_codes (&codes)[2], bool promotes,
                                                 scales *to) const {
        if (promotes) {
            const tegroup_impl_scaled &of = codes[threadIdx.x / TILE].of;
            to->factors[threadIdx.x / TILE][threadIdx.x % TILE] =
                of.facts ? tegroup_impl_f32_of_code(of.scale_dtype, code[0]) : 1.0f;
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (codes[i / 2].of.facts)
                to->halves[i / 2][threadIdx.x + i % 2 * THREADS] =
                    code[i] & 0x100u ? tegroup_impl_bf16_of_f32(
                        tegroup_impl_f32_of_code(codes[i / 2].of.scale_dtype, code[i] & 0xffu))
                                     : (uint16_t)0;
    }

    /* ---- codes ---- */

    /* Neighbouring threads have neighbouring pieces. across: the piece's line if it lies along k, or its k. */
    static __device__ __forceinline__ void piece(bool along_k, int pass, int32_t *across, int32_t *along) {
        const int e = (int)threadIdx.x + pass * THREADS, pieces = along_k ? TILE_K / 16 : TILE / 16;
        *across = e / pieces;
        *along = e % pieces * 16;
    }
    __device__ __forceinline__ void load(const tegroup_impl_gpu_codes (&codes)[2], const tegroup_impl_gpu_step &step) {
#pragma unroll
        for (int which = 0; which < 2; which++)
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++) {
                const tegroup_impl_gpu_codes &of = codes[which];
                int32_t across, along;
                piece(of.along_k, pass, &across, &along);
                const int32_t line = of.along_k ? across : along, k = of.along_k ? along : across,
                              left = of.along_k ? step.count - along : of.lines - along;
                const bool there = line < of.lines && k < step.count;
                tegroup_impl_gpu_piece(of, of.at + line * of.line_stride + (step.k + k) * of.k_stride,
                                       there ? (int32_t)tegroup_impl_min(16, left) : 0,
                                       of.aligned && (!of.along_k || step.k % 16 == 0), raw[which][pass]);
            }
    }
    /* Decodes what was loaded, multiplies it by scales of 8 bits, and stores it as the BF16 kernel's loader does. */
    __device__ __forceinline__ void decode(const tegroup_impl_gpu_codes (&codes)[2],
                                           const tegroup_impl_gpu_formats &formats, const scales &by,
                                           unsigned char *stage) {
        const bool bf16 = formats.bf16;
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const tegroup_impl_gpu_codes &of = codes[which];
            const tegroup_impl_gpu_decoding how = tegroup_impl_gpu_decoding_of(of.dtype, bf16);
            const uint16_t *halves = by.halves[which];
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++) {
                uint32_t(&word)[8] = raw[which][pass];
                int32_t across, along;
                piece(of.along_k, pass, &across, &along);
                tegroup_impl_gpu_decode(how, of.bits, bf16, word);
                if (of.of.facts && !formats.promotes) {
                    if (of.along_k || !of.k_is_inner) { /* one scale */
                        const uint32_t one =
                            of.along_k ? halves[along / 16 * TILE + across] : halves[across * (TILE / 16) + along / 16];
#pragma unroll
                        for (int i = 0; i < 8; i++) word[i] = tegroup_impl_gpu_mul2(word[i], one | one << 16, true);
                    } else {
                        const uint32_t *two = (const uint32_t *)(halves + across / 16 * TILE + along);
#pragma unroll
                        for (int i = 0; i < 8; i++) word[i] = tegroup_impl_gpu_mul2(word[i], two[i], true);
                    }
                }
                /* chunks of 16 bytes, permuted */
                unsigned char *row =
                    stage + which * PART_BYTES + across * 128 + (of.along_k ? 0 : along / 64 * TILE_K * 128);
                const int chunk = along % 64 / 8;
                *(uint4 *)(row + (chunk ^ (across & 7)) * 16) = make_uint4(word[0], word[1], word[2], word[3]);
                *(uint4 *)(row + ((chunk + 1) ^ (across & 7)) * 16) = make_uint4(word[4], word[5], word[6], word[7]);
            }
        }
    }

    /* ---- products ---- */

    static __device__ __forceinline__ int warp_m() { return (int)threadIdx.x / 32 % 2 * 64; }
    static __device__ __forceinline__ int warp_n() { return (int)threadIdx.x / 64 * 32; }

    /* Loads a fragment: of the kk-th sixteen of k, and the i-th of the warp's lines. Chunks are permuted by XOR, along
     * the direction in which the operand lies; see tegroup_impl_fragment. */
    static __device__ __forceinline__ void fetch(bool along_k, uint32_t at, int kk, int i, uint32_t (&to)[4]) {
        if (along_k) tegroup_impl_ldmatrix<false>(to, tegroup_impl_fragment<true>(at, 0, kk, i));
        else tegroup_impl_ldmatrix<true>(to, tegroup_impl_fragment<false>(at, 0, kk, i));
    }
    static __device__ __forceinline__ uint32_t fragments(bool along_k, int line, int upper, int later, int r) {
        return along_k ? tegroup_impl_fragments<true>(line, upper, later, r)
                       : tegroup_impl_fragments<false>(line, upper, later, r);
    }
    template <bool BF16>
    __device__ __forceinline__ void multiply(const uint32_t (&fa)[MI][4], const uint32_t (&fb)[NI / 2][4],
                                             int32_t lines) {
#pragma unroll
        for (int i = 0; i < MI; i++)
            if (i * 16 < lines) {
#pragma unroll
                for (int j = 0; j < NI; j++)
                    tegroup_impl_mma<BF16>(part[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
            }
    }
    /* A warp has 64 x 32 of the tile; blocks of 16 lines that a short group has not are left out. */
    __device__ __forceinline__ void multiply(const tegroup_impl_gpu_codes (&codes)[2], bool bf16,
                                             const unsigned char *stage, int32_t count) {
        const bool a_along_k = codes[0].along_k, b_along_k = codes[1].along_k;
        const int matrix = (int)threadIdx.x % 32 / 8, r = (int)threadIdx.x % 8;
        const int32_t lines = codes[0].lines - warp_m();
        const uint32_t a = tegroup_impl_shared(stage) + fragments(a_along_k, warp_m(), matrix & 1, matrix >> 1, r),
                       b = tegroup_impl_shared(stage) + PART_BYTES
                           + fragments(b_along_k, warp_n(), matrix >> 1, matrix & 1, r);
#pragma unroll 1
        for (int kk = 0; kk * 16 < count; kk++) {
            uint32_t fa[MI][4], fb[NI / 2][4];
#pragma unroll
            for (int j = 0; j < NI / 2; j++) fetch(b_along_k, b, kk, j, fb[j]);
#pragma unroll
            for (int i = 0; i < MI; i++) fetch(a_along_k, a, kk, i, fa[i]);
            if (bf16) multiply<true>(fa, fb, lines);
            else multiply<false>(fa, fb, lines);
        }
    }

    /* Adds the sums over a block of k, times their scales, and begins the next. */
    __device__ __forceinline__ void promote(const scales &by) {
        const float *rows = by.factors[0] + warp_m() + threadIdx.x % 32 / 4,
                    *columns = by.factors[1] + warp_n() + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float factor = tegroup_impl_gpu_mul(rows[i * 16 + e / 2 * 8], columns[j * 8 + e % 2]);
                    sum[i][j][e] = tegroup_impl_gpu_fma(part[i][j][e], factor, sum[i][j][e]);
                    part[i][j][e] = 0;
                }
    }

    /* Sums of a tile, into shared memory. */
    __device__ __forceinline__ void work(const tegroup_impl_gpu_codes (&codes)[2],
                                         const tegroup_impl_gpu_formats &formats, int64_t end, scales (&by)[3],
                                         unsigned char *memory) {
        const bool promotes = formats.promotes;
        tegroup_impl_gpu_step now = {0, 0, false}, next = now, after = step(codes, 0, end, promotes);
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) part[i][j][e] = sum[i][j][e] = 0;
        for (uint32_t s = 0; now.count + next.count + after.count > 0; s++) {
            __syncthreads(); /* this step's stage, and the next one's scales, have been stored */
            if (next.count > 0) load(codes, next);
            load_scales(codes, after, promotes);
            if (now.count > 0) multiply(codes, formats.bf16, memory + s % 2 * STAGE_BYTES, now.count);
            if (now.ends) promote(by[s % 3]);
            if (next.count > 0) decode(codes, formats, by[(s + 1) % 3], memory + (s + 1) % 2 * STAGE_BYTES);
            store_scales(codes, promotes, &by[(s + 2) % 3]);
            now = next;
            next = after;
            after = step(codes, next.k + next.count, end, promotes);
        }
        __syncthreads();
        float *to = (float *)memory + (warp_m() + threadIdx.x % 32 / 4) * PADDED + warp_n() + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e += 2)
                    *(float2 *)(to + (i * 16 + e * 4) * PADDED + j * 8) =
                        promotes ? make_float2(sum[i][j][e], sum[i][j][e + 1])
                                 : make_float2(part[i][j][e], part[i][j][e + 1]);
        __syncthreads();
    }
};

/* ---- the kernels ---- */

/* Finds a tile and opens its operands; one warp. */
template <typename WALK>
static __device__ __forceinline__ void tegroup_impl_formats_find(const tegroup_impl_gpu_call &call, int64_t t,
                                                                 WALK &walk, tegroup_impl_gpu_tile *tile,
                                                                 tegroup_impl_gpu_codes *codes) {
    const tegroup_gemm_desc &desc = call.desc;
    const int32_t lane = (int32_t)threadIdx.x & 31;
    walk.find(call, t, lane == 0 ? tile : NULL);
    if (!tile->valid || tile->k == 0) return;
    const int32_t g = tile->group;
    tegroup_impl_gpu_codes_reach(desc.a, call.views[TEGROUP_IMPL_A], g, &codes[TEGROUP_IMPL_A]);
    tegroup_impl_gpu_codes_reach(desc.b, call.views[TEGROUP_IMPL_B], g, &codes[TEGROUP_IMPL_B]);
    if (lane == 0) {
        const int64_t line = tile->row - tegroup_impl_block_of(&desc.d, &call.views[TEGROUP_IMPL_D], g).row0;
        tegroup_impl_gpu_codes_open(desc.a, desc.op == TEGROUP_OP_WGRAD, tile->a, tile->a_row, line, tile->m,
                                    &codes[0]);
        tegroup_impl_gpu_codes_open(desc.b, desc.op != TEGROUP_OP_FORWARD, tile->b, tile->b_row, tile->col, tile->n,
                                    &codes[1]);
        tile->alpha = tegroup_impl_scaled_alpha(&desc, g, (double)call.alpha);
    }
    __syncwarp();
}

static __global__ void __launch_bounds__(tegroup_impl_formats_block::THREADS)
    tegroup_impl_portable_formats_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                         const __grid_constant__ tegroup_impl_gpu_formats formats) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    typedef tegroup_impl_formats_block block_type;
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    unsigned char *const memory = tegroup_impl_memory + (128 - tegroup_impl_shared(tegroup_impl_memory) % 128) % 128;
    __shared__ tegroup_impl_gpu_walk<block_type::TILE, block_type::TILE, true> walk;
    __shared__ tegroup_impl_gpu_tile tile;
    __shared__ tegroup_impl_gpu_codes codes[2];
    __shared__ __align__(16) block_type::scales by[3];
    constexpr int CHUNKS = block_type::TILE / 8;
    if (threadIdx.x < 2) tegroup_impl_gpu_codes_begin(formats, (int)threadIdx.x, &codes[threadIdx.x]);
    if (threadIdx.x < 32) walk.begin(call);
    for (int64_t t = blockIdx.x;; t += gridDim.x) {
        __syncthreads();
        if (threadIdx.x < 32) tegroup_impl_formats_find(call, t, walk, &tile, codes);
        __syncthreads();
        if (!tile.valid) break;
        const tegroup_impl_gpu_tile here = tile;
        block_type block;
        if (here.k > 0) block.work(codes, formats, here.k, by, memory); /* else its sums are not looked at */
        const float *sums = (const float *)memory;
#pragma unroll 1
        for (int e = (int)threadIdx.x; e < block_type::TILE * CHUNKS; e += block_type::THREADS)
            tegroup_impl_gpu_finish(call.desc, here, e / CHUNKS, e % CHUNKS * 8,
                                    sums + e / CHUNKS * block_type::PADDED + e % CHUNKS * 8, tegroup_impl_as_is());
    }
#endif
}

/* ---- the call ---- */

static inline tegroup_status tegroup_impl_portable_formats_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                                struct CUstream_st *stream, tegroup_error *error) {
    tegroup_gemm_desc read = *desc;
    tegroup_impl_gpu_formats formats = tegroup_impl_gpu_formats_of(desc);
    tegroup_impl_gpu_call call;
    void *arguments[2];
    read.a = tegroup_impl_as_read(desc, TEGROUP_IMPL_A);
    read.b = tegroup_impl_as_read(desc, TEGROUP_IMPL_B);
    call = tegroup_impl_gpu_call_of(&read);
    arguments[0] = &call;
    arguments[1] = &formats;
    TEGROUP_IMPL_TRY(tegroup_impl_launch_planned(plan, arguments, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_rest(&call, stream, error));
    return tegroup_impl_formats_bias_grad(desc, &call, stream, error);
}
