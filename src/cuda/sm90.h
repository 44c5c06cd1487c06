/* ---- Hopper GEMM: the kernel ---- */

#if TEGROUP_IMPL_HOPPER
/* ---- a block ---- */

template <bool BF16, typename SHAPE> struct tegroup_impl_sm90_block {
    static constexpr int STAGES = SHAPE::STAGES, ITEMS = TEGROUP_IMPL_SM90_ITEMS;
    typedef float sums[SHAPE::PARTS][SHAPE::COLS / 2];
    const tegroup_impl_sm90_call &call;
    uint32_t ring, slabs; /* addresses in shared memory */
    tegroup_impl_sm90_rest<SHAPE> *rest;

    static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 31; }
    static __device__ __forceinline__ uint32_t at(const uint64_t *barrier) { return tegroup_impl_shared(barrier); }

    __device__ __forceinline__ tegroup_impl_sm90_block(const tegroup_impl_sm90_call &c, unsigned char *memory)
        : call(c) {
        static_assert(sizeof *rest <= TEGROUP_IMPL_SM90_REST, "barriers and found tiles");
        memory += (1024 - tegroup_impl_shared(memory) % 1024) % 1024; /* as the swizzle of TMA and wgmma asks */
        ring = tegroup_impl_shared(memory);
        slabs = ring + STAGES * SHAPE::STAGE_BYTES;
        rest = (tegroup_impl_sm90_rest<SHAPE> *)(memory + STAGES * SHAPE::STAGE_BYTES + SHAPE::SLAB_BYTES);
    }
    __device__ __forceinline__ void init() const {
        if (threadIdx.x == 0) {
            const int loaders = gathers() ? 32 : 1;
            for (int s = 0; s < STAGES; s++) {
                tegroup_impl_barrier_init(at(&rest->full[s]), gathers() ? 33 : 1);
                tegroup_impl_barrier_init(at(&rest->empty[s]), SHAPE::TURNS ? 4 : 8); /* warps that multiply */
            }
            for (int i = 0; i < ITEMS; i++) {
                tegroup_impl_barrier_init(at(&rest->found[i]), 1);
                tegroup_impl_barrier_init(at(&rest->taken[i]), loaders + 2 + 256); /* who store, and who multiply */
            }
            for (int w = 0; w < 2; w++) {
                tegroup_impl_barrier_init(at(&rest->turn[w]), 4);
                for (int i = 0; i < SHAPE::SLABS; i++) {
                    tegroup_impl_barrier_init(at(&rest->ready[w][i]), 1);
                    tegroup_impl_barrier_init(at(&rest->written[w][i]), 4);
                }
            }
            tegroup_impl_async_fence();
        }
        __syncthreads();
    }
    __device__ __forceinline__ bool gathers() const { return call.gathers_a || call.gathers_b; }
    __device__ __forceinline__ bool anywhere(tegroup_impl_operand operand) const {
        return call.ragged[operand] || call.listed[operand];
    }
    __device__ __forceinline__ const tegroup_impl_sm90_item *take(int32_t number) const {
        tegroup_impl_barrier_wait(at(&rest->found[number % ITEMS]), number / ITEMS & 1);
        return &rest->items[number % ITEMS];
    }
    /* By every thread that took it, after its last look. */
    __device__ __forceinline__ void give(int32_t number) const {
        tegroup_impl_barrier_arrive(at(&rest->taken[number % ITEMS]));
    }

    /* One warp: which tiles this block works on. */
    __device__ __forceinline__ void schedule() const {
        tegroup_impl_sm90_walk<SHAPE> walk(call);
        bool there = true;
        for (int32_t number = 0; there; number++) {
            tegroup_impl_sm90_item item;
            item.group = -1;
            there = walk.next(&item);
            if (number >= ITEMS) tegroup_impl_barrier_wait(at(&rest->taken[number % ITEMS]), (number / ITEMS & 1) ^ 1);
            if (lane() == 0) {
                rest->items[number % ITEMS] = item;
                tegroup_impl_barrier_arrive(at(&rest->found[number % ITEMS]));
            }
            __syncwarp();
        }
    }

    /* One thread: the stages of every tile. */
    __device__ __forceinline__ void load() const {
        uint32_t step = 0;
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item item = *take(number);
            give(number);
            if (item.group < 0) break;
            for (int32_t k0 = 0; k0 < item.k; k0 += SHAPE::AT_ONCE * SHAPE::K) {
                const int32_t left = (item.k - k0 + SHAPE::K - 1) / SHAPE::K,
                              steps = left < SHAPE::AT_ONCE ? left : SHAPE::AT_ONCE;
#pragma unroll
                for (int i = 0; i < SHAPE::AT_ONCE; i++) {
                    if (i == steps) break;
                    const uint32_t stage = (step + i) % STAGES, full = at(&rest->full[stage]);
                    tegroup_impl_barrier_wait(at(&rest->empty[stage]), ((step + i) / STAGES & 1) ^ 1);
                    tegroup_impl_barrier_expect(full, a_bytes(item) + b_bytes(item));
                    load_a(item, k0 + i * SHAPE::K, ring + stage * SHAPE::STAGE_BYTES, full);
                }
#pragma unroll
                for (int i = 0; i < SHAPE::AT_ONCE; i++) {
                    if (i == steps) break;
                    const uint32_t stage = (step + i) % STAGES;
                    load_b(item, k0 + i * SHAPE::K, ring + stage * SHAPE::STAGE_BYTES + SHAPE::A_BYTES,
                           at(&rest->full[stage]));
                }
                step += (uint32_t)steps;
            }
        }
    }
    /* One warp, where rows are picked: each lane copies chunks of them; the other operand comes by TMA. The copies of a step have
     * the time of LAG more to arrive before the warp waits for them and says so. Nobody may wait for what is not said meanwhile:
     * a stage is given back when the next one is there, so LAG is two stages less than the ring; and tiles without a step are
     * not found ahead without end. */
    __device__ __forceinline__ void load_gathered() const {
        constexpr uint32_t LAG = STAGES > 3 ? 2 : 1;
        const tegroup_gemm_desc &desc = call.call.desc;
        const bool wgrad = SHAPE::OP == TEGROUP_OP_WGRAD, a = call.gathers_a, b = wgrad && call.gathers_b;
        uint32_t step = 0, said = 0;
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item item = *take(number);
            give(number);
            if (item.k <= 0 || item.group < 0) {
                tegroup_impl_cp_wait<0>();
                for (; said < step; said++) arrived(said);
            }
            if (item.group < 0) break;
            if (!wgrad)
                pick(desc.gather_a, item.first_row[TEGROUP_IMPL_A] + item.i0, item.lines, SHAPE::TILE_M,
                     rest->picked_a);
            for (int32_t k0 = 0; k0 < item.k; k0 += SHAPE::K, step++) {
                const uint32_t stage = step % STAGES, full = at(&rest->full[stage]),
                               to = ring + stage * SHAPE::STAGE_BYTES;
                if (wgrad && a)
                    pick(desc.gather_a, item.first_row[TEGROUP_IMPL_A] + k0, item.k - k0, TEGROUP_IMPL_SM90_LINES,
                         rest->picked_a);
                if (b)
                    pick(desc.gather_b, item.first_row[TEGROUP_IMPL_B] + k0, item.k - k0, TEGROUP_IMPL_SM90_LINES,
                         rest->picked_b);
                tegroup_impl_barrier_wait(at(&rest->empty[stage]), (step / STAGES & 1) ^ 1);
                if (lane() == 0) {
                    tegroup_impl_barrier_expect(full, (a ? 0 : SHAPE::A_BYTES) + (b ? 0 : b_bytes(item)));
                    if (!a) load_a(item, k0, to, full);
                    if (!b) load_b(item, k0, to + SHAPE::A_BYTES, full);
                }
                if (!wgrad) copy_rows(desc.a, rest->picked_a, k0, SHAPE::TILE_M, to);
                if (wgrad && a)
                    for (int i = 0; i < SHAPE::TILE_M; i += 64)
                        copy_rows(desc.a, rest->picked_a, item.i0 + i, TEGROUP_IMPL_SM90_LINES, to + i * 128);
                if (b)
                    for (int j = 0; j < SHAPE::COLS; j += 64)
                        copy_rows(desc.b, rest->picked_b, item.j0 + j, TEGROUP_IMPL_SM90_LINES,
                                  to + SHAPE::A_BYTES + j * 128);
                tegroup_impl_cp_commit();
                tegroup_impl_cp_wait<LAG>();
                for (; said + LAG <= step; said++) arrived(said);
            }
        }
    }
    /* What this lane copied for a step can be read by wgmma. */
    __device__ __forceinline__ void arrived(uint32_t step) const {
        tegroup_impl_async_fence();
        tegroup_impl_barrier_arrive(at(&rest->full[step % STAGES]));
    }
    /* Where `count` rows of an operand are, of which the first `there` exist. */
    static __device__ __forceinline__ void pick(const tegroup_gather &gather, int32_t first, int32_t there, int count,
                                                int32_t *picked) {
        __syncwarp(); /* the rows before these have been copied */
        for (int i = lane(); i < count; i += 32)
            picked[i] = i < there ? (int32_t)tegroup_impl_gathered(&gather, (int64_t)first + i) : -1;
        __syncwarp();
    }
    /* 64 columns of picked rows, swizzled as TMA would. A lane has the same chunk of every fourth row. Of whole chunks eight are
     * under way at a time, since a copy waits for its row to be looked up. */
    __device__ __forceinline__ void copy_rows(const tegroup_tensor &t, const int32_t *picked, int32_t col, int count,
                                              uint32_t to) const {
        const int chunk = lane() % 8, first = lane() / 8;
        const uint64_t row_bytes = (uint64_t)tegroup_impl_ld(&t) * 2;
        const int64_t left = (t.shape.cols - col - chunk * 8) * 2;
        const char *from = (const char *)t.data + (left > 0 ? (int64_t)(col + chunk * 8) * 2 : 0);
        const int32_t none = left > 0 ? 0 : -1;
        to += (uint32_t)(first * 128 + (chunk ^ first) * 16);
        if (left > 0 && left < 16) {
#pragma unroll 1
            for (int i = first, r = 0; i < count; i += 4, r++)
                tegroup_impl_load_slowly<1>((to + (uint32_t)(r * 512)) ^ (uint32_t)(r % 2 * 64),
                                            from + (uint64_t)tegroup_impl_max(picked[i], 0) * row_bytes,
                                            picked[i] < 0 ? 0 : (int32_t)left);
            return;
        }
#pragma unroll 1
        for (int i = first; i < count; i += 32, to += 32 * 128) {
            int32_t row[8];
#pragma unroll
            for (int r = 0; r < 8; r++) row[r] = picked[i + 4 * r] | none;
#pragma unroll
            for (int r = 0; r < 8; r++)
                tegroup_impl_cp_async_unless(row[r] < 0, (to + (uint32_t)(r * 512)) ^ (uint32_t)(r % 2 * 64),
                                             from + (uint64_t)(uint32_t)(row[r] < 0 ? 0 : row[r]) * row_bytes);
        }
    }
    __device__ __forceinline__ void load_a(const tegroup_impl_sm90_item &item, int32_t k0, uint32_t to,
                                           uint32_t full) const {
        if (is_short(item))
            load_box(item, TEGROUP_IMPL_A, &call.smaller[0], call.further[0], to, full, k0, item.i0, item.lines,
                     SHAPE::SHORT);
        else if (SHAPE::FITS && !SHAPE::A_LINES) load_weights(item, &call.map[TEGROUP_IMPL_B], to, full, k0, item.i0);
        else if (!SHAPE::A_LINES) load_rows(item, TEGROUP_IMPL_A, to, full, k0, item.i0, item.lines, SHAPE::TILE_M);
        else
#pragma unroll
            for (int i = 0; i < SHAPE::TILE_M; i += 64)
                load_rows(item, SHAPE::FIRST, to + i * 128, full, item.i0 + i, k0, item.k - k0,
                          TEGROUP_IMPL_SM90_LINES);
    }
    static __device__ __forceinline__ bool is_short(const tegroup_impl_sm90_item &item) {
        return SHAPE::SHORT > 0 && item.lines <= SHAPE::SHORT;
    }
    static __device__ __forceinline__ uint32_t a_bytes(const tegroup_impl_sm90_item &item) { /* of a stage */
        return (is_short(item) ? SHAPE::SHORT : SHAPE::TILE_M) * SHAPE::K * 2;
    }
    /* Whether gates and ups are halves of what a forward product gives: a tile then has gates, and after them ups. */
    __device__ __forceinline__ bool halves() const {
        return SHAPE::OP == TEGROUP_OP_FORWARD && SHAPE::ACTIVATES && !call.epilogue.activation.interleaved;
    }
    static __device__ __forceinline__ bool narrow(const tegroup_impl_sm90_item &item) {
        return SHAPE::NARROWS && item.cols == SHAPE::NARROW;
    }
    __device__ __forceinline__ uint32_t b_bytes(const tegroup_impl_sm90_item &item) const { /* of a stage */
        return (SHAPE::FITS ? item.cols : narrow(item) ? SHAPE::NARROW : SHAPE::COLS) * SHAPE::K * 2;
    }
    __device__ __forceinline__ void load_b(const tegroup_impl_sm90_item &item, int32_t k0, uint32_t to,
                                           uint32_t full) const {
        if (SHAPE::FITS) {
            /* In one box: several small ones take longer, and so does one that is larger than what there is. */
            const int32_t smaller = (SHAPE::COLS - item.cols) / SHAPE::FIT - 1;
            if (smaller < 0) load_rows(item, TEGROUP_IMPL_A, to, full, k0, item.j0, item.rows, SHAPE::COLS);
            else
                load_box(item, TEGROUP_IMPL_A, &call.smaller[smaller], call.further[smaller], to, full, k0, item.j0,
                         item.rows, item.cols);
        } else if (SHAPE::OP == TEGROUP_OP_FORWARD) {
            const CUtensorMap *map = narrow(item) ? &call.smaller[0] : &call.map[TEGROUP_IMPL_B];
            const bool two = halves();
            load_weights(item, map, to, full, k0, two ? item.j0 / 2 : item.j0);
            if (two)
                load_weights(item, map, to + item.cols / 2 * 128, full, k0,
                             item.j0 / 2 + (int32_t)call.epilogue.activation.output.cols);
        } else
#pragma unroll
            for (int j = 0; j < SHAPE::COLS; j += 64)
                if (j < SHAPE::NARROW || !narrow(item))
                    load_rows(item, SHAPE::SECOND, to + j * 128, full, item.j0 + j, k0, item.k - k0,
                              TEGROUP_IMPL_SM90_LINES);
    }
    /* Forward: a box of the group's weights, from `row` on. */
    __device__ __forceinline__ void load_weights(const tegroup_impl_sm90_item &item, const CUtensorMap *map,
                                                 uint32_t to, uint32_t full, int32_t k0, int32_t row) const {
        tegroup_impl_tma_load(to, map, full, k0, row, call.listed[TEGROUP_IMPL_B] ? 0 : item.group,
                              anywhere(TEGROUP_IMPL_B), item.origin[TEGROUP_IMPL_B]);
    }
    /* `rows` rows of the group, from `row` on, of 64 columns: as many as a box has, if there are. */
    __device__ __forceinline__ void load_rows(const tegroup_impl_sm90_item &item, tegroup_impl_operand operand,
                                              uint32_t to, uint32_t full, int32_t col, int32_t row, int32_t rows,
                                              int32_t box) const {
        load_box(item, operand, &call.map[operand], 0, to, full, col, row, rows, box);
    }
    /* By another map, whose boxes begin `further` bytes on. */
    __device__ __forceinline__ void load_box(const tegroup_impl_sm90_item &item, tegroup_impl_operand operand,
                                             const CUtensorMap *map, uint64_t further, uint32_t to, uint32_t full,
                                             int32_t col, int32_t row, int32_t rows, int32_t box) const {
        int32_t y = row, z = call.listed[operand] ? 0 : item.group;
        if (call.ragged[operand]) {
            const int32_t v = rows < box ? rows : box;
            y = box - v;
            z = item.first_row[operand] + row + v;
        }
        tegroup_impl_tma_load(to, map, full, col, y, z, anywhere(operand), item.origin[operand] + further);
    }

    __device__ __forceinline__ void release(uint32_t step) const {
        if (lane() == 0) tegroup_impl_barrier_arrive(at(&rest->empty[step % STAGES]));
    }
    __device__ __forceinline__ void wait_full(uint32_t step) const {
        tegroup_impl_barrier_wait(at(&rest->full[step % STAGES]), step / STAGES & 1);
    }

    /* Warpgroup `group` (0 or 1): sums and results. */
    __device__ __forceinline__ void multiply(int group) const {
        uint32_t step = 0, rounds = 0; /* rounds: of results through the slabs */
        int32_t number = 0;
        if (SHAPE::TURNS && group == 1) pass(&number, &step);
        for (;;) {
            const tegroup_impl_sm90_item *item = take(number);
            if (item->group < 0) break;
            /* A wait for a stage is good only while no phase can be missed: the other's are over first. */
            if (SHAPE::TURNS) tegroup_impl_barrier_wait(at(&rest->turn[group]), (number / 2 & 1) ^ (group == 0));
            if (item->lines > line_of(group)) work(group, *item, step, &rounds);
            else see_off(group, step, steps_of(*item));
            step += steps_of(*item); /* not held meanwhile: sums leave few registers */
            give(number);
            number++;
            if (SHAPE::TURNS) pass(&number, &step);
        }
    }
    /* The other warpgroup's turn; the end is left to be taken. */
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
    __device__ __forceinline__ void yield(int group) const {
        if (SHAPE::TURNS && lane() == 0) tegroup_impl_barrier_arrive(at(&rest->turn[group ^ 1]));
    }
    /* First line of a warpgroup's part of a tile. */
    static __device__ __forceinline__ int line_of(int group) { return SHAPE::TURNS ? 0 : group * SHAPE::LINES; }

    __device__ __forceinline__ void work(int group, const tegroup_impl_sm90_item &item, uint32_t step,
                                         uint32_t *rounds) const {
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
        if (wide && (adds || call.has_bias)) store_wide<true>(group, item, adds, *rounds, sum);
        else if (wide) store_wide<false>(group, item, false, *rounds, sum);
        else if (!SHAPE::FLIPS && (adds || call.has_bias)) store_halves<true>(group, item, adds, *rounds, sum);
        else store_halves<false>(group, item, false, *rounds, sum);
        *rounds += wide ? SHAPE::template results<true>::COUNT / SHAPE::template results<true>::USED
                        : SHAPE::template results<false>::COUNT / SHAPE::template results<false>::USED;
    }
    __device__ __forceinline__ bool is_wide() const {
        return !SHAPE::FLIPS && call.call.desc.d.dtype == TEGROUP_DTYPE_F32;
    }
    /* Stages of a tile of which this warpgroup has no lines. */
    __device__ __forceinline__ void see_off(int group, uint32_t step, uint32_t steps) const {
#pragma unroll 1
        for (const uint32_t end = step + steps; step < end; step++) {
            wait_full(step);
            __syncwarp();
            release(step);
        }
        yield(group);
    }
    /* An empty sum: -0, to which beta * C can be added without a change. */
    __device__ __forceinline__ void nothing(int group, bool adds, sums &sum) const {
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++)
#pragma unroll
            for (int i = 0; i < SHAPE::COLS / 2; i++) sum[m][i] = adds ? -0.0f : 0.0f;
        yield(group);
    }
    /* Of the first COLS columns of the tile. */
    template <int COLS>
    __device__ __forceinline__ void add_up(int group, uint32_t first, uint32_t steps, sums &sum) const {
        const uint64_t a = tegroup_impl_wgmma_tile(ring + line_of(group) * 128, SHAPE::K * 128),
                       b = tegroup_impl_wgmma_tile(ring + SHAPE::A_BYTES, SHAPE::K * 128);
        multiply_stage<COLS, true>(first, a, b, sum);
        tegroup_impl_wgmma_wait<0>(); /* else the compiler waits, and says so: the sums change registers here */
#pragma unroll 1
        for (uint32_t step = first + 1; step < first + steps; step++) {
            multiply_stage<COLS, false>(step, a, b, sum);
            tegroup_impl_wgmma_wait<1>();
            release(step - 1);
        }
        yield(group);
        tegroup_impl_wgmma_wait<0>();
        fence<COLS>(sum);
        release(first + steps - 1);
    }
    /* Of as many as a tile that fits has. */
    __device__ __forceinline__ void add_up_fit(int group, int32_t cols, uint32_t first, uint32_t steps,
                                               sums &sum) const {
        static_assert(TEGROUP_IMPL_SM90_SMALLER == 4, "one for each box");
        if (cols == SHAPE::fitting(0)) add_up<SHAPE::fitting(0)>(group, first, steps, sum);
        else if (cols == SHAPE::fitting(1)) add_up<SHAPE::fitting(1)>(group, first, steps, sum);
        else if (cols == SHAPE::fitting(2)) add_up<SHAPE::fitting(2)>(group, first, steps, sum);
        else if (cols == SHAPE::fitting(3)) add_up<SHAPE::fitting(3)>(group, first, steps, sum);
        else add_up<SHAPE::fitting(4)>(group, first, steps, sum);
    }
    /* The first stage of a tile reads no sums: what is in their registers is of no consequence. */
    template <int COLS, bool FIRST>
    __device__ __forceinline__ void multiply_stage(uint32_t step, uint64_t a, uint64_t b, sums &sum) const {
        constexpr int A_STEP = (SHAPE::A_LINES ? 16 * 128 : 32) >> 4, B_STEP = (SHAPE::B_LINES ? 16 * 128 : 32) >> 4;
        const uint64_t offset = (uint64_t)(step % STAGES * (SHAPE::STAGE_BYTES >> 4));
        wait_full(step);
        fence<COLS>(sum);
        tegroup_impl_wgmma_begin();
#pragma unroll
        for (int kk = 0; kk < SHAPE::K / 16; kk++)
#pragma unroll
            for (int m = 0; m < SHAPE::PARTS; m++)
                tegroup_impl_wgmma<COLS>::template multiply<BF16, SHAPE::A_LINES, SHAPE::B_LINES>(
                    reinterpret_cast<float(&)[COLS / 2]>(sum[m]), a + offset + m * (64 * 128 >> 4) + kk * A_STEP,
                    b + offset + kk * B_STEP, !FIRST || kk > 0);
        tegroup_impl_wgmma_commit();
        fence<COLS>(sum);
    }
    /* The compiler may not move what it does with the sums across. */
    template <int COLS> static __device__ __forceinline__ void fence(sums &sum) {
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++)
#pragma unroll
            for (int i = 0; i < COLS / 2; i++) asm volatile("" : "+f"(sum[m][i])::"memory");
    }

    /* ---- results: through slabs of 64 lines of 128 bytes, USED of them one after another ---- */

    /* Which of its slabs result `number` of a tile goes through, and where that is. */
    template <bool WIDE> static __device__ __forceinline__ int slab_of(int number) {
        return number % SHAPE::template results<WIDE>::USED;
    }
    template <bool WIDE> __device__ __forceinline__ uint32_t slab(int group, int number) const {
        return slabs + (uint32_t)((group * SHAPE::SLABS + slab_of<WIDE>(number)) * TEGROUP_IMPL_SM90_SLAB);
    }
    /* Where slab `number` of a tile goes, or C for it comes from. False: there are no lines or columns. */
    template <bool WIDE>
    __device__ __forceinline__ bool place(int group, const tegroup_impl_sm90_item &item, int number,
                                          tegroup_impl_operand operand, int32_t *x, int32_t *y, int32_t *z) const {
        typedef typename SHAPE::template results<WIDE> results;
        const int line = line_of(group) + number / results::ACROSS * 64;
        const int32_t i = item.i0 + line, v = (int32_t)tegroup_impl_min(item.lines - line, TEGROUP_IMPL_SM90_LINES);
        const int32_t col = number % results::ACROSS * results::COLS;
        if (SHAPE::FITS) {
            const int32_t rows = (int32_t)tegroup_impl_min(item.rows - col, TEGROUP_IMPL_SM90_LINES);
            *x = i;
            place_rows(item, operand, item.j0 + col, rows, y, z);
            return v > 0 && rows > 0;
        }
        if (SHAPE::FLIPS) { /* never ragged */
            *x = i;
            *y = item.j0 + col;
            *z = call.listed[operand] ? 0 : item.group;
            return v > 0 && col < item.cols;
        }
        *x = item.j0 + col;
        place_rows(item, operand, i, v, y, z);
        return v > 0 && col < item.cols && *x < call.call.desc.d.shape.cols;
    }
    /* A box of `rows` of the group, from `row` on. */
    __device__ __forceinline__ void place_rows(const tegroup_impl_sm90_item &item, tegroup_impl_operand operand,
                                               int32_t row, int32_t rows, int32_t *y, int32_t *z) const {
        *y = call.ragged[operand] ? TEGROUP_IMPL_SM90_LINES - rows : row;
        *z = call.ragged[operand] ? item.first_row[operand] + row + rows : call.listed[operand] ? 0 : item.group;
    }
    /* Does slab `number` hold the end of the columns within 16 bytes? TMA stores these at the least, and would go on past it. */
    template <bool WIDE> __device__ __forceinline__ bool ends(const tegroup_impl_sm90_item &item, int number) const {
        typedef typename SHAPE::template results<WIDE> results;
        const int32_t left = SHAPE::FLIPS ? item.lines - number / results::ACROSS * 64
                                          : (int32_t)tegroup_impl_min(item.cols, call.call.desc.d.shape.cols - item.j0)
                                                - number % results::ACROSS * results::COLS;
        return left > 0 && left < results::COLS && left % (WIDE ? 4 : 8) != 0;
    }

    /* One thread a warpgroup: its results from the slabs, and C to them. */
    __device__ __forceinline__ void store(int group) const {
        uint32_t rounds = 0;
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item item = *take(number);
            give(number);
            if (item.group < 0) break;
            if ((SHAPE::TURNS && (number & 1) != group) || item.lines <= line_of(group)) continue;
            if (SHAPE::ACTIVATES) store_sets(group, item, &rounds);
            else if (is_wide()) store_tile<true>(group, item, &rounds);
            else store_tile<false>(group, item, &rounds);
        }
        tegroup_impl_tma_store_wait<0>(); /* shared memory must outlive its readers */
    }
    template <bool WIDE>
    __device__ __forceinline__ void store_tile(int group, const tegroup_impl_sm90_item &item, uint32_t *rounds) const {
        typedef typename SHAPE::template results<WIDE> results;
        tegroup_impl_tma_store_wait<0>();
        for (int i = 0; i < results::USED; i++) prepare<WIDE>(group, item, i);
#pragma unroll 1
        for (int i = 0; i < results::COUNT; i++) {
            int32_t x, y, z;
            tegroup_impl_barrier_wait(at(&rest->written[group][slab_of<WIDE>(i)]), (*rounds + i / results::USED) & 1);
            if (place<WIDE>(group, item, i, TEGROUP_IMPL_D, &x, &y, &z) && !ends<WIDE>(item, i))
                tegroup_impl_tma_store(&call.map[TEGROUP_IMPL_D], slab<WIDE>(group, i), x, y, z,
                                       anywhere(TEGROUP_IMPL_D), item.origin[TEGROUP_IMPL_D]);
            tegroup_impl_tma_store_commit(); /* one group a slab, also when nothing is stored */
            if (i == 0 || i - 1 + results::USED >= results::COUNT) continue;
            tegroup_impl_tma_store_wait<1>(); /* the slab before this one has gone */
            prepare<WIDE>(group, item, i - 1 + results::USED);
        }
        *rounds += results::COUNT / results::USED;
    }
    /* The slab that result `number` goes through is free; C comes to it where that is added. */
    template <bool WIDE>
    __device__ __forceinline__ void prepare(int group, const tegroup_impl_sm90_item &item, int number) const {
        const uint32_t ready = at(&rest->ready[group][slab_of<WIDE>(number)]);
        int32_t x, y, z;
        if (item.beta == 0 || !place<WIDE>(group, item, number, TEGROUP_IMPL_C, &x, &y, &z)) {
            tegroup_impl_barrier_arrive(ready);
            return;
        }
        tegroup_impl_barrier_expect(ready, TEGROUP_IMPL_SM90_SLAB);
        tegroup_impl_tma_load(slab<WIDE>(group, number), &call.map[TEGROUP_IMPL_C], ready, x, y, z,
                              anywhere(TEGROUP_IMPL_C), item.origin[TEGROUP_IMPL_C]);
    }

    /* Sets of an activation, which a warpgroup counts from its first tile on. */
    __device__ __forceinline__ uint32_t piece(int group, uint32_t set, int piece) const {
        return slabs
               + (uint32_t)(group * SHAPE::SLABS * TEGROUP_IMPL_SM90_SLAB
                            + ((int)(set % SHAPE::SETS) * 3 + piece) * SHAPE::PIECE);
    }
    /* Where set `i` of a tile goes: lines of 64 of the group from the tile's on, and columns of what is activated. False: no
     * lines. */
    __device__ __forceinline__ bool place_set(int group, const tegroup_impl_sm90_item &item, int i, int32_t *x,
                                              int32_t *y, int32_t *z) const {
        const int across = item.cols / SHAPE::SET_COLS, line = line_of(group) + i / across * 64;
        const int32_t v = (int32_t)tegroup_impl_min(item.lines - line, TEGROUP_IMPL_SM90_LINES);
        *x = item.j0 * 32 / SHAPE::SET_COLS + i % across * 32;
        *y = TEGROUP_IMPL_SM90_LINES - v;
        *z = item.first_row[TEGROUP_IMPL_D] + item.i0 + line + v;
        return v > 0;
    }
    /* Columns past the last one TMA leaves out. */
    __device__ __forceinline__ void store_sets(int group, const tegroup_impl_sm90_item &item, uint32_t *done) const {
        const bool halves = !call.epilogue.activation.interleaved,
                   keeps_d = SHAPE::OP == TEGROUP_OP_DGRAD || call.epilogue.keeps_d,
                   keeps_activated = SHAPE::OP == TEGROUP_OP_FORWARD || call.epilogue.activates_again;
        const int sets = SHAPE::PARTS * (item.cols / SHAPE::SET_COLS);
        tegroup_impl_tma_store_wait<0>();
        for (int i = 0; i < SHAPE::SETS; i++) prepare_set(group, item, *done, i);
#pragma unroll 1
        for (int i = 0; i < sets; i++) {
            const uint32_t set = *done + i;
            int32_t x, y, z;
            tegroup_impl_barrier_wait(at(&rest->written[group][set % SHAPE::SETS]), set / SHAPE::SETS & 1);
            if (place_set(group, item, i, &x, &y, &z)) {
                if (keeps_d) {
                    tegroup_impl_tma_store(&call.map[TEGROUP_IMPL_D], piece(group, set, 0), halves ? x : 2 * x, y, z,
                                           true, item.origin[TEGROUP_IMPL_D]);
                    tegroup_impl_tma_store(halves ? &call.ups : &call.map[TEGROUP_IMPL_D], piece(group, set, 1),
                                           halves ? x : 2 * x + 32, y, z, true, item.origin[TEGROUP_IMPL_D]);
                }
                if (keeps_activated)
                    tegroup_impl_tma_store(&call.activated, piece(group, set, 2), x, y, z, true, call.activated_shift);
            }
            tegroup_impl_tma_store_commit();
            if (i + SHAPE::SETS >= sets) continue;
            tegroup_impl_tma_store_wait<0>(); /* it has gone, while the next one is worked on */
            prepare_set(group, item, *done, i + SHAPE::SETS);
        }
        *done += (uint32_t)sets;
    }
    /* Set `i` of a tile before which there were `done` is free; a gradient's gates and ups come to it. */
    __device__ __forceinline__ void prepare_set(int group, const tegroup_impl_sm90_item &item, uint32_t done,
                                                int i) const {
        const uint32_t set = done + i, ready = at(&rest->ready[group][set % SHAPE::SETS]);
        const bool halves = !call.epilogue.activation.interleaved;
        int32_t x, y, z;
        if (SHAPE::OP == TEGROUP_OP_FORWARD || !place_set(group, item, i, &x, &y, &z)) {
            tegroup_impl_barrier_arrive(ready);
            return;
        }
        tegroup_impl_barrier_expect(ready, 2 * SHAPE::PIECE);
        tegroup_impl_tma_load(piece(group, set, 0), &call.map[TEGROUP_IMPL_C], ready, halves ? x : 2 * x, y, z, true,
                              item.origin[TEGROUP_IMPL_C]);
        tegroup_impl_tma_load(piece(group, set, 1), halves ? &call.c_ups : &call.map[TEGROUP_IMPL_C], ready,
                              halves ? x : 2 * x + 32, y, z, true, item.origin[TEGROUP_IMPL_C]);
    }

    /* Until the slab of result `number` may be written, and holds C if that is added. */
    template <bool WIDE> __device__ __forceinline__ void begin(int group, int number, uint32_t rounds) const {
        typedef typename SHAPE::template results<WIDE> results;
        tegroup_impl_barrier_wait(at(&rest->ready[group][slab_of<WIDE>(number)]),
                                  (rounds + number / results::USED) & 1);
    }
    /* It is written. */
    template <bool WIDE>
    __device__ __forceinline__ void end(int group, const tegroup_impl_sm90_item &item, int number) const {
        typedef typename SHAPE::template results<WIDE> results;
        if (ends<WIDE>(item, number)) {
            tegroup_impl_warpgroup_sync(1 + group);
            const int32_t line = item.i0 + line_of(group) + number / results::ACROSS * 64,
                          col = item.j0 + number % results::ACROSS * results::COLS;
            if (SHAPE::FLIPS)
                tegroup_impl_sm90_copy<WIDE>(
                    &call.call, item.group, slab<WIDE>(group, number), col,
                    SHAPE::FITS ? item.j0 + item.rows
                                : (int32_t)tegroup_impl_min(item.j0 + item.cols, call.call.desc.a.shape.cols),
                    line);
            else
                tegroup_impl_sm90_copy<WIDE>(&call.call, item.group, slab<WIDE>(group, number), line,
                                             item.i0 + item.lines, col);
            tegroup_impl_warpgroup_sync(1 + group); /* `written` says as much, but racecheck hears its lane alone */
        }
        tegroup_impl_async_fence();
        __syncwarp();
        if (lane() == 0) tegroup_impl_barrier_arrive(at(&rest->written[group][slab_of<WIDE>(number)]));
    }

    template <bool TERMS>
    __device__ __forceinline__ void store_halves(int group, const tegroup_impl_sm90_item &item, bool adds,
                                                 uint32_t rounds, sums &sum) const {
        typedef typename SHAPE::template results<false> results;
        const bool bf16 = call.call.desc.d.dtype == TEGROUP_DTYPE_BF16;
        const int me = tegroup_impl_thread(), lane = me % 32, warp = me / 32 % 4;
        /* The row that this lane addresses: one of this warp's sixteen lines, or of sixteen columns that have these lines in two
         * chunks. */
        const int row = SHAPE::FLIPS ? lane / 16 * 8 + lane % 8 : warp * 16 + lane % 16;
        const uint32_t mine = (uint32_t)(row * 128 + (SHAPE::FLIPS ? ((warp * 2 + lane / 8 % 2) ^ (row & 7)) * 16 : 0));
        const tegroup_impl_sm90_terms<SHAPE> terms(call, item, line_of(group));
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++)
#pragma unroll
            for (int s = 0; s < results::ACROSS; s++) {
                const int number = m * results::ACROSS + s;
                const uint32_t to = slab<false>(group, number) + mine;
                begin<false>(group, number, rounds);
#pragma unroll
                for (int c = 0; c < 8; c += 2) { /* twice eight columns: of the upper eight lines, then of the lower */
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
#pragma unroll
                    for (int i = 0; i < 4; i++) word[i] = tegroup_impl_two_halves(x[2 * i], x[2 * i + 1], bf16);
                    tegroup_impl_stmatrix<SHAPE::FLIPS>(there, word);
                }
                end<false>(group, item, number);
            }
    }
    template <bool TERMS>
    __device__ __forceinline__ void store_wide(int group, const tegroup_impl_sm90_item &item, bool adds,
                                               uint32_t rounds, sums &sum) const {
        typedef typename SHAPE::template results<true> results;
        const int me = tegroup_impl_thread(), lane = me % 32;
        const int row = me / 32 % 4 * 16 + lane / 4; /* and the eighth below, whose chunks are permuted alike */
        const tegroup_impl_sm90_terms<SHAPE> terms(call, item, line_of(group));
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++)
#pragma unroll
            for (int s = 0; s < results::ACROSS; s++) {
                const int number = m * results::ACROSS + s;
                const uint32_t to = slab<true>(group, number) + (uint32_t)(row * 128 + lane % 2 * 8);
                begin<true>(group, number, rounds);
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const uint32_t there = to + (uint32_t)(((c * 2 + lane % 4 / 2) ^ (row & 7)) * 16);
                    float x[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) x[i] = tegroup_impl_gpu_mul(terms.alpha, sum[m][(s * 4 + c) * 4 + i]);
                    if (TERMS && adds)
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
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(there + half * 8 * 128), "f"(x[2 * half]),
                                     "f"(x[2 * half + 1])
                                     : "memory");
                }
                end<true>(group, item, number);
            }
    }

    /* Sums rounded to a set, forward to its first two pieces, those of a gradient to the third; then each warp goes on with what it
     * wrote itself. That is long, and stands once for all sets. */
    __device__ __forceinline__ void activate(int group, const tegroup_impl_sm90_item &item, uint32_t *done,
                                             sums &sum) const {
        constexpr bool FORWARD = SHAPE::OP == TEGROUP_OP_FORWARD;
        constexpr int MOST = SHAPE::COLS / SHAPE::SET_COLS; /* sets of 64 lines */
        const int across = item.cols / SHAPE::SET_COLS, row = tegroup_impl_thread() / 32 % 4 * 16 + lane() % 16;
        float scale[SHAPE::PARTS]; /* lane i has line i's, of the activation */
        const tegroup_impl_sm90_terms<SHAPE> terms(call, item, line_of(group));
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++) {
            scale[m] =
                m * 64 + row < item.lines
                    ? tegroup_impl_weight<float>(call.epilogue.activation.row_scale,
                                                 (int64_t)item.first_row[TEGROUP_IMPL_D] + item.i0 + m * 64 + row, 0)
                    : 0.0f;
            constexpr int AT_ONCE = FORWARD ? 0 : SHAPE::COLS / 8; /* which frees registers for what follows */
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
    /* Both columns that a thread has of eight, of its upper line and of its lower. */
    __device__ __forceinline__ void round(const tegroup_impl_sm90_terms<SHAPE> &terms, int m, int eight,
                                          const float (&sum)[SHAPE::COLS / 2], uint32_t *word) const {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = tegroup_impl_gpu_mul(terms.alpha, sum[eight * 4 + i]);
        if (terms.BIAS && call.has_bias) terms.add_bias(m, eight, x);
        word[0] = tegroup_impl_two_halves(x[0], x[1], BF16);
        word[1] = tegroup_impl_two_halves(x[2], x[3], BF16);
    }
    /* Four eights of columns to a piece; forward those LATER eights on to the next piece. */
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
    /* A warp's lines of a set; this lane has `row` of it, which is `line` of the tile. */
    __device__ __forceinline__ void differentiate(const tegroup_impl_sm90_item &item, uint32_t set, int row, int line,
                                                  int col, float scale) const {
        if (col >= call.call.desc.d.shape.cols) return;
        const float sum = tegroup_impl_sm90_differentiate<BF16, SHAPE::PIECE>(call, set, row - lane() % 16, scale);
        if (call.epilogue.row_sums && lane() < 16 && line < item.lines)
            call.epilogue
                .row_sums[col / 32 * call.call.desc.d.shape.rows + item.first_row[TEGROUP_IMPL_D] + item.i0 + line] =
                sum;
    }
};
#endif

/* A build for another GPU than sm_90a has a launch bound of 32, which the plan reads: nothing else tells sm_90 and sm_90a apart. */
template <bool BF16, typename SHAPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_HOPPER ? TEGROUP_IMPL_SM90_THREADS : 32, 1)
    tegroup_impl_sm90_kernel(const __grid_constant__ tegroup_impl_sm90_call call) {
#if TEGROUP_IMPL_HOPPER
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    const tegroup_impl_sm90_block<BF16, SHAPE> block(call, tegroup_impl_memory);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); /* which the compiler sees to be a warp's */
    block.init();
    if (warp < 4) {
        tegroup_impl_registers_give<40>();
        if (warp == 0) block.schedule();
        if (warp == 1 && block.gathers()) block.load_gathered();
        else if (warp == 1 && (threadIdx.x & 31) == 0) block.load();
        if (warp > 1 && (threadIdx.x & 31) == 0) block.store(warp - 2);
    } else {
        tegroup_impl_registers_take<232>();
        block.multiply(warp / 4 - 1);
    }
#else
    __trap();
#endif
}
