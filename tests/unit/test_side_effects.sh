#!/bin/sh
# The library allocates nothing, reads no environment, prints nothing, never exits and keeps no state: by its symbol table,
# and by counting while every function is called. Violations planted in a copy must be caught. One line a test:
#   ok NAME | not ok NAME | skip NAME reason
# The exit status is 1 if a test failed. SUITE=quick looks at one build and counts, SUITE=more does the rest.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
compile=$root/tests/compile
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
CC=${CC:-cc}
failed=0

report() { # exit status wanted, exit status that came, name
    if [ "$1" -eq "$2" ]; then echo "ok $3"; else echo "not ok $3"; failed=1; fi
}
library() { # options; a library object that holds everything, from the tegroup.h in $headers. Not position independent:
            # else the linker must be able to write to constant tables of pointers, and they look like variables
    echo '#include "tegroup.h"' > "$work/library.c"
    $CC -std=gnu11 -fno-pic -I"$headers" -DTEGROUP_EXTERN -DTEGROUP_IMPLEMENTATION "$@" -c "$work/library.c" -o "$work/library.o"
}

# All that the library may take from outside: memory and string primitives, formatting into a buffer, mathematics, threads.
allowed='mem(cpy|set|move|cmp)|strlen|strcmp|strncmp|v?snprintf|__v?snprintf_chk|__mem(cpy|set|move)_chk|_GLOBAL_OFFSET_TABLE_|__stack_chk_fail'
allowed="$allowed|(cbrt|exp|expm1|erfc|log|log1p|sqrt|fma|fmax|fmin|fabs|ldexp|frexp|floor|ceil|rint|nearbyint|round|trunc|pow|tanh|copysign)f?"
openmp='__kmpc_.*|GOMP_(parallel|barrier|loop_.*|critical_(start|end)|single_start)|omp_get_(max_threads|num_threads|thread_num|thread_limit|in_parallel)|omp_in_parallel'

symbols() { # options; 0: takes and keeps nothing else, 1: it does, and says what
    library "$@" || return 3
    taken=$(nm -u "$work/library.o" | awk '{ print $2 }' | grep -vxE "$allowed|$openmp")
    kept=$(nm "$work/library.o" | awk 'NF == 3 && $2 ~ /^[dDbBCsSgG]$/ { print $3 }')
    [ -z "$taken$kept" ] || { [ "$loud" = 0 ] || echo "takes: $taken; keeps:" $kept; return 1; }
}
calls() { # runs every function; 0: nothing was counted, 1: a function misbehaved, 2: something was counted
    library -O0 && $CC -std=gnu11 -O0 -fPIC -shared -fno-builtin "$compile/side_effects_counter.c" -o "$work/libcounter.so" &&
        $CC -std=gnu11 -O0 -I"$headers" "$compile/side_effects_calls.c" "$work/library.o" -no-pie -L"$work" -lcounter -lm -pthread -Wl,-rpath,"$work" -o "$work/calls" || return 3
    if [ "$loud" = 1 ]; then "$work/calls"; else "$work/calls" 2> /dev/null; fi
}

check_symbols() { # options
    if [ "${1#*-fopenmp}" != "$1" ] && ! echo '#include <omp.h>' | $CC -fopenmp -x c -c - -o "$work/probe.o" 2> /dev/null; then
        echo "skip symbols $1 needs OpenMP with $CC: apt-get install libomp-dev"
        return
    fi
    symbols $1
    report 0 $? "symbols $1"
}
check_calls() {
    calls
    report 0 $? 'every function called, nothing counted'
    # The program did call every function that the library exports.
    nm -g --defined-only "$work/library.o" | awk '$2 == "T" { print $3 }' | sort > "$work/exported"
    $CC -std=gnu11 -I"$headers" -c "$compile/side_effects_calls.c" -o "$work/calls.o"
    nm -u "$work/calls.o" | awk '$2 ~ /^tegroup_/ { print $2 }' | sort > "$work/called"
    [ -s "$work/exported" ] && diff "$work/exported" "$work/called"
    report 0 $? "every function is $(grep -c . "$work/exported") functions"
}

# Planted in a copy, at the start of tegroup_gemm_check, which tegroup_gemm calls too.
plant() { # what, a declaration before the functions, a statement
    headers=$work/planted loud=0
    mkdir -p "$headers"
    awk -v declaration="$2" -v statement="$3" '
        /^#define TEGROUP_IMPLEMENTATION_INCLUDED/ { print; print "#include <stdlib.h>"; print "#include <stdio.h>"; print declaration; next }
        /^TEGROUP_API.* tegroup_gemm_check\(/ { inside = 1 }
        inside && /;$/ { inside = 0 }
        inside && /\{$/ { print; print statement; planted = 1; inside = 0; next }
        { print }
        END { exit !planted }' "$root/tegroup.h" > "$headers/tegroup.h" || { report 0 1 "planted $1: no place found"; return 1; }
}
caught() { # by, what
    "$1" $3
    report "$4" $? "planted $2 is caught by its $1"
}
check_planted() {
    plant 'malloc' '' 'free(malloc(8));'                              && caught symbols malloc -O0 1 && caught calls malloc '' 2
    plant 'getenv' '' 'if (getenv("TEGROUP")) return TEGROUP_OK;'     && caught symbols getenv -O2 1 && caught calls getenv '' 2
    plant 'counter' 'static int tegroup_impl_counter;' 'if (++tegroup_impl_counter < 0) return TEGROUP_OK;' && caught symbols counter -O2 1
    plant 'table that can be written' 'static int tegroup_impl_table[2] = {1, 2};' 'tegroup_impl_table[0]++;' && caught symbols table -O0 1
    plant 'print' '' 'puts("tegroup");'                               && caught symbols print -O2 1
    plant 'exit' '' 'if (!plan) exit(1);'                             && caught symbols exit -O2 1
}

headers=$root loud=1
if [ "${SUITE:-all}" != more ]; then
    check_symbols -O2
    check_calls
fi
if [ "${SUITE:-all}" != quick ]; then
    check_symbols -O0
    check_symbols '-O3 -march=native'
    check_symbols '-O2 -fopenmp'
    check_planted
fi
exit $failed
