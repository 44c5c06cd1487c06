#!/bin/sh
# Routers of models against numpy (check_router.py), and the table of docs/router.md. One line a test: ok NAME | not ok NAME | skip NAME reason. The exit status
# is 1 if it failed.
set -u
cd "$(dirname "$0")/../.." || exit
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}
"$python" -c 'import numpy' 2> /dev/null || { echo "skip routers_equal_those_of_models needs numpy: $python -m pip install numpy"; exit 0; }
printf '#define TEGROUP_IMPLEMENTATION\n#define TEGROUP_EXTERN\n#include "tegroup.h"\n' > "$work/library.c"
if ${CC:-cc} -std=gnu11 -O1 -shared -fPIC -I. "$work/library.c" -o "$work/libtegroup.so" -lm > "$work/log" 2>&1 &&
    "$python" tests/unit/check_router.py "$work/libtegroup.so" > "$work/log" 2>&1; then
    echo "ok routers_equal_those_of_models"
    exit 0
fi
sed 's/^/    /' "$work/log"
echo "not ok routers_equal_those_of_models"
exit 1
