#!/bin/sh
# The whole compile matrix: the cells of run.sh, then the CUDA half under two releases of nvcc for every architecture, with each
# switch, in each dialect, and against the headers of CUDA 12.4 and cuBLAS 12.4. A CUDA cell prints its seconds and the bytes of
# its object. The last line counts. Wheels of PyPI supply what is not installed.
# Usage: matrix.sh [architecture ...]; MATRIX_FLAGS='-DTEGROUP_NO_PORTABLE -DTEGROUP_NO_SM90' for a quick try of the script
set -u
self=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$self/../.." && pwd)
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
architectures=${*:-80 86 89 90a 100a 120a}
python=${PYTHON:-python3}
printf '#include "tegroup.h"\n' > "$work/unit.cu"

cell() { # name, nvcc and its options
    name=$1
    shift
    begin=$(date +%s%N)
    # shellcheck disable=SC2086 # MATRIX_FLAGS is a list of options
    if said=$("$@" ${MATRIX_FLAGS:-} -O3 -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror -DTEGROUP_IMPLEMENTATION -DTEGROUP_EXTERN -I"$root" \
        -c "$work/unit.cu" -o "$work/unit.o" 2>&1) && [ -z "$said" ]; then
        printf 'ok %-44s %6d ms %9d bytes\n' "$name" $((($(date +%s%N) - begin) / 1000000)) "$(wc -c < "$work/unit.o")"
    else
        echo "not ok $name"
        printf '%s\n' "$said" | head -n 20 | sed 's/^/    /'
    fi
}
code() { echo "-gencode arch=compute_$1,code=sm_$1"; }

toolkit() { # release
    if ! nvcc=$("$self/toolkit.sh" "$1" 2> "$work/why"); then
        echo "skip nvcc $1 $(tail -n 1 "$work/why")"
        return
    fi
    version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
    for architecture in $architectures; do
        # shellcheck disable=SC2046
        cell "nvcc $version sm_$architecture" "$nvcc" -std=c++17 $(code "$architecture")
    done
    # The formats' kernels take minutes. They are left out where nothing depends on them: they use no sm90, cuBLASLt or router, and
    # C++14 takes what C++11 and C++17 take.
    for dialect in 11 20 '14 -DTEGROUP_NO_FP8'; do
        # shellcheck disable=SC2046,SC2086 # a switch of its own
        cell "nvcc $version sm_90a C++$dialect" "$nvcc" -std=c++$dialect $(code 90a) -DTEGROUP_NO_PORTABLE
    done
    for switches in 'NO_SM90 NO_FP8' NO_PORTABLE 'NO_CUBLASLT NO_FP8' NO_CUDA NO_F16 NO_BACKWARD NO_ACTIVATION 'NO_MOE NO_FP8' 'NO_EP NO_FP8' NO_FP8 'NO_SM90 NO_PORTABLE' 'NO_SM90 NO_PORTABLE NO_CUBLASLT' \
        'NO_F16 NO_BACKWARD NO_ACTIVATION NO_MOE NO_EP NO_FP8' 'NO_SM90 NO_PORTABLE NO_CUBLASLT NO_F16 NO_BACKWARD NO_ACTIVATION NO_MOE NO_EP NO_FP8'; do
        # shellcheck disable=SC2046
        cell "nvcc $version sm_90a $switches" "$nvcc" -std=c++17 $(code 90a) $(printf -- ' -DTEGROUP_%s' $switches)
    done
}

# PyPI has no nvcc of 12.4, so nvcc 13.0 compiles with 12.4's headers before its own: a function or a constant that 12.4 lacks is an error.
old_headers() {
    home=$root/build/cuda-12.4
    if [ ! -e "$home/complete" ]; then
        rm -rf "$home" && mkdir -p "$home"
        if ! "$python" -m pip download -q --no-deps --only-binary=:all: -d "$home/wheels" 'nvidia-cuda-runtime-cu12==12.4.*' 'nvidia-cublas-cu12==12.4.*' 2> "$work/why"; then
            echo "skip CUDA 12.4 headers $(tail -n 1 "$work/why")"
            return
        fi
        "$python" - "$home" <<'PYTHON' || return
import glob, sys, zipfile
for wheel in glob.glob(sys.argv[1] + "/wheels/*.whl"):
    with zipfile.ZipFile(wheel) as z:
        z.extractall(sys.argv[1], [n for n in z.namelist() if "/include/" in n])
PYTHON
        rm -rf "$home/wheels"
        touch "$home/complete"
    fi
    nvcc=$("$self/toolkit.sh" 13.0 2> /dev/null) || { echo "skip CUDA 12.4 headers no nvcc 13.0"; return; }
    cat > "$work/unit.cu" <<'CUDA'
#include <cublasLt.h>
#include "tegroup.h"
#if CUDART_VERSION / 10 != 1204 || CUBLAS_VER_MAJOR != 12 || CUBLAS_VER_MINOR != 4
#error "these are not the headers of CUDA 12.4 and cuBLAS 12.4"
#endif
static_assert(sizeof(cudaStream_t) == sizeof(struct CUstream_st *), "");
cublasLtHandle_t a_handle_is_what_a_descriptor_takes(tegroup_gemm_desc *desc) { return desc->cublaslt; }
CUDA
    # shellcheck disable=SC2046
    cell 'CUDA 12.4 headers, sm_90a' "$nvcc" -std=c++17 $(code 90a) -I"$home/nvidia/cuda_runtime/include" -I"$home/nvidia/cublas/include"
}

{
    [ -n "${MATRIX_FLAGS:-}" ] || "$self/run.sh"
    toolkit 13.0
    toolkit newest
    old_headers
} | tee "$work/log"
awk '/^ok /{ok++} /^not ok/{bad++} /^skip /{skipped++} END {printf "%d passed, %d failed, %d skipped\n", ok, bad, skipped; exit bad > 0 || ok == 0}' "$work/log"
