/* ---- Hopper GEMM: tiles ---- */

/* A persistent kernel of three warpgroups. Of the first, one warp finds tiles, one thread has TMA load their operands into a
 * ring of stages, and two have it store results. The two others multiply by wgmma: in turns, each on a tile of its own, so that
 * one hands over results while the other multiplies, or both on one tile, each on a half of its lines.
 *
 * Groups need no padding, and no tensor map is edited on the device. A ragged operand is described as boxes of R lines,
 * [start][R][cols], whose starts are one line apart, the whole being R lines before the buffer: lines from y = R - v of start
 * z = first + v are just the v lines from `first` on, and those past them lie outside the tensor, where they are read as zeros
 * and never written (A. Goucher's trick, as Triton's ragged tensor descriptors use it). Two more dimensions, with strides of 16
 * bytes and of 2^35, reach every address modulo 2^64: R lines before the buffer, and operands in buffers of their own. (The
 * address in a map is a real one: loads through a map that begins in memory which does not exist fault.)
 *
 * Each element is summed over k in steps of 16 from 0 upwards, whatever the tile, so the tile never changes a bit. */
enum {
    TEGROUP_IMPL_SM90_THREADS = 384,
#if defined(__CUDACC_DEBUG__) /* nvcc -G keeps some for itself */
    TEGROUP_IMPL_SM90_SHARED = 219 * 1024,
#else
    TEGROUP_IMPL_SM90_SHARED = 227 * 1024, /* bytes that a block can have */
#endif
    TEGROUP_IMPL_SM90_REST = 2048,    /* of these for barriers, found tiles and picked rows */
    TEGROUP_IMPL_SM90_ALIGN = 1024,   /* and to align the others by */
    TEGROUP_IMPL_SM90_ITEMS = 4,      /* tiles found ahead */
    TEGROUP_IMPL_SM90_K = 64,         /* of k a stage: 128 bytes */
    TEGROUP_IMPL_SM90_LINES = 64,     /* of a box of C and D, and of k in a weight gradient's operands */
    TEGROUP_IMPL_SM90_SLAB = 64 * 128 /* bytes of results that go through shared memory at a time */
};

/* What one launch works on. Arrays go by tegroup_impl_operand: a, b, c, d. */
typedef struct tegroup_impl_sm90_call {
    CUtensorMap map[4];
    tegroup_impl_gpu_call call;
    int32_t ragged[4]; /* the map is one of boxes, as above; else [group][row][col]      */
    int32_t listed[4]; /* [row][col] for each group, in a buffer of its own             */
    uint64_t shift[4]; /* of both kinds: bytes from the map's address to the boxes of buffer 0, modulo 2^64 */
    int32_t has_c, has_bias;
    int32_t gathers_a, gathers_b; /* rows of the operand are picked by index: cp.async takes the place of TMA */
    /* An activation of gates and ups in the epilogue: */
    tegroup_activation_desc activation; /* its output, row_scale and kind */
    int32_t keeps_d;                    /* D is wanted, too */
    uint64_t activated_shift;           /* as shift */
    CUtensorMap activated, ups; /* of its output; of D's ups where these are its second half, map[D] having the first */
} tegroup_impl_sm90_call;

/* A tile to work on. */
typedef struct tegroup_impl_sm90_item {
    int32_t group;        /* -1: there are no more */
    int32_t i0, j0;       /* first line and column, within the group */
    int32_t lines, k;     /* what there is of them */
    int32_t cols;         /* of the tile, whether they are there or not */
    int32_t first_row[4]; /* of the group in ragged operands */
    uint64_t origin[4];   /* of the group's boxes, from the map's address, modulo 2^64 */
    float alpha, beta;    /* beta: 0 also where there is no C */
} tegroup_impl_sm90_item;

/* A kernel: operation, lines of a warpgroup, columns of a tile, whether the warpgroups take turns, slabs of each, whether it
 * applies an activation of gates and ups to what it gives. */
template <int OP_, int LINES_, int COLS_, bool TURNS_, int SLABS_, bool ACTIVATES_ = false>
struct tegroup_impl_sm90_shape {
    static constexpr int OP = OP_, LINES = LINES_, COLS = COLS_, SLABS = SLABS_, K = TEGROUP_IMPL_SM90_K;
    static constexpr bool TURNS = TURNS_, ACTIVATES = ACTIVATES_;
    static constexpr int TILE_M = TURNS ? LINES : 2 * LINES, PARTS = LINES / 64; /* of 64 lines, as wgmma has them */
    /* A line of tiles ends in two narrow ones where these have room for what is left: so 4,096 columns are 20 tiles of 192 and
     * two of 128, and none is multiplied in vain. One narrow tile alone does not pay: blocks fall out of step. */
    static constexpr int NARROW = COLS == 192 && !ACTIVATES ? 128 : COLS;
    static constexpr bool NARROWS = NARROW < COLS;
    static __host__ __device__ __forceinline__ bool ends_narrow(int32_t cols) {
        return NARROWS && cols > COLS && cols % COLS > 0 && cols % COLS <= 2 * NARROW - COLS;
    }
    /* Whether lines (of m, n) rather than k are contiguous. */
    static constexpr bool A_LINES = OP == TEGROUP_OP_WGRAD, B_LINES = OP != TEGROUP_OP_FORWARD;
    static constexpr int A_BYTES = TILE_M * K * 2, STAGE_BYTES = A_BYTES + COLS * K * 2;
    static constexpr int SLAB_BYTES = 2 * SLABS * TEGROUP_IMPL_SM90_SLAB;
    static constexpr int OTHER_BYTES = SLAB_BYTES + TEGROUP_IMPL_SM90_REST + TEGROUP_IMPL_SM90_ALIGN;
    static constexpr int STAGES = (TEGROUP_IMPL_SM90_SHARED - OTHER_BYTES) / STAGE_BYTES;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + OTHER_BYTES;
    static_assert(STAGES >= 3, "a ring that hides the way from L2");
    static_assert(TILE_M <= 128 && COLS <= 256, "picked rows; lines of a box of TMA");
    /* A tile of results of four bytes, or of two, goes through its slabs one after another, from the first on. */
    template <bool WIDE> struct results {
        static constexpr int COLS = WIDE ? 32 : 64, ACROSS = COLS_ / COLS, COUNT = PARTS * ACROSS,
                             USED = COUNT < SLABS ? COUNT : SLABS;
        static_assert(COUNT % USED == 0, "every tile begins with the first slab");
    };
    /* With an activation results go by sets of three pieces of 64 lines by 32 columns: two of D, and what they are activated to.
     * A tile of D whose gates and ups are halves has half its columns of each. */
    static constexpr int SETS = PARTS * COLS / 64, SETS_USED = 2, PIECE = TEGROUP_IMPL_SM90_SLAB / 2;
    static_assert(!ACTIVATES
                      || (TURNS && SETS % SETS_USED == 0 && SETS_USED * 3 * PIECE <= SLABS * TEGROUP_IMPL_SM90_SLAB),
                  "every tile begins with the first set, and both are in the slabs");
};

/* What stands behind the ring and the slabs. */
template <typename SHAPE> struct tegroup_impl_sm90_rest {
    uint64_t full[SHAPE::STAGES], empty[SHAPE::STAGES]; /* of a stage */
    uint64_t found[TEGROUP_IMPL_SM90_ITEMS], taken[TEGROUP_IMPL_SM90_ITEMS];
    uint64_t turn[2];                  /* of a warpgroup: the other one has seen all of its stages */
    uint64_t ready[2][SHAPE::SLABS];   /* a slab of a warpgroup is free, and holds C if that is added */
    uint64_t written[2][SHAPE::SLABS]; /* results are in it */
    tegroup_impl_sm90_item items[TEGROUP_IMPL_SM90_ITEMS];
    int32_t picked_a[128],
        picked_b[TEGROUP_IMPL_SM90_LINES]; /* rows of data that gathered operands have in a stage; -1: zeros */
};

#if TEGROUP_IMPL_HOPPER
/* ---- finding tiles ---- */

/* One warp walks the groups, 32 at a time, a lane a group. Tiles are asked for in rising order. */
template <typename SHAPE> struct tegroup_impl_sm90_walk {
    const tegroup_impl_sm90_call &call;
    const tegroup_gemm_desc &desc;
    int64_t before, sum; /* tiles before the 32 groups at hand; of these up to and with this lane's */
    int32_t base, rows;  /* the first of these; rows of this lane's group */
    int32_t first_row[4];
    int32_t m;             /* of a weight gradient; else each group has its own */
    int32_t tiles_n, wide; /* tiles of a line, and of these not narrow */

    static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 31; }

    __device__ __forceinline__ explicit tegroup_impl_sm90_walk(const tegroup_impl_sm90_call &c)
        : call(c), desc(c.call.desc) {
        m = (int32_t)desc.a.shape.cols;
        tiles_n = ((int32_t)desc.d.shape.cols + SHAPE::COLS - 1) / SHAPE::COLS;
        wide = SHAPE::ends_narrow((int32_t)desc.d.shape.cols) ? tiles_n - 2 : tiles_n;
        load(0, 0);
    }
    __device__ __forceinline__ int32_t tiles_m(int32_t there) const {
        return ((SHAPE::OP == TEGROUP_OP_WGRAD ? m : there) + SHAPE::TILE_M - 1) / SHAPE::TILE_M;
    }
    /* A weight gradient that nothing is added to is left alone; one of no rows is beta * C. */
    __device__ __forceinline__ bool idle(int32_t there) const {
        return SHAPE::OP == TEGROUP_OP_WGRAD ? there < 0 || (there == 0 && desc.accumulate) : there <= 0;
    }
    /* Rows of a group, in which operands whose snapshots differ meet. */
    __device__ __forceinline__ void meet(const tegroup_tensor &t, tegroup_impl_operand operand, int32_t g,
                                         bool rows_too) {
        const tegroup_snapshot_view &view = call.call.views[operand];
        const int64_t there = view.rows ? view.rows[g] : t.shape.rows;
        first_row[operand] = view.rows && !call.listed[operand] ? (int32_t)view.start[g] : 0;
        if (rows_too && there < rows) rows = (int32_t)there;
    }
    __device__ __forceinline__ void load(int32_t from, int64_t tiles_before) {
        const int32_t g = from + lane();
        base = from;
        before = tiles_before;
        rows = -1;
        for (int i = 0; i < 4; i++) first_row[i] = 0;
        if (g < desc.a.shape.groups) {
            rows = INT32_MAX;
            meet(desc.a, TEGROUP_IMPL_A, g, true);
            meet(desc.b, TEGROUP_IMPL_B, g, SHAPE::OP == TEGROUP_OP_WGRAD);
            meet(desc.d, TEGROUP_IMPL_D, g, SHAPE::OP != TEGROUP_OP_WGRAD);
            if (call.has_c) meet(desc.c, TEGROUP_IMPL_C, g, SHAPE::OP != TEGROUP_OP_WGRAD);
        }
        sum = g < desc.a.shape.groups && !idle(rows) ? (int64_t)tiles_m(rows) * tiles_n : 0;
        for (int step = 1; step < 32; step *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane() >= step) sum += other;
        }
    }
    /* Tile number t, in stripes of 8 lines of tiles: their operands stay in L2. False when there are fewer. */
    __device__ __forceinline__ bool find(int64_t t, tegroup_impl_sm90_item *item) {
        for (;;) {
            const int64_t end = before + __shfl_sync(0xffffffffu, sum, 31);
            if (t < end) break;
            if (base + 32 >= desc.a.shape.groups) return false;
            load(base + 32, end);
        }
        const int owner = __ffs((int)__ballot_sync(0xffffffffu, t < before + sum)) - 1;
        const int32_t g = base + owner, there = __shfl_sync(0xffffffffu, rows, owner);
        const int64_t local = t - before - (owner ? __shfl_sync(0xffffffffu, sum, owner ? owner - 1 : 0) : 0),
                      stripe = local / (8 * tiles_n), within = local - stripe * 8 * tiles_n;
        const int32_t height = (int32_t)tegroup_impl_min(8, tiles_m(there) - 8 * stripe);
        item->group = g;
        item->i0 = (int32_t)(8 * stripe + within % height) * SHAPE::TILE_M;
        const int32_t column = (int32_t)(within / height);
        item->j0 = column * SHAPE::COLS - (column > wide ? SHAPE::COLS - SHAPE::NARROW : 0);
        item->lines = (int32_t)tegroup_impl_min((SHAPE::OP == TEGROUP_OP_WGRAD ? m : there) - item->i0, SHAPE::TILE_M);
        item->cols = column < wide ? SHAPE::COLS : SHAPE::NARROW;
        item->k = SHAPE::OP == TEGROUP_OP_WGRAD     ? there
                  : SHAPE::OP == TEGROUP_OP_FORWARD ? (int32_t)desc.a.shape.cols
                                                    : (int32_t)desc.b.shape.rows;
        item->alpha = item->k > 0 ? (float)tegroup_impl_scalar(&desc.alpha, g, (double)call.call.alpha) : 1.0f;
        item->beta = call.has_c ? (float)tegroup_impl_scalar(&desc.beta, g, (double)call.call.beta) : 0.0f;
        for (int i = 0; i < 4; i++) {
            item->first_row[i] = __shfl_sync(0xffffffffu, first_row[i], owner);
            item->origin[i] = call.shift[i];
        }
        if (item->k > 0) { /* else the list's entries may be anything */
            buffer(desc.a, TEGROUP_IMPL_A, item);
            buffer(desc.b, TEGROUP_IMPL_B, item);
        }
        if (item->beta != 0) buffer(desc.c, TEGROUP_IMPL_C, item);
        buffer(desc.d, TEGROUP_IMPL_D, item);
        return true;
    }
    /* TMA takes multiples of 16 bytes alone: from other addresses comes NaN, and to them goes nothing. */
    __device__ __forceinline__ void buffer(const tegroup_tensor &t, tegroup_impl_operand operand,
                                           tegroup_impl_sm90_item *item) const {
        if (!call.listed[operand]) return;
        const uint64_t address = (uint64_t)(uintptr_t)t.pointers[item->group];
        item->origin[operand] += address;
        if (address % 16 == 0) return;
        if (operand == TEGROUP_IMPL_D) item->lines = 0;
        else item->alpha = tegroup_impl_f32_of_bits(0x7fc00000u);
    }
};
#endif
