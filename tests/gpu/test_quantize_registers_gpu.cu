/* What tegroup_quantize makes in registers. Of gated activations and their gradients in blocks of 1x128: bit for bit what is made of
 * values that their own call has computed before; all copies, both types, rules with and without NaN, groups of any size, and nothing
 * else written. Of values as they lie: bit for bit what the CPU makes of them. */
#define TEGROUP_IMPLEMENTATION
#define TEGROUP_NO_CUBLASLT
#define TEGROUP_NO_SM90
#define TEGROUP_NO_PORTABLE
#define TEGROUP_NO_MOE
#include "mirror.h"
#include "numbers.h"
#include "test.h"

enum { GROUPS = 7, ROWS = 900, POISON = 0xa5 };
static const int64_t counts[GROUPS] = {129, 0, 1, 128, 300, 17, 257};

static void *room(size_t bytes, int value) {
    void *to;
    MUST(cudaMalloc(&to, bytes + 2 * GUARD_BYTES));
    MUST(cudaMemset(to, value, bytes + 2 * GUARD_BYTES));
    return (char *)to + GUARD_BYTES;
}
static void room_free(void *at) {
    if (at != NULL) MUST(cudaFree((char *)at - GUARD_BYTES));
}
static void *random_halves(rng *r, int64_t count, int odd) {
    uint16_t *values = (uint16_t *)malloc((size_t)count * 2);
    for (int64_t i = 0; i < count; i++) store(TEGROUP_DTYPE_BF16, values, i, (2 * rng_unit(r) - 1) * exp2(8 * rng_unit(r) - 4));
    for (int64_t i = 0; i < count && odd; i += 1 + rng_int(r, 0, 4000)) values[i] = rng_chance(r, 50) ? 0x7fc0 : 0xff80; /* NaN, -infinity */
    void *to = room((size_t)count * 2, 0xff);
    copy_up(to, values, (size_t)count * 2);
    free(values);
    return to;
}

typedef struct copies {
    tegroup_tensor t;
    size_t bytes[4];
} copies;

static int copies_new(copies *c, tegroup_shape rows, int64_t cols, tegroup_dtype dtype, uint32_t wanted) {
    tegroup_layout layout;
    c->t = tegroup_tensor_of(rows, cols, dtype, NULL);
    c->t.scaling = TEGROUP_SCALING_BLOCK_1X128;
    c->t.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
    if (tegroup_tensor_layout(&c->t, (tegroup_copies)wanted, &layout, NULL) != TEGROUP_OK) return 0;
    void **const at[4] = {&c->t.data, &c->t.scale_inv, &c->t.columnwise_data, &c->t.columnwise_scale_inv};
    for (int i = 0; i < 4; i++) {
        c->bytes[i] = layout.items[i].bytes;
        *at[i] = c->bytes[i] > 0 ? room(c->bytes[i], POISON) : NULL;
    }
    return 1;
}
/* Bytes that differ, guard bands included. */
static int64_t copies_differ(const copies *a, const copies *b) {
    const void *const of_a[4] = {a->t.data, a->t.scale_inv, a->t.columnwise_data, a->t.columnwise_scale_inv},
                      *const of_b[4] = {b->t.data, b->t.scale_inv, b->t.columnwise_data, b->t.columnwise_scale_inv};
    int64_t other = 0;
    for (int i = 0; i < 4; i++) {
        const size_t bytes = a->bytes[i] + 2 * GUARD_BYTES;
        if (a->bytes[i] == 0) continue;
        unsigned char *x = (unsigned char *)malloc(bytes), *y = (unsigned char *)malloc(bytes);
        MUST(cudaMemcpy(x, (const char *)of_a[i] - GUARD_BYTES, bytes, cudaMemcpyDeviceToHost));
        MUST(cudaMemcpy(y, (const char *)of_b[i] - GUARD_BYTES, bytes, cudaMemcpyDeviceToHost));
        for (size_t j = 0; j < bytes; j++) other += x[j] != y[j];
        free(x), free(y);
    }
    return other;
}
static void copies_free(copies *c) {
    void *const at[4] = {c->t.data, c->t.scale_inv, c->t.columnwise_data, c->t.columnwise_scale_inv};
    for (int i = 0; i < 4; i++) room_free(at[i]);
}

/* The activations of such kernels; the others go by the kernel for all formats. */
static int made_in_registers(tegroup_activation kind) {
    return kind == TEGROUP_ACTIVATION_SWIGLU || kind == TEGROUP_ACTIVATION_SWIGLU_CLAMPED || kind == TEGROUP_ACTIVATION_SWIGLU_LIMITED;
}

static int one(rng *r, tegroup_activation kind, int interleaved, int64_t width, int gradient, tegroup_scale_preset preset, tegroup_dtype dtype, tegroup_copies wanted,
               int odd) {
    const int64_t cols = gradient ? 2 * width : width;
    const tegroup_dtype bf16 = TEGROUP_DTYPE_BF16;
    void *sizes = room(sizeof counts, 0);
    copy_up(sizes, counts, sizeof counts);
    tegroup_shape rows = tegroup_shape_of(GROUPS, ROWS, cols, tegroup_sizes_of(sizes, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    tegroup_layout layout;
    tegroup_error error;
    tegroup_quantize_desc q, plain;
    copies made, apart;
    if (tegroup_snapshot_layout(&rows, &layout, &error) != TEGROUP_OK) return 0;
    void *snapshot = room(layout.total_bytes, 0);
    if (tegroup_shape_prepare(&rows, snapshot, layout.total_bytes, NULL, &error) != TEGROUP_OK) return 0;
    void *x = random_halves(r, ROWS * 2 * width, odd), *dy = random_halves(r, ROWS * width, odd), *between = room((size_t)(ROWS * cols) * 2, 0);
    float scales[ROWS];
    for (int i = 0; i < ROWS; i++) scales[i] = (float)rng_unit(r);
    void *row_scale = room(sizeof scales, 0);
    copy_up(row_scale, scales, sizeof scales);
    memset(&q, 0, sizeof q);
    q.struct_size = sizeof q;
    q.space = TEGROUP_SPACE_DEVICE;
    q.input = tegroup_tensor_of(rows, 2 * width, bf16, x);
    q.activation = kind;
    q.interleaved = interleaved;
    if (kind == TEGROUP_ACTIVATION_SWIGLU_CLAMPED || kind == TEGROUP_ACTIVATION_SWIGLU_LIMITED || kind == TEGROUP_ACTIVATION_SITU_GLU) {
        q.alpha = odd ? 0 : 1.25; /* 0: the kind's own */
        q.limit = odd ? 0 : 2.5;
    }
    if (odd) q.row_scale = tegroup_matrix_of(row_scale, ROWS, 1, TEGROUP_DTYPE_F32);
    if (gradient) q.grad_output = tegroup_tensor_of(rows, width, bf16, dy);
    q.rule = tegroup_scale_rule_of(preset);
    if (!copies_new(&made, rows, cols, dtype, wanted) || !copies_new(&apart, rows, cols, dtype, wanted)) return 0;
    q.output = made.t;
    tegroup_activation_desc forward;
    memset(&forward, 0, sizeof forward);
    forward.struct_size = sizeof forward;
    forward.space = TEGROUP_SPACE_DEVICE;
    forward.activation = q.activation;
    forward.interleaved = q.interleaved;
    forward.alpha = q.alpha;
    forward.limit = q.limit;
    forward.snapshot = snapshot;
    forward.input = tegroup_matrix_of(x, ROWS, 2 * width, bf16);
    forward.output = tegroup_matrix_of(between, ROWS, width, bf16);
    forward.row_scale = q.row_scale;
    tegroup_activation_backward_desc backward;
    memset(&backward, 0, sizeof backward);
    backward.struct_size = sizeof backward;
    backward.space = TEGROUP_SPACE_DEVICE;
    backward.activation = q.activation;
    backward.interleaved = q.interleaved;
    backward.alpha = q.alpha;
    backward.limit = q.limit;
    backward.snapshot = snapshot;
    backward.input = forward.input;
    backward.grad_output = tegroup_matrix_of(dy, ROWS, width, bf16);
    backward.grad_input = tegroup_matrix_of(between, ROWS, cols, bf16);
    backward.row_scale = q.row_scale;
    plain = q;
    plain.activation = TEGROUP_ACTIVATION_UNSET;
    plain.interleaved = 0;
    plain.alpha = plain.limit = 0;
    memset(&plain.row_scale, 0, sizeof plain.row_scale);
    memset(&plain.grad_output, 0, sizeof plain.grad_output);
    plain.input = tegroup_tensor_of(rows, cols, bf16, between);
    plain.output = apart.t;
    tegroup_impl_quantize_launch call = tegroup_impl_cuda_quantize_launch(&q.output);
    call.desc = q, call.copies = wanted;
    call.vectors = tegroup_impl_cuda_in_vectors(&q.input) && tegroup_impl_cuda_in_vectors(&q.grad_output);
    int right = tegroup_impl_quantizes_in_registers(&call) == (made_in_registers(kind) && (gradient || dtype == TEGROUP_DTYPE_F8E4M3));
    right &= tegroup_quantize(&q, NULL, &error) == TEGROUP_OK;
    right &= (gradient ? tegroup_activation_backward(&backward, NULL, &error) : tegroup_activation_forward(&forward, NULL, &error)) == TEGROUP_OK;
    right &= tegroup_quantize(&plain, NULL, &error) == TEGROUP_OK;
    MUST(cudaDeviceSynchronize());
    const int64_t other = copies_differ(&made, &apart);
    if (!right || other > 0)
        fprintf(stderr, "kind %d interleaved %d width %ld gradient %d preset %d type %d copies %d odd %d: %ld bytes differ %s %s\n", (int)kind, interleaved, (long)width, gradient, (int)preset,
                (int)dtype, (int)wanted, odd, (long)other, error.field ? error.field : "", error.rule ? error.rule : "");
    copies_free(&made), copies_free(&apart);
    void *const used[] = {sizes, snapshot, x, dy, between, row_scale};
    for (int i = 0; i < 6; i++) room_free(used[i]);
    return right && other == 0;
}

TEST(quantize_registers_gpu, bits_of_the_calls_apart) {
    static const int64_t widths[] = {8, 128, 136, 384, 640};
    static const tegroup_scale_preset presets[] = {TEGROUP_SCALE_TE_BLOCK, TEGROUP_SCALE_TE_BLOCK_F32, TEGROUP_SCALE_DEEPGEMM};
    static const tegroup_copies wanted[] = {TEGROUP_COPIES_BOTH, TEGROUP_COPIES_ROWWISE, TEGROUP_COPIES_COLUMNWISE};
    rng r = rng_seed(11);
    int devices = 0, ran = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return;
    for (int w = 0; w < 5; w++)
        for (int gradient = 0; gradient < 2; gradient++)
            for (int p = 0; p < 3; p++)
                for (int c = 0; c < 3; c++)
                    for (int odd = 0; odd < 2; odd++) {
                        ASSERT_TRUE(one(&r, TEGROUP_ACTIVATION_SWIGLU, 0, widths[w], gradient, presets[p], (p + c + odd) % 2 ? TEGROUP_DTYPE_F8E5M2 : TEGROUP_DTYPE_F8E4M3, wanted[c], odd));
                        ran++;
                    }
    printf("%d calls\n", ran);
}

/* Every gated kind, by halves and alternating, of widths whose halves begin at blocks and of others. */
TEST(quantize_registers_gpu, bits_of_every_kind) {
    static const int64_t widths[] = {8, 72, 128, 192, 320};
    static const tegroup_copies wanted[] = {TEGROUP_COPIES_BOTH, TEGROUP_COPIES_ROWWISE, TEGROUP_COPIES_COLUMNWISE};
    rng r = rng_seed(13);
    int devices = 0, ran = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return;
    for (int kind = TEGROUP_ACTIVATION_SWIGLU; kind <= TEGROUP_ACTIVATION_SITU_GLU; kind++)
        for (int w = 0; w < 5; w++)
            for (int gradient = 0; gradient < 2; gradient++)
                for (int interleaved = 0; interleaved < 2; interleaved++)
                    for (int odd = 0; odd < 2; odd++, ran++)
                        ASSERT_TRUE(one(&r, (tegroup_activation)kind, interleaved, widths[w], gradient, TEGROUP_SCALE_TE_BLOCK, odd ? TEGROUP_DTYPE_F8E5M2 : TEGROUP_DTYPE_F8E4M3,
                                        wanted[ran % 3], odd));
    printf("%d calls\n", ran);
}

/* A NaN that shows is its block's amax. */
TEST(quantize_registers_gpu, nan_that_shows) {
    rng r = rng_seed(12);
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return;
    for (int gradient = 0; gradient < 2; gradient++)
        for (int preset = TEGROUP_SCALE_TE_CURRENT; preset < TEGROUP_SCALE_PRESET_COUNT; preset++) {
            const tegroup_scale_rule rule = tegroup_scale_rule_of((tegroup_scale_preset)preset);
            if (!rule.nan_shows || rule.divide || rule.method == TEGROUP_SCALE_TWO_LEVEL || rule.method == TEGROUP_SCALE_GIVEN) continue;
            ASSERT_TRUE(one(&r, TEGROUP_ACTIVATION_SWIGLU, 0, 256, gradient, (tegroup_scale_preset)preset, TEGROUP_DTYPE_F8E4M3, TEGROUP_COPIES_BOTH, 1));
        }
}

/* ---- in registers ---- */

/* Values of BF16 on the CPU and on the GPU: ragged or uniform, rows further apart than they are long, or picked by an
 * index that may lead anywhere, scales packed or at strides, in parts, with a second level; one copy or both, a columnwise one as the data or transposed. Every byte of
 * codes and scales, and of what lies around them. Returns 2 where the rule does not go with the scaling. */
static int in_registers(rng *r, int64_t cols, tegroup_scaling scaling, tegroup_scale_preset preset, tegroup_dtype dtype, int odd) {
    enum { ITEMS = 4 };
    const tegroup_scaling_facts *facts = tegroup_scaling_info(scaling);
    const int by_row = scaling == TEGROUP_SCALING_ROW;
    const tegroup_copies wanted = (tegroup_copies)rng_int(r, 1, 3);
    const int columnwise = wanted & TEGROUP_COPIES_COLUMNWISE, turned = columnwise && rng_chance(r, 60), ragged = rng_chance(r, 70),
              strided = facts->block_inner > 0 && facts->block_outer == 1 && wanted == TEGROUP_COPIES_ROWWISE && rng_chance(r, 30),
              parts = !ragged && !turned && rng_chance(r, 50) ? 2 : 0, as_one = scaling == TEGROUP_SCALING_TENSOR,
              levels = scaling == TEGROUP_SCALING_NVFP4 && rng_chance(r, 50),
              words = facts->block_outer == 1 && facts->block_inner > 0 && facts->scale_dtype != TEGROUP_DTYPE_F8E4M3
                      && wanted == TEGROUP_COPIES_ROWWISE && rng_chance(r, 30);
    const tegroup_dtype narrow[2] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F8E8M0};
    const tegroup_dtype stored = words                                                      ? TEGROUP_DTYPE_I32
                                 : facts->scale_dtype == TEGROUP_DTYPE_F32 && rng_chance(r, 30) ? narrow[rng_int(r, 0, 1)]
                                                                                            : TEGROUP_DTYPE_UNSET;
    /* asks: for amax, which ROW's columns in registers do not find; apart: not in registers. */
    const int asks = by_row && columnwise && rng_chance(r, 30),
              apart = asks || (by_row && (cols > 16384 || (columnwise && stored != TEGROUP_DTYPE_UNSET)));
    const int gathers = ragged && rng_chance(r, 35);
    const int64_t slots = rng_int(r, 1, 4), tokens = ROWS / slots, outside[] = {-1, INT64_MIN, INT64_MAX, (int64_t)1 << 32, tokens * slots};
    const int64_t in_ld = cols + 8 * rng_int(r, 0, 2), out_ld = cols + 8 * rng_int(r, 0, 2), each = 2 * rng_int(r, 1, 90),
                  all = ragged ? ROWS : GROUPS * each, blocks = facts->block_inner > 0 ? (cols + facts->block_inner - 1) / facts->block_inner : 1;
    int64_t sizes[GROUPS], index[ROWS];
    tegroup_error error;
    tegroup_layout layout;
    tegroup_quantize_desc on[2];
    alignas(TEGROUP_ALIGNMENT) char snapshot[4096];
    char *made[ITEMS][2] = {{NULL, NULL}, {NULL, NULL}, {NULL, NULL}, {NULL, NULL}};
    float numbers[2][2 * GROUPS];
    int64_t left = ROWS;
    for (int g = 0; g < GROUPS; g++) {
        sizes[g] = rng_chance(r, 20) ? counts[g] : rng_int(r, -1, 120);
        if (sizes[g] > left) sizes[g] = left;
        if (sizes[g] > 0) left -= sizes[g];
    }
    for (int64_t i = 0; i < ROWS; i++) index[i] = rng_chance(r, 85) ? rng_int(r, 0, tokens * slots - 1) : outside[rng_int(r, 0, 4)];
    uint16_t *values = (uint16_t *)malloc((size_t)(all * in_ld) * 2);
    for (int64_t i = 0; i < all * in_ld; i++) store(TEGROUP_DTYPE_BF16, values, i, (2 * rng_unit(r) - 1) * exp2(16 * rng_unit(r) - 8));
    for (int64_t i = 0; i < all * in_ld && odd; i += 1 + rng_int(r, 0, 4000)) values[i] = rng_chance(r, 50) ? 0x7fc0 : 0xff80;
    for (int64_t i = 0; i < all && odd; i += 1 + rng_int(r, 0, 30)) memset(values + i * in_ld, 0, (size_t)cols * 2);
    int right = 1, goes = 1, built = 0;
    size_t bytes[ITEMS] = {0, 0, 0, 0};
    for (int gpu = 0; gpu < 2 && right && goes; gpu++) {
        const tegroup_space space = gpu ? TEGROUP_SPACE_DEVICE : TEGROUP_SPACE_HOST;
        tegroup_quantize_desc *q = &on[gpu];
        void *in = values, *where = snapshot, *counted = sizes, *of_groups = numbers[0], *picks = index;
        memset(numbers[gpu], 0xff, sizeof numbers[gpu]);
        if (gpu) {
            in = room((size_t)(all * in_ld) * 2, 0), where = room(sizeof snapshot, 0), counted = room(sizeof sizes, 0), of_groups = room(sizeof numbers[0], 0xff);
            picks = room(sizeof index, 0);
            copy_up(in, values, (size_t)(all * in_ld) * 2), copy_up(counted, sizes, sizeof sizes), copy_up(picks, index, sizeof index);
        }
        memset(q, 0, sizeof *q);
        q->struct_size = sizeof *q;
        q->space = space;
        if (ragged) {
            tegroup_shape rows = tegroup_shape_of(GROUPS, ROWS, cols, tegroup_sizes_of(counted, TEGROUP_DTYPE_I64, space));
            right &= tegroup_shape_prepare(&rows, where, sizeof snapshot, NULL, &error) == TEGROUP_OK;
            q->input = tegroup_tensor_of(rows, cols, TEGROUP_DTYPE_BF16, in);
        } else q->input = tegroup_tensor_uniform(GROUPS, each, cols, TEGROUP_DTYPE_BF16, in);
        q->output = q->input;
        q->output.data = NULL;
        if (gathers) q->gather_input.slot_of_row = (const int64_t *)picks, q->gather_input.rows = tokens, q->gather_input.slots = slots;
        q->input.ld = in_ld, q->output.ld = out_ld;
        q->output.dtype = dtype, q->output.scaling = scaling, q->output.scale_parts = parts;
        q->output.columnwise_order = turned ? TEGROUP_COLUMNWISE_TRANSPOSED : TEGROUP_COLUMNWISE_AS_DATA;
        q->output.scale_dtype = stored;
        if (strided) q->output.scale_outer_stride = blocks + 1, q->output.scale_inner_stride = 1;
        if (levels || as_one || asks) q->output.amax = (float *)of_groups;
        if (levels) q->output.global_scale_inv = (float *)of_groups + GROUPS;
        q->rule = tegroup_scale_rule_of(preset);
        right &= tegroup_tensor_layout(&q->output, wanted, &layout, &error) == TEGROUP_OK;
        void **const at[ITEMS] = {&q->output.data, &q->output.scale_inv, &q->output.columnwise_data, &q->output.columnwise_scale_inv};
        for (int i = 0; i < ITEMS && right; i++) {
            bytes[i] = layout.items[i].bytes;
            if (bytes[i] == 0) continue;
            made[i][gpu] = gpu ? (char *)room(bytes[i], POISON) - GUARD_BYTES : (char *)malloc(bytes[i] + 2 * GUARD_BYTES);
            if (!gpu) memset(made[i][gpu], POISON, bytes[i] + 2 * GUARD_BYTES);
            *at[i] = made[i][gpu] + GUARD_BYTES;
        }
        if (!right) break;
        built = gpu + 1;
        if (gpu) {
            tegroup_impl_quantize_launch call = tegroup_impl_cuda_quantize_launch(&q->output);
            call.desc = *q, call.plain = !gathers, call.vectors = tegroup_impl_cuda_in_vectors(&q->input);
            call.copies = wanted, call.raises = asks;
            right &= tegroup_impl_quantizes_in_registers(&call) == !apart;
        }
        const tegroup_status status = tegroup_quantize(q, NULL, &error);
        goes = gpu || status == TEGROUP_OK; /* a rule may be of other scales */
        right &= !gpu || status == TEGROUP_OK;
        if (gpu) {
            MUST(cudaDeviceSynchronize());
            MUST(cudaMemcpy(numbers[1], of_groups, sizeof numbers[1], cudaMemcpyDeviceToHost));
            room_free(in), room_free(where), room_free(counted), room_free(of_groups), room_free(picks);
        }
    }
    int64_t other[ITEMS] = {0, 0, 0, 0}, all_other = 0;
    for (int i = 0; i < ITEMS; i++) {
        const size_t whole = bytes[i] + 2 * GUARD_BYTES;
        if (built == 2 && bytes[i] > 0) {
            char *of_gpu = (char *)malloc(whole);
            MUST(cudaMemcpy(of_gpu, made[i][1], whole, cudaMemcpyDeviceToHost));
            for (size_t j = 0; j < whole; j++) other[i] += of_gpu[j] != made[i][0][j];
            free(of_gpu);
        }
        all_other += other[i];
        MUST(cudaFree(made[i][1]));
        free(made[i][0]);
    }
    if (built == 2) all_other += memcmp(numbers[0], numbers[1], sizeof numbers[0]) != 0;
    free(values);
    if (!right || all_other > 0)
        fprintf(stderr, "scaling %d, copies %d, turned %d, gathers %d, %ld columns, ld %ld and %ld, ragged %d, strided %d, parts %d, levels %d, "
                        "scales of type %d, preset %d, type %d, odd %d: %ld, %ld, %ld, %ld bytes differ %s %s\n",
                (int)scaling, (int)wanted, turned, gathers, (long)cols, (long)in_ld, (long)out_ld, ragged, strided, parts, levels, (int)stored, (int)preset, (int)dtype, odd, (long)other[0], (long)other[1],
                (long)other[2], (long)other[3], error.field ? error.field : "", error.rule ? error.rule : "");
    return !goes ? 2 : right && all_other == 0;
}

static void all_in_registers(tegroup_scaling scaling, tegroup_dtype first, tegroup_dtype second, int least) {
    static const int64_t widths[] = {8, 120, 128, 136, 248, 256, 264, 512, 640, 768, 1016, 1024, 1152, 1536, 2048, 2056, 2880, 3072, 7168, 16384, 16392};
    rng r = rng_seed(13 + (uint64_t)scaling);
    int devices = 0, ran = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return;
    const size_t count = sizeof widths / sizeof *widths - (scaling != TEGROUP_SCALING_ROW); /* the last is for ROW's limit */
    for (size_t w = 0; w < count; w++)
        for (int preset = 1; preset < TEGROUP_SCALE_PRESET_COUNT; preset++) {
            const tegroup_scale_rule rule = tegroup_scale_rule_of((tegroup_scale_preset)preset);
            if (rule.divide || rule.method == TEGROUP_SCALE_GIVEN) continue;
            const int64_t cols = rng_chance(&r, 60) ? widths[w] : 8 * rng_int(&r, 1, 400);
            const int result = in_registers(&r, cols, scaling, (tegroup_scale_preset)preset, preset % 2 ? first : second, (int)w % 2);
            ASSERT_TRUE(result != 0);
            ran += result == 1;
        }
    printf("%d calls\n", ran);
    ASSERT_GE(ran, least);
}

/* The last tile of ROW's columns is found by a count of 16 bits. */
TEST(quantize_registers_gpu, rows_that_are_counted) {
    for (int more = 0; more < 2; more++) {
        const tegroup_tensor in = tegroup_tensor_uniform(1, 65535 * 128 + more, 128, TEGROUP_DTYPE_BF16, NULL);
        tegroup_tensor out = in;
        out.dtype = TEGROUP_DTYPE_F8E4M3, out.scaling = TEGROUP_SCALING_ROW;
        tegroup_impl_quantize_launch call = tegroup_impl_cuda_quantize_launch(&out);
        call.desc.input = in, call.plain = call.vectors = 1;
        for (int copies = 1; copies < 4; copies++) {
            call.copies = copies;
            ASSERT_EQ(tegroup_impl_quantizes_in_registers(&call), !more || copies == TEGROUP_COPIES_ROWWISE);
        }
    }
}

#define IN_REGISTERS(name, scaling, first, second, least)                                                              \
    TEST(quantize_registers_gpu, in_registers_##name) {                                                                \
        all_in_registers(TEGROUP_SCALING_##scaling, TEGROUP_DTYPE_##first, TEGROUP_DTYPE_##second, least);             \
    }
IN_REGISTERS(1x128, BLOCK_1X128, F8E4M3, F8E5M2, 100)
IN_REGISTERS(128x128, BLOCK_128X128, F8E4M3, F8E5M2, 100)
IN_REGISTERS(row, ROW, F8E4M3, F8E5M2, 100)
IN_REGISTERS(tensor, TENSOR, F8E4M3, F8E5M2, 100)
IN_REGISTERS(mxfp8, MXFP8, F8E4M3, F8E5M2, 19)
IN_REGISTERS(mxfp4, MXFP4, F4E2M1, F4E2M1, 19)
IN_REGISTERS(nvfp4, NVFP4, F4E2M1, F4E2M1, 19)

/* Of all floats, eight at a time, one eight in `step`: how many eights have codes of E2M1 that are not those of one float
 * after another. */
static __global__ void e2m1_wrong(uint64_t step, unsigned long long *wrong) {
    const uint64_t thread = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x, threads = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t eight = thread * step; eight < (uint64_t)1 << 29; eight += threads * step) {
        float x[8];
        uint32_t expected = 0;
        for (int i = 0; i < 8; i++) { /* times 1, as a NaN is a result's */
            x[i] = tegroup_impl_product_f32(__uint_as_float((uint32_t)(eight * 8 + i)), 1.0f);
            expected |= (uint32_t)tegroup_impl_f4e2m1_of_f32(x[i]) << 4 * i;
        }
        if (tegroup_impl_eight_codes<4>(TEGROUP_DTYPE_F4E2M1, x).x != expected) atomicAdd(wrong, 1ull);
    }
}

TEST(quantize_registers_gpu, e2m1_of_every_float) {
    unsigned long long *wrong, found;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return;
    MUST(cudaMalloc((void **)&wrong, sizeof *wrong));
    MUST(cudaMemset(wrong, 0, sizeof *wrong));
    e2m1_wrong<<<256, 256>>>((uint64_t)(((int64_t)1 << 29) / scaled((int64_t)1 << 29) | 1), wrong);
    MUST(cudaGetLastError());
    MUST(cudaMemcpy(&found, wrong, sizeof found, cudaMemcpyDeviceToHost));
    MUST(cudaFree(wrong));
    ASSERT_EQ(found, 0);
}

TEST_MAIN()
