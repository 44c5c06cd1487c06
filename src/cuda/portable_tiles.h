/* ---- Portable GEMM: tiles ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/gemm_types.h"
#include "base/arithmetic.h"
#include "core/tiles.h"
#include "core/product.h"
#include "cuda/walk.h"
#include "cuda/call.h"

/* One family of kernels for every GPU from SM80 on: a persistent grid walks the groups' tiles, loads by cp.async into a
 * ring of swizzled pipeline stages, and multiplies with ldmatrix and mma.sync (PTX ISA 8.0, sections 9.7.8.22 and
 * 9.7.13). Sizes come from the snapshot. Each element is summed over k in steps of 16 from 0 upwards in every tile, so
 * the choice of the tile never changes a bit. A "line" is a row of A' or a column of B', which are the operands as
 * multiplied: D = A' B'. */
#define TEGROUP_IMPL_PORTABLE_FOUND 8   /* tiles that the scheduler finds at a time */

/* A tile of a group's product: where its operands and results begin, and how much of the group lies within it. */
typedef struct tegroup_impl_gpu_tile {
    const char *a, *b, *c, *bias; /* bias and scale may be NULL */
    const char *scale;
    char *d;
    int64_t a_row, b_row, c_row, d_row; /* bytes between rows */
    int64_t k, row, col;                /* row and col: the tile's first row and column in D's buffer */
    int32_t m, n;                       /* rows and columns, at most those of a full tile */
    float alpha, beta;
    int16_t reads_c, valid; /* reads_c is 0 if beta is 0; valid is 0 behind the last tile */
    int32_t group;          /* for kernels that look up more by it: where gates and ups are apart, and of formats */
} tegroup_impl_gpu_tile;

/* Copies 16 bytes or nothing, without a branch between the surrounding instructions; in pieces of PIECE bytes, to which
 * `from` is aligned. */
template <int PIECE>
static __device__ __forceinline__ void tegroup_impl_cp_async_if(bool there, uint32_t to, const char *from) {
    if (PIECE == 16)
        asm volatile(
            "{.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p cp.async.cg.shared.global [%1], [%2], 16;}\n" ::"r"((int)there),
            "r"(to), "l"(from)
            : "memory");
    else
#pragma unroll
        for (int i = 0; i < 16; i += PIECE)
            asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p cp.async.ca.shared.global [%1], [%2], %3;}\n" ::"r"(
                             (int)there),
                         "r"(to + (uint32_t)i), "l"(from + i), "n"(PIECE)
                         : "memory");
}

template <bool TRANSPOSED>
static __device__ __forceinline__ void tegroup_impl_ldmatrix(uint32_t (&r)[4], uint32_t from) {
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(from)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(from)
                     : "memory");
}

/* volatile, as the loads of fragments are, so that they stay in the program's order. */
template <bool BF16>
static __device__ __forceinline__ void tegroup_impl_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                        uint32_t b1) {
    if (BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};\n"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- scheduling ---- */

/* The scheduler is a walk. A kernel calls it in one place, where all of it is inlined and reads the descriptor as
 * constants; a call would load the descriptor for every tile, and save registers. */
template <int TILE_M, int TILE_N, bool NAMES_GROUP> struct tegroup_impl_gpu_rule {
    static __device__ __forceinline__ int32_t lane() { return (int32_t)threadIdx.x & 31; }
    static __device__ __forceinline__ bool prepared(const tegroup_impl_gpu_call &call) {
        return tegroup_impl_prepared(call);
    }
    static __device__ __forceinline__ int32_t groups(const tegroup_impl_gpu_call &call) {
        return call.desc.a.shape.groups;
    }
    static __device__ __forceinline__ tegroup_impl_product product(const tegroup_impl_gpu_call &call, int32_t g) {
        return tegroup_impl_product_of(&call.desc, call.views, g, (double)call.alpha, (double)call.beta);
    }
    static __device__ __forceinline__ int32_t tiles_m(const tegroup_impl_product &p) {
        return (int32_t)tegroup_impl_ceil_div(p.m, TILE_M);
    }
    static __device__ __forceinline__ int32_t tiles_n(const tegroup_impl_product &p) {
        return (int32_t)tegroup_impl_ceil_div(p.n, TILE_N);
    }
    /* Tiles of a group. They fit an int32_t: no memory has room for a D of 2^31 tiles. */
    static __device__ __forceinline__ int32_t tiles(const tegroup_impl_gpu_call &call, int32_t g) {
        if (g >= call.desc.a.shape.groups) return 0;
        const tegroup_impl_product p = product(call, g);
        return p.skip || p.untouched || p.m <= 0 || p.n <= 0 ? 0 : tiles_m(p) * tiles_n(p);
    }
    static __device__ __forceinline__ void none(tegroup_impl_gpu_tile *tile) { tile->valid = 0; }
    /* Fills in tile number `local` of group g. */
    static __device__ __forceinline__ void put(const tegroup_impl_gpu_call &call, int32_t g, int32_t local,
                                               tegroup_impl_gpu_tile *tile) {
        const tegroup_gemm_desc &desc = call.desc;
        const tegroup_impl_product p = product(call, g);
        int32_t tile_row, tile_col;
        tegroup_impl_tile_place(local, tiles_m(p), tiles_n(p), &tile_row, &tile_col);
        const int64_t i0 = (int64_t)tile_row * TILE_M, j0 = (int64_t)tile_col * TILE_N;
        const int32_t in = desc.a.dtype == TEGROUP_DTYPE_F32 ? 4 : 2, in_b = desc.b.dtype == TEGROUP_DTYPE_F32 ? 4 : 2,
                      out = desc.d.dtype == TEGROUP_DTYPE_F32 ? 4 : 2;
        tile->a_row = p.a.ld * in;
        tile->b_row = p.b.ld * in_b;
        tile->c_row = p.c.ld * out;
        tile->d_row = p.d.ld * out;
        tile->a = p.a.base + (p.a.first + i0 * p.a_line) * in;
        tile->b = p.b.base + (p.b.first + j0 * p.b_line) * in_b;
        tile->c = p.c.base + (p.c.first + j0) * out + i0 * tile->c_row;
        tile->d = p.d.base + (p.d.first + j0) * out + i0 * tile->d_row;
        tile->bias = desc.bias.dtype == TEGROUP_DTYPE_UNSET || desc.op == TEGROUP_OP_WGRAD
                         ? NULL
                         : p.bias.base + (p.bias.first + j0) * (desc.bias.dtype == TEGROUP_DTYPE_F32 ? 4 : 2);
        tile->scale =
            desc.row_scale_dtype == TEGROUP_DTYPE_UNSET
                ? NULL
                : (const char *)desc.row_scale + (p.a.row0 + i0) * (desc.row_scale_dtype == TEGROUP_DTYPE_F64 ? 8 : 4);
        tile->k = p.k;
        tile->row = p.d.row0 + i0;
        tile->col = j0;
        tile->m = (int32_t)tegroup_impl_min(TILE_M, p.m - i0);
        tile->n = (int32_t)tegroup_impl_min(TILE_N, p.n - j0);
        tile->alpha = (float)p.alpha;
        tile->beta = (float)p.beta;
        tile->reads_c = tile->beta != 0;
        tile->valid = 1;
        if (NAMES_GROUP) tile->group = g;
    }
};
template <int TILE_M, int TILE_N, bool NAMES_GROUP = false>
using tegroup_impl_gpu_walk =
    tegroup_impl_walk<tegroup_impl_gpu_rule<TILE_M, TILE_N, NAMES_GROUP>, tegroup_impl_gpu_call, tegroup_impl_gpu_tile>;

/* ---- loading ---- */

/* Loads an operand's part of a stage: LINES lines by TILE_K. An operand contiguous along k is stored as [line][k], any
 * other in panels of 64 lines as [k][line]. Either way a row has 128 bytes, whose 16-byte chunks are permuted by XOR
 * with the row's number, so that eight rows hit different banks. Passes of the block's threads are multiples of eight
 * rows apart, so each thread's permutation is the same in all of them. */
/* TWICE: the lines from 64 on come from another place in memory. */
template <int LINES, bool ALONG_K, int THREADS, bool TWICE = false> struct tegroup_impl_loader {
    static constexpr int TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, ROWS = ALONG_K ? LINES : TILE_K;
    static constexpr int ROWS_A_PASS = THREADS / 8, PASSES_A_PANEL = ROWS / ROWS_A_PASS,
                         PASSES = PASSES_A_PANEL * (ALONG_K ? 1 : LINES / 64);
    static_assert(ALONG_K || LINES % 64 == 0, "panels are whole");
    static_assert(ROWS_A_PASS % 8 == 0 && ROWS % ROWS_A_PASS == 0, "the permutation must repeat from pass to pass");
    static_assert(!TWICE || (ALONG_K && LINES == 128), "two halves of lines");
    const char *from; /* this thread's first chunk in the next step */
    int32_t room;     /* lines left from the thread's row (along k) or chunk */
    int32_t room2;    /* TWICE: the same for the second half */
    int64_t jump;     /* TWICE: bytes from where the second half would follow the first to where it is */
    int32_t piece; /* bytes to which all is aligned, up to 16; 0: fewer than 4, rows are 4 GB apart, or a chunk may be
                         there in part */

    static __device__ __forceinline__ int32_t row() { return (int32_t)threadIdx.x / 8; }
    static __device__ __forceinline__ int32_t chunk() { return (int32_t)threadIdx.x % 8; }
    static __device__ __forceinline__ int32_t down(int pass) { return pass % PASSES_A_PANEL * ROWS_A_PASS; }
    static __device__ __forceinline__ int32_t panel(int pass) { return pass / PASSES_A_PANEL; }
    static __device__ __forceinline__ bool aligned(const char *at, int64_t row_bytes, int32_t piece = 16) {
        return (((uintptr_t)at | (uintptr_t)row_bytes) & (uintptr_t)(piece - 1)) == 0;
    }

    static __device__ __forceinline__ int32_t alignment(const char *at, int64_t row_bytes) {
        return aligned(at, row_bytes) ? 16 : aligned(at, row_bytes, 8) ? 8 : aligned(at, row_bytes, 4) ? 4 : 0;
    }
    __device__ __forceinline__ bool whole() const { return piece == 16; }

    __device__ __forceinline__ void open(const char *base, int64_t row_bytes, int32_t lines) {
        from = base + row() * row_bytes + chunk() * 16;
        room = ALONG_K ? lines - row() : lines - chunk() * 8;
        piece = (ALONG_K || lines % 8 == 0) && row_bytes < (int64_t)1 << 32 ? alignment(base, row_bytes) : 0;
        room2 = room - 64;
        jump = 0;
    }
    /* Opens two halves of `lines` lines each, the second `apart` lines behind the first. */
    __device__ __forceinline__ void open_twice(const char *base, int64_t row_bytes, int32_t lines, int64_t apart) {
        open(base, row_bytes, lines);
        room2 = room;
        jump = (apart - 64) * row_bytes;
    }
    /* The second half, instead, at an address of its own. */
    __device__ __forceinline__ void move_second(const char *base, const char *second, int64_t row_bytes) {
        jump = (second - base) - 64 * row_bytes;
        if (((uintptr_t)second & 15) != 0) piece = 0;
    }
    __device__ __forceinline__ bool there(int pass) const {
        return TWICE && down(pass) >= 64 ? down(pass) - 64 < room2
               : ALONG_K                 ? down(pass) < room
                                         : panel(pass) * 64 < room;
    }
    __device__ __forceinline__ int64_t further(int pass) const { return TWICE && down(pass) >= 64 ? jump : 0; }
    /* The thread's offset in a stage. */
    static __device__ __forceinline__ uint32_t place() {
        return (uint32_t)((row() * 8 + (chunk() ^ (row() & 7))) * 16);
    }
    /* Loads the next step to `to`, the thread's place in a stage: k elements along k, which WHOLE says at compile time
     * are TILE_K. Lines that do not exist are not loaded: whatever lies in their place only affects results that are
     * never stored. */
    template <bool WHOLE> __device__ __forceinline__ void load(uint32_t to, int64_t row_bytes, int32_t k) const {
        if (WHOLE || (piece == 16 && k == TILE_K)) all<16>(to, row_bytes);
        else if (piece == 8 && k == TILE_K) all<8>(to, row_bytes);
        else if (piece == 4 && k == TILE_K) all<4>(to, row_bytes);
        else piece_by_piece(to, row_bytes, k);
    }
    template <int PIECE> __device__ __forceinline__ void all(uint32_t to, int64_t row_bytes) const {
        tegroup_impl_loader here = *this;
        asm volatile("" : "+r"(here.room), "+r"(here.room2)); /* compared here, not earlier: registers are for sums */
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++)
            tegroup_impl_cp_async_if<PIECE>(here.there(pass), to + (uint32_t)((panel(pass) * ROWS + down(pass)) * 128),
                                            from + (uint32_t)down(pass) * (uint64_t)(uint32_t)row_bytes
                                                + panel(pass) * 128 + further(pass));
    }
    /* The same if k may end within a chunk, or chunks are not aligned. */
    __device__ __forceinline__ void piece_by_piece(uint32_t to, int64_t row_bytes, int32_t k) const {
#pragma unroll 1
        for (int pass = 0; pass < PASSES; pass++) { /* for 0 bytes nothing is read, wherever `at` points */
            const char *at = from + down(pass) * row_bytes + panel(pass) * 128 + further(pass);
            const int32_t left =
                ALONG_K ? (there(pass) ? k - chunk() * 8 : 0) : (row() + down(pass) < k ? room - panel(pass) * 64 : 0);
            const int32_t bytes = left < 0 ? 0 : left > 8 ? 16 : left * 2;
            const uint32_t place = to + (uint32_t)((panel(pass) * ROWS + down(pass)) * 128);
            if (aligned(at, row_bytes) && bytes % 16 == 0) tegroup_impl_cp_async_unless(bytes == 0, place, at);
            else if (aligned(at, row_bytes, 8) && bytes % 8 == 0) tegroup_impl_cp_async_pieces<8>(place, at, bytes);
            else if (aligned(at, row_bytes, 4) && bytes % 4 == 0) tegroup_impl_cp_async_pieces<4>(place, at, bytes);
            else tegroup_impl_load_slowly<THREADS <= 128 ? 4 : 1>(place, at, bytes);
        }
    }
    __device__ __forceinline__ void advance(int64_t row_bytes) { from += ALONG_K ? TILE_K * 2 : TILE_K * row_bytes; }
};
