/* ---- Results of the bundled GEMM kernels ---- */

/* The tile that a block works on. */
typedef struct tegroup_impl_gpu_tile {
    tegroup_impl_product p;
    int64_t i0, j0;
    int32_t valid;
} tegroup_impl_gpu_tile;

static __device__ __forceinline__ uint32_t tegroup_impl_shared(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* Out of line: every kernel and every place in it shares the one copy, which is most of what there would be to compile. */
static __device__ __noinline__ void tegroup_impl_gpu_product(const tegroup_impl_gpu_call *call, int32_t g,
                                                             tegroup_impl_product *p) {
    *p = tegroup_impl_product_of(&call->desc, call->views, g, (double)call->alpha, (double)call->beta);
}

/* Multiplications and additions that no compiler flag rewrites or flushes. */
static __device__ __forceinline__ float tegroup_impl_gpu_mul(float a, float b) {
    float r;
    asm("mul.rn.f32 %0, %1, %2;\n" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
static __device__ __forceinline__ float tegroup_impl_gpu_fma(float a, float b, float c) {
    float r;
    asm("fma.rn.f32 %0, %1, %2, %3;\n" : "=f"(r) : "f"(a), "f"(b), "f"(c));
    return r;
}

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
