/* The tile that SM90's plan takes for a shape, which is plain arithmetic: asked of a Hopper GPU that need not be there. */
#define TEGROUP_IMPLEMENTATION
#include "support.h"
#include "test.h"

/* Products of ragged groups, as a plan meets them on a GPU of 132 multiprocessors, with every backend in the build. */
typedef struct shape {
    int op, groups, rows, n, k; /* rows: of all groups together */
    int f32, accumulate;        /* results of four bytes; added to what is there */
    int expected, most;         /* expected_rows, expected_rows_max */
    int tile_m, tile_n;
} shape;

/* What the library took when it was published: whoever changes a cost or a rule sees here which products have another kernel. */
static const shape pinned[] = {
    {1, 35, 128660, 4096, 5696, 0, 1, 0, 0, 128, 256}, {1, 129, 305988, 4928, 13184, 1, 0, 0, 0, 128, 192},
    {1, 85, 301750, 320, 13184, 0, 1, 0, 0, 128, 192}, {1, 15, 29895, 1280, 16256, 1, 1, 0, 0, 128, 256},
    {1, 6, 1536, 5696, 11200, 0, 0, 0, 0, 192, 128}, {1, 29, 80243, 3008, 1600, 1, 0, 0, 12008, 128, 192},
    {1, 10, 12420, 448, 1408, 0, 1, 0, 0, 64, 256}, {1, 17, 8874, 7040, 2880, 0, 1, 0, 0, 128, 192},
    {1, 26, 5304, 6784, 448, 0, 1, 0, 0, 64, 256}, {1, 212, 43036, 192, 14848, 0, 0, 0, 0, 192, 128},
    {1, 196, 180712, 2688, 384, 0, 0, 0, 38546, 128, 192}, {1, 42, 149562, 8768, 448, 1, 0, 0, 17130, 128, 192},
    {1, 156, 208728, 2432, 384, 0, 0, 0, 45807, 128, 192}, {1, 9, 4545, 1280, 4288, 0, 0, 0, 0, 64, 256},
    {1, 64, 22656, 4736, 128, 1, 1, 0, 0, 128, 192}, {1, 83, 164672, 8192, 1664, 1, 0, 19522, 0, 64, 256},
    {1, 12, 8064, 1536, 320, 0, 1, 0, 5712, 64, 256}, {1, 72, 7704, 5568, 13760, 1, 0, 0, 4477, 64, 256},
    {1, 2, 508, 3392, 8192, 0, 0, 0, 0, 64, 256}, {1, 40, 1280, 512, 5888, 0, 1, 66, 0, 64, 256},
    {1, 255, 61455, 9152, 1664, 1, 0, 0, 34345, 64, 256}, {1, 32, 2048, 384, 11712, 0, 1, 0, 885, 64, 256},
    {1, 8, 2752, 16000, 6656, 0, 0, 901, 747, 64, 256}, {1, 55, 385, 3392, 3712, 0, 0, 1, 59, 64, 256},
    {1, 215, 335830, 5760, 384, 0, 1, 27179, 113553, 64, 256}, {1, 9, 5040, 10560, 128, 1, 0, 0, 0, 128, 192},
    {1, 7, 357, 2560, 8512, 0, 0, 0, 162, 64, 256}, {1, 150, 13050, 2176, 2496, 0, 1, 0, 1431, 64, 256},
    {1, 5, 1490, 5376, 4224, 0, 0, 0, 0, 192, 128}, {1, 43, 5676, 7936, 1344, 1, 0, 0, 0, 128, 256},
    {1, 195, 84045, 11008, 7680, 1, 0, 0, 0, 128, 256}, {1, 1, 461, 3584, 13504, 0, 0, 0, 462, 64, 256},
    {1, 1, 2776, 320, 640, 0, 1, 110, 0, 128, 256}, {1, 9, 9, 192, 8256, 1, 0, 0, 10, 128, 256},
    {1, 1, 69, 512, 1792, 0, 0, 0, 0, 128, 256}, {1, 29, 7018, 10112, 14336, 1, 1, 2558, 0, 128, 256},
    {1, 1, 5, 320, 384, 1, 0, 1, 0, 128, 256}, {1, 1, 39, 512, 5888, 1, 0, 0, 39, 128, 256},
    {1, 150, 17400, 14784, 1472, 1, 0, 0, 251, 128, 256}, {1, 2, 144, 192, 8384, 0, 0, 0, 0, 64, 128},
    {1, 2, 26, 192, 3008, 0, 1, 14, 16, 128, 256}, {1, 1, 1590, 4736, 2176, 0, 0, 0, 1591, 128, 256},
    {1, 18, 16200, 1216, 2944, 1, 0, 4, 2211, 128, 256}, {1, 2, 1592, 11968, 2048, 1, 1, 0, 964, 128, 256},
    {1, 82, 6314, 960, 6016, 0, 1, 0, 0, 128, 256}, {1, 1, 5, 320, 6976, 1, 0, 2, 0, 128, 256},
    {1, 19, 1558, 10176, 13952, 1, 0, 0, 0, 128, 256}, {1, 6, 60, 192, 3968, 1, 1, 2, 15, 128, 256},
    {1, 23, 51106, 5120, 768, 0, 0, 0, 0, 128, 192}, {1, 40, 90960, 8128, 1920, 0, 0, 0, 13884, 128, 192},
    {1, 34, 111384, 1792, 4032, 0, 0, 32075, 61786, 128, 256}, {1, 48, 30432, 6720, 128, 0, 0, 8258, 705, 192, 128},
    {1, 25, 32450, 6976, 1152, 0, 0, 0, 0, 128, 192}, {1, 25, 51625, 4992, 10112, 0, 0, 0, 0, 128, 192},
    {1, 54, 77814, 320, 128, 0, 0, 0, 0, 192, 128}, {1, 75, 132150, 128, 12608, 0, 0, 0, 0, 192, 128},
    {1, 118, 111274, 1792, 1216, 0, 0, 0, 22026, 192, 128}, {1, 124, 296732, 128, 704, 0, 0, 0, 0, 192, 128},
    {1, 11, 3894, 8512, 2880, 0, 0, 0, 1616, 192, 128}, {1, 60, 18420, 7808, 5696, 0, 0, 0, 0, 128, 256},
    {1, 56, 103040, 1088, 1216, 0, 0, 0, 0, 192, 128}, {1, 151, 70215, 2944, 128, 0, 0, 197, 16462, 192, 128},
    {1, 16, 5008, 14848, 1664, 0, 0, 4896, 1462, 192, 128}, {1, 5, 15495, 256, 320, 0, 0, 11, 7367, 192, 128},
    {1, 30, 210, 128, 768, 0, 0, 0, 0, 64, 128}, {1, 8, 992, 4544, 128, 1, 0, 0, 0, 64, 128},
    {1, 201, 1407, 256, 192, 0, 1, 0, 339, 64, 128}, {1, 14, 1106, 7232, 256, 1, 0, 0, 90, 64, 128},
    {1, 13, 208, 1408, 128, 0, 0, 0, 0, 64, 128}, {1, 126, 310842, 128, 192, 0, 1, 3, 16796, 64, 128},
    {1, 151, 755, 192, 1088, 0, 0, 0, 15, 64, 128}, {1, 2, 204, 1600, 128, 0, 0, 0, 204, 64, 128},
    {1, 75, 1050, 9088, 1216, 0, 1, 0, 0, 64, 128}, {1, 21, 630, 128, 5632, 0, 0, 7, 0, 64, 128},
    {1, 89, 101816, 1792, 5248, 1, 1, 4, 0, 64, 128}, {1, 4, 16, 128, 256, 1, 0, 0, 12, 64, 128},
    {1, 32, 32768, 2048, 1096, 0, 0, 0, 0, 192, 256}, {1, 64, 12352, 1352, 1096, 0, 0, 0, 0, 192, 256},
    {2, 32, 32768, 1096, 2048, 0, 0, 0, 0, 192, 256}, {2, 64, 12352, 1096, 1352, 0, 0, 0, 0, 192, 256},
    {2, 10, 5530, 832, 1344, 1, 0, 0, 979, 128, 192}, {2, 2, 2996, 3200, 1856, 0, 1, 0, 1696, 128, 192},
    {2, 62, 200880, 320, 1536, 0, 0, 0, 12958, 128, 192}, {2, 7, 13195, 4480, 13056, 0, 1, 0, 0, 128, 256},
    {2, 8, 27344, 256, 1408, 0, 1, 4, 8276, 128, 192}, {2, 70, 26740, 5184, 128, 0, 1, 0, 3660, 128, 192},
    {2, 3, 1764, 14336, 256, 0, 0, 0, 815, 128, 192}, {2, 142, 144982, 15936, 2240, 1, 0, 0, 89311, 128, 256},
    {2, 122, 336720, 4096, 7040, 1, 1, 0, 0, 128, 256}, {2, 2, 5868, 12800, 2304, 0, 0, 818, 3873, 128, 192},
    {2, 4, 2828, 192, 9280, 1, 0, 0, 997, 128, 192}, {2, 117, 46917, 640, 2752, 0, 1, 0, 531, 128, 192},
    {2, 27, 48276, 9856, 320, 1, 0, 0, 0, 128, 192}, {2, 29, 2117, 1856, 3840, 1, 0, 1, 1619, 128, 192},
    {2, 155, 44950, 1024, 1920, 1, 1, 0, 0, 128, 192}, {2, 129, 514968, 320, 15680, 0, 1, 0, 153617, 128, 192},
    {2, 202, 404, 960, 14016, 1, 1, 0, 31, 64, 256}, {2, 3, 1224, 6720, 128, 0, 0, 0, 1056, 64, 256},
    {2, 5, 1530, 320, 256, 0, 1, 37, 424, 64, 256}, {2, 3, 429, 3584, 128, 1, 0, 0, 220, 64, 256},
    {2, 1, 3874, 192, 256, 1, 0, 0, 3875, 64, 256}, {2, 2, 1552, 128, 320, 1, 1, 0, 0, 64, 256},
    {2, 79, 2133, 1536, 9920, 1, 0, 0, 0, 64, 256}, {2, 16, 2208, 5504, 9024, 1, 1, 0, 0, 128, 256},
    {2, 7, 2086, 5120, 4416, 0, 0, 32, 373, 64, 256}, {2, 40, 3520, 768, 192, 0, 1, 1394, 0, 64, 256},
    {2, 36, 144, 6464, 1856, 0, 0, 51, 77, 64, 256}, {2, 191, 4584, 256, 5056, 0, 1, 183, 0, 64, 256},
    {2, 1, 517, 256, 128, 0, 1, 0, 0, 64, 256}, {2, 29, 986, 5760, 1280, 0, 0, 0, 0, 64, 256},
    {2, 14, 6804, 896, 128, 0, 0, 0, 0, 64, 256}, {2, 30, 60, 128, 1088, 0, 1, 0, 0, 64, 256},
    {2, 207, 18837, 320, 448, 0, 1, 0, 0, 128, 256}, {2, 27, 46575, 192, 128, 1, 0, 0, 14994, 128, 256},
    {2, 2, 3154, 1024, 2368, 0, 0, 0, 0, 192, 128}, {2, 4, 9556, 256, 704, 1, 0, 0, 4183, 128, 256},
    {2, 42, 10584, 1664, 704, 0, 0, 0, 0, 192, 128}, {2, 191, 37245, 128, 128, 0, 1, 0, 0, 64, 256},
    {2, 1, 1286, 7296, 7616, 0, 1, 0, 0, 128, 256}, {2, 2, 1082, 4288, 5888, 0, 0, 0, 0, 128, 256},
    {2, 1, 309, 128, 8576, 0, 0, 0, 309, 128, 256}, {2, 4, 2104, 2304, 3968, 1, 0, 0, 0, 128, 256},
    {2, 5, 1945, 2304, 1472, 0, 0, 0, 464, 128, 256}, {2, 4, 1948, 256, 9344, 1, 0, 0, 583, 128, 256},
    {2, 1, 1974, 128, 3840, 1, 0, 0, 0, 128, 256}, {2, 112, 51744, 128, 448, 1, 0, 0, 0, 64, 256},
    {2, 7, 12572, 15936, 256, 0, 1, 0, 4928, 128, 256}, {2, 15, 1410, 2176, 11520, 0, 1, 0, 144, 128, 256},
    {2, 17, 595, 640, 384, 0, 0, 0, 0, 192, 128}, {2, 87, 14964, 6336, 1728, 0, 0, 0, 11190, 128, 256},
    {2, 12, 13068, 3648, 384, 0, 0, 0, 0, 192, 128}, {2, 22, 39886, 192, 8640, 0, 0, 21, 13246, 192, 128},
    {2, 8, 120, 16000, 256, 0, 0, 0, 52, 192, 128}, {2, 145, 50025, 128, 2880, 0, 0, 0, 0, 192, 128},
    {2, 3, 1299, 4352, 896, 0, 0, 21, 720, 192, 128}, {2, 141, 20304, 1152, 128, 0, 0, 0, 0, 192, 128},
    {2, 66, 5478, 384, 1216, 0, 0, 0, 773, 192, 128}, {2, 30, 17160, 1664, 640, 0, 0, 0, 0, 192, 128},
    {2, 5, 800, 576, 320, 0, 0, 510, 612, 192, 128}, {2, 114, 301530, 3392, 768, 0, 0, 0, 0, 128, 256},
    {2, 8, 2344, 128, 8000, 0, 0, 927, 1884, 192, 128}, {2, 4, 8, 6848, 192, 0, 0, 0, 0, 192, 128},
    {2, 48, 480, 5440, 256, 0, 0, 0, 0, 192, 128}, {2, 9, 11556, 1920, 1728, 0, 0, 0, 0, 192, 128},
    {2, 83, 1079, 2368, 320, 1, 0, 0, 0, 64, 128}, {2, 2, 8, 384, 192, 1, 0, 1, 6, 64, 128},
    {2, 8, 80, 384, 128, 1, 0, 0, 0, 64, 128}, {2, 132, 2112, 11392, 256, 1, 1, 0, 0, 64, 128},
    {2, 2, 4, 14144, 1280, 1, 0, 2, 0, 64, 128}, {2, 187, 374, 3328, 128, 1, 0, 0, 0, 64, 128},
    {2, 1, 29, 1728, 128, 1, 0, 0, 0, 64, 128}, {2, 6, 54, 640, 640, 1, 0, 11, 0, 64, 128},
    {2, 58, 116, 128, 320, 0, 0, 0, 0, 64, 128}, {2, 208, 416, 13440, 320, 1, 1, 0, 0, 64, 128},
    {2, 164, 11480, 6080, 1280, 0, 1, 17, 0, 64, 128}, {2, 240, 480, 7296, 320, 0, 0, 0, 6, 64, 128},
    {2, 6, 18, 128, 3776, 1, 1, 0, 0, 64, 128}, {2, 4, 36, 384, 128, 0, 0, 0, 0, 64, 128},
    {2, 25, 175, 2048, 320, 0, 1, 15, 0, 64, 128}, {2, 67, 603, 13760, 1024, 0, 1, 0, 0, 64, 128},
    {3, 5, 6165, 4416, 128, 1, 1, 0, 2184, 128, 192}, {3, 3, 3162, 128, 12928, 0, 1, 0, 0, 128, 192},
    {3, 2, 7516, 256, 10944, 1, 0, 0, 4721, 128, 192}, {3, 8, 1464, 512, 640, 1, 1, 0, 0, 128, 192},
    {3, 10, 14060, 5696, 3392, 0, 1, 0, 5013, 128, 192}, {3, 6, 1128, 320, 4352, 1, 0, 0, 390, 128, 192},
    {3, 246, 39852, 4736, 11904, 0, 1, 0, 463, 128, 192}, {3, 89, 14062, 512, 8384, 1, 1, 0, 6056, 128, 192},
    {3, 3, 552, 12160, 256, 0, 1, 0, 0, 128, 192}, {3, 65, 88075, 5120, 192, 0, 0, 0, 0, 128, 192},
    {3, 4, 2976, 9344, 3648, 0, 0, 0, 2005, 128, 192}, {3, 14, 25018, 4480, 1984, 0, 0, 0, 2139, 128, 192},
    {3, 69, 42918, 1216, 576, 0, 0, 0, 6514, 128, 192}, {3, 83, 256802, 3392, 960, 0, 0, 0, 0, 128, 192},
    {3, 168, 24696, 3456, 128, 1, 0, 0, 1904, 128, 192}, {3, 3, 4473, 512, 128, 1, 0, 0, 2221, 128, 192},
    {3, 175, 350, 2048, 1024, 0, 0, 5, 13, 128, 128}, {3, 1, 6, 4416, 14784, 0, 1, 0, 6, 128, 128},
    {3, 7, 14, 512, 4928, 1, 0, 0, 2, 128, 128}, {3, 12, 492, 192, 1792, 0, 1, 0, 0, 128, 128},
    {3, 164, 656, 1920, 3456, 0, 0, 1, 50, 128, 128}, {3, 11, 22, 192, 128, 1, 0, 0, 0, 128, 128},
    {3, 1, 59, 1536, 576, 0, 1, 0, 59, 128, 128}, {3, 23, 138, 8320, 7296, 0, 1, 0, 0, 128, 128},
    {3, 10, 4640, 960, 1024, 1, 0, 2, 1357, 128, 128}, {3, 79, 790, 640, 576, 1, 1, 526, 0, 128, 128},
    {3, 2, 276, 1344, 4480, 1, 0, 246, 0, 128, 128}, {3, 62, 33976, 11584, 5824, 0, 0, 62, 1035, 128, 128},
    {3, 61, 61, 1856, 11200, 0, 0, 0, 0, 128, 128}, {3, 9, 27, 128, 128, 0, 1, 0, 4, 128, 128},
    {3, 2, 2, 13888, 3264, 1, 1, 0, 0, 128, 128}, {3, 2, 70, 704, 128, 0, 1, 0, 55, 128, 128},
    {3, 1, 2, 3840, 15936, 0, 0, 0, 3, 192, 128}, {3, 15, 1125, 832, 3264, 0, 0, 11, 264, 192, 128},
    {3, 7, 18256, 3328, 1792, 0, 0, 0, 0, 192, 128}, {3, 2, 92, 320, 128, 0, 0, 0, 0, 192, 128},
    {3, 47, 34827, 384, 12672, 0, 0, 0, 0, 192, 128}, {3, 1, 2, 192, 3072, 0, 0, 0, 0, 192, 128},
    {3, 1, 2476, 128, 8192, 0, 0, 0, 2477, 192, 128}, {3, 33, 693, 1344, 768, 0, 0, 0, 271, 192, 128},
};
enum { PINNED = sizeof pinned / sizeof pinned[0] };

static tegroup_gemm_desc product_of(const shape *s) {
    static const int64_t starts; /* sizes are somewhere: nobody reads them */
    const tegroup_dtype result = s->f32 ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_BF16;
    const tegroup_shape ragged = tegroup_shape_of(s->groups, s->rows, 0, tegroup_sizes_of(&starts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    const tegroup_tensor x = tegroup_tensor_of(ragged, s->k, TEGROUP_DTYPE_BF16, NULL), y = tegroup_tensor_of(ragged, s->n, TEGROUP_DTYPE_BF16, NULL),
                         w = tegroup_tensor_uniform(s->groups, s->n, s->k, TEGROUP_DTYPE_BF16, NULL);
    tegroup_gemm_desc d;
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.op = (tegroup_op)s->op;
    d.space = TEGROUP_SPACE_DEVICE;
    d.a = d.op == TEGROUP_OP_FORWARD ? x : y;
    d.b = d.op == TEGROUP_OP_WGRAD ? x : w;
    d.d = d.op == TEGROUP_OP_FORWARD ? y : d.op == TEGROUP_OP_DGRAD ? x : w;
    d.d.dtype = result;
    d.accumulate = s->accumulate;
    d.options.expected_rows = s->expected;
    d.options.expected_rows_max = s->most;
    d.options.backend = TEGROUP_BACKEND_SM90;
    return d;
}

static tegroup_target hopper(int multiprocessors) {
    tegroup_target target;
    memset(&target, 0, sizeof target);
    target.struct_size = sizeof target;
    target.sm = 90;
    target.built = (1u << TEGROUP_BACKEND_COUNT) - 1;
    target.multiprocessors = multiprocessors;
    return target;
}

TEST(tiles, two_hundred_shapes) {
    const tegroup_target target = hopper(132);
    int others = 0;
    ASSERT_EQ(PINNED, 200);
    for (int i = 0; i < PINNED; i++) {
        const tegroup_gemm_desc desc = product_of(&pinned[i]);
        tegroup_plan plan;
        tegroup_error error;
        ASSERT_EQ(tegroup_plan_make(&desc, &target, &plan, &error), TEGROUP_OK);
        ASSERT_EQ(plan.tile_k, 64);
        if (plan.tile_m == pinned[i].tile_m && plan.tile_n == pinned[i].tile_n) continue;
        printf("shape %d of the table: %d x %d, pinned %d x %d\n", i, (int)plan.tile_m, (int)plan.tile_n, pinned[i].tile_m, pinned[i].tile_n);
        others++;
    }
    if (others) printf("if these are meant, write them into the table above\n");
    ASSERT_EQ(others, 0);
}

/* Without expected_rows_max groups are not taken to be even, but to be as uneven as routers make them. */
TEST(tiles, unknown_is_not_even) {
    const tegroup_target target = hopper(132);
    int others = 0, looked = 0;
    for (int i = 0; i < PINNED; i++) {
        shape s = pinned[i];
        tegroup_plan unknown, even, uneven;
        const int rows = s.expected ? s.expected : s.rows, mean = rows / s.groups;
        tegroup_gemm_desc desc;
        if (s.most || s.f32 || s.accumulate || mean < 2 || s.groups < 8) continue;
        desc = product_of(&s);
        ASSERT_EQ(tegroup_plan_make(&desc, &target, &unknown, NULL), TEGROUP_OK);
        desc.options.expected_rows_max = mean;
        ASSERT_EQ(tegroup_plan_make(&desc, &target, &even, NULL), TEGROUP_OK);
        desc.options.expected_rows_max = mean * 5 / 2;
        ASSERT_EQ(tegroup_plan_make(&desc, &target, &uneven, NULL), TEGROUP_OK);
        looked++;
        others += unknown.tile_m != even.tile_m || unknown.tile_n != even.tile_n;
        if (mean % 2 == 0) ASSERT_TRUE(unknown.tile_m == uneven.tile_m && unknown.tile_n == uneven.tile_n);
    }
    ASSERT_GT(looked, 20);
    ASSERT_GT(others, 0);
}

/* 132 is what a target without a number has, and another number is heeded. */
TEST(tiles, follow_the_multiprocessors) {
    const tegroup_target usual = hopper(0), same = hopper(132), smaller = hopper(78);
    int others = 0;
    for (int i = 0; i < PINNED; i++) {
        const tegroup_gemm_desc desc = product_of(&pinned[i]);
        tegroup_plan a, b, c;
        ASSERT_EQ(tegroup_plan_make(&desc, &usual, &a, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_plan_make(&desc, &same, &b, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_plan_make(&desc, &smaller, &c, NULL), TEGROUP_OK);
        ASSERT_EQ(memcmp(&a, &b, sizeof a), 0);
        others += a.tile_m != c.tile_m || a.tile_n != c.tile_n;
    }
    ASSERT_GT(others, 0);
}

static double predicted(const tegroup_gemm_desc *desc, const tegroup_target *target) {
    tegroup_verdict v[TEGROUP_BACKEND_COUNT];
    tegroup_error error;
    if (tegroup_explain(desc, target, v, &error) != TEGROUP_OK) return 0;
    for (int i = 0; i < TEGROUP_BACKEND_COUNT - 1; i++)
        if (v[i].backend == TEGROUP_BACKEND_SM90) return v[i].predicted_us;
    return 0;
}

/* Products of groups of unknown sizes, and the tile that was the fastest by 4% and more on an H200 beside the one that an H100's memory
 * asks for (`tests/bench/tiles.py`, 2026-11-28; 48 and 32 uneven groups). 5,120 bits is what a target without a number has. */
TEST(tiles, follow_the_memory) {
    static const shape on_an_h200[] = {
        {1, 48, 32768, 4096, 7168, 0, 0, 0, 0, 192, 128}, {2, 48, 32768, 4096, 7168, 0, 0, 0, 0, 192, 128},
        {1, 32, 32768, 4096, 7168, 0, 0, 0, 0, 192, 128}, {2, 32, 32768, 4096, 7168, 0, 0, 0, 0, 192, 128},
    };
    tegroup_target usual = hopper(132), h100 = hopper(132), h200 = hopper(132), between = hopper(132), wider = hopper(132);
    int others = 0, half = 0;
    h100.memory_bits = 5120, h200.memory_bits = 6016, between.memory_bits = 5568, wider.memory_bits = 8192;
    for (int i = 0; i < PINNED; i++) {
        const tegroup_gemm_desc desc = product_of(&pinned[i]);
        tegroup_plan a, b, c, d;
        ASSERT_EQ(tegroup_plan_make(&desc, &usual, &a, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_plan_make(&desc, &h100, &b, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_plan_make(&desc, &h200, &c, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_plan_make(&desc, &wider, &d, NULL), TEGROUP_OK);
        ASSERT_EQ(memcmp(&a, &b, sizeof a), 0);
        ASSERT_EQ(memcmp(&c, &d, sizeof c), 0);
        others += a.tile_m != c.tile_m || a.tile_n != c.tile_n;
    }
    ASSERT_GT(others, 0);
    for (size_t i = 0; i < sizeof on_an_h200 / sizeof *on_an_h200; i++) {
        const tegroup_gemm_desc desc = product_of(&on_an_h200[i]);
        tegroup_plan plan, slow;
        ASSERT_EQ(tegroup_plan_make(&desc, &h200, &plan, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_plan_make(&desc, &h100, &slow, NULL), TEGROUP_OK);
        ASSERT_EQ(plan.tile_m, on_an_h200[i].tile_m);
        ASSERT_EQ(plan.tile_n, on_an_h200[i].tile_n);
        ASSERT_TRUE(slow.tile_m == 128 && slow.tile_n == 256);
    }
    for (int i = 0; i < PINNED; i++) { /* what half of the correction predicts lies between what all and none do */
        const tegroup_gemm_desc desc = product_of(&pinned[i]);
        const double all = predicted(&desc, &h100), some = predicted(&desc, &between), none = predicted(&desc, &h200);
        half += all != none && (some - all) * (some - none) < 0;
    }
    ASSERT_GT(half, 0);
}

/* sm_limit is as if the GPU had no more. */
TEST(tiles, follow_the_limit) {
    const tegroup_target whole = hopper(132), part = hopper(40);
    for (int i = 0; i < PINNED; i++) {
        tegroup_gemm_desc desc = product_of(&pinned[i]);
        tegroup_plan limited, smaller;
        ASSERT_EQ(tegroup_plan_make(&desc, &part, &smaller, NULL), TEGROUP_OK);
        desc.options.sm_limit = 40;
        ASSERT_EQ(tegroup_plan_make(&desc, &whole, &limited, NULL), TEGROUP_OK);
        ASSERT_EQ(limited.tile_m, smaller.tile_m);
        ASSERT_EQ(limited.tile_n, smaller.tile_n);
    }
}

/* A pair of blocks takes two multiprocessors, also where there is nothing to compute; and the time of empty products
 * and of sums without terms is foretold as a number. */
TEST(tiles, one_multiprocessor) {
    const tegroup_target target = hopper(132);
    for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_DGRAD; op++)
        for (int empty = 0; empty < 3; empty++) { /* rows of 24 elements begin at odd multiples of 16 bytes */
            const shape s = {op, 8, 32768, empty == 1 ? 0 : 24, empty == 2 ? 0 : 24, 0, 0, 0, 0, 0, 0};
            tegroup_gemm_desc desc = product_of(&s);
            tegroup_plan plan;
            for (desc.options.sm_limit = 0; desc.options.sm_limit < 3; desc.options.sm_limit++) {
                ASSERT_TRUE(isfinite(predicted(&desc, &target)));
                ASSERT_EQ(tegroup_plan_make(&desc, &target, &plan, NULL), TEGROUP_OK);
                if (desc.options.sm_limit == 1) ASSERT_FALSE(plan.tile_m == 192 && plan.tile_n == 256);
            }
        }
}

/* explain says the plan's tile, why, and a time that is no shorter than the peak rates of an H200 allow. */
TEST(tiles, explain_says_why) {
    const tegroup_target target = hopper(132);
    int by_rule = 0, predicted = 0;
    for (int i = 0; i < PINNED; i++) {
        const shape *s = &pinned[i];
        const tegroup_gemm_desc desc = product_of(s);
        const double rows = s->expected ? s->expected : s->rows, flops = 2.0 * rows * s->n * s->k;
        tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
        char text[400], tile[100];
        ASSERT_EQ(tegroup_explain(&desc, &target, verdicts, NULL), TEGROUP_OK);
        for (int v = 0; v < TEGROUP_BACKEND_COUNT - 1; v++) {
            if (!verdicts[v].chosen) continue;
            ASSERT_EQ(verdicts[v].backend, TEGROUP_BACKEND_SM90);
            ASSERT_EQ(verdicts[v].tile_m, s->tile_m);
            ASSERT_EQ(verdicts[v].tile_n, s->tile_n);
            ASSERT_TRUE(verdicts[v].tile_why != NULL);
            snprintf(tile, sizeof tile, "tile %d x %d x 64: %s", s->tile_m, s->tile_n, verdicts[v].tile_why);
            tegroup_verdict_text(&verdicts[v], text, sizeof text);
            ASSERT_TRUE(strstr(text, tile) != NULL);
            ASSERT_EQ(strstr(tile, "PORTABLE's kernel") != NULL, s->op == 2 && s->tile_m == 64 && s->tile_n == 128);
            by_rule += verdicts[v].predicted_us == 0;
            predicted += verdicts[v].predicted_us > 0;
            if (verdicts[v].predicted_us > 0) ASSERT_GT(verdicts[v].predicted_us, flops / 989.4e6); /* 989.4 TFLOP/s: the data sheet */
        }
    }
    ASSERT_EQ(by_rule + predicted, PINNED);
    ASSERT_GT(by_rule, 0);
    ASSERT_GT(predicted, 0);
}

/* Rows that begin off cache lines take TMA longer, so that the tile is taken that loads the fewest of them for what it multiplies, and
 * the product takes longer than one of longer sums whose rows begin at cache lines. (So it was measured: docs/lab/pitch.md.) */
TEST(tiles, rows_off_cache_lines) {
    static const int groups[][2] = {{8, 4096}, {32, 2048}, {24, 1536}}; /* and n */
    const tegroup_target target = hopper(132);
    for (int i = 0; i < 3; i++)
        for (int rows = 1024; rows <= 2048; rows += 1024) {
            double us[3];
            for (int j = 0; j < 3; j++) { /* rows of 2,192, 2,208 and 2,304 bytes: multiples of 16, 32 and 128 */
                static const int k[] = {1096, 1104, 1152};
                const shape s = {1, groups[i][0], groups[i][0] * rows, groups[i][1], k[j], 0, 0, 0, rows, 0, 0};
                const tegroup_gemm_desc desc = product_of(&s);
                tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
                ASSERT_EQ(tegroup_explain(&desc, &target, verdicts, NULL), TEGROUP_OK);
                ASSERT_TRUE(verdicts[0].chosen);
                ASSERT_EQ(verdicts[0].tile_m == 192 && verdicts[0].tile_n == 256, j == 0); /* pairs, which load half of a group's rows */
                ASSERT_EQ(verdicts[0].tile_m == 128 && verdicts[0].tile_n == 256, j == 1);
                us[j] = verdicts[0].predicted_us;
            }
            ASSERT_GT(us[0], us[1]);
            ASSERT_GT(us[1], us[2]);
        }
}

/* Weights of a hundred experts for a few tokens are bound by memory, long even groups by mathematics. */
TEST(tiles, what_takes_longest) {
    static const shape decode = {1, 128, 256, 8192, 4096, 0, 0, 0, 0, 0, 0}, prefill = {1, 8, 65536, 8192, 4096, 0, 0, 0, 0, 0, 0};
    static const shape *const shapes[] = {&decode, &prefill};
    static const char *const words[] = {"memory", "mathematics"};
    const tegroup_target target = hopper(132);
    for (int i = 0; i < 2; i++) {
        const tegroup_gemm_desc desc = product_of(shapes[i]);
        tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
        int said = 0;
        ASSERT_EQ(tegroup_explain(&desc, &target, verdicts, NULL), TEGROUP_OK);
        for (int v = 0; v < TEGROUP_BACKEND_COUNT - 1; v++)
            if (verdicts[v].chosen) said += strstr(verdicts[v].tile_why, words[i]) != NULL;
        ASSERT_EQ(said, 1);
    }
}

/* A line of the table without costs is none that a plan could take, and one that is never the fastest is not worth its code. */
TEST(tiles, every_kernel_has_costs_and_is_taken) {
#define NAME(name, ...) #name,
    static const char *const names[] = {TEGROUP_IMPL_SM90_KERNELS(NAME, NAME)};
#undef NAME
    int taken[TEGROUP_IMPL_SM90_KERNEL_COUNT] = {0};
    for (int kernel = 0; kernel < TEGROUP_IMPL_SM90_KERNEL_COUNT; kernel++) {
        const tegroup_impl_sm90_row *row = tegroup_impl_sm90_row_of(kernel);
        if (row->ns <= 0 || row->tb <= 0 || row->us <= 0)
            printf("%s has no costs: make tiles, on a Hopper GPU, and make fit (docs/architecture.md: a tile)\n", names[kernel]);
        ASSERT_GT(row->ns, 0);
        ASSERT_GE(row->epilogue, 0);
        ASSERT_GT(row->tb, 0);
        ASSERT_LT(row->tb, 4.8 * 1.2); /* an H200's memory by its data sheet; a call's operands may be in L2 */
        ASSERT_GT(row->us, 0);
        /* No faster than the tensor cores: a tile's 2 tile_m tile_n operations for one of k, on one of 132 multiprocessors. */
        ASSERT_GT(row->ns * (1 + row->pairs), 2.0 * row->tile_m * row->tile_n * 132 / 989.4e3);
        for (int i = 0; row->pairs && i < kernel; i++) { /* A pair takes as long as two single blocks, but for what it loads. */
            const tegroup_impl_sm90_row *single = tegroup_impl_sm90_row_of(i);
            if (single->op != row->op || single->tile_m != row->tile_m || 2 * single->tile_n != row->tile_n) continue;
            ASSERT_TRUE(single->ns == row->ns && single->epilogue == row->epilogue && single->tb == row->tb && single->us == row->us);
        }
        for (int i = 0; i < PINNED; i++)
            if (pinned[i].op == (int)row->op && pinned[i].tile_m == row->tile_m && pinned[i].tile_n == row->tile_n) taken[kernel]++;
        if (!taken[kernel]) printf("%s is pinned for no shape: either it is the fastest for none, or the table above does not say so yet\n", names[kernel]);
        ASSERT_GT(taken[kernel], 0);
    }
}

/* A bias costs some of dgrad's kernels registers, so that these have none: such a product takes another tile. */
TEST(tiles, dgrad_with_bias) {
    const tegroup_target target = hopper(132);
    int taken = 0, without = 0;
    for (int i = 0; i < PINNED; i++) {
        const shape *s = &pinned[i];
        if (s->op != TEGROUP_OP_DGRAD) continue;
        for (int bias = 0; bias < 2; bias++) {
            tegroup_gemm_desc desc = product_of(s);
            tegroup_plan plan;
            if (bias) desc.bias = tegroup_tensor_uniform(s->groups, 1, s->k, TEGROUP_DTYPE_F32, NULL);
            ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, &target, &plan, NULL));
            ASSERT_EQ(TEGROUP_BACKEND_SM90, plan.backend);
            if (!bias) without += plan.tile_n != 256 && plan.tile_m != 64;
            else ASSERT_TRUE(plan.tile_n == 256 || (plan.tile_m == 64 && plan.tile_n == 128));
            taken += bias;
        }
    }
    ASSERT_GT(taken, 0);
    ASSERT_GT(without, 0);
}

/* What gives tiles to blocks: each tile to one block, none of which has more than half a tile above the least, or less where that is
 * enough blocks for the last tiles. Each block works it out for itself; loads are added up here, too. */
TEST(tiles, balance) {
    enum { MOST = TEGROUP_IMPL_SM90_MOST_BLOCKS };
    rng r = rng_seed(160);
    for (int64_t problem = scaled(300); problem > 0; problem--) {
        const int32_t blocks = (int32_t)rng_int(&r, 1, MOST);
        int64_t had[MOST] = {0}; /* each block's tiles, by what they cost */
        int32_t load[MOST] = {0};
        tegroup_impl_sm90_loads loads = {load, blocks, blocks, 0};
        for (int stretch = 0; stretch < 6; stretch++) {
            const int32_t cost = (int32_t)rng_int(&r, 20, 40);
            int32_t left = (int32_t)rng_int(&r, 1, 3 * blocks);
            const int closely = rng_chance(&r, 50);
            while (left > 0) {
                int32_t given = 0, within[3] = {0, 0, 0}, owner[MOST];
                int64_t least = had[0];
                const int fresh = loads.fresh > 0;
                for (int b = 1; b < blocks; b++) least = had[b] < least ? had[b] : least;
                for (int b = 0; b < blocks; b++)
                    for (int i = 0; i < 3; i++) within[i] += had[b] < least + (cost + 1) / 2 / (1 << i);
                for (int t = 0; t < left && t < MOST; t++) owner[t] = -1;
                for (int b = 0; b < blocks; b++) {
                    int32_t copy[MOST], mine;
                    tegroup_impl_sm90_loads own = loads;
                    memcpy(copy, load, sizeof copy);
                    own.load = copy;
                    given = tegroup_impl_sm90_assign(&own, left, cost, closely, b, &mine);
                    ASSERT_TRUE(mine >= -1 && mine < given);
                    if (mine < 0) continue;
                    ASSERT_EQ(owner[mine], -1);
                    owner[mine] = b;
                }
                ASSERT_TRUE(given > 0 && given <= left);
                /* blocks that have nothing come first; else as near to the least as there are blocks enough, if it matters */
                const int halved = !closely || fresh ? 0 : within[1] < left ? 0 : within[2] < left ? 1 : 2;
                for (int t = 0; t < given; t++) {
                    ASSERT_GE(owner[t], 0);
                    ASSERT_LT(had[owner[t]], fresh ? least + 1 : least + (cost + 1) / 2 / (1 << halved));
                }
                if (!fresh) ASSERT_EQ(given, within[halved] < left ? within[halved] : left);
                int32_t none;
                ASSERT_EQ(tegroup_impl_sm90_assign(&loads, left, cost, closely, -1, &none), given);
                for (int t = 0; t < given; t++) had[owner[t]] += cost;
                for (int b = 0; b < blocks; b++) ASSERT_EQ(loads.passed + load[b], had[b]);
                left -= given;
            }
        }
    }
}

/* How many of the last groups are narrow: what the block with most has to do is then at least a hundredth less. 30 tiles a group of
 * 128 x 192 and 132 blocks: 32 groups are 7.3 waves, and take 8. */
TEST(tiles, even_groups_taper) {
    shape s = {1, 32, 32 * 256, 15 * 192, 4096, 0, 0, 0, 256, 0, 0};
    const tegroup_target target = hopper(132);
    tegroup_gemm_desc desc = product_of(&s);
    tegroup_plan plan;
    ASSERT_EQ(tegroup_plan_make(&desc, &target, &plan, NULL), TEGROUP_OK);
    ASSERT_EQ(tegroup_impl_sm90_tapering(&desc, &plan.problem, 132), (int64_t)plan.algorithm[TEGROUP_IMPL_PLANNED_NARROWS]);
    ASSERT_GT(plan.algorithm[TEGROUP_IMPL_PLANNED_NARROWS], 0u);
    ASSERT_LE(plan.algorithm[TEGROUP_IMPL_PLANNED_NARROWS], 8u);
    /* 33 groups are 7.5 waves; 22 are 5 waves exactly, and nothing is to be gained; nor where groups are known to be uneven. */
    s.groups = 22;
    s.rows = 22 * 256;
    desc = product_of(&s);
    ASSERT_EQ(tegroup_plan_make(&desc, &target, &plan, NULL), TEGROUP_OK);
    ASSERT_EQ(plan.algorithm[TEGROUP_IMPL_PLANNED_NARROWS], 0u);
    s.groups = 32;
    s.rows = 32 * 256;
    s.most = 700;
    desc = product_of(&s);
    ASSERT_EQ(tegroup_plan_make(&desc, &target, &plan, NULL), TEGROUP_OK);
    ASSERT_EQ(plan.algorithm[TEGROUP_IMPL_PLANNED_NARROWS], 0u);
}

TEST_MAIN()
