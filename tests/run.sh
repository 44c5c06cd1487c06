#!/bin/sh
# Run test programs and scripts and count: tests/run.sh PROGRAM...
#
# Programs (tests/unit/test.h) and scripts print a line a test: "ok NAME", "not ok NAME" or "skip NAME REASON". One that fails
# without naming a test counts as one failure. Where CI is "true" a skip is a failure unless its name begins with "gpu":
# everything else can be installed.
passed=0 failed=0 skipped=0
for program in "$@"; do
    log=$(mktemp)
    case $program in
    build/sanitized/*) scale=0.1 ;;
    *) scale=${TEGROUP_TEST_SCALE:-1} ;;
    esac
    TEGROUP_TEST_SCALE=$scale OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} "$program" >"$log" 2>&1
    code=$?
    ok=$(grep -ac '^ok ' "$log")
    bad=$(grep -ac '^not ok ' "$log")
    skip=$(grep -ac '^skip ' "$log")
    if [ "${CI:-}" = true ]; then
        wrong=$(grep -aE '^skip ' "$log" | grep -avcE '^skip gpu')
        bad=$((bad + wrong)) skip=$((skip - wrong))
        [ "$wrong" -eq 0 ] || grep -aE '^skip ' "$log" | sed 's/^/  must not be skipped here: /'
    fi
    [ $code -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
    printf '%-44s %5d passed %3d failed %3d skipped\n' "$program" "$ok" "$bad" "$skip"
    grep -aE '^(statuses|contract|teeth|fuzz|hostile|numerics|[0-9]+ problems x) ' "$log" | sed 's/^/  /'
    [ "${CI:-}" = true ] || grep -aE '^skip ' "$log" | sed 's/^/  /'
    [ "$bad" -eq 0 ] || sed 's/^/  | /' "$log" | tail -n 60
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    rm -f "$log"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
