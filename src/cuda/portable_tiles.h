/* ---- Portable GEMM: tiles ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/gemm_types.h"
#include "base/arithmetic.h"
#include "core/product.h"
#include "cuda/call.h"

/* One kernel family for every GPU since SM80: a persistent grid whose blocks walk the groups' tiles, cp.async into a
 * ring of swizzled shared-memory tiles, ldmatrix, mma.sync (PTX ISA 8.0, sections 9.7.8.22 and 9.7.13). Sizes come
 * from the snapshot. Each element is summed over k in steps of 16 from 0 upwards, whatever the tile, so the tile
 * never changes a bit. */
#define TEGROUP_IMPL_PORTABLE_TILE_K 64 /* two-byte elements: one 128-byte row of shared memory */
#define TEGROUP_IMPL_PORTABLE_FOUND 8   /* tiles that are found at a time */

/* A tile of a group's product: where its operands and results begin, and how much of the group there is from there
 * on. */
typedef struct tegroup_impl_gpu_tile {
    const char *a, *b, *c, *bias; /* bias, scale: NULL = none */
    const char *scale;
    char *d;
    int64_t a_row, b_row, c_row, d_row; /* bytes between rows */
    int64_t k, row, col;                /* of D's buffer the first row, and its column */
    int32_t m, n;                       /* at most the tile's own */
    float alpha, beta;
    int16_t reads_c, valid; /* 0: beta is 0, and C is not read; no tile is left */
} tegroup_impl_gpu_tile;

/* All 16, or nothing; without a branch between the instructions around it. */
static __device__ __forceinline__ void tegroup_impl_cp_async_if(bool there, uint32_t to, const void *from) {
    asm volatile(
        "{.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p cp.async.cg.shared.global [%1], [%2], 16;}\n" ::"r"((int)there),
        "r"(to), "l"(from)
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

/* volatile, as the loads of fragments are: their order is the program's, not the compiler's. */
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

/* One warp walks the groups, 32 at a time: each lane counts one group's tiles, a scan places them. Then each of a
 * few lanes looks for a tile of its own: it takes long, and no longer for several. Tiles are asked for in rising
 * order, so the walk never turns back. Lives in shared memory: registers are for sums. A kernel asks in one place,
 * where all of this is inlined and reads the descriptor as constants: a call would load it anew for every tile, and
 * have registers saved around it. */
template <int TILE_M, int TILE_N> struct tegroup_impl_gpu_walk {
    int64_t before;   /* tiles before the 32 groups at hand */
    int64_t upto[32]; /* of these: tiles of each one and those before it */
    int32_t base;     /* the first of these */

    static __device__ __forceinline__ int32_t lane() { return (int32_t)threadIdx.x & 31; }
    /* Before the first groups; behind all of them where a snapshot is none. */
    __device__ __forceinline__ void begin(const tegroup_impl_gpu_call &call) {
        upto[lane()] = 0;
        if (lane() == 0) {
            base = tegroup_impl_prepared<false>(call) ? -32 : call.desc.a.shape.groups;
            before = 0;
        }
        __syncwarp();
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
    /* Of a group; a D of 2^31 has no room in memory. */
    static __device__ __forceinline__ int32_t tiles(const tegroup_impl_gpu_call &call, int32_t g) {
        if (g >= call.desc.a.shape.groups) return 0;
        const tegroup_impl_product p = product(call, g);
        return p.skip || p.untouched || p.m <= 0 || p.n <= 0 ? 0 : tiles_m(p) * tiles_n(p);
    }
    /* The 32 groups after those at hand. */
    __device__ __forceinline__ void go_on(const tegroup_impl_gpu_call &call) {
        const int32_t first = base + 32;
        const int64_t tiles_before = before + upto[31];
        int64_t sum = tiles(call, first + lane());
        for (int32_t step = 1; step < 32; step *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane() >= step) sum += other;
        }
        __syncwarp();
        upto[lane()] = sum;
        if (lane() == 0) {
            base = first;
            before = tiles_before;
        }
        __syncwarp();
    }
    /* Tile number t of this lane, or none when there are fewer; lanes that look for nothing pass NULL. Within a
     * group tiles go in stripes of 8 along m: their operands stay in L2. */
    __device__ __forceinline__ void find(const tegroup_impl_gpu_call &call, int64_t t, tegroup_impl_gpu_tile *tile) {
        for (;;) {
            if (tile && t < before + upto[31]) {
                int32_t owner = 0; /* groups that end before the tile */
#pragma unroll
                for (int32_t half = 16; half > 0; half /= 2)
                    if (t >= before + upto[owner + half - 1]) owner += half;
                put(call, base + owner, (int32_t)(t - before - (owner > 0 ? upto[owner - 1] : 0)), tile);
                tile = NULL;
            }
            const bool more = base + 32 < call.desc.a.shape.groups;
            if (tile && !more) tile->valid = 0;
            if (!more || !__any_sync(0xffffffffu, tile != NULL)) break;
            go_on(call);
        }
        __syncwarp();
    }
    /* Tile number `local` of group g. */
    __device__ __forceinline__ void put(const tegroup_impl_gpu_call &call, int32_t g, int32_t local,
                                        tegroup_impl_gpu_tile *tile) {
        const tegroup_gemm_desc &desc = call.desc;
        const tegroup_impl_product p = product(call, g);
        const int32_t lines = tiles_m(p), columns = tiles_n(p), stripe = local / columns / 8 * 8,
                      within = local - stripe * columns, height = lines - stripe < 8 ? lines - stripe : 8;
        const int64_t i0 = (int64_t)(stripe + within % height) * TILE_M, j0 = (int64_t)(within / height) * TILE_N;
        const int32_t in = desc.a.dtype == TEGROUP_DTYPE_F32 ? 4 : 2, out = desc.d.dtype == TEGROUP_DTYPE_F32 ? 4 : 2;
        tile->a_row = p.a.ld * in;
        tile->b_row = p.b.ld * in;
        tile->c_row = p.c.ld * out;
        tile->d_row = p.d.ld * out;
        tile->a = p.a.base + (p.a.first + i0 * p.a_line) * in;
        tile->b = p.b.base + (p.b.first + j0 * p.b_line) * in;
        tile->c = p.c.base + (p.c.first + j0) * out + i0 * tile->c_row;
        tile->d = p.d.base + (p.d.first + j0) * out + i0 * tile->d_row;
        tile->bias = desc.bias.dtype == TEGROUP_DTYPE_UNSET || desc.op != TEGROUP_OP_FORWARD
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
    }
};

/* ---- loading ---- */

/* Loads one operand's tiles of LINES lines (of m or n) by TILE_K. Contiguous along k a tile is stored [line][k],
 * else in panels of 64 lines, each [k][line]; either way rows have 128 bytes, whose 16-byte chunks are permuted by
 * XOR with the row's number, so that eight rows meet eight banks. Every pass of the block's threads permutes alike,
 * since it moves by a multiple of eight rows. */
/* TWICE: lines from 64 on are others. */
template <int LINES, bool ALONG_K, int THREADS, bool TWICE = false> struct tegroup_impl_loader {
    static constexpr int TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, ROWS = ALONG_K ? LINES : TILE_K;
    static constexpr int ROWS_A_PASS = THREADS / 8, PASSES_A_PANEL = ROWS / ROWS_A_PASS,
                         PASSES = PASSES_A_PANEL * (ALONG_K ? 1 : LINES / 64);
    static_assert(ALONG_K || LINES % 64 == 0, "panels are whole");
    static_assert(ROWS_A_PASS % 8 == 0 && ROWS % ROWS_A_PASS == 0, "the permutation must repeat from pass to pass");
    static_assert(!TWICE || (ALONG_K && LINES == 128), "two halves of lines");
    const char *from; /* this thread's first chunk of the next step */
    int32_t room;     /* lines left from its row (along k), or from its chunk */
    int32_t room2;    /* TWICE: the same of the second half's lines */
    int64_t jump;     /* TWICE: bytes that these lie further on than if they followed */
    bool whole;       /* rows are of whole 16 bytes and no 4 GB, and chunks are all there or not at all */

    static __device__ __forceinline__ int32_t row() { return (int32_t)threadIdx.x / 8; }
    static __device__ __forceinline__ int32_t chunk() { return (int32_t)threadIdx.x % 8; }
    static __device__ __forceinline__ int32_t down(int pass) { return pass % PASSES_A_PANEL * ROWS_A_PASS; }
    static __device__ __forceinline__ int32_t panel(int pass) { return pass / PASSES_A_PANEL; }
    static __device__ __forceinline__ bool aligned(const char *at, int64_t row_bytes) {
        return (((uintptr_t)at | (uintptr_t)row_bytes) & 15) == 0;
    }

    __device__ __forceinline__ void open(const char *base, int64_t row_bytes, int32_t lines) {
        from = base + row() * row_bytes + chunk() * 16;
        room = ALONG_K ? lines - row() : lines - chunk() * 8;
        whole = aligned(base, row_bytes) && (ALONG_K || lines % 8 == 0) && row_bytes < (int64_t)1 << 32;
        room2 = room - 64;
        jump = 0;
    }
    /* As many lines of each half, the second ones `apart` lines after the first. */
    __device__ __forceinline__ void open_twice(const char *base, int64_t row_bytes, int32_t lines, int64_t apart) {
        open(base, row_bytes, lines);
        room2 = room;
        jump = (apart - 64) * row_bytes;
    }
    __device__ __forceinline__ bool there(int pass) const {
        return TWICE && down(pass) >= 64 ? down(pass) - 64 < room2
               : ALONG_K                 ? down(pass) < room
                                         : panel(pass) * 64 < room;
    }
    __device__ __forceinline__ int64_t further(int pass) const { return TWICE && down(pass) >= 64 ? jump : 0; }
    /* This thread's place in a stage. */
    static __device__ __forceinline__ uint32_t place() {
        return (uint32_t)((row() * 8 + (chunk() ^ (row() & 7))) * 16);
    }
    /* The tile of the next step, to this thread's place `to`; k elements along k, all TILE_K of them where WHOLE is
     * said ahead. Of lines that do not exist nothing is loaded: whatever is there in their place leads to results
     * that nobody stores. */
    template <bool WHOLE> __device__ __forceinline__ void load(uint32_t to, int64_t row_bytes, int32_t k) const {
        if (!WHOLE && (!whole || k < TILE_K)) {
            piece_by_piece(to, row_bytes, k);
            return;
        }
        tegroup_impl_loader here = *this;
        asm volatile("" : "+r"(here.room), "+r"(here.room2)); /* compared now, not ahead: registers are for sums */
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++)
            tegroup_impl_cp_async_if(here.there(pass), to + (uint32_t)((panel(pass) * ROWS + down(pass)) * 128),
                                     from + (uint32_t)down(pass) * (uint64_t)(uint32_t)row_bytes + panel(pass) * 128
                                         + further(pass));
    }
    /* The same where it may end within a chunk, or chunks are not aligned. */
    __device__ __forceinline__ void piece_by_piece(uint32_t to, int64_t row_bytes, int32_t k) const {
#pragma unroll 1
        for (int pass = 0; pass < PASSES; pass++) { /* of no bytes nothing is read, wherever that would be */
            const char *at = from + down(pass) * row_bytes + panel(pass) * 128 + further(pass);
            const int32_t left =
                ALONG_K ? (there(pass) ? k - chunk() * 8 : 0) : (row() + down(pass) < k ? room - panel(pass) * 64 : 0);
            const int32_t bytes = left < 0 ? 0 : left > 8 ? 16 : left * 2;
            const uint32_t place = to + (uint32_t)((panel(pass) * ROWS + down(pass)) * 128);
            if (aligned(from, row_bytes) && bytes % 16 == 0) tegroup_impl_cp_async_unless(bytes == 0, place, at);
            else tegroup_impl_load_slowly<THREADS <= 128 ? 4 : 1>(place, at, bytes);
        }
    }
    __device__ __forceinline__ void advance(int64_t row_bytes) { from += ALONG_K ? TILE_K * 2 : TILE_K * row_bytes; }
};
