#!/bin/sh
# The compile matrix: tegroup.h alone in every mode, language and standard, then linked in every mixture. One line a cell:
#   ok NAME MILLISECONDS ms | not ok NAME (what the compiler said follows) | skip NAME reason
# The exit status is 1 if a cell failed. SUITE=quick runs each promise once in C99 and in C++11, SUITE=more the other cells.
# Usage: run.sh [cells at a time, 2]
set -u

# One cell: a command that must succeed without a word, or (with a message) fail with that message.
if [ "${1-}" = --cell ]; then
    cell=$work/$2
    { read -r name; read -r message; command=$(cat); } < "$cell"
    mkdir "$cell.d" && cd "$cell.d" || exit
    begin=$(date +%s%N)
    said=$(sh -c "$command" 2>&1)
    code=$?
    result='not ok'
    if [ -z "$message" ]; then [ $code -eq 0 ] && [ -z "$said" ] && result=ok
    else [ $code -ne 0 ] && printf '%s\n' "$said" | grep -qF -- "$message" && result=ok; fi
    { echo "$result $name $((($(date +%s%N) - begin) / 1000000)) ms"; [ "$result" = ok ] || printf '%s\n' "$command" "$said" | head -n 20 | sed 's/^/    /'; } > "$cell.result"
    cd "$work" && rm -rf "${cell:?}.d"
    exit 0
fi

self=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$self/../.." && pwd)
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
export root work
number=1000

suite=${SUITE:-all} part=more # what is asked for, and what the cells that follow belong to
wanted() { [ "$suite" = all ] || [ "$suite" = $part ]; }
cell() { # name, message ("" = must succeed), command
    wanted || return 0
    number=$((number + 1))
    printf '%s\n' "$1" "$2" "$3" > "$work/$number"
    echo $number >> "$work/cells"
}
skip() { # name, reason
    wanted || return 0
    number=$((number + 1))
    echo "skip $1 $2" > "$work/$number.result"
}
works() { # a compiler and options: can it build and run a program with the headers that tegroup uses?
    printf '#include <math.h>\n#include <stdio.h>\n#include <string.h>\nint main(void) { return 0; }\n' > "$work/probe.c"
    "$@" "$work/probe.c" -o "$work/probe" > /dev/null 2>&1 && "$work/probe" 2> /dev/null
}

strict='-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wundef -Wredundant-decls -Werror'
static='-DTEGROUP_IMPLEMENTATION'
extern='-DTEGROUP_EXTERN'
both="$extern $static"
switches='-DTEGROUP_NO_F16 -DTEGROUP_NO_BACKWARD -DTEGROUP_NO_ACTIVATION -DTEGROUP_NO_MOE -DTEGROUP_NO_EP -DTEGROUP_NO_FP8'
unit="$self/unit.c"
main="$self/main.c"
mismatch="cp $root/tegroup.h . && sed '/define TEGROUP_CUDA_VERSION/s/\$/9/' $root/tegroup_cuda.cuh > tegroup_cuda.cuh"

# -- tegroup.h alone: mode x standard x compiler --
modes() { # name, compiler and options
    cell "$1 types"    '' "$2 $strict -fsyntax-only $unit"
    cell "$1 extern"   '' "$2 $strict -fsyntax-only $extern $unit"
    cell "$1 static"   '' "$2 $strict -O0 -c $static $unit"
    cell "$1 exported" '' "$2 $strict -O0 -c $both $unit"
}
language() { # compiler, its language, what installs it, standards: gcc and g++ are tried in the quick suite, with the first
    compiler=$1 as=$2 package=$3
    shift 3
    part=more
    case $compiler in gcc | g++) part=quick ;; esac
    first_part=$part
    if ! works "$compiler" -x "$as"; then
        skip "$compiler" "needs $compiler: apt-get install $package"
        part=more
        skip "$compiler, other standards" "needs $compiler: apt-get install $package"
        return
    fi
    for standard; do
        modes "$compiler $standard" "$compiler -x $as -std=$standard -I$root"
        cell "$compiler $standard tegroup_cuda.cuh alone" 'tegroup_cuda.cuh needs nvcc' "$compiler -x $as -std=$standard -fsyntax-only $root/tegroup_cuda.cuh"
        part=more
    done
    first=$1
    if works "$compiler" -m32 -x "$as"; then modes "$compiler $first -m32" "$compiler -m32 -x $as -std=$first -I$root"
    else skip "$compiler $first -m32" "needs a 32-bit C library: apt-get install gcc-multilib g++-multilib"; fi
    if works "$compiler" -fopenmp -x "$as"; then modes "$compiler $first -fopenmp" "$compiler -fopenmp -x $as -std=$first -I$root"
    else skip "$compiler $first -fopenmp" "needs OpenMP with $compiler: apt-get install libomp-dev"; fi
    part=$first_part
    include="$compiler -x $as -std=$first -I$root"
    cell "$compiler included again"            '' "$include $strict -O0 -c $self/twice.c"
    cell "$compiler included again, extern"    '' "$include $strict -O0 -c -DWITH_EXTERN $self/twice.c"
    cell "$compiler misspelt macro (1)"        'the macro is spelt TEGROUP_IMPLEMENTATION' "$include -fsyntax-only -DTEGROUP_IMPLEMENATION $unit"
    cell "$compiler misspelt macro (2)"        'the macro is spelt TEGROUP_IMPLEMENTATION' "$include -fsyntax-only -DTEGROUP_IMPL $unit"
    cell "$compiler misspelt macro (3)"        'the macro is spelt TEGROUP_IMPLEMENTATION' "$include -fsyntax-only -DTEGROUP_IMPLEMENT $unit"
    for pair in FP16:F16 HALF:F16 GRAD:BACKWARD GRADIENT:BACKWARD GRADIENTS:BACKWARD ACTIVATIONS:ACTIVATION ROUTER:MOE PERMUTATION:MOE F8:FP8 QUANTIZE:FP8 HOPPER:SM90 CUBLAS:CUBLASLT; do
        cell "$compiler misspelt switch TEGROUP_NO_${pair%:*}" "TEGROUP_NO_${pair#*:}" "$include -fsyntax-only -DTEGROUP_NO_${pair%:*} $unit"
    done
    cell "$compiler every switch" '' "$include $strict -O0 -c $static $switches -DTEGROUP_NO_SM90 -DTEGROUP_NO_PORTABLE -DTEGROUP_NO_CUBLASLT -DTEGROUP_NO_CUDA $unit"
    cell "$compiler TEGROUP_STATIC"            'there is no TEGROUP_STATIC' "$include -fsyntax-only -DTEGROUP_STATIC $static $unit"
    cell "$compiler TEGROUP_EXTERN too late"   'TEGROUP_EXTERN was defined after tegroup.h' "$include -fsyntax-only $self/late_extern.c"
    cell "$compiler constructors" '' "$include $strict $self/constructors.c -lm -o program && ./program"
    for mode in "$static" -DTEGROUP_EXTERN; do
        for flag in -O0 -O2; do cell "$compiler unwritten memory, $mode $flag" '' "$include $strict $flag -c $mode $self/unwritten.c"; done
    done
    cell "$compiler unread status"             'ignoring return value' "$include -Werror -c $static $self/unread_status.c"
    for flags in -Ofast -O2 -O3 '-O2 -ffast-math'; do
        cell "$compiler promises, $flags" '' "$include $flags $self/promises.c -lm -o program && ./program"
        part=more
    done
    part=$first_part
    cell "$compiler mismatched pair"           'different versions' "$mismatch && $compiler -x $as -D__CUDACC__ -E tegroup.h"
}
language gcc     c   gcc c99 c11 c17 c2x
language clang   c   clang c99 c11 c17 c2x
language g++     c++ g++ c++11 c++14 c++17 c++20
language clang++ c++ clang c++11 c++14 c++17 c++20

# -- Linked: two units with the macro and one without; one exported definition and others that only declare --
program() { # name, first unit's compiler and mode, second unit's, main's compiler, linker
    case "$2 $3 $4 $5" in *g++*) [ "$cxx_works" = 1 ] || { skip "linked, $1" "$needs_cxx"; return; } ;; esac
    cell "linked, $1" '' "$2 -DUNIT=first -O1 -I$root -c $unit -o 1.o && $3 -DUNIT=second -O1 -I$root -c $unit -o 2.o &&
        $4 -O1 -I$root -c $main -o 3.o && $5 1.o 2.o 3.o -lm -o program && ./program"
}
part=quick
c='gcc -x c -std=c99' cxx='g++ -x c++ -std=c++11' cxx_works=0 needs_cxx='needs g++: apt-get install g++'
works g++ -x c++ && cxx_works=1
program 'static twice, C'            "$c $static"   "$c $static"   "$c"   gcc
program 'static twice, C++'          "$cxx $static" "$cxx $static" "$cxx" g++
program 'static twice, C and C++'    "$c $static"   "$cxx $static" "$c"   g++
program 'exported, C'                "$c $both"     "$c $extern"   "$c"   gcc
program 'exported, C++'              "$cxx $both"   "$cxx $extern" "$cxx" g++
program 'exported by C, used by C++' "$c $both"     "$cxx $extern" "$cxx" g++
program 'exported by C++, used by C' "$cxx $both"   "$c $extern"   "$c"   g++
program 'exported beside static'     "$c $both"     "$c $static"   "$c"   gcc
part=more
if works gcc -m32; then program 'static twice, 32 bits' "$c -m32 $static" "$c -m32 $static" "$c -m32" 'gcc -m32'
else skip 'linked, static twice, 32 bits' 'needs a 32-bit C library: apt-get install gcc-multilib'; fi
if works clang; then program 'exported by gcc, used by clang' "$c $both" "clang -x c -std=c99 $extern" "clang -x c -std=c99" clang
else skip 'linked, exported by gcc, used by clang' 'needs clang: apt-get install clang'; fi

# -- Symbols: exactly the documented functions are exported, and none from a static unit --
part=quick
sed -n 's/^TEGROUP_API [^(]*[ *]\(tegroup_[a-z0-9_]*\)(.*/\1/p' "$root/tegroup.h" | sort -u > "$work/functions"
globals="nm -g --defined-only library.o | awk '{ print \$3 }' | sort"
for compiler in gcc g++; do
    language=c; [ $compiler = g++ ] && language=c++
    if [ $language = c++ ] && [ $cxx_works = 0 ]; then
        skip "exported symbols, $compiler" "$needs_cxx"
        skip "no symbol from a static unit, $compiler" "$needs_cxx"
        continue
    fi
    cell "exported symbols, $compiler" '' "test -s $work/functions && printf '#include \"tegroup.h\"\n' > library.c &&
        $compiler -x $language -O1 -I$root $both -c library.c -o library.o && $globals | diff $work/functions -"
    cell "no symbol from a static unit, $compiler" '' "$compiler -x $language -O1 -I$root $static -c $unit -o library.o && test \"\$($globals)\" = unit"
done

# -- The pair is what src/ gives, and a planted difference is seen --
for file in tegroup.h tegroup_cuda.cuh; do
    parts=src/${file%.*}.parts
    cell "stitched $file" '' "sh $root/tools/stitch.sh $root/$parts | cmp - $root/$file"
    cell "stitched $file, an edit in it is seen" differ "sed '\$s/\$/ /' $root/$file > edited; sh $root/tools/stitch.sh $root/$parts | cmp - edited"
    cell "stitched $file, an edit in src/ is seen" differ "cp -R $root/src . && sh $root/tools/stitch.sh $parts > before && part=\$(awk '\$1 == \"part\" { print \$2; exit }' $parts) &&
        echo '/* edited */' >> src/\$part && sh $root/tools/stitch.sh $parts | cmp - before"
done

# -- nvcc --
part=more
nvcc=${NVCC:-$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")}
if command -v "$nvcc" > /dev/null; then
    cuda="$nvcc -x cu -std=c++17 -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror -I$root"
    # Cells that are not about what ptxas makes of kernels have these compiled in a fraction of the time.
    fast="$cuda $("$nvcc" --help | grep -q -e --Ofast-compile && echo --Ofast-compile=max)"
    cell 'nvcc exported, sm_90a' '' "$cuda $both -O3 -gencode arch=compute_90a,code=sm_90a -c $unit -o unit.o" # at -O3 gcc sees through more calls
    cell 'nvcc relocatable, sm_90a' '' "$cuda $static -DTEGROUP_NO_PORTABLE -DTEGROUP_NO_MOE -DTEGROUP_NO_CUBLASLT -DTEGROUP_NO_F16 -rdc=true -gencode arch=compute_90a,code=sm_90a -c $unit -o unit.o > log 2>&1 || { cat log; false; }" # kernels get fewer registers, and ptxas says that they are slow
    cell 'nvcc types'    '' "$cuda -c $unit -o unit.o"
    cell 'nvcc extern'   '' "$cuda $extern -c $unit -o unit.o"
    cell 'nvcc without CUDA' '' "$cuda $static -DTEGROUP_NO_CUDA -c $unit -o unit.o"
    cell 'nvcc without GPU backends' '' "$fast $static -DTEGROUP_NO_SM90 -DTEGROUP_NO_PORTABLE -DTEGROUP_NO_CUBLASLT -c $unit -o unit.o"
    cell 'nvcc without F16, backward, activation, MoE and FP8' '' "$fast $switches $self/switches.cu -o program && ./program"
    cell 'nvcc without backward and portable' '' "$fast -DTEGROUP_NO_BACKWARD -DTEGROUP_NO_PORTABLE $self/switches.cu -o program && ./program"
    cell 'nvcc without activation and portable' '' "$fast -DTEGROUP_NO_ACTIVATION -DTEGROUP_NO_PORTABLE $self/switches.cu -o program && ./program"
    cell 'every kernel is static' '' "! grep -n __global__ $root/src/*/*.h | grep -v 'static __global__'"
    cell 'nvcc exported, used by C' '' "$fast $both -DUNIT=first -c $unit -o 1.o && $c $extern -DUNIT=second -I$root -c $unit -o 2.o &&
        $c -I$root -c $main -o 3.o && $nvcc 1.o 2.o 3.o -lm -o program && ./program"
    cell 'nvcc static twice' '' "$fast $static -DUNIT=first -c $unit -o 1.o && $fast $static -DUNIT=second -c $unit -o 2.o &&
        $cuda -c $main -o 3.o && $nvcc 1.o 2.o 3.o -lm -o program && ./program"
    cell 'nvcc mismatched pair' 'different versions' "$mismatch && $nvcc -x cu -I. -c $unit -o unit.o"
    cell 'nvcc tegroup_cuda.cuh alone' 'include tegroup.h' "$nvcc -x cu -c $root/tegroup_cuda.cuh -o unit.o"
else
    skip 'nvcc' 'needs nvcc: export NVCC=$(tests/compile/toolkit.sh 13.0)'
fi

xargs -n 1 -P "${1:-2}" sh "$0" --cell < "$work/cells"
cat "$work"/*.result
[ "$(ls "$work"/*.result | wc -l)" -eq $((number - 1000)) ] || { echo 'not ok: a cell gave no result'; exit 1; }
! grep -q '^not ok' "$work"/*.result
