/* What train_moe.cu gives train_moe.c: memory, a stream, a graph, and the stages of train_moe_math.h under the same names as
 * kernels. They are enqueued; only copy_gpu and wait_gpu wait. A CUDA error ends the program with one line. */
#if defined(__cplusplus)
extern "C" {
#endif

typedef struct gpu_windows {
    const uint8_t *text;
    int64_t        train_end, context, tokens, micro_batch, micro_batches;
    uint64_t       random;
    uint8_t       *bytes;
    int32_t       *targets;
} gpu_windows;

/* A new stream; NULL where there is no GPU. name: of the device. */
struct CUstream_st *stream_gpu(char *name, size_t size);
void *allocate_gpu(size_t bytes); /* zeroed */
void release_gpu(void *memory);
void copy_gpu(struct CUstream_st *stream, void *to, const void *from, size_t bytes);
void wait_gpu(struct CUstream_st *stream);

/* Between the two, what is enqueued on the stream is recorded instead of run. */
void capture_gpu(struct CUstream_st *stream);
void *captured_gpu(struct CUstream_st *stream);
void replay_gpu(void *graph, struct CUstream_st *stream);
void release_graph_gpu(void *graph);

void draw_windows_gpu(struct CUstream_st *stream, const gpu_windows *windows, const step_clock *clock);
void add_loss_gpu(struct CUstream_st *stream, int64_t rows, double share, const double *row_loss, double *losses,
    const step_clock *clock);
void next_step_gpu(struct CUstream_st *stream, double peak, int64_t steps, step_clock *clock);
void adam_gpu(struct CUstream_st *stream, int64_t count, const step_clock *clock, float *grad, float *mean,
    float *square, float *value, uint16_t *bf16);

void rms_norm_gpu(struct CUstream_st *stream, int64_t rows, int64_t width, const float *x, const float *gain,
    dropout d, tegroup_dtype operand, void *y, float *inverse_rms);
void drop_gpu(struct CUstream_st *stream, int64_t count, dropout d, float *grad);
void rms_norm_gain_gpu(struct CUstream_st *stream, int64_t rows, int64_t width, const float *x, const float *inverse_rms,
    const float *grad_y, float *grad_gain);
void rms_norm_input_gpu(struct CUstream_st *stream, int64_t rows, int64_t width, const float *x, const float *gain,
    const float *inverse_rms, const float *grad_y, float *grad_x);
void add_gpu(struct CUstream_st *stream, int64_t count, const float *x, float *sum);
void clear_gpu(struct CUstream_st *stream, int64_t count, float *x);
void narrow_gpu(struct CUstream_st *stream, int64_t count, const float *x, tegroup_dtype operand, void *y);
void embed_gpu(struct CUstream_st *stream, int64_t count, int64_t width, const uint8_t *bytes, const float *table,
    dropout d, tegroup_dtype operand, void *embedded);
void embed_backward_gpu(struct CUstream_st *stream, int64_t count, int64_t width, const uint8_t *bytes,
    const float *grad_embedded, dropout d, float *grad_table);
void cross_entropy_gpu(struct CUstream_st *stream, int64_t rows, int64_t classes, const float *logits,
    const int32_t *target, float scale, double *row_loss, tegroup_dtype operand, void *grad_logits);

#if defined(__cplusplus)
}
#endif
