#!/bin/sh
# Every example is built by the command in its first line, as written, and run; in a copy of the tree. One line a test:
#   ok NAME | not ok NAME | skip NAME reason
# The exit status is 1 if a test failed. Those for a GPU are compiled where there is none, without the portable kernels and
# without optimizing any, and skipped without nvcc. Arguments are the examples to test; none means all, but with SUITE=quick
# quickstart.c and with SUITE=more the others.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
failed=0 SUITE=${SUITE:-all}

report() { # exit status, name; what was said is in $work/log
    if [ "$1" -eq 0 ]; then echo "ok $2"; else echo "not ok $2"; failed=1; sed 's/^/    /' "$work/log"; fi
}
run() { # program: shortly, where it would take long
    case $1 in
    train_moe) # so few steps do not learn to predict: the program says so by an exit status of 1
        ./train_moe --steps 2 --quiet --out weights.safetensors
        [ $? -le 1 ] && [ -s weights.safetensors ] ;;
    *) "./$1" ;;
    esac
}

sanitized() { # program: its whole arithmetic, forward and backward
    case $1 in
    train_moe) ./train_moe --check ;;
    *) "./$1" ;;
    esac
}

mkdir "$work/tree"
cd "$root" || exit
tar -cf - $(ls | grep -vx build) | tar -C "$work/tree" -xf - && cd "$work/tree" || exit
if [ $# -eq 0 ]; then
    case $SUITE in
    quick) set -- examples/quickstart.c ;;
    *) set -- examples/*.c examples/*.cu examples/use_*.py ;;
    esac
fi
nvcc=${NVCC:-$(command -v nvcc || true)}
fast=$([ -z "$nvcc" ] || ! "$nvcc" --help | grep -q -e --Ofast-compile || echo --Ofast-compile=max)
gpu=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -n 1)

gpu_example() { # source: by its whole first line with a GPU; without one as far as a compiler goes
    command=$(sed -n '1s|^[/"*]* \{0,1\}\(.*[^ */]\)[ */]*$|\1|p' "$1")
    case $command in "nvcc "*"$1"* | "make lib && "*"$1"*) code=0 ;; *) code=1 ;; esac
    echo "the first line is: $(head -n 1 "$1")" > "$work/log"
    report $code "$1 opens with its commands"
    if [ -z "$nvcc" ]; then echo "skip gpu_example_${1##*/} needs nvcc: export NVCC=\$(tests/compile/toolkit.sh 13.0)"; return; fi
    if [ -z "$gpu" ]; then
        case $1 in
        *.cu) sh -ec "$(printf '%s' "${command%% &&*}" | sed "s|-gencode arch=compute_80,code=compute_80|-DTEGROUP_NO_PORTABLE|; s|^nvcc|$nvcc $fast|")" > "$work/log" 2>&1 ;;
        *.c) ${CC:-cc} -Wall -Wextra -Werror -std=c11 -fsyntax-only -I. -I"$(dirname "$nvcc")/../include" "$1" > "$work/log" 2>&1 ;;
        *.py) "${PYTHON:-python3}" -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$1" > "$work/log" 2>&1 ;;
        esac
        report $? "$1 compiles"
        echo "skip gpu_example_${1##*/} needs a GPU"
        return
    fi
    case $1 in
    *.py) "${PYTHON:-python3}" -c 'import torch' 2> /dev/null || { echo "skip gpu_example_${1##*/} needs torch: pip install torch"; return; } ;;
    esac
    PATH=$(dirname "$nvcc"):$PATH sh -ec "$command" > "$work/log" 2>&1
    report $? "$1 does what its first line says"
}

for example; do
    case $SUITE:$example in more:examples/quickstart.c) continue ;; esac
    case $example in
    *.cu | */use_*) gpu_example "$example"; continue ;;
    esac
    command=$(sed -n '1s|^/\* \(cc .*\) \*/$|\1|p' "$example")
    program=$(printf '%s\n' "$command" | sed -n 's|.* -o \([^ ]*\) .*|\1|p')
    [ -n "$program" ] && [ ! -e "$program" ]
    code=$?
    echo "the first line is: $(head -n 1 "$example")" > "$work/log"
    report $code "$example opens with its compile command"
    [ $code -eq 0 ] || continue
    sh -ec "$command" > "$work/said" 2> "$work/log"
    code=$?
    [ $code -eq 0 ] && [ ! -s "$work/log" ] && [ -x "$program" ]
    report $? "$example builds by it, without a word"
    [ -x "$program" ] || continue
    run "$program" > "$work/log" 2>&1
    report $? "$example runs"
    rm -f "$program"
    sh -ec "$(printf '%s' "${command%% &&*}" | sed "s|^cc .* -I|${CC:-cc} -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -I|")" > "$work/log" 2>&1 &&
        ASAN_OPTIONS=detect_leaks=0 sanitized "$program" > "$work/log" 2>&1 # the examples leave freeing to the end of the process
    report $? "$example runs under ASan and UBSan"
    for compiler in gcc clang; do
        name="$example under $compiler -Wall -Wextra -std=c11"
        if ! command -v $compiler > /dev/null; then echo "skip $name needs $compiler: apt-get install $compiler"; continue; fi
        $compiler -Wall -Wextra -Werror -std=c11 -fsyntax-only -I. "$example" > "$work/log" 2>&1
        report $? "$name"
    done
done
exit $failed
