/* ---- Hopper GEMM kernel ---- */

/* A persistent kernel of three warpgroups. Of the first, one warp finds tiles and one thread has TMA load their operands into a
 * ring of stages; the two others multiply by wgmma, both on one tile (each a half of its lines), or in turns, each on a tile of
 * its own, so that one stores while the other multiplies. Blocks of a cluster that work on the same columns of one group share
 * B: each loads a part and sends it to all.
 *
 * Groups need no padding, and their tensor maps no editing: a ragged operand is described as boxes of R lines, [start][R][cols],
 * whose starts are one line apart (R lines before the buffer is start 0). Lines y = R - v and later of start z = first + v are
 * just the v lines from `first` on, and everything past them is outside the tensor: read as zeros, never written. (A. Goucher's
 * trick, as Triton's ragged tensor descriptors use it.)
 *
 * Each element is summed over k in steps of 16 from 0 upwards, whatever the tile, so the tile never changes a bit. */
enum {
    TEGROUP_IMPL_SM90_THREADS = 384,
    TEGROUP_IMPL_SM90_ITEMS = 4,    /* tiles found ahead */
    TEGROUP_IMPL_SM90_K = 64,       /* of k a stage: 128 bytes */
    TEGROUP_IMPL_SM90_SLAB = 8192,  /* bytes of results a store: 64 lines of 128 bytes */
    TEGROUP_IMPL_SM90_LINES = 64    /* of a box of D, and of k in one of a weight gradient's operands */
};

/* What one launch works on. */
typedef struct tegroup_impl_sm90_call {
    CUtensorMap a, b, d;
    tegroup_impl_gpu_call call;
    int32_t clipped[3]; /* of a, b, d: the map is one of boxes, as above; else [group][row][col] */
    int32_t plain;      /* nothing is to be added to alpha times the sums */
    int32_t adds;       /* beta is 1 for all, and C is D and FP32: the stores add */
} tegroup_impl_sm90_call;

/* A tile to work on. */
typedef struct tegroup_impl_sm90_item {
    tegroup_impl_gpu_tile tile; /* tile.p only where something is to be added */
    int32_t group;              /* -1: there are no more */
    int32_t i0, j0;             /* first line and column, within the group */
    int32_t lines, k;           /* what there is of them; no lines: only to keep a neighbour in the cluster company */
    int32_t a_row, b_row, d_row; /* first row of the group in ragged operands */
    int32_t shares;             /* every block of the cluster needs the same part of B */
    float alpha;
} tegroup_impl_sm90_item;

/* OP; lines of one warpgroup and columns of a tile; whether the two take turns; blocks of a cluster. */
template <int OP_, int LINES_, int COLS_, bool TURNS_, int CLUSTER_, int SLABS_> struct tegroup_impl_sm90_shape {
    static constexpr int OP = OP_, LINES = LINES_, COLS = COLS_, CLUSTER = CLUSTER_, SLABS = SLABS_;
    static constexpr bool TURNS = TURNS_;
    static constexpr int TILE_M = TURNS ? LINES : 2 * LINES, TILE_N = COLS, K = TEGROUP_IMPL_SM90_K;
    /* Whether lines (of m, n) rather than k are contiguous. */
    static constexpr bool A_LINES = OP == TEGROUP_OP_WGRAD, B_LINES = OP != TEGROUP_OP_FORWARD;
    static constexpr int A_BYTES = TILE_M * K * 2, B_BYTES = TILE_N * K * 2, STAGE_BYTES = A_BYTES + B_BYTES;
    static constexpr int SLAB_BYTES = 2 * SLABS * TEGROUP_IMPL_SM90_SLAB;
    static constexpr int REST_BYTES = 1024 + 2048; /* to align by, and for barriers and items */
    static constexpr int STAGES = (227 * 1024 - SLAB_BYTES - REST_BYTES) / STAGE_BYTES;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + SLAB_BYTES + REST_BYTES;
    static constexpr int B_PART = COLS / CLUSTER; /* columns of B that one block of a cluster loads */
    static_assert(STAGES >= 2 && STAGES <= 16, "stages");
    static_assert(LINES / 64 * (COLS / 64) % SLABS == 0, "every tile begins with the same slab");
};

/* What stands behind the ring and the slabs. */
template <int STAGES> struct tegroup_impl_sm90_rest {
    uint64_t full[STAGES], empty[STAGES], found[TEGROUP_IMPL_SM90_ITEMS], taken[TEGROUP_IMPL_SM90_ITEMS],
        turn[2]; /* of a warpgroup: the other one has seen all of its stages */
    tegroup_impl_sm90_item items[TEGROUP_IMPL_SM90_ITEMS];
};

#if TEGROUP_IMPL_HOPPER
/* ---- finding tiles ---- */

/* One warp walks the groups, 32 at a time, a lane a group. Tiles are asked for in rising order. */
template <typename SHAPE> struct tegroup_impl_sm90_walk {
    const tegroup_impl_sm90_call *call;
    int64_t before, sum; /* tiles before the 32 groups at hand; of these up to and with this lane's */
    int32_t base, rows;  /* the first of these; rows of this lane's group */
    int32_t m, n, tiles_n;

    static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 31; }

    __device__ __forceinline__ explicit tegroup_impl_sm90_walk(const tegroup_impl_sm90_call &c) : call(&c) {
        const tegroup_gemm_desc &desc = c.call.desc;
        m = (int32_t)desc.a.shape.cols; /* of a weight gradient; else each group has its own */
        n = (int32_t)desc.d.shape.cols;
        tiles_n = (n + SHAPE::TILE_N - 1) / SHAPE::TILE_N;
        load(0, 0);
    }
    static __device__ __forceinline__ int64_t rows_of(const tegroup_tensor &t, const tegroup_snapshot_view &view, int32_t g) {
        return view.rows ? view.rows[g] : t.shape.rows;
    }
    static __device__ __forceinline__ int32_t start_of(const tegroup_tensor &t, const tegroup_snapshot_view &view, int32_t g) {
        return view.rows ? (int32_t)view.start[g] : (int32_t)(g * t.shape.rows);
    }
    __device__ __forceinline__ int64_t tiles_of(int32_t rows_there) const {
        if (SHAPE::OP != TEGROUP_OP_WGRAD)
            return rows_there <= 0 ? 0 : (int64_t)((rows_there + SHAPE::TILE_M - 1) / SHAPE::TILE_M) * tiles_n;
        if (rows_there < 0 || (rows_there == 0 && call->call.desc.accumulate)) return 0;
        const int64_t tiles = (int64_t)((m + SHAPE::TILE_M - 1) / SHAPE::TILE_M) * tiles_n;
        return (tiles + SHAPE::CLUSTER - 1) / SHAPE::CLUSTER * SHAPE::CLUSTER; /* a cluster's blocks sum over the same k */
    }
    __device__ __forceinline__ void load(int32_t first, int64_t tiles_before) {
        const tegroup_gemm_desc &desc = call->call.desc;
        const tegroup_snapshot_view *views = call->call.views;
        const int32_t g = first + lane();
        base = first;
        before = tiles_before;
        rows = -1;
        if (g < desc.a.shape.groups) {
            int64_t there = rows_of(desc.a, views[TEGROUP_IMPL_A], g);
            if (SHAPE::OP == TEGROUP_OP_WGRAD) there = tegroup_impl_min(there, rows_of(desc.b, views[TEGROUP_IMPL_B], g));
            else {
                there = tegroup_impl_min(there, rows_of(desc.d, views[TEGROUP_IMPL_D], g));
                if (desc.c.dtype != TEGROUP_DTYPE_UNSET)
                    there = tegroup_impl_min(there, rows_of(desc.c, views[TEGROUP_IMPL_C], g));
            }
            rows = (int32_t)there;
        }
        sum = g < desc.a.shape.groups ? tiles_of(rows) : 0;
        for (int step = 1; step < 32; step *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane() >= step) sum += other;
        }
    }
    /* Tile number t, in stripes of 8 lines of tiles: their operands stay in L2. False when there are fewer. */
    __device__ __forceinline__ bool find(int64_t t, tegroup_impl_sm90_item *item) {
        const tegroup_gemm_desc &desc = call->call.desc;
        const tegroup_snapshot_view *views = call->call.views;
        for (;;) {
            const int64_t end = before + __shfl_sync(0xffffffffu, sum, 31);
            if (t < end) break;
            if (base + 32 >= desc.a.shape.groups) return false;
            load(base + 32, end);
        }
        const int owner = __ffs((int)__ballot_sync(0xffffffffu, t < before + sum)) - 1;
        const int32_t g = base + owner, there = __shfl_sync(0xffffffffu, rows, owner);
        const int32_t lines = SHAPE::OP == TEGROUP_OP_WGRAD ? m : there, tiles_m = (lines + SHAPE::TILE_M - 1) / SHAPE::TILE_M;
        const int64_t local = t - before - (owner ? __shfl_sync(0xffffffffu, sum, owner ? owner - 1 : 0) : 0);
        const int64_t stripe = local / (8 * tiles_n), within = local - stripe * 8 * tiles_n;
        const int32_t height = (int32_t)tegroup_impl_min(8, tiles_m - 8 * stripe);
        item->group = g;
        item->i0 = height > 0 ? (int32_t)(8 * stripe + within % height) * SHAPE::TILE_M : lines;
        item->j0 = height > 0 ? (int32_t)(within / height) * SHAPE::TILE_N : 0;
        item->lines = (int32_t)tegroup_impl_clamp(lines - item->i0, 0, SHAPE::TILE_M);
        item->k = SHAPE::OP == TEGROUP_OP_WGRAD     ? there
                  : SHAPE::OP == TEGROUP_OP_FORWARD ? (int32_t)desc.a.shape.cols
                                                    : (int32_t)desc.b.shape.rows;
        item->a_row = start_of(desc.a, views[TEGROUP_IMPL_A], g);
        item->b_row = start_of(desc.b, views[TEGROUP_IMPL_B], g);
        item->d_row = start_of(desc.d, views[TEGROUP_IMPL_D], g);
        item->alpha = item->k > 0 ? (float)tegroup_impl_scalar(&desc.alpha, g, (double)call->call.alpha) : 1.0f;
        return true;
    }
};

/* ---- a block ---- */

template <bool BF16, typename SHAPE> struct tegroup_impl_sm90_block {
    static constexpr int STAGES = SHAPE::STAGES, M_PARTS = SHAPE::LINES / 64;
    const tegroup_impl_sm90_call &call;
    uint32_t ring, slabs; /* addresses in shared memory */
    tegroup_impl_sm90_rest<STAGES> *rest;
    uint32_t rank; /* in the cluster */

    static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 31; }
    static __device__ __forceinline__ uint32_t at(const uint64_t *barrier) { return tegroup_impl_shared(barrier); }

    __device__ __forceinline__ tegroup_impl_sm90_block(const tegroup_impl_sm90_call &c, unsigned char *memory) : call(c) {
        memory += (1024 - tegroup_impl_shared(memory) % 1024) % 1024;
        ring = tegroup_impl_shared(memory);
        slabs = ring + STAGES * SHAPE::STAGE_BYTES;
        rest = (tegroup_impl_sm90_rest<STAGES> *)(memory + STAGES * SHAPE::STAGE_BYTES + SHAPE::SLAB_BYTES);
        rank = SHAPE::CLUSTER > 1 ? tegroup_impl_cluster_rank() : 0;
    }
    __device__ __forceinline__ void init() const {
        if (threadIdx.x == 0) {
            for (int s = 0; s < STAGES; s++) { /* multiplying warps free a stage, those of the whole cluster */
                tegroup_impl_barrier_init(at(&rest->full[s]), 1);
                tegroup_impl_barrier_init(at(&rest->empty[s]), (SHAPE::TURNS ? 4 : 8) * SHAPE::CLUSTER);
            }
            for (int i = 0; i < TEGROUP_IMPL_SM90_ITEMS; i++) { /* read by the loading thread and the multiplying warps */
                tegroup_impl_barrier_init(at(&rest->found[i]), 1);
                tegroup_impl_barrier_init(at(&rest->taken[i]), 9);
            }
            tegroup_impl_barrier_init(at(&rest->turn[0]), 4);
            tegroup_impl_barrier_init(at(&rest->turn[1]), 4);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            tegroup_impl_async_fence();
        }
        sync();
    }
    __device__ __forceinline__ void sync() const {
        if (SHAPE::CLUSTER > 1) tegroup_impl_cluster_sync();
        else __syncthreads();
    }
    __device__ __forceinline__ const tegroup_impl_sm90_item *take(int32_t number) const {
        tegroup_impl_barrier_wait(at(&rest->found[number % TEGROUP_IMPL_SM90_ITEMS]), number / TEGROUP_IMPL_SM90_ITEMS & 1);
        return &rest->items[number % TEGROUP_IMPL_SM90_ITEMS];
    }
    __device__ __forceinline__ void give(int32_t number) const {
        tegroup_impl_barrier_arrive(at(&rest->taken[number % TEGROUP_IMPL_SM90_ITEMS]));
    }

    /* One warp: which tiles this block works on. Neighbours in a cluster take neighbouring tiles; the last ones may get one
     * without lines. */
    __device__ __forceinline__ void schedule() const {
        tegroup_impl_sm90_walk<SHAPE> walk(call);
        int64_t t = blockIdx.x / SHAPE::CLUSTER * SHAPE::CLUSTER;
        for (int32_t number = 0;; number++, t += gridDim.x) {
            tegroup_impl_sm90_item own;
            bool there = walk.find(t, &own), shares = false;
            if (SHAPE::CLUSTER > 1 && there) {
                tegroup_impl_sm90_item other;
                const tegroup_impl_sm90_item first = own;
                if (!walk.find(t + 1, &other)) {
                    other = own;
                    other.i0 += other.lines;
                    other.lines = 0;
                }
                if (rank) own = other;
                shares = own.group == (rank ? first.group : other.group) && own.j0 == (rank ? first.j0 : other.j0);
            }
            own.shares = shares;
            if (!there) own.group = -1;
            tegroup_impl_sm90_item *item = &rest->items[number % TEGROUP_IMPL_SM90_ITEMS];
            if (number >= TEGROUP_IMPL_SM90_ITEMS)
                tegroup_impl_barrier_wait(at(&rest->taken[number % TEGROUP_IMPL_SM90_ITEMS]),
                                          (number / TEGROUP_IMPL_SM90_ITEMS & 1) ^ 1);
            if (lane() == 0) {
                item->group = own.group;
                item->i0 = own.i0;
                item->j0 = own.j0;
                item->lines = own.lines;
                item->k = own.k;
                item->a_row = own.a_row;
                item->b_row = own.b_row;
                item->d_row = own.d_row;
                item->shares = own.shares;
                item->alpha = own.alpha;
                if (there && !call.plain && !call.adds) {
                    tegroup_impl_gpu_product(&call.call, own.group, &item->tile.p);
                    item->tile.i0 = own.i0;
                    item->tile.j0 = own.j0;
                }
                tegroup_impl_barrier_arrive(at(&rest->found[number % TEGROUP_IMPL_SM90_ITEMS]));
            }
            __syncwarp();
            if (!there) break;
        }
    }

    /* One thread: the stages of every tile. */
    __device__ __forceinline__ void load() const {
        uint32_t step = 0;
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item item = *take(number);
            give(number);
            if (item.group < 0) break;
            for (int32_t k0 = 0; k0 < item.k; k0 += SHAPE::K, step++) {
                const uint32_t stage = step % STAGES, full = at(&rest->full[stage]), to = ring + stage * SHAPE::STAGE_BYTES;
                tegroup_impl_barrier_wait(at(&rest->empty[stage]), (step / STAGES & 1) ^ 1);
                tegroup_impl_barrier_expect(full, SHAPE::STAGE_BYTES);
                load_a(item, k0, to, full);
                load_b(item, k0, to + SHAPE::A_BYTES, full);
            }
        }
    }
    __device__ __forceinline__ void load_a(const tegroup_impl_sm90_item &item, int32_t k0, uint32_t to, uint32_t full) const {
        if (SHAPE::OP == TEGROUP_OP_WGRAD) {
            const int32_t v = tegroup_impl_min(item.k - k0, TEGROUP_IMPL_SM90_LINES);
#pragma unroll
            for (int i = 0; i < SHAPE::TILE_M; i += 64)
                load_rows(to + i * 128, &call.a, call.clipped[0], full, item.i0 + i, item.group, item.a_row, k0, v,
                          TEGROUP_IMPL_SM90_LINES);
        } else {
            load_rows(to, &call.a, call.clipped[0], full, k0, item.group, item.a_row, item.i0, item.lines, SHAPE::TILE_M);
        }
    }
    /* Lines of one group's rows. */
    static __device__ __forceinline__ void load_rows(uint32_t to, const CUtensorMap *map, int32_t clipped, uint32_t full,
                                                     int32_t col, int32_t group, int32_t group_row, int32_t row, int32_t rows,
                                                     int32_t box) {
        if (clipped) tegroup_impl_tma_load(to, map, full, col, box - rows, group_row + row + rows);
        else tegroup_impl_tma_load(to, map, full, col, row, group);
    }
    __device__ __forceinline__ void load_b(const tegroup_impl_sm90_item &item, int32_t k0, uint32_t to, uint32_t full) const {
        /* of a box: columns that are k's lines, or 64 of the lines themselves */
        constexpr int BOX = SHAPE::OP == TEGROUP_OP_FORWARD ? SHAPE::B_PART : 64;
#pragma unroll
        for (int j = 0; j < SHAPE::COLS; j += BOX) {
            if (SHAPE::CLUSTER > 1 && item.shares && j / SHAPE::B_PART != (int)rank) continue;
            int32_t x, y, z = item.group;
            if (SHAPE::OP == TEGROUP_OP_FORWARD) x = k0, y = item.j0 + j;
            else x = item.j0 + j, y = k0;
            if (SHAPE::OP == TEGROUP_OP_WGRAD && call.clipped[1]) {
                const int32_t v = tegroup_impl_min(item.k - k0, TEGROUP_IMPL_SM90_LINES);
                y = TEGROUP_IMPL_SM90_LINES - v;
                z = item.b_row + k0 + v;
            }
            if (SHAPE::CLUSTER > 1 && item.shares)
                tegroup_impl_tma_multicast(to + j * 128, &call.b, full, x, y, z, (uint16_t)((1 << SHAPE::CLUSTER) - 1));
            else tegroup_impl_tma_load(to + j * 128, &call.b, full, x, y, z);
        }
    }

    __device__ __forceinline__ void release(uint32_t step) const {
        const uint32_t empty = at(&rest->empty[step % STAGES]);
        if (SHAPE::CLUSTER == 1) {
            if (lane() == 0) tegroup_impl_barrier_arrive(empty);
        } else if (lane() < SHAPE::CLUSTER) tegroup_impl_barrier_arrive_at(empty, (uint32_t)lane());
    }

    /* Warpgroup `group` (0 or 1): sums and results. */
    __device__ __forceinline__ void multiply(int group) const {
        uint32_t step = 0;
        int32_t number = 0;
        if (SHAPE::TURNS && group == 1) pass(&number, &step);
        for (;;) {
            const tegroup_impl_sm90_item *item = take(number);
            const int32_t steps = (item->k + SHAPE::K - 1) / SHAPE::K;
            float sum[M_PARTS][SHAPE::COLS / 2];
            if (item->group < 0) break;
            /* A wait for a stage is good only while no phase can be missed: the other's are over first. */
            if (SHAPE::TURNS) tegroup_impl_barrier_wait(at(&rest->turn[group]), (number / 2 & 1) ^ (group == 0));
            sums(group, steps, step, sum);
            if (call.plain || call.adds) store(group, *item, sum);
            else store_added(group, *item, sum);
            __syncwarp();
            if (lane() == 0) give(number);
            step += steps;
            number++;
            if (SHAPE::TURNS) pass(&number, &step);
        }
        if (threadIdx.x % 128 == 0) tegroup_impl_tma_store_wait<0>(); /* shared memory must outlive its readers */
    }
    /* The other warpgroup's turn; its last one is left to be taken. */
    __device__ __forceinline__ void pass(int32_t *number, uint32_t *step) const {
        const tegroup_impl_sm90_item *item = take(*number);
        if (item->group < 0) return;
        *step += (uint32_t)((item->k + SHAPE::K - 1) / SHAPE::K);
        __syncwarp();
        if (lane() == 0) give(*number);
        ++*number;
    }

    __device__ __forceinline__ void sums(int group, int32_t steps, uint32_t first, float (&sum)[M_PARTS][SHAPE::COLS / 2]) const {
        const uint64_t a = tegroup_impl_wgmma_tile(ring + (SHAPE::TURNS ? 0 : group * SHAPE::LINES * 128), SHAPE::K * 128),
                       b = tegroup_impl_wgmma_tile(ring + SHAPE::A_BYTES, SHAPE::K * 128);
        if (steps == 0) {
#pragma unroll
            for (int m = 0; m < M_PARTS; m++)
#pragma unroll
                for (int i = 0; i < SHAPE::COLS / 2; i++) sum[m][i] = 0;
            yield(group);
            return;
        }
        multiply_stage<true>(first, a, b, sum);
        tegroup_impl_wgmma_wait<0>(); /* else the compiler waits, and says so: the sums change registers here */
#pragma unroll 1
        for (uint32_t step = first + 1; step < first + steps; step++) {
            multiply_stage<false>(step, a, b, sum);
            tegroup_impl_wgmma_wait<1>();
            release(step - 1);
        }
        yield(group);
        tegroup_impl_wgmma_wait<0>();
        fence(sum);
        release(first + steps - 1);
    }
    __device__ __forceinline__ void yield(int group) const {
        if (SHAPE::TURNS && lane() == 0) tegroup_impl_barrier_arrive(at(&rest->turn[group ^ 1]));
    }
    /* The first stage of a tile reads no sums: what is in their registers is of no consequence. */
    template <bool FIRST>
    __device__ __forceinline__ void multiply_stage(uint32_t step, uint64_t a, uint64_t b,
                                                   float (&sum)[M_PARTS][SHAPE::COLS / 2]) const {
        constexpr int A_STEP = (SHAPE::A_LINES ? 16 * 128 : 32) >> 4, B_STEP = (SHAPE::B_LINES ? 16 * 128 : 32) >> 4;
        const uint32_t stage = step % STAGES;
        const uint64_t offset = (uint64_t)(stage * (SHAPE::STAGE_BYTES >> 4));
        tegroup_impl_barrier_wait(at(&rest->full[stage]), step / STAGES & 1);
        fence(sum);
        tegroup_impl_wgmma_begin();
#pragma unroll
        for (int kk = 0; kk < SHAPE::K / 16; kk++)
#pragma unroll
            for (int m = 0; m < M_PARTS; m++)
                tegroup_impl_wgmma<SHAPE::COLS>::template multiply<BF16, SHAPE::A_LINES, SHAPE::B_LINES>(
                    sum[m], a + offset + m * (64 * 128 >> 4) + kk * A_STEP, b + offset + kk * B_STEP, !FIRST || kk > 0);
        tegroup_impl_wgmma_commit();
        fence(sum);
    }
    /* The compiler may not move what it does with the sums across. */
    static __device__ __forceinline__ void fence(float (&sum)[M_PARTS][SHAPE::COLS / 2]) {
#pragma unroll
        for (int m = 0; m < M_PARTS; m++)
#pragma unroll
            for (int i = 0; i < SHAPE::COLS / 2; i++) asm volatile("" : "+f"(sum[m][i])::"memory");
    }

    /* Where slab `number` of this warpgroup is, once its last store has read it. */
    __device__ __forceinline__ uint32_t slab(int group, int number) const {
        if (threadIdx.x % 128 == 0) tegroup_impl_tma_store_wait<SHAPE::SLABS - 1>();
        tegroup_impl_warpgroup_sync(1 + group);
        return slabs + (uint32_t)((group * SHAPE::SLABS + number % SHAPE::SLABS) * TEGROUP_IMPL_SM90_SLAB);
    }
    __device__ __forceinline__ void send(int group, const tegroup_impl_sm90_item &item, uint32_t from, int line, int col) const {
        tegroup_impl_async_fence();
        tegroup_impl_warpgroup_sync(1 + group);
        if (threadIdx.x % 128 != 0) return;
        const int32_t v = (int32_t)tegroup_impl_min(item.lines - line, TEGROUP_IMPL_SM90_LINES), j = item.j0 + col;
        if (v > 0 && j < call.call.desc.d.shape.cols && (item.k > 0 || !call.adds)) {
            const int32_t i = item.i0 + line, y = call.clipped[2] ? TEGROUP_IMPL_SM90_LINES - v : i,
                          z = call.clipped[2] ? item.d_row + i + v : item.group;
            tegroup_impl_tma_store(&call.d, from, j, y, z, call.adds);
        }
        tegroup_impl_tma_store_commit(); /* one group a slab, also when nothing is stored */
    }
    /* alpha times the sums, 64 lines of 128 bytes at a time. */
    __device__ __forceinline__ void store(int group, const tegroup_impl_sm90_item &item,
                                          float (&sum)[M_PARTS][SHAPE::COLS / 2]) const {
        const int warp = (int)threadIdx.x / 32 % 4, first = SHAPE::TURNS ? 0 : group * SHAPE::LINES;
        const float alpha = item.alpha;
        const bool bf16 = call.call.desc.d.dtype == TEGROUP_DTYPE_BF16;
        if (call.call.desc.d.dtype != TEGROUP_DTYPE_F32) {
            const int row = warp * 16 + lane() % 16;
#pragma unroll
            for (int m = 0; m < M_PARTS; m++)
#pragma unroll
                for (int s = 0; s < SHAPE::COLS / 64; s++) {
                    const uint32_t to = slab(group, m * (SHAPE::COLS / 64) + s);
#pragma unroll
                    for (int c = 0; c < 8; c += 2) {
                        const float *x = &sum[m][(s * 8 + c) * 4];
                        uint32_t word[4];
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            word[i] = tegroup_impl_two_halves(tegroup_impl_gpu_mul(alpha, x[2 * i]),
                                                              tegroup_impl_gpu_mul(alpha, x[2 * i + 1]), bf16);
                        tegroup_impl_stmatrix(to + row * 128 + ((c + lane() / 16) ^ (row & 7)) * 16, word[0], word[1], word[2],
                                              word[3]);
                    }
                    send(group, item, to, first + m * 64, s * 64);
                }
        } else {
#pragma unroll
            for (int m = 0; m < M_PARTS; m++)
#pragma unroll
                for (int s = 0; s < SHAPE::COLS / 32; s++) {
                    const uint32_t to = slab(group, m * (SHAPE::COLS / 32) + s);
                    put(to, &sum[m][s * 16], alpha, true);
                    send(group, item, to, first + m * 64, s * 32);
                }
        }
    }
    /* A slab of 64 lines of 32 numbers, its chunks permuted for TMA or not. */
    static __device__ __forceinline__ void put(uint32_t to, const float *x, float alpha, bool permuted) {
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = (int)threadIdx.x / 32 % 4 * 16 + half * 8 + lane() / 4, chunk = c * 2 + lane() % 4 / 2;
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                                 to + (uint32_t)(row * 128 + (permuted ? chunk ^ (row & 7) : chunk) * 16 + lane() % 2 * 8)),
                             "f"(tegroup_impl_gpu_mul(alpha, x[c * 4 + half * 2])),
                             "f"(tegroup_impl_gpu_mul(alpha, x[c * 4 + half * 2 + 1]))
                             : "memory");
            }
    }
    /* The same with C, bias or both, by ordinary stores. */
    __device__ __forceinline__ void store_added(int group, const tegroup_impl_sm90_item &item,
                                                float (&sum)[M_PARTS][SHAPE::COLS / 2]) const {
        const int thread = (int)threadIdx.x % 128, first = SHAPE::TURNS ? 0 : group * SHAPE::LINES;
        if (item.tile.p.untouched) return;
#pragma unroll
        for (int m = 0; m < M_PARTS; m++)
#pragma unroll
            for (int s = 0; s < SHAPE::COLS / 32; s++) {
                const uint32_t to = slab(group, 0);
                const float *from = (const float *)__cvta_shared_to_generic(to);
                put(to, &sum[m][s * 16], 1.0f, false);
                tegroup_impl_warpgroup_sync(1 + group);
                store_rows(call.call.desc, item.tile, first + m * 64, s * 32, from, thread);
                tegroup_impl_warpgroup_sync(1 + group);
            }
    }
    static __device__ __noinline__ void store_rows(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &tile, int line,
                                                   int col, const float *from, int thread) {
        const tegroup_impl_gpu_output output(desc, tile, SHAPE::TILE_M, SHAPE::TILE_N);
#pragma unroll 1
        for (int e = thread; e < 64 * 4; e += 128) output.store(desc, line + e / 4, col + e % 4 * 8, from + e * 8);
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
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); /* which the compiler sees to be the same in a warp */
    if (threadIdx.x == 0) {
        tegroup_impl_tma_prefetch(&call.a);
        tegroup_impl_tma_prefetch(&call.b);
        tegroup_impl_tma_prefetch(&call.d);
    }
    block.init();
    if (warp < 4) {
        tegroup_impl_registers_give<40>();
        if (warp == 0) block.schedule();
        if (warp == 1 && (threadIdx.x & 31) == 0) block.load();
    } else {
        tegroup_impl_registers_take<232>();
        block.multiply(warp / 4 - 1);
    }
    if (SHAPE::CLUSTER > 1) {
        __syncwarp();
        tegroup_impl_cluster_sync(); /* neighbours arrive at this block's barriers until they are done */
    }
#else
    __trap();
#endif
}
