/* ---- Activation kernels ---- */

static __device__ __forceinline__ float tegroup_impl_swiglu(float gate, float up) {
    return tegroup_impl_swiglu_f32(gate, up);
}
static __device__ __forceinline__ double tegroup_impl_swiglu(double gate, double up) {
    return tegroup_impl_swiglu_f64(gate, up);
}
static __device__ __forceinline__ void tegroup_impl_swiglu_grad(float gate, float up, float grad, float *grad_gate,
                                                                float *grad_up) {
    tegroup_impl_swiglu_grad_f32(gate, up, grad, grad_gate, grad_up);
}
static __device__ __forceinline__ void tegroup_impl_swiglu_grad(double gate, double up, double grad, double *grad_gate,
                                                                double *grad_up) {
    tegroup_impl_swiglu_grad_f64(gate, up, grad, grad_gate, grad_up);
}

/* Two steps of a gated row, in the order in which they lie there: halves hold gates in the one and ups in the other,
 * interleaved ones pairs. */
template <bool INTERLEAVED> struct tegroup_impl_gated {
    static __device__ __forceinline__ int64_t step(int64_t c, int64_t steps, int half) {
        return INTERLEAVED ? 2 * c + half : c + half * steps;
    }
    static __device__ __forceinline__ int gate(int, int i) { return INTERLEAVED ? 2 * i : i; }
    static __device__ __forceinline__ int up(int lanes, int i) { return INTERLEAVED ? 2 * i + 1 : lanes + i; }
};

template <typename ACCESS, bool INTERLEAVED>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_activation_kernel(const __grid_constant__ tegroup_activation_desc desc) {
    typedef typename ACCESS::real real;
    typedef tegroup_impl_gated<INTERLEAVED> gated;
    const int lanes = ACCESS::lanes;
    const tegroup_impl_units units(desc.snapshot, desc.output.rows);
    const int64_t steps = desc.output.cols / lanes;
    for (int64_t unit = blockIdx.x; unit < units.count; unit += gridDim.x) {
        int64_t first;
        const int32_t rows = units.at(unit, &first);
        if (rows == 0) continue;
        for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
            typename ACCESS::raw x[TEGROUP_IMPL_ROWS_UNIT][2];
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) { /* past the unit's rows its last one, read again */
                const char *from = ACCESS::row(desc.input, first + tegroup_impl_min(r, rows - 1));
                x[r][0] = ACCESS::load(desc.input, from, gated::step(c, steps, 0));
                x[r][1] = ACCESS::load(desc.input, from, gated::step(c, steps, 1));
            }
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
                if (r >= rows) break;
                const real scale = tegroup_impl_weight<real>(desc.row_scale, first + r, 0);
                real both[2 * lanes], y[lanes];
                ACCESS::unpack(x[r][0], both);
                ACCESS::unpack(x[r][1], both + lanes);
#pragma unroll
                for (int i = 0; i < lanes; i++)
                    y[i] = scale * tegroup_impl_swiglu(both[gated::gate(lanes, i)], both[gated::up(lanes, i)]);
                ACCESS::store(desc.output, ACCESS::row(desc.output, first + r), c, ACCESS::pack(y));
            }
        }
    }
}

/* A thread reads a step of every operand before it writes there, so grad_input may be input. */
template <typename ACCESS, bool INTERLEAVED>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS, 3)
    tegroup_impl_activation_grad_kernel(const __grid_constant__ tegroup_activation_backward_desc desc) {
    typedef typename ACCESS::real real;
    typedef tegroup_impl_gated<INTERLEAVED> gated;
    const int lanes = ACCESS::lanes;
    const tegroup_impl_units units(desc.snapshot, desc.grad_output.rows);
    const int64_t steps = desc.grad_output.cols / lanes;
    const bool wants_sum = desc.grad_row_scale.dtype != TEGROUP_DTYPE_UNSET;
    for (int64_t unit = blockIdx.x; unit < units.count; unit += gridDim.x) {
        int64_t first;
        const int32_t rows = units.at(unit, &first);
        real sum[TEGROUP_IMPL_ROWS_UNIT] = {0, 0, 0, 0};
        if (rows == 0) continue;
        for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
            typename ACCESS::raw x[TEGROUP_IMPL_ROWS_UNIT][2], dy[TEGROUP_IMPL_ROWS_UNIT];
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
                const int64_t row = first + tegroup_impl_min(r, rows - 1);
                const char *from = ACCESS::row(desc.input, row);
                x[r][0] = ACCESS::load(desc.input, from, gated::step(c, steps, 0));
                x[r][1] = ACCESS::load(desc.input, from, gated::step(c, steps, 1));
                dy[r] = ACCESS::load(desc.grad_output, ACCESS::row(desc.grad_output, row), c);
            }
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
                if (r >= rows) break;
                const real scale = tegroup_impl_weight<real>(desc.row_scale, first + r, 0);
                real both[2 * lanes], grad[lanes], out[2 * lanes];
                ACCESS::unpack(x[r][0], both);
                ACCESS::unpack(x[r][1], both + lanes);
                ACCESS::unpack(dy[r], grad);
#pragma unroll
                for (int i = 0; i < lanes; i++) {
                    const int g = gated::gate(lanes, i), u = gated::up(lanes, i);
                    if (wants_sum) sum[r] = fma(grad[i], tegroup_impl_swiglu(both[g], both[u]), sum[r]);
                    tegroup_impl_swiglu_grad(both[g], both[u], scale * grad[i], &out[g], &out[u]);
                }
                char *to = ACCESS::row(desc.grad_input, first + r);
                ACCESS::store(desc.grad_input, to, gated::step(c, steps, 0), ACCESS::pack(out));
                ACCESS::store(desc.grad_input, to, gated::step(c, steps, 1), ACCESS::pack(out + lanes));
            }
        }
        if (wants_sum) {
            const real total = tegroup_impl_block_sums(sum);
            if ((int32_t)threadIdx.x < rows)
                tegroup_impl_set_weight(desc.grad_row_scale, first + threadIdx.x, 0, total);
        }
    }
}

static inline tegroup_status tegroup_impl_cuda_activation_forward(const tegroup_activation_desc *desc,
                                                                  struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->input, &desc->output};
    const int64_t width = desc->output.cols;
    tegroup_activation_desc d = *desc;
    if (desc->output.rows == 0 || width == 0) return TEGROUP_OK;
    d.input = tegroup_impl_cuda_matrix(&desc->input);
    d.row_scale = tegroup_impl_cuda_matrix(&desc->row_scale);
    d.output = tegroup_impl_cuda_matrix(&desc->output);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows(desc->interleaved ? tegroup_impl_activation_kernel<__VA_ARGS__, true>                \
                                                    : tegroup_impl_activation_kernel<__VA_ARGS__, false>,              \
                                  &d, width, __VA_ARGS__::lanes,                                                       \
                                  tegroup_impl_ceil_div(desc->output.rows, TEGROUP_IMPL_ROWS_UNIT), stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 2, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}

static inline tegroup_status tegroup_impl_cuda_activation_backward(const tegroup_activation_backward_desc *desc,
                                                                   struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->input, &desc->grad_output, &desc->grad_input};
    const int64_t width = desc->grad_output.cols;
    tegroup_activation_backward_desc d = *desc;
    if (desc->grad_output.rows == 0 || (width == 0 && desc->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET))
        return TEGROUP_OK;
    d.input = tegroup_impl_cuda_matrix(&desc->input);
    d.row_scale = tegroup_impl_cuda_matrix(&desc->row_scale);
    d.grad_output = tegroup_impl_cuda_matrix(&desc->grad_output);
    d.grad_input = tegroup_impl_cuda_matrix(&desc->grad_input);
    d.grad_row_scale = tegroup_impl_cuda_matrix(&desc->grad_row_scale);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows(desc->interleaved ? tegroup_impl_activation_grad_kernel<__VA_ARGS__, true>           \
                                                    : tegroup_impl_activation_grad_kernel<__VA_ARGS__, false>,         \
                                  &d, width, __VA_ARGS__::lanes,                                                       \
                                  tegroup_impl_ceil_div(desc->grad_output.rows, TEGROUP_IMPL_ROWS_UNIT), stream,       \
                                  error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 3, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}
