/* The table of docs/lab/format-errors.md: make bench-errors. */
#define TEGROUP_IMPLEMENTATION
#include "format_errors.h"

int main(void) {
    puts("| data | a | b | error | of the format alone | worst element / bound | 1 - 2 sum(xy) / sum(xx + yy) |\n|---|---|---|---|---|---|---|");
    for (int kind = 0; kind < DATA_KINDS; kind++)
        for (int i = 0; i < FORMAT_PAIRS; i++) {
            const format_error e = format_error_of(&format_pairs[i], kind, 1 + (uint64_t)kind);
            printf("| %s | %s | %s | %.3f%% | %.3f%% | %.3f | %.6f |\n", data_kinds[kind], format_pairs[i].a.name, format_pairs[i].b.name, 100 * e.rms,
                   100 * e.format_rms, e.worst, e.difference);
        }
    return 0;
}
