/* ---- Hopper GEMM: the multiplying warpgroups, and the kernel ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/gemm_types.h"
#include "base/arithmetic.h"
#include "core/field_names.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "cuda/functor.h"
#include "cuda/call.h"
#include "cuda/hopper.h"
#include "cuda/sm90_tiles.h"
#include "cuda/sm90_epilogue.h"

#if TEGROUP_IMPL_HOPPER
template <bool BF16, typename SHAPE> struct tegroup_impl_sm90_multiplier : tegroup_impl_sm90_storer<SHAPE> {
    typedef tegroup_impl_sm90_storer<SHAPE> base;
    using base::adds_in_l2;
    using base::at;
    using base::call;
    using base::ends;
    using base::give;
    using base::is_wide;
    using base::lane;
    using base::line_of;
    using base::narrow;
    using base::piece;
    using base::rest;
    using base::ring;
    using base::slab;
    using base::STAGES;
    using base::take;
    typedef float sums[SHAPE::PARTS][SHAPE::COLS / 2];

    __device__ __forceinline__ tegroup_impl_sm90_multiplier(const tegroup_impl_sm90_call &c, unsigned char *memory)
        : base(c, memory) {}

    /* Warpgroup `group` (0 or 1) multiplies its tiles, or its parts of them, and writes what the functor makes of the
     * results into slabs. */
    template <typename FUNCTOR> __device__ __forceinline__ void multiply(int group, const FUNCTOR &functor) const {
        uint32_t step = 0, rounds = 0; /* rounds: uses of each slab so far or, with an activation, sets so far */
        int32_t number = 0;
        if (SHAPE::TURNS && group == 1) pass(&number, &step);
        for (;;) {
            const tegroup_impl_sm90_item *item = take(number);
            if (item->group < 0) break;
            /* A wait by parity must not miss a phase, so the other warpgroup first sees all of its stages full. */
            if (SHAPE::TURNS) tegroup_impl_barrier_wait(at(&rest->turn[group]), (number / 2 & 1) ^ (group == 0));
            if (item->lines > line_of(group)) work(group, *item, step, &rounds, functor);
            else see_off(group, step, steps_of(*item));
            step += steps_of(*item); /* Computed again, since the sums leave few registers. */
            give(number);
            number++;
            if (SHAPE::TURNS) pass(&number, &step);
        }
    }
    /* Skips a tile of the other warpgroup, but not the item after the last tile. */
    __device__ __forceinline__ void pass(int32_t *number, uint32_t *step) const {
        const tegroup_impl_sm90_item *item = take(*number);
        if (item->group < 0) return;
        *step += steps_of(*item);
        give(*number);
        ++*number;
    }
    static __device__ __forceinline__ uint32_t steps_of(const tegroup_impl_sm90_item &item) {
        return (uint32_t)((item.k + SHAPE::K - 1) / SHAPE::K);
    }
    /* Gives the other warpgroup its turn. Each lane of the warp must have seen its own turn come, or it might miss the
     * phase and wait forever. A wait for wgmma, which a warp executes as one, ensures that, and so does the storer,
     * which yields for a tile without steps. (A __syncwarp here, or only on the path of such a tile, makes ptxas
     * serialize wgmma, C7511. So does a storer that yields for fitting tiles, all of which have no steps or none: there
     * it is left to ptxas, which makes the wait for a turn one instruction of the whole warp.) */
    __device__ __forceinline__ void yield(int group) const {
        if (SHAPE::TURNS && lane() == 0) tegroup_impl_barrier_arrive(at(&rest->turn[group ^ 1]));
    }
    template <typename FUNCTOR>
    __device__ __forceinline__ void work(int group, const tegroup_impl_sm90_item &item, uint32_t step, uint32_t *rounds,
                                         const FUNCTOR &functor) const {
        const bool adds = !SHAPE::FLIPS && item.beta != 0, wide = is_wide();
        const uint32_t steps = steps_of(item);
        sums sum;
        if (steps == 0) nothing(group, adds, sum);
        else if (SHAPE::FITS) add_up_fit(group, item.cols, step, steps, sum);
        else if (!SHAPE::NARROWS || item.cols > SHAPE::NARROW) add_up<SHAPE::COLS>(group, step, steps, sum);
        else add_up<SHAPE::NARROW>(group, step, steps, sum);
        if (SHAPE::ACTIVATES) {
            activate(group, item, rounds, sum);
            return;
        }
        if (wide && (adds || call.has_bias)) store_wide<true>(group, item, adds, *rounds, sum, functor);
        else if (wide) store_wide<false>(group, item, false, *rounds, sum, functor);
        else if (!SHAPE::FLIPS && (adds || call.has_bias)) store_halves<true>(group, item, adds, *rounds, sum, functor);
        else store_halves<false>(group, item, false, *rounds, sum, functor);
        *rounds += wide ? SHAPE::template results<true>::COUNT / SHAPE::template results<true>::USED
                        : SHAPE::template results<false>::COUNT / SHAPE::template results<false>::USED;
    }
    /* Releases the stages of a tile in which this warpgroup has no lines. */
    __device__ __forceinline__ void see_off(int group, uint32_t step, uint32_t steps) const {
#pragma unroll 1
        for (const uint32_t end = step + steps; step < end; step++) {
            wait_full(step);
            __syncwarp();
            release(step);
        }
        yield(group);
    }
    /* The empty sum. Where beta * C is added it is -0, which also leaves a -0 as it is. */
    __device__ __forceinline__ void nothing(int group, bool adds, sums &sum) const {
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++)
#pragma unroll
            for (int i = 0; i < SHAPE::COLS / 2; i++) sum[m][i] = adds ? -0.0f : 0.0f;
        if (!SHAPE::STORER_YIELDS) yield(group);
    }
    /* Sums for the first COLS columns of the tile. */
    template <int COLS, typename OPERANDS = tegroup_impl_wgmma_halves<BF16>>
    __device__ __forceinline__ void add_up(int group, uint32_t first, uint32_t steps, sums &sum) const {
        const uint64_t a = tegroup_impl_wgmma_tile(ring + line_of(group) * 128, SHAPE::K * 128),
                       b = tegroup_impl_wgmma_tile(ring + SHAPE::A_BYTES, SHAPE::K * 128);
        multiply_stage<COLS, OPERANDS, true>(first, a, b, sum);
        tegroup_impl_wgmma_wait<0>(); /* Otherwise ptxas waits, and warns: the sums change registers here. */
#pragma unroll 1
        for (uint32_t step = first + 1; step < first + steps; step++) {
            multiply_stage<COLS, OPERANDS, false>(step, a, b, sum);
            tegroup_impl_wgmma_wait<1>();
            release(step - 1);
        }
        yield(group);
        tegroup_impl_wgmma_wait<0>();
        fence<COLS>(sum);
        release(first + steps - 1);
    }
    /* Sums for a fitting tile of `cols` columns. */
    __device__ __forceinline__ void add_up_fit(int group, int32_t cols, uint32_t first, uint32_t steps,
                                               sums &sum) const {
        static_assert(TEGROUP_IMPL_SM90_SMALLER == 4, "one for each box");
        if (cols == SHAPE::fitting(0)) add_up<SHAPE::fitting(0)>(group, first, steps, sum);
        else if (cols == SHAPE::fitting(1)) add_up<SHAPE::fitting(1)>(group, first, steps, sum);
        else if (cols == SHAPE::fitting(2)) add_up<SHAPE::fitting(2)>(group, first, steps, sum);
        else if (cols == SHAPE::fitting(3)) add_up<SHAPE::fitting(3)>(group, first, steps, sum);
        else add_up<SHAPE::fitting(4)>(group, first, steps, sum);
    }
    /* Multiplies a stage. The first one of a tile overwrites the sums, so nobody clears them. */
    template <int COLS, typename OPERANDS, bool FIRST>
    __device__ __forceinline__ void multiply_stage(uint32_t step, uint64_t a, uint64_t b, sums &sum) const {
        constexpr int A_STEP = (SHAPE::A_LINES ? 16 * 128 : 32) >> 4, B_STEP = (SHAPE::B_LINES ? 16 * 128 : 32) >> 4;
        const uint64_t offset = (uint64_t)(step % STAGES * (SHAPE::STAGE_BYTES >> 4));
        wait_full(step);
        fence<COLS>(sum);
        tegroup_impl_wgmma_begin();
#pragma unroll
        for (int kk = 0; kk < SHAPE::K / OPERANDS::K; kk++)
#pragma unroll
            for (int m = 0; m < SHAPE::PARTS; m++)
                OPERANDS::template multiply<COLS, SHAPE::A_LINES, SHAPE::B_LINES>(
                    reinterpret_cast<float(&)[COLS / 2]>(sum[m]), a + offset + m * (64 * 128 >> 4) + kk * A_STEP,
                    b + offset + kk * B_STEP, !FIRST || kk > 0);
        tegroup_impl_wgmma_commit();
        fence<COLS>(sum);
    }
    __device__ __forceinline__ void release(uint32_t step) const {
        if (!SHAPE::PAIRS) {
            if (lane() < SHAPE::RELEASERS) tegroup_impl_barrier_arrive(at(&rest->empty[step % STAGES]));
        } else if (lane() == 0) {
            tegroup_impl_barrier_arrive_at<0>(at(&rest->empty[step % STAGES]));
            tegroup_impl_barrier_arrive_at<1>(at(&rest->empty[step % STAGES]));
        }
    }
    __device__ __forceinline__ void wait_full(uint32_t step) const {
        tegroup_impl_barrier_wait(at(&rest->full[step % STAGES]), step / STAGES & 1);
    }
    /* Keeps the sums of the first COLS columns where they are. */
    template <int COLS> static __device__ __forceinline__ void fence(sums &sum) {
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++) tegroup_impl_wgmma_keep(reinterpret_cast<float(&)[COLS / 2]>(sum[m]));
    }

    /* ---- results to slabs ---- */

    /* Waits until the slab of result `number` is free, and holds C if that is added. */
    template <bool WIDE> __device__ __forceinline__ void begin(int group, int number, uint32_t rounds) const {
        typedef typename SHAPE::template results<WIDE> results;
        tegroup_impl_barrier_wait(at(&rest->ready[group][number % results::USED]),
                                  (rounds + number / results::USED) & 1);
    }
    /* Announces that the slab is written. If D's columns end in it, off a multiple of 16 bytes, the warpgroup copies it
     * to D itself. */
    template <bool WIDE>
    __device__ __forceinline__ void end(int group, const tegroup_impl_sm90_item &item, int number) const {
        typedef typename SHAPE::template results<WIDE> results;
        if (ends(item, line_of(group) + number / results::ACROSS * 64, number % results::ACROSS * results::COLS,
                 results::COLS)) {
            tegroup_impl_warpgroup_sync(1 + group);
            const int32_t line = item.i0 + line_of(group) + number / results::ACROSS * 64,
                          col = item.j0 + number % results::ACROSS * results::COLS;
            if (SHAPE::FLIPS)
                tegroup_impl_sm90_copy<WIDE>(
                    &call.call, item.group, slab(group, number % results::USED), col,
                    SHAPE::FITS ? item.j0 + item.rows
                                : (int32_t)tegroup_impl_min(item.j0 + item.cols, call.call.desc.a.shape.cols),
                    line);
            else
                tegroup_impl_sm90_copy<WIDE>(&call.call, item.group, slab(group, number % results::USED), line,
                                             item.i0 + item.lines, col);
            tegroup_impl_warpgroup_sync(1 + group); /* `written` suffices, but racecheck credits only its lane */
        }
        tegroup_impl_async_fence();
        __syncwarp();
        if (lane() == 0) tegroup_impl_barrier_arrive(at(&rest->written[group][number % results::USED]));
    }
    /* The built-in store has no functor. (Even an empty one has ptxas order instructions otherwise.) */
    static __device__ __forceinline__ void apply(const tegroup_impl_sm90_own<SHAPE, tegroup_impl_as_is> &, int, int,
                                                 float *, const tegroup_impl_as_is &) {}
    /* Gives the functor what a thread has of an eight, as `terms` have it, but nothing that is not stored. */
    template <typename FUNCTOR>
    static __device__ __forceinline__ void apply(const tegroup_impl_sm90_own<SHAPE, FUNCTOR> &own, int m, int eight,
                                                 float *x, const FUNCTOR &functor) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int line = m * 64 + i / 2 * 8, col = eight * 8 + i % 2;
            if (line < own.lines && col < own.cols) x[i] = functor(x[i], own.at(line, col));
        }
    }
    template <bool TERMS, typename FUNCTOR>
    __device__ __forceinline__ void store_halves(int group, const tegroup_impl_sm90_item &item, bool adds,
                                                 uint32_t rounds, sums &sum, const FUNCTOR &functor) const {
        typedef typename SHAPE::template results<false> results;
        const bool bf16 = call.call.desc.d.dtype == TEGROUP_DTYPE_BF16;
        const int me = tegroup_impl_thread(), lane = me % 32, warp = me / 32 % 4;
        /* The row of the slab that this lane addresses: one of the warp's sixteen lines or, if flipped, one of sixteen
         * columns, which have these lines in two chunks. */
        const int row = SHAPE::FLIPS ? lane / 16 * 8 + lane % 8 : warp * 16 + lane % 16;
        const uint32_t mine = (uint32_t)(row * 128 + (SHAPE::FLIPS ? ((warp * 2 + lane / 8 % 2) ^ (row & 7)) * 16 : 0));
        const tegroup_impl_sm90_terms<SHAPE, FUNCTOR> terms(call, item, line_of(group));
        const tegroup_impl_sm90_own<SHAPE, FUNCTOR> own(call, item, line_of(group));
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++)
#pragma unroll
            for (int s = 0; s < results::ACROSS; s++) {
                const int number = m * results::ACROSS + s;
                const uint32_t to = slab(group, number % results::USED) + mine;
                begin<false>(group, number, rounds);
#pragma unroll
                for (int c = 0; c < 8; c += 2) { /* two eights of columns, each of the upper, then the lower lines */
                    const uint32_t there =
                        to + (uint32_t)(SHAPE::FLIPS ? c * 8 * 128 : ((c + lane / 16) ^ (row & 7)) * 16);
                    float x[8];
                    uint32_t word[4];
#pragma unroll
                    for (int i = 0; i < 8; i++) x[i] = tegroup_impl_gpu_mul(terms.alpha, sum[m][(s * 8 + c) * 4 + i]);
                    if (TERMS && adds) {
                        tegroup_impl_ldmatrix_rows(word, there);
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            terms.add(tegroup_impl_low_half(word[i], bf16), &x[2 * i]);
                            terms.add(tegroup_impl_high_half(word[i], bf16), &x[2 * i + 1]);
                        }
                    }
                    if (TERMS && terms.BIAS && call.has_bias) {
                        terms.add_bias(m, s * 8 + c, x);
                        terms.add_bias(m, s * 8 + c + 1, x + 4);
                    }
                    apply(own, m, s * 8 + c, x, functor);
                    apply(own, m, s * 8 + c + 1, x + 4, functor);
#pragma unroll
                    for (int i = 0; i < 4; i++) word[i] = tegroup_impl_two_halves(x[2 * i], x[2 * i + 1], bf16);
                    tegroup_impl_stmatrix<SHAPE::FLIPS>(there, word);
                }
                end<false>(group, item, number);
            }
    }
    template <bool TERMS, typename FUNCTOR>
    __device__ __forceinline__ void store_wide(int group, const tegroup_impl_sm90_item &item, bool adds,
                                               uint32_t rounds, sums &sum, const FUNCTOR &functor) const {
        typedef typename SHAPE::template results<true> results;
        const int me = tegroup_impl_thread(), lane = me % 32;
        const int row = me / 32 % 4 * 16 + lane / 4; /* and eight below it, where chunks are swizzled alike */
        const tegroup_impl_sm90_terms<SHAPE, FUNCTOR> terms(call, item, line_of(group));
        const tegroup_impl_sm90_own<SHAPE, FUNCTOR> own(call, item, line_of(group));
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++)
#pragma unroll
            for (int s = 0; s < results::ACROSS; s++) {
                const int number = m * results::ACROSS + s;
                const uint32_t to = slab(group, number % results::USED) + (uint32_t)(row * 128 + lane % 2 * 8);
                begin<true>(group, number, rounds);
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const uint32_t there = to + (uint32_t)(((c * 2 + lane % 4 / 2) ^ (row & 7)) * 16);
                    float x[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) x[i] = tegroup_impl_gpu_mul(terms.alpha, sum[m][(s * 4 + c) * 4 + i]);
                    if (TERMS && adds && !adds_in_l2<true>(number))
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            float old[2];
                            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                                         : "=f"(old[0]), "=f"(old[1])
                                         : "r"(there + half * 8 * 128)
                                         : "memory");
                            terms.add(old[0], &x[2 * half]);
                            terms.add(old[1], &x[2 * half + 1]);
                        }
                    if (TERMS && terms.BIAS && call.has_bias) terms.add_bias(m, s * 4 + c, x);
                    apply(own, m, s * 4 + c, x, functor);
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(there + half * 8 * 128), "f"(x[2 * half]),
                                     "f"(x[2 * half + 1])
                                     : "memory");
                }
                end<true>(group, item, number);
            }
    }
    /* Rounds sums into a set: into its first two pieces for a forward product, into the third for a gradient. Each warp
     * then activates or differentiates the lines that it wrote itself. As that code is long, the loop over sets is not
     * unrolled. */
    __device__ __forceinline__ void activate(int group, const tegroup_impl_sm90_item &item, uint32_t *done,
                                             sums &sum) const {
        constexpr bool FORWARD = SHAPE::OP == TEGROUP_OP_FORWARD;
        constexpr int MOST = SHAPE::COLS / SHAPE::SET_COLS; /* sets side by side, in the widest tile */
        const int across = item.cols / SHAPE::SET_COLS, row = tegroup_impl_thread() / 32 % 4 * 16 + lane() % 16;
        float scale[SHAPE::PARTS]; /* of the activation; lane i has that of the warp's line i */
        const tegroup_impl_sm90_terms<SHAPE> terms(call, item, line_of(group));
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++) {
            scale[m] =
                m * 64 + row < item.lines
                    ? tegroup_impl_weight<float>(call.epilogue.activation.row_scale,
                                                 (int64_t)item.first_row[TEGROUP_IMPL_D] + item.i0 + m * 64 + row, 0)
                    : 0.0f;
            constexpr int AT_ONCE = FORWARD ? 0 : SHAPE::COLS / 8; /* This frees registers for the loop. */
#pragma unroll
            for (int eight = 0; eight < AT_ONCE; eight++) {
                uint32_t word[2];
                round(terms, m, eight, sum[m], word);
                sum[m][eight * 4] = __uint_as_float(word[0]);
                sum[m][eight * 4 + 1] = __uint_as_float(word[1]);
            }
        }
#pragma unroll 1
        for (int n = 0; n < SHAPE::PARTS * MOST; n++) {
            if (n % MOST >= across) continue;
            const int used = (int)(*done % SHAPE::SETS);
            const uint32_t set = piece(group, *done, 0);
            tegroup_impl_barrier_wait(at(&rest->ready[group][used]), *done / SHAPE::SETS & 1);
#pragma unroll
            for (int m = 0; m < SHAPE::PARTS; m++)
#pragma unroll
                for (int s = 0; s < MOST; s++) {
                    if (n != m * MOST + s) continue;
                    if (!FORWARD) put<0>(terms, set + 2 * SHAPE::PIECE, row, m, 4 * s, sum[m]);
                    else if (call.epilogue.activation.interleaved) put<4>(terms, set, row, m, 8 * s, sum[m]);
                    else if (narrow(item)) put<SHAPE::NARROW / 16>(terms, set, row, m, 4 * s, sum[m]);
                    else put<SHAPE::COLS / 16>(terms, set, row, m, 4 * s, sum[m]);
                }
            __syncwarp();
            if (FORWARD) tegroup_impl_sm90_activate<BF16, SHAPE::PIECE>(call, set, row - lane() % 16, scale[n / MOST]);
            else differentiate(item, set, row, n / MOST * 64 + row, item.j0 + n % MOST * 32, scale[n / MOST]);
            tegroup_impl_async_fence();
            __syncwarp();
            if (lane() == 0) tegroup_impl_barrier_arrive(at(&rest->written[group][used]));
            ++*done;
        }
    }
    /* Rounds the two columns that a thread has of an eight: in its upper line, then in its lower one. */
    __device__ __forceinline__ void round(const tegroup_impl_sm90_terms<SHAPE> &terms, int m, int eight,
                                          const float (&sum)[SHAPE::COLS / 2], uint32_t *word) const {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = tegroup_impl_gpu_mul(terms.alpha, sum[eight * 4 + i]);
        if (terms.BIAS && call.has_bias) terms.add_bias(m, eight, x);
        word[0] = tegroup_impl_two_halves(x[0], x[1], BF16);
        word[1] = tegroup_impl_two_halves(x[2], x[3], BF16);
    }
    /* Writes four eights of columns to a piece; in a forward product, those LATER eights further to the next piece. */
    template <int LATER>
    __device__ __forceinline__ void put(const tegroup_impl_sm90_terms<SHAPE> &terms, uint32_t to, int row, int m,
                                        int first, const float (&sum)[SHAPE::COLS / 2]) const {
#pragma unroll
        for (int c = 0; c < (LATER ? 8 : 4); c += 2) {
            const int eight = first + c % 4 + c / 4 * LATER;
            uint32_t word[4] = {__float_as_uint(sum[eight * 4]), __float_as_uint(sum[eight * 4 + 1]),
                                __float_as_uint(sum[eight * 4 + 4]), __float_as_uint(sum[eight * 4 + 5])};
            if (SHAPE::OP == TEGROUP_OP_FORWARD) {
                round(terms, m, eight, sum, word);
                round(terms, m, eight + 1, sum, word + 2);
            }
            tegroup_impl_stmatrix<false>(
                to + c / 4 * SHAPE::PIECE + tegroup_impl_sm90_in_piece(row, c % 4 + lane() / 16), word);
        }
    }
    /* Differentiates the warp's lines of a set. This lane has row `row` of the set, which is `line` of the tile. */
    __device__ __forceinline__ void differentiate(const tegroup_impl_sm90_item &item, uint32_t set, int row, int line,
                                                  int col, float scale) const {
        const int32_t cols = (int32_t)call.call.desc.d.shape.cols - col;
        if (cols <= 0) return;
        const float sum =
            tegroup_impl_sm90_differentiate<BF16, SHAPE::PIECE>(call, set, row - lane() % 16, cols, scale);
        if (call.epilogue.row_sums && lane() < 16 && line < item.lines)
            call.epilogue
                .row_sums[col / 32 * call.call.desc.d.shape.rows + item.first_row[TEGROUP_IMPL_D] + item.i0 + line] =
                sum;
    }
};
#endif

#if TEGROUP_IMPL_HOPPER
template <bool BF16, typename SHAPE, typename FUNCTOR>
static __device__ __forceinline__ void tegroup_impl_sm90_work(const tegroup_impl_sm90_call &call,
                                                              const FUNCTOR &functor) {
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    const tegroup_impl_sm90_multiplier<BF16, SHAPE> block(call, tegroup_impl_memory);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); /* which the compiler sees to be uniform */
    block.init();
    if (warp < 4) {
        tegroup_impl_registers_give<40>();
        if (warp == 0) block.schedule();
        if (warp == 1 && block.gathers()) block.load_gathered();
        else if (warp == 1 && (threadIdx.x & 31) == 0) block.load();
        if (warp > 1 && (threadIdx.x & 31) == 0) block.store(warp - 2);
    } else {
        tegroup_impl_registers_take<232>();
        block.multiply(warp / 4 - 1, functor);
    }
    block.leave();
}
#endif

/* Code for another GPU than sm_90a has a launch bound of 32. The plan reads it, since nothing else tells code for sm_90
 * from code for sm_90a. */
#define TEGROUP_IMPL_SM90_BOUND __launch_bounds__(TEGROUP_IMPL_HOPPER ? TEGROUP_IMPL_SM90_THREADS : 32, 1)
template <bool BF16, typename SHAPE>
static __global__ void TEGROUP_IMPL_SM90_BOUND
tegroup_impl_sm90_kernel(const __grid_constant__ tegroup_impl_sm90_call call) {
#if TEGROUP_IMPL_HOPPER
    tegroup_impl_sm90_work<BF16, SHAPE>(call, tegroup_impl_as_is());
#else
    __trap();
#endif
}

template <bool BF16, typename SHAPE, typename FUNCTOR>
static __global__ void TEGROUP_IMPL_SM90_BOUND tegroup_impl_sm90_functor_kernel(
    const __grid_constant__ tegroup_impl_sm90_call call, const __grid_constant__ FUNCTOR functor) {
#if TEGROUP_IMPL_HOPPER
    tegroup_impl_sm90_work<BF16, SHAPE>(call, functor);
#else
    __trap();
#endif
}
