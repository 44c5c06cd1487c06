/* ---- Router kernels ---- */

template <typename REAL, int LANES, int QUADS, int TURNS>
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_ROUTER_WARPS,
                                         sizeof(REAL) == 8 || TURNS * QUADS > 16 ? 1 : 2)
    tegroup_impl_router_kernel(const __grid_constant__ tegroup_router_desc desc,
                               const __grid_constant__ tegroup_impl_router_way way) {
    typedef tegroup_impl_quad<REAL> quad;
    typedef tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> batch_of;
    enum {
        tokens = batch_of::tokens,
        levels = tegroup_impl_router_levels(LANES * QUADS),
        nodes = tegroup_impl_router_root(LANES * QUADS)
    };
    const int32_t experts = desc.experts, k = desc.k, lane = (int32_t)threadIdx.x % 32, part = lane % LANES,
                  warp = (int32_t)threadIdx.x / 32, warps = (int32_t)blockDim.x / 32;
    const int64_t rows = desc.logits.rows, stride = (int64_t)gridDim.x * warps * tokens;
    /* of a token: its tree, what its weights are divided by, the probabilities that it chose and their experts */
    const int32_t divisor_at = way.level[levels], value_at = divisor_at + 1,
                  index_at = (value_at + k) * (int32_t)(sizeof(REAL) / 4);
    uint32_t *histogram = (uint32_t *)tegroup_impl_router_memory();
    char *memory = tegroup_impl_router_memory() + way.block_bytes + warp * (tokens * way.token_bytes);
    batch_of batch;

    batch.load(desc.logits, way.in, ((int64_t)blockIdx.x * warps + warp) * tokens);
    if (way.histogram) {
        for (int32_t e = (int32_t)threadIdx.x; e < experts; e += (int32_t)blockDim.x) histogram[e] = 0;
        __syncthreads();
    }
    while (batch.first < rows) {
        const int64_t first = batch.first;
        REAL sum[TURNS];
        if (way.in == TEGROUP_IMPL_ROUTER_HALVES) {
            if (desc.logits.dtype == TEGROUP_DTYPE_BF16) batch.widen(true);
            else batch.widen(false);
        }
        batch.settle(desc.logits, way, memory, -(REAL)INFINITY);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            quad most = batch.v[turn][0], sums = {{0, 0, 0, 0}};
#pragma unroll
            for (int j = 1; j < QUADS; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) most.x[i] = tegroup_impl_larger(most.x[i], batch.v[turn][j].x[i]);
            const REAL largest = tegroup_impl_lanes_max<REAL, LANES>(tegroup_impl_quad_max(most));
#pragma unroll
            for (int j = 0; j < QUADS; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    batch.v[turn][j].x[i] = tegroup_impl_softmax_exp(batch.v[turn][j].x[i] - largest);
                    sums.x[i] += batch.v[turn][j].x[i];
                }
            sum[turn] = tegroup_impl_lanes_sum<REAL, LANES>(tegroup_impl_quad_sum(sums));
        }
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int32_t place = batch_of::place(turn);
            REAL *tree = (REAL *)(memory + place * way.token_bytes), *parents = tree + way.level[1] + part,
                 *to = (REAL *)desc.probabilities.data + (first + place) * desc.probabilities.ld + 4 * part;
            quad *leaves = (quad *)tree + part;
            const int32_t stored = first + place < rows && way.out == TEGROUP_IMPL_ROUTER_FLOATS ? experts : 0;
            const REAL scale = (REAL)1 / sum[turn];
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                quad v = batch.v[turn][j];
#pragma unroll
                for (int i = 0; i < 4; i++) v.x[i] *= scale;
                const REAL most = tegroup_impl_quad_max(v);
                if (4 * batch_of::quad_of(j) < stored)
                    *((float4 *)(void *)to + j * LANES) =
                        make_float4((float)v.x[0], (float)v.x[1], (float)v.x[2], (float)v.x[3]);
                if (4 * batch_of::quad_of(j) < experts) {
                    leaves[j * LANES] = v;
                    if (levels > 1) parents[j * LANES] = most;
                }
            }
            if (part == 0) tree[divisor_at] = sum[turn];
        }
        if (way.out == TEGROUP_IMPL_ROUTER_ELEMENTS) {
            __syncwarp();
#pragma unroll 1
            for (int32_t place = 0; place < tokens && first + place < rows; place++) {
                const REAL *tree = (const REAL *)(memory + place * way.token_bytes);
                REAL *to = (REAL *)desc.probabilities.data + (first + place) * desc.probabilities.ld;
                for (int32_t e = lane; e < experts; e += 32) to[e] = tree[e];
            }
            __syncwarp();
        }
        /* Of the tree: a logit that is no number or infinite makes every probability NaN, and the first k experts are then
         * chosen; what only fills a node is never chosen. */
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            REAL *tree = (REAL *)(memory + batch_of::place(turn) * way.token_bytes);
            if (sum[turn] != sum[turn])
                for (int32_t q = part; 4 * q < experts; q += LANES) {
                    const quad zero = {{0, 0, 0, 0}};
                    ((quad *)tree)[q] = zero;
                    if (levels > 1) tree[way.level[1] + q] = 0;
                }
            if (part == experts / 4 % LANES)
                for (int32_t e = experts; e % 4 != 0; e++) tree[e] = -1;
            if (levels > 1 && part < way.level[2] - way.level[1] - way.level[1] / 4)
                tree[way.level[1] + way.level[1] / 4 + part] = -1;
        }
        batch.load(desc.logits, way.in, first + stride); /* on its way while the lanes choose */
#pragma unroll
        for (int level = 2; level < levels; level++) {
            __syncwarp();
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++) {
                REAL *tree = (REAL *)(memory + batch_of::place(turn) * way.token_bytes);
                for (int32_t q = part; q < way.level[level + 1] - way.level[level]; q += LANES)
                    tree[way.level[level] + q] =
                        4 * q < way.level[level] - way.level[level - 1]
                            ? tegroup_impl_quad_max(tegroup_impl_quad_at(tree + way.level[level - 1] + 4 * q))
                            : (REAL)-1;
            }
        }
        __syncwarp();
        if (lane < tokens) {
            REAL *tree = (REAL *)(memory + lane * way.token_bytes);
            const REAL all = tree[divisor_at];
            const bool live = first + lane < rows;
            REAL chosen = all != all ? all : (REAL)0;
            REAL root[nodes];
#pragma unroll
            for (int i = 0; i < nodes; i++)
                root[i] = 4 * i < way.level[levels] - way.level[levels - 1]
                              ? tegroup_impl_quad_max(tegroup_impl_quad_at(tree + way.level[levels - 1] + 4 * i))
                              : (REAL)-1;
            for (int32_t j = 0; j < k; j++) {
                REAL best = root[0], next = -1;
                int32_t here = nodes - 1; /* of equals the first, here and below */
#pragma unroll
                for (int i = 1; i < nodes; i++) best = tegroup_impl_larger(best, root[i]);
#pragma unroll
                for (int i = nodes - 2; i >= 0; i--)
                    if (root[i] == best) here = i;
#pragma unroll
                for (int level = levels - 1; level >= 0; level--)
                    here = 4 * here
                           + tegroup_impl_quad_find(tegroup_impl_quad_at(tree + way.level[level] + 4 * here), best);
                chosen += best;
                tree[value_at + j] = best;
                ((int32_t *)tree)[index_at + j] = here;
                if (live && way.histogram) atomicAdd(&histogram[here], 1u);
                if (live && !way.histogram) atomicAdd((unsigned long long *)desc.counts.data + here, 1ull);
#pragma unroll
                for (int level = 0; level < levels; level++) {
                    tree[way.level[level] + here] = next;
                    here /= 4;
                    next = tegroup_impl_quad_max(tegroup_impl_quad_at(tree + way.level[level] + 4 * here));
                }
#pragma unroll
                for (int i = 0; i < nodes; i++) root[i] = i == here ? next : root[i];
            }
            tree[divisor_at] = desc.normalize || all != all ? chosen : (REAL)1;
        }
        __syncwarp();
        for (tegroup_impl_router_slots slot(k); slot.place < tokens && first + slot.place < rows; slot.advance()) {
            const REAL *tree = (const REAL *)(memory + slot.place * way.token_bytes);
            const int64_t token = first + slot.place;
            ((REAL *)desc.weights.data)[token * desc.weights.ld + slot.choice] =
                tegroup_impl_quotient(tree[value_at + slot.choice], tree[divisor_at]);
            ((int32_t *)desc.indices.data)[token * desc.indices.ld + slot.choice] =
                ((const int32_t *)tree)[index_at + slot.choice];
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

/* The sum of a column from row `first` on, every eighth row; many loads are under way at a time. */
template <typename REAL>
static __device__ __forceinline__ double tegroup_impl_router_column(const tegroup_matrix &m, int64_t first,
                                                                    int64_t last, int32_t col) {
    const REAL *from = (const REAL *)m.data + col;
    double sum = 0;
#pragma unroll 16
    for (int64_t row = first; row < last; row += 8) sum += (double)from[row * m.ld];
    return sum;
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
    if (e < desc.experts)
        sum = desc.probabilities.dtype == TEGROUP_DTYPE_F32
                  ? tegroup_impl_router_column<float>(desc.probabilities, first + warp, last, e)
                  : tegroup_impl_router_column<double>(desc.probabilities, first + warp, last, e);
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

/* What the balance of the experts adds to the gradient of a quad of probabilities, in any row. */
template <typename REAL>
static __device__ __noinline__ tegroup_impl_quad<REAL> tegroup_impl_router_balance(
    const tegroup_router_backward_desc &desc, const tegroup_impl_router_way &way, int32_t q) {
    tegroup_impl_quad<REAL> v;
#pragma unroll
    for (int i = 0; i < 4; i++)
        v.x[i] = desc.balance_coefficient != 0 && 4 * q + i < desc.experts
                     ? (REAL)way.per_count * (REAL)((const int64_t *)desc.counts.data)[4 * q + i]
                     : (REAL)0;
    return v;
}

/* An element on its way into shared memory, with no register to wait for; before SM80 at once. */
template <typename T> static __device__ __forceinline__ void tegroup_impl_copy_soon(T *to, const T *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from),
                 "n"(sizeof(T))
                 : "memory");
#else
    *to = *from;
#endif
}
static __device__ __forceinline__ void tegroup_impl_copies_done() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* The choices of a batch and the gradients of their weights, behind each token's row of `room`. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_router_choices(const tegroup_router_backward_desc &desc,
                                                                   const tegroup_impl_router_way &way, char *memory,
                                                                   int64_t first, int32_t tokens, int32_t room) {
    const int32_t k = desc.k, index_at = (room + k) * (int32_t)(sizeof(REAL) / 4);
    for (tegroup_impl_router_slots slot(k); slot.place < tokens && first + slot.place < desc.probabilities.rows;
         slot.advance()) {
        const int64_t token = first + slot.place;
        char *row = memory + slot.place * way.token_bytes;
        tegroup_impl_copy_soon((REAL *)row + room + slot.choice,
                               (const REAL *)desc.grad_weights.data + token * desc.grad_weights.ld + slot.choice);
        tegroup_impl_copy_soon((int32_t *)row + index_at + slot.choice,
                               (const int32_t *)desc.indices.data + token * desc.indices.ld + slot.choice);
    }
}

/* Each lane of a warp puts together the gradient by expert of one token of the batch, in shared memory, on top of what the
 * balance of the experts gives; LANES lanes a token take it through the softmax. */
template <typename REAL, int LANES, int QUADS, int TURNS>
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_ROUTER_WARPS,
                                         sizeof(REAL) == 8 || TURNS * QUADS > 16 ? 1 : 2)
    tegroup_impl_router_grad_kernel(const __grid_constant__ tegroup_router_backward_desc desc,
                                    const __grid_constant__ tegroup_impl_router_way way) {
    typedef tegroup_impl_quad<REAL> quad;
    typedef tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> batch_of;
    enum { tokens = batch_of::tokens };
    const int32_t experts = desc.experts, k = desc.k, room = (experts + 3) / 4 * 4, lane = (int32_t)threadIdx.x % 32,
                  warp = (int32_t)threadIdx.x / 32, warps = (int32_t)blockDim.x / 32;
    const int64_t rows = desc.probabilities.rows, stride = (int64_t)gridDim.x * warps * tokens;
    /* of a token: its gradient by expert, by choice, and the choices */
    const int32_t grad_at = room, index_at = (grad_at + k) * (int32_t)(sizeof(REAL) / 4);
    quad *balances = (quad *)(void *)tegroup_impl_router_memory();
    char *memory = tegroup_impl_router_memory() + way.block_bytes + warp * (tokens * way.token_bytes);
    const int64_t start = ((int64_t)blockIdx.x * warps + warp) * tokens;
    batch_of batch;

    tegroup_impl_router_choices<REAL>(desc, way, memory, start, tokens, room);
    batch.load(desc.probabilities, way.in, start);
    for (int32_t q = (int32_t)threadIdx.x; way.block_bytes != 0 && 4 * q < experts; q += (int32_t)blockDim.x)
        balances[q] = tegroup_impl_router_balance<REAL>(desc, way, q);
    __syncthreads();
    while (batch.first < rows) {
        const int64_t first = batch.first;
        batch.settle(desc.probabilities, way, memory, (REAL)0);
        tegroup_impl_copies_done();
        __syncwarp();
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            quad *row = (quad *)(memory + batch_of::place(turn) * way.token_bytes);
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                const int32_t q = batch_of::quad_of(j);
                if (4 * q < experts)
                    row[q] = way.block_bytes != 0 ? balances[q] : tegroup_impl_router_balance<REAL>(desc, way, q);
            }
        }
        __syncwarp();
        if (lane < tokens && first + lane < rows) {
            REAL *row = (REAL *)(memory + lane * way.token_bytes);
            const REAL *from = (const REAL *)desc.probabilities.data + (first + lane) * desc.probabilities.ld;
            const int32_t *index = (const int32_t *)row + index_at;
            REAL chosen = 0, dot = 0;
#pragma unroll 8
            for (int32_t j = 0; j < k; j++) { /* an index that is no expert's is nobody's */
                const int32_t e = index[j];
                const REAL p = e >= 0 && e < experts ? from[e] : (REAL)0;
                chosen += p;
                dot += e >= 0 && e < experts ? row[grad_at + j] * p : (REAL)0;
            }
            for (int32_t j = 0; j < k; j++) {
                const int32_t e = index[j];
                if (e >= 0 && e < experts)
                    row[e] += tegroup_impl_choice_grad(row[grad_at + j], dot, chosen, desc.normalize);
            }
        }
        __syncwarp();
        tegroup_impl_router_choices<REAL>(desc, way, memory, first + stride, tokens, room);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            quad *row = (quad *)(memory + batch_of::place(turn) * way.token_bytes) + batch_of::part(), grad[QUADS],
                 sums = {{0, 0, 0, 0}};
            const int64_t token = first + batch_of::place(turn);
            const int32_t stored = token < rows ? experts : 0;
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                const quad nothing = {{0, 0, 0, 0}};
                grad[j] = nothing;
                if (4 * batch_of::quad_of(j) < experts) grad[j] = row[j * LANES];
#pragma unroll
                for (int i = 0; i < 4; i++) sums.x[i] = fma(batch.v[turn][j].x[i], grad[j].x[i], sums.x[i]);
            }
            const REAL mean = tegroup_impl_lanes_sum<REAL, LANES>(tegroup_impl_quad_sum(sums));
#pragma unroll
            for (int j = 0; j < QUADS; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) grad[j].x[i] = batch.v[turn][j].x[i] * (grad[j].x[i] - mean);
            if (way.out == TEGROUP_IMPL_ROUTER_FLOATS) {
                float4 *to =
                    (float4 *)((float *)desc.grad_logits.data + token * desc.grad_logits.ld) + batch_of::part();
#pragma unroll
                for (int j = 0; j < QUADS; j++)
                    if (4 * batch_of::quad_of(j) < stored)
                        to[j * LANES] = make_float4((float)grad[j].x[0], (float)grad[j].x[1], (float)grad[j].x[2],
                                                    (float)grad[j].x[3]);
            } else if (way.out == TEGROUP_IMPL_ROUTER_HALVES) {
                const bool bf16 = desc.grad_logits.dtype == TEGROUP_DTYPE_BF16;
                uint2 *to =
                    (uint2 *)((uint16_t *)desc.grad_logits.data + token * desc.grad_logits.ld) + batch_of::part();
#pragma unroll
                for (int j = 0; j < QUADS; j++)
                    if (4 * batch_of::quad_of(j) < stored)
                        to[j * LANES] =
                            make_uint2(tegroup_impl_two_halves((float)grad[j].x[0], (float)grad[j].x[1], bf16),
                                       tegroup_impl_two_halves((float)grad[j].x[2], (float)grad[j].x[3], bf16));
            } else {
#pragma unroll
                for (int j = 0; j < QUADS; j++)
                    if (4 * batch_of::quad_of(j) < experts) row[j * LANES] = grad[j];
            }
        }
        __syncwarp();
        if (way.out == TEGROUP_IMPL_ROUTER_ELEMENTS) {
#pragma unroll 1
            for (int32_t place = 0; place < tokens && first + place < rows; place++) {
                const REAL *row = (const REAL *)(memory + place * way.token_bytes);
                char *to = tegroup_impl_matrix_row(&desc.grad_logits, first + place);
                for (int32_t e = lane; e < experts; e += 32)
                    tegroup_impl_store_as(desc.grad_logits.dtype, to, e, row[e]);
            }
            __syncwarp();
        }
        batch.load(desc.probabilities, way.in, first + stride);
    }
}

/* How the rows of a matrix may be read and written. Doubles take no halves: they would be rounded twice. */
static inline tegroup_impl_router_access tegroup_impl_cuda_router_access(const tegroup_matrix *m, int is_f64) {
    const int64_t bytes = tegroup_impl_bits(m->dtype) / 8;
    if (m->dtype == TEGROUP_DTYPE_F64 || (is_f64 && m->dtype != TEGROUP_DTYPE_F32) || m->cols % 4 != 0
        || tegroup_impl_matrix_ld(m) % 4 != 0 || !tegroup_impl_aligned(m->data, (size_t)(4 * bytes)))
        return TEGROUP_IMPL_ROUTER_ELEMENTS;
    return m->dtype == TEGROUP_DTYPE_F32 ? TEGROUP_IMPL_ROUTER_FLOATS : TEGROUP_IMPL_ROUTER_HALVES;
}

/* One launch over batches of `tokens`, each with `bytes` of shared memory. Two blocks a multiprocessor and no more, as each
 * adds its counts to the same few addresses; for few tokens smaller blocks, so that every multiprocessor has some. */
template <typename DESC>
static inline tegroup_status tegroup_impl_cuda_router_launch(void (*kernel)(const DESC, const tegroup_impl_router_way),
                                                             const DESC *desc, tegroup_impl_router_way *way,
                                                             int64_t rows, int32_t tokens, int64_t bytes,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    const int64_t batches = tegroup_impl_ceil_div(rows, tokens);
    int device = 0, multiprocessors = 0, shared = 0;
    int64_t warps, fit, warp_bytes, blocks, block_bytes;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "space", "there must be a current device", error));
    way->token_bytes = (int32_t)(tegroup_impl_ceil_div(bytes, 16) | 1) * 16;
    warp_bytes = (int64_t)tokens * way->token_bytes;
    fit = (shared / 2 - 1024 - way->block_bytes) / warp_bytes; /* 1024: what a block costs besides */
    if (fit < 1) fit = 1;
    warps = tegroup_impl_clamp(tegroup_impl_ceil_div(batches, 2 * multiprocessors), 1,
                               tegroup_impl_min(fit, TEGROUP_IMPL_ROUTER_WARPS));
    blocks = tegroup_impl_min(tegroup_impl_ceil_div(batches, warps), 2 * multiprocessors);
    block_bytes = way->block_bytes + warps * warp_bytes;
    code = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)block_bytes);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "space", "the device must have the shared memory", error));
    kernel<<<(unsigned)blocks, 32u * (unsigned)warps, (size_t)block_bytes, stream>>>(*desc, *way);
    return tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the kernel must launch", error);
}

static inline tegroup_status tegroup_impl_cuda_router(const tegroup_router_desc *desc, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    const int is_f64 = desc->probabilities.dtype == TEGROUP_DTYPE_F64;
    const int64_t real_bytes = is_f64 ? 8 : 4;
    int32_t level, nodes = desc->experts;
    tegroup_impl_router_way way;
    tegroup_router_desc d = *desc;
    memset(&way, 0, sizeof way);
    way.in = tegroup_impl_cuda_router_access(&desc->logits, is_f64);
    way.out = tegroup_impl_cuda_router_access(&desc->probabilities, is_f64);
    way.histogram = desc->experts <= TEGROUP_IMPL_ROUTER_HISTOGRAM;
    way.block_bytes = way.histogram ? (int32_t)tegroup_impl_align(4 * desc->experts, 16) : 0;
    for (level = 1; level < TEGROUP_IMPL_ROUTER_LEVELS; level++) {
        way.level[level] = way.level[level - 1] + (nodes + 3) / 4 * 4;
        nodes = (nodes + 3) / 4;
    }
    d.logits = tegroup_impl_cuda_matrix(&desc->logits);
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaMemsetAsync(desc->counts.data, 0, 8 * (size_t)desc->experts, stream),
                                              "stream", "the counts must be cleared", error));
#define TEGROUP_IMPL_LAUNCH(real, lanes, quads, turns)                                                                 \
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_router_launch(                                                                  \
        tegroup_impl_router_kernel<real, lanes, quads, turns>, &d, &way, desc->logits.rows, 32 / (lanes) * (turns),    \
        (way.level[tegroup_impl_router_levels((lanes) * (quads))] + 1 + desc->k) * real_bytes + 4 * desc->k, stream,   \
        error))
    if (desc->logits.rows > 0) {
        if (is_f64 && desc->experts <= 1024) TEGROUP_IMPL_LAUNCH(double, 32, 8, 1);
        else if (is_f64) TEGROUP_IMPL_LAUNCH(double, 32, 32, 1);
        else if (desc->experts <= 128) TEGROUP_IMPL_LAUNCH(float, 8, 4, 4);
        else if (desc->experts <= 256) TEGROUP_IMPL_LAUNCH(float, 16, 4, 4);
        else if (desc->experts <= 512) TEGROUP_IMPL_LAUNCH(float, 32, 4, 4);
        else TEGROUP_IMPL_LAUNCH(float, 32, 32, 1);
    }
#undef TEGROUP_IMPL_LAUNCH
    if (!desc->balance_loss) return TEGROUP_OK;
    tegroup_impl_router_sums_kernel<<<dim3((unsigned)(desc->experts + 31) / 32, TEGROUP_IMPL_ROUTER_RUNS), 256, 0,
                                      stream>>>(d);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the kernel must launch", error));
    tegroup_impl_router_loss_kernel<<<1, 1024, 0, stream>>>(d);
    return tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the kernel must launch", error);
}

#if !defined(TEGROUP_NO_BACKWARD)
static inline tegroup_status tegroup_impl_cuda_router_backward(const tegroup_router_backward_desc *desc,
                                                               struct CUstream_st *stream, tegroup_error *error) {
    const int is_f64 = desc->probabilities.dtype == TEGROUP_DTYPE_F64;
    const int64_t real_bytes = is_f64 ? 8 : 4, room = tegroup_impl_align(desc->experts, 4);
    tegroup_impl_router_way way;
    tegroup_router_backward_desc d = *desc;
    if (desc->probabilities.rows == 0) return TEGROUP_OK;
    memset(&way, 0, sizeof way);
    way.in = tegroup_impl_cuda_router_access(&desc->probabilities, is_f64);
    way.out = tegroup_impl_cuda_router_access(&desc->grad_logits, is_f64);
    /* what does not fit twice is read again for every token */
    way.block_bytes = desc->experts <= 1024 ? (int32_t)(room * real_bytes) : 0;
    if (desc->balance_coefficient != 0) way.per_count = tegroup_impl_router_per_count(desc);
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    d.grad_weights = tegroup_impl_cuda_matrix(&desc->grad_weights);
    d.grad_logits = tegroup_impl_cuda_matrix(&desc->grad_logits);
#define TEGROUP_IMPL_LAUNCH(real, lanes, quads, turns)                                                                 \
    return tegroup_impl_cuda_router_launch(tegroup_impl_router_grad_kernel<real, lanes, quads, turns>, &d, &way,       \
                                           desc->probabilities.rows, 32 / (lanes) * (turns),                           \
                                           (room + desc->k) * real_bytes + 4 * desc->k, stream, error)
    if (is_f64 && desc->experts <= 1024) TEGROUP_IMPL_LAUNCH(double, 32, 8, 1);
    if (is_f64) TEGROUP_IMPL_LAUNCH(double, 32, 32, 1);
    if (desc->experts <= 128) TEGROUP_IMPL_LAUNCH(float, 8, 4, 4);
    if (desc->experts <= 256) TEGROUP_IMPL_LAUNCH(float, 16, 4, 4);
    if (desc->experts <= 512) TEGROUP_IMPL_LAUNCH(float, 32, 4, 4);
    TEGROUP_IMPL_LAUNCH(float, 32, 32, 1);
#undef TEGROUP_IMPL_LAUNCH
}
#endif /* TEGROUP_NO_BACKWARD */
