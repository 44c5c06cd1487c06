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

static __device__ __forceinline__ uint32_t tegroup_impl_shared(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

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

template <int TILE_M, int TILE_N>
static __device__ __forceinline__ int64_t tegroup_impl_gpu_tiles(const tegroup_impl_gpu_call &call, int32_t g,
                                                                 tegroup_impl_product *p) {
    *p = tegroup_impl_product_of(&call.desc, call.views, g, (double)call.alpha, (double)call.beta);
    if (p->skip || p->untouched || p->m <= 0 || p->n <= 0) return 0;
    return tegroup_impl_ceil_div(p->m, TILE_M) * tegroup_impl_ceil_div(p->n, TILE_N);
}

/* One warp walks the groups, 32 at a time: each lane counts one group's tiles, a scan places them. Tiles are asked for in
 * rising order, so the walk never turns back. */
template <int TILE_M, int TILE_N> struct tegroup_impl_gpu_walk {
    int32_t base;         /* first group of the 32 at hand */
    int64_t before, upto; /* tiles before those, and of this lane's group and the ones before it among them */
    int64_t total;

    __device__ __forceinline__ void load(const tegroup_impl_gpu_call &call) {
        int32_t lane = (int32_t)threadIdx.x & 31, g = base + lane, step;
        tegroup_impl_product p;
        upto = g < call.desc.a.shape.groups ? tegroup_impl_gpu_tiles<TILE_M, TILE_N>(call, g, &p) : 0;
        for (step = 1; step < 32; step *= 2) {
            int64_t other = __shfl_up_sync(0xffffffffu, upto, step);
            if (lane >= step) upto += other;
        }
        total = __shfl_sync(0xffffffffu, upto, 31);
    }
    __device__ __forceinline__ void start(const tegroup_impl_gpu_call &call) {
        base = 0;
        before = 0;
        load(call);
    }
    /* Tile number t, or none when there are fewer. Within a group tiles go in stripes of 8 along m: their operands stay in L2. */
    __device__ __forceinline__ void find(const tegroup_impl_gpu_call &call, int64_t t, tegroup_impl_gpu_tile *tile) {
        int32_t lane = (int32_t)threadIdx.x & 31, owner;
        while (t >= before + total) {
            if (base + 32 >= call.desc.a.shape.groups) {
                if (lane == 0) tile->valid = 0;
                return;
            }
            before += total;
            base += 32;
            load(call);
        }
        owner = __ffs((int)__ballot_sync(0xffffffffu, t < before + upto)) - 1;
        if (lane == owner) {
            tegroup_impl_product p;
            int64_t count = tegroup_impl_gpu_tiles<TILE_M, TILE_N>(call, base + lane, &p),
                    local = t - (before + upto - count);
            int64_t tiles_m = tegroup_impl_ceil_div(p.m, TILE_M), tiles_n = tegroup_impl_ceil_div(p.n, TILE_N);
            int64_t stripe = local / (8 * tiles_n), height = tegroup_impl_min(8, tiles_m - 8 * stripe),
                    within = local - stripe * 8 * tiles_n;
            tile->p = p;
            tile->i0 = (8 * stripe + within % height) * TILE_M;
            tile->j0 = within / height * TILE_N;
            tile->valid = 1;
        }
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
 * either way 16-byte chunks are permuted within their row by the row number, so that eight rows meet eight banks. What depends
 * on the thread alone is worked out once a tile: a step then costs an addition and two comparisons a chunk. */
template <int LINES, bool ALONG_K, int THREADS> struct tegroup_impl_loader {
    static constexpr int TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, CHUNKS = ALONG_K ? TILE_K / 8 : LINES / 8;
    static constexpr int ROWS = ALONG_K ? LINES : TILE_K, ROWS_A_PASS = THREADS / CHUNKS,
                         PASSES = (ROWS + ROWS_A_PASS - 1) / ROWS_A_PASS;
    static_assert(ALONG_K || LINES >= 64, "a row of eight chunks is what the permutation needs");
    const char *from, *valid; /* this thread's first chunk at k0 = 0, and an address that may always be named */
    int64_t pass, step;       /* bytes from pass to pass, and from one TILE_K to the next */
    uint32_t to;
    int32_t row,
        room; /* its first row; lines left from there (along k), or elements of the chunk that are within the lines */
    int32_t chunk;
    bool fast;

    __device__ __forceinline__ void open(const char *base, int64_t ld, int64_t lines) {
        row = (int32_t)threadIdx.x / CHUNKS;
        chunk = (int32_t)threadIdx.x % CHUNKS;
        valid = base;
        from = base + (row * ld + chunk * 8) * 2;
        pass = ROWS_A_PASS * ld * 2;
        step = (ALONG_K ? TILE_K : TILE_K * ld) * 2;
        to = (uint32_t)((row * CHUNKS + (chunk ^ (row & 7))) * 16);
        room = (int32_t)tegroup_impl_clamp(ALONG_K ? lines - row : lines - chunk * 8, 0, LINES);
        fast = (((uintptr_t)base | (uintptr_t)(ld * 2)) & 15) == 0;
    }
    /* Bytes that there are of the chunk in pass r / ROWS_A_PASS, when k more elements of k are left. */
    __device__ __forceinline__ int32_t bytes(int r, int32_t k) const {
        const int32_t there = ALONG_K ? (r < room ? k - chunk * 8 : 0) : (row + r < k ? room : 0);
        return there < 0 ? 0 : there > 8 ? 16 : there * 2;
    }
    /* k_left: elements of k from this step on. ROWS_A_PASS is a multiple of 8, so every pass permutes alike. */
    __device__ __forceinline__ void load(uint32_t stage, int64_t k_left) {
        const int32_t k = k_left < TILE_K ? (int32_t)k_left : TILE_K;
        const char *at = from;
        if (fast) {
#pragma unroll
            for (int i = 0; i < PASSES; i++, at += pass) {
                const int r = i * ROWS_A_PASS;
                if (ROWS % ROWS_A_PASS != 0 && row + r >= ROWS) break;
                const int32_t count = bytes(r, k);
                tegroup_impl_cp_async(stage + to + (uint32_t)(r * CHUNKS * 16), count > 0 ? at : valid, count);
            }
        } else {
#pragma unroll 1
            for (int i = 0; i < PASSES && row + i * ROWS_A_PASS < ROWS; i++, at += pass)
                tegroup_impl_load_slowly(stage + to + (uint32_t)(i * ROWS_A_PASS * CHUNKS * 16), at,
                                         bytes(i * ROWS_A_PASS, k));
        }
        from += step;
    }
    static_assert(ROWS_A_PASS % 8 == 0, "the permutation must repeat from pass to pass");
};

/* ---- storing ---- */

static __device__ __forceinline__ float tegroup_impl_gpu_row_scale(const tegroup_gemm_desc &desc,
                                                                   const tegroup_impl_product &p, int64_t row) {
    return desc.row_scale_dtype == TEGROUP_DTYPE_UNSET
               ? 1.0f
               : tegroup_impl_load_f32(desc.row_scale_dtype, desc.row_scale, p.a.row0 + row);
}

/* alpha * x + beta * c + scale * bias; an empty sum is no term at all, and beta 0 does not read C. */
static __device__ __forceinline__ float tegroup_impl_gpu_finish(const tegroup_gemm_desc &desc,
                                                                const tegroup_impl_product &p, int64_t row, int64_t col,
                                                                float scale, float x) {
    const float beta = (float)p.beta;
    if (p.k == 0)
        x = beta != 0 ? beta * tegroup_impl_load_f32(desc.d.dtype, p.c.base, p.c.first + row * p.c.ld + col) : 0.0f;
    else {
        x *= (float)p.alpha;
        if (beta != 0) x += beta * tegroup_impl_load_f32(desc.d.dtype, p.c.base, p.c.first + row * p.c.ld + col);
    }
    if (desc.bias.dtype != TEGROUP_DTYPE_UNSET && desc.op == TEGROUP_OP_FORWARD)
        x += scale * tegroup_impl_load_f32(desc.bias.dtype, p.bias.base, p.bias.first + col);
    return x;
}

/* Is the result alpha times the sum, and nothing else? */
static __device__ __forceinline__ bool tegroup_impl_gpu_plain(const tegroup_gemm_desc &desc,
                                                              const tegroup_impl_product &p) {
    return p.k > 0 && p.beta == 0 && (desc.bias.dtype == TEGROUP_DTYPE_UNSET || desc.op != TEGROUP_OP_FORWARD);
}

/* Two neighbouring elements of a row; one store where their address allows it. */
static __device__ __forceinline__ void tegroup_impl_gpu_store_pair(const tegroup_gemm_desc &desc,
                                                                   const tegroup_impl_product &p, int64_t row,
                                                                   int64_t col, bool plain, float alpha, float scale,
                                                                   float x0, float x1) {
    const int64_t at = p.d.first + row * p.d.ld + col;
    if (col >= p.n) return;
    if (plain) {
        x0 *= alpha;
        x1 *= alpha;
    } else {
        x0 = tegroup_impl_gpu_finish(desc, p, row, col, scale, x0);
        if (col + 1 < p.n) x1 = tegroup_impl_gpu_finish(desc, p, row, col + 1, scale, x1);
    }
    if (desc.d.dtype == TEGROUP_DTYPE_F32) {
        float *to = (float *)p.d.base + at;
        if (col + 1 < p.n && ((uintptr_t)to & 7) == 0) {
            *(float2 *)to = make_float2(x0, x1);
            return;
        }
        to[0] = x0;
        if (col + 1 < p.n) to[1] = x1;
    } else {
        const bool bf16 = desc.d.dtype == TEGROUP_DTYPE_BF16;
        uint16_t *to = (uint16_t *)p.d.base + at,
                 h0 = bf16 ? tegroup_impl_bf16_of_f32(x0) : tegroup_impl_f16_of_f32(x0),
                 h1 = bf16 ? tegroup_impl_bf16_of_f32(x1) : tegroup_impl_f16_of_f32(x1);
        if (col + 1 < p.n && ((uintptr_t)to & 3) == 0) {
            *(uint32_t *)to = (uint32_t)h0 | (uint32_t)h1 << 16;
            return;
        }
        to[0] = h0;
        if (col + 1 < p.n) to[1] = h1;
    }
}

/* ---- the two-byte kernel ---- */

template <bool BF16, int OP, int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int STAGES>
static __global__ void __launch_bounds__(WARPS_M *WARPS_N * 32)
    tegroup_impl_portable_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap(); /* built for an older GPU alone; the plan refuses before it comes to this */
#else
    constexpr int TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, THREADS = WARPS_M * WARPS_N * 32;
    constexpr int MI = TILE_M / WARPS_M / 16, NI = TILE_N / WARPS_N / 8;
    constexpr bool A_ALONG_K = OP != TEGROUP_OP_WGRAD, B_ALONG_K = OP == TEGROUP_OP_FORWARD;
    constexpr uint32_t A_BYTES = TILE_M * TILE_K * 2, STAGE_BYTES = A_BYTES + TILE_N * TILE_K * 2;
    static_assert(NI % 2 == 0, "B fragments are loaded in pairs");
    extern __shared__ __align__(128) unsigned char tegroup_impl_memory[];
    __shared__ tegroup_impl_gpu_tile tile;
    const uint32_t memory = tegroup_impl_shared(tegroup_impl_memory);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x & 31;
    const int warp_m = warp % WARPS_M * (TILE_M / WARPS_M), warp_n = warp / WARPS_M * (TILE_N / WARPS_N);
    tegroup_impl_gpu_walk<TILE_M, TILE_N> walk;
    if (warp == 0) walk.start(call);

    for (int64_t t = blockIdx.x;; t += gridDim.x) {
        __syncthreads(); /* nobody still reads the last tile or its shared memory */
        if (warp == 0) walk.find(call, t, &tile);
        __syncthreads();
        if (!tile.valid) break;
        const int64_t i0 = tile.i0, j0 = tile.j0, k = tile.p.k;
        tegroup_impl_loader<TILE_M, A_ALONG_K, THREADS> load_a;
        tegroup_impl_loader<TILE_N, B_ALONG_K, THREADS> load_b;
        load_a.open(tile.p.a.base + (tile.p.a.first + i0 * tile.p.a_line) * 2, tile.p.a.ld, tile.p.m - i0);
        load_b.open(tile.p.b.base + (tile.p.b.first + j0 * tile.p.b_line) * 2, tile.p.b.ld, tile.p.n - j0);
        int64_t k_left = k;
        int32_t filling = 0, reading = 0; /* stages */
        float sum[MI][NI][4];
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][j][e] = 0;

        auto load = [&]() {
            if (k_left > 0) {
                const uint32_t stage = memory + (uint32_t)filling * STAGE_BYTES;
                load_a.load(stage, k_left);
                load_b.load(stage + A_BYTES, k_left);
                k_left -= TILE_K;
                filling = filling + 1 == STAGES ? 0 : filling + 1;
            }
            tegroup_impl_cp_commit(); /* also when empty, so that the count of pending groups stays true */
        };
        for (int s = 0; s < STAGES - 1; s++) load();
        for (int64_t done = 0; done < k; done += TILE_K) {
            tegroup_impl_cp_wait<STAGES - 2>();
            __syncthreads(); /* this step's tile is there, and the one before it is free */
            load();
            const uint32_t at_a = memory + (uint32_t)reading * STAGE_BYTES, at_b = at_a + A_BYTES;
            reading = reading + 1 == STAGES ? 0 : reading + 1;
#pragma unroll
            for (int kk = 0; kk < TILE_K / 16; kk++) {
                uint32_t fa[MI][4], fb[NI / 2][4];
                const int matrix = lane >> 3, r = lane & 7;
#pragma unroll
                for (int i = 0; i < MI; i++) {
                    const int m = warp_m + i * 16;
                    if (A_ALONG_K) {
                        const int row = m + (matrix & 1) * 8 + r, chunk = kk * 2 + (matrix >> 1);
                        tegroup_impl_ldmatrix<false>(
                            fa[i], at_a + (uint32_t)((row * (TILE_K / 8) + (chunk ^ (row & 7))) * 16));
                    } else {
                        const int row = kk * 16 + (matrix >> 1) * 8 + r, chunk = m / 8 + (matrix & 1);
                        tegroup_impl_ldmatrix<true>(fa[i],
                                                    at_a + (uint32_t)((row * (TILE_M / 8) + (chunk ^ (row & 7))) * 16));
                    }
                }
#pragma unroll
                for (int j = 0; j < NI / 2; j++) {
                    const int n = warp_n + j * 16;
                    if (B_ALONG_K) {
                        const int row = n + (matrix >> 1) * 8 + r, chunk = kk * 2 + (matrix & 1);
                        tegroup_impl_ldmatrix<false>(
                            fb[j], at_b + (uint32_t)((row * (TILE_K / 8) + (chunk ^ (row & 7))) * 16));
                    } else {
                        const int row = kk * 16 + (matrix & 1) * 8 + r, chunk = n / 8 + (matrix >> 1);
                        tegroup_impl_ldmatrix<true>(fb[j],
                                                    at_b + (uint32_t)((row * (TILE_N / 8) + (chunk ^ (row & 7))) * 16));
                    }
                }
#pragma unroll
                for (int i = 0; i < MI; i++)
#pragma unroll
                    for (int j = 0; j < NI; j++)
                        tegroup_impl_mma<BF16>(sum[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
            }
        }
        tegroup_impl_cp_wait<0>();

        const bool plain = tegroup_impl_gpu_plain(call.desc, tile.p);
        const float alpha = (float)tile.p.alpha;
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int64_t row = i0 + warp_m + i * 16 + half * 8 + lane / 4;
                if (row >= tile.p.m) continue;
                const float scale = tegroup_impl_gpu_row_scale(call.desc, tile.p, row);
#pragma unroll
                for (int j = 0; j < NI; j++)
                    tegroup_impl_gpu_store_pair(call.desc, tile.p, row, j0 + warp_n + j * 8 + lane % 4 * 2, plain,
                                                alpha, scale, sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
            }
    }
#endif
}

/* ---- the FP32 kernel ---- */

/* Plain FMA, for gradient checks: 64 x 64 tiles, 4 x 4 elements a thread, one chain of FMAs over k an element. */
template <int OP>
static __global__ void __launch_bounds__(256)
    tegroup_impl_portable_f32_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
    constexpr int TILE = 64, TILE_K = 16;
    __shared__ float a[TILE_K][TILE + 4], b[TILE_K][TILE + 4];
    __shared__ tegroup_impl_gpu_tile tile;
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    tegroup_impl_gpu_walk<TILE, TILE> walk;
    if (threadIdx.x < 32) walk.start(call);
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
                    for (int j = 0; j < 4; j++) sum[i][j] = __fmaf_rn(a[kk][ty * 4 + i], b[kk][tx * 4 + j], sum[i][j]);
            __syncthreads();
        }
        for (int i = 0; i < 4; i++) {
            const int64_t row = tile.i0 + ty * 4 + i;
            if (row >= p.m) continue;
            const float scale = tegroup_impl_gpu_row_scale(call.desc, p, row);
            for (int j = 0; j < 4; j += 2)
                tegroup_impl_gpu_store_pair(call.desc, p, row, tile.j0 + tx * 4 + j, false, 1.0f, scale, sum[i][j],
                                            sum[i][j + 1]);
        }
    }
}
