#!/bin/sh
# The GPU suite: builds tests/gpu/test_gpu.cu and test_cublaslt.cu for this machine's GPU and runs them; CUBLAS_HOME names
# another cuBLAS than the toolkit's. With "sanitize" as its argument it runs a
# small part under each tool of compute-sanitizer instead. Without nvcc or a GPU it says so and skips.
set -u
cd "$(dirname "$0")/../.."
nvcc=${NVCC:-$(command -v nvcc || true)}
[ -n "$nvcc" ] || { echo "skip gpu_suite nvcc not found"; exit 0; }
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
[ -n "$capability" ] || { echo "skip gpu_suite no GPU"; exit 0; }
mkdir -p build
build() { # program, options
    program=$1
    shift
    "$nvcc" -std=c++17 -O1 -w -gencode "arch=compute_$capability,code=sm_$capability" -I. -Itests/vendor -Itests/unit "$@" \
        "tests/gpu/$program.cu" -o "build/$program" || { echo "not ok gpu_suite_builds $program"; exit 1; }
}
build test_gpu
build test_moe_gpu -DTEGROUP_NO_PORTABLE
failed=0
if [ "${1:-}" = sanitize ]; then
    for tool in memcheck racecheck initcheck synccheck; do
        for program in test_gpu test_moe_gpu; do
            log=build/$tool.$program.log
            refusals= # launches that a test means to be refused are no finding
            [ $tool != memcheck ] || refusals="--report-api-errors no"
            # shellcheck disable=SC2086
            if TEGROUP_TEST_SCALE=0.03 compute-sanitizer --tool $tool $refusals --error-exitcode 9 build/$program >$log 2>&1; then echo "ok $tool $program"
            elif grep -q "not supported" $log; then echo "skip gpu_$tool $program NOT RUN: compute-sanitizer does not support this machine"
            else tail -n 20 $log; echo "not ok $tool $program"; failed=1
            fi
        done
    done
    exit $failed
fi
"$nvcc" -std=c++17 -O1 -w -gencode "arch=compute_$capability,code=sm_$capability" -DTEGROUP_NO_PORTABLE -I. -Itests/vendor -Itests/unit \
    tests/gpu/test_cublaslt.cu -lcublasLt -o build/test_cublaslt || { echo "not ok cublaslt_suite_builds"; exit 1; }
build/test_gpu
failed=$?
LD_LIBRARY_PATH=${CUBLAS_HOME:+$CUBLAS_HOME/lib}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} build/test_cublaslt && exit $failed
exit 1
