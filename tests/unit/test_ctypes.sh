#!/bin/sh
# examples/tegroup_ctypes.py against what a C compiler makes of tegroup.h, and against the library itself. One line a test:
#   ok NAME | not ok NAME | skip NAME reason
# The exit status is 1 if a test failed.
set -u
cd "$(dirname "$0")/../.." || exit
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}
CC=${CC:-cc}
failed=0
report() { # exit status, name; what was said is in $work/log
    if [ "$1" -eq 0 ]; then echo "ok ctypes_$2"; else echo "not ok ctypes_$2"; failed=1; sed 's/^/    /' "$work/log"; fi
}
command -v "$python" > /dev/null || { echo "skip ctypes needs $python: apt-get install python3"; exit 0; }

"$python" tests/unit/check_ctypes.py "$CC" "$work" > "$work/log" 2>&1
report $? layouts_and_constants_are_those_of_C

printf '#define TEGROUP_IMPLEMENTATION\n#define TEGROUP_EXTERN\n#include "tegroup.h"\n' > "$work/library.c"
$CC -std=gnu11 -O1 -shared -fPIC -I. "$work/library.c" -o "$work/libtegroup.so" -lm 2> "$work/log" &&
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=examples "$python" - "$work/libtegroup.so" > "$work/log" 2>&1 <<'PYTHON'
import ctypes, sys
import tegroup_ctypes as tg
library = tg.load(sys.argv[1])
assert library.tegroup_status_name(tg.TEGROUP_ERROR_SHAPE) == b"ERROR_SHAPE"
try:
    library.tegroup_plan_make(tg.tegroup_gemm_desc(), None, tg.tegroup_plan())
except tg.Refused as refused:
    assert refused.status == tg.TEGROUP_ERROR_UNSET and "space" in str(refused), refused
else:
    raise AssertionError("an empty descriptor was taken")

# Y = X W^T on the CPU: experts with 2, 0 and 1 rows
def array(kind, values): return (kind * len(values))(*values)
x, w = [float(i) for i in range(12)], [float(i % 5 - 2) for i in range(36)]
counts, y = array(ctypes.c_int64, [2, 0, 1]), (ctypes.c_float * 9)()
a, b = array(ctypes.c_float, x), array(ctypes.c_float, w)
def aligned(size):
    memory = (ctypes.c_char * (size + tg.TEGROUP_ALIGNMENT))()
    return memory, -(-ctypes.addressof(memory) // tg.TEGROUP_ALIGNMENT) * tg.TEGROUP_ALIGNMENT
layout, plan = tg.tegroup_layout(), tg.tegroup_plan()
rows = library.tegroup_shape_of(3, 3, 4, library.tegroup_sizes_of(counts, tg.TEGROUP_DTYPE_I64, tg.TEGROUP_SPACE_HOST))
library.tegroup_snapshot_layout(rows, layout)
kept, snapshot = aligned(layout.total_bytes)
library.tegroup_shape_prepare(rows, snapshot, layout.total_bytes, None)
assert rows.snapshot == snapshot
desc = tg.tegroup_gemm_desc(op=tg.TEGROUP_OP_FORWARD, space=tg.TEGROUP_SPACE_HOST)
desc.a = library.tegroup_tensor_of(rows, 4, tg.TEGROUP_DTYPE_F32, a)
desc.b = library.tegroup_tensor_uniform(3, 3, 4, tg.TEGROUP_DTYPE_F32, b)
desc.d = library.tegroup_tensor_of(rows, 3, tg.TEGROUP_DTYPE_F32, y)
library.tegroup_plan_make(desc, None, plan)
kept_too, desc.options.workspace = aligned(plan.workspace_bytes)
desc.options.workspace_bytes = plan.workspace_bytes
library.tegroup_gemm(plan, desc, None)
for row, expert in enumerate([0, 0, 2]):
    for j in range(3):
        wanted = sum(x[4 * row + i] * w[12 * expert + 4 * j + i] for i in range(4))
        assert y[3 * row + j] == wanted, (row, j, y[3 * row + j], wanted)
PYTHON
report $? drives_the_library
exit $failed
