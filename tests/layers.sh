#!/bin/sh
# The grouped linear layer and the grouped MLP, every combination, on the CPU and on the GPU backends of this machine. The last
# line counts the MLP's: "run 6480/6480 x 3, skipped 0" where three backends ran. TEGROUP_GPU_BUILD names a folder with
# the GPU programs that `tests/gpu/run.sh build` made; else they are compiled here.
set -u
cd "$(dirname "$0")/.." || exit
out=${TEGROUP_GPU_BUILD:-build/gpu}
nvcc=${NVCC:-$(command -v nvcc || true)}
log=$(mktemp) && trap 'rm -f "$log"' EXIT
programs='build/test_linear build/test_mlp' failed=0
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
[ "$capability" != 90 ] || capability=90a
if [ -z "$capability" ]; then echo "skip gpu_layers needs a GPU"
elif [ -z "${TEGROUP_GPU_BUILD:-}" ] && [ -z "$nvcc" ]; then echo "skip gpu_layers needs nvcc: set NVCC or put it on PATH"
else
    gpu="$out/test_linear_gpu $out/test_mlp_gpu"
    # shellcheck disable=SC2086 # a list of names
    [ -n "${TEGROUP_GPU_BUILD:-}" ] || make -f tests/gpu/build.mk -j2 OUT="$out" ARCHS="$capability" NVCC="$nvcc" $gpu || exit
    programs="$programs $gpu"
fi
for program in $programs; do
    "$program" >"$log.one" 2>&1 || failed=1
    cat "$log.one" >>"$log"
    grep -aE '^(ok |not ok |[a-z0-9_]+: run |run |finite differences|[a-z0-9_]+: [0-9]+ splits)' "$log.one" | sed "s|^|${program##*/}: |"
    rm -f "$log.one"
done
sed -nE 's/.*run ([0-9]+)\/6480, skipped ([0-9]+).*/\1 \2/p' "$log" |
    awk '{ n++; if (least == "" || $1 < least) least = $1; skipped += $2 } END { printf "run %d/6480 x %d, skipped %d\n", least, n, skipped; exit least != 6480 || skipped != 0 }' || failed=1
exit $failed
