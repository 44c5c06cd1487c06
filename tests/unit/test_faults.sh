#!/bin/sh
# Every fault of tests/teeth/ still has its place in src/. Whether the tests catch them, tests/teeth/run.sh tells, which takes
# longer. One line a test: ok NAME | not ok NAME. The exit status is 1 if it failed.
set -u
cd "$(dirname "$0")/../.." || exit 1
faults=tests/teeth/faults.txt
names=$(sed -n 's/^\([a-z0-9_]*\): test_.*/\1/p' $faults)
stale=$(for name in $names; do
    # shellcheck disable=SC2046 # a list of files
    wrong=$(awk -v fault="$name" -v only_look=1 -f tests/teeth/plant.awk $faults $(find src -name '*.h')) || echo "$name: $wrong"
done)
if [ -n "$names" ] && [ -z "$stale" ]; then echo "ok faults_have_their_place"; exit 0; fi
echo "$stale"
echo "not ok faults_have_their_place"
exit 1
