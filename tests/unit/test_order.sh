#!/bin/sh
# No unit test depends on another: each program of build/ passes in a shuffled order, and each of its tests passes alone, on a
# tenth of the problems. TEGROUP_SHUFFLE=SEED asks for the order of an earlier run. One line a program and way: ok NAME | not ok NAME.
# The exit status is 1 if one failed.
set -u
cd "$(dirname "$0")/../.." || exit
export TEGROUP_TEST_SCALE=0.1
unset SUITE # a tenth of the problems of the quick suite
seed=${TEGROUP_SHUFFLE:-$(date +%s)} failed=0
log=$(mktemp) && trap 'rm -f "$log"' EXIT

report() { # exit status, name; what went wrong is in $log
    if [ "$1" -eq 0 ]; then echo "ok $2"; else echo "not ok $2"; failed=1; grep -avE '^(begin|ok|skip) ' "$log" | sed 's/^/    /'; fi
}
for source in tests/unit/test_*.c; do
    name=$(basename "$source" .c)
    "build/$name" --shuffle="$seed" > "$log" 2>&1
    report $? "shuffled_$name"
    [ "$("build/$name" --list | wc -l)" -gt 0 ] && "build/$name" --list | while read -r test; do
        "build/$name" --filter="$test" > "$log.one" 2>&1 || cat "$log.one"
    done > "$log"
    [ ! -s "$log" ]
    report $? "alone_$name"
    rm -f "$log.one"
done
exit $failed
