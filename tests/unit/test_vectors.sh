#!/bin/sh
# The CPU backend with the vectors of processors and compilers that the suites do not build for: test_gemm and
# test_quantised_gemm on a fiftieth of their problems. Lines: ok NAME | not ok NAME | skip NAME reason.
set -u
cd "$(dirname "$0")/../.." || exit 1
work=build/vectors
rm -rf $work && mkdir -p $work || exit 1
failed=0

try() { # name, what runs a program, compiler and options
    name=$1 run=$2
    shift 2
    for test in gemm quantised_gemm; do
        program=$work/$name.$test
        if "$@" -std=gnu11 -O1 -w -DTEGROUP_IMPLEMENTATION= -I. -Itests/unit "tests/unit/test_$test.c" \
                -o "$program" -lm > "$program.log" 2>&1 \
            && TEGROUP_TEST_SCALE=0.02 $run "$program" > "$program.log" 2>&1; then
            echo "ok vectors_${name}_$test"
        else
            echo "not ok vectors_${name}_$test"
            grep -v '^ok' "$program.log" | tail -n 20
            failed=1
        fi
    done
}

if [ "$(uname -m)" = x86_64 ]; then
    try avx '' "${CC:-cc}" -mavx # vectors of floats alone
    if command -v clang > /dev/null; then try clang_unsigned '' clang -mavx2 -mfma -mf16c -funsigned-char; fi
    # gcc before 12 shuffles by another function, which later ones have, too
    if "${CC:-cc}" --version | grep -q 'Free Software'; then
        try gcc_11 '' "${CC:-cc}" -U__GNUC__ -D__GNUC__=11 -mavx2 -mfma -mf16c
        try gcc_11_sse2 '' "${CC:-cc}" -U__GNUC__ -D__GNUC__=11
    fi
fi
if command -v aarch64-linux-gnu-gcc > /dev/null && command -v qemu-aarch64 > /dev/null; then
    try aarch64 qemu-aarch64 aarch64-linux-gnu-gcc -static
else
    echo 'skip vectors_aarch64 needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user'
fi
exit $failed
