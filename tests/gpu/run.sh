#!/bin/sh
# The GPU suite.
#
#   run.sh            builds every program of tests/gpu for this machine's GPU and runs it
#   run.sh build      only builds, for ARCHS; needs nvcc, but no GPU
#   run.sh sanitize   small cases under each tool of compute-sanitizer, and whether every kernel was launched
#
# TEGROUP_GPU_BUILD names a folder of programs that `build` made, here or elsewhere: they are run and nothing is compiled.
# CUBLAS_HOME names a cuBLAS other than the toolkit's. JOBS: compilers at a time. Without nvcc or a GPU it says so and skips.
set -u
cd "$(dirname "$0")/../.." || exit
mode=${1:-run}
out=${TEGROUP_GPU_BUILD:-build/gpu}
nvcc=${NVCC:-$(command -v nvcc || true)}
[ -z "${CUBLAS_HOME:-}" ] || { LD_LIBRARY_PATH=$CUBLAS_HOME/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} && export LD_LIBRARY_PATH; }
failed=0

build() { # for the architectures given
    [ -n "$nvcc" ] || { echo "skip gpu_suite needs nvcc: set NVCC or put it on PATH"; exit 0; }
    mkdir -p "$out"
    make_gpu() { make -f tests/gpu/build.mk OUT="$out" ARCHS="$1" NVCC="$nvcc" CUBLAS_HOME="${CUBLAS_HOME:-}" "$2" "$3"; }
    # shellcheck disable=SC2046 # a list of names
    [ "$(cat "$out/ARCHS" 2>/dev/null)" = "$1" ] || (cd "$out" && rm -f -- *.o $(cat PROGRAMS 2>/dev/null))
    echo "$1" >"$out/ARCHS"
    make_gpu "$1" -s list >"$out/PROGRAMS"
    if make_gpu "$1" -k "-j${JOBS:-$(getconf _NPROCESSORS_ONLN)}" >"$out/build.log" 2>&1; then echo "ok gpu_suite_builds"
    else grep -E 'error|Error' "$out/build.log" | head -n 40; echo "not ok gpu_suite_builds"; failed=1; fi
}

if [ "$mode" = build ]; then
    build "${ARCHS:-90a}"
    exit $failed
fi
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
[ -n "$capability" ] || { echo "skip gpu_suite needs a GPU"; exit 0; }
[ "$capability" != 90 ] || capability=90a # what Hopper alone can run is in that code alone
[ -n "${TEGROUP_GPU_BUILD:-}" ] || build "$capability"
programs=$(cat "$out/PROGRAMS")

# One program under one tool: what that says; what it found, or NOT-RUN, to TOOL.NAME.found, the kernels that were launched to
# TOOL.NAME.kernels.
sanitize_one() { # tool, name, scale, arguments
    tool=$1 name=$2 scale=$3 files=$out/$1.$2
    shift 3
    # what is passed over, and why
    options=$(awk -v tool="$tool" '$1 == tool { sub(/ *#.*/, ""); $1 = ""; print }' tests/gpu/sanitize.txt | tr '\n' ' ')
    case $tool in # racecheck itself breaks off inside cuBLAS's kernels and where an MLP's graphs are replayed, synccheck inside the grouped ones of 13.10
    racecheck) backends=sm90,portable ;;
    synccheck) backends=sm90,portable,cublaslt_loop ;;
    *) backends=sm90,portable,cublaslt_grouped,cublaslt_loop ;;
    esac
    : >"$files.kernels"
    echo NOT-RUN >"$files.found" # until it is over
    # shellcheck disable=SC2086 # a list of options
    TEGROUP_TEST_TOGETHER=1 TEGROUP_TEST_BACKENDS=$backends TEGROUP_KERNEL_LOG=$files.kernels TEGROUP_TEST_SCALE=$scale "$sanitizer" --tool "$tool" $options "$out/$name" "$@" >"$files.log" 2>&1
    code=$?
    found=$(sed -nE 's/^=+ (ERROR|RACECHECK) SUMMARY: ([0-9]+) .*/\2/p' "$files.log" | tail -n 1)
    if grep -q '^not ok ' "$files.log"; then
        grep '^not ok ' "$files.log"
        echo "not ok ${tool}_$name tests failed under the tool"
    elif [ -z "$found" ] || ! grep -q '^[1-9][0-9]* passed' "$files.log"; then
        grep -aE '^=+ ' "$files.log" | head -n 12
        tail -n 3 "$files.log"
        echo "skip gpu_${tool}_$name NOT RUN (exit $code)"
        found=NOT-RUN
    elif [ "$found" -eq 0 ]; then echo "ok ${tool}_$name"
    else
        grep -E '^=+ ' "$files.log" | head -n 40
        echo "not ok ${tool}_$name $found findings"
    fi
    echo "${found:-0}" >"$files.found"
}
# The suite under one tool, its programs side by side, as the tools are.
sanitize() {
    for name in $programs; do
        [ "${name#test_}" != "$name" ] || continue
        case $name in
        test_gpu) sanitize_one "$1" "$name" 1 '--filter=sanitize.*' ;;
        test_invariance) : ;; # every kernel of it is in the others; its operands are made by kernels that initcheck does not follow
        test_cublaslt) sanitize_one "$1" "$name" 0.005 "$([ "$1" = racecheck ] && echo '--filter=cublaslt.setup*' || echo '--filter=*')" ;;
        test_mlp_gpu) sanitize_one "$1" "$name" 0.005 "$([ "$1" = racecheck ] && echo '--filter=mlp_gpu.*' || echo '--filter=*')" ;;
        test_*) sanitize_one "$1" "$name" 0.005 ;;
        esac >"$out/$1.$name.out" 2>&1 &
    done
    wait
    cat "$out/$1".test_*.out
    cat "$out/$1".test_*.kernels >"$out/kernels.$1"
    awk '$1 == "NOT-RUN" { none = 1 } { sum += $1 } END { print none ? "NOT-RUN" : sum + 0 }' "$out/$1".test_*.found >"$out/found.$1"
}

if [ "$mode" = sanitize ]; then
    sanitizer=${SANITIZER:-compute-sanitizer}
    tools='memcheck racecheck initcheck synccheck'
    counts='' ran=0
    : >"$out/kernels.held"
    : >"$out/kernels.launched"
    for tool in $tools; do # what an earlier run left says nothing of this one
        rm -f "$out/$tool".test_*
        : >"$out/$tool.out"
        echo NOT-RUN >"$out/found.$tool"
    done
    for tool in $tools; do sanitize "$tool" >"$out/$tool.out" 2>&1 & done # the GPU serves all four at a time
    wait
    for tool in $tools; do
        cat "$out/$tool.out"
        found=$(cat "$out/found.$tool")
        if [ "$found" = NOT-RUN ] || grep -q '^not ok' "$out/$tool.out"; then failed=1; fi
        counts="$counts $found"
        kernels=$out/kernels.$tool
        [ -s "$kernels" ] || continue
        ran=$((ran + 1))
        grep tegroup_impl_ "$kernels" | cut -d ' ' -f 2 >>"$out/kernels.held"
        sed -n 's/^launched \(.*tegroup_impl_\)/\1/p' "$kernels" | sort -u >>"$out/kernels.launched"
    done
    # a kernel counts when it was launched under every tool that ran
    total=$(sort -u "$out/kernels.held" | grep -c .)
    reached=$(sort "$out/kernels.launched" | uniq -c | awk -v ran=$ran '$1 == ran' | wc -l)
    sort "$out/kernels.launched" | uniq -c | awk -v ran=$ran '$1 == ran { print $2 }' >"$out/kernels.reached"
    sort -u "$out/kernels.held" | grep -vxFf "$out/kernels.reached" | sed 's/^/not launched under every tool: /'
    if [ "$total" -gt 0 ] && [ "$reached" -eq "$total" ]; then echo "ok kernels"; else echo "not ok kernels"; failed=1; fi
    echo "kernels $reached/$total, findings$counts"
    exit $failed
fi

for name in $programs; do
    log=$out/$name.log
    "$out/$name" >"$log" 2>&1
    code=$?
    case $name in
    quickstart | compare | grouped_mlp | own_kernel | own_epilogue) [ $code -ne 0 ] || echo "ok $name" ;;
    *) grep -aE '^(ok|skip) ' "$log" | sed "s/^ok /ok $name: /" ;;
    esac
    [ $code -eq 0 ] && continue
    failed=1
    grep -avE '^(begin|ok) ' "$log" | tail -n 40 | sed "s/^not ok /not ok $name: /"
    grep -aq '^not ok ' "$log" || echo "not ok $name exit $code"
done

# Builds of one source: where the numerics_id is the same, so are the bits. The fast_math build has every id of the plain one.
if cat "$out"/variant_*.log | awk '
    $1 == "hash" { n++; key = $2 " " $3; if (key in bits && bits[key] != $4) { print "differs: " $0 " from " bits[key]; bad = 1 } bits[key] = $4 }
    END { exit bad || n == 0 }'; then echo "ok gpu_builds_agree_in_bits"; else echo "not ok gpu_builds_agree_in_bits"; failed=1; fi
plain=$(grep '^hash ' "$out/variant_plain.log")
if [ -n "$plain" ] && [ "$plain" = "$(grep '^hash ' "$out/variant_fast_math.log")" ]; then echo "ok gpu_fast_math_changes_no_bit"
else echo "not ok gpu_fast_math_changes_no_bit"; failed=1; fi
exit $failed
