/* ---- Portable GEMM: products of quantised operands ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/tensor_types.h"
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

/* Kernels for every format, operation and storage order, from SM80 on, one for scales of 8 bits and one for F32: they
 * multiply what is decoded nowhere else (cuda/portable_decoded.h). Values of 8 and 4 bits are exact in BF16, so their
 * codes are decoded on the way to shared memory, by arithmetic on bits that is the same on every GPU, and
 * multiplied by mma.sync in BF16 with FP32 sums (in F16 beside an operand of F16, where E4M3 and E5M2 are exact, too).
 * The products are exact then, and sums are those of the BF16 kernel; Hopper's FP8 instructions keep about 14 bits of
 * a sum (DeepSeek-V3 technical report, section 3.3.2), so these kernels do not use them (sm90_fp8.h does, for 128 of k
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
/* The same of both operands. A call of its own, as it may take divisions of 64 bits. */
static __device__ __noinline__ int64_t tegroup_impl_gpu_codes_run_of_both(const tegroup_impl_gpu_codes (&codes)[2],
                                                                          int64_t k, bool promotes) {
    return tegroup_impl_min(tegroup_impl_gpu_codes_run(codes[0], k, promotes),
                            tegroup_impl_gpu_codes_run(codes[1], k, promotes));
}

/* PROMOTES: scales are of F32, and multiply sums. */
template <bool PROMOTES> struct tegroup_impl_formats_block {
    static constexpr int TILE = 128, TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, THREADS = 512, MI = 2, NI = 4;
    static constexpr int PART_BYTES = TILE * TILE_K * 2, STAGE_BYTES = 2 * PART_BYTES, PADDED = TILE + 8;
    static constexpr int SHARED_BYTES = TILE * PADDED * 4 + 128; /* for sums, where two stages were; aligned */
    static constexpr int SCALES = PROMOTES ? 1 : 2;              /* that a thread loads for a step */
    static_assert(TILE * PADDED * 4 >= 2 * STAGE_BYTES, "two stages");
    static_assert(TILE * TILE_K == 16 * THREADS, "a thread has a piece of each operand, and a scale of 8 bits");
    static_assert(2 * TILE <= THREADS, "a thread has a scale of F32");

    /* Scales of a step: of 8 bits as halves of BF16, one for each piece if they are along the lines, else one for each
     * line and sixteen of k; or of F32, one for each line of both operands. */
    union scales {
        uint16_t halves[2][4 * TILE];
        float factors[2][TILE];
    };
    /* What a thread keeps of an operand of the tile. */
    struct operand {
        const char *from; /* its piece of the first step, if pieces are aligned */
        int32_t lines;
        bool along_k, aligned, scaled, k_is_inner;
    };

    operand of[2];
    tegroup_impl_gpu_line_scales mine[SCALES];
    int64_t block; /* of k, a power of two, in which a step stays; 0: that is worked out for each step */
    float part[MI][NI][4], sum[MI][NI][4]; /* sums over a block of k, and, PROMOTES, of such sums with their scales */
    uint32_t raw[2][8], code[SCALES];      /* the thread's pieces and scales of steps to come */

    static __device__ __forceinline__ int me() { return (int)threadIdx.x; }

    /* ---- where a thread's pieces and scales are ---- */

    /* Neighbouring threads have neighbouring pieces. across: the piece's line if it lies along k, or its k. */
    static __device__ __forceinline__ int32_t across(const operand &x) { return x.along_k ? me() / 4 : me() / 8; }
    static __device__ __forceinline__ int32_t along(const operand &x) { return (x.along_k ? me() % 4 : me() % 8) * 16; }
    /* Which line and k of a step a scale belongs to, and to which operand. */
    static __device__ __forceinline__ int scaled(int i) { return PROMOTES ? me() / TILE : i; }
    static __device__ __forceinline__ int32_t scaled_line(bool k_is_inner) {
        return PROMOTES || k_is_inner ? me() % TILE : me() % (TILE / 16) * 16;
    }
    static __device__ __forceinline__ int32_t scaled_k(bool k_is_inner) {
        return PROMOTES ? 0 : k_is_inner ? me() / TILE * 16 : me() / (TILE / 16);
    }

    __device__ __forceinline__ void open(const tegroup_impl_gpu_codes (&codes)[2]) {
        block = TEGROUP_IMPL_BLOCK_OF_ALL;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const tegroup_impl_gpu_codes &x = codes[i];
            of[i].lines = x.lines;
            of[i].along_k = x.along_k;
            of[i].aligned = x.aligned;
            of[i].scaled = x.of.facts != NULL;
            of[i].k_is_inner = x.k_is_inner;
            const int32_t line = x.along_k ? across(of[i]) : along(of[i]), k = x.along_k ? along(of[i]) : across(of[i]);
            of[i].from = x.data + (x.at + line * x.line_stride + k * x.k_stride) * x.bits / 8;
            if (!of[i].scaled) continue;
            if (PROMOTES) block = tegroup_impl_min(block, tegroup_impl_gpu_codes_k_block(x));
            if (tegroup_impl_gpu_codes_in_parts(x)) block = 0;
        }
#pragma unroll
        for (int i = 0; i < SCALES; i++) {
            mine[i].there = false;
            if (scaled(i) < 2) mine[i].open(codes[scaled(i)], scaled_line(codes[scaled(i)].k_is_inner));
        }
    }

    /* ---- steps ---- */

    __device__ __forceinline__ tegroup_impl_gpu_step step(const tegroup_impl_gpu_codes (&codes)[2], int64_t k,
                                                          int64_t end) const {
        const int64_t left = block > 0 ? block - (k & (block - 1))
                                       : tegroup_impl_gpu_codes_run_of_both(codes, k, PROMOTES),
                      run = tegroup_impl_min(left, end - k);
        tegroup_impl_gpu_step step;
        step.k = k;
        step.count = (int32_t)tegroup_impl_clamp(run, 0, TILE_K);
        step.ends = PROMOTES && step.count > 0 && run == step.count;
        return step;
    }

    /* ---- scales ---- */

    __device__ __forceinline__ void load_scales(const tegroup_impl_gpu_codes (&codes)[2],
                                                const tegroup_impl_gpu_step &step) {
#pragma unroll
        for (int i = 0; i < SCALES; i++) {
            code[i] = 0; /* of what does not exist: 0 times 0 is no NaN */
            if (!mine[i].there) continue;
            const tegroup_impl_gpu_codes &x = codes[scaled(i)];
            if (PROMOTES ? !step.ends : scaled_k(x.k_is_inner) >= step.count) continue;
            const int64_t at = mine[i].index(x, step.k + scaled_k(x.k_is_inner));
            code[i] = PROMOTES ? tegroup_impl_load_code(x.of.scale_dtype, x.of.scales, at)
                               : __ldg((const uint8_t *)x.of.scales + at) | 0x100u;
        }
    }
    __device__ __forceinline__ void store_scales(const tegroup_impl_gpu_codes (&codes)[2], scales *to) const {
#pragma unroll
        for (int i = 0; i < SCALES; i++) {
            if (scaled(i) >= 2) continue;
            const tegroup_impl_scaled &x = codes[scaled(i)].of;
            if (PROMOTES)
                to->factors[scaled(i)][me() % TILE] = x.facts ? tegroup_impl_f32_of_code(x.scale_dtype, code[i]) : 1.0f;
            else if (x.facts)
                to->halves[i][me()] = code[i] & 0x100u ? (uint16_t)tegroup_impl_gpu_half_of_scale(
                                          x.scale_dtype == TEGROUP_DTYPE_F8E8M0, code[i] & 0xffu)
                                                       : (uint16_t)0;
        }
    }

    /* ---- codes ---- */

    __device__ __forceinline__ void load(const tegroup_impl_gpu_codes (&codes)[2], const tegroup_impl_gpu_step &step) {
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const operand &x = of[which];
            const tegroup_impl_gpu_codes &all = codes[which];
            uint32_t(&words)[8] = raw[which];
            const int32_t line = x.along_k ? across(x) : along(x), k = x.along_k ? along(x) : across(x),
                          left = x.along_k ? step.count - along(x) : x.lines - along(x);
            const bool there = line < x.lines && k < step.count;
            if (there && left >= 16 && x.aligned && (!x.along_k || step.k % 16 == 0)) {
                tegroup_impl_gpu_piece_at(x.from + step.k * all.k_bits / 8, all.bits, words);
                continue;
            }
#pragma unroll
            for (int i = 0; i < 8; i++) words[i] = 0;
            if (there)
                tegroup_impl_gpu_piece_slowly(all, all.at + line * all.line_stride + (step.k + k) * all.k_stride,
                                              min(left, 16), words);
        }
    }
    /* Decodes what was loaded, multiplies it by scales of 8 bits, and stores it as the BF16 kernel's loader does; but
     * for pieces by which nothing is multiplied, as they have no line that exists, nor one that fills up sixteen. */
    __device__ __forceinline__ void decode(const tegroup_impl_gpu_codes (&codes)[2], bool bf16, const scales &by,
                                           unsigned char *stage) {
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const operand &x = of[which];
            const tegroup_impl_gpu_codes &all = codes[which];
            const uint16_t *halves = by.halves[which];
            uint32_t(&word)[8] = raw[which];
            if ((x.along_k ? across(x) & ~15 : along(x)) >= x.lines) continue;
            tegroup_impl_gpu_decode(tegroup_impl_gpu_decoding_of(all.dtype, bf16), all.bits, bf16, word);
            if (!PROMOTES && x.scaled) {
                if (x.along_k || !x.k_is_inner) { /* one scale */
                    const uint32_t one = x.along_k ? halves[along(x) / 16 * TILE + across(x)]
                                                   : halves[across(x) * (TILE / 16) + along(x) / 16];
#pragma unroll
                    for (int i = 0; i < 8; i++) word[i] = tegroup_impl_gpu_mul2(word[i], one | one << 16, true);
                } else {
                    const uint32_t *two = (const uint32_t *)(halves + across(x) / 16 * TILE + along(x));
#pragma unroll
                    for (int i = 0; i < 8; i++) word[i] = tegroup_impl_gpu_mul2(word[i], two[i], true);
                }
            }
            /* chunks of 16 bytes, permuted */
            unsigned char *row =
                stage + which * PART_BYTES + across(x) * 128 + (x.along_k ? 0 : along(x) / 64 * TILE_K * 128);
            const int chunk = along(x) % 64 / 8;
            *(uint4 *)(row + (chunk ^ (across(x) & 7)) * 16) = make_uint4(word[0], word[1], word[2], word[3]);
            *(uint4 *)(row + ((chunk + 1) ^ (across(x) & 7)) * 16) = make_uint4(word[4], word[5], word[6], word[7]);
        }
    }

    /* ---- products ---- */

    static __device__ __forceinline__ int warp_m() { return (int)threadIdx.x / 32 % 4 * 32; }
    static __device__ __forceinline__ int warp_n() { return (int)threadIdx.x / 128 * 32; }

    /* A warp has 32 x 32 of the tile; blocks of 16 lines that a short group has not are left out. */
    template <bool BF16, bool A_ALONG_K, bool B_ALONG_K>
    __device__ __forceinline__ void multiply_by(const unsigned char *stage, int32_t lines, int32_t count) {
        const int matrix = (int)threadIdx.x % 32 / 8, r = (int)threadIdx.x % 8;
        const uint32_t a = tegroup_impl_shared(stage)
                           + tegroup_impl_fragments<A_ALONG_K>(warp_m(), matrix & 1, matrix >> 1, r),
                       b = tegroup_impl_shared(stage) + PART_BYTES
                           + tegroup_impl_fragments<B_ALONG_K>(warp_n(), matrix >> 1, matrix & 1, r);
#pragma unroll
        for (int kk = 0; kk < TILE_K / 16; kk++) {
            uint32_t fa[MI][4], fb[NI / 2][4];
            if (kk * 16 >= count) break;
#pragma unroll
            for (int j = 0; j < NI / 2; j++)
                tegroup_impl_ldmatrix<!B_ALONG_K>(fb[j], tegroup_impl_fragment<B_ALONG_K>(b, 0, kk, j));
#pragma unroll
            for (int i = 0; i < MI; i++)
                tegroup_impl_ldmatrix<!A_ALONG_K>(fa[i], tegroup_impl_fragment<A_ALONG_K>(a, 0, kk, i));
#pragma unroll
            for (int i = 0; i < MI; i++)
                if (i * 16 < lines) {
#pragma unroll
                    for (int j = 0; j < NI; j++)
                        tegroup_impl_mma<BF16>(part[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
                }
        }
    }
    template <bool BF16> __device__ __forceinline__ void multiply(const unsigned char *stage, int32_t count) {
        const int32_t lines = of[0].lines - warp_m();
        if (lines <= 0 || of[1].lines <= warp_n()) return;
        if (of[0].along_k && of[1].along_k) multiply_by<BF16, true, true>(stage, lines, count);
        else if (of[0].along_k) multiply_by<BF16, true, false>(stage, lines, count);
        else if (of[1].along_k) multiply_by<BF16, false, true>(stage, lines, count);
        else multiply_by<BF16, false, false>(stage, lines, count);
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
    __device__ __forceinline__ void work(const tegroup_impl_gpu_codes (&codes)[2], bool bf16, int64_t end,
                                         scales (&by)[3], unsigned char *memory) {
        open(codes);
        tegroup_impl_gpu_step now = {0, 0, false}, next = now, after = step(codes, 0, end);
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) part[i][j][e] = sum[i][j][e] = 0;
        for (uint32_t s = 0; now.count + next.count + after.count > 0; s++) {
            const unsigned char *stage = memory + s % 2 * STAGE_BYTES;
            __syncthreads(); /* this step's stage, and the next one's scales, have been stored */
            if (next.count > 0) load(codes, next);
            load_scales(codes, after);
            if (now.count > 0) {
                if (!PROMOTES || bf16) multiply<true>(stage, now.count);
                else multiply<false>(stage, now.count);
            }
            if (now.ends) promote(by[s % 3]);
            if (next.count > 0) decode(codes, !PROMOTES || bf16, by[(s + 1) % 3], memory + (s + 1) % 2 * STAGE_BYTES);
            store_scales(codes, &by[(s + 2) % 3]);
            now = next;
            next = after;
            after = step(codes, next.k + next.count, end);
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
                        PROMOTES ? make_float2(sum[i][j][e], sum[i][j][e + 1])
                                 : make_float2(part[i][j][e], part[i][j][e + 1]);
        __syncthreads();
    }
};

/* ---- the kernels ---- */

/* Finds a tile and opens its operands, a and b as they are quantised: all threads of a block. The first warp finds the
 * tile, and of each operand a warp where its codes and scales are. Nobody may read the last tile any more. */
template <typename WALK>
static __device__ __forceinline__ void tegroup_impl_formats_find(const tegroup_impl_gpu_call &call,
                                                                 const tegroup_tensor &a, const tegroup_tensor &b,
                                                                 int64_t t, WALK &walk, tegroup_impl_gpu_tile &tile,
                                                                 tegroup_impl_gpu_codes (&codes)[2]) {
    const tegroup_gemm_desc &desc = call.desc;
    const int which = (int)threadIdx.x / 32;
    if (which == 0) walk.find(call, t, threadIdx.x == 0 ? &tile : NULL);
    __syncthreads();
    if (which < 2 && tile.valid && tile.k > 0) {
        const int32_t g = tile.group;
        tegroup_impl_gpu_codes_reach(which ? b : a, call.views[which], g, &codes[which]);
        if (threadIdx.x == 0) {
            const int64_t line = tile.row - tegroup_impl_block_of(&desc.d, &call.views[TEGROUP_IMPL_D], g).row0;
            tegroup_impl_gpu_codes_open(a, desc.op == TEGROUP_OP_WGRAD, tile.a, tile.a_row, line, tile.m, &codes[0]);
            tile.alpha = tegroup_impl_scaled_alpha(&desc, g, (double)call.alpha);
        } else if (threadIdx.x == 32)
            tegroup_impl_gpu_codes_open(b, desc.op != TEGROUP_OP_FORWARD, tile.b, tile.b_row, tile.col, tile.n,
                                        &codes[1]);
    }
    __syncthreads();
}

template <bool PROMOTES>
static __global__ void __launch_bounds__(tegroup_impl_formats_block<PROMOTES>::THREADS)
    tegroup_impl_portable_formats_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                         const __grid_constant__ tegroup_impl_gpu_formats formats) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    typedef tegroup_impl_formats_block<PROMOTES> block_type;
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    unsigned char *const memory = tegroup_impl_memory + (128 - tegroup_impl_shared(tegroup_impl_memory) % 128) % 128;
    __shared__ tegroup_impl_gpu_walk<block_type::TILE, block_type::TILE, true> walk;
    __shared__ tegroup_impl_gpu_tile tile;
    __shared__ tegroup_impl_gpu_codes codes[2];
    __shared__ __align__(16) typename block_type::scales by[3];
    constexpr int CHUNKS = block_type::TILE / 8;
    if (threadIdx.x < 2) tegroup_impl_gpu_codes_begin(formats, (int)threadIdx.x, &codes[threadIdx.x]);
    if (threadIdx.x < 32) walk.begin(call);
    for (int64_t t = blockIdx.x;; t += gridDim.x) {
        __syncthreads();
        tegroup_impl_formats_find(call, call.desc.a, call.desc.b, t, walk, tile, codes);
        if (!tile.valid) break;
        const tegroup_impl_gpu_tile here = tile;
        block_type block;
        if (here.k > 0) block.work(codes, formats.bf16, here.k, by, memory); /* else its sums are not looked at */
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
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    read.a = tegroup_impl_as_read(desc, TEGROUP_IMPL_A);
    read.b = tegroup_impl_as_read(desc, TEGROUP_IMPL_B);
    call = tegroup_impl_gpu_call_of(&read);
    arguments[0] = &call;
    arguments[1] = &formats;
    TEGROUP_IMPL_TRY(tegroup_impl_launch_planned(plan, arguments, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_rest(&call, stream, error));
    return tegroup_impl_formats_bias_grad(desc, &call, stream, error);
}
