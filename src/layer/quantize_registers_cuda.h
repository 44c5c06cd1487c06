/* ---- Quantise: BF16 in registers ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/gemm_types.h"
#include "core/activation_types.h"
#include "layer/quantize_types.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "formats/scale_rule.h"
#include "formats/scale_layout.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "core/quantize_copies.h"
#include "cuda/rows.h"
#include "cuda/quantize_values.h"
#include "cuda/quantize_walk.h"
#include "layer/quantize_tile_cuda.h"

/* These kernels make what those of strips and tiles make, of values that are read or, for blocks of 1x128, that a gated
 * activation or its gradient makes: each stays in the registers of its thread from the load to the last store, which
 * takes a third of the instructions. */
enum {
    TEGROUP_IMPL_REGISTERS_RESIDENT = 3, /* blocks a multiprocessor, of up to 80 registers a thread */
    TEGROUP_IMPL_GRADIENT_RESIDENT = 2,  /* those that make a gradient, which needs more of them */
    TEGROUP_IMPL_REGISTERS_PIECES = 8,   /* of a thread, eight values each */
    TEGROUP_IMPL_REGISTERS_ALL = 32,     /* LANES where a scale is of all values of a tile, of a row, or of a group */
    TEGROUP_IMPL_REGISTERS_ROW =
        TEGROUP_IMPL_QUANTIZE_STRIP + 3,   /* logarithm of the longest row of a block's 8 warps */
    TEGROUP_IMPL_REGISTERS_ROWS = 0x7fff80 /* whose tiles of 128 are 65,535: 16 bits count them */
};

/* Where values come from: input as it lies, by tiles also as an index picks its rows; that by strips; gates and ups; or
 * these and the gradient of what they make. */
enum { TEGROUP_IMPL_FROM_INPUT, TEGROUP_IMPL_FROM_GATHERED, TEGROUP_IMPL_FROM_GATES, TEGROUP_IMPL_FROM_GRADIENT };
template <int FROM> struct tegroup_impl_values_from {}; /* so that no kernel compiles another one's way */

/* The rule that most calls have for blocks of 128, 32 and 16 values. A kernel that knows it finds a scale in a third of
 * the steps. */
TEGROUP_IMPL_HD tegroup_scale_rule tegroup_impl_usual_rule(int lanes, int bits) {
    const tegroup_scale_rule deepgemm = {TEGROUP_SCALE_DIVISOR, 1e-4f, 0, 0, 0, 0, 0, 0, 1},
                             mxfp8 = {TEGROUP_SCALE_DIVISOR, 0, 0, 0, 1, 1, 0, 0, 0},
                             mxfp4 = {TEGROUP_SCALE_EXPONENT, 0, 0, 0, 0, 0, 0, 0, 1},
                             nvfp4 = {TEGROUP_SCALE_TWO_LEVEL, 0, 0, 0, 0, 0, 0, 0, 0};
    return lanes == 16 ? deepgemm : lanes == 2 ? nvfp4 : bits == 4 ? mxfp4 : mxfp8;
}

/* A thread's part of a work: eight pieces of eight values. A work is a tile of 128 x 128 (TILE), of which a piece is a
 * row; or, where rows are walked along, a strip: 2,048 values a warp, of one row or, where a row is short, of
 * up to eight, of which a piece of all lanes is 256 beside each other. A row that has one scale is shared by as many
 * warps as it takes. LANES beside each other have a block of each piece, and share out the blocks' scales among them.
 * CODE: the codes' type; 0: amax alone is found. */
template <int LANES, int CODE, bool TILE, int FROM = TEGROUP_IMPL_FROM_INPUT> struct tegroup_impl_quantize_registers {
    typedef tegroup_impl_eight<TEGROUP_DTYPE_BF16> eight;
    enum { PIECES = TEGROUP_IMPL_REGISTERS_PIECES, BYTES = 2, EXTENT = TEGROUP_IMPL_QUANTIZE_TILE };
    enum { BITS = CODE == TEGROUP_DTYPE_F4E2M1 ? 4 : 8 };
    enum { ALL = LANES == TEGROUP_IMPL_REGISTERS_ALL, LOG = LANES >= 16 ? 4 : LANES == 4 ? 2 : 1 };
    enum { SHIFT = LOG + 3, BLOCK = 1 << SHIFT };          /* of a block's values */
    enum { SCALES = LANES < PIECES ? PIECES / LANES : 1 }; /* scales of rows that a lane finds */
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    uint4 *const turned; /* TILE: room for codes; else, where strips collect, for amax of columns */
    const int32_t lane;
    const int32_t in_row, beside; /* logarithms of the pieces that a warp has of a row, and of the warps that
                                           share the row */
    const int32_t first;          /* the thread's column */
    int64_t row0, row, col0;      /* the work's first, and the thread's, in the part */
    int32_t rows, cols;           /* that are there: below `row`, and of the work */
    uint32_t present;             /* bit k: piece k is there */
    bool edge;                    /* the work is one of the part's last, below or beside */
    eight x[PIECES];

    __device__ __forceinline__ tegroup_impl_quantize_registers(const tegroup_impl_quantize_launch &c,
                                                               tegroup_impl_quantize_shared &s, uint4 *t)
        : call(c), shared(s), turned(t), lane((int32_t)threadIdx.x % 32),
          in_row(min(c.across_shift, (int32_t)TEGROUP_IMPL_QUANTIZE_STRIP) - 8),
          beside(max(0, c.across_shift - (int32_t)TEGROUP_IMPL_QUANTIZE_STRIP)),
          first(TILE ? lane % 16 * 8
                     : (((int32_t)threadIdx.x / 32 & ((1 << beside) - 1)) << TEGROUP_IMPL_QUANTIZE_STRIP) + lane * 8) {}

    __device__ __forceinline__ int32_t down(int32_t piece) const { return TILE ? piece : piece >> in_row; }
    __device__ __forceinline__ int32_t at(int32_t piece) const { /* its column behind the thread's first */
        return TILE ? 0 : (piece & ((1 << in_row) - 1)) * 256;
    }
    __device__ __forceinline__ bool there(int32_t piece) const { return present >> piece & 1; }
    __device__ __forceinline__ int64_t of_group(int64_t r) const { return shared.part * shared.part_rows + r; }
    __device__ __forceinline__ bool writes(int copy) const {
        return (call.copies >> copy & 1) != 0 && shared.copies[copy].data;
    }
    __device__ __forceinline__ tegroup_block_scale scale_of(float amax) const {
        const tegroup_dtype code = (tegroup_dtype)CODE;
        const tegroup_scale_rule usual = tegroup_impl_usual_rule(LANES, BITS);
        if (!ALL && CODE != TEGROUP_DTYPE_F8E5M2 && call.usual)
            return tegroup_impl_scale_block(&usual, code,
                                            LANES == 16  ? TEGROUP_DTYPE_F32
                                            : LANES == 2 ? TEGROUP_DTYPE_F8E4M3
                                                         : TEGROUP_DTYPE_F8E8M0,
                                            amax, shared.global);
        return tegroup_impl_scale_block(&call.desc.rule, code, call.scale_dtype, amax, shared.global);
    }

    /* Where the k-th piece is; steps: those of the launch. */
    static __device__ __forceinline__ uint64_t piece_at(const char *from, const int64_t *steps, int32_t k) {
        return (uint64_t)from + (k & 4 ? steps[2] : 0) + (k & 2 ? steps[1] : 0) + (k & 1 ? steps[0] : 0);
    }

    /* Values or zeros, without a branch. The compiler cannot see that an address is one of global memory. */
    static __device__ __forceinline__ uint4 read(bool wanted, uint64_t from) {
        uint4 v;
        asm("{.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
            "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];}\n"
            : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
            : "l"(from), "r"((int)wanted));
        return v;
    }
    static __device__ __forceinline__ uint4 read_half(bool wanted, uint64_t from) {
        uint4 v;
        v.z = v.w = 0;
        asm("{.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n"
            "@p ld.global.v2.b32 {%0, %1}, [%2];}\n"
            : "=&r"(v.x), "=&r"(v.y)
            : "l"(from), "r"((int)wanted));
        return v;
    }
    /* Whether works are tiles of gates and of their ups. */
    __device__ __forceinline__ bool paired() const { return FROM == TEGROUP_IMPL_FROM_GRADIENT && call.paired; }
    /* The columns of a tile, or of a strip. */
    __device__ __forceinline__ int32_t across() const { return TILE ? (int32_t)EXTENT : 1 << call.across_shift; }
    __device__ __forceinline__ void find_edge() {
        edge = shared.part_rows - row0 <= 1 << call.down_shift || shared.cols - col0 <= across();
    }
    __device__ __forceinline__ void load(int64_t at_row, int64_t at_col) {
        row0 = at_row, col0 = paired() ? at_col / 2 : at_col;
        const int32_t row_of_work =
            TILE ? (int32_t)threadIdx.x / 16 * 8 : (int32_t)threadIdx.x / 32 >> beside << (3 - in_row);
        row = row0 + row_of_work;
        rows = (int32_t)tegroup_impl_min(PIECES, shared.part_rows - row);
        cols = (int32_t)tegroup_impl_min(across(), shared.cols - col0);
        find_edge();
        present = (1 << PIECES) - 1;
        if (edge) {
            present = 0;
#pragma unroll
            for (int32_t k = 0; k < PIECES; k++) present |= (uint32_t)(down(k) < rows && at(k) + first < cols) << k;
        }
        fill(tegroup_impl_values_from<FROM>());
    }
    /* Rows from the thread's first one on, by lanes: which row of input each is, or -1. Slots are 31 bits here, so that
     * nothing is divided by a function. */
    __device__ __forceinline__ int32_t picked() const {
        const tegroup_gather &gather = call.desc.gather_input;
        const int64_t mine = row + lane % PIECES;
        const uint32_t slots = max(1u, (uint32_t)gather.slots);
        if (mine >= shared.part_rows) return -1;
        const int64_t slot = gather.slot_of_row[shared.in.row0 + of_group(mine)];
        return tegroup_impl_within(slot, gather.rows * slots) ? (int32_t)((uint32_t)slot / slots) : -1;
    }
    /* A piece from the row of these that lies so far on from `from`, or zeros. */
    __device__ __forceinline__ void read_row(int32_t rows_on, const char *from, int32_t k) {
        const int32_t r = __shfl_sync(0xffffffffu, rows_on, (lane & 16) | down(k));
        x[k].raw[0] = read(there(k) && r >= 0, (uint64_t)from + (uint64_t)(uint32_t)r * (uint32_t)(call.in_ld * BYTES)
                                                   + (uint64_t)at(k) * BYTES);
    }
    __device__ __forceinline__ void fill(tegroup_impl_values_from<TEGROUP_IMPL_FROM_INPUT>) {
        const bool gathers = call.desc.gather_input.rows > 0;
        const char *from = shared.in.base + (col0 + first) * BYTES;
        if (!TILE || !gathers) from += (shared.in.first + of_group(row) * call.in_ld) * BYTES;
        const int32_t rows_on = TILE && gathers ? picked() : lane % PIECES;
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++)
            if (TILE) read_row(rows_on, from, k);
            else x[k].raw[0] = read(there(k), piece_at(from, call.in_steps, k));
    }
    __device__ __forceinline__ void fill(tegroup_impl_values_from<TEGROUP_IMPL_FROM_GATHERED>) {
        const char *const from = shared.in.base + (col0 + first) * BYTES;
        const int32_t rows_on = picked();
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++) read_row(rows_on, from, k);
    }
    /* Where a thread keeps the gradients of ups, while the gates' tile is encoded. */
    static __device__ __forceinline__ uint4 *kept() { return (uint4 *)tegroup_impl_quantize_memory() + threadIdx.x; }
    /* Goes on to the tile of ups. */
    __device__ __forceinline__ void take_ups() {
        col0 += shared.cols / 2;
        find_edge();
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++) x[k].raw[0] = kept()[k * TEGROUP_IMPL_QUANTIZE_THREADS];
    }
#if !defined(TEGROUP_NO_ACTIVATION)
    /* What an activation makes of the rows of a tile: of a gradient in pairs both tiles, that of ups kept in shared
     * memory. Where halves do not begin at blocks a tile is of gates, of ups, or of some of each, and what both need is
     * read again, then from L2. BATCH rows are under way at a time, in a loop that is not unrolled: each kind has its
     * own, and they would be too much code. */
    template <tegroup_activation KIND, int PART> __device__ __forceinline__ void make_rows() {
        constexpr bool GRADIENT = FROM == TEGROUP_IMPL_FROM_GRADIENT, PAIRS = PART == TEGROUP_IMPL_OF_PAIRS;
        constexpr int BATCH = 2;
        const tegroup_quantize_desc &desc = call.desc;
        const int64_t gates = GRADIENT ? shared.cols / 2 : shared.cols, r = of_group(row),
                      gate = col0 + first - (PART == TEGROUP_IMPL_OF_UPS ? gates : 0);
        const int64_t in_col = PAIRS && !GRADIENT ? 2 * gate : gate, dy_col = PAIRS ? gate / 2 : gate;
        const uint64_t further = PAIRS ? 16 : (uint64_t)gates * BYTES, step = (uint64_t)shared.in.ld * BYTES,
                       step_dy = (uint64_t)shared.dy.ld * BYTES;
        uint64_t from = (uint64_t)(shared.in.base + (shared.in.first + r * shared.in.ld + in_col) * BYTES),
                 dy = (uint64_t)(shared.dy.base + (shared.dy.first + r * shared.dy.ld + dy_col) * BYTES);
#pragma unroll 1
        for (int32_t k = 0; k < PIECES; k += BATCH, from += BATCH * step, dy += BATCH * step_dy) {
            uint4 gate_of[BATCH], up_of[BATCH], dy_of[BATCH];
            float scale[BATCH];
#pragma unroll
            for (int32_t i = 0; i < BATCH; i++) {
                const bool here = there(k + i);
                gate_of[i] = read(here, from + i * step);
                up_of[i] = PAIRS && GRADIENT ? gate_of[i] : read(here, from + i * step + further);
                if (GRADIENT) dy_of[i] = PAIRS ? read_half(here, dy + i * step_dy) : read(here, dy + i * step_dy);
                else dy_of[i] = gate_of[i];
                scale[i] = here ? tegroup_impl_weight<float>(desc.row_scale, shared.in.row0 + r + k + i, 0) : 0.0f;
            }
#pragma unroll
            for (int32_t i = 0; i < PIECES - BATCH; i++) x[i] = x[i + BATCH];
#pragma unroll
            for (int32_t i = 0; i < BATCH; i++) {
                x[PIECES - BATCH + i].raw[0] = tegroup_impl_gated_eight<KIND, GRADIENT, PART>(
                    (float)desc.alpha, (float)desc.limit, scale[i], gate_of[i], up_of[i], dy_of[i]);
                if (PART == TEGROUP_IMPL_OF_BOTH) kept()[(k + i) * TEGROUP_IMPL_QUANTIZE_THREADS] = up_of[i];
            }
        }
    }
    template <int PART> __device__ __forceinline__ void make_part() {
        switch (call.desc.activation) {
        case TEGROUP_ACTIVATION_SWIGLU_CLAMPED: make_rows<TEGROUP_ACTIVATION_SWIGLU_CLAMPED, PART>(); break;
        case TEGROUP_ACTIVATION_SWIGLU_LIMITED: make_rows<TEGROUP_ACTIVATION_SWIGLU_LIMITED, PART>(); break;
        default: make_rows<TEGROUP_ACTIVATION_SWIGLU, PART>(); break;
        }
    }
    template <int SOURCE> __device__ __forceinline__ void fill(tegroup_impl_values_from<SOURCE>) {
        constexpr bool GRADIENT = FROM == TEGROUP_IMPL_FROM_GRADIENT;
        if (call.desc.interleaved) make_part<TEGROUP_IMPL_OF_PAIRS>();
        else if (paired()) make_part<GRADIENT ? TEGROUP_IMPL_OF_BOTH : TEGROUP_IMPL_OF_GATES>();
        else if (GRADIENT && col0 + first >= shared.cols / 2)
            make_part<GRADIENT ? TEGROUP_IMPL_OF_UPS : TEGROUP_IMPL_OF_GATES>();
        else make_part<TEGROUP_IMPL_OF_GATES>();
    }
#endif

    /* `most` and the magnitudes of all values, two in a word. */
    template <bool SHOWS> __device__ __forceinline__ uint32_t most_of(uint32_t most) const {
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++)
            most = tegroup_impl_magnitudes<TEGROUP_DTYPE_BF16, SHOWS>::of_row(most, x[k]);
        return most;
    }

    /* The first of the pieces whose scales the lane finds. */
    __device__ __forceinline__ int32_t first_scaled() const { return lane % LANES * SCALES % PIECES; }
    /* The largest magnitudes of the block in these. All lanes find those of every pair of pieces, and each keeps the
     * pairs that hold its own, of which a lane with one scale has half. */
    template <bool SHOWS> __device__ __forceinline__ void find_amax(float *amax) const {
        typedef tegroup_impl_magnitudes<TEGROUP_DTYPE_BF16, SHOWS> magnitudes;
        uint32_t pairs[(SCALES + 1) / 2] = {0};
#pragma unroll
        for (int32_t k = 0; k < PIECES; k += 2) {
            uint32_t pair; /* of pieces k and k + 1 */
            magnitudes::of_pair(x[k], x[k + 1], &pair);
            magnitudes::of_lanes(LOG, &pair);
            if (first_scaled() / SCALES == k / SCALES || (SCALES == 1 && first_scaled() / 2 == k / 2))
                pairs[k % SCALES / 2] = pair;
        }
#pragma unroll
        for (int32_t j = 0; j < SCALES; j++)
            amax[j] = __uint_as_float(magnitudes::at(&pairs[j / 2], SCALES == 1 ? lane & 1 : j & 1));
    }
    __device__ __forceinline__ void store_scale(int columnwise, int64_t outer, int64_t inner, uint32_t bits) const {
        const tegroup_impl_copy &copy = shared.copies[columnwise];
        const int64_t i = tegroup_impl_scale_of_block(&copy.grid, shared.part, outer, inner);
        if (LANES < 16 || call.scale_bits == 8) ((uint8_t *)copy.scales)[i] = (uint8_t)bits;
        else if (call.scale_bits == 16) ((uint16_t *)copy.scales)[i] = (uint16_t)bits;
        else ((uint32_t *)copy.scales)[i] = bits;
    }
    /* The scales of the rows' blocks, each to where it is stored, and the lane's factors. */
    __device__ __forceinline__ void scale_rows(float *factor) const {
        float amax[SCALES];
        if (call.desc.rule.nan_shows) find_amax<true>(amax);
        else find_amax<false>(amax);
#pragma unroll
        for (int32_t j = 0; j < SCALES; j++) {
            const tegroup_block_scale block = scale_of(amax[j]);
            const int32_t piece = first_scaled() + j, col = at(piece) + first / BLOCK * BLOCK;
            factor[j] = block.multiplier;
            if (down(piece) < rows && col < cols && lane % LANES < PIECES)
                store_scale(TEGROUP_IMPL_ROWWISE, row + down(piece), (col0 + col) >> SHIFT, block.bits);
        }
    }

    /* Stores eight codes or nothing, without a branch, so that pieces are encoded beside each other. */
    __device__ __forceinline__ static void store(bool wanted, uint64_t to, uint2 codes) {
        if (BITS == 8)
            asm volatile(
                "{.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.v2.b32 [%1], {%2, %3};}\n" ::"r"((int)wanted),
                "l"(to), "r"(codes.x), "r"(codes.y)
                : "memory");
        else
            asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.b32 [%1], %2;}\n" ::"r"((int)wanted),
                         "l"(to), "r"(codes.x)
                         : "memory");
    }
    __device__ __forceinline__ void encode_rows(const float *factor) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        char *const to = copy.data + tegroup_impl_element_of(&copy, of_group(row), col0 + first) * BITS / 8;
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++) {
            const float by = ALL ? factor[0] : __shfl_sync(0xffffffffu, factor[k % SCALES], k / SCALES, LANES);
            float y[8];
            x[k].unpack(y);
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = tegroup_impl_product_f32(y[j], by);
            store(there(k), piece_at(to, call.out_steps, k), tegroup_impl_eight_codes<BITS>((tegroup_dtype)CODE, y));
        }
    }

    /* Finds the one scale that 2^warps_shift neighbouring warps share, in each of their threads, and returns its
     * factor. `turn` changes with each work, so that no warp writes where another one still reads. */
    __device__ __forceinline__ float scale_together(int32_t warps_shift, int32_t turn) const {
        typedef tegroup_impl_magnitudes<TEGROUP_DTYPE_BF16, true> magnitudes;
        const int32_t warp = (int32_t)threadIdx.x / 32, leader = warp >> warps_shift << warps_shift;
        uint32_t *const table = shared.amax[0] + turn % 2 * (TEGROUP_IMPL_QUANTIZE_THREADS / 32),
                        two = call.desc.rule.nan_shows ? most_of<true>(0) : most_of<false>(0);
        uint32_t most = max(magnitudes::at(&two, 0), magnitudes::at(&two, 1));
        for (int step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
        if (lane == 0) table[warp] = most;
        __syncthreads();
        for (int w = 0; w < 1 << warps_shift; w++) most = max(most, table[leader + w]);
        const tegroup_block_scale block = scale_of(__uint_as_float(most));
        for (int c = 0; c < (TILE ? TEGROUP_IMPL_COPIES : 1) && warp == leader && lane == 0 && rows > 0; c++)
            if (writes(c))
                store_scale(c, (c ? col0 : row) >> shared.copies[c].grid.outer_shift,
                            (c ? row : col0) >> shared.copies[c].grid.inner_shift, block.bits);
        return block.multiplier;
    }

    /* The largest magnitudes of the columns of a warp's 16 rows to the table, two columns in a word. */
    template <bool SHOWS> __device__ __forceinline__ void collect_columns() const {
        typedef tegroup_impl_magnitudes<TEGROUP_DTYPE_BF16, SHOWS> magnitudes;
        uint32_t most[4] = {0, 0, 0, 0};
#pragma unroll
        for (int32_t k = 0; k < PIECES; k += 2) magnitudes::of_columns(x + k, most);
#pragma unroll
        for (int j = 0; j < 4; j++) most[j] = magnitudes::larger(most[j], __shfl_xor_sync(0xffffffffu, most[j], 16));
        if (lane < 16)
            ((uint4 *)shared.amax[TEGROUP_IMPL_COLUMNWISE])[threadIdx.x / 32 * 16 + lane] =
                make_uint4(most[0], most[1], most[2], most[3]);
    }
    /* From that table to that of factors, [block][column], and to where scales are stored. */
    __device__ __forceinline__ void scale_columns() const {
        const int32_t c = (int32_t)threadIdx.x % EXTENT;
#pragma unroll
        for (int32_t i = (int32_t)threadIdx.x / EXTENT; i < EXTENT / BLOCK;
             i += TEGROUP_IMPL_QUANTIZE_THREADS / EXTENT) {
            const uint16_t *of = (const uint16_t *)shared.amax[TEGROUP_IMPL_COLUMNWISE] + i * BLOCK / 16 * EXTENT + c;
            uint32_t most = 0;
#pragma unroll
            for (int32_t band = 0; band < BLOCK / 16; band++) most = max(most, of[band * EXTENT] & 0x7fffu);
            const tegroup_block_scale block = scale_of(__uint_as_float(most << 16));
            shared.factor[TEGROUP_IMPL_COLUMNWISE][i * EXTENT + c] = block.multiplier;
            if (c < cols && row0 + i * BLOCK < shared.part_rows)
                store_scale(TEGROUP_IMPL_COLUMNWISE, col0 + c, (row0 >> SHIFT) + i, block.bits);
        }
    }
    /* The factors of the thread's columns: one of all, or those of the table. */
    __device__ __forceinline__ void factors_of_columns(bool one, float of_all, float *factor) const {
        const float4 *table = (const float4 *)(shared.factor[TEGROUP_IMPL_COLUMNWISE]
                                               + ((int32_t)threadIdx.x / 16 * 8 >> SHIFT) * EXTENT + first);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float4 four = one ? make_float4(of_all, of_all, of_all, of_all) : table[i];
            factor[4 * i] = four.x, factor[4 * i + 1] = four.y, factor[4 * i + 2] = four.z, factor[4 * i + 3] = four.w;
        }
    }
    __device__ __forceinline__ void encode_columns(const float *factor) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        char *const to = copy.data + tegroup_impl_element_of(&copy, of_group(row), col0 + first) * BITS / 8;
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++) {
            float y[8];
            x[k].unpack(y);
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = tegroup_impl_product_f32(y[j], factor[j]);
            store(there(k), piece_at(to, call.out_steps, k), tegroup_impl_eight_codes<BITS>((tegroup_dtype)CODE, y));
        }
    }

    /* Eight rows of each column to shared memory, in an order by which eight columns it is of, so that neither columns
     * beside each other nor those of one whole column meet in a bank. Rows that are not there are zeros, no NaN of a
     * factor. */
    __device__ __forceinline__ void turn(const float *factor) const {
        const int32_t octet = first / 8, rank = (int32_t)threadIdx.x / 16, left = max(0, rows) * BITS;
        const uint2 mask = make_uint2(left < 32 ? (1u << left) - 1 : ~0u, left < 32   ? 0
                                                                          : left < 64 ? (1u << (left - 32)) - 1
                                                                                      : ~0u);
#pragma unroll
        for (int32_t j = 0; j < 8; j++) {
            float y[8];
#pragma unroll
            for (int32_t k = 0; k < PIECES; k++) {
                const uint4 v = x[k].raw[0];
                const uint32_t word = j / 2 == 0 ? v.x : j / 2 == 1 ? v.y : j / 2 == 2 ? v.z : v.w;
                y[k] = tegroup_impl_product_f32(
                    j % 2 ? tegroup_impl_high_half(word, true) : tegroup_impl_low_half(word, true), factor[j]);
            }
            uint2 codes = tegroup_impl_eight_codes<BITS>((tegroup_dtype)CODE, y);
            codes.x &= mask.x, codes.y &= mask.y;
            if (BITS == 8) ((uint2 *)turned)[(first + j) * 16 + (rank ^ (octet % 8 * 2 + octet / 8))] = codes;
            else ((uint32_t *)turned)[(first + j) * 16 + (rank ^ octet)] = codes.x;
        }
    }
    /* What is in shared memory, to the columns of the transposed copy, sixteen rows at a time, with the zeros that pad
     * them. */
    __device__ __forceinline__ void store_turned() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        const int32_t piece = (int32_t)threadIdx.x % 8;
        char *const to = copy.data + tegroup_impl_element_of(&copy, row0 + piece * 16, col0) * BITS / 8;
        if (row0 + piece * 16 >= copy.at.col_stride) return;
#pragma unroll
        for (int32_t c = (int32_t)threadIdx.x / 8; c < EXTENT; c += TEGROUP_IMPL_QUANTIZE_THREADS / 8) {
            char *const column = to + c * copy.at.col_stride * BITS / 8;
            const int32_t octet = c / 8;
            if (c >= cols) return;
            if (BITS == 8) {
                const uint4 v = turned[c * 8 + (piece ^ (octet % 8))];
                *(uint4 *)column = octet / 8 ? make_uint4(v.z, v.w, v.x, v.y) : v;
            } else {
                const uint32_t *const words = (const uint32_t *)turned + c * 16;
                *(uint2 *)column = make_uint2(words[(piece * 2) ^ octet], words[(piece * 2 + 1) ^ octet]);
            }
        }
    }

    /* Scaling ROW finds amax of columns on the way of strips through a group's rows: a block keeps what it has seen in
     * `turned`, [warps that share no row][column of a row], two columns in a word. */
    __device__ __forceinline__ bool collects() const {
        return ALL && !TILE && (call.copies >> TEGROUP_IMPL_COLUMNWISE & 1) != 0;
    }
    template <bool SHOWS> __device__ __forceinline__ void collect_strip() const {
        typedef tegroup_impl_magnitudes<TEGROUP_DTYPE_BF16, SHOWS> magnitudes;
        const int32_t width = 1 << (TEGROUP_IMPL_QUANTIZE_STRIP + beside);
        uint4 *const table = turned + (((int32_t)threadIdx.x / 32 >> beside) * width + first) / 8;
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++) {
            uint4 *const entry = table + at(k) / 8;
            const uint4 was = *entry, now = x[k].raw[0];
            *entry = make_uint4(magnitudes::larger(was.x, now.x), magnitudes::larger(was.y, now.y),
                                magnitudes::larger(was.z, now.z), magnitudes::larger(was.w, now.w));
        }
    }
    /* What a block has seen of a part goes where the part's scales will be; or, before the first part, nowhere. Zeros
     * are left. All warps meet. */
    __device__ __forceinline__ void pass_columns(bool seen) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        const int32_t width = 1 << (TEGROUP_IMPL_QUANTIZE_STRIP + beside), warps = TEGROUP_IMPL_QUANTIZE_THREADS / 32;
        __syncthreads();
        for (int32_t c = (int32_t)threadIdx.x; c < width; c += TEGROUP_IMPL_QUANTIZE_THREADS) {
            uint32_t most = 0;
            for (int32_t w = 0; w < warps >> beside; w++) {
                uint16_t *const entry = (uint16_t *)turned + w * width + c;
                most = max(most, *entry & 0x7fffu);
                *entry = 0;
            }
            if (seen && most > 0 && c < shared.cols && copy.data)
                atomicMax((uint32_t *)copy.scales + tegroup_impl_scale_of_block(&copy.grid, shared.part, c, 0),
                          most << 16);
        }
    }
    /* From there to the table of factors. The last tile of these columns to have read what is there stores scales in
     * its place: amax is of BF16, and the lower half of the first column's counts the tiles. */
    __device__ __forceinline__ void take_columns() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        const int32_t c = (int32_t)threadIdx.x, tiles = (int32_t)tegroup_impl_works_down(call, shared.part_rows);
        uint32_t *const at =
            (uint32_t *)copy.scales + tegroup_impl_scale_of_block(&copy.grid, shared.part, col0 + c, 0);
        const bool mine = c < EXTENT && c < cols;
        const tegroup_block_scale block =
            scale_of(mine ? __uint_as_float(*(volatile uint32_t *)at & 0xffff0000u) : 0.0f);
        if (c < EXTENT) shared.factor[TEGROUP_IMPL_COLUMNWISE][c] = block.multiplier;
        __syncthreads();
        if (c == 0) {
            __threadfence(); /* what was read has been, before it is said */
            shared.amax[0][0] = (atomicAdd(at, 1u) & 0xffffu) + 1;
        }
        __syncthreads();
        if (mine && (int32_t)shared.amax[0][0] == tiles) *at = block.bits;
    }

    /* In a strip warps wait for each other only where rows have one scale, for its amax. */
    __device__ __forceinline__ void encode_strip(int32_t turn_of_work) const {
        float factor[SCALES];
        if (collects()) {
            if (call.desc.rule.nan_shows) collect_strip<true>();
            else collect_strip<false>();
        }
        if (!writes(TEGROUP_IMPL_ROWWISE) || (!ALL && rows <= 0)) return;
        if (!ALL) scale_rows(factor);
        else if (tegroup_impl_scaled_as_one(&call.facts)) factor[0] = shared.factor[0][0];
        else factor[0] = scale_together(beside, turn_of_work);
        encode_rows(factor);
    }
    __device__ __forceinline__ void encode_tile(int32_t turn_of_work) const {
        const bool whole = tegroup_impl_scaled_as_one(&call.facts), rowwise = writes(TEGROUP_IMPL_ROWWISE),
                   columnwise = writes(TEGROUP_IMPL_COLUMNWISE),
                   lines = ALL && tegroup_impl_scaled_by_line(&call.facts), one = ALL && !lines;
        float factor[SCALES], of_column[8];
        factor[0] = shared.factor[0][0];
        if (one && !whole) factor[0] = scale_together(3, turn_of_work);
        if (!ALL && rowwise) scale_rows(factor);
        if (!ALL && columnwise) {
            if (call.desc.rule.nan_shows) collect_columns<true>();
            else collect_columns<false>();
        }
        __syncthreads(); /* what the tile before left in shared memory has been read */
        if (!ALL && columnwise) scale_columns();
        if (lines && columnwise) take_columns();
        if (rowwise) encode_rows(factor);
        if (!columnwise) return;
        if (!ALL) __syncthreads();
        factors_of_columns(one, factor[0], of_column);
        if (!tegroup_impl_transposed(&call.desc.output, TEGROUP_IMPL_COLUMNWISE)) {
            encode_columns(of_column);
            return;
        }
        turn(of_column);
        __syncthreads();
        store_turned();
    }

    /* Zeros for what pads the scales of a copy behind a part's last rows, and behind its last columns: by all
     * threads, of a work at the edge. */
    __device__ __forceinline__ void pad(int columnwise) const {
        const tegroup_impl_scale_grid &grid = shared.copies[columnwise].grid;
        const int32_t down = 1 << call.down_shift, across = this->across();
        const int64_t left = shared.part_rows - row0, right = shared.cols - col0;
        const int64_t outer_left = columnwise ? right : left, inner_left = columnwise ? left : right,
                      outer_most = columnwise ? across : down, inner_most = columnwise ? down : across,
                      outer0 = (columnwise ? col0 : row0) >> grid.outer_shift,
                      inner0 = (columnwise ? row0 : col0) >> grid.inner_shift,
                      outers = tegroup_impl_blocks_of(tegroup_impl_min(outer_left, outer_most), grid.outer_shift),
                      inners = tegroup_impl_blocks_of(tegroup_impl_min(inner_left, inner_most), grid.inner_shift),
                      outer_end = outer_left <= outer_most ? grid.outer_extent - outer0 : outers,
                      inner_end = inner_left <= inner_most ? grid.inner_extent - inner0 : inners;
        if (outer_end <= outers && inner_end <= inners) return;
#pragma unroll 1
        for (int64_t o = threadIdx.x / 32; o < outer_end; o += blockDim.x / 32)
#pragma unroll 1
            for (int64_t i = (o < outers ? inners : 0) + lane; i < inner_end; i += 32)
                store_scale(columnwise, outer0 + o, inner0 + i, 0);
    }
};

template <int LANES, int CODE, bool TILE, int FROM = TEGROUP_IMPL_FROM_INPUT>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, FROM == TEGROUP_IMPL_FROM_GRADIENT
                                                                            ? TEGROUP_IMPL_GRADIENT_RESIDENT
                                                                            : TEGROUP_IMPL_REGISTERS_RESIDENT)
    tegroup_impl_quantize_registers_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    __shared__ uint4 turned[TILE ? TEGROUP_IMPL_QUANTIZE_STAGED / 16 : 1];
    constexpr bool NUMBERS = LANES == TEGROUP_IMPL_REGISTERS_ALL || LANES == 2; /* TENSOR, and NVFP4's global scales */
    tegroup_impl_quantize_walk<NUMBERS> walk(call, shared);
    tegroup_impl_quantize_registers<LANES, CODE, TILE, FROM> part(
        call, shared, TILE ? turned : (uint4 *)tegroup_impl_quantize_memory());
    if (NUMBERS) tegroup_impl_quantize_store_groups(call, walk.fits);
    int32_t turn = 0;
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work), turn++) {
        int64_t row0, col0;
        if (work >= walk.part_end) {
            if (part.collects()) part.pass_columns(walk.part_end > 0);
            walk.meet(work);
        }
        walk.place(work, &row0, &col0);
        part.load(row0, col0);
        for (int tiles = part.paired() ? 2 : 1; tiles > 0; tiles--) {
            if (TILE) part.encode_tile(turn);
            else part.encode_strip(turn);
#pragma unroll 1
            for (int c = 0; c < (TILE ? TEGROUP_IMPL_COPIES : 1); c++)
                if (part.edge && !tegroup_impl_scaled_as_one(&call.facts) && part.writes(c)) part.pad(c);
            if (tiles == 2) part.take_ups();
        }
    }
    if (part.collects() && walk.part_end > 0) part.pass_columns(true);
}

/* Zeros where the scales of scaling ROW's columns will be, for their amax. A work is 2,048 columns of a part. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS)
    tegroup_impl_quantize_clear_columns_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk<false> walk(call, shared);
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work)) {
        int64_t row0, col0;
        if (work >= walk.part_end) walk.meet(work);
        walk.place(work, &row0, &col0);
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        const int64_t end = tegroup_impl_min(shared.cols, col0 + (1 << TEGROUP_IMPL_QUANTIZE_STRIP));
        if (!copy.data) continue;
        for (int64_t c = col0 + threadIdx.x; c < end; c += TEGROUP_IMPL_QUANTIZE_THREADS)
            ((uint32_t *)copy.scales)[tegroup_impl_scale_of_block(&copy.grid, shared.part, c, 0)] = 0;
    }
}

/* The groups' amax. */
template <int FROM>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_REGISTERS_RESIDENT)
    tegroup_impl_quantize_amax_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    typedef tegroup_impl_magnitudes<TEGROUP_DTYPE_BF16, true> magnitudes;
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk<false> walk(call, shared);
    tegroup_impl_quantize_registers<TEGROUP_IMPL_REGISTERS_ALL, TEGROUP_DTYPE_UNSET, false, FROM> part(call, shared,
                                                                                                       NULL);
    uint32_t two = 0; /* largest magnitudes in a word */
    int32_t g = -1;
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work)) {
        int64_t row0, col0;
        if (work >= walk.part_end) {
            if (g >= 0) tegroup_impl_raise(call.desc.output, g, max(magnitudes::at(&two, 0), magnitudes::at(&two, 1)));
            two = 0;
            walk.meet(work);
            g = shared.g;
        }
        walk.place(work, &row0, &col0);
        part.load(row0, col0);
        two = call.desc.rule.nan_shows ? part.most_of<true>(two) : part.most_of<false>(two);
    }
    if (g >= 0) tegroup_impl_raise(call.desc.output, g, max(magnitudes::at(&two, 0), magnitudes::at(&two, 1)));
}
