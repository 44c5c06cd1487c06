#!/bin/sh
# Fuzz build/fuzz for FUZZ_RUNS executions (1,000,000), then see that the same fuzzer finds an overflow planted in a copy of
# the header. Lines: ok NAME | not ok NAME | skip NAME reason. A finding's input stays in build/fuzz-work/.
set -u
cd "$(dirname "$0")/../.." || exit 1
runs=${FUZZ_RUNS:-1000000}
work=build/fuzz-work
rm -rf $work && mkdir -p $work || exit 1

fuzzer() { # header's directory, source, program
    clang -std=gnu11 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I"$1" -I. "$2" -o "$3" -lm
}
printf '#include <stddef.h>\nint LLVMFuzzerTestOneInput(const char *p, size_t n) { return p == NULL && n; }\n' > $work/probe.c
if ! fuzzer . $work/probe.c $work/probe > $work/probe.log 2>&1; then
    echo 'skip fuzz needs clang with libFuzzer: apt-get install clang libclang-rt-14-dev'
    exit 0
fi
if [ ! -x build/fuzz ]; then
    echo 'not ok fuzz'
    echo '  build/fuzz is missing: make build/fuzz says why'
    exit 1
fi
failed=0

# Two jobs with seeds of their own. Inputs are as long as a descriptor asks for, from the start.
job() { # program, runs, seed
    ASAN_OPTIONS=quarantine_size_mb=16 "$1" -runs="$2" -seed="$3" -max_len=400 -len_control=0 -timeout=60 \
        -artifact_prefix="$work/" > "$work/$3.log" 2>&1
}
job build/fuzz $(((runs + 1) / 2)) 1 & first=$!
job build/fuzz $((runs / 2)) 2 & second=$!
findings=0
wait $first || findings=$((findings + 1))
wait $second || findings=$((findings + 1))
done_runs=$(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' $work/1.log $work/2.log | awk '{ sum += $1 } END { print sum + 0 }')
echo "fuzz $done_runs executions, $findings findings"
if [ $findings -eq 0 ] && [ "$done_runs" -ge "$runs" ]; then echo 'ok fuzz'
else
    echo 'not ok fuzz'
    # the finding and its input first; build/fuzz FILE runs one again
    grep -hE 'violated|ERROR|runtime error|SUMMARY|^Base64' $work/1.log $work/2.log
    grep -hvE '^(#|	NEW_FUNC|")' $work/1.log $work/2.log | head -n 60
    failed=1
fi

# The planted one: prepare no longer cuts a group at the buffer's end, but only when it has exactly seven rows.
sed 's/rows > capacity - start)/(rows > capacity - start \&\& rows != 7))/' tegroup.h > $work/tegroup.h
if cmp -s tegroup.h $work/tegroup.h; then
    echo 'not ok fuzz_finds_planted_overflow'
    echo '  the line to plant it in is gone from tegroup.h'
    failed=1
elif fuzzer $work tests/fuzz/fuzz.c $work/planted > $work/planted.log 2>&1 && ! job $work/planted 1000000 3 && grep -qE 'AddressSanitizer|violated' $work/3.log; then
    echo 'ok fuzz_finds_planted_overflow'
else
    echo 'not ok fuzz_finds_planted_overflow'
    tail -n 20 $work/planted.log $work/3.log
    failed=1
fi
exit $failed
