#!/bin/sh
# Layouts of scales against numpy (check_layouts.py). One line a test: ok NAME | not ok NAME | skip NAME reason. The exit status
# is 1 if it failed.
set -u
cd "$(dirname "$0")/../.." || exit
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}
"$python" -c 'import numpy' 2> /dev/null || { echo "skip layouts_equal_those_of_numpy needs numpy: $python -m pip install numpy"; exit 0; }
printf '#define TEGROUP_IMPLEMENTATION\n#define TEGROUP_EXTERN\n#include "tegroup.h"\n' > "$work/library.c"
if ${CC:-cc} -std=gnu11 -O1 -shared -fPIC -I. "$work/library.c" -o "$work/libtegroup.so" -lm > "$work/log" 2>&1 &&
    "$python" tests/unit/check_layouts.py "$work/libtegroup.so" > "$work/log" 2>&1; then
    echo "ok layouts_equal_those_of_numpy"
    exit 0
fi
sed 's/^/    /' "$work/log"
echo "not ok layouts_equal_those_of_numpy"
exit 1
