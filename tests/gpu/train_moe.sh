#!/bin/sh
# examples/train_moe on a GPU: its training repeats bit for bit, its gradients and losses are those of the CPU, and it ends
# below the small model's loss; and, but in the quick suite, it learns in every format. One line a test:
#   ok NAME | not ok NAME | skip NAME reason
# The exit status is 1 if a test failed.
set -u
export OMP_WAIT_POLICY=passive
cd "$(dirname "$0")/../.."
nvcc=${NVCC:-$(command -v nvcc || true)}
nvidia-smi >/dev/null 2>&1 || { echo "skip gpu_train_moe needs a GPU"; exit 0; }
[ -n "$nvcc" ] || { echo "skip gpu_train_moe needs nvcc: set NVCC or put it on PATH"; exit 0; }
mkdir -p build
scratch=$(mktemp -d build/test_train_moe_gpu.XXXXXX) || exit 1
trap 'rm -rf "$scratch"' EXIT
program=build/train_moe_gpu
failed=0

report() { # name, exit status
    if [ "$2" -eq 0 ]; then echo "ok gpu_train_moe_$1"; else echo "not ok gpu_train_moe_$1"; failed=1; fi
}
train() { # weights, options: so few steps need not learn to predict, which is an exit status of 1
    weights=$1; shift
    "$program" --quiet --steps 20 --out "$weights" "$@" >"$scratch/log" 2>&1
    [ $? -le 1 ] && [ -s "$weights" ]
}

make --no-print-directory "$program" >"$scratch/log" 2>&1
report builds $?
[ $failed -eq 0 ] || { cat "$scratch/log"; exit 1; }
train "$scratch/one" && train "$scratch/two" && cmp -s "$scratch/one" "$scratch/two"
report repeats_bit_for_bit $?
train "$scratch/three" --seed 2 && ! cmp -s "$scratch/one" "$scratch/three"
report depends_on_seed $?
"$program" --agree >"$scratch/log" 2>&1
report agrees_with_cpu $?
tail -n 1 "$scratch/log"
"$program" --out "$scratch/four" >"$scratch/log" 2>&1 && sed -n 's/^held-out \([0-9.]*\) < bigram .*/\1/p' "$scratch/log" \
    | awk '{ loss = $1 } END { exit !(loss > 0 && loss < 1.3) }'
report learns $?
tail -n 1 "$scratch/log"
[ "${SUITE:-gpu}" != quick ] || exit $failed
# Experts in each format: the small model learns, from weights that each replay quantises anew, and repeats bit for bit.
program=build/train_moe_gpu_formats
make --no-print-directory "$program" >"$scratch/log" 2>&1
report builds_with_formats $?
for format in fp8-block fp8-mixed fp8-row fp8-tensor mxfp8 nvfp4; do
    "$program" --small --format $format --out "$scratch/five" >"$scratch/log" 2>&1
    report learns_in_$format $?
    tail -n 1 "$scratch/log"
    train "$scratch/one" --small --format $format && train "$scratch/two" --small --format $format && cmp -s "$scratch/one" "$scratch/two"
    report repeats_in_$format $?
done
exit $failed
