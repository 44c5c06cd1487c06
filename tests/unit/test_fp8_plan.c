/* Plans of SM90's products of FP8, which are plain arithmetic: asked of a Hopper GPU that need not be there. What they take and refuse,
 * their tiles and workspace, and where their kernels look for scales. */
#define TEGROUP_IMPLEMENTATION
#include "quantised.h"
#include "test.h"

enum { BACKENDS = TEGROUP_BACKEND_COUNT - 1 };

static tegroup_target hopper(void) {
    tegroup_target target;
    memset(&target, 0, sizeof target);
    target.struct_size = sizeof target;
    target.sm = 90;
    target.threads = 1;
    target.built = 0xffffffffu;
    return target;
}

/* A product without data. */
static tegroup_gemm_desc product(tegroup_op op, int32_t groups, int64_t rows, int64_t n, int64_t k, tegroup_scaling a, tegroup_scaling b) {
    const tegroup_sizes sizes = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
    const tegroup_tensor x = tegroup_tensor_of(tegroup_shape_of(groups, rows, k, sizes), k, TEGROUP_DTYPE_F8E4M3, NULL);
    const tegroup_tensor y = tegroup_tensor_of(tegroup_shape_of(groups, rows, n, sizes), n, TEGROUP_DTYPE_F8E4M3, NULL);
    const tegroup_tensor w = tegroup_tensor_uniform(groups, n, k, TEGROUP_DTYPE_F8E4M3, NULL);
    tegroup_gemm_desc d;
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.op = op;
    d.space = TEGROUP_SPACE_DEVICE;
    d.a = op == TEGROUP_OP_FORWARD ? x : y;
    d.b = op == TEGROUP_OP_WGRAD ? x : w;
    d.d = op == TEGROUP_OP_FORWARD ? y : op == TEGROUP_OP_DGRAD ? x : w;
    d.d.dtype = TEGROUP_DTYPE_BF16;
    d.a.scaling = a;
    d.b.scaling = b;
    d.a.columnwise_order = d.b.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
    return d;
}

static tegroup_verdict asked_of(const tegroup_gemm_desc *d, int32_t memory_bits) {
    tegroup_target target = hopper();
    target.memory_bits = memory_bits;
    tegroup_verdict v[BACKENDS], none;
    tegroup_error error;
    memset(&none, 0, sizeof none);
    if (tegroup_explain(d, &target, v, &error) != TEGROUP_OK) {
        fprintf(stderr, "%s %s\n", error.field, error.rule);
        return none;
    }
    for (int i = 0; i < BACKENDS; i++)
        if (v[i].backend == TEGROUP_BACKEND_SM90) return v[i];
    return none;
}
static tegroup_verdict asked(const tegroup_gemm_desc *d) { return asked_of(d, 0); }

/* Every pair of the four scalings of F32, of each type, into each type of result; chosen before PORTABLE. */
TEST(fp8_plan, takes_every_pair) {
    static const tegroup_dtype types[] = {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2}, outs[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32};
    for (int op = 1; op <= 3; op++)
        for (int a = TEGROUP_SCALING_TENSOR; a <= TEGROUP_SCALING_BLOCK_128X128; a++)
            for (int b = TEGROUP_SCALING_TENSOR; b <= TEGROUP_SCALING_BLOCK_128X128; b++)
                for (int i = 0; i < 12; i++) {
                    tegroup_gemm_desc d = product((tegroup_op)op, 4, 4096, 512, 768, (tegroup_scaling)a, (tegroup_scaling)b);
                    d.a.dtype = types[i % 2];
                    d.b.dtype = types[i / 2 % 2];
                    d.d.dtype = outs[i / 4];
                    const tegroup_verdict v = asked(&d);
                    ASSERT_EQ(v.status, TEGROUP_OK);
                    ASSERT_EQ(v.chosen, 1);
                    ASSERT_EQ(v.tile_k, 128);
                    ASSERT_TRUE(v.tile_why != NULL);
                    ASSERT_EQ(v.workspace_bytes, op == TEGROUP_OP_WGRAD ? 4 * 256 + 4 * 64 : 0); /* two tensor maps of 128 bytes a group, and places of two tensors' scales */
                }
}

TEST(fp8_plan, tiles) {
    tegroup_gemm_desc d = product(TEGROUP_OP_FORWARD, 32, 32768, 4096, 7168, TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128);
    ASSERT_EQ(asked(&d).tile_m, 128);
    ASSERT_TRUE(strstr(asked(&d).tile_why, "narrow") != NULL); /* 4,096 columns are 20 tiles of 192 and two of 128 */
    d = product(TEGROUP_OP_FORWARD, 32, 32768, 5760, 7168, TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128);
    ASSERT_EQ(asked(&d).tile_m, 128);
    ASSERT_TRUE(strstr(asked(&d).tile_why, "narrow") == NULL); /* 5,760 are 30 */
    d = product(TEGROUP_OP_DGRAD, 32, 32768, 7168, 4096, TEGROUP_SCALING_ROW, TEGROUP_SCALING_ROW);
    ASSERT_TRUE(strstr(asked(&d).tile_why, "narrow") != NULL);
    d.options.expected_rows = 256; /* the buffer is larger than what is expected in it */
    ASSERT_EQ(asked(&d).tile_m, 64);
    d = product(TEGROUP_OP_DGRAD, 32, 1024, 4096, 7168, TEGROUP_SCALING_ROW, TEGROUP_SCALING_ROW);
    ASSERT_EQ(asked(&d).tile_m, 64);
}

/* Fast accumulation has kernels of its own where scales are for all of k, and changes no other plan's. */
TEST(fp8_plan, fast_accumulation) {
    for (int op = 1; op <= 3; op++)
        for (int a = TEGROUP_SCALING_TENSOR; a <= TEGROUP_SCALING_BLOCK_128X128; a++)
            for (int b = TEGROUP_SCALING_TENSOR; b <= TEGROUP_SCALING_BLOCK_128X128; b++)
                for (int few = 0; few < 2; few++) {
                    const tegroup_target target = hopper();
                    tegroup_plan plain, fast;
                    tegroup_error error;
                    tegroup_gemm_desc d = product((tegroup_op)op, 32, few ? 512 : 32768, 4096, 7168, (tegroup_scaling)a, (tegroup_scaling)b);
                    const int own = op != TEGROUP_OP_WGRAD && a <= TEGROUP_SCALING_ROW && b <= TEGROUP_SCALING_ROW;
                    d.options.backend = TEGROUP_BACKEND_SM90;
                    ASSERT_EQ(tegroup_plan_make(&d, &target, &plain, &error), TEGROUP_OK);
                    d.options.compute = TEGROUP_COMPUTE_FAST_ACCUM;
                    ASSERT_EQ(tegroup_plan_make(&d, &target, &fast, &error), TEGROUP_OK);
                    ASSERT_NE(plain.numerics_id, fast.numerics_id);
                    ASSERT_EQ(strstr(asked(&d).tile_why, "sums stay in the tensor cores") != NULL, own);
                    ASSERT_EQ(plain.algorithm[TEGROUP_IMPL_PLANNED_ROW] != fast.algorithm[TEGROUP_IMPL_PLANNED_ROW], own);
                    ASSERT_EQ(fast.tile_m, plain.tile_m);
                    ASSERT_EQ(fast.tile_n, plain.tile_n);
                    ASSERT_EQ(tegroup_impl_sm90_fp8_runs(&fast.problem, TEGROUP_IMPL_SM90_FP8_FAST_128X192), own);
                    ASSERT_EQ(tegroup_impl_sm90_fp8_runs(&plain.problem, TEGROUP_IMPL_SM90_FP8_FAST_128X192), 0);
                    ASSERT_EQ(tegroup_impl_sm90_fp8_runs(&fast.problem, TEGROUP_IMPL_SM90_FP8_128X192), op != TEGROUP_OP_WGRAD && !own);
                }
}

/* A row's bits hang on formats and widths, not on how many rows there are; other scalings are other numbers. */
TEST(fp8_plan, numerics) {
    const tegroup_target target = hopper();
    tegroup_plan few, many, tensor;
    tegroup_error error;
    tegroup_gemm_desc d = product(TEGROUP_OP_FORWARD, 32, 256, 512, 768, TEGROUP_SCALING_ROW, TEGROUP_SCALING_ROW);
    d.options.backend = TEGROUP_BACKEND_SM90;
    ASSERT_EQ(tegroup_plan_make(&d, &target, &few, &error), TEGROUP_OK);
    d.a.shape.rows = d.d.shape.rows = 65536;
    ASSERT_EQ(tegroup_plan_make(&d, &target, &many, &error), TEGROUP_OK);
    d.a.scaling = TEGROUP_SCALING_TENSOR;
    ASSERT_EQ(tegroup_plan_make(&d, &target, &tensor, &error), TEGROUP_OK);
    ASSERT_NE(few.tile_m, many.tile_m);
    ASSERT_EQ(few.numerics_id, many.numerics_id);
    ASSERT_NE(many.numerics_id, tensor.numerics_id);
}

/* What is not built is refused by name, and PORTABLE runs it. */
TEST(fp8_plan, refusals) {
    const struct { const char *field; } wanted[] = {{"a.scaling"}, {"b.scaling"}, {"b.columnwise_order"}, {"a.columnwise_order"}, {"a.scale_dtype"}, {"b.scale_dtype"},
                                                    {"b.scale_parts"}, {"a.ld"}, {"options.data_alignment_bytes"}};
    for (int i = 0; i < (int)(sizeof wanted / sizeof *wanted); i++) {
        const tegroup_op op = i == 2 ? TEGROUP_OP_DGRAD : i == 3 ? TEGROUP_OP_WGRAD : TEGROUP_OP_FORWARD;
        tegroup_gemm_desc d = product(op, 4, 4096, 512, 768, TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_1X128);
        tegroup_target target = hopper();
        tegroup_verdict v[BACKENDS];
        tegroup_error error;
        ASSERT_EQ(asked(&d).status, TEGROUP_OK);
        if (i == 0) d.a.scaling = d.b.scaling = TEGROUP_SCALING_BLOCK_32X32;
        if (i == 1) d.b.scaling = TEGROUP_SCALING_BLOCK_32X32;
        if (i == 2) d.b.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA;
        if (i == 3) d.a.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA;
        if (i == 4) d.a.scale_dtype = TEGROUP_DTYPE_BF16;
        if (i == 5) d.b.scale_dtype = TEGROUP_DTYPE_F8E8M0;
        if (i == 6) d.b.scale_parts = 2;
        if (i == 7) d.a.ld = 770;
        if (i == 8) d.options.data_alignment_bytes = 2;
        ASSERT_EQ(tegroup_explain(&d, &target, v, &error), TEGROUP_OK);
        int sm90 = 0, others = 0;
        for (int b = 0; b < BACKENDS; b++) {
            if (v[b].backend == TEGROUP_BACKEND_PORTABLE) others = v[b].chosen;
            if (v[b].backend != TEGROUP_BACKEND_SM90) continue;
            sm90 = 1;
            ASSERT_EQ(v[b].status, TEGROUP_ERROR_UNSUPPORTED);
            ASSERT_STREQ(wanted[i].field, v[b].field);
        }
        ASSERT_TRUE(sm90);
        ASSERT_TRUE(others);
    }
    /* A dgrad reads one copy of the weights alone, and a forward product neither of these. */
    tegroup_gemm_desc d = product(TEGROUP_OP_DGRAD, 4, 4096, 512, 768, TEGROUP_SCALING_ROW, TEGROUP_SCALING_ROW);
    d.a.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA;
    ASSERT_EQ(asked(&d).status, TEGROUP_OK);
    d = product(TEGROUP_OP_FORWARD, 4, 4096, 512, 768, TEGROUP_SCALING_ROW, TEGROUP_SCALING_ROW);
    d.a.columnwise_order = d.b.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA;
    ASSERT_EQ(asked(&d).status, TEGROUP_OK);
}

/* The bias gradient of quantised rows needs no backend but this one. */
TEST(fp8_plan, bias_gradient_alone) {
    tegroup_gemm_desc d = product(TEGROUP_OP_WGRAD, 4, 4096, 512, 768, TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_1X128);
    tegroup_target target = hopper();
    tegroup_plan plan;
    tegroup_error error;
    d.bias = tegroup_tensor_uniform(4, 1, 512, TEGROUP_DTYPE_F32, NULL);
    target.built = 1u << TEGROUP_BACKEND_SM90;
    ASSERT_EQ(tegroup_plan_make(&d, &target, &plan, &error), TEGROUP_OK);
    ASSERT_EQ(plan.backend, TEGROUP_BACKEND_SM90);
}

/* Times seen in training steps on an H100 (docs/lab/fp8.md), in us: explain's are within a quarter of them, and it knows which plan is
 * the faster one, quantise counted. */
TEST(fp8_plan, whether_bf16_is_faster) {
    static const struct { tegroup_op op; int32_t groups; int64_t rows, n, k; double fp8, bf16; } seen[] = {
        {TEGROUP_OP_FORWARD, 32, 32768, 4096, 7168, 1854, 2739}, {TEGROUP_OP_FORWARD, 32, 32768, 7168, 2048, 1079, 1353},
        {TEGROUP_OP_DGRAD, 32, 32768, 4096, 7168, 1829, 2860},   {TEGROUP_OP_WGRAD, 32, 32768, 4096, 7168, 3757, 3127},
        {TEGROUP_OP_WGRAD, 32, 32768, 7168, 2048, 1754, 1568},   {TEGROUP_OP_WGRAD, 128, 65536, 1536, 2048, 1052, 988},
        {TEGROUP_OP_WGRAD, 128, 65536, 2048, 768, 493, 457},     {TEGROUP_OP_FORWARD, 128, 65536, 1536, 2048, 525, 639}};
    for (int i = 0; i < (int)(sizeof seen / sizeof *seen); i++) {
        tegroup_gemm_desc d = product(seen[i].op, seen[i].groups, seen[i].rows, seen[i].n, seen[i].k, TEGROUP_SCALING_BLOCK_1X128,
                                      seen[i].op == TEGROUP_OP_WGRAD ? TEGROUP_SCALING_BLOCK_1X128 : TEGROUP_SCALING_BLOCK_128X128);
        if (seen[i].op == TEGROUP_OP_WGRAD) d.d.dtype = TEGROUP_DTYPE_F32;
        const double rows = (double)seen[i].rows, of_rows = seen[i].op == TEGROUP_OP_WGRAD ? (double)(seen[i].n + seen[i].k) : seen[i].op == TEGROUP_OP_FORWARD ? (double)seen[i].k : (double)seen[i].n;
        const double least = rows * of_rows * 3 / 3.35e6, most = rows * of_rows * 3 / 1.2e6; /* to quantise: at the data sheet's rate, and at a third of it */
        const tegroup_verdict v = asked(&d);
        char text[400];
        ASSERT_TRUE(fabs(v.bf16_us / seen[i].bf16 - 1) < 0.25);
        ASSERT_GT(v.quantised_us, seen[i].fp8 * 0.75 + least);
        ASSERT_LT(v.quantised_us, seen[i].fp8 * 1.25 + most);
        const int slower = seen[i].fp8 + rows * of_rows * 3 / 2e6 > seen[i].bf16; /* 2 TB/s were seen */
        ASSERT_EQ(v.bf16_us < v.quantised_us, slower);
        tegroup_verdict_text(&v, text, sizeof text);
        ASSERT_TRUE(strstr(text, slower ? "BF16 is faster" : "faster than BF16") != NULL);
    }
    /* One copy of rows is quantised in less time than two: what was seen is within a quarter of it. */
    tegroup_gemm_desc rowwise = product(TEGROUP_OP_FORWARD, 32, 32768, 4096, 7168, TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128);
    const double both_us = asked(&rowwise).quantised_us, bf16_us = asked(&rowwise).bf16_us;
    rowwise.a.columnwise_order = TEGROUP_COLUMNWISE_BF16;
    ASSERT_TRUE(fabs((asked(&rowwise).quantised_us - (both_us - 32768.0 * 7168 * 3 / 1.7e6)) / 282 - 1) < 0.25);
    ASSERT_EQ(asked(&rowwise).bf16_us, bf16_us);
    /* What is decoded is multiplied as BF16 is: it is the faster one only where rows are few, and weights take half of the bytes. */
    tegroup_gemm_desc d = product(TEGROUP_OP_FORWARD, 32, 131072, 4096, 7168, TEGROUP_SCALING_MXFP8, TEGROUP_SCALING_MXFP8);
    ASSERT_GT(asked(&d).quantised_us, asked(&d).bf16_us + 32.0 * 4096 * 7168 * 3 / 3.35e6);
    d = product(TEGROUP_OP_FORWARD, 32, 32768, 4096, 7168, TEGROUP_SCALING_MXFP8, TEGROUP_SCALING_MXFP8);
    ASSERT_GT(asked(&d).quantised_us, asked(&d).bf16_us + 32768.0 * 7168 * 3 / 3.35e6);
    d = product(TEGROUP_OP_FORWARD, 32, 256, 4096, 7168, TEGROUP_SCALING_MXFP8, TEGROUP_SCALING_MXFP8);
    ASSERT_LT(asked(&d).quantised_us, 0.8 * asked(&d).bf16_us);
    /* Few rows: weights of half the bytes, and little to quantise. */
    d = product(TEGROUP_OP_FORWARD, 32, 256, 4096, 7168, TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128);
    ASSERT_LT(asked(&d).quantised_us, 0.6 * asked(&d).bf16_us);
    d.a.dtype = d.b.dtype = TEGROUP_DTYPE_BF16;
    d.a.scaling = d.b.scaling = TEGROUP_SCALING_NONE;
    d.a.columnwise_order = d.b.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA;
    ASSERT_EQ(asked(&d).status, TEGROUP_OK);
    ASSERT_EQ(asked(&d).chosen, 1);
    ASSERT_EQ(asked(&d).quantised_us, 0);
    ASSERT_EQ(asked(&d).bf16_us, 0);
}

/* The forward and dgrad of a grouped MLP whose weight gradients are of BF16, as a step of bench_step.cu has them: d wide, h
 * between. What was seen is BF16's time of the step over that of mixed, on an H200 and on an H100 (docs/lab/fp8.md, even
 * groups): explain is on the side of the faster one, and says by how much to within a tenth. */
TEST(fp8_plan, whether_a_mixed_step_is_faster) {
    static const struct { int32_t groups; int64_t rows, d, h; double h200, h100; } seen[] = {
        {2, 32768, 7168, 2048, 1.153, 1.153}, {8, 32768, 7168, 2048, 1.146, 1.122},  {16, 32768, 7168, 2048, 1.157, 1.134}, {32, 32768, 7168, 2048, 1.148, 1.135},
        {8, 16384, 4096, 14336, 1.188, 1.197}, {128, 65536, 2048, 768, 0.925, 0.959}, {32, 16384, 2880, 2880, 1.081, 1.044}, {48, 32768, 7168, 2048, 1.170, 1.114}};
    for (int i = 0; i < (int)(sizeof seen / sizeof *seen); i++)
        for (int card = 0; card < 2; card++) {
            const int64_t d = seen[i].d, h = seen[i].h, sides[4][2] = {{2 * h, d}, {d, h}, {d, h}, {2 * h, d}};
            const double step = card ? seen[i].h100 : seen[i].h200;
            double bf16 = 0, mixed = 0, wgrad = 0;
            for (int j = 0; j < 4; j++) {
                tegroup_gemm_desc g = product(j < 2 ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD, seen[i].groups, seen[i].rows, sides[j][0], sides[j][1], TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128);
                g.a.columnwise_order = TEGROUP_COLUMNWISE_BF16;
                const tegroup_verdict v = asked_of(&g, card ? 5120 : 6016);
                ASSERT_EQ(v.status, TEGROUP_OK);
                bf16 += v.bf16_us, mixed += v.quantised_us;
                g = product(TEGROUP_OP_WGRAD, seen[i].groups, seen[i].rows, sides[j][0], sides[j][1], TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_1X128);
                g.d.dtype = TEGROUP_DTYPE_F32;
                wgrad += asked_of(&g, card ? 5120 : 6016).bf16_us / 2; /* each stands twice in `sides` */
            }
            ASSERT_EQ(bf16 > mixed, step > 1);
            ASSERT_TRUE(fabs((bf16 + wgrad) / (mixed + wgrad) / step - 1) < 0.1);
        }
}

/* Where the kernels look for a scale: in the default packing where quantised.h says that it is, and at strides by the rule of
 * tegroup_tensor. */
TEST(fp8_plan, places_of_scales) {
    enum { GROUPS = 5, K = 700 };
    rng r = rng_seed(5);
    for (int round = 0; round < 200; round++)
        for (int s = 0; s < 4; s++)
            for (int cw = 0; cw < 2; cw++) {
                const scaling_row *f = &scaling_rows[s];
                void *const mark = guards_mark();
                const tegroup_scaling_facts *facts = tegroup_scaling_info(f->scaling);
                const int strided = !cw && f->outer == 1 && rng_chance(&r, 40), ragged = rng_chance(&r, 60) || strided, listed = rng_chance(&r, 20);
                const int64_t outer_stride = rng_int(&r, 1, 9), inner_stride = rng_int(&r, 1, 900);
                int64_t counts[GROUPS], all = 0, before = 0, start = 0;
                float memory[8];
                void *lists[GROUPS] = {&memory[0], &memory[1], &memory[2], &memory[3], &memory[4]};
                quantised q;
                memset(&q, 0, sizeof q);
                q.f = f;
                for (int g = 0; g < GROUPS; g++) {
                    counts[g] = ragged ? (rng_chance(&r, 25) ? 0 : rng_int(&r, 1, 300)) : 200;
                    all += counts[g];
                }
                tegroup_tensor t;
                tegroup_error error;
                tegroup_snapshot_view view;
                void *snapshot = NULL;
                memset(&view, 0, sizeof view);
                if (ragged) {
                    tegroup_layout layout;
                    tegroup_shape shape = tegroup_shape_of(GROUPS, all, K, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
                    ASSERT_EQ(tegroup_snapshot_layout(&shape, &layout, &error), TEGROUP_OK);
                    snapshot = scratch(layout.total_bytes);
                    ASSERT_EQ(tegroup_shape_prepare(&shape, snapshot, layout.total_bytes, NULL, &error), TEGROUP_OK);
                    view = tegroup_snapshot_read(snapshot);
                    t = tegroup_tensor_of(shape, K, TEGROUP_DTYPE_F8E4M3, NULL);
                } else t = tegroup_tensor_uniform(GROUPS, 200, K, TEGROUP_DTYPE_F8E4M3, NULL);
                t.scaling = f->scaling;
                t.scale_inv = memory;
                if (strided) {
                    t.scale_outer_stride = outer_stride;
                    t.scale_inner_stride = inner_stride;
                }
                if (listed) {
                    t.pointers_space = TEGROUP_SPACE_HOST;
                    t.scale_pointers = lists;
                    t.scale_inv = NULL;
                }
                for (int g = 0; g < GROUPS; g++) {
                    const int64_t lines = cw ? K : counts[g], sums = cw ? counts[g] : K, O = blocks_of(lines, f->outer), I = blocks_of(sums, f->inner);
                    const tegroup_impl_sm90_scales at = tegroup_impl_sm90_scales_of(&t, facts, &view, g, cw, before);
                    for (int i = 0; i < 20 && lines > 0 && sums > 0; i++) {
                        const int64_t line = rng_int(&r, 0, lines - 1), block = rng_int(&r, 0, (sums - 1) / 128);
                        const int64_t o = f->outer > 0 ? line / f->outer : 0, in = f->inner > 0 ? block : 0;
                        const int64_t want = strided ? ((listed ? 0 : start) + o) * outer_stride + in * inner_stride : (listed ? 0 : before) + packed_scale(&q, O, I, o, in);
                        const float *base = listed ? (const float *)lists[g] : memory;
                        ASSERT_EQ((intptr_t)((uintptr_t)at.at - (uintptr_t)base) / 4 + (line >> at.line_shift) * at.line_stride + block * at.k_stride, want);
                    }
                    before += part_scales(&q, counts[g], K, cw);
                    start += counts[g];
                }
                guards_release(mark);
            }
}

TEST_MAIN()
