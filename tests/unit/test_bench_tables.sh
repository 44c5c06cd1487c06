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
