#!/bin/sh
# Prints the path of an nvcc of the release asked for, unpacking it from PyPI's wheels into build/ at the first call.
# Usage: toolkit.sh 13.0 | newest
set -eu
cd "$(dirname "$0")/../.."
release=$1
home=$PWD/build/cuda-$release
if [ ! -e "$home/complete" ]; then
    rm -rf "$home" && mkdir -p "$home"
    fetch() { "${PYTHON:-python3}" -m pip download -q --no-deps --only-binary=:all: -d "$home/wheels" "$@" >&2; }
    if [ "$release" = newest ]; then fetch nvidia-cuda-nvcc; else fetch "nvidia-cuda-nvcc==$release.*"; fi
    wheel=$(basename "$home"/wheels/nvidia_cuda_nvcc-*.whl)
    release=$(echo "$wheel" | sed 's/nvidia_cuda_nvcc-\([0-9]*\.[0-9]*\).*/\1/')
    fetch "nvidia-nvvm==$release.*" "nvidia-cuda-crt==$release.*" "nvidia-cuda-runtime==$release.*" "nvidia-cuda-cccl==$release.*"
    for wheel in "$home"/wheels/*.whl; do "${PYTHON:-python3}" -m zipfile -e "$wheel" "$home"; done
    rm -rf "$home/wheels"
    chmod +x "$home"/nvidia/cu13/bin/* "$home"/nvidia/cu13/nvvm/bin/* # zipfile drops the modes
    touch "$home/complete"
fi
echo "$home/nvidia/cu13/bin/nvcc"
