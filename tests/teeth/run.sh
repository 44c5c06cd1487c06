#!/bin/sh
# Plant the faults of faults.txt in the library, one by one, and run the unit tests against each: tests/teeth/run.sh [NAME...]
#
# Each fault has its own copy of src/, stitched, in build/teeth/. The test that should catch it runs first, the others only if
# it does not. One line a fault: "caught NAME by TEST", "MISSED NAME", or "ERROR NAME what" for a fault that is stale or does
# not compile. The last line counts those caught: "teeth N/N".
set -u
cd "$(dirname "$0")/../.." || exit 1
self=tests/teeth/run.sh
work=build/teeth
faults=tests/teeth/faults.txt
: "${CC:=cc}" "${OPENMP=-fopenmp}" "${TEETH_JOBS:=2}" "${TEGROUP_TEST_SCALE:=0.05}" "${OMP_WAIT_POLICY:=passive}"
export CC OPENMP TEGROUP_TEST_SCALE OMP_WAIT_POLICY

# -march=native: the CPU's vectors have faults, too; those of AVX-512 leave out what the others need for a second panel of A.
vectors=-march=native
[ "$(uname -m)" != x86_64 ] || vectors="$vectors -mno-avx512f"

try() { # directory that holds tegroup.h, test; 0 passed, 1 failed, 2 does not compile
    # shellcheck disable=SC2086 # options; a test that links the library elsewhere holds it here
    $CC -std=gnu11 -O1 $vectors $OPENMP -w -DTEGROUP_IMPLEMENTATION= -I"$1" -I. -Itests/unit "tests/unit/$2.c" -o "$1/$2" -lm > "$1/$2.log" 2>&1 || return 2
    timeout 60 "$1/$2" > "$1/$2.log" 2>&1 || return 1
}

if [ "${1-}" = --baseline ]; then
    mkdir "$work/$2" && cp tegroup.h "$work/$2/" && try "$work/$2" "$2" && exit 0
    echo "ERROR $2 does not pass without a fault"
    tail -n 20 "$work/$2/$2.log"
    exit 1
fi

if [ "${1-}" = --plant ]; then
    dir=$work/$2
    mkdir -p "$dir" && cp -R src "$dir/src" || exit 1
    # shellcheck disable=SC2046
    wrong=$(awk -v fault="$2" -f tests/teeth/plant.awk $faults $(find "$dir/src" -name '*.h')) \
        && tools/stitch.sh "$dir/src/tegroup.parts" > "$dir/tegroup.h" && exit 0
    echo "ERROR $2 $wrong"
    exit 1
fi

if [ "${1-}" = --fault ]; then
    dir=$work/$2
    expected=$(sed -n "s/^$2: \(test_[a-z_]*\): .*/\1/p" $faults)
    line="MISSED $2"
    for test in $expected $(ls tests/unit | sed -n 's/^\(test_.*\)\.c$/\1/p' | grep -vx "$expected"); do
        try "$dir" "$test"
        case $? in
        1) line="caught $2 by $test"; name=$(sed -n 's/^not ok \([^ ]*\).*/\1/p' "$dir/$test.log" | head -n 1)
           line="$line${name:+ ($name)}"; break ;;
        2) line="ERROR $2 does not compile with $test: $(grep -m 1 error "$dir/$test.log")"; break ;;
        esac
    done
    echo "$line"
    echo "$line" >> $work/results
    case $line in caught*) rm -rf "$dir" ;; esac
    exit 0
fi

each() { xargs -n 1 -P "$TEETH_JOBS" sh $self "$1"; } # mode; names on standard input

rm -rf $work && mkdir -p $work || exit 1
if [ $# -eq 0 ]; then sed -n 's/^\([a-z0-9_]*\): test_.*/\1/p' $faults; else printf '%s\n' "$@"; fi > $work/names
[ -z "$(sort $work/names | uniq -d)" ] || { echo "ERROR two faults have one name: $(sort $work/names | uniq -d)"; exit 1; }
each --plant < $work/names || exit 1
ls tests/unit | sed -n 's/^\(test_.*\)\.c$/\1/p' | each --baseline || exit 1
touch $work/results
each --fault < $work/names
caught=$(grep -c '^caught ' $work/results)
all=$(wc -l < $work/names)
echo "teeth $caught/$((all))"
[ "$caught" -eq "$all" ]
