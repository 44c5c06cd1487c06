/* A product of quantised operands is as far from that of the data as its formats are, and no further. */
#define TEGROUP_EXTERN
#include "format_errors.h"
#include "test.h"

/* Of every data the sums add nothing to what the formats give, element by element; on normal data the difference is within the limits
 * that DeepGEMM asks of its kernels. */
TEST(format_errors, are_those_of_the_formats) {
    for (int kind = 0; kind < DATA_KINDS; kind++)
        for (int i = 0; i < FORMAT_PAIRS; i++) {
            const format_error e = format_error_of(&format_pairs[i], kind, 1 + (uint64_t)kind);
            if (!(e.worst <= 1) || (kind == 0 && e.difference >= format_pairs[i].limit))
                fprintf(stderr, "%s x %s, %s data: worst %g, difference %g\n", format_pairs[i].a.name, format_pairs[i].b.name, data_kinds[kind], e.worst, e.difference);
            ASSERT_LE(e.worst, 1);
            ASSERT_GT(e.format_rms, 0);
            ASSERT_LE(fabs(e.rms / e.format_rms - 1), 1e-3);
            if (kind == 0) ASSERT_LT(e.difference, format_pairs[i].limit);
        }
}

TEST_MAIN()
