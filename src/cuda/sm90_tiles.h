/* ---- Hopper GEMM: tiles ---- */

#pragma once
#include "base/version.h"
#include "core/gemm_types.h"
#include "core/field_names.h"
#include "cuda/sm90_kernels.h"
#include "cuda/sm90_balance.h"
#include "cuda/call.h"
#include "cuda/sm90_scheduler.h"

/* A persistent kernel of three warpgroups. In the first, one warp schedules tiles, one thread loads operands by TMA
 * into a ring of pipeline stages, and two threads store results by TMA. The other two warpgroups multiply by wgmma:
 * ping-pong (TURNS), each on its own tile, so that one writes results while the other multiplies; or cooperatively,
 * each on half of the lines of a tile. (Where weights are decoded there may be three of them, each on a third.)
 *
 * A "line" is an index along wgmma's M dimension. It is a row of D or, in a flipped tile, a column of D. A tile's
 * "columns" lie along wgmma's N dimension; in a flipped tile they are rows of D.
 *
 * Groups need no padding, and no tensor map is edited on the device, but for weight gradients of FP8, for which a small
 * kernel writes two maps for each group (sm90_fp8_plan.h). A ragged operand is described to TMA as a tensor
 * [start][R][cols], where starts are one row apart, so that boxes overlap, and the first start is R rows before the
 * buffer. The box at y = R - v of start z = first + v then has exactly the v rows from `first` on; the rows after them
 * lie outside of the tensor, so they are read as zeros and never written (A. Goucher's trick, as Triton's ragged tensor
 * descriptors use it). Two more dimensions, with strides of 16 and 2^35 bytes, reach every multiple of 16 modulo 2^64:
 * they move the first start to R rows before the buffer, and from one group's buffer to another's. (The address in the
 * map itself must exist: loads through a map whose base is unmapped memory fault.)
 *
 * For every tile, an element is summed over k in steps of 16 from 0 upwards, so the tile never changes a bit. */
enum {
    TEGROUP_IMPL_SM90_THREADS = 384,
#if defined(__CUDACC_DEBUG__) /* nvcc -G reserves some for itself, which costs one kernel a stage. */
    TEGROUP_IMPL_SM90_SHARED = 219 * 1024,
    TEGROUP_IMPL_SM90_RING = 2,
#else
    TEGROUP_IMPL_SM90_SHARED = 227 * 1024, /* bytes of shared memory that a block can have */
    TEGROUP_IMPL_SM90_RING = 3,            /* pipeline stages that these must have room for */
#endif
    TEGROUP_IMPL_SM90_REST = 2048,  /* bytes of these for barriers, scheduled tiles and gathered row numbers */
    TEGROUP_IMPL_SM90_ALIGN = 1024, /* bytes of these to align the ring */
    TEGROUP_IMPL_SM90_ITEMS = 4,    /* tiles that the scheduler may be ahead */
    TEGROUP_IMPL_SM90_LINES = 64,   /* rows of a TMA box of C and D, and of operands whose rows run along k */
    TEGROUP_IMPL_SM90_SHORT = 16,   /* rows of a TMA box of A for a tile of at most that many lines */
    /* bytes of a stage for each line and column of a tile, but for a line of codes: TMA's widest swizzle */
    TEGROUP_IMPL_SM90_LINE = 128,
    TEGROUP_IMPL_SM90_SLAB = 64 * 128 /* bytes of a slab */
};

/* Weights of ups that are apart have the place of C, which a forward product with an activation has not. */
static constexpr tegroup_impl_operand TEGROUP_IMPL_SM90_UPS = TEGROUP_IMPL_C;

/* Scales of weights that are decoded in registers (sm90_weights.h), swizzled in tiles of 128 x 4. */
typedef struct tegroup_impl_sm90_weights {
    int64_t group_bytes; /* of a group's, where all have one buffer */
    int64_t lines_bytes; /* of 128 lines' */
    int32_t e4m3;        /* of 16 of k each, in E4M3; else of 32, in E8M0 */
} tegroup_impl_sm90_weights;

/* Parameters of one launch. Arrays are indexed by tegroup_impl_operand: a, b, c, d. */
typedef struct tegroup_impl_sm90_call {
    CUtensorMap map[4];
    tegroup_impl_gpu_call call;
    int32_t ragged[4]; /* The map has overlapping boxes, as above; otherwise it is [group][row][col]. */
    int32_t listed[4]; /* Each group has a buffer of its own, by a list of pointers. */
    int32_t has_c, has_bias;
    int32_t narrows;              /* how many of the last groups have only narrow tiles */
    int32_t adds_in_l2;           /* A weight gradient accumulates in FP32, so L2 can add it to D. */
    int32_t gathers_a, gathers_b; /* Rows of the operand are picked by index, and loaded by cp.async, not TMA. */
    union {
        tegroup_impl_gpu_epilogue epilogue;
        tegroup_impl_sm90_weights weights; /* of kernels that decode them, which have no activation */
    };
    union {
        uint64_t activated_shift; /* the shift of `activated` */
        int32_t dealt; /* a weight gradient's tiles are dealt where no group has more rows than that; 0: never */
    };
    /* Maps for an activation. `activated` is that of activation.output. Where gates and ups are two halves of D, map[D]
     * has the gates and `ups` the ups. In a gradient, D is the gradient of gates and ups, and map[C] and c_ups have
     * gates and ups themselves. */
    CUtensorMap activated, ups, c_ups;
    /* Maps with smaller boxes: of B for the narrow tiles of a forward product, and of ups that are apart; of A for
     * short tiles; or of A for fitting tiles, from the second widest on. */
    CUtensorMap smaller[TEGROUP_IMPL_SM90_SMALLER];
    /* For both kinds of maps: bytes, modulo 2^64, from the map's address to the boxes, where a listed buffer's
     * address is still to be added. */
    uint64_t shift[4];
    uint64_t further[TEGROUP_IMPL_SM90_SMALLER]; /* their shifts minus the operand's shift */
    tegroup_impl_gpu_up up;
    /* A weight gradient of FP8: [groups][2] maps of the copies of A and B, since those of a group have its stride. */
    const CUtensorMap *of_groups;
} tegroup_impl_sm90_call;

/* A scheduled tile. */
typedef struct tegroup_impl_sm90_item {
    int32_t group;        /* -1 after the last tile */
    int32_t i0, j0;       /* first line and column, within the group */
    int32_t lines, k;     /* lines of the tile that exist; length of its sums */
    int32_t cols;         /* columns of the tile, whether they exist or not */
    int32_t rows;         /* fitting tiles: columns that exist, which are rows of the group */
    int32_t first_row[4]; /* of the group in ragged operands */
    uint64_t origin[4];   /* bytes, modulo 2^64, from the map's address to the group's boxes */
    float alpha, beta;    /* beta is also 0 where there is no C. */
} tegroup_impl_sm90_item;

/* A kernel's shape: operation, lines of a warpgroup's part of a tile, columns of a tile, whether the warpgroups work
 * ping-pong, slabs of each warpgroup, whether tiles are flipped (which needs results of two bytes to which nothing is
 * added but, with ADDS_BIAS, a bias), whether blocks work in pairs, whether the epilogue has an activation of gates and
 * ups, or its gradient, and the number of warpgroups that multiply. */
template <int OP_, int LINES_, int COLS_, bool TURNS_, int SLABS_, bool FLIPS_ = false, bool PAIRS_ = false,
          bool ACTIVATES_ = false, int MULTIPLIERS_ = 2>
struct tegroup_impl_sm90_shape {
    static constexpr int OP = OP_, LINES = LINES_, COLS = COLS_, SLABS = SLABS_, K = TEGROUP_IMPL_SM90_K;
    static constexpr bool TURNS = TURNS_, FLIPS = FLIPS_, PAIRS = PAIRS_, ACTIVATES = ACTIVATES_;
    static constexpr int MULTIPLIERS = MULTIPLIERS_;
    static_assert(MULTIPLIERS == 2 || !TURNS, "two take turns");
    /* Flipped tiles of a forward product or dgrad are fitting tiles: their columns are rows of a group, and are COLS or
     * up to SMALLER times FIT fewer. They are flipped because wgmma's N is any multiple of 8, but its M is 64. */
    static constexpr bool FITS = FLIPS && OP != TEGROUP_OP_WGRAD;
    static constexpr int FIT = TEGROUP_IMPL_SM90_FIT;
    /* A pair is a cluster of two blocks with neighbouring tiles of the same rows of a group. Each loads half of these
     * rows' part of a stage, for both, by multicast, so that TMA reads fewer rows for what is multiplied. A stage is
     * free when both blocks' warps have read it. Pairs are scheduled as blocks otherwise are, and go through the same
     * steps; where D's columns end in the first block's tile, the second one only passes stages on. */
    static constexpr int BLOCKS = PAIRS ? 2 : 1;
    static_assert(!PAIRS || FITS, "other tiles have no such halves");
    static constexpr __host__ __device__ int fitting(int i) { return FITS ? COLS - i * FIT : COLS; } /* widest first */
    static constexpr int TILE_M = TURNS ? LINES : MULTIPLIERS * LINES,
                         PARTS = LINES / 64; /* PARTS have wgmma's M of 64. */
    /* See tegroup_impl_sm90_narrow_tiles. */
    static constexpr int NARROW = COLS == TEGROUP_IMPL_SM90_WIDE && !FITS ? TEGROUP_IMPL_SM90_NARROW : COLS;
    static constexpr bool NARROWS = NARROW < COLS;
    static constexpr bool PACES = !TURNS; /* see tegroup_impl_sm90_row */
    /* Who gives the other warpgroup its turn after a tile without steps (see the multiplier's yield). */
    static constexpr bool STORER_YIELDS = TURNS && !FITS;
    /* Whether tiles may differ in cost, so that blocks may have to be balanced. */
    static constexpr bool BALANCES = FITS || NARROWS || OP == TEGROUP_OP_WGRAD;
    /* Whether the last groups of a call may have only narrow tiles, which fill the last wave of even groups. */
    static constexpr bool TAPERS = NARROWS && !ACTIVATES && OP == TEGROUP_OP_FORWARD;
    static __host__ __device__ __forceinline__ int32_t narrow(int32_t cols, int32_t k) {
        return NARROWS ? tegroup_impl_sm90_narrow_tiles(OP == TEGROUP_OP_WGRAD, cols, k) : 0;
    }
    /* The operands that a tile's lines and its columns come from. */
    static constexpr tegroup_impl_operand FIRST = FLIPS ? TEGROUP_IMPL_B : TEGROUP_IMPL_A,
                                          SECOND = FLIPS ? TEGROUP_IMPL_A : TEGROUP_IMPL_B;
    static_assert(!FLIPS || !ACTIVATES, "an activation's sets are not turned");
    static constexpr bool ADDS_BIAS = TEGROUP_IMPL_SM90_ADDS_BIAS(OP, COLS, FLIPS);
    /* Whether alpha takes the scales of groups (global_scale_inv) here; else no operand has any. */
    static constexpr bool SCALES_GROUPS = false;
    /* A tile of at most SHORT lines loads no more than these: stale data in the stage only reach lines that nobody
     * stores. */
    static constexpr int SHORT = OP != TEGROUP_OP_WGRAD && TILE_M == 64 ? TEGROUP_IMPL_SM90_SHORT : 0;
    static_assert(!SHORT || !NARROWS || OP != TEGROUP_OP_FORWARD,
                  "smaller[0] holds A's map for short tiles or B's for narrow ones, and not both");
    /* Whether lines of A, or columns of B, rather than k are contiguous in memory. */
    static constexpr bool A_LINES = OP == TEGROUP_OP_WGRAD || (FITS && OP == TEGROUP_OP_DGRAD),
                          B_LINES = OP != TEGROUP_OP_FORWARD && !FITS;
    static constexpr bool OF_GROUPS = false; /* whether each group has maps of its own */
    /* Lanes of a warp that say that it has read a stage: one, or all where racecheck sees what they read. */
    static constexpr int RELEASERS = 1;
    static constexpr int A_BYTES = TILE_M * TEGROUP_IMPL_SM90_LINE,
                         STAGE_BYTES = A_BYTES + COLS * TEGROUP_IMPL_SM90_LINE;
    static constexpr int SLAB_BYTES = MULTIPLIERS * SLABS * TEGROUP_IMPL_SM90_SLAB;
    static constexpr int OTHER_BYTES = SLAB_BYTES + TEGROUP_IMPL_SM90_REST + TEGROUP_IMPL_SM90_ALIGN;
    static constexpr int STAGES = (TEGROUP_IMPL_SM90_SHARED - OTHER_BYTES) / STAGE_BYTES;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + OTHER_BYTES;
    static_assert(STAGES >= TEGROUP_IMPL_SM90_RING, "a ring that hides the way from L2");
    /* Pipeline stages loaded at a time. For short groups memory is read fastest if 256 bytes of a row are in flight. */
    static constexpr int AT_ONCE = STAGES >= 6 ? 2 : 1;
    static_assert((TILE_M <= 128 || FITS) && TILE_M <= 256 && COLS <= 256, "picked rows; lines of a box of TMA");
    /* How a warpgroup's results of four bytes (WIDE) or two go through its slabs: COUNT slabs' worth, ACROSS of them
     * side by side; number n through slab n % USED. */
    template <bool WIDE> struct results {
        static constexpr int COLS = WIDE ? 32 : 64, ACROSS = COLS_ / COLS, COUNT = PARTS * ACROSS,
                             USED = COUNT < SLABS ? COUNT : SLABS - (COUNT % SLABS != 0);
        static_assert(COUNT % USED == 0, "every tile begins with the first slab");
        /* Whether L2 may add C to these results. The first USED slabs have C loaded before the sums are done; of the
         * others L2 adds every second one, since adding them all would take L2 longer than loading C. */
        static constexpr __host__ __device__ bool in_l2(int number) {
            return OP == TEGROUP_OP_WGRAD && WIDE && number >= USED && number % 2 == 1;
        }
    };
    /* With an activation, results go by sets of three pieces of 64 lines by 32 columns: gates, ups and their
     * activation. A forward tile has gates and ups, half of its columns each where they are halves of D; a gradient's
     * tile has columns of the activation. A set takes SET_COLS of a tile's columns, a piece has PIECE bytes, and SETS
     * fit into the slabs. */
    static constexpr int SET_COLS = OP == TEGROUP_OP_FORWARD ? 64 : 32, PIECE = TEGROUP_IMPL_SM90_SLAB / 2,
                         SETS = SLABS < 2 ? 1 : (SLABS * TEGROUP_IMPL_SM90_SLAB) / (3 * PIECE);
    static_assert(!ACTIVATES || (TURNS && SETS >= 2), "one is worked on while another comes or goes");
};

/* What follows the ring and the slabs in shared memory: barriers for each pipeline stage (full, empty), each scheduled
 * tile (found, and taken by all its readers) and each warpgroup; tiles; and row numbers. */
template <typename SHAPE> struct tegroup_impl_sm90_rest {
    uint64_t full[SHAPE::STAGES], empty[SHAPE::STAGES];
    uint64_t found[TEGROUP_IMPL_SM90_ITEMS], taken[TEGROUP_IMPL_SM90_ITEMS];
    uint64_t turn[SHAPE::MULTIPLIERS];                  /* The other warpgroup has seen all stages of its tile full. */
    uint64_t ready[SHAPE::MULTIPLIERS][SHAPE::SLABS];   /* The slab is free, and holds C if that is added. */
    uint64_t written[SHAPE::MULTIPLIERS][SHAPE::SLABS]; /* The slab holds results. */
    tegroup_impl_sm90_item items[TEGROUP_IMPL_SM90_ITEMS];
    /* The rows that gathered operands have in a stage; -1: zeros. */
    int32_t picked_a[128], picked_b[TEGROUP_IMPL_SM90_LINES];
};
