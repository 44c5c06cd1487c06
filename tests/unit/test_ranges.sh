#!/bin/sh
# With TEGROUP_NVTX every public call that takes a stream is a range of its own name, also where it is refused, and ranges close as
# they opened; without, nothing of it is left. A header of a few lines stands for NVIDIA's. One line a test: ok NAME | not ok NAME.
# The exit status is 1 if one failed.
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
failed=0
report() { if [ "$1" -eq 0 ]; then echo "ok $2"; else echo "not ok $2"; failed=1; fi; }

mkdir -p "$work/nvtx3"
cat > "$work/nvtx3/nvToolsExt.h" <<'END'
#include <string>
#include <vector>
static std::vector<std::string> opened;
static int open_now;
inline int nvtxRangePushA(const char *name) { opened.push_back(name); return open_now++; }
inline int nvtxRangePop(void) { return --open_now; }
END
# Every such call, all its arguments zero: name and their number.
calls=$(tr '\n' ' ' < src/api/functions.h | grep -oE 'TEGROUP_API_STATUS tegroup_[a-z_]+\([^)]*struct CUstream_st \*stream[^)]*\)' \
    | awk '{ name = $2; sub(/\(.*/, "", name); print name, gsub(/,/, "") + 1 }')
{
    cat <<'END'
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#include <cstdio>
int failed;
static void one(const char *name, tegroup_status status) {
    if (status != TEGROUP_OK && open_now == 0 && opened.size() == 1 && opened[0] == name) { opened.clear(); return; }
    std::printf("%s: %d ranges, %d open\n", name, (int)opened.size(), open_now);
    failed = 1;
}
int main() {
END
    echo "$calls" | awk '{ printf "    one(\"%s\", %s(0", $1, $1; for (i = 1; i < $2; i++) printf ", 0"; print "));" }'
    # a product goes by its operation, and what a call makes of others lies in its range
    cat <<'END'
    float x[2] = {1, 2}, w[2] = {3, 4}, y = 0;
    tegroup_gemm_desc gemm = tegroup_gemm_desc();
    tegroup_plan plan;
    alignas(TEGROUP_ALIGNMENT) static char workspace[1 << 20];
    gemm.options.workspace = workspace, gemm.options.workspace_bytes = sizeof workspace;
    gemm.struct_size = sizeof gemm, gemm.op = TEGROUP_OP_FORWARD, gemm.space = TEGROUP_SPACE_HOST;
    gemm.a = tegroup_tensor_uniform(1, 1, 2, TEGROUP_DTYPE_F32, x), gemm.b = tegroup_tensor_uniform(1, 1, 2, TEGROUP_DTYPE_F32, w);
    gemm.d = tegroup_tensor_uniform(1, 1, 1, TEGROUP_DTYPE_F32, &y), gemm.options.threads = 1;
    tegroup_error error;
    if (tegroup_plan_make(&gemm, 0, &plan, &error) || tegroup_gemm(&plan, &gemm, 0, &error)) std::printf("%s %s\n", error.field, error.rule), failed = 1;
    if (y != 11 || opened.size() != 1 || opened[0] != "tegroup_gemm forward" || open_now != 0) failed = 1;
    return failed;
}
END
} > "$work/ranges.cpp"
[ "$(echo "$calls" | wc -l)" -ge 30 ] && ${CXX:-g++} -std=c++11 -Wall -Wextra -Werror -DTEGROUP_NVTX -I. -I"$work" "$work/ranges.cpp" -o "$work/ranges" -lm && "$work/ranges"
report $? ranges_of_every_call

printf '#define TEGROUP_IMPLEMENTATION\n#include "tegroup.h"\n' > "$work/none.cpp"
${CXX:-g++} -std=c++11 -I. -E -P "$work/none.cpp" | grep -qE 'nvtx|impl_this_range'
[ $? -eq 1 ]
report $? nothing_without_the_switch
printf '#define TEGROUP_IMPLEMENTATION\n#define TEGROUP_NVTX\n#include "tegroup.h"\n' > "$work/plain.c"
${CC:-cc} -std=c99 -Wall -Wextra -Werror -I. -fsyntax-only "$work/plain.c"
report $? nothing_in_plain_c
exit $failed
