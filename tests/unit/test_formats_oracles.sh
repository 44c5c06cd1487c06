#!/bin/sh
# Conversions and scale rules against others' arithmetic: ml_dtypes and numpy, and the CUDA toolkit's host functions. One line a
# test: ok NAME | not ok NAME | skip NAME reason. The exit status is 1 if a test failed.
set -u
cd "$(dirname "$0")/../.." || exit
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}
nvcc=${NVCC:-${CUDA_HOME:-/usr/local/cuda}/bin/nvcc}
toolkit=${nvcc%/bin/nvcc}/include
failed=0
report() { # exit status, name; what was said is in $work/log
    if [ "$1" -eq 0 ]; then echo "ok formats_$2"; else echo "not ok formats_$2"; failed=1; sed 's/^/    /' "$work/log"; fi
}
python_oracle() { # name, flags of the library
    # shellcheck disable=SC2086 # a list of flags
    ${CC:-cc} -std=gnu11 $2 -shared -fPIC -I. tests/unit/check_formats.c -o "$work/$1.so" -lm > "$work/log" 2>&1 &&
        "$python" tests/unit/check_formats.py "$work/$1.so" > "$work/log" 2>&1
    report $? "$1"
}

if "$python" -c 'import numpy, ml_dtypes; ml_dtypes.float4_e2m1fn' 2> /dev/null; then
    python_oracle equal_ml_dtypes_and_the_sources_of_the_rules -O1
    python_oracle are_the_same_with_fast_math '-O2 -ffast-math'
else
    echo "skip formats_equal_ml_dtypes_and_the_sources_of_the_rules needs numpy and ml_dtypes: $python -m pip install numpy ml_dtypes"
fi

if [ ! -e "$toolkit/cuda_fp4.h" ]; then
    echo "skip formats_equal_those_of_the_CUDA_toolkit needs the toolkit's headers: tests/compile/toolkit.sh 13.0"
elif ! command -v "${CXX:-g++}" > /dev/null; then
    echo "skip formats_equal_those_of_the_CUDA_toolkit needs g++: apt-get install g++"
else
    ${CXX:-g++} -std=c++17 -O1 -I. -isystem "$toolkit" tests/unit/check_formats_toolkit.cpp -o "$work/toolkit" > "$work/log" 2>&1 && "$work/toolkit" > "$work/log" 2>&1
    report $? equal_those_of_the_CUDA_toolkit
fi
exit $failed
