/* ---- Router kernels ---- */

/* A token's experts, in quads, are spread over a few lanes of a warp: quad q belongs to lane q % LANES, which keeps the
 * largest probability of each of its quads in a register. To choose, the lanes agree on the largest of all, and only the lane
 * that has it looks into the quad, which lies in shared memory. */
enum { TEGROUP_IMPL_ROUTER_SHARED = 48 * 1024, TEGROUP_IMPL_ROUTER_HISTOGRAM = 1024 };

template <typename REAL> struct tegroup_impl_quad { REAL x[4]; };

template <typename REAL, int LANES> static __device__ __forceinline__ REAL tegroup_impl_lanes_max(REAL x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        const REAL other = __shfl_xor_sync(0xffffffffu, x, step);
        x = other > x ? other : x;
    }
    return x;
}

template <typename REAL, int LANES> static __device__ __forceinline__ REAL tegroup_impl_lanes_sum(REAL x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

static __device__ __forceinline__ float tegroup_impl_exp(float x) { return tegroup_impl_exp_f32(x); }
static __device__ __forceinline__ double tegroup_impl_exp(double x) { return tegroup_impl_exp_f64(x); }
static __device__ __forceinline__ float tegroup_impl_choice_grad(float g, float dot, float chosen, int32_t normalize) {
    return tegroup_impl_choice_grad_f32(g, dot, chosen, normalize);
}
static __device__ __forceinline__ double tegroup_impl_choice_grad(double g, double dot, double chosen,
                                                                  int32_t normalize) {
    return tegroup_impl_choice_grad_f64(g, dot, chosen, normalize);
}

/* Four elements of a row from element e; past `count` the value `rest`. quads: rows allow loads of four elements. */
template <typename REAL>
static __device__ __forceinline__ tegroup_impl_quad<REAL> tegroup_impl_load_quad(const tegroup_matrix &m,
                                                                                 const char *row, int32_t e,
                                                                                 int32_t count, REAL rest, bool quads) {
    tegroup_impl_quad<REAL> v;
    if (quads && m.dtype == TEGROUP_DTYPE_F32) {
        const float4 f = ((const float4 *)row)[e / 4];
        v.x[0] = (REAL)f.x;
        v.x[1] = (REAL)f.y;
        v.x[2] = (REAL)f.z;
        v.x[3] = (REAL)f.w;
    } else if (quads && m.dtype != TEGROUP_DTYPE_F64) {
        const uint2 h = ((const uint2 *)row)[e / 4];
        const bool bf16 = m.dtype == TEGROUP_DTYPE_BF16;
        v.x[0] = (REAL)tegroup_impl_low_half(h.x, bf16);
        v.x[1] = (REAL)tegroup_impl_high_half(h.x, bf16);
        v.x[2] = (REAL)tegroup_impl_low_half(h.y, bf16);
        v.x[3] = (REAL)tegroup_impl_high_half(h.y, bf16);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) v.x[i] = e + i < count ? tegroup_impl_load_as(m.dtype, row, e + i, REAL()) : rest;
    }
    return v;
}

template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_store_quad(const tegroup_matrix &m, char *row, int32_t e,
                                                               int32_t count, const tegroup_impl_quad<REAL> &v,
                                                               bool quads) {
    if (quads && m.dtype == TEGROUP_DTYPE_F32) {
        ((float4 *)row)[e / 4] = make_float4((float)v.x[0], (float)v.x[1], (float)v.x[2], (float)v.x[3]);
    } else if (quads && m.dtype != TEGROUP_DTYPE_F64 && sizeof(REAL) == 4) { /* a double is not to be rounded twice */
        const bool bf16 = m.dtype == TEGROUP_DTYPE_BF16;
        ((uint2 *)row)[e / 4] = make_uint2(tegroup_impl_two_halves((float)v.x[0], (float)v.x[1], bf16),
                                           tegroup_impl_two_halves((float)v.x[2], (float)v.x[3], bf16));
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (e + i < count) tegroup_impl_store_as(m.dtype, row, e + i, v.x[i]);
    }
}

template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_quad_max(const tegroup_impl_quad<REAL> &v) {
    const REAL low = v.x[0] > v.x[1] ? v.x[0] : v.x[1], high = v.x[2] > v.x[3] ? v.x[2] : v.x[3];
    return low > high ? low : high;
}

/* What both router kernels are given besides the descriptor. */
typedef struct tegroup_impl_router_way {
    double per_count;                       /* backward: see tegroup_impl_router_per_count                    */
    int32_t in_quads, out_quads, histogram; /* histogram: assignments are counted a block at a time */
    int32_t experts_room, k_room;           /* rounded up to quads                                  */
} tegroup_impl_router_way;

static __device__ __forceinline__ char *tegroup_impl_router_memory() {
    extern __shared__ uint4 tegroup_impl_router_shared[];
    return (char *)tegroup_impl_router_shared;
}

template <typename REAL, int LANES, int QUADS>
static __global__ void __launch_bounds__(256, sizeof(REAL) == 8 ? 1
                                              : QUADS < 32      ? 4
                                                                : 2)
    tegroup_impl_router_kernel(const __grid_constant__ tegroup_router_desc desc,
                               const __grid_constant__ tegroup_impl_router_way way) {
    typedef tegroup_impl_quad<REAL> quad;
    const int batch = QUADS < 8 ? QUADS : 8; /* quads that a lane loads before it looks at them */
    const int32_t experts = desc.experts, k = desc.k, lane = (int32_t)threadIdx.x % LANES,
                  place = (int32_t)threadIdx.x / LANES, places = (int32_t)blockDim.x / LANES;
    const int64_t tokens = desc.logits.rows;
    uint32_t *histogram = (uint32_t *)tegroup_impl_router_memory();
    char *mine = tegroup_impl_router_memory() + (way.histogram ? 4 * way.experts_room : 0)
                 + place * (way.experts_room * (int32_t)sizeof(REAL) + way.k_room * (int32_t)(sizeof(REAL) + 4));
    quad *row = (quad *)mine;
    REAL *value = (REAL *)(row + way.experts_room / 4);
    int32_t *index = (int32_t *)(value + way.k_room);
    const REAL none = -(REAL)INFINITY;

    if (way.histogram) {
        for (int32_t e = (int32_t)threadIdx.x; e < experts; e += (int32_t)blockDim.x) histogram[e] = 0;
        __syncthreads();
    }
    for (int64_t base = (int64_t)blockIdx.x * places; base < tokens; base += (int64_t)gridDim.x * places) {
        const bool live = base + place < tokens; /* lanes without a token repeat the last one and write nothing */
        const int64_t token = live ? base + place : tokens - 1;
        const char *logits = tegroup_impl_matrix_row(&desc.logits, token);
        char *probabilities = tegroup_impl_matrix_row(&desc.probabilities, token);
        REAL largest = none, sum = 0, chosen = 0, best[QUADS];
#pragma unroll
        for (int q0 = 0; q0 < QUADS; q0 += batch) {
            quad v[batch];
#pragma unroll
            for (int b = 0; b < batch; b++) {
                const int32_t q = (q0 + b) * LANES + lane;
                if (4 * q < experts)
                    v[b] = tegroup_impl_load_quad(desc.logits, logits, 4 * q, experts, none, way.in_quads);
            }
#pragma unroll
            for (int b = 0; b < batch; b++) {
                const int32_t q = (q0 + b) * LANES + lane;
                if (4 * q >= experts) continue;
                row[q] = v[b];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (v[b].x[i] > largest) largest = v[b].x[i];
            }
        }
        largest = tegroup_impl_lanes_max<REAL, LANES>(largest);
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const int32_t q = j * LANES + lane;
            if (4 * q >= experts) continue;
            quad v = row[q];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v.x[i] = tegroup_impl_exp(v.x[i] - largest);
                if (4 * q + i < experts) sum += v.x[i];
            }
            row[q] = v;
        }
        sum = tegroup_impl_lanes_sum<REAL, LANES>(sum);
        /* A logit that is no number or infinite makes every probability NaN; the first k experts are then chosen. */
        const bool odd = sum != sum;
        const REAL scale = (REAL)1 / sum;
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const int32_t q = j * LANES + lane;
            best[j] = -2;
            if (4 * q >= experts) continue;
            quad v = row[q];
#pragma unroll
            for (int i = 0; i < 4; i++) v.x[i] *= scale;
            if (live) tegroup_impl_store_quad(desc.probabilities, probabilities, 4 * q, experts, v, way.out_quads);
#pragma unroll
            for (int i = 0; i < 4; i++) v.x[i] = 4 * q + i >= experts ? (REAL)-1 : odd ? (REAL)0 : v.x[i];
            row[q] = v;
            best[j] = tegroup_impl_quad_max(v);
        }
        for (int32_t j = 0; j < k; j++) {
            REAL most = best[0];
            int32_t my_quad = INT32_MAX, quad_taken;
#pragma unroll
            for (int i = 1; i < QUADS; i++) most = best[i] > most ? best[i] : most;
            most = tegroup_impl_lanes_max<REAL, LANES>(most);
#pragma unroll
            for (int i = QUADS - 1; i >= 0; i--)
                if (best[i] == most) my_quad = i * LANES + lane;
            quad_taken = my_quad;
#pragma unroll
            for (int step = LANES / 2; step > 0; step /= 2) /* of equals the lowest quad, and in it the lowest expert */
                quad_taken = min(quad_taken, __shfl_xor_sync(0xffffffffu, quad_taken, step));
            chosen += most;
            if (my_quad == quad_taken) {
                quad v = row[quad_taken];
                int32_t at = 3;
#pragma unroll
                for (int i = 2; i >= 0; i--)
                    if (v.x[i] == most) at = i;
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (i == at) v.x[i] = -1;
                row[quad_taken] = v;
                const REAL next = tegroup_impl_quad_max(v);
#pragma unroll
                for (int i = 0; i < QUADS; i++)
                    if (i * LANES + lane == quad_taken) best[i] = next;
                value[j] = most;
                index[j] = 4 * quad_taken + at;
                if (live && way.histogram) atomicAdd(&histogram[index[j]], 1u);
                if (live && !way.histogram)
                    atomicAdd((unsigned long long *)desc.counts.data + 4 * quad_taken + at, 1ull);
            }
            __syncwarp();
        }
        for (int32_t j = lane; j < k && live; j += LANES) {
            const REAL weight = odd ? sum : desc.normalize ? value[j] / chosen : value[j];
            tegroup_impl_set_weight(desc.weights, token, j, weight);
            ((int32_t *)desc.indices.data)[token * desc.indices.ld + j] = index[j];
        }
        __syncwarp();
    }
    if (way.histogram) {
        __syncthreads();
        for (int32_t e = (int32_t)threadIdx.x; e < experts; e += (int32_t)blockDim.x)
            if (histogram[e] != 0)
                atomicAdd((unsigned long long *)desc.counts.data + e, (unsigned long long)histogram[e]);
    }
}

/* Sums of 32 experts' probabilities over one run of tokens: blockIdx.x the experts, blockIdx.y the run. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_router_sums_kernel(const __grid_constant__ tegroup_router_desc desc) {
    __shared__ double part[8][32];
    const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32,
                  e = (int32_t)blockIdx.x * 32 + lane;
    const int64_t tokens = desc.probabilities.rows, each = tegroup_impl_ceil_div(tokens, TEGROUP_IMPL_ROUTER_RUNS),
                  first = (int64_t)blockIdx.y * each, last = tegroup_impl_min(tokens, first + each);
    double sum = 0;
#pragma unroll 8
    for (int64_t t = first + warp; t < last; t += 8)
        if (e < desc.experts) sum += tegroup_impl_weight<double>(desc.probabilities, t, e);
    part[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || e >= desc.experts) return;
    sum = 0;
    for (int32_t w = 0; w < 8; w++) sum += part[w][lane];
    ((double *)desc.workspace)[(int64_t)blockIdx.y * desc.experts + e] = sum;
}

static __global__ void __launch_bounds__(1024)
    tegroup_impl_router_loss_kernel(const __grid_constant__ tegroup_router_desc desc) {
    __shared__ double part[1024];
    const int32_t thread = (int32_t)threadIdx.x;
    const double tokens = (double)desc.probabilities.rows, *sums = (const double *)desc.workspace;
    double loss = 0;
    for (int32_t e = thread; e < desc.experts && tokens > 0; e += 1024) {
        double mean = 0;
#pragma unroll 16
        for (int32_t run = 0; run < TEGROUP_IMPL_ROUTER_RUNS; run++) mean += sums[(int64_t)run * desc.experts + e];
        loss += (double)((const int64_t *)desc.counts.data)[e] / (tokens * desc.k) * (mean / tokens);
    }
    part[thread] = loss;
    for (int32_t step = 512; step > 0; step /= 2) {
        __syncthreads();
        if (thread < step) part[thread] += part[thread + step];
    }
    if (thread == 0) *desc.balance_loss = desc.balance_coefficient * desc.experts * part[0];
}

/* A warp to a token, whose gradient by expert is put together in shared memory. */
template <typename REAL>
static __global__ void __launch_bounds__(256)
    tegroup_impl_router_grad_kernel(const __grid_constant__ tegroup_router_backward_desc desc,
                                    const __grid_constant__ tegroup_impl_router_way way) {
    typedef tegroup_impl_quad<REAL> quad;
    const int32_t experts = desc.experts, k = desc.k, lane = (int32_t)threadIdx.x % 32,
                  warp = (int32_t)threadIdx.x / 32, warps = (int32_t)blockDim.x / 32;
    quad *row = (quad *)(void *)tegroup_impl_router_memory() + warp * (way.experts_room / 4);
    REAL *grad = (REAL *)row;
    const REAL per_count = (REAL)way.per_count;
    const bool balanced = desc.balance_coefficient != 0;
    for (int64_t token = (int64_t)blockIdx.x * warps + warp; token < desc.probabilities.rows;
         token += (int64_t)gridDim.x * warps) {
        const char *probabilities = tegroup_impl_matrix_row(&desc.probabilities, token);
        const int32_t *indices = (const int32_t *)desc.indices.data + token * desc.indices.ld;
        const REAL *grad_weights = (const REAL *)desc.grad_weights.data + token * desc.grad_weights.ld;
        REAL chosen = 0, dot = 0, mean = 0;
        for (int32_t q = lane; 4 * q < experts; q += 32) {
            quad v;
#pragma unroll
            for (int i = 0; i < 4; i++)
                v.x[i] = balanced && 4 * q + i < experts
                             ? per_count * (REAL)((const int64_t *)desc.counts.data)[4 * q + i]
                             : (REAL)0;
            row[q] = v;
        }
        for (int32_t j = lane; j < k; j += 32) { /* an index that is no expert's is nobody's */
            const int32_t e = indices[j];
            const REAL p = e >= 0 && e < experts ? ((const REAL *)probabilities)[e] : (REAL)0;
            chosen += p;
            dot += e >= 0 && e < experts ? grad_weights[j] * p : (REAL)0;
        }
        chosen = tegroup_impl_lanes_sum<REAL, 32>(chosen);
        dot = tegroup_impl_lanes_sum<REAL, 32>(dot);
        __syncwarp();
        for (int32_t base = 0; base < k; base += 32) {
            const int32_t j = base + lane, e = j < k ? indices[j] : -1;
            const bool present = e >= 0 && e < experts;
            const REAL add = present ? tegroup_impl_choice_grad(grad_weights[j], dot, chosen, desc.normalize) : (REAL)0;
            const uint32_t same = __match_any_sync(0xffffffffu, present ? e : -1);
            const int32_t turn = __popc(same & ((1u << lane) - 1)); /* of slots with one expert each adds in its turn */
            for (int32_t now = 0; __any_sync(0xffffffffu, present && turn >= now); now++) {
                if (present && turn == now) grad[e] += add;
                __syncwarp();
            }
        }
        for (int32_t q = lane; 4 * q < experts; q += 32) {
            const quad v = row[q], p = tegroup_impl_load_quad(desc.probabilities, probabilities, 4 * q, experts,
                                                              (REAL)0, way.in_quads);
#pragma unroll
            for (int i = 0; i < 4; i++) mean = fma(p.x[i], v.x[i], mean);
        }
        mean = tegroup_impl_lanes_sum<REAL, 32>(mean);
        char *to = tegroup_impl_matrix_row(&desc.grad_logits, token);
        for (int32_t q = lane; 4 * q < experts; q += 32) {
            const quad p =
                tegroup_impl_load_quad(desc.probabilities, probabilities, 4 * q, experts, (REAL)0, way.in_quads);
            quad v = row[q];
#pragma unroll
            for (int i = 0; i < 4; i++) v.x[i] = p.x[i] * (v.x[i] - mean);
            tegroup_impl_store_quad(desc.grad_logits, to, 4 * q, experts, v, way.out_quads);
        }
        __syncwarp();
    }
}

/* May rows of a matrix of floats be read and written in fours? */
static inline int tegroup_impl_cuda_quads(const tegroup_matrix *m) {
    const int64_t bytes = tegroup_impl_bits(m->dtype) / 8;
    return m->dtype != TEGROUP_DTYPE_F64 && m->cols % 4 == 0 && tegroup_impl_matrix_ld(m) % 4 == 0
           && tegroup_impl_aligned(m->data, (size_t)(4 * bytes));
}

static inline tegroup_impl_router_way tegroup_impl_cuda_router_way(const tegroup_matrix *in, const tegroup_matrix *out,
                                                                   int32_t k) {
    tegroup_impl_router_way way;
    memset(&way, 0, sizeof way);
    way.in_quads = tegroup_impl_cuda_quads(in);
    way.out_quads = tegroup_impl_cuda_quads(out);
    way.histogram = in->cols <= TEGROUP_IMPL_ROUTER_HISTOGRAM;
    way.experts_room = (int32_t)tegroup_impl_align(in->cols, 4);
    way.k_room = (int32_t)tegroup_impl_align(k, 4);
    return way;
}

/* One launch of `lanes` lanes a token, as many warps to a block as its shared memory holds. */
template <typename DESC>
static inline tegroup_status tegroup_impl_cuda_router_launch(void (*kernel)(const DESC, const tegroup_impl_router_way),
                                                             const DESC *desc, const tegroup_impl_router_way *way,
                                                             int64_t tokens, int32_t lanes, int64_t token_bytes,
                                                             int64_t block_bytes, struct CUstream_st *stream,
                                                             tegroup_error *error) {
    const int64_t warp_bytes = 32 / lanes * token_bytes;
    const int32_t warps = (int32_t)tegroup_impl_clamp((TEGROUP_IMPL_ROUTER_SHARED - block_bytes) / warp_bytes, 1, 8);
    unsigned blocks;
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(tokens, 32 / lanes * warps), 64 / warps, &blocks, error));
    kernel<<<blocks, 32u * (unsigned)warps, (size_t)(block_bytes + warps * warp_bytes), stream>>>(*desc, *way);
    return tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the kernel must launch", error);
}

static inline tegroup_status tegroup_impl_cuda_router(const tegroup_router_desc *desc, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    const int64_t tokens = desc->logits.rows;
    const int is_f64 = desc->probabilities.dtype == TEGROUP_DTYPE_F64;
    const tegroup_impl_router_way way = tegroup_impl_cuda_router_way(&desc->logits, &desc->probabilities, desc->k);
    const int64_t real_bytes = is_f64 ? 8 : 4,
                  token_bytes = way.experts_room * real_bytes + way.k_room * (real_bytes + 4),
                  block_bytes = way.histogram ? 4 * (int64_t)way.experts_room : 0;
    tegroup_router_desc d = *desc;
    d.logits = tegroup_impl_cuda_matrix(&desc->logits);
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaMemsetAsync(desc->counts.data, 0, 8 * (size_t)desc->experts, stream),
                                              "stream", "the counts must be cleared", error));
#define TEGROUP_IMPL_LAUNCH(real, lanes, quads)                                                                        \
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_router_launch(tegroup_impl_router_kernel<real, lanes, quads>, &d, &way, tokens, \
                                                     lanes, token_bytes, block_bytes, stream, error))
    if (tokens > 0) {
        if (is_f64) TEGROUP_IMPL_LAUNCH(double, 32, 32);
        else if (desc->experts <= 128) TEGROUP_IMPL_LAUNCH(float, 4, 8);
        else if (desc->experts <= 512) TEGROUP_IMPL_LAUNCH(float, 16, 8);
        else TEGROUP_IMPL_LAUNCH(float, 32, 32);
    }
#undef TEGROUP_IMPL_LAUNCH
    if (!desc->balance_loss) return TEGROUP_OK;
    tegroup_impl_router_sums_kernel<<<dim3((unsigned)(desc->experts + 31) / 32, TEGROUP_IMPL_ROUTER_RUNS), 256, 0,
                                      stream>>>(d);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the kernel must launch", error));
    tegroup_impl_router_loss_kernel<<<1, 1024, 0, stream>>>(d);
    return tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the kernel must launch", error);
}

static inline tegroup_status tegroup_impl_cuda_router_backward(const tegroup_router_backward_desc *desc,
                                                               struct CUstream_st *stream, tegroup_error *error) {
    const int is_f64 = desc->probabilities.dtype == TEGROUP_DTYPE_F64;
    const int64_t tokens = desc->probabilities.rows;
    tegroup_impl_router_way way = tegroup_impl_cuda_router_way(&desc->probabilities, &desc->grad_logits, desc->k);
    tegroup_router_backward_desc d = *desc;
    if (tokens == 0) return TEGROUP_OK;
    if (desc->balance_coefficient != 0) way.per_count = tegroup_impl_router_per_count(desc);
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    d.grad_weights = tegroup_impl_cuda_matrix(&desc->grad_weights);
    d.grad_logits = tegroup_impl_cuda_matrix(&desc->grad_logits);
    return tegroup_impl_cuda_router_launch(
        is_f64 ? tegroup_impl_router_grad_kernel<double> : tegroup_impl_router_grad_kernel<float>, &d, &way, tokens, 32,
        (int64_t)way.experts_room * (is_f64 ? 8 : 4), 0, stream, error);
}
