/* train_moe's own element-wise arithmetic: what a model needs around the products and the MoE operations.
 *
 * Included once with REAL float and once with REAL double; FN(name) adds the type's suffix. <tgmath.h> picks expf or
 * exp. Loops over rows run in parallel; sums over rows run in order, so that no result depends on the number of
 * threads. What a product will read is stored in the type of its operands: REAL, or BF16. */

static inline void FN(put)(tegroup_dtype operand, void *to, int64_t i, REAL x)
{
    if (operand == TEGROUP_DTYPE_BF16) ((uint16_t *)to)[i] = bf16_of((float)x);
    else ((REAL *)to)[i] = x;
}

static void FN(narrow)(int64_t count, const REAL *x, tegroup_dtype operand, void *y)
{
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) FN(put)(operand, y, i, x[i]);
}

/* y = x * gain / rms(x), row by row, but for what is dropped; 1 / rms is kept for the gradient. */
static void FN(rms_norm)(int64_t rows, int64_t width, const REAL *x, const REAL *gain, dropout d, tegroup_dtype operand,
    void *y, REAL *inverse_rms)
{
    PARALLEL_FOR
    for (int64_t r = 0; r < rows; r++) {
        const REAL *in = x + r * width;
        REAL squares = 0;
        for (int64_t i = 0; i < width; i++) squares += in[i] * in[i];
        inverse_rms[r] = 1 / sqrt(squares / (REAL)width + (REAL)1e-6);
        for (int64_t i = 0; i < width; i++) {
            const int64_t at = r * width + i;
            FN(put)(operand, y, at, in[i] * inverse_rms[r] * gain[i] * (REAL)kept(d, at));
        }
    }
}

/* A gradient, where the values were dropped. */
static void FN(drop)(int64_t count, dropout d, REAL *grad)
{
    if (d.rate == 0) return;
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) grad[i] *= (REAL)kept(d, i);
}

/* grad_gain += the gradient with respect to gain. */
static void FN(rms_norm_gain)(int64_t rows, int64_t width, const REAL *x, const REAL *inverse_rms, const REAL *grad_y,
    REAL *grad_gain)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++)
            grad_gain[i] += grad_y[r * width + i] * x[r * width + i] * inverse_rms[r];
}

/* grad_x += the gradient with respect to x: the norm sits on a side branch of a residual stream. */
static void FN(rms_norm_input)(int64_t rows, int64_t width, const REAL *x, const REAL *gain, const REAL *inverse_rms,
    const REAL *grad_y, REAL *grad_x)
{
    PARALLEL_FOR
    for (int64_t r = 0; r < rows; r++) {
        const REAL *in = x + r * width, *grad = grad_y + r * width;
        const REAL s = inverse_rms[r];
        REAL along = 0; /* how much of the gradient only rescales the row, which the norm undoes */
        for (int64_t i = 0; i < width; i++) along += grad[i] * gain[i] * in[i];
        along *= s * s * s / (REAL)width;
        for (int64_t i = 0; i < width; i++) grad_x[r * width + i] += s * gain[i] * grad[i] - along * in[i];
    }
}

static void FN(add)(int64_t count, const REAL *x, REAL *sum)
{
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) sum[i] += x[i];
}

/* embedded[i] = table[bytes[i]]: a window's rows lie side by side and so form its input. Bytes are dropped whole. */
static void FN(embed)(int64_t count, int64_t width, const uint8_t *bytes, const REAL *table, dropout d,
    tegroup_dtype operand, void *embedded)
{
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) {
        const REAL factor = (REAL)kept(d, i);
        for (int64_t j = 0; j < width; j++)
            FN(put)(operand, embedded, i * width + j, table[bytes[i] * width + j] * factor);
    }
}

static void FN(embed_backward)(int64_t count, int64_t width, const uint8_t *bytes, const REAL *grad_embedded, dropout d,
    REAL *grad_table)
{
    for (int64_t i = 0; i < count; i++) {
        const REAL factor = (REAL)kept(d, i);
        for (int64_t j = 0; j < width; j++) grad_table[bytes[i] * width + j] += grad_embedded[i * width + j] * factor;
    }
}

/* row_loss[r] = -log softmax(logits[r])[target[r]]; grad_logits = scale * its gradient, unless grad_logits is NULL.
 * A negative target is a row that does not count. */
static void FN(cross_entropy)(int64_t rows, int64_t classes, const REAL *logits, const int32_t *target, REAL scale,
    double *row_loss, tegroup_dtype operand, void *grad_logits)
{
    PARALLEL_FOR
    for (int64_t r = 0; r < rows; r++) {
        const REAL *row = logits + r * classes;
        REAL odds[BYTE_VALUES], largest = row[0], sum = 0;
        for (int64_t c = 1; c < classes; c++) largest = row[c] > largest ? row[c] : largest;
        for (int64_t c = 0; c < classes; c++) sum += odds[c] = exp(row[c] - largest);
        const REAL share = target[r] < 0 ? 0 : scale / sum;
        row_loss[r] = target[r] < 0 ? 0 : (double)(log(sum) - (row[target[r]] - largest));
        for (int64_t c = 0; grad_logits && c < classes; c++)
            FN(put)(operand, grad_logits, r * classes + c, odds[c] * share - (c == target[r] ? scale : 0));
    }
}

/* Uniform values of the given spread (standard deviation), from a generator of its own for each tensor. */
static void FN(fill_random)(int64_t count, double spread, uint64_t seed, REAL *values)
{
    for (int64_t i = 0; i < count; i++) values[i] = (REAL)(spread * sqrt(12.0) * (random_unit(&seed) - 0.5));
}

static void FN(clear)(int64_t count, REAL *x) { memset(x, 0, (size_t)count * sizeof(REAL)); }

static void FN(fill)(int64_t count, double value, REAL *values)
{
    for (int64_t i = 0; i < count; i++) values[i] = (REAL)value;
}
