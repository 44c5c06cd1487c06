/* cc -I. tools/scale_layouts_doc.c -o scale_layouts_doc -lm && ./scale_layouts_doc > docs/scale-layouts.svg */
/* Draws where scales lie, by the library's own addresses: a cell is a scale, a line is what lies in a row. */
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#include <stdlib.h>

enum { GROUPS = 2, ROWS = 6, COLS = 640, MOST = 256, CELL_H = 16 };
static const int64_t sizes[GROUPS] = {3, 2};
static unsigned char snapshot[4096];

typedef struct cell {
    int group; /* -1: nobody's */
    char text[16];
} cell;

static void must(tegroup_status status) {
    if (status != TEGROUP_OK) exit(1);
}

/* The activations of two experts in a buffer of six rows, or the weights of two experts. */
static tegroup_tensor tensor_of(int ragged, tegroup_scaling scaling) {
    const tegroup_sizes counts = tegroup_sizes_of(sizes, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
    tegroup_shape shape = tegroup_shape_of(GROUPS, ROWS, COLS, counts);
    tegroup_tensor t;
    uintptr_t at = ((uintptr_t)snapshot + TEGROUP_ALIGNMENT - 1) / TEGROUP_ALIGNMENT * TEGROUP_ALIGNMENT;
    if (ragged) must(tegroup_shape_prepare(&shape, (void *)at, sizeof snapshot - TEGROUP_ALIGNMENT, NULL, NULL));
    t = ragged ? tegroup_tensor_of(shape, COLS, TEGROUP_DTYPE_F8E4M3, NULL)
               : tegroup_tensor_uniform(GROUPS, 384, COLS, TEGROUP_DTYPE_F8E4M3, NULL);
    t.scaling = scaling;
    return t;
}

static void clear(cell *cells) {
    int i;
    for (i = 0; i < MOST; i++) cells[i].group = -1, cells[i].text[0] = 0;
}

static void scales_of(const tegroup_tensor *t, cell *cells) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    const tegroup_snapshot_view view = tegroup_snapshot_read(t->shape.snapshot);
    int64_t e;
    int g;
    clear(cells);
    for (g = 0; g < GROUPS; g++) {
        const tegroup_impl_scale_grid grid = tegroup_impl_scale_grid_of(t, facts, &view, g, 0);
        for (e = 0; e < grid.count; e++) {
            const tegroup_impl_scale_place place = tegroup_impl_scale_place_of(&grid, e);
            cell *c = &cells[tegroup_impl_scale_of_block(&grid, place.part, place.outer, place.inner)];
            if (place.outer >= grid.outer_count || place.inner >= grid.inner_count) continue;
            c->group = g;
            snprintf(c->text, sizeof c->text, "%d:%d", (int)place.outer, (int)place.inner);
        }
    }
}

/* Three columns of the copy that is stored for products that sum over rows. */
static void transposed_of(cell *cells) {
    tegroup_tensor t = tensor_of(1, TEGROUP_SCALING_BLOCK_1X128);
    const tegroup_snapshot_view view = tegroup_snapshot_read(t.shape.snapshot);
    int g, row, col;
    t.shape.cols = 3;
    t.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
    clear(cells);
    for (g = 0; g < GROUPS; g++) {
        const tegroup_impl_elements at = tegroup_impl_elements_of(&t, &view, g, 1);
        for (col = 0; col < 3; col++)
            for (row = 0; row < sizes[g]; row++) {
                cell *c = &cells[at.first + row * at.row_stride + col * at.col_stride];
                c->group = g;
                snprintf(c->text, sizeof c->text, "%d:%d", row, col);
            }
    }
}

static void draw(const cell *cells, int lines, int width, int x, int y, int cell_w, const char *title, const char *under) {
    int line, i;
    printf("<text x=\"%d\" y=\"%d\">%s</text>\n<text x=\"%d\" y=\"%d\" class=\"small faint code\">%s</text>\n", x, y - 24, title, x, y - 8, under);
    for (line = 0; line < lines; line++)
        for (i = 0; i < width; i++) {
            const cell *c = &cells[line * width + i];
            char class[8] = "none";
            if (c->group >= 0) snprintf(class, sizeof class, "g%d", c->group);
            printf("<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", class, x + i * cell_w, y + line * CELL_H, cell_w, CELL_H);
            if (c->text[0]) printf("<text x=\"%d\" y=\"%d\" class=\"tiny mid code\">%s</text>\n", x + i * cell_w + cell_w / 2, y + line * CELL_H + 12, c->text);
        }
}

int main(void) {
    cell cells[MOST];
    tegroup_tensor t = tensor_of(1, TEGROUP_SCALING_BLOCK_1X128), weights = tensor_of(0, TEGROUP_SCALING_BLOCK_128X128);
    puts("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 480\" width=\"720\" height=\"480\" role=\"img\" aria-labelledby=\"title desc\">\n"
         "<title id=\"title\">Where scales lie</title>\n"
         "<desc id=\"desc\">The same scales group after group, token-major, over the whole buffer and packed in words; a checkpoint's compact blocks; the transposed copy.</desc>\n"
         "<style>\n"
         "  .panel { fill: #ffffff; stroke: none; } text { fill: #1f2328; font: 13px ui-sans-serif, system-ui, sans-serif; }\n"
         "  .code { font-family: ui-monospace, monospace; } .small { font-size: 11px; } .tiny { font-size: 9px; } .faint { fill: #656d76; } .mid { text-anchor: middle; }\n"
         "  rect { stroke: #57606a; } .g0 { fill: #b6d7ff; } .g1 { fill: #ffd8a8; } .none { fill: #f0f1f3; stroke-dasharray: 3 2; }\n"
         "  @media (prefers-color-scheme: dark) {\n"
         "    .panel { fill: #0d1117; } text { fill: #e6edf3; } .faint { fill: #9198a1; } rect { stroke: #8b949e; }\n"
         "    .g0 { fill: #1f4a7d; } .g1 { fill: #7a4a12; } .none { fill: #21262d; }\n"
         "  }\n"
         "</style>\n"
         "<rect class=\"panel\" width=\"720\" height=\"480\" rx=\"6\"/>");
    scales_of(&t, cells);
    draw(cells, 10, 4, 20, 56, 28, "group after group", "the default; cuBLASLt");
    t.scale_outer_stride = 5, t.scale_inner_stride = 1;
    scales_of(&t, cells);
    draw(cells, ROWS, 5, 180, 56, 28, "token-major", "strides 5, 1; DeepEP");
    t.scale_outer_stride = 1, t.scale_inner_stride = 8;
    scales_of(&t, cells);
    draw(cells, 5, 8, 348, 56, 24, "over the whole buffer", "strides 1, 8; DeepGEMM");
    weights.scale_outer_stride = 5, weights.scale_inner_stride = 1;
    scales_of(&weights, cells);
    draw(cells, 6, 5, 568, 56, 28, "compact blocks", "strides 5, 1; checkpoints");
    t.scale_dtype = TEGROUP_DTYPE_I32;
    scales_of(&t, cells);
    draw(cells, 2, 32, 20, 270, 21, "four exponents a word, over the whole buffer", "scale_dtype I32, strides 1, 8; DeepGEMM");
    transposed_of(cells);
    draw(cells, 6, 32, 20, 356, 21, "the transposed copy of three columns: its elements, row:column", "columnwise_order TRANSPOSED");
    puts("<text x=\"20\" y=\"470\" class=\"small\">row:block of the first expert (blue) and the second (orange); dashed is padding, or nobody's.</text>\n</svg>");
    return 0;
}
