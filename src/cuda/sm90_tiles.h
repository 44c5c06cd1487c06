/* ---- Hopper GEMM: tiles ---- */

#pragma once
#include "base/version.h"
#include "core/gemm_types.h"
#include "core/checks.h"
#include "cuda/sm90_kernels.h"
#include "cuda/sm90_schedule.h"
#include "cuda/call.h"

/* A persistent kernel of three warpgroups. Of the first, one warp finds tiles, one thread has TMA load their operands
 * into a ring of stages, and two have it store results. The two others multiply by wgmma: in turns, each on a tile of
 * its own, so that one hands over results while the other multiplies, or both on one tile, each on a half of its lines.
 *
 * Groups need no padding, and no tensor map is edited on the device. A ragged operand is described as boxes of R lines,
 * [start][R][cols], whose starts are one line apart, the whole being R lines before the buffer: lines from y = R - v of
 * start z = first + v are just the v lines from `first` on, and those past them lie outside the tensor, where they are
 * read as zeros and never written (A. Goucher's trick, as Triton's ragged tensor descriptors use it). Two more
 * dimensions, with strides of 16 bytes and of 2^35, reach every address modulo 2^64: R lines before the buffer, and
 * operands in buffers of their own. (The address in a map is a real one: loads through a map that begins in memory
 * which does not exist fault.)
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
    TEGROUP_IMPL_SM90_LINES = 64,     /* of a box of C and D, and of k in a weight gradient's operands */
    TEGROUP_IMPL_SM90_SHORT = 16,     /* of a box of A where a tile has no more lines */
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
    int32_t narrows;              /* the last groups that have narrow tiles alone */
    int32_t adds_in_l2;           /* a weight gradient that is added to D: L2 may do it */
    int32_t gathers_a, gathers_b; /* rows of the operand are picked by index: cp.async takes the place of TMA */
    tegroup_impl_gpu_epilogue epilogue;
    uint64_t activated_shift; /* as shift */
    /* Of activation.output. Of D's ups where these are its second half, map[D] having the first; in a gradient D is
     * that of gates and ups, and these are in C and c_ups. */
    CUtensorMap activated, ups, c_ups;
    /* Smaller boxes: of B, forward, of narrow tiles; of A, of short tiles; of A, of tiles that fit, from the second
     * widest on. */
    CUtensorMap smaller[TEGROUP_IMPL_SM90_SMALLER];
    uint64_t further[TEGROUP_IMPL_SM90_SMALLER]; /* their shifts above the operand's */
} tegroup_impl_sm90_call;

/* A tile to work on. */
typedef struct tegroup_impl_sm90_item {
    int32_t group;        /* -1: there are no more */
    int32_t i0, j0;       /* first line and column, within the group */
    int32_t lines, k;     /* what there is of them */
    int32_t cols;         /* of the tile, whether they are there or not */
    int32_t rows;         /* a tile that fits: what there is of these */
    int32_t first_row[4]; /* of the group in ragged operands */
    uint64_t origin[4];   /* of the group's boxes, from the map's address, modulo 2^64 */
    float alpha, beta;    /* beta: 0 also where there is no C */
} tegroup_impl_sm90_item;

/* A kernel: operation, lines of a warpgroup, columns of a tile, whether the warpgroups take turns, slabs of each,
 * whether lines of its tiles are D's columns (of results of two bytes that nothing is added to), whether it applies
 * an activation of gates and ups to what it gives. */
template <int OP_, int LINES_, int COLS_, bool TURNS_, int SLABS_, bool FLIPS_ = false, bool ACTIVATES_ = false>
struct tegroup_impl_sm90_shape {
    static constexpr int OP = OP_, LINES = LINES_, COLS = COLS_, SLABS = SLABS_, K = TEGROUP_IMPL_SM90_K;
    static constexpr bool TURNS = TURNS_, FLIPS = FLIPS_, ACTIVATES = ACTIVATES_;
    /* Columns of a flipped tile of ragged rows are as many of a group's rows as fit: COLS, or up to SMALLER times
     * FIT fewer. wgmma can have any multiple of 8 columns, where its lines are 64. */
    static constexpr bool FITS = FLIPS && OP != TEGROUP_OP_WGRAD;
    static constexpr int FIT = TEGROUP_IMPL_SM90_FIT;
    static constexpr __host__ __device__ int fitting(int i) { return FITS ? COLS - i * FIT : COLS; } /* widest first */
    static constexpr int TILE_M = TURNS ? LINES : 2 * LINES, PARTS = LINES / 64; /* of 64 lines, as wgmma has them */
    /* See tegroup_impl_sm90_narrow_tiles. */
    static constexpr int NARROW = COLS == TEGROUP_IMPL_SM90_WIDE && !FITS ? TEGROUP_IMPL_SM90_NARROW : COLS;
    static constexpr bool NARROWS = NARROW < COLS;
    /* Whether tiles may take unlike times, so that blocks are balanced by what theirs cost. */
    static constexpr bool BALANCES = FITS || NARROWS || OP == TEGROUP_OP_WGRAD;
    /* Whether a call's last groups may have narrow tiles alone, with which even groups fill the last wave. */
    static constexpr bool TAPERS = NARROWS && !ACTIVATES && OP == TEGROUP_OP_FORWARD;
    static __host__ __device__ __forceinline__ int32_t narrow(int32_t cols, int32_t k) {
        return NARROWS ? tegroup_impl_sm90_narrow_tiles(OP == TEGROUP_OP_WGRAD, cols, k) : 0;
    }
    /* The operands that a tile's lines and its columns are of. */
    static constexpr tegroup_impl_operand FIRST = FLIPS ? TEGROUP_IMPL_B : TEGROUP_IMPL_A,
                                          SECOND = FLIPS ? TEGROUP_IMPL_A : TEGROUP_IMPL_B;
    static_assert(!FLIPS || (TURNS && !ACTIVATES), "results are turned by the warpgroup that has them");
    /* Tiles of at most SHORT lines load no more: what was there before leads to lines that nobody stores. */
    static constexpr int SHORT = OP != TEGROUP_OP_WGRAD && TILE_M == 64 ? TEGROUP_IMPL_SM90_SHORT : 0;
    /* Whether lines (of m, n) rather than k are contiguous. */
    static constexpr bool A_LINES = OP == TEGROUP_OP_WGRAD || (FITS && OP == TEGROUP_OP_DGRAD),
                          B_LINES = OP != TEGROUP_OP_FORWARD && !FITS;
    static constexpr int A_BYTES = TILE_M * K * 2, STAGE_BYTES = A_BYTES + COLS * K * 2;
    static constexpr int SLAB_BYTES = 2 * SLABS * TEGROUP_IMPL_SM90_SLAB;
    static constexpr int OTHER_BYTES = SLAB_BYTES + TEGROUP_IMPL_SM90_REST + TEGROUP_IMPL_SM90_ALIGN;
    static constexpr int STAGES = (TEGROUP_IMPL_SM90_SHARED - OTHER_BYTES) / STAGE_BYTES;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + OTHER_BYTES;
    static_assert(STAGES >= 3, "a ring that hides the way from L2");
    /* Steps loaded at a time. For few rows memory is read fastest when 256 bytes of a row are under way at once. */
    static constexpr int AT_ONCE = STAGES >= 6 ? 2 : 1;
    static_assert(TILE_M <= 128 && COLS <= 256, "picked rows; lines of a box of TMA");
    /* A tile of results of four bytes, or of two, goes through its slabs one after another, from the first on. */
    template <bool WIDE> struct results {
        static constexpr int COLS = WIDE ? 32 : 64, ACROSS = COLS_ / COLS, COUNT = PARTS * ACROSS,
                             USED = COUNT < SLABS ? COUNT : SLABS - (COUNT % SLABS != 0);
        static_assert(COUNT % USED == 0, "every tile begins with the first slab");
        /* Where C may be added in L2: every second one of the results for which no slab was free, and had C brought,
         * before the sums were done. L2 by itself would add more slowly than C comes. */
        static constexpr __host__ __device__ bool in_l2(int number) {
            return OP == TEGROUP_OP_WGRAD && WIDE && number >= USED && number % 2 == 1;
        }
    };
    /* With an activation results go by sets of three pieces of 64 lines by 32 columns: two of gates and ups, and
     * what they are activated to. Forward a tile is of gates and ups, half its columns of each where they are halves
     * of D; a gradient's is of what was activated. */
    static constexpr int SET_COLS = OP == TEGROUP_OP_FORWARD ? 64 : 32, PIECE = TEGROUP_IMPL_SM90_SLAB / 2,
                         SETS = SLABS * TEGROUP_IMPL_SM90_SLAB / (3 * PIECE); /* under way */
    static_assert(!ACTIVATES || (TURNS && SETS >= 2), "one is worked on while another comes or goes");
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
