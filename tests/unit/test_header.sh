#!/bin/sh
# tests/unit/test.h itself, in C and in C++: what fails is seen, told with both values and counted. One line a test:
#   ok NAME | not ok NAME | skip NAME reason
# The exit status is 1 if a test failed.
set -u
cd "$(dirname "$0")/../.." || exit
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
failed=0

cat > "$work/program.c" <<'C'
#include "test.h"
#include <math.h>
#include <stdint.h>
enum { THREE = 3 };
static void helper(int wrong) { ASSERT_EQ(wrong, 0); }
TEST(good, numbers) {
    ASSERT_EQ(THREE, 3u);
    ASSERT_NE(-1, UINT32_MAX);
    ASSERT_NE(INT64_MAX, INT64_MAX - 1);
    ASSERT_NE(INT64_MIN, (uint64_t)1 << 63);
    ASSERT_NE(NAN, NAN);
    ASSERT_LT(-1, 0u);
    ASSERT_LE(2, 2.0);
    ASSERT_GT(1e300, INT64_MAX);
    ASSERT_GE('b', 'a');
}
TEST(good, texts) { ASSERT_STREQ("same", "same"); ASSERT_STRNE("one", "other"); ASSERT_TRUE("yes"); ASSERT_FALSE(0); }
TEST(bad, eq) { ASSERT_EQ(THREE + 1, UINT64_MAX); }
TEST(bad, ne) { ASSERT_NE(2, 2.0f); }
TEST(bad, lt) { ASSERT_LT(NAN, 1); }
TEST(bad, le) { ASSERT_LE(0u, -1); }
TEST(bad, gt) { ASSERT_GT(1, 1); }
TEST(bad, ge) { ASSERT_GE(INT64_MAX - 1, INT64_MAX); }
TEST(bad, true_) { ASSERT_TRUE(THREE == 4); }
TEST(bad, false_) { ASSERT_FALSE(THREE == 3); }
TEST(bad, streq) { ASSERT_STREQ("one", NULL); }
TEST(bad, strne) { ASSERT_STRNE("same", "same"); }
TEST(bad, helpers) { helper(1); ASSERT_PASSING(); puts("never printed"); }
TEST(bad, twice) { helper(1); helper(2); }
TEST(odd, skipped) { SKIP("needs luck"); }
TEST_MAIN()
C
# What it prints, without the milliseconds: the two good ones, twelve bad ones and one that is skipped.
cat > "$work/wanted" <<'TEXT'
ok good.numbers
ok good.texts
wanted THREE + 1 == UINT64_MAX; they are 4 and 18446744073709551615
not ok bad.eq
wanted 2 != 2.0f; they are 2 and 2
not ok bad.ne
wanted NAN < 1; they are nan and 1
not ok bad.lt
wanted 0u <= -1; they are 0 and -1
not ok bad.le
wanted 1 > 1; they are 1 and 1
not ok bad.gt
wanted INT64_MAX - 1 >= INT64_MAX; they are 9223372036854775806 and 9223372036854775807
not ok bad.ge
wanted THREE == 4
not ok bad.true_
wanted !(THREE == 3)
not ok bad.false_
wanted "one" == NULL; they are "one" and "NULL"
not ok bad.streq
wanted "same" != "same"; they are "same" and "same"
not ok bad.strne
wanted wrong == 0; they are 1 and 0
not ok bad.helpers
wanted wrong == 0; they are 1 and 0
wanted wrong == 0; they are 2 and 0
not ok bad.twice
skip odd.skipped needs luck
2 passed, 12 failed, 1 skipped
TEXT

report() { # exit status, name; what was said is in $work/log
    if [ "$1" -eq 0 ]; then echo "ok test_header_$2"; else echo "not ok test_header_$2"; failed=1; sed 's/^/    /' "$work/log"; fi
}
run() { # exit status wanted, options: what it printed is in $work/said, without the milliseconds
    wanted_status=$1
    shift
    "$work/program" "$@" > "$work/raw" 2>&1
    came=$?
    sed -E '/^begin /d; s/^.*program\.c:[0-9]+: //; s/ [0-9]+ ms$//' "$work/raw" > "$work/said"
    [ $came -eq "$wanted_status" ]
}
names() { sed -nE 's/^(ok|not ok|skip) ([a-z_.]*).*/\2/p' "$work/said"; }
suite() { # language, compiler and options
    language=$1
    shift
    "$@" -Wall -Wextra -Werror -Itests/unit "$work/program.c" -o "$work/program" > "$work/log" 2>&1
    code=$?
    report $code "compiles_in_$language"
    [ $code -eq 0 ] || return
    run 1 && diff "$work/wanted" "$work/said" > "$work/log"
    report $? "tells_both_values_in_$language"
    run 0 '--filter=*.numb*s' && [ "$(tr '\n' ';' < "$work/said")" = 'ok good.numbers;1 passed, 0 failed, 0 skipped;' ]
    report $? "filters_in_$language"
    run 1 '--filter=good.number' && run 1 '--filter=ood.*' && run 2 --filters=good.numbers
    report $? "refuses_to_run_nothing_in_$language"
    run 1 && names > "$work/in_order" && run 0 --list && diff "$work/in_order" "$work/said" > "$work/log"
    report $? "lists_in_order_of_lines_in_$language"
    run 1 --shuffle=5 && names > "$work/five" && grep -q '^shuffled by --shuffle=5$' "$work/said" && run 1 --shuffle=5 && names | diff "$work/five" - > "$work/log" &&
        run 1 --shuffle=6 && names > "$work/six" && ! cmp -s "$work/five" "$work/six" && ! cmp -s "$work/five" "$work/in_order" &&
        sort "$work/in_order" > "$work/sorted" && sort "$work/five" | diff "$work/sorted" - > "$work/log" && sort "$work/six" | diff "$work/sorted" - > "$work/log"
    report $? "shuffles_every_test_in_$language"
}
suite c "${CC:-cc}" -std=gnu11
if command -v g++ > "$work/log"; then suite cxx g++ -std=c++11 -x c++
else echo "skip test_header_in_cxx needs g++: apt-get install g++"; fi
exit $failed
