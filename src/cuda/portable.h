/* ---- Portable GEMM kernels ---- */

/* One kernel family for every GPU since SM80: a persistent grid whose blocks walk the groups' tiles, cp.async into a ring of
 * swizzled shared-memory tiles, ldmatrix, mma.sync (PTX ISA 8.0, sections 9.7.8.22 and 9.7.13). Sizes come from the snapshot.
 * Each element is summed over k in steps of 16 from 0 upwards, whatever the tile, so the tile never changes a bit. */
#define TEGROUP_IMPL_PORTABLE_TILE_K 64 /* two-byte elements: one 128-byte row of shared memory */

/* The tile that a block works on. */
typedef struct tegroup_impl_gpu_tile {
    tegroup_impl_product p;
    int64_t i0, j0;
    int32_t valid;
} tegroup_impl_gpu_tile;

/* 16 bytes from global to shared memory, of which `bytes` are read and the rest are zeros. */
static __device__ __forceinline__ void tegroup_impl_cp_async(uint32_t to, const void *from, int32_t bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void tegroup_impl_cp_commit(void) {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int PENDING> static __device__ __forceinline__ void tegroup_impl_cp_wait(void) {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
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

template <bool BF16>
static __device__ __forceinline__ void tegroup_impl_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                        uint32_t b1) {
    if (BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- scheduling ---- */

/* Out of line: every kernel and every place in it shares the one copy, which is most of what there would be to compile. */
static __device__ __noinline__ void tegroup_impl_gpu_product(const tegroup_impl_gpu_call *call, int32_t g,
                                                             tegroup_impl_product *p) {
    *p = tegroup_impl_product_of(&call->desc, call->views, g, (double)call->alpha, (double)call->beta);
}

template <int TILE_M, int TILE_N>
static __device__ __forceinline__ int64_t tegroup_impl_gpu_tiles(const tegroup_impl_gpu_call &call, int32_t g,
                                                                 tegroup_impl_product *p) {
    tegroup_impl_gpu_product(&call, g, p);
    if (p->skip || p->untouched || p->m <= 0 || p->n <= 0) return 0;
    return tegroup_impl_ceil_div(p->m, TILE_M) * tegroup_impl_ceil_div(p->n, TILE_N);
}

/* One warp walks the groups, 32 at a time: each lane counts one group's tiles, a scan places them. Tiles are asked for in
 * rising order, so the walk never turns back. Lives in shared memory: registers are for sums. */
template <int TILE_M, int TILE_N> struct tegroup_impl_gpu_walk {
    int64_t before;   /* tiles before the 32 groups at hand */
    int64_t upto[32]; /* of these: tiles of each one and those before it */
    int32_t base;     /* the first of these */

    __device__ __forceinline__ void load(const tegroup_impl_gpu_call &call, int32_t first, int64_t tiles_before) {
        const int32_t lane = (int32_t)threadIdx.x & 31, g = first + lane;
        tegroup_impl_product p;
        int64_t sum = g < call.desc.a.shape.groups ? tegroup_impl_gpu_tiles<TILE_M, TILE_N>(call, g, &p) : 0;
        for (int32_t step = 1; step < 32; step *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += other;
        }
        __syncwarp();
        upto[lane] = sum;
        if (lane == 0) {
            base = first;
            before = tiles_before;
        }
        __syncwarp();
    }
    /* Tile number t, or none when there are fewer. Within a group tiles go in stripes of 8 along m: their operands stay in L2. */
    __device__ __forceinline__ void find(const tegroup_impl_gpu_call &call, int64_t t, tegroup_impl_gpu_tile *tile) {
        const int32_t lane = (int32_t)threadIdx.x & 31;
        while (t >= before + upto[31]) {
            if (base + 32 >= call.desc.a.shape.groups) {
                if (lane == 0) tile->valid = 0;
                __syncwarp();
                return;
            }
            load(call, base + 32, before + upto[31]);
        }
        const int32_t owner = __ffs((int)__ballot_sync(0xffffffffu, t < before + upto[lane])) - 1;
        if (lane == owner) {
            tegroup_impl_product p;
            const int64_t count = tegroup_impl_gpu_tiles<TILE_M, TILE_N>(call, base + lane, &p),
                          local = t - (before + upto[lane] - count);
            const int64_t tiles_m = tegroup_impl_ceil_div(p.m, TILE_M), tiles_n = tegroup_impl_ceil_div(p.n, TILE_N);
            const int64_t stripe = local / (8 * tiles_n), height = tegroup_impl_min(8, tiles_m - 8 * stripe),
                          within = local - stripe * 8 * tiles_n;
            tile->p = p;
            tile->i0 = (8 * stripe + within % height) * TILE_M;
            tile->j0 = within / height * TILE_N;
            tile->valid = 1;
        }
        __syncwarp();
    }
};

/* ---- loading ---- */

/* 16 bytes of a tile, element by element: rows that are not 16-byte aligned. */
static __device__ __noinline__ void tegroup_impl_load_slowly(uint32_t to, const char *from, int32_t bytes) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t low = 4 * i < bytes ? *(const uint16_t *)(from + 4 * i) : 0u,
                 high = 4 * i + 2 < bytes ? *(const uint16_t *)(from + 4 * i + 2) : 0u;
        word[i] = low | high << 16;
    }
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3])
                 : "memory");
}

/* Loads one operand's tiles of LINES lines (of m or n) by TILE_K. Contiguous along k a tile is stored [line][k], else [k][line];
 * either way 16-byte chunks are permuted within their row by XOR with the row's number, so that eight rows meet eight banks.
 * Every pass of the block's threads permutes alike, since it moves by a multiple of eight rows. */
template <int LINES, bool ALONG_K, int THREADS> struct tegroup_impl_loader {
    static constexpr int TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, CHUNKS = ALONG_K ? TILE_K / 8 : LINES / 8;
    static constexpr int ROWS = ALONG_K ? LINES : TILE_K, ROWS_A_PASS = THREADS / CHUNKS,
                         PASSES = (ROWS + ROWS_A_PASS - 1) / ROWS_A_PASS;
    static_assert(ALONG_K || LINES >= 64, "a row of eight chunks is what the permutation needs");
    static_assert(ROWS_A_PASS % 8 == 0, "the permutation must repeat from pass to pass");
    const char *from; /* this thread's first chunk of the next step */
    int64_t row_bytes;
    int32_t room;      /* lines left from its row (along k), or elements of its chunk that are within the lines */
    bool fast, steady; /* rows of whole 16 bytes; and every line exists, so that whole steps need no bounds */

    static __device__ __forceinline__ int32_t row() { return (int32_t)threadIdx.x / CHUNKS; }
    static __device__ __forceinline__ int32_t chunk() { return (int32_t)threadIdx.x % CHUNKS; }

    __device__ __forceinline__ void open(const char *base, int64_t ld, int64_t lines) {
        row_bytes = ld * 2;
        from = base + row() * row_bytes + chunk() * 16;
        room = (int32_t)tegroup_impl_clamp(ALONG_K ? lines - row() : lines - chunk() * 8, 0, LINES);
        fast = (((uintptr_t)base | (uintptr_t)row_bytes) & 15) == 0;
        steady = fast && lines >= LINES && ROWS % ROWS_A_PASS == 0;
    }
    /* Bytes that there are of the chunk r rows down, when k more elements of k are left. */
    __device__ __forceinline__ int32_t bytes(int r, int32_t k) const {
        const int32_t there = ALONG_K ? (r < room ? k - chunk() * 8 : 0) : (row() + r < k ? room : 0);
        return there < 0 ? 0 : there > 8 ? 16 : there * 2;
    }
    /* k_left: elements of k from this step on. */
    __device__ __forceinline__ void load(uint32_t stage, int64_t k_left) {
        const int32_t k = k_left < TILE_K ? (int32_t)k_left : TILE_K;
        const uint32_t to = stage + (uint32_t)((row() * CHUNKS + (chunk() ^ (row() & 7))) * 16);
        const char *at = from;
        from += ALONG_K ? TILE_K * 2 : TILE_K * row_bytes;
        if (steady && k == TILE_K) {
#pragma unroll
            for (int i = 0; i < PASSES; i++, at += ROWS_A_PASS * row_bytes)
                tegroup_impl_cp_async(to + (uint32_t)(i * ROWS_A_PASS * CHUNKS * 16), at, 16);
        } else if (fast && k == TILE_K && ROWS % ROWS_A_PASS == 0) { /* where a group or a row ends */
            const int32_t some = room < 8 ? room * 2 : 16;
#pragma unroll
            for (int i = 0; i < PASSES; i++, at += ROWS_A_PASS * row_bytes)
                tegroup_impl_cp_async(to + (uint32_t)(i * ROWS_A_PASS * CHUNKS * 16), at,
                                      !ALONG_K                 ? some
                                      : i * ROWS_A_PASS < room ? 16
                                                               : 0);
        } else if (fast) { /* of no bytes nothing is read, wherever that would be */
#pragma unroll 1
            for (int i = 0; i < PASSES && row() + i * ROWS_A_PASS < ROWS; i++, at += ROWS_A_PASS * row_bytes)
                tegroup_impl_cp_async(to + (uint32_t)(i * ROWS_A_PASS * CHUNKS * 16), at, bytes(i * ROWS_A_PASS, k));
        } else {
#pragma unroll 1
            for (int i = 0; i < PASSES && row() + i * ROWS_A_PASS < ROWS; i++, at += ROWS_A_PASS * row_bytes)
                tegroup_impl_load_slowly(to + (uint32_t)(i * ROWS_A_PASS * CHUNKS * 16), at, bytes(i * ROWS_A_PASS, k));
        }
    }
};

/* ---- storing ---- */

/* Eight neighbours of BF16, FP16 or FP32, of which `count` exist, as floats: in one or two loads where their address allows it. */
static __device__ __forceinline__ void tegroup_impl_gpu_load8(tegroup_dtype dtype, const char *from, int32_t count,
                                                              float (&x)[8]) {
    if (count == 8 && ((uintptr_t)from & 15) == 0) {
        uint4 low = *(const uint4 *)from, high = low;
        if (dtype == TEGROUP_DTYPE_F32) high = ((const uint4 *)from)[1];
        const uint32_t word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint16_t half = (uint16_t)(word[i / 2] >> i % 2 * 16);
            x[i] = dtype == TEGROUP_DTYPE_F32    ? tegroup_impl_f32_of_bits(word[i])
                   : dtype == TEGROUP_DTYPE_BF16 ? tegroup_impl_f32_of_bits((uint32_t)half << 16)
                                                 : tegroup_impl_f32_of_f16(half);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < count ? tegroup_impl_load_f32(dtype, from, i) : 0.0f;
}

static __device__ __forceinline__ void tegroup_impl_gpu_store8(tegroup_dtype dtype, char *to, int32_t count,
                                                               const float (&x)[8]) {
    const bool f32 = dtype == TEGROUP_DTYPE_F32, bf16 = dtype == TEGROUP_DTYPE_BF16;
    const bool whole = count == 8 && ((uintptr_t)to & 15) == 0;
    if (f32) {
        if (whole) {
            ((float4 *)to)[0] = make_float4(x[0], x[1], x[2], x[3]);
            ((float4 *)to)[1] = make_float4(x[4], x[5], x[6], x[7]);
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < count) ((float *)to)[i] = x[i];
        return;
    }
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++) word[i] = tegroup_impl_two_halves(x[2 * i], x[2 * i + 1], bf16);
    if (whole) {
        *(uint4 *)to = make_uint4(word[0], word[1], word[2], word[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) ((uint16_t *)to)[i] = (uint16_t)(word[i / 2] >> i % 2 * 16);
}

/* Where the results of one tile go: alpha * sum + beta * C + scale * bias. Few registers, since all the sums are in others, and
 * none of it read from shared memory again: the compiler cannot know that stores to D leave that alone. */
struct tegroup_impl_gpu_output {
    char *d; /* of the tile's first element, as the others */
    const char *c, *bias;
    const char *scale;    /* of its first row; NULL = 1 */
    int64_t d_row, c_row; /* bytes between rows */
    int32_t m, n;         /* of the tile */
    float alpha, beta;
    bool empty, reads_c; /* an empty sum is no term at all, and beta 0 does not read C */

    __device__ __forceinline__ tegroup_impl_gpu_output(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &tile,
                                                       int tile_m, int tile_n) {
        const tegroup_impl_product &p = tile.p;
        const int32_t bytes = desc.d.dtype == TEGROUP_DTYPE_F32 ? 4 : 2;
        d_row = p.d.ld * bytes;
        c_row = p.c.ld * bytes;
        d = p.d.base + (p.d.first + tile.j0) * bytes + tile.i0 * d_row;
        c = p.c.base + (p.c.first + tile.j0) * bytes + tile.i0 * c_row;
        bias = desc.bias.dtype == TEGROUP_DTYPE_UNSET || desc.op != TEGROUP_OP_FORWARD
                   ? NULL
                   : p.bias.base + (p.bias.first + tile.j0) * (desc.bias.dtype == TEGROUP_DTYPE_F32 ? 4 : 2);
        scale = desc.row_scale_dtype == TEGROUP_DTYPE_UNSET
                    ? NULL
                    : (const char *)desc.row_scale
                          + (p.a.row0 + tile.i0) * (desc.row_scale_dtype == TEGROUP_DTYPE_F64 ? 8 : 4);
        m = (int32_t)tegroup_impl_min(tile_m, p.m - tile.i0);
        n = (int32_t)tegroup_impl_min(tile_n, p.n - tile.j0);
        alpha = (float)p.alpha;
        beta = (float)p.beta;
        empty = p.k == 0;
        reads_c = p.beta != 0;
    }
    /* Eight sums of line `line` from column `first` on, both within the tile. */
    __device__ __forceinline__ void store(const tegroup_gemm_desc &desc, int line, int first, const float *sums) const {
        const int32_t count = n - first < 8 ? n - first : 8;
        const float4 low = ((const float4 *)sums)[0], high = ((const float4 *)sums)[1];
        float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, y[8];
        if (line >= m || count <= 0) return;
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = empty ? 0.0f : tegroup_impl_gpu_mul(alpha, x[e]);
        const int32_t bytes = desc.d.dtype == TEGROUP_DTYPE_F32 ? 4 : 2;
        if (reads_c) {
            tegroup_impl_gpu_load8(desc.d.dtype, c + line * c_row + first * bytes, count, y);
#pragma unroll
            for (int e = 0; e < 8; e++)
                x[e] = empty ? tegroup_impl_gpu_mul(beta, y[e]) : tegroup_impl_gpu_fma(beta, y[e], x[e]);
        }
        if (bias) {
            const float by = scale ? tegroup_impl_load_f32(desc.row_scale_dtype, scale, line) : 1.0f;
            tegroup_impl_gpu_load8(desc.bias.dtype, bias + first * (desc.bias.dtype == TEGROUP_DTYPE_F32 ? 4 : 2),
                                   count, y);
#pragma unroll
            for (int e = 0; e < 8; e++) x[e] = tegroup_impl_gpu_fma(by, y[e], x[e]);
        }
        tegroup_impl_gpu_store8(desc.d.dtype, d + line * d_row + first * bytes, count, x);
    }
};

/* Is the result alpha times the sum and nothing else, two bytes wide, in whole 16-byte pieces? */
static __device__ __forceinline__ bool tegroup_impl_gpu_plain(const tegroup_gemm_desc &desc,
                                                              const tegroup_impl_product &p, int64_t columns) {
    return p.k > 0 && p.beta == 0 && (desc.bias.dtype == TEGROUP_DTYPE_UNSET || desc.op != TEGROUP_OP_FORWARD)
           && desc.d.dtype != TEGROUP_DTYPE_F32 && columns <= p.n
           && (((uintptr_t)p.d.base + (uintptr_t)p.d.first * 2 | (uintptr_t)p.d.ld * 2) & 15) == 0;
}

/* ---- fragments ---- */

/* Where a lane reads its row of a fragment's first 8x8 matrix: `line` is the warp's first line, upper and later (0 or 1) say
 * whether its matrix is the one of the eight higher lines, and of the eight later k. */
template <int LINES, bool ALONG_K>
static __device__ __forceinline__ uint32_t tegroup_impl_fragments(int line, int upper, int later, int r) {
    return ALONG_K ? (uint32_t)((line + upper * 8 + r) * TEGROUP_IMPL_PORTABLE_TILE_K * 2 + (later ^ r) * 16)
                   : (uint32_t)((later * 8 + r) * LINES * 2 + ((line / 8 + upper) ^ r) * 16);
}

/* The same for sixteen kk of k and the i-th sixteen lines. The chunk's number is permuted by XOR, and so moved by XOR: the bits
 * that change are not among those that the warp's own line sets. */
template <int LINES, bool ALONG_K>
static __device__ __forceinline__ uint32_t tegroup_impl_fragment(uint32_t at, int kk, int i) {
    return ALONG_K ? (at ^ (uint32_t)(kk * 32)) + (uint32_t)(i * 16 * TEGROUP_IMPL_PORTABLE_TILE_K * 2)
                   : (at ^ (uint32_t)(i * 32)) + (uint32_t)(kk * 16 * LINES * 2);
}

/* ---- the two-byte kernel ---- */

/* A block's work on one tile: the ring of loads, the fragments and the sums. */
template <bool BF16, int OP, int TILE_M_, int TILE_N_, int WARPS_M, int WARPS_N, int STAGES>
struct tegroup_impl_portable_block {
    static constexpr int TILE_M = TILE_M_, TILE_N = TILE_N_, TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K;
    static constexpr int WARPS = WARPS_M * WARPS_N, THREADS = WARPS * 32;
    static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N, MI = WARP_M / 16, NI = WARP_N / 8;
    static constexpr int STEPS = TILE_K / 16, CHUNKS = TILE_N / 8, LINES_A_PASS = THREADS / CHUNKS;
    static constexpr int PADDED_N = TILE_N + 8; /* eight rows of fragments meet different banks */
    static constexpr bool A_ALONG_K = OP != TEGROUP_OP_WGRAD, B_ALONG_K = OP == TEGROUP_OP_FORWARD;
    static constexpr int A_BYTES = TILE_M * TILE_K * 2, STAGE_BYTES = A_BYTES + TILE_N * TILE_K * 2,
                         RING_BYTES = STAGES * STAGE_BYTES,
                         SHARED_BYTES = RING_BYTES + 128; /* room to align the ring */
    static_assert(NI % 2 == 0 && STEPS % 2 == 0, "B's fragments are loaded in pairs, and two sets alternate");
    static_assert(TILE_M * PADDED_N * 4 <= RING_BYTES, "the ring has room for the sums");

    uint32_t ring, at_a, at_b; /* the ring; this lane's place in a tile of A and of B */
    tegroup_impl_loader<TILE_M, A_ALONG_K, THREADS> load_a;
    tegroup_impl_loader<TILE_N, B_ALONG_K, THREADS> load_b;
    int64_t k_left;           /* elements of k that are not yet on their way */
    int32_t filling, reading; /* stages */
    float sum[MI][NI][4];
    uint32_t fa[2][MI][4], fb[2][NI / 2][4];

    static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 31; }
    static __device__ __forceinline__ int warp_m() { return (int)threadIdx.x / 32 % WARPS_M * WARP_M; }
    static __device__ __forceinline__ int warp_n() { return (int)threadIdx.x / 32 / WARPS_M * WARP_N; }

    __device__ __forceinline__ explicit tegroup_impl_portable_block(const void *memory) {
        /* In A's tile the matrices of a fragment run along m first, in B's along k first. */
        const int matrix = lane() >> 3, r = lane() & 7;
        ring = tegroup_impl_shared(memory);
        at_a = tegroup_impl_fragments<TILE_M, A_ALONG_K>(warp_m(), matrix & 1, matrix >> 1, r);
        at_b = A_BYTES + tegroup_impl_fragments<TILE_N, B_ALONG_K>(warp_n(), matrix >> 1, matrix & 1, r);
    }

    /* The first loads of a tile. The ring must be free. */
    __device__ __forceinline__ void open(const tegroup_impl_gpu_tile &tile) {
        const tegroup_impl_product &p = tile.p;
        load_a.open(p.a.base + (p.a.first + tile.i0 * p.a_line) * 2, p.a.ld, p.m - tile.i0);
        load_b.open(p.b.base + (p.b.first + tile.j0 * p.b_line) * 2, p.b.ld, p.n - tile.j0);
        k_left = p.k;
        filling = reading = 0;
#pragma unroll 1
        for (int s = 0; s < STAGES - 1; s++) {
            load_into_a();
            load_into_b();
        }
    }
    __device__ __forceinline__ void load_into_a() {
        if (k_left > 0) load_a.load(ring + (uint32_t)(filling * STAGE_BYTES), k_left);
    }
    __device__ __forceinline__ void load_into_b() {
        if (k_left > 0) {
            load_b.load(ring + (uint32_t)(filling * STAGE_BYTES + A_BYTES), k_left);
            k_left -= TILE_K;
            filling = filling + 1 == STAGES ? 0 : filling + 1;
        }
        tegroup_impl_cp_commit(); /* also when empty, so that the count of pending groups stays true */
    }

    __device__ __forceinline__ void fetch(int set, int kk) {
        const uint32_t stage = ring + (uint32_t)(reading * STAGE_BYTES);
#pragma unroll
        for (int i = 0; i < MI; i++)
            tegroup_impl_ldmatrix<!A_ALONG_K>(fa[set][i],
                                              tegroup_impl_fragment<TILE_M, A_ALONG_K>(stage + at_a, kk, i));
#pragma unroll
        for (int j = 0; j < NI / 2; j++)
            tegroup_impl_ldmatrix<!B_ALONG_K>(fb[set][j],
                                              tegroup_impl_fragment<TILE_N, B_ALONG_K>(stage + at_b, kk, j));
    }
    __device__ __forceinline__ void
    arrive() { /* the next step's tile is there, and the one before this step's is free */
        tegroup_impl_cp_wait<STAGES - 2>();
        __syncthreads();
    }

    /* Fragments are loaded under the products of the sixteen of k before theirs. A warp that has none of the group's lines or
     * columns leaves the tensor cores to others. */
    __device__ __forceinline__ void multiply(const tegroup_impl_gpu_tile &tile) {
        const int64_t k = tile.p.k;
        const bool works = tile.i0 + warp_m() < tile.p.m && tile.j0 + warp_n() < tile.p.n;
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
        if (k > 0) {
            arrive();
            if (works) fetch(0, 0);
        }
        for (int64_t left = k; left > 0; left -= TILE_K) {
            if (!works) {
                load_into_a();
                load_into_b();
                arrive();
                continue;
            }
#pragma unroll
            for (int kk = 0; kk < STEPS; kk++) {
                if (kk + 1 < STEPS) fetch((kk + 1) % 2, kk + 1);
                else {
                    arrive();
                    reading = reading + 1 == STAGES ? 0 : reading + 1;
                    if (left > TILE_K) fetch((kk + 1) % 2, 0);
                }
                if (kk == 0) load_into_a();
                if (kk == 1) load_into_b();
#pragma unroll
                for (int i = 0; i < MI; i++)
#pragma unroll
                    for (int j = 0; j < NI; j++)
                        tegroup_impl_mma<BF16>(sum[i][j], fa[kk % 2][i], fb[kk % 2][j / 2][j % 2 * 2],
                                               fb[kk % 2][j / 2][j % 2 * 2 + 1]);
            }
        }
        tegroup_impl_cp_wait<0>();
        __syncthreads(); /* the ring is free */
    }

    /* Results go through the ring, so that neighbouring threads store neighbouring columns: alpha times the sums as two-byte
     * numbers, ready to be copied, */
    __device__ __forceinline__ void store_plainly(bool bf16, const tegroup_impl_gpu_tile &tile, unsigned char *memory) {
        const float alpha = (float)tile.p.alpha;
        uint16_t *results = (uint16_t *)memory;
#pragma unroll
        for (int i = 0; i < MI * 2; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
                *(uint32_t *)(results + (warp_m() + i * 8 + lane() / 4) * PADDED_N + warp_n() + j * 8
                              + lane() % 4 * 2) =
                    tegroup_impl_two_halves(tegroup_impl_gpu_mul(alpha, sum[i / 2][j][i % 2 * 2]),
                                            tegroup_impl_gpu_mul(alpha, sum[i / 2][j][i % 2 * 2 + 1]), bf16);
        __syncthreads();
        const tegroup_impl_block d = tile.p.d;
        const int line = (int)threadIdx.x / CHUNKS, first = (int)threadIdx.x % CHUNKS * 8;
        const int32_t lines = (int32_t)tegroup_impl_min(tile.p.m - tile.i0, TILE_M);
        char *to = d.base + (d.first + (tile.i0 + line) * d.ld + tile.j0 + first) * 2;
        const uint16_t *from = results + line * PADDED_N + first;
        const int64_t step = LINES_A_PASS * 2 * d.ld;
#pragma unroll 8
        for (int i = line; i < lines; i += LINES_A_PASS, from += LINES_A_PASS * PADDED_N, to += step)
            *(uint4 *)to = *(const uint4 *)from;
    }
    /* or the sums as they are, for everything else. */
    __device__ __forceinline__ void store(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &tile,
                                          unsigned char *memory) {
        float *sums = (float *)memory;
#pragma unroll
        for (int i = 0; i < MI * 2; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
                *(float2 *)(sums + (warp_m() + i * 8 + lane() / 4) * PADDED_N + warp_n() + j * 8 + lane() % 4 * 2) =
                    make_float2(sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
        __syncthreads();
        const tegroup_impl_gpu_output output(desc, tile, TILE_M, TILE_N);
        const int line = (int)threadIdx.x / CHUNKS, first = (int)threadIdx.x % CHUNKS * 8;
#pragma unroll 2
        for (int i = line; i < output.m; i += LINES_A_PASS) output.store(desc, i, first, sums + i * PADDED_N + first);
    }
};

template <bool BF16, int OP, int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int STAGES>
static __global__ void __launch_bounds__(WARPS_M *WARPS_N * 32)
    tegroup_impl_portable_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap(); /* built for an older GPU alone; the plan refuses before it comes to this */
#else
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    /* To 128 bytes, as the permutation of chunks needs: debug and relocatable builds do not keep to a larger __align__. */
    unsigned char *const ring = tegroup_impl_memory + (128 - tegroup_impl_shared(tegroup_impl_memory) % 128) % 128;
    __shared__ tegroup_impl_gpu_tile tiles[2]; /* the one that is worked on, and the next */
    __shared__ tegroup_impl_gpu_walk<TILE_M, TILE_N> walk;
    tegroup_impl_portable_block<BF16, OP, TILE_M, TILE_N, WARPS_M, WARPS_N, STAGES> block(ring);
    const bool walks = threadIdx.x < 32;
    if (walks) {
        walk.load(call, 0, 0);
        walk.find(call, blockIdx.x, &tiles[0]);
    }
    int32_t at = 0;
    for (int64_t t = blockIdx.x;; t += gridDim.x, at ^= 1) {
        __syncthreads(); /* the tile is known, and nobody still reads the shared memory of the last one */
        const tegroup_impl_gpu_tile &tile = tiles[at];
        if (!tile.valid) break;
        block.open(tile);
        if (walks) walk.find(call, t + gridDim.x, &tiles[at ^ 1]); /* while the first loads are on their way */
        block.multiply(tile);
        if (tegroup_impl_gpu_plain(call.desc, tile.p, tile.j0 + TILE_N))
            block.store_plainly(call.desc.d.dtype == TEGROUP_DTYPE_BF16, tile, ring);
        else block.store(call.desc, tile, ring);
    }
#endif
}

/* ---- the FP32 kernel ---- */

/* Plain FMA, for gradient checks: 64 x 64 tiles, 4 x 4 elements a thread, one chain of FMAs over k an element. */
template <int OP>
static __global__ void __launch_bounds__(256)
    tegroup_impl_portable_f32_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
    constexpr int TILE = 64, TILE_K = 16;
    __shared__ __align__(16) float a[TILE_K][TILE + 4], b[TILE_K][TILE + 4], sums[TILE * (TILE + 8)];
    __shared__ tegroup_impl_gpu_tile tile;
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    __shared__ tegroup_impl_gpu_walk<TILE, TILE> walk;
    if (threadIdx.x < 32) walk.load(call, 0, 0);
    for (int64_t t = blockIdx.x;; t += gridDim.x) {
        __syncthreads();
        if (threadIdx.x < 32) walk.find(call, t, &tile);
        __syncthreads();
        if (!tile.valid) break;
        const tegroup_impl_product &p = tile.p;
        float sum[4][4] = {};
        for (int64_t k0 = 0; k0 < p.k; k0 += TILE_K) {
            for (int e = (int)threadIdx.x; e < TILE * TILE_K;
                 e += 256) { /* threads run along whichever direction is contiguous */
                const int la = OP == TEGROUP_OP_WGRAD ? e % TILE : e / TILE_K,
                          ka = OP == TEGROUP_OP_WGRAD ? e / TILE : e % TILE_K;
                const int lb = OP == TEGROUP_OP_FORWARD ? e / TILE_K : e % TILE,
                          kb = OP == TEGROUP_OP_FORWARD ? e % TILE_K : e / TILE;
                const bool in_a = tile.i0 + la < p.m && k0 + ka < p.k, in_b = tile.j0 + lb < p.n && k0 + kb < p.k;
                a[ka][la] =
                    in_a ? ((const float *)p.a.base)[p.a.first + (tile.i0 + la) * p.a_line + (k0 + ka) * p.a_k] : 0.0f;
                b[kb][lb] =
                    in_b ? ((const float *)p.b.base)[p.b.first + (tile.j0 + lb) * p.b_line + (k0 + kb) * p.b_k] : 0.0f;
            }
            __syncthreads();
#pragma unroll
            for (int kk = 0; kk < TILE_K; kk++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        sum[i][j] = tegroup_impl_gpu_fma(a[kk][ty * 4 + i], b[kk][tx * 4 + j], sum[i][j]);
            __syncthreads();
        }
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) sums[(ty * 4 + i) * (TILE + 8) + tx * 4 + j] = sum[i][j];
        __syncthreads();
        const tegroup_impl_gpu_output output(call.desc, tile, TILE, TILE);
#pragma unroll 1
        for (int e = (int)threadIdx.x; e < TILE * TILE / 8; e += 256)
            output.store(call.desc, e / (TILE / 8), e % (TILE / 8) * 8,
                         sums + e / (TILE / 8) * (TILE + 8) + e % (TILE / 8) * 8);
    }
}
