/* ---- Hopper GEMM: weights that are decoded in registers ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/plan_types.h"
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
 * tiles. TMA loads codes, and tiles of 128 x 4 scales; each thread of the two warpgroups, which share a tile, decodes
 * those weights that wgmma takes from its registers. So no more than codes is read, and nothing written. Values and
 * the order of sums are those of the kernels of BF16, and so are the results' bits. */

template <int BITS_, int ROWS_, int K_>
struct tegroup_impl_sm90_weights_shape : tegroup_impl_sm90_shape<1, 64, ROWS_, false, 2, true> {
    typedef tegroup_impl_sm90_shape<1, 64, ROWS_, false, 2, true> base;
    /* Of a flipped tile COLS are rows of D; columns of D are its lines. */
    static constexpr int BITS = BITS_, K = K_, COLS = ROWS_;
    static constexpr bool ADDS_BIAS = true, SCALES_GROUPS = true, PACES = false;
    static constexpr int SMALLER = TEGROUP_IMPL_SM90_WEIGHTS_SMALLER(COLS);
    static constexpr int A_UNIT = 8 / BITS, B_BOXES = K / 64;
    static constexpr int LINE = K * BITS / 8; /* bytes of a line's codes in a stage */
    static constexpr int A_BYTES = base::TILE_M * LINE,
                         SCALE_BYTES = 1024, /* also where K has half: a stage begins at a multiple of 1,024 */
                         STAGE_BYTES = A_BYTES + B_BOXES * COLS * TEGROUP_IMPL_SM90_LINE + SCALE_BYTES,
                         STAGES = (TEGROUP_IMPL_SM90_SHARED - base::OTHER_BYTES) / STAGE_BYTES,
                         AT_ONCE = STAGES >= 6 ? 2 : 1, SHARED_BYTES = STAGES * STAGE_BYTES + base::OTHER_BYTES;
    static_assert(STAGES >= TEGROUP_IMPL_SM90_RING && A_BYTES % 1024 == 0, "a ring; swizzled operands");
    static constexpr bool AHEAD = BITS == 4 || COLS == 64; /* what was faster: docs/lab/decoded.md */
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

    /* What a thread decodes of every stage: of two lines that are eight apart, the same elements of each 16 of k. */
    struct share {
        uint32_t codes;   /* where the upper line's codes are in a stage */
        uint32_t swizzle; /* by which its chunks of 16 bytes are permuted */
        uint32_t pick;    /* by which __byte_perm picks its bytes: two of eight, each twice, or one of four */
        uint32_t scales;  /* where the upper line's scales are in a stage; the others are 128 bytes on */
    };
    static __device__ __forceinline__ share share_of(int group) {
        const uint32_t line = (uint32_t)(line_of(group) + tegroup_impl_thread() / 32 % 4 * 16 + lane() / 4),
                       q = (uint32_t)lane() % 4;
        share mine;
        mine.codes = line * SHAPE::LINE;
        mine.swizzle = line * SHAPE::LINE / 128 % SHAPE::CHUNKS * 16;
        mine.pick = SHAPE::BITS == 8 ? 2 * q * 0x0011u + (2 * q + 1) * 0x1100u : 0x4440u + q;
        mine.scales = SHAPE::STAGE_BYTES - SHAPE::SCALE_BYTES + line % 32 * 16 + line / 32 * 4;
        return mine;
    }
    __device__ __forceinline__ void multiply(int group) const {
        const share mine = share_of(group);
        uint32_t step = 0, rounds = 0;
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item *item = this->take(number);
            if (item->group < 0) break;
            if (item->lines > line_of(group)) work(group, *item, step, &rounds, mine);
            else this->see_off(group, step, this->steps_of(*item));
            step += this->steps_of(*item);
            this->give(number);
        }
    }
    __device__ __forceinline__ void work(int group, const tegroup_impl_sm90_item &item, uint32_t step, uint32_t *rounds,
                                         const share &mine) const {
        typedef typename SHAPE::template results<false> results;
        sums sum;
        if (SHAPE::BITS == 4 && call.weights.e4m3) add_up_fit<SHAPE::BITS == 4>(item, step, mine, sum);
        else add_up_fit<false>(item, step, mine, sum);
        if (call.has_bias)
            this->template store_halves<true>(group, item, false, *rounds, sum, tegroup_impl_as_is());
        else this->template store_halves<false>(group, item, false, *rounds, sum, tegroup_impl_as_is());
        *rounds += results::COUNT / results::USED;
    }
    /* Sums for a fitting tile. E4M3: what scales are. */
    template <bool E4M3>
    __device__ __forceinline__ void add_up_fit(const tegroup_impl_sm90_item &item, uint32_t step, const share &mine,
                                               sums &sum) const {
        constexpr bool FIVE = SHAPE::SMALLER > 1;
        static_assert(FIVE ? SHAPE::SMALLER == 4 : SHAPE::SMALLER == 1, "five widths or two");
        if (item.cols == SHAPE::fitting(0)) add_up<SHAPE::fitting(0), E4M3>(item, step, mine, sum);
        else if (!FIVE || item.cols == SHAPE::fitting(1)) add_up<SHAPE::fitting(1), E4M3>(item, step, mine, sum);
        else if (item.cols == SHAPE::fitting(2)) add_up<SHAPE::fitting(FIVE ? 2 : 0), E4M3>(item, step, mine, sum);
        else if (item.cols == SHAPE::fitting(3)) add_up<SHAPE::fitting(FIVE ? 3 : 0), E4M3>(item, step, mine, sum);
        else add_up<SHAPE::fitting(FIVE ? 4 : 0), E4M3>(item, step, mine, sum);
    }
    /* Sums for a fitting tile of WIDTH columns. AHEAD: half a stage is decoded while the other half is multiplied; else
     * the other warpgroup multiplies meanwhile. */
    template <int WIDTH, bool E4M3>
    __device__ __forceinline__ void add_up(const tegroup_impl_sm90_item &item, uint32_t step, const share &mine,
                                           sums &sum) const {
        float(&part)[WIDTH / 2] = reinterpret_cast<float(&)[WIDTH / 2]>(sum[0]);
        half_stage first, second;
        uint32_t four[2]; /* scales of each of the two lines */
        if (SHAPE::AHEAD) decode<0, E4M3>(step, 0, mine, four, first);
#pragma unroll 1
        for (int32_t k = 0; k < item.k; step++) {
            if (!SHAPE::AHEAD) decode<0, E4M3>(step, k, mine, four, first);
            if (!SHAPE::AHEAD) decode<1, E4M3>(step, k, mine, four, second);
            add<WIDTH, 0>(step, k > 0, first, part);
            if (SHAPE::K == 64 || k + 64 < item.k) { /* Behind the last column scales may be anything. */
                if (SHAPE::AHEAD) decode<1, E4M3>(step, k, mine, four, second);
                if (SHAPE::AHEAD) tegroup_impl_wgmma_wait<0>();
                add<WIDTH, 1>(step, true, second, part);
            }
            k += SHAPE::K;
            if (SHAPE::AHEAD && k < item.k) decode<0, E4M3>(step + 1, k, mine, four, first);
            tegroup_impl_wgmma_wait<0>();
            keep<WIDTH>(part);
            __syncwarp(); /* All lanes have read their codes. */
            this->release(step);
        }
    }
    /* Begins to multiply half a stage. */
    template <int WIDTH, int HALF>
    __device__ __forceinline__ void add(uint32_t step, bool adds, const half_stage &held,
                                        float (&part)[WIDTH / 2]) const {
        const uint64_t rows = tegroup_impl_wgmma_tile(ring + SHAPE::A_BYTES, 0)
                              + (step % STAGES * SHAPE::STAGE_BYTES >> 4);
        keep<WIDTH>(part);
        tegroup_impl_wgmma_begin();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            constexpr int BEFORE = HALF * EACH;
            tegroup_impl_wgmma_held<WIDTH>::multiply(
                part, held[i], rows + ((BEFORE + i) / 4 * (SHAPE::COLS * 128) + (BEFORE + i) % 4 * 32 >> 4),
                adds || i > 0);
        }
        tegroup_impl_wgmma_commit();
        keep<WIDTH>(part);
    }
    template <int WIDTH> static __device__ __forceinline__ void keep(float (&part)[WIDTH / 2]) {
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) asm volatile("" : "+f"(part[i])::"memory");
    }

    /* ---- codes to BF16 ---- */

    static __device__ __forceinline__ uint4 load_chunk(uint32_t from) {
        uint4 chunk;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
                     : "r"(from)
                     : "memory");
        return chunk;
    }
    static __device__ __forceinline__ uint32_t load_scales(uint32_t from) {
        uint32_t four;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(four) : "r"(from) : "memory");
        return four;
    }
    static __device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b) {
        return tegroup_impl_gpu_mul2(a, b, true);
    }

    /* Decodes this thread's share of half a stage, whose first column is `k`, once it is there. */
    template <int HALF, bool E4M3>
    __device__ __forceinline__ void decode(uint32_t step, int32_t k, const share &mine, uint32_t (&four)[2],
                                           half_stage &held) const {
        const uint32_t stage = ring + step % STAGES * SHAPE::STAGE_BYTES, codes = stage + mine.codes;
        const uint32_t scales = stage + mine.scales;
        if (HALF == 0) this->wait_full(step);
        /* The half's first scale, of four of a line that lie together. */
        const int first = HALF * EACH / (E4M3 ? 1 : 2) + (SHAPE::K == 64 && !E4M3 ? k / 32 % 4 : 0);
        const bool has_nan = SHAPE::BITS == 8 ? decode_eights<HALF>(codes, mine, held)
                                              : decode_fours<HALF>(codes, mine, held);
        if (HALF == 0 || first == 4) {
            four[0] = load_scales(scales + (uint32_t)(first / 4 * 512));
            four[1] = load_scales(scales + (uint32_t)(first / 4 * 512) + 128);
        }
        const uint32_t by[2] = {four[0] >> first % 4 * 8, four[1] >> first % 4 * 8};
        if (E4M3) scale_by_e4m3(by, held);
        else scale_by_e8m0(by, held);
        if (has_nan) restore_nans<HALF>(codes, mine, held);
    }
    /* Two codes, of the upper bytes of two halves, as wgmma has them in a register; times 2^-120. */
    static __device__ __forceinline__ uint32_t of_e4m3(uint32_t two) {
        return (two & 0x80008000u) | (two & 0x7f007f00u) >> 4;
    }
    /* The two codes of a byte, of its lower bits in the lower half; times 2^-126. */
    static __device__ __forceinline__ uint32_t of_e2m1(uint32_t byte) {
        return (byte * 0x01001000u & 0x80008000u) | (byte * 0x00040040u & 0x01c001c0u);
    }
    /* Chunk i of the upper line, or of the lower one. */
    static __device__ __forceinline__ uint4 load_chunk(uint32_t from, const share &mine, int i, int line) {
        return load_chunk(from + (uint32_t)(8 * line * SHAPE::LINE) + ((uint32_t)i * 16 ^ mine.swizzle));
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
            largest = __vmaxu2(largest, __vmaxu2(low & 0x7f007f00u, high & 0x7f007f00u));
            held[i / 2][i % 2] = of_e4m3(low);
            held[i / 2][2 + i % 2] = of_e4m3(high);
        }
        return largest >> 16 == 0x7f00u || (largest & 0xffffu) == 0x7f00u;
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
        const uint32_t flags = ((two & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
        return flags - (flags >> 15);
    }
    template <int HALF>
    static __device__ __forceinline__ bool decode_fours(uint32_t from, const share &mine, half_stage &held) {
#pragma unroll
        for (int i = 0; i < EACH; i += 2)
#pragma unroll
            for (int line = 0; line < 2; line++) {
                const uint4 chunk = load_chunk(from, mine, (HALF * EACH + i) / 2, line);
                held[i][line] = of_e2m1(__byte_perm(chunk.x, 0, mine.pick));
                held[i][2 + line] = of_e2m1(__byte_perm(chunk.y, 0, mine.pick));
                held[i + 1][line] = of_e2m1(__byte_perm(chunk.z, 0, mine.pick));
                held[i + 1][2 + line] = of_e2m1(__byte_perm(chunk.w, 0, mine.pick));
            }
        return false;
    }
    /* Scales of E8M0 of two lines, one for each 32 of k, times what makes good for the exponents of the codes. What is
     * too large for one factor is left for another. */
    static __device__ __forceinline__ void scale_by_e8m0(const uint32_t (&codes)[2], half_stage &held) {
        constexpr uint32_t POWER = SHAPE::BITS == 8 ? 120 : 126, MOST = 254 - POWER;
        uint32_t rest = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) { /* of a line and 32 of k */
            const uint32_t code = codes[i % 2] >> i / 2 * 8 & 0xffu, within = min(code, MOST),
                           factor = within * 0x00800080u + POWER * 0x00800080u;
            rest |= code - within;
#pragma unroll
            for (int x = 0; x < 4; x++) {
                uint32_t &to = held[i / 2 * 2 + x / 2][i % 2 + x % 2 * 2];
                to = mul2(to, factor);
            }
        }
        if (rest)
#pragma unroll
            for (int i = 0; i < EACH * 4; i++) {
                const uint32_t code = codes[i % 2] >> i / 8 * 8 & 0xffu, left = code - min(code, MOST);
                held[i / 4][i % 4] = mul2(held[i / 4][i % 4],
                                          code == 0xffu ? 0x7fff7fffu : left * 0x00800080u + 127 * 0x00800080u);
            }
    }
    /* Scales of E4M3 of two lines, one for each 16 of k. */
    static __device__ __forceinline__ void scale_by_e4m3(const uint32_t (&codes)[2], half_stage &held) {
        const uint32_t of_codes = tegroup_impl_gpu_decoding_of(TEGROUP_DTYPE_F4E2M1, true).power,
                       of_scales = tegroup_impl_gpu_decoding_of(TEGROUP_DTYPE_F8E4M3, true).power;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const uint32_t two = __byte_perm(codes[0], codes[1], (uint32_t)(i * 0x0011 + (4 + i) * 0x1100)),
                           scales = mul2(of_e4m3(two), of_scales) | nan_of(two);
#pragma unroll
            for (int r = 0; r < 4; r++)
                held[i][r] = mul2(mul2(held[i][r], of_codes), __byte_perm(scales, 0, r % 2 ? 0x3232 : 0x1010));
        }
    }
};
#endif

template <typename SHAPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_HOPPER ? TEGROUP_IMPL_SM90_THREADS : 32, 1)
    tegroup_impl_sm90_weights_kernel(const __grid_constant__ tegroup_impl_sm90_call call) {
#if TEGROUP_IMPL_HOPPER
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    const tegroup_impl_sm90_weights_block<SHAPE> block(call, tegroup_impl_memory);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); /* which the compiler sees to be uniform */
    block.init();
    if (warp < 4) {
        tegroup_impl_registers_give<40>();
        if (warp == 0) block.schedule();
        if (warp == 1 && (threadIdx.x & 31) == 0) block.load();
        if (warp > 1 && (threadIdx.x & 31) == 0) block.store(warp - 2);
    } else {
        tegroup_impl_registers_take<232>();
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
    int32_t shared_bytes;
} tegroup_impl_sm90_weights_code;

static inline const tegroup_impl_sm90_weights_code *tegroup_impl_sm90_weights_code_of(int32_t kernel) {
#define TEGROUP_IMPL_SM90_WEIGHTS_CODE(name, bits, rows, k)                                                \
    {TEGROUP_IMPL_SM90_WEIGHTS_KERNEL(tegroup_impl_sm90_weights_shape<bits, rows, k>),                     \
     tegroup_impl_sm90_weights_shape<bits, rows, k>::SHARED_BYTES},
    static const tegroup_impl_sm90_weights_code code[TEGROUP_IMPL_SM90_WEIGHTS_COUNT] = {
        TEGROUP_IMPL_SM90_WEIGHTS_KERNELS(TEGROUP_IMPL_SM90_WEIGHTS_CODE)};
#undef TEGROUP_IMPL_SM90_WEIGHTS_CODE
    return &code[kernel - TEGROUP_IMPL_SM90_KERNEL_COUNT];
}

static inline tegroup_status tegroup_impl_sm90_weights_choose(tegroup_plan *plan, int32_t kernel,
                                                              tegroup_error *error) {
    const tegroup_impl_sm90_weights_row *row = tegroup_impl_sm90_weights_row_of(kernel);
    const tegroup_impl_sm90_weights_code *code = tegroup_impl_sm90_weights_code_of(kernel);
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)kernel;
    plan->tile_m = row->rows;
    plan->tile_n = TEGROUP_IMPL_SM90_WEIGHTS_COLS;
    plan->tile_k = row->k;
    return tegroup_impl_cuda_status(tegroup_impl_planned(plan, code->kernel, TEGROUP_IMPL_SM90_THREADS,
                                                         code->shared_bytes, TEGROUP_IMPL_SM90_MOST_BLOCKS),
                                    "plan", "the kernel's attributes must be readable", error);
}
