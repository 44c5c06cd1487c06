#!/bin/sh
# examples/ep over NCCL on the GPUs of this machine: results against one rank, every fault, and times. One line a test, as in
# tests/run.sh, and what the program printed; the exit status is 1 if a test failed.
#
#   NCCL_HOME=FOLDER tests/gpu/ep.sh [RANKS]     FOLDER has nccl.h and libnccl.so.2 (2.30.7 or later), or include/ and lib/ with
#                                                them; by default that of the wheel nvidia-nccl-cu13. RANKS: by default 2
#
# EP_NCCL names a program that was built before, here or elsewhere: nothing is compiled.
#
# NCCL_EP_HOME=FOLDER: NCCL EP, which runs beside for comparison, and compiles its kernels itself. FOLDER has include/nccl_ep.h
# and lib/cu13/ or lib/; by default that of the wheel nccl-extensions, which wants NCCL 2.30.7. A failure of its is no test's.
set -u
cd "$(dirname "$0")/../.." || exit
ranks=${1:-2} failed=0
nvcc=${NVCC:-$(command -v nvcc || true)} program=${EP_NCCL:-build/ep_nccl}
[ -n "$nvcc${EP_NCCL:-}" ] || { echo "skip ep_nccl needs nvcc: set NVCC or put it on PATH"; exit 0; }
[ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge "$ranks" ] || { echo "skip ep_nccl needs $ranks GPUs"; exit 0; }
home=${NCCL_HOME:-$(${PYTHON:-python3} -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2>/dev/null)}
[ -n "$home" ] || { echo "skip ep_nccl needs NCCL: pip install nvidia-nccl-cu13, or set NCCL_HOME"; exit 0; }
include=$home lib=$home
[ ! -d "$home/include" ] || include=$home/include
[ ! -d "$home/lib" ] || lib=$home/lib
export LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
mkdir -p build
log=build/ep_nccl.log

report() { # status, name
    if [ "$1" -eq 0 ]; then echo "ok $2"; else echo "not ok $2"; failed=1; fi
    sed 's/^/    /' "$log" | head -n 20
}
if [ -z "${EP_NCCL:-}" ]; then
    split=$("$nvcc" --help | grep -q -e --split-compile && echo -split-compile=0)
    # shellcheck disable=SC2086 # an option or none
    "$nvcc" -std=c++17 -O2 -w -gencode arch=compute_90a,code=sm_90a $split -I. -I"$include" \
        examples/ep/ep_nccl.cu -o "$program" -L"$lib" -Xlinker -l:libnccl.so.2 >"$log" 2>&1
    report $? ep_nccl_builds
    [ $failed -eq 0 ] || exit 1
fi

runs() { # name, words in order: each in a line of its own that begins with ok; arguments
    name=$1 words=$2; shift 2
    timeout 100 "$program" --ranks "$ranks" "$@" >"$log" 2>&1
    said=$?
    echo "$words" | while IFS= read -r word; do grep -q "^ok .*$word" "$log" || exit 1; done && [ $said -eq 0 ]
    report $? "ep_nccl_$name"
}
refuses() { # fault, words: one line with them on stderr, exit status 1, in time
    timeout 60 "$program" --ranks "$ranks" --timeout 2 --fault "$1" >"$log" 2>&1
    [ $? -eq 1 ] && grep -q "^ep_nccl: rank [0-9]*: .*$2" "$log" && ! grep -q '^ok ' "$log"
    report $? "ep_nccl_fault_$1"
}
runs windows 'stores into windows
FP8 with 1x128 scales
100 replays have the bits of the calls'
for once in tokens sums; do
    kin='have the bits of one rank'
    [ $once = tokens ] || kin='are within roundings of those of one rank'
    runs windows_${once}_once "stores into windows: .*$kin
FP8 with 1x128 scales
100 replays have the bits of the calls" --$once-once
done
runs messages 'by messages' --messages
refuses gone 'did not come within 2 s'
refuses late 'did not come within 2 s'
refuses counts 'does not have the same counts'
refuses small 'is too small'
refuses misaligned 'windows.addresses must be 256-byte aligned'
# One rank beside all of them, with as many experts and as many tokens as each of them has.
timed() { # model, its experts, tokens
    layer 1 "$1" "$2" "$3"
    one=$layer
    for once in '' --tokens-once --sums-once; do
        layer "$ranks" "$1" "$2" "$3" $once
        [ "$layer" -eq 0 ] || echo "    weak scaling, $1, $3 tokens a rank, $ranks ranks $once against one: $((100 * one / layer))%"
    done
}
layer() { # ranks, model, the experts of all, tokens, options: its microseconds, 0 where there are none
    of=$1 model=$2 tokens=$4 experts=$(($3 / ranks * $1))
    shift 4
    timeout 100 "$program" --ranks "$of" --bench "$tokens" --model "$model" --experts "$experts" "$@" >"$log" 2>&1
    report $? "ep_nccl_times_${model}_${tokens}_tokens_of_$of$*"
    layer=$(sed -n 's/.*: layer \([0-9]*\) us.*/\1/p' "$log")
    layer=${layer:-0}
}
for tokens in 4096 32768; do
    timed dsv3 256 $tokens
    timed qwen3-30b 128 $tokens
done

ep_home=${NCCL_EP_HOME:-$(${PYTHON:-python3} -c 'import nccl as n; print(list(n.__path__)[0] + "/ep")' 2>/dev/null)}
[ -f "$ep_home/include/nccl_ep.h" ] ||
    { echo "skip nccl_ep needs NCCL EP: pip install nccl-extensions, or set NCCL_EP_HOME"; exit $failed; }
[ -n "$nvcc" ] || { echo "skip nccl_ep needs nvcc when it runs: set NVCC or put it on PATH"; exit $failed; }
ep_lib=$ep_home/lib
[ ! -d "$ep_lib/cu13" ] || ep_lib=$ep_lib/cu13
# The wheel's file has not the name by which programs look for it; libcuda, which it wants, is the driver's.
cp -f "$ep_lib/libnccl_ep.so" build/libnccl_ep.so.0
export LD_LIBRARY_PATH="$PWD/build:$LD_LIBRARY_PATH" NCCL_EP_JIT_NVCC="$nvcc"
export NCCL_EP_JIT_SOURCE_DIR="$ep_home/include/nccl_ep" NCCL_EP_JIT_BUILD_INCLUDE_DIR="$include"
export NCCL_EP_JIT_CUDA_INCLUDE_DIR="${nvcc%/bin/nvcc}/include"
"$nvcc" -std=c++20 -O2 -w -gencode arch=compute_90a,code=sm_90a -I. -I"$include" -I"$ep_home/include" \
    tests/bench/bench_nccl_ep.cu -o build/bench_nccl_ep -L"$lib" -L"$ep_lib" -Xlinker -l:libnccl.so.2 \
    -Xlinker -l:libnccl_ep.so -Xlinker --allow-shlib-undefined >"$log" 2>&1 ||
    { echo "skip nccl_ep does not build"; sed 's/^/    /' "$log" | head -n 20; exit $failed; }
# Its kernels are compiled when they are first used: all at once, before any is timed.
for model in dsv3 qwen3-30b; do
    for way in '4096 permute' '4096 local' '4096 nvlink' '32768 permute' '32768 local' '32768 nvlink' '128 latency'; do
        timeout 100 build/bench_nccl_ep --ranks "$ranks" --model $model --tokens "${way% *}" --mode "${way#* }" \
            --calls 1 >/dev/null 2>&1 &
    done
done
wait
beside() { # model, tokens, mode
    if timeout 100 build/bench_nccl_ep --ranks "$ranks" --model "$1" --tokens "$2" --mode "$3" >"$log" 2>&1; then
        echo "ok nccl_ep_times_$1_$2_tokens_$3"
    else
        echo "skip nccl_ep_times_$1_$2_tokens_$3 did not run to its end"
    fi
    sed 's/^/    /' "$log" | head -n 20
}
for model in dsv3 qwen3-30b; do
    for tokens in 4096 32768; do
        for mode in permute local nvlink; do beside $model $tokens $mode; done
    done
    layer "$ranks" $model "$([ $model = dsv3 ] && echo 256 || echo 128)" 128
    beside $model 128 latency
done
exit $failed
