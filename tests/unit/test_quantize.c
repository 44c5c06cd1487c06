/* Quantise and dequantise on the CPU: every byte of every buffer against a reference of the tests' own; what is made in passing
 * against the separate calls; and what is refused. */
#define TEGROUP_IMPLEMENTATION
#include "support.h"
#include "quantize.h"
#include "test.h"

static tegroup_error error;

static void report(const quantizing *q, tegroup_status status) {
    fprintf(stderr, "%s: %s %s (%ld, %ld)\n", tegroup_status_name(status), error.field, error.rule, (long)error.expected, (long)error.got);
    (void)q;
}

static void check_one(rng *r, tegroup_scaling scaling, int64_t rows, int64_t cols) {
    void *mark = guards_mark();
    quantizing q;
    quantizing_make(&q, r, scaling, rows, cols);
    expect_all(&q);
    const tegroup_status status = tegroup_quantize(&q.desc, NULL, &error);
    if (status != TEGROUP_OK) report(&q, status);
    ASSERT_EQ(status, TEGROUP_OK);
    const int64_t wrong = unexpected_bytes();
    if (wrong != 0)
        fprintf(stderr, "scaling %d, preset %d, input %s, %s%s, %d parts, order %d, copies %d%d\n", (int)q.scales[0].scaling, (int)q.preset,
                tegroup_dtype_name(q.desc.input.dtype), q.scales[0].ragged ? "ragged" : "uniform", q.scales[0].listed ? ", lists" : "", (int)q.scales[0].parts,
                (int)q.desc.output.columnwise_order, q.has[0], q.has[1]);
    ASSERT_EQ(wrong, 0);
    ASSERT_EQ(guards_changed(), 0);
    guards_release(mark);
}

#define EVERY_BYTE(name, scaling)                                                                  \
    TEST(quantize, every_byte_of_##name) {                                                         \
        rng r = rng_seed(9100 + TEGROUP_SCALING_##scaling);                                        \
        for (int64_t i = scaled(60); i > 0; i--) {                                                 \
            check_one(&r, TEGROUP_SCALING_##scaling, i % 10 == 0 ? 300 : 40, i % 7 == 0 ? 600 : 150); \
            ASSERT_PASSING();                                                                      \
        }                                                                                          \
    }
EVERY_BYTE(tensor, TENSOR)
EVERY_BYTE(row, ROW)
EVERY_BYTE(blocks_of_1x128, BLOCK_1X128)
EVERY_BYTE(blocks_of_128x128, BLOCK_128X128)
EVERY_BYTE(blocks_of_32x32, BLOCK_32X32)
EVERY_BYTE(mxfp8, MXFP8)
EVERY_BYTE(mxfp8_32x32, MXFP8_32X32)
EVERY_BYTE(mxfp4, MXFP4)
EVERY_BYTE(nvfp4, NVFP4)
EVERY_BYTE(nvfp4_16x16, NVFP4_16X16)

TEST_MAIN()
