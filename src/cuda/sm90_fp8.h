/* ---- Hopper GEMM of FP8: the kernel ---- */

#pragma once
#include "base/version.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "base/arithmetic.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "cuda/sm90_fp8_kernels.h"
#include "cuda/launch.h"
#include "cuda/functor.h"
#include "cuda/call.h"
#include "cuda/hopper.h"
#include "cuda/sm90_tiles.h"
#include "cuda/sm90_scheduler.h"

/* The kernel of sm90_tiles.h for operands of FP8, which wgmma takes contiguous along k alone. A forward product has
 * them so; a dgrad reads the transposed copy of the weights, and a weight gradient those of both operands, so that all
 * three are D = A B^T of rows along k.
 *
 * wgmma keeps about 14 bits of an FP8 sum. So a sum goes over the 128 of k of a stage and no further: then it is
 * multiplied by the scales of its row and its column, whose product is rounded to FP32, and added to the result's,
 * sum = fma(partial, scale, sum), in the order of k and the same in every tile. Where scales are for all of k, partial
 * sums are added as they are, and the sum is multiplied by scale at the end. The two warpgroups share a tile of many
 * rows, and take the tensor cores in turns: while one promotes its sums, the other multiplies. Of few rows each has a
 * tile of its own, and two partial sums, of which one is promoted while the other is multiplied.
 *
 * FAST kernels leave sums whose scales are for all of k in wgmma's accumulators, as kernels of BF16 do. */

/* How scales are applied. */
enum tegroup_impl_sm90_promotion {
    TEGROUP_IMPL_SM90_AT_END,    /* they are for all of k */
    TEGROUP_IMPL_SM90_SQUARE,    /* B's are for 128 columns or for all */
    TEGROUP_IMPL_SM90_LINES_BOTH /* any */
};

/* Parameters of a launch besides the call, whose a and b are the copies that are read, those of a dgrad as a forward
 * product's. */
typedef struct tegroup_impl_sm90_fp8 {
    tegroup_scaling_facts facts[2];
    int32_t promotion, a_e5m2, b_e5m2;
    /* Forward products, whose blocks find many groups' scales: those of one group, or where A is ragged, of one block
     * of rows; the logarithm of such a block (-1: one scale is for a group), and what blocks are padded to. */
    int64_t each[2];
    int32_t shift, pad;
    /* A weight gradient: [groups][2], where the scales of A and of B are. */
    const tegroup_impl_sm90_scales *of_groups;
} tegroup_impl_sm90_fp8;

template <int OP_, int LINES_, int COLS_, bool TURNS_, int SLABS_, bool NARROWS_, bool FAST_>
struct tegroup_impl_sm90_fp8_shape : tegroup_impl_sm90_shape<OP_, LINES_, COLS_, TURNS_, SLABS_> {
    typedef tegroup_impl_sm90_shape<OP_, LINES_, COLS_, TURNS_, SLABS_> base;
    static constexpr int K = TEGROUP_IMPL_SM90_FP8_K;
    static constexpr bool FAST = FAST_, OF_GROUPS = OP_ == TEGROUP_OP_WGRAD, NARROWS = NARROWS_,
                          BALANCES = NARROWS || OF_GROUPS, TAPERS = false, A_LINES = false, B_LINES = false,
                          PACES = false; /* it does not pay: docs/lab/fp8.md */
    static_assert(!NARROWS || (base::NARROWS && !OF_GROUPS), "tiles of 192 columns of a forward product");
    static constexpr int NARROW = NARROWS ? base::NARROW : COLS_;
    static __host__ __device__ __forceinline__ int32_t narrow(int32_t cols, int32_t k) {
        return NARROWS ? base::narrow(cols, k) : 0;
    }
    static constexpr int MORE_BYTES = 6656, OTHER_BYTES = base::OTHER_BYTES + MORE_BYTES;
    static constexpr int STAGES = (TEGROUP_IMPL_SM90_SHARED - OTHER_BYTES) / base::STAGE_BYTES,
                         AT_ONCE = STAGES >= 6 ? 2 : 1, SHARED_BYTES = STAGES * base::STAGE_BYTES + OTHER_BYTES;
    static_assert(STAGES >= TEGROUP_IMPL_SM90_RING && base::PARTS == 1,
                  "a ring that hides the way from L2; registers for sums");
};

/* What this kernel has in shared memory besides. */
template <typename SHAPE> struct tegroup_impl_sm90_fp8_more {
    tegroup_impl_sm90_scales scales[TEGROUP_IMPL_SM90_ITEMS][2]; /* of each scheduled tile's A and B, */
    uint64_t scaled[TEGROUP_IMPL_SM90_ITEMS];                    /* and barriers that say that they are there */
    /* Of each warpgroup: the scales of its tile's columns, then of its lines, of a step and of the two that come. */
    enum { SLOTS = 3, COUNT = SHAPE::COLS + 64 };
    float factors[2][SLOTS][COUNT];
};

#if TEGROUP_IMPL_HOPPER
template <bool FAST> struct tegroup_impl_sm90_fast {};

template <typename SHAPE> struct tegroup_impl_sm90_fp8_block : tegroup_impl_sm90_multiplier<true, SHAPE> {
    typedef tegroup_impl_sm90_multiplier<true, SHAPE> base;
    typedef typename base::sums sums;
    using base::at;
    using base::call;
    using base::give;
    using base::ITEMS;
    using base::lane;
    using base::line_of;
    using base::rest;
    using base::ring;
    using base::STAGES;
    using base::take;
    static constexpr int COLS = SHAPE::COLS;
    template <int PROMOTION> struct factors;
    const tegroup_impl_sm90_fp8 &fp8;
    tegroup_impl_sm90_fp8_more<SHAPE> *more;

    __device__ __forceinline__ tegroup_impl_sm90_fp8_block(const tegroup_impl_sm90_call &c,
                                                           const tegroup_impl_sm90_fp8 &f, unsigned char *memory)
        : base(c, memory), fp8(f) {
        static_assert(sizeof *more <= SHAPE::MORE_BYTES, "scales");
        more = (tegroup_impl_sm90_fp8_more<SHAPE> *)((unsigned char *)rest + TEGROUP_IMPL_SM90_REST);
    }

    __device__ __forceinline__ void init() const {
        if (threadIdx.x == 32)
            for (int i = 0; i < ITEMS; i++)
                tegroup_impl_barrier_init(at(&more->scaled[i]), 2); /* lanes, of which racecheck wants each to say so */
        base::init();
    }

    /* ---- scheduler warp ---- */

    /* As the base's, with scales, which are found after a tile, so that its operands are loaded meanwhile. Those of a
     * weight gradient are looked up; A's others are counted, as their tiles come in the order of groups. */
    __device__ __forceinline__ void schedule() const {
        tegroup_impl_sm90_walk<SHAPE> walk(call, this->prepared());
        tegroup_impl_sm90_scales scales; /* of this lane's operand: lane 0 has A, lane 1 B */
        int64_t before = 0;              /* scales that A's groups before `group` take */
        int32_t group = -1;
        bool there = true;
        for (int32_t number = 0; there; number++) {
            tegroup_impl_sm90_item item;
            item.group = -1;
            there = walk.next(&item);
            this->publish(number, item);
            if (there && item.group != group) {
                if (!SHAPE::OF_GROUPS) before += count_scales((int32_t)tegroup_impl_max(0, group), item.group);
                group = item.group;
                if (lane() < 2)
                    scales = SHAPE::OF_GROUPS
                                 ? fp8.of_groups[2 * group + lane()]
                                 : tegroup_impl_sm90_scales_of(lane() ? &call.call.desc.b : &call.call.desc.a,
                                                               &fp8.facts[lane()], &call.call.views[lane()], group, 0,
                                                               lane() ? group * fp8.each[TEGROUP_IMPL_B] : before);
            }
            if (lane() < 2) {
                more->scales[number % ITEMS][lane()] = scales;
                tegroup_impl_barrier_arrive(at(&more->scaled[number % ITEMS]));
            }
            __syncwarp();
            if (SHAPE::TURNS && there && item.k > 0) fetch(item, more->scales[number % ITEMS][TEGROUP_IMPL_B]);
        }
    }
    /* Brings B's scales of a tile to L2. While weights of few rows are read as fast as memory gives them, a scale that
     * is not there would be waited for behind all of them. */
    __device__ __forceinline__ void fetch(const tegroup_impl_sm90_item &item,
                                          const tegroup_impl_sm90_scales &scales) const {
        const int32_t first = item.j0 + (scales_steps() ? 0 : lane() * (COLS / 32)),
                      steps = scales_steps() ? (int32_t)this->steps_of(item) : 0;
        const float *const from = first_of(scales, first, end_of_columns());
        if (!scales_steps()) tegroup_impl_prefetch(from);
#pragma unroll 1
        for (int32_t s = lane(); s < steps; s += 32) tegroup_impl_prefetch(from + s * scales.k_stride);
    }
    /* Whether sums are scaled a step at a time. */
    __device__ __forceinline__ bool scales_steps() const {
        return !SHAPE::FAST && fp8.promotion != TEGROUP_IMPL_SM90_AT_END;
    }
    /* The scales of A's groups from `first` up to `end`: tegroup_impl_scale_grid_alone in few steps. */
    __device__ __forceinline__ int64_t count_scales(int32_t first, int32_t end) const {
        const tegroup_tensor &a = call.call.desc.a;
        const tegroup_snapshot_view &view = call.call.views[TEGROUP_IMPL_A];
        int64_t blocks = 0;
        if (!view.rows || fp8.shift < 0) return (end - first) * fp8.each[TEGROUP_IMPL_A];
#pragma unroll 1
        for (int32_t g = first + lane(); g < end; g += 32) {
            const int32_t rows = (int32_t)tegroup_impl_group_sides(&a, &view, g).rows,
                          whole = (rows >> fp8.shift) + ((rows & ((1 << fp8.shift) - 1)) > 0);
            blocks += (whole + fp8.pad - 1) & -fp8.pad;
        }
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) blocks += __shfl_xor_sync(0xffffffffu, blocks, apart);
        return blocks * fp8.each[TEGROUP_IMPL_A];
    }

    /* ---- multiplying warpgroups ---- */

    /* As the base's. */
    __device__ __forceinline__ void multiply(int group) const {
        uint32_t step = 0, rounds = 0;
        int32_t number = 0;
        if (SHAPE::TURNS && group == 1) this->pass(&number, &step);
        for (;;) {
            const tegroup_impl_sm90_item *item = take(number);
            if (item->group < 0) break;
            const bool works = item->lines > line_of(group);
            if (works) tegroup_impl_barrier_wait(at(&more->scaled[number % ITEMS]), number / ITEMS & 1);
            /* A sum without terms has no scales: their address may be NULL. */
            if (works && item->k > 0 && !scales_steps()) keep_columns(group, *item, more->scales[number % ITEMS][1]);
            if (works) {
                work(group, number, *item, more->scales[number % ITEMS], step, &rounds);
            } else {
                await(group, number);
                this->see_off(group, step, this->steps_of(*item));
            }
            step += this->steps_of(*item);
            give(number);
            number++;
            if (SHAPE::TURNS) this->pass(&number, &step);
        }
    }
    /* Waits for the warpgroup's turn: scales of the first steps, or of all, are asked for before. */
    __device__ __forceinline__ void await(int group, int32_t number) const {
        if (SHAPE::TURNS) tegroup_impl_barrier_wait(at(&rest->turn[group]), (number / 2 & 1) ^ (group == 0));
    }
    __device__ __forceinline__ void work(int group, int32_t number, const tegroup_impl_sm90_item &item,
                                         const tegroup_impl_sm90_scales *scales, uint32_t step,
                                         uint32_t *rounds) const {
        const bool adds = item.beta != 0, terms = adds || call.has_bias;
        const uint32_t steps = this->steps_of(item);
        sums sum;
        if (steps == 0) {
            await(group, number);
            this->nothing(group, adds, sum);
        } else add_up_all(group, number, item, scales, step, steps, sum, tegroup_impl_sm90_fast<SHAPE::FAST>());
        if (this->is_wide() && terms)
            this->template store_wide<true>(group, item, adds, *rounds, sum, tegroup_impl_as_is());
        else if (this->is_wide())
            this->template store_wide<false>(group, item, false, *rounds, sum, tegroup_impl_as_is());
        else if (terms) this->template store_halves<true>(group, item, adds, *rounds, sum, tegroup_impl_as_is());
        else this->template store_halves<false>(group, item, false, *rounds, sum, tegroup_impl_as_is());
        *rounds += this->is_wide() ? SHAPE::template results<true>::COUNT / SHAPE::template results<true>::USED
                                   : SHAPE::template results<false>::COUNT / SHAPE::template results<false>::USED;
    }
    /* Sums that wgmma keeps. */
    __device__ __forceinline__ void add_up_all(int group, int32_t number, const tegroup_impl_sm90_item &item,
                                               const tegroup_impl_sm90_scales *scales, uint32_t first, uint32_t steps,
                                               sums &sum, tegroup_impl_sm90_fast<true>) const {
        await(group, number);
        if (fp8.a_e5m2 && fp8.b_e5m2) add_up_eights<true, true>(group, item, first, steps, sum);
        else if (fp8.a_e5m2) add_up_eights<true, false>(group, item, first, steps, sum);
        else if (fp8.b_e5m2) add_up_eights<false, true>(group, item, first, steps, sum);
        else add_up_eights<false, false>(group, item, first, steps, sum);
        scale(group, item, scales[0], sum);
    }
    template <bool A_E5M2, bool B_E5M2>
    __device__ __forceinline__ void add_up_eights(int group, const tegroup_impl_sm90_item &item, uint32_t first,
                                                  uint32_t steps, sums &sum) const {
        typedef tegroup_impl_wgmma_eights<A_E5M2, B_E5M2> eights;
        if (SHAPE::TURNS) base::template add_up<COLS, eights>(group, first, steps, sum);
        else if (this->narrow(item)) add_up_kept<SHAPE::NARROW, A_E5M2, B_E5M2>(group, first, steps, sum[0]);
        else add_up_kept<COLS, A_E5M2, B_E5M2>(group, first, steps, sum[0]);
    }
    /* Two warpgroups that share a tile each wait for a stage's products while the other's are made. */
    template <int WIDTH, bool A_E5M2, bool B_E5M2>
    __device__ __forceinline__ void add_up_kept(int group, uint32_t first, uint32_t steps,
                                                float (&sum)[COLS / 2]) const {
        const uint64_t a = tegroup_impl_wgmma_tile(ring + line_of(group) * 128, 0),
                       b = tegroup_impl_wgmma_tile(ring + SHAPE::A_BYTES, 0);
        float(&part)[WIDTH / 2] = reinterpret_cast<float(&)[WIDTH / 2]>(sum);
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) part[i] = 0;
#pragma unroll 1
        for (uint32_t step = first; step < first + steps; step++) {
            const uint64_t offset = (uint64_t)(step % STAGES * (SHAPE::STAGE_BYTES >> 4));
            this->wait_full(step);
            multiply_stage_of<WIDTH, A_E5M2, B_E5M2, true>(a + offset, b + offset, part);
            tegroup_impl_wgmma_wait<0>();
            tegroup_impl_wgmma_keep(part);
            this->release(step);
        }
    }
    /* Sums that are promoted. */
    __device__ __forceinline__ void add_up_all(int group, int32_t number, const tegroup_impl_sm90_item &item,
                                               const tegroup_impl_sm90_scales *scales, uint32_t first, uint32_t steps,
                                               sums &sum, tegroup_impl_sm90_fast<false>) const {
        if (fp8.promotion == TEGROUP_IMPL_SM90_AT_END) {
            add_up_cols<TEGROUP_IMPL_SM90_AT_END>(group, number, item, scales, first, steps, sum[0]);
            scale(group, item, scales[0], sum);
        } else if (fp8.promotion == TEGROUP_IMPL_SM90_SQUARE)
            add_up_cols<TEGROUP_IMPL_SM90_SQUARE>(group, number, item, scales, first, steps, sum[0]);
        else add_up_cols<TEGROUP_IMPL_SM90_LINES_BOTH>(group, number, item, scales, first, steps, sum[0]);
    }
    /* Those of a wide tile, or of a narrow one. */
    template <int PROMOTION>
    __device__ __forceinline__ void add_up_cols(int group, int32_t number, const tegroup_impl_sm90_item &item,
                                                const tegroup_impl_sm90_scales *scales, uint32_t first, uint32_t steps,
                                                float (&sum)[COLS / 2]) const {
        if (SHAPE::TURNS) add_up_two<PROMOTION>(group, number, item, scales, first, steps, sum);
        else if (this->narrow(item)) add_up<PROMOTION, SHAPE::NARROW>(group, item, scales, first, steps, sum);
        else add_up<PROMOTION, COLS>(group, item, scales, first, steps, sum);
    }
    template <int PROMOTION, int WIDTH>
    __device__ __forceinline__ void add_up(int group, const tegroup_impl_sm90_item &item,
                                           const tegroup_impl_sm90_scales *scales, uint32_t first, uint32_t steps,
                                           float (&sum)[COLS / 2]) const {
        const uint64_t a = tegroup_impl_wgmma_tile(ring + line_of(group) * 128, 0),
                       b = tegroup_impl_wgmma_tile(ring + SHAPE::A_BYTES, 0);
        float part[WIDTH / 2];
        factors<PROMOTION> by(*this, group, item, scales, first, first + steps);
#pragma unroll
        for (int i = 0; i < COLS / 2; i++) sum[i] = 0;
#pragma unroll 1
        for (uint32_t step = first; step < first + steps; step++) {
            multiply_stage<WIDTH>(step, a, b, part);
            by.template take<0>(step);
            tegroup_impl_wgmma_wait<0>();
            tegroup_impl_wgmma_keep(part);
            this->release(step);
            if (step + 1 == first + steps) this->yield(group);
            by.template promote<WIDTH>(step, part, sum);
        }
    }
    /* Where there are registers for two partial sums, one is multiplied while the other is promoted. (ptxas serializes
     * wgmma where the loop cannot be left before each multiplication, or a wait depends on whether there was one.) */
    template <int PROMOTION>
    __device__ __forceinline__ void add_up_two(int group, int32_t number, const tegroup_impl_sm90_item &item,
                                               const tegroup_impl_sm90_scales *scales, uint32_t first, uint32_t steps,
                                               float (&sum)[COLS / 2]) const {
        const uint64_t a = tegroup_impl_wgmma_tile(ring + line_of(group) * 128, 0),
                       b = tegroup_impl_wgmma_tile(ring + SHAPE::A_BYTES, 0);
        const uint32_t last = first + steps - 1;
        float even[COLS / 2], odd[COLS / 2];
        factors<PROMOTION> by(*this, group, item, scales, first, first + steps);
#pragma unroll
        for (int i = 0; i < COLS / 2; i++) sum[i] = 0;
        await(group, number);
        multiply_stage<COLS>(first, a, b, even);
#pragma unroll 1
        for (uint32_t step = first;; step += 2) {
            if (step == last) {
                promote_last<0>(group, step, by, even, sum);
                break;
            }
            multiply_stage<COLS>(step + 1, a, b, odd);
            promote<0>(step, by, even, sum);
            if (step + 1 == last) {
                promote_last<1>(group, step + 1, by, odd, sum);
                break;
            }
            multiply_stage<COLS>(step + 2, a, b, even);
            promote<1>(step + 1, by, odd, sum);
        }
    }
    /* Promotes the sums of a step while the next one is multiplied. */
    template <int SLOT, int PROMOTION>
    __device__ __forceinline__ void promote(uint32_t step, factors<PROMOTION> &by, float (&part)[COLS / 2],
                                            float (&sum)[COLS / 2]) const {
        by.template take<SLOT>(step);
        tegroup_impl_wgmma_wait<1>();
        tegroup_impl_wgmma_keep(part);
        this->release(step);
        by.template promote<COLS>(step, part, sum);
    }
    template <int SLOT, int PROMOTION>
    __device__ __forceinline__ void promote_last(int group, uint32_t step, factors<PROMOTION> &by,
                                                 float (&part)[COLS / 2], float (&sum)[COLS / 2]) const {
        by.template take<SLOT>(step);
        tegroup_impl_wgmma_wait<0>();
        tegroup_impl_wgmma_keep(part);
        this->release(step);
        this->yield(group);
        by.template promote<COLS>(step, part, sum);
    }
    /* Multiplies a stage into the partial sums. */
    template <int WIDTH>
    __device__ __forceinline__ void multiply_stage(uint32_t step, uint64_t a, uint64_t b,
                                                   float (&part)[WIDTH / 2]) const {
        const uint64_t offset = (uint64_t)(step % STAGES * (SHAPE::STAGE_BYTES >> 4));
        this->wait_full(step);
        if (fp8.a_e5m2 && fp8.b_e5m2) multiply_stage_of<WIDTH, true, true>(a + offset, b + offset, part);
        else if (fp8.a_e5m2) multiply_stage_of<WIDTH, true, false>(a + offset, b + offset, part);
        else if (fp8.b_e5m2) multiply_stage_of<WIDTH, false, true>(a + offset, b + offset, part);
        else multiply_stage_of<WIDTH, false, false>(a + offset, b + offset, part);
    }
    template <int WIDTH, bool A_E5M2, bool B_E5M2, bool ADDS = false>
    static __device__ __forceinline__ void multiply_stage_of(uint64_t a, uint64_t b, float (&part)[WIDTH / 2]) {
        tegroup_impl_wgmma_keep(part);
        tegroup_impl_wgmma_begin();
#pragma unroll
        for (int kk = 0; kk < SHAPE::K / 32; kk++)
            tegroup_impl_wgmma_fp8<WIDTH>::template multiply<A_E5M2, B_E5M2>(part, a + kk * (32 >> 4),
                                                                             b + kk * (32 >> 4), ADDS || kk > 0);
        tegroup_impl_wgmma_commit();
        tegroup_impl_wgmma_keep(part);
    }

    /* The tile's line that this thread has the upper sums of; the lower ones are eight lines on. */
    static __device__ __forceinline__ int line(int group) {
        return line_of(group) + tegroup_impl_thread() / 32 % 4 * 16 + lane() / 4;
    }
    /* Where the first scale is of line `l` of the tile or, if no such line exists, of the last. */
    static __device__ __forceinline__ const float *first_of(const tegroup_impl_sm90_scales &scales, int32_t l,
                                                            int32_t end) {
        return scales.at + ((int64_t)tegroup_impl_min(l, end - 1) >> scales.line_shift) * scales.line_stride;
    }
    __device__ __forceinline__ int32_t end_of_lines(const tegroup_impl_sm90_item &item) const {
        return item.i0 + item.lines;
    }
    __device__ __forceinline__ int32_t end_of_columns() const { return (int32_t)call.call.desc.d.shape.cols; }

    /* Scales that are for all of k: the columns' go to shared memory while the other warpgroup multiplies; all of the
     * warpgroup call it. */
    __device__ __forceinline__ void keep_columns(int group, const tegroup_impl_sm90_item &item,
                                                 const tegroup_impl_sm90_scales &scales) const {
        tegroup_impl_warpgroup_sync(1 + group); /* Others may still multiply the tile before by its own. */
        for (int col = tegroup_impl_thread() % 128; col < COLS; col += 128)
            more->factors[group][0][col] = *first_of(scales, item.j0 + col, end_of_columns());
    }
    /* Multiplies sums by scales, each in its register: a product in a register of its own leaves ptxas too few. */
    __device__ __forceinline__ void scale(int group, const tegroup_impl_sm90_item &item,
                                          const tegroup_impl_sm90_scales &scales, sums &sum) const {
        float lines[SHAPE::PARTS][2];
#pragma unroll
        for (int i = 0; i < SHAPE::PARTS * 2; i++)
            lines[i / 2][i % 2] = *first_of(scales, item.i0 + line(group) + i / 2 * 64 + i % 2 * 8, end_of_lines(item));
        tegroup_impl_warpgroup_sync(1 + group);
#pragma unroll
        for (int e = 0; e < COLS / 8; e++) {
            const float2 column = *(const float2 *)(more->factors[group][0] + e * 8 + lane() % 4 * 2);
#pragma unroll
            for (int i = 0; i < SHAPE::PARTS * 4; i++) {
                float &x = sum[i / 4][e * 4 + i % 4];
                asm volatile("mul.rn.f32 %0, %0, %1;"
                             : "+f"(x)
                             : "f"(tegroup_impl_gpu_mul(lines[i / 4][i / 2 % 2], i % 2 ? column.y : column.x)));
            }
        }
    }

    /* The scales of a step. Those of a thread's lines and of blocks of columns are in registers, loaded AHEAD steps
     * before; others, a number for each line and each column, are copied to shared memory two steps before: wgmma of a
     * step is often shorter than their way from memory. All of the warpgroup call each function. */
    template <int PROMOTION> struct factors {
        static constexpr bool SQUARE = PROMOTION == TEGROUP_IMPL_SM90_SQUARE,
                              BOTH = PROMOTION == TEGROUP_IMPL_SM90_LINES_BOTH;
        typedef tegroup_impl_sm90_fp8_more<SHAPE> shared;
        static constexpr int OF_B = (COLS + 127) / 128;    /* the blocks of 128 columns that a tile touches */
        static constexpr int AHEAD = SHAPE::TURNS ? 2 : 1; /* steps: many columns leave few registers */
        uint32_t end;                                      /* of the tile's steps */
        const float *a[2], *b[OF_B];                       /* SQUARE: the scales to load next, */
        int64_t a_stride, b_stride;
        float next_a[AHEAD][2], next_b[AHEAD][OF_B]; /* those of the steps to come, */
        float factor[2][OF_B];                       /* and their products of this one */
        bool middle;                                 /* The tile's second third is in its second block. */
        const float *copied[2]; /* BOTH: what this thread copies next, numbers `me` and me + 128 of a slot */
        int64_t stride[2];
        float (*slots)[shared::COUNT];
        int group;

        __device__ __forceinline__ factors(const tegroup_impl_sm90_fp8_block &block, int group_,
                                           const tegroup_impl_sm90_item &item, const tegroup_impl_sm90_scales *scales,
                                           uint32_t first, uint32_t end_)
            : end(end_), group(group_) {
            if (SQUARE) {
                a_stride = scales[0].k_stride;
                b_stride = scales[1].k_stride;
                middle = item.j0 % 128 != 0;
#pragma unroll
                for (int i = 0; i < 2; i++)
                    a[i] = first_of(scales[0], item.i0 + line(group) + 8 * i, block.end_of_lines(item));
#pragma unroll
                for (int i = 0; i < OF_B; i++)
                    b[i] = first_of(scales[1], (item.j0 & -128) + 128 * i, block.end_of_columns());
#pragma unroll
                for (int i = 0; i < AHEAD; i++)
                    if (first + i < end) load(i);
            }
            if (BOTH) {
                slots = block.more->factors[group];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int number = me() + 128 * i;
                    const bool column = number < COLS;
                    copied[i] = column ? first_of(scales[1], item.j0 + number, block.end_of_columns())
                                       : first_of(scales[0], item.i0 + line_of(group) + (number - COLS) % 64,
                                                  block.end_of_lines(item));
                    stride[i] = scales[column ? TEGROUP_IMPL_B : TEGROUP_IMPL_A].k_stride;
                }
                tegroup_impl_warpgroup_sync(1 + group); /* Others may still promote the last step of the tile before. */
                copy(first);
                copy(first + 1);
            }
        }
        static __device__ __forceinline__ int me() { return tegroup_impl_thread() % 128; }
        __device__ __forceinline__ void load(int to) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                next_a[to][i] = *a[i];
                a[i] += a_stride;
            }
#pragma unroll
            for (int i = 0; i < OF_B; i++) {
                next_b[to][i] = *b[i];
                b[i] += b_stride;
            }
        }
        /* Begins to copy the scales of a step, if the tile has it. */
        __device__ __forceinline__ void copy(uint32_t step) {
            const uint32_t to = tegroup_impl_shared(slots[step % shared::SLOTS] + me());
            if (step < end)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    if (me() + 128 * i < shared::COUNT)
                        tegroup_impl_cp_async_number(to + (uint32_t)(512 * i), copied[i]);
                    copied[i] += stride[i];
                }
            tegroup_impl_cp_commit();
        }
        /* SLOT: the step's number in the tile modulo AHEAD. (A register that is moved on would wait for its load.) */
        template <int SLOT> __device__ __forceinline__ void take(uint32_t step) {
            if (SQUARE) {
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int j = 0; j < OF_B; j++)
                        factor[i][j] = tegroup_impl_gpu_mul(next_a[SLOT][i], next_b[SLOT][j]);
                if (step + AHEAD < end) load(SLOT);
            }
            if (BOTH) {
                tegroup_impl_cp_wait<1>();
                tegroup_impl_warpgroup_sync(1 + group); /* All see the copies, and are done with the step before. */
                copy(step + 2);
            }
        }
        template <int WIDTH>
        __device__ __forceinline__ void promote(uint32_t step, const float (&part)[WIDTH / 2],
                                                float (&sum)[COLS / 2]) const {
            const float *const numbers = BOTH ? slots[step % shared::SLOTS] : NULL;
            const int of_line = COLS + line(group) - line_of(group);
            const float upper = BOTH ? numbers[of_line] : 0, lower = BOTH ? numbers[of_line + 8] : 0;
#pragma unroll
            for (int e = 0; e < WIDTH / 8; e++) {
                float2 column;
                if (BOTH) column = *(const float2 *)(numbers + e * 8 + lane() % 4 * 2);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float &to = sum[e * 4 + i];
                    const float x = part[e * 4 + i];
                    if (SQUARE) to = tegroup_impl_gpu_fma(x, of_third(i / 2, e / 8), to);
                    else if (BOTH)
                        to = tegroup_impl_gpu_fma(
                            x, tegroup_impl_gpu_mul(i / 2 ? lower : upper, i % 2 ? column.y : column.x), to);
                    else to = tegroup_impl_gpu_add(to, x);
                }
            }
        }
        /* SQUARE: the factor of the upper or the lower line in a third of a tile of 192 columns, a half of one of 128.
         */
        __device__ __forceinline__ float of_third(int lower, int third) const {
            if (OF_B == 1 || third == 0) return factor[lower][0];
            return third == 2 || middle ? factor[lower][OF_B - 1] : factor[lower][0];
        }
    };
};
#endif

template <typename SHAPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_HOPPER ? TEGROUP_IMPL_SM90_THREADS : 32, 1)
    tegroup_impl_sm90_fp8_kernel(const __grid_constant__ tegroup_impl_sm90_call call,
                                 const __grid_constant__ tegroup_impl_sm90_fp8 fp8) {
#if TEGROUP_IMPL_HOPPER
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    const tegroup_impl_sm90_fp8_block<SHAPE> block(call, fp8, tegroup_impl_memory);
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
