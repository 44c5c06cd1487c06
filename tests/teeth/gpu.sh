#!/bin/sh
# Plant the faults of gpu_faults.txt in the kernels and run gpu.cu against each on this machine's GPU: tests/teeth/gpu.sh [NAME...]
#
# As tests/teeth/run.sh: one line a fault, "caught NAME by TEST", "MISSED NAME" or "ERROR NAME what"; the last line counts. Of a fault
# only the test that it names is run; the library as it is must pass all of them. TEETH_JOBS faults are compiled at a time. Without
# nvcc or a GPU it says so and skips.
set -u
cd "$(dirname "$0")/../.." || exit 1
self=tests/teeth/gpu.sh
work=build/teeth-gpu
faults=tests/teeth/gpu_faults.txt
: "${NVCC:=nvcc}" "${TEETH_JOBS:=4}"
export NVCC

try() { # directory that holds the headers, which tests; 0 passed, 1 failed, 2 does not compile
    [ -x "$1/gpu" ] || "$NVCC" -std=c++17 -O1 -w -split-compile=0 -gencode "arch=compute_$arch,code=sm_$arch" -I"$1" -I. -Itests/unit -Itests/gpu \
        tests/teeth/gpu.cu -o "$1/gpu" > "$1/log" 2>&1 || return 2
    [ "$compile_only" = 1 ] || timeout 240 "$1/gpu" "--filter=$2" > "$1/log" 2>&1 || return 1
}
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
compile_only=${TEETH_COMPILE_ONLY:-0}
[ "$compile_only" = 0 ] || capability=90
arch=${capability}
[ "$arch" != 90 ] || arch=90a

if [ "${1-}" = --fault ]; then # plant it, compile and run; the name "" is the library as it is
    name=${2:-as_it_is}
    dir=$work/$name
    mkdir -p "$dir" && cp -R src "$dir/src" || exit 1
    if [ "$name" != as_it_is ]; then
        # shellcheck disable=SC2046
        wrong=$(awk -v fault="$name" -f tests/teeth/plant.awk $faults $(find "$dir/src" -name '*.h')) || { echo "ERROR $name $wrong" | tee -a $work/results; exit 0; }
    fi
    tools/stitch.sh "$dir/src/tegroup.parts" > "$dir/tegroup.h" && tools/stitch.sh "$dir/src/tegroup_cuda.parts" > "$dir/tegroup_cuda.cuh"
    tests=$(sed -n "s/^$name: \(teeth\.[a-z0-9_]*\): .*/\1/p" $faults)
    try "$dir" "${tests:-*}"
    case $? in
    0) line="MISSED $name" ;;
    1) test=$(sed -n 's/^not ok \([^ ]*\).*/\1/p' "$dir/log" | head -n 1); line="caught $name by ${test:-an error: $(tail -n 1 "$dir/log")}" ;;
    2) line="ERROR $name does not compile: $(grep -m 1 error "$dir/log")" ;;
    esac
    echo "$line" | tee -a $work/results
    exit 0
fi

[ -n "$capability" ] && command -v "$NVCC" > /dev/null || { echo 'skip gpu_teeth needs a GPU and nvcc'; exit 0; }
rm -rf $work && mkdir -p $work || exit 1
if [ $# -eq 0 ]; then sed -n 's/^\([a-z0-9_]*\): teeth\..*/\1/p' $faults; else printf '%s\n' "$@"; fi > $work/names
touch $work/results
sh $self --fault '' > $work/baseline
grep -q '^MISSED as_it_is' $work/baseline || { cat $work/baseline; tail -n 20 $work/as_it_is/log; echo "not ok gpu_teeth"; exit 1; }
: > $work/results
xargs -n 1 -P "$TEETH_JOBS" sh $self --fault < $work/names
caught=$(grep -c '^caught ' $work/results)
all=$(wc -l < $work/names)
echo "gpu teeth $caught/$((all))"
if [ "$caught" -eq "$all" ]; then echo "ok gpu_teeth"; else echo "not ok gpu_teeth"; exit 1; fi
