/* ---- Hopper GEMM: weights that are decoded in registers ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/tensor_types.h"
#include "core/plan_types.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/choice.h"
#include "cuda/sm90_kernels.h"
#include "cuda/sm90_decoded.h"
#include "cuda/sm90_weights_kernels.h"
#include "cuda/launch.h"
#include "cuda/functor.h"
#include "cuda/call.h"
#include "cuda/codes.h"
#include "cuda/hopper.h"
#include "cuda/sm90_tiles.h"

/* The kernel of sm90_tiles.h for weights of MXFP8, MXFP4 or NVFP4 and rows of BF16: D^T = B A^T in flipped, fitting
 * tiles. TMA loads codes, and tiles of 128 x 4 scales; each thread of the warpgroups, which share a tile, decodes those
 * weights that wgmma takes from its registers. So no more than codes is read, and nothing written. Values and the order
 * of sums are those of the kernels of BF16, and so are the results' bits. */

template <int BITS_, bool INTERLEAVED_, int ROWS_, int K_, int MULTIPLIERS_>
struct tegroup_impl_sm90_weights_shape
    : tegroup_impl_sm90_shape<1, 64, ROWS_, false, (ROWS_ > 64) + 1, true, false, false, MULTIPLIERS_> {
    typedef tegroup_impl_sm90_shape<1, 64, ROWS_, false, (ROWS_ > 64) + 1, true, false, false, MULTIPLIERS_> base;
    /* Of a flipped tile COLS are rows of D; columns of D are its lines. */
    static constexpr int BITS = BITS_, K = K_, COLS = ROWS_;
    static constexpr bool INTERLEAVED = INTERLEAVED_;
    static constexpr int RELEASERS = 32; /* Scales come by bulk copies, whose writes racecheck sees. */
    static constexpr bool ADDS_BIAS = true, SCALES_GROUPS = true, PACES = false;
    static constexpr int SMALLER = TEGROUP_IMPL_SM90_WEIGHTS_SMALLER(COLS);
    static constexpr int LINE = K * BITS / 8; /* bytes of a line's codes in a stage */
    /* A tile begins at a multiple of 64 lines; its scales lie in memory in tiles of 128 lines. A stage has 1,024 bytes
     * for each of these, also where they have 512, since stages begin at multiples of 1,024. */
    static constexpr int A_BYTES = base::TILE_M * LINE, SCALE_BYTES = (base::TILE_M + 127) / 128 * 1024,
                         STAGE_BYTES = A_BYTES + K / 64 * COLS * TEGROUP_IMPL_SM90_LINE + SCALE_BYTES,
                         STAGES = (TEGROUP_IMPL_SM90_SHARED - base::OTHER_BYTES) / STAGE_BYTES,
                         SHARED_BYTES = STAGES * STAGE_BYTES + base::OTHER_BYTES;
    static_assert(STAGES >= TEGROUP_IMPL_SM90_RING && A_BYTES % 1024 == 0, "a ring; swizzled operands");
    /* Threads, and registers of those that do not multiply and of those that do. */
    static constexpr int THREADS = 128 * (1 + base::MULTIPLIERS), FEWER = base::MULTIPLIERS == 2 ? 72 : 56,
                         MORE = base::MULTIPLIERS == 2 ? 216 : 152;
    static_assert(128 * (FEWER + base::MULTIPLIERS * MORE) <= 65536, "a multiprocessor's registers");
    /* Codes are read in chunks of 16 bytes, of which a line has a power of two, permuted as TMA does. */
    static constexpr int CHUNKS = LINE / 16;
};

#if TEGROUP_IMPL_HOPPER
template <typename SHAPE> struct tegroup_impl_sm90_weights_block : tegroup_impl_sm90_multiplier<true, SHAPE> {
    typedef tegroup_impl_sm90_multiplier<true, SHAPE> base;
    typedef typename base::sums sums;
    using base::call;
    using base::lane;
    using base::line_of;
    using base::ring;
    using base::STAGES;
    static constexpr int EACH = SHAPE::K / 32; /* wgmmas of half a stage */
    typedef uint32_t half_stage[EACH][4];      /* weights, as wgmma takes them from registers */

    __device__ __forceinline__ tegroup_impl_sm90_weights_block(const tegroup_impl_sm90_call &c, unsigned char *memory)
        : base(c, memory) {}

    /* Where a stage is in the ring, and whether the ring has been through an odd number of rounds. */
    struct place {
        uint32_t slot, round;
        __device__ __forceinline__ void step_on() {
            if (++slot < STAGES) return;
            slot = 0;
            round ^= 1;
        }
    };
    /* Four scales of each of two lines. Of one of E8M0 that is above 2 `four` has 2, and `rest` its exponent's rest; of
     * one of E4M3 that is NaN `rest` has the highest bit. */
    struct scales {
        uint32_t four[2], rest[2];
    };

    /* ---- loading ---- */

    /* One thread loads the stages of every tile. Stages that hold codes are short, and would wait for its instructions
     * rather than for memory: what all stages of a tile have in common is found once. */
    __device__ __forceinline__ void load() const {
        place in = {0, 0};
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item item = *this->take(number);
            this->give(number);
            if (item.group < 0) break;
            const int smaller = (SHAPE::COLS - item.cols) / SHAPE::FIT - 1;
            const CUtensorMap *rows_map = smaller < 0 ? &call.map[TEGROUP_IMPL_A] : &call.smaller[smaller];
            const uint64_t rows_origin = item.origin[TEGROUP_IMPL_A] + (smaller < 0 ? 0 : call.further[smaller]);
            const bool ragged = call.ragged[TEGROUP_IMPL_A], rows_anywhere = this->anywhere(TEGROUP_IMPL_A),
                       codes_anywhere = this->anywhere(TEGROUP_IMPL_B);
            const int32_t rows_y = ragged ? item.cols - item.rows : item.j0, /* as in load_box */
                rows_z = !ragged ? (call.listed[TEGROUP_IMPL_A] ? 0 : item.group)
                                 : item.first_row[TEGROUP_IMPL_A] + item.j0 + item.rows,
                codes_z = call.listed[TEGROUP_IMPL_B] ? 0 : item.group;
            const uint32_t rows_bytes = (uint32_t)(SHAPE::K / 64 * item.cols * TEGROUP_IMPL_SM90_LINE);
            /* A tile of 128 x 4 scales is of so much of k. */
            const int scales_k = call.weights.e4m3 ? 64 : 128;
            const char *scales = scales_of(item);
            const bool more = SHAPE::SCALE_BYTES > 1024 && item.i0 % 128 + item.lines > 128; /* of the next 128 lines */
#pragma unroll 1
            for (int32_t k = 0; k < item.k; k += SHAPE::K, in.step_on()) {
                const uint32_t full = this->at(&this->rest->full[in.slot]), to = ring + in.slot * SHAPE::STAGE_BYTES,
                               scales_to = to + SHAPE::STAGE_BYTES - SHAPE::SCALE_BYTES,
                               scales_bytes = SHAPE::K > scales_k && k + scales_k < item.k ? 1024 : 512;
                tegroup_impl_barrier_wait(this->at(&this->rest->empty[in.slot]), in.round ^ 1);
                tegroup_impl_barrier_expect(full, SHAPE::A_BYTES + rows_bytes + scales_bytes * (more ? 2 : 1));
                tegroup_impl_tma_load(to, &call.map[TEGROUP_IMPL_B], full, k * SHAPE::BITS / 8, item.i0, codes_z,
                                      codes_anywhere, item.origin[TEGROUP_IMPL_B]);
#pragma unroll
                for (int i = 0; i < SHAPE::K / 64; i++)
                    tegroup_impl_tma_load(to + SHAPE::A_BYTES + i * SHAPE::COLS * TEGROUP_IMPL_SM90_LINE, rows_map,
                                          full, k + 64 * i, rows_y, rows_z, rows_anywhere, rows_origin);
                tegroup_impl_bulk_load(scales_to, scales, scales_bytes, full);
                if (more)
                    tegroup_impl_bulk_load(scales_to + 1024, scales + call.weights.lines_bytes, scales_bytes, full);
                if (SHAPE::K >= scales_k || k % scales_k != 0) scales += SHAPE::K > scales_k ? 1024 : 512;
            }
        }
    }
    /* The scales of a tile's first lines. Those of a listed buffer that begin off 16 bytes make NaN anyway. */
    __device__ __forceinline__ const char *scales_of(const tegroup_impl_sm90_item &item) const {
        const tegroup_tensor &b = call.call.desc.b;
        const char *group = tegroup_impl_listed(&b) ? (const char *)b.scale_pointers[item.group]
                                                    : (const char *)b.scale_inv + item.group * call.weights.group_bytes;
        return (const char *)((uintptr_t)group & ~(uintptr_t)15) + item.i0 / 128 * call.weights.lines_bytes;
    }

    /* ---- multiplying ---- */

    /* What a thread decodes of every stage: of two lines that are eight apart, the same elements of each 16 of k. */
    struct share {
        uint32_t codes;   /* where the upper line's codes are in a stage */
        uint32_t swizzle; /* by which its chunks of 16 bytes are permuted */
        uint32_t pick;    /* by which __byte_perm picks two bytes of eight, each twice, or one of four, four times */
        uint32_t among;   /* or, if codes are interleaved, at which byte this lane's begin among those of 64 of k */
        uint32_t scales;  /* where the upper line's scales are in a stage; the others are 128 bytes on */
    };
    static __device__ __forceinline__ share share_of(int group, int32_t first_line) {
        const uint32_t line = (uint32_t)(line_of(group) + tegroup_impl_thread() / 32 % 4 * 16 + lane() / 4),
                       scaled = line + (uint32_t)first_line % 128, q = (uint32_t)lane() % 4;
        share mine;
        mine.codes = line * SHAPE::LINE;
        mine.swizzle = line * SHAPE::LINE / 128 % SHAPE::CHUNKS * 16;
        mine.pick = SHAPE::BITS == 8 ? 2 * q * 0x0011u + (2 * q + 1) * 0x1100u : 0x1111u * q;
        mine.among = 2 * SHAPE::BITS * q;
        mine.scales =
            SHAPE::STAGE_BYTES - SHAPE::SCALE_BYTES + scaled / 128 * 1024 + scaled % 32 * 16 + scaled % 128 / 32 * 4;
        return mine;
    }
    __device__ __forceinline__ void multiply(int group) const {
        uint32_t step = 0, rounds = 0;
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item *item = this->take(number);
            if (item->group < 0) break;
            if (item->lines > line_of(group)) work(group, *item, step, &rounds);
            else this->see_off(group, step, this->steps_of(*item));
            step += this->steps_of(*item);
            this->give(number);
        }
    }
    __device__ __forceinline__ void work(int group, const tegroup_impl_sm90_item &item, uint32_t step,
                                         uint32_t *rounds) const {
        typedef typename SHAPE::template results<false> results;
        const share mine = share_of(group, item.i0);
        sums sum;
        if (SHAPE::BITS == 4 && call.weights.e4m3) add_up_fit<SHAPE::BITS == 4>(item, step, mine, sum);
        else add_up_fit<false>(item, step, mine, sum);
        if (call.has_bias)
            this->template store_halves<true>(group, item, false, *rounds, sum, tegroup_impl_as_is());
        else this->template store_halves<false>(group, item, false, *rounds, sum, tegroup_impl_as_is());
        *rounds += results::COUNT / results::USED;
    }
    /* Sums for a fitting tile, which is as wide as fitting(I) or less. E4M3: what scales are. */
    template <bool E4M3, int I = 0>
    __device__ __forceinline__ void add_up_fit(const tegroup_impl_sm90_item &item, uint32_t step, const share &mine,
                                               sums &sum) const {
        if (I == SHAPE::SMALLER || item.cols == SHAPE::fitting(I))
            add_up<SHAPE::fitting(I), E4M3>(item, step, mine, sum);
        else add_up_fit<E4M3, I == SHAPE::SMALLER ? I : I + 1>(item, step, mine, sum);
    }
    /* Sums for a fitting tile of WIDTH columns. Half a stage is decoded while the other half is multiplied. */
    template <int WIDTH, bool E4M3>
    __device__ __forceinline__ void add_up(const tegroup_impl_sm90_item &item, uint32_t step, const share &mine,
                                           sums &sum) const {
        float(&part)[WIDTH / 2] = reinterpret_cast<float(&)[WIDTH / 2]>(sum[0]);
        const int32_t whole = item.k;
        half_stage first, second;
        scales of_lines;
        place in = {step % STAGES, step / STAGES & 1};
        decode<0, E4M3>(in, 0, mine, of_lines, first);
#pragma unroll 1
        for (int32_t k = 0; k < whole;) {
            const place now = in;
            add<WIDTH, 0>(now, k > 0, first, part);
            if (SHAPE::K == 64 || k + 64 < whole) { /* Behind the last column scales may be anything. */
                decode<1, E4M3>(now, k, mine, of_lines, second);
                tegroup_impl_wgmma_wait<0>();
                add<WIDTH, 1>(now, true, second, part);
            }
            k += SHAPE::K;
            in.step_on();
            if (k < whole) decode<0, E4M3>(in, k, mine, of_lines, first);
            tegroup_impl_wgmma_wait<0>();
            tegroup_impl_wgmma_keep(part);
            tegroup_impl_barrier_arrive(this->at(&this->rest->empty[now.slot]));
        }
    }
    /* Begins to multiply half a stage. */
    template <int WIDTH, int HALF>
    __device__ __forceinline__ void add(place in, bool adds, const half_stage &held, float (&part)[WIDTH / 2]) const {
        const uint64_t rows = tegroup_impl_wgmma_tile(ring + SHAPE::A_BYTES, 0) + (in.slot * SHAPE::STAGE_BYTES >> 4);
        tegroup_impl_wgmma_keep(part);
        tegroup_impl_wgmma_begin();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            constexpr int BEFORE = HALF * EACH;
            tegroup_impl_wgmma_held<WIDTH>::multiply(
                part, held[i], rows + ((BEFORE + i) / 4 * (SHAPE::COLS * 128) + (BEFORE + i) % 4 * 32 >> 4),
                adds || i > 0);
        }
        tegroup_impl_wgmma_commit();
        tegroup_impl_wgmma_keep(part);
    }

    /* ---- codes to BF16 ---- */

    static __device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b) {
        return tegroup_impl_gpu_mul2(a, b, true);
    }

    /* Decodes this thread's share of half a stage, whose first column is `k`, once it is there. */
    template <int HALF, bool E4M3>
    __device__ __forceinline__ void decode(place in, int32_t k, const share &mine, scales &of_lines,
                                           half_stage &held) const {
        const uint32_t stage = ring + in.slot * SHAPE::STAGE_BYTES, codes = stage + mine.codes;
        if (HALF == 0) tegroup_impl_barrier_wait(this->at(&this->rest->full[in.slot]), in.round);
        /* The half's first scale, of four of a line that lie together. */
        const int first = HALF * EACH / (E4M3 ? 1 : 2) + (SHAPE::K == 64 && !E4M3 ? k / 32 % 4 : 0);
        bool has_nan = false; /* codes of four bits have none */
        if (SHAPE::INTERLEAVED) has_nan = decode_interleaved<HALF>(codes, mine, held);
        else if (SHAPE::BITS == 8) has_nan = decode_eights<HALF>(codes, mine, held);
        else decode_fours<HALF>(codes, mine, held);
        if (HALF == 0 || first == 4)
#pragma unroll
            for (int line = 0; line < 2; line++) {
                const uint32_t four = tegroup_impl_load_word(stage + mine.scales
                                                             + (uint32_t)(first / 4 * 512 + line * 128)),
                               high = four & 0x80808080u;
                of_lines.rest[line] =
                    E4M3 ? (four & 0x7f7f7f7fu) + 0x01010101u & 0x80808080u : four & (high - (high >> 7));
                of_lines.four[line] = E4M3 ? four : four ^ of_lines.rest[line];
            }
        if (E4M3) scale_by_e4m3(of_lines, first % 4, held);
        else scale_by_e8m0(of_lines, first % 4, held);
        if (has_nan && SHAPE::INTERLEAVED) restore_interleaved_nans<HALF>(codes, mine, held);
        else if (has_nan) restore_nans<HALF>(codes, mine, held);
    }
    /* The lower half of two, twice, and the upper one: a product reads them without an instruction for that. */
    static __device__ __forceinline__ uint32_t lower(uint32_t two) {
        uint32_t twice;
        asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low};}" : "=r"(twice) : "r"(two));
        return twice;
    }
    static __device__ __forceinline__ uint32_t upper(uint32_t two) {
        uint32_t twice;
        asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high};}" : "=r"(twice) : "r"(two));
        return twice;
    }
    /* Chunk i of the upper line, or of the lower one. */
    static __device__ __forceinline__ uint4 load_chunk(uint32_t from, const share &mine, int i, int line) {
        return tegroup_impl_load_chunk(from + (uint32_t)(8 * line * SHAPE::LINE) + ((uint32_t)i * 16 ^ mine.swizzle));
    }
    /* Codes of E4M3, NaN as 480. Returns whether there is one. */
    template <int HALF>
    static __device__ __forceinline__ bool decode_eights(uint32_t from, const share &mine, half_stage &held) {
        uint32_t largest = 0;
#pragma unroll
        for (int i = 0; i < 2 * EACH; i++) {
            const uint4 chunk = load_chunk(from, mine, HALF * EACH + i / 2, i % 2);
            const uint32_t low = __byte_perm(chunk.x, chunk.y, mine.pick),
                           high = __byte_perm(chunk.z, chunk.w, mine.pick);
            largest = __vmaxu2(largest, __vmaxu2(low & 0x007f007fu, high & 0x007f007fu));
            held[i / 2][i % 2] = tegroup_impl_gpu_two_of_e4m3(low);
            held[i / 2][2 + i % 2] = tegroup_impl_gpu_two_of_e4m3(high);
        }
        return largest >> 16 == 0x7fu || (largest & 0xffffu) == 0x7fu;
    }
    template <int HALF>
    static __device__ __forceinline__ void restore_nans(uint32_t from, const share &mine, half_stage &held) {
#pragma unroll
        for (int i = 0; i < 2 * EACH; i++) {
            const uint4 chunk = load_chunk(from, mine, HALF * EACH + i / 2, i % 2);
            held[i / 2][i % 2] |= nan_of(__byte_perm(chunk.x, chunk.y, mine.pick));
            held[i / 2][2 + i % 2] |= nan_of(__byte_perm(chunk.z, chunk.w, mine.pick));
        }
    }
    /* What makes NaN of those of two codes that are. */
    static __device__ __forceinline__ uint32_t nan_of(uint32_t two) {
        const uint32_t flags = tegroup_impl_gpu_nans_of_e4m3(two);
        return flags - (flags >> 15);
    }
    template <int HALF>
    static __device__ __forceinline__ void decode_fours(uint32_t from, const share &mine, half_stage &held) {
        uint4 chunks[EACH]; /* of a line and 32 of k */
#pragma unroll
        for (int i = 0; i < EACH; i++) chunks[i] = load_chunk(from, mine, (HALF * EACH + i) / 2, i % 2);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = i / 2 * 2, line = i % 2;
            held[at][line] = tegroup_impl_gpu_two_of_e2m1(__byte_perm(chunks[i].x, 0, mine.pick));
            held[at][2 + line] = tegroup_impl_gpu_two_of_e2m1(__byte_perm(chunks[i].y, 0, mine.pick));
            held[at + 1][line] = tegroup_impl_gpu_two_of_e2m1(__byte_perm(chunks[i].z, 0, mine.pick));
            held[at + 1][2 + line] = tegroup_impl_gpu_two_of_e2m1(__byte_perm(chunks[i].w, 0, mine.pick));
        }
    }
    /* Loads a lane's interleaved codes of half a stage and of a line: of 32 of k a word, or of 8 bits two. */
    template <int HALF>
    static __device__ __forceinline__ void load_interleaved(uint32_t from, const share &mine, int line,
                                                            uint32_t (&words)[4]) {
        /* Where the half begins: its 64 of k in the line, or its 32 of k among a lane's codes. */
        constexpr uint32_t BLOCK = EACH == 4 ? 8 * SHAPE::BITS * HALF : 0, WITHIN = EACH == 4 ? 0 : SHAPE::BITS * HALF;
        const uint32_t at = from + (uint32_t)(8 * line * SHAPE::LINE)
                            + (BLOCK + mine.among / 16 * 16 ^ mine.swizzle) + mine.among % 16 + WITHIN;
        if (EACH * SHAPE::BITS == 32) {
            const uint4 chunk = tegroup_impl_load_chunk(at);
            words[0] = chunk.x, words[1] = chunk.y, words[2] = chunk.z, words[3] = chunk.w;
        } else if (EACH * SHAPE::BITS == 16) {
            uint32_t two[2];
            tegroup_impl_load_words(at, two);
            words[0] = two[0], words[1] = two[1];
        } else words[0] = tegroup_impl_load_word(at);
    }
    /* Decodes them; formats/code_order.h says where their bits are. NaN is 480; returns whether there is one. */
    template <int HALF>
    static __device__ __forceinline__ bool decode_interleaved(uint32_t from, const share &mine, half_stage &held) {
        constexpr uint32_t PAIR = SHAPE::BITS == 8 ? 0x87f087f0u : 0x81c081c0u;
        uint32_t nans = 0;
#pragma unroll
        for (int line = 0; line < 2; line++) {
            uint32_t words[4];
            load_interleaved<HALF>(from, mine, line, words);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (SHAPE::BITS == 8) {
                    held[i][line] = words[i] & PAIR;
                    held[i][2 + line] = (words[i] << 4 & 0x80f080f0u) | (words[i] >> 4 & 0x07000700u);
                    nans |= held[i][line] + 0x00100010u | held[i][2 + line] + 0x00100010u;
                } else {
                    const uint32_t word = words[i / 2]; /* whose fourth pair is in the upper byte of each half */
                    held[i][line] = i % 2 == 0 ? word & PAIR : word << 6 & PAIR;
                    held[i][2 + line] = i % 2 == 0 ? word << 3 & PAIR
                                                   : (__byte_perm(word, 0, 0x4341) & 0x006c006cu) * 0x00000421u & PAIR;
                }
            }
        }
        return SHAPE::BITS == 8 && (nans & 0x08000800u) != 0;
    }
    template <int HALF>
    static __device__ __forceinline__ void restore_interleaved_nans(uint32_t from, const share &mine,
                                                                    half_stage &held) {
        half_stage codes;
        decode_interleaved<HALF>(from, mine, codes);
#pragma unroll
        for (int i = 0; i < EACH * 4; i++) {
            const uint32_t flags = (codes[i / 4][i % 4] + 0x00100010u & 0x08000800u) << 4;
            held[i / 4][i % 4] |= flags - (flags >> 15);
        }
    }
    /* Scales of E8M0 of two lines, one for each 32 of k, times what makes good for the exponents of the codes. What is
     * too large for one factor is left for another. */
    static __device__ __forceinline__ void scale_by_e8m0(const scales &of_lines, int first, half_stage &held) {
        constexpr uint32_t POWER = SHAPE::BITS == 8 ? 120 : 126;
        uint32_t factors[2]; /* of a line: of the first 32 of k, and of the second if EACH is 4 */
#pragma unroll
        for (int line = 0; line < 2; line++)
            factors[line] =
                __byte_perm(of_lines.four[line], 0, (uint32_t)(0x4040 + first + (first + 1 & 3) * 0x0100)) * 0x80u
                + POWER * 0x00800080u;
#pragma unroll
        for (int i = 0; i < EACH * 4; i++)
            held[i / 4][i % 4] = mul2(held[i / 4][i % 4], i < 8 ? lower(factors[i % 2]) : upper(factors[i % 2]));
        if (of_lines.rest[0] | of_lines.rest[1])
#pragma unroll
            for (int i = 0; i < EACH * 4; i++) {
                const uint32_t left = of_lines.rest[i % 2] >> (first + i / 8) * 8 & 0xffu;
                held[i / 4][i % 4] =
                    mul2(held[i / 4][i % 4], left == 127 ? 0x7fff7fffu : left * 0x00800080u + 127 * 0x00800080u);
            }
    }
    /* Scales of E4M3 of two lines, one for each 16 of k. Two products, since codes times 2^126 are exact. */
    static __device__ __forceinline__ void scale_by_e4m3(const scales &of_lines, int first, half_stage &held) {
        const uint32_t of_codes = tegroup_impl_gpu_decoding_of(TEGROUP_DTYPE_F4E2M1, true).power,
                       of_scales = tegroup_impl_gpu_decoding_of(TEGROUP_DTYPE_F8E4M3, true).power;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const uint32_t two = __byte_perm(of_lines.four[0], of_lines.four[1],
                                             (uint32_t)((first + i) * 0x0011 + (4 + first + i) * 0x1100)),
                           scales = mul2(tegroup_impl_gpu_two_of_e4m3(two), of_scales);
#pragma unroll
            for (int r = 0; r < 4; r++)
                held[i][r] = mul2(mul2(held[i][r], of_codes), r % 2 ? upper(scales) : lower(scales));
        }
        if (of_lines.rest[0] | of_lines.rest[1])
#pragma unroll
            for (int i = 0; i < EACH * 4; i++)
                if (of_lines.rest[i % 2] >> (first + i / 4) * 8 & 0x80u) held[i / 4][i % 4] = 0x7fff7fffu;
    }
};
#endif

template <typename SHAPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_HOPPER ? SHAPE::THREADS : 32, 1)
    tegroup_impl_sm90_weights_kernel(const __grid_constant__ tegroup_impl_sm90_call call) {
#if TEGROUP_IMPL_HOPPER
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    const tegroup_impl_sm90_weights_block<SHAPE> block(call, tegroup_impl_memory);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); /* which the compiler sees to be uniform */
    block.init();
    if (warp < 4) {
        tegroup_impl_registers_give<SHAPE::FEWER>();
        if (warp == 0) block.schedule();
        if (warp == 1 && (threadIdx.x & 31) == 0) block.load();
        if (warp > 1 && (threadIdx.x & 31) == 0) block.store(warp - 2);
    } else {
        tegroup_impl_registers_take<SHAPE::MORE>();
        block.multiply(warp / 4 - 1);
    }
#else
    __trap();
#endif
}

/* ---- the compiled kernels ---- */

#if TEGROUP_IMPL_SM90_HOLDS_WEIGHTS
#define TEGROUP_IMPL_SM90_WEIGHTS_KERNEL(...) (const void *)tegroup_impl_sm90_weights_kernel<__VA_ARGS__>
#else
#define TEGROUP_IMPL_SM90_WEIGHTS_KERNEL(...) (const void *)NULL
#endif

typedef struct tegroup_impl_sm90_weights_code {
    const void *kernel;
    int32_t threads, shared_bytes;
} tegroup_impl_sm90_weights_code;

static inline const tegroup_impl_sm90_weights_code *tegroup_impl_sm90_weights_code_of(int32_t kernel) {
#define TEGROUP_IMPL_SM90_WEIGHTS_SHAPE(bits, order, rows, k, multipliers)                                             \
    tegroup_impl_sm90_weights_shape<bits, TEGROUP_CODES_##order == TEGROUP_CODES_INTERLEAVED, rows, k, multipliers>
#define TEGROUP_IMPL_SM90_WEIGHTS_CODE(name, ...)                                                                      \
    {TEGROUP_IMPL_SM90_WEIGHTS_KERNEL(TEGROUP_IMPL_SM90_WEIGHTS_SHAPE(__VA_ARGS__)),                                   \
     TEGROUP_IMPL_SM90_WEIGHTS_SHAPE(__VA_ARGS__)::THREADS,                                                            \
     TEGROUP_IMPL_SM90_WEIGHTS_SHAPE(__VA_ARGS__)::SHARED_BYTES},
    static const tegroup_impl_sm90_weights_code code[TEGROUP_IMPL_SM90_WEIGHTS_COUNT] = {
        TEGROUP_IMPL_SM90_WEIGHTS_KERNELS(TEGROUP_IMPL_SM90_WEIGHTS_CODE)};
#undef TEGROUP_IMPL_SM90_WEIGHTS_CODE
#undef TEGROUP_IMPL_SM90_WEIGHTS_SHAPE
    return &code[kernel - TEGROUP_IMPL_SM90_KERNEL_COUNT];
}

static inline tegroup_status tegroup_impl_sm90_weights_choose(tegroup_plan *plan, int32_t kernel,
                                                              tegroup_error *error) {
    const tegroup_impl_sm90_weights_row *row = tegroup_impl_sm90_weights_row_of(kernel);
    const tegroup_impl_sm90_weights_code *code = tegroup_impl_sm90_weights_code_of(kernel);
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)kernel;
    plan->tile_m = row->rows;
    plan->tile_n = row->cols;
    plan->tile_k = row->k;
    return tegroup_impl_cuda_status(
        tegroup_impl_planned(plan, code->kernel, code->threads, code->shared_bytes, TEGROUP_IMPL_SM90_MOST_BLOCKS),
        "plan", "the kernel's attributes must be readable", error);
}
