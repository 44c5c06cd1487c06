#!/bin/sh
# GPU tests without a GPU: programs of tests/gpu, compiled to PTX, run on the emulator of this folder, which is a CUDA runtime.
#
#   run.sh [PROGRAM...]   those, or the usual ones, on problems that TEGROUP_TEST_SCALE makes few (0.002)
#
# Prints "ok PROGRAM: TEST" a test. First the emulator must find mistakes that are planted in kernels. Needs nvcc and g++.
set -u
cd "$(dirname "$0")/../.." || exit
out=build/emulator
nvcc=${NVCC:-$(command -v nvcc || true)}
[ -n "$nvcc" ] || { echo "skip emulated needs nvcc: set NVCC or put it on PATH"; exit 0; }
command -v g++ >/dev/null || { echo "skip emulated needs g++: apt-get install g++"; exit 0; }
export TEGROUP_TEST_SCALE="${EMULATED_SCALE:-0.002}" TEGROUP_TEST_BACKENDS=sm90,portable LD_LIBRARY_PATH="$PWD/$out"
programs=${*:-test_quantize_gpu test_formats_gpu test_fp8_gpu test_moe_layer_gpu test_decoded_gpu test_pairs_gpu test_ep_gpu}
failed=0
mkdir -p $out
# shellcheck disable=SC2086,SC2046 # a list of names
if ! make -f tests/emulator/build.mk -s -j"$(getconf _NPROCESSORS_ONLN)" OUT=$out NVCC="$nvcc" $out/mistakes $(printf "$out/%s " $programs) >$out/build.log 2>&1; then
    grep -E 'error|Error' $out/build.log | head -n 20
    echo 'not ok emulator_builds'
    exit 1
fi
echo 'ok emulator_builds'

# What must be said of each mistake: with one of twenty seeds, for what goes wrong in some order only, and of its absence with all.
$out/mistakes list >$out/mistakes.list
while IFS=, read -r name text; do
    seed=1 said=
    while [ $seed -le 20 ]; do
        said=$(EMULATOR_SEED=$seed timeout 60 $out/mistakes "$name" 2>&1 </dev/null)
        case $said in *"$text"*) [ "$text" = 'the right sum' ] || break ;; *) [ "$text" != 'the right sum' ] || break ;; esac
        seed=$((seed + 1))
    done
    case $said in
    *"$text"*) echo "ok emulator: $name" ;;
    *) echo "not ok emulator: $name: $said"; failed=1 ;;
    esac
done <$out/mistakes.list
[ "$(grep -c , $out/mistakes.list)" -ge 16 ] || { echo 'not ok emulator: mistakes are missing'; failed=1; }

run() { # program, what its tests are told as, its arguments
    program=$1 as=$2 log=$out/$1.log
    shift 2
    timeout "${EMULATED_SECONDS:-900}" $out/"$program" "$@" >"$log" 2>&1
    code=$?
    sed -nE "s/^(not )?ok /\1ok $as: /p; /^skip /p" "$log"
    [ $code -eq 0 ] && return
    failed=1
    grep -avE '^(begin|ok|skip) ' "$log" | tail -n 20
    grep -aq '^not ok ' "$log" || echo "not ok $as: exit $code"
}
for program in $programs; do
    if [ "$program" = test_decoded_gpu ]; then # its large products take minutes here
        usual=$TEGROUP_TEST_SCALE
        TEGROUP_TEST_SCALE=${EMULATED_SCALE:-0.1}
        run "$program" "$program" '--filter=decoded_gpu.weights_*'
        run "$program" "$program" '--filter=decoded_gpu.every_code*'
        TEGROUP_TEST_SCALE=$usual
        continue
    fi
    run "$program" "$program"
    [ "$program" != test_moe_gpu ] ||
        EMULATOR_TOGETHER=1 run "$program" "$program, no grid runs together" --filter=moe_gpu.permutation_equals_the_cpus
done
exit $failed
