#!/bin/sh
# The GPU benchmark without a GPU: its problems, floors, turns, tables and required ratios, and its descriptors against the library.
# One line a test: ok NAME | not ok NAME | skip NAME reason. The exit status is 1 if a test failed.
set -u
cd "$(dirname "$0")/../.." || exit
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}
command -v "$python" > /dev/null || { echo "skip bench_tables needs $python: apt-get install python3"; exit 0; }
printf '#define TEGROUP_IMPLEMENTATION\n#define TEGROUP_EXTERN\n#include "tegroup.h"\n' > "$work/library.c"
${CC:-cc} -std=gnu11 -O1 -shared -fPIC -I. "$work/library.c" -o "$work/libtegroup.so" -lm || { echo "not ok bench_library_builds"; exit 1; }
"$python" tests/unit/check_bench_tables.py "$work"
failed=$?

# No format's loss leaves BF16's by more than 3% above, and each falls to half of where it began.
awk -F, 'NR == 1 { formats = NF; next }
    { for (i = 4; i <= formats; i++) { if ($i > 1.03 * $3 || $i <= 0) wrong = 1; if (NR == 2) first[i] = $i; last[i] = $i } }
    END { for (i = 4; i <= formats; i++) if (last[i] > first[i] / 2) wrong = 1; exit wrong || NR < 40 || formats < 8 }' tests/bench/losses.csv
if [ $? -eq 0 ]; then echo 'ok bench_no_format_diverges'; else echo 'not ok bench_no_format_diverges'; failed=1; fi
exit $failed
