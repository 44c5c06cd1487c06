/* An MoE block on the CPU, tegroup beside ggml's mul_mat_id: both compiled with the same options, in one process, in turns.
 *
 *   git clone https://github.com/ggml-org/ggml && cmake -S ggml -B ggml/build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF && cmake --build ggml/build
 *   make bench-ggml GGML=ggml BENCH="2048 768 128 8 1 1 8 64 512"    width, ffn, experts, choices, threads, tokens ...
 *
 * Rows are F32, weights F32, F16 or BF16. Timed is everything from the chosen experts on: for tegroup the permutation, prepare, permute, the
 * MLP and combine; for ggml its graph. Each line: tokens, milliseconds (the least of the rounds) of tegroup, with TEGROUP_COMPUTE_F32_FAST
 * behind it, and of ggml, ggml's over both of tegroup's, how far the farther of their results is from ggml's. */
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>
#include "ggml.h"
#include "ggml-cpu.h"
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

static uint64_t state = 88172645463325252ull;
static float uniform() { /* -0.5 to 0.5, by xorshift64 (Marsaglia 2003) */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (float)((double)(state >> 11) / 9007199254740992.0 - 0.5);
}
static double seconds(const std::function<void()> &work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
static tegroup_error error;
static void must(tegroup_status status) {
    char text[400];
    if (status == TEGROUP_OK) return;
    tegroup_error_text(&error, text, sizeof text);
    printf("%s\n", text);
    exit(1);
}
static void *aligned(size_t bytes) { return aligned_alloc(TEGROUP_ALIGNMENT, (bytes / TEGROUP_ALIGNMENT + 1) * TEGROUP_ALIGNMENT); }

struct sizes {
    int64_t width, ffn, experts, choices;
    int threads;
};

/* The block by tegroup, for so many tokens. fc1 holds gate, then up, of each expert. */
struct tegroup_block {
    tegroup_mlp_desc mlp;
    tegroup_mlp_plan plan;
    tegroup_count_desc count;
    tegroup_permutation_desc permutation;
    tegroup_permute_desc permute;
    tegroup_combine_desc combine;
    tegroup_prepare_desc prepare;
    std::vector<int64_t> counts, row_of_slot, slot_of_row;
    std::vector<float> permuted, out, y;

    tegroup_block(const sizes &s, int64_t tokens, tegroup_dtype type, tegroup_compute compute, void *fc1, void *fc2, float *x, int32_t *chosen,
                  float *weights)
        : counts((size_t)s.experts), row_of_slot((size_t)(tokens * s.choices)), slot_of_row((size_t)(tokens * s.choices)),
          permuted((size_t)(tokens * s.choices * s.width)), out((size_t)(tokens * s.choices * s.width)), y((size_t)(tokens * s.width)) {
        const tegroup_dtype f32 = TEGROUP_DTYPE_F32, i64 = TEGROUP_DTYPE_I64;
        const int64_t rows = tokens * s.choices;
        const int32_t experts = (int32_t)s.experts;
        tegroup_layout layout;
        tegroup_shape shape = tegroup_shape_of(experts, rows, 0, tegroup_sizes_of(counts.data(), i64, TEGROUP_SPACE_HOST));
        must(tegroup_snapshot_layout(&shape, &layout, &error));
        void *snapshot = aligned(layout.total_bytes);
        memset(&prepare, 0, sizeof prepare);
        prepare.struct_size = sizeof prepare, prepare.space = TEGROUP_SPACE_HOST, prepare.shape = shape, prepare.threads = s.threads;
        prepare.snapshot = snapshot, prepare.snapshot_bytes = layout.total_bytes;
        shape.snapshot = snapshot;
        memset(&count, 0, sizeof count);
        count.struct_size = sizeof count, count.space = TEGROUP_SPACE_HOST, count.groups = experts;
        count.labels = tegroup_matrix_of(chosen, tokens, s.choices, TEGROUP_DTYPE_I32);
        count.counts = tegroup_matrix_of(counts.data(), 1, experts, i64);
        memset(&permutation, 0, sizeof permutation);
        permutation.struct_size = sizeof permutation, permutation.space = TEGROUP_SPACE_HOST, permutation.shape = shape, permutation.threads = s.threads;
        permutation.indices = count.labels;
        permutation.row_of_slot = tegroup_matrix_of(row_of_slot.data(), tokens, s.choices, i64);
        permutation.slot_of_row = tegroup_matrix_of(slot_of_row.data(), 1, rows, i64);
        memset(&permute, 0, sizeof permute);
        permute.struct_size = sizeof permute, permute.space = TEGROUP_SPACE_HOST, permute.k = (int32_t)s.choices, permute.threads = s.threads;
        permute.tokens = tegroup_matrix_of(x, tokens, s.width, f32), permute.row_of_slot = permutation.row_of_slot;
        permute.permuted = tegroup_matrix_of(permuted.data(), rows, s.width, f32);
        memset(&combine, 0, sizeof combine);
        combine.struct_size = sizeof combine, combine.space = TEGROUP_SPACE_HOST, combine.threads = s.threads;
        combine.permuted = tegroup_matrix_of(out.data(), rows, s.width, f32), combine.row_of_slot = permutation.row_of_slot;
        combine.weights = tegroup_matrix_of(weights, tokens, s.choices, f32), combine.tokens = tegroup_matrix_of(y.data(), tokens, s.width, f32);
        memset(&mlp, 0, sizeof mlp);
        mlp.struct_size = sizeof mlp, mlp.space = TEGROUP_SPACE_HOST, mlp.activation = TEGROUP_ACTIVATION_SWIGLU, mlp.options.threads = s.threads;
        mlp.options.compute = compute;
        mlp.fc1.weight = tegroup_tensor_uniform(experts, 2 * s.ffn, s.width, type, fc1);
        mlp.fc2.weight = tegroup_tensor_uniform(experts, s.width, s.ffn, type, fc2);
        mlp.input = tegroup_tensor_of(shape, s.width, f32, permuted.data()), mlp.out = tegroup_tensor_of(shape, s.width, f32, out.data());
        must(tegroup_mlp_plan_make(&mlp, NULL, &plan, &error));
        mlp.options.workspace = aligned(plan.workspace_bytes), mlp.options.workspace_bytes = plan.workspace_bytes;
    }
    void run() {
        must(tegroup_count(&count, NULL, &error));
        must(tegroup_prepare(&prepare, NULL, &error));
        must(tegroup_permutation_make(&permutation, NULL, &error));
        must(tegroup_permute(&permute, NULL, &error));
        must(tegroup_mlp_forward(&plan, &mlp, NULL, &error));
        must(tegroup_combine(&combine, NULL, &error));
    }
    ~tegroup_block() {
        free(prepare.snapshot);
        free(mlp.options.workspace);
    }
};

static void bench(const sizes &s, ggml_type type, tegroup_dtype dtype, const std::vector<int64_t> &all_tokens) {
    const size_t row1 = ggml_row_size(type, s.width), row2 = ggml_row_size(type, s.ffn);
    ggml_context *weights = ggml_init({row1 * (size_t)(2 * s.ffn * s.experts) + row2 * (size_t)(s.width * s.experts) + (1 << 20), NULL, false});
    ggml_tensor *gate = ggml_new_tensor_3d(weights, type, s.width, s.ffn, s.experts), *up = ggml_new_tensor_3d(weights, type, s.width, s.ffn, s.experts),
                *down = ggml_new_tensor_3d(weights, type, s.ffn, s.width, s.experts);
    std::vector<float> values((size_t)(s.width > s.ffn ? s.width : s.ffn));
    for (ggml_tensor *w : {gate, up, down})
        for (int64_t r = 0; r < ggml_nrows(w); r++) {
            for (int64_t i = 0; i < w->ne[0]; i++) values[(size_t)i] = uniform() * 0.1f;
            ggml_quantize_chunk(type, values.data(), (char *)w->data + r * w->nb[1], 0, 1, w->ne[0], NULL);
        }
    char *fc1 = (char *)aligned(2 * row1 * (size_t)(s.ffn * s.experts)); /* gate and up of an expert, one after the other */
    const size_t half = row1 * (size_t)s.ffn;
    for (int64_t e = 0; e < s.experts; e++) {
        memcpy(fc1 + 2 * half * e, (char *)gate->data + half * e, half);
        memcpy(fc1 + 2 * half * e + half, (char *)up->data + half * e, half);
    }
    for (const int64_t tokens : all_tokens) {
        const size_t slots = (size_t)(tokens * s.choices);
        ggml_context *c = ggml_init({slots * (size_t)(3 * s.ffn + 3 * s.width) * 4 + (size_t)tokens * (size_t)(s.choices + 2) * (size_t)s.width * 4 + (64 << 20), NULL, false});
        ggml_tensor *x = ggml_new_tensor_3d(c, GGML_TYPE_F32, s.width, 1, tokens), *chosen = ggml_new_tensor_2d(c, GGML_TYPE_I32, s.choices, tokens),
                    *share = ggml_new_tensor_3d(c, GGML_TYPE_F32, 1, s.choices, tokens);
        for (int64_t i = 0; i < ggml_nelements(x); i++) ((float *)x->data)[i] = uniform() * 4;
        for (int64_t t = 0; t < tokens; t++) {
            std::vector<bool> used((size_t)s.experts);
            for (int64_t j = 0; j < s.choices; j++) {
                int64_t e;
                do e = (int64_t)((uniform() + 0.5f) * (float)s.experts) % s.experts; while (used[(size_t)e]);
                used[(size_t)e] = true;
                ((int32_t *)chosen->data)[t * s.choices + j] = (int32_t)e;
                ((float *)share->data)[t * s.choices + j] = 1.0f / (float)s.choices;
            }
        }
        ggml_tensor *h = ggml_swiglu_split(c, ggml_mul_mat_id(c, gate, x, chosen), ggml_mul_mat_id(c, up, x, chosen));
        ggml_tensor *y = ggml_mul(c, ggml_mul_mat_id(c, down, h, chosen), share), *sum = ggml_view_2d(c, y, s.width, tokens, y->nb[2], 0);
        for (int64_t j = 1; j < s.choices; j++) sum = ggml_add(c, sum, ggml_view_2d(c, y, s.width, tokens, y->nb[2], (size_t)j * y->nb[1]));
        ggml_cgraph *graph = ggml_new_graph(c);
        ggml_build_forward_expand(graph, sum);
        float *rows = (float *)x->data;
        int32_t *ids = (int32_t *)chosen->data;
        tegroup_block fixed(s, tokens, dtype, TEGROUP_COMPUTE_F32, fc1, down->data, rows, ids, (float *)share->data);
        tegroup_block fast(s, tokens, dtype, TEGROUP_COMPUTE_F32_FAST, fc1, down->data, rows, ids, (float *)share->data);
        tegroup_block *const blocks[2] = {&fixed, &fast};
        double ours[2] = {1e9, 1e9}, theirs = 1e9, difference[2] = {0, 0}, size = 0;
        const int rounds = tokens <= 1 ? 60 : tokens <= 16 ? 20 : 5;
        for (int r = 0; r < rounds; r++) {
            theirs = fmin(theirs, seconds([&] { ggml_graph_compute_with_ctx(c, graph, s.threads); }));
            for (int b = 0; b < 2; b++) ours[b] = fmin(ours[b], seconds([&] { blocks[b]->run(); }));
        }
        for (int64_t i = 0; i < tokens * s.width; i++) {
            const double y_there = ((float *)sum->data)[i];
            for (int b = 0; b < 2; b++) difference[b] += pow(blocks[b]->y[(size_t)i] - y_there, 2);
            size += y_there * y_there;
        }
        printf("%-4s weights, %4d tokens: tegroup %9.2f, fast %9.2f, ggml %9.2f ms, ratios %.2f, %.2f, relative difference %.1e\n", ggml_type_name(type),
               (int)tokens, 1e3 * ours[0], 1e3 * ours[1], 1e3 * theirs, theirs / ours[0], theirs / ours[1], sqrt(fmax(difference[0], difference[1]) / size));
        fflush(stdout);
        ggml_free(c);
    }
    free(fc1);
    ggml_free(weights);
}

int main(int argc, char **argv) {
    std::vector<int64_t> tokens;
    if (argc < 7) return printf("width ffn experts choices threads tokens ...\n"), 1;
    const sizes s = {atoll(argv[1]), atoll(argv[2]), atoll(argv[3]), atoll(argv[4]), atoi(argv[5])};
    for (int i = 6; i < argc; i++) tokens.push_back(atoll(argv[i]));
    bench(s, GGML_TYPE_F32, TEGROUP_DTYPE_F32, tokens);
    bench(s, GGML_TYPE_F16, TEGROUP_DTYPE_F16, tokens);
    bench(s, GGML_TYPE_BF16, TEGROUP_DTYPE_BF16, tokens);
    return 0;
}
