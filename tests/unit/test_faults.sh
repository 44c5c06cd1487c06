#!/bin/sh
# Every fault of tests/teeth/ still has its place in src/. Whether the tests catch them, tests/teeth/run.sh tells, which takes
# longer. One line a test: ok NAME | not ok NAME. The exit status is 1 if it failed.
set -u
cd "$(dirname "$0")/../.." || exit 1
stale() { # list, what a fault's test begins with; those that cannot be planted
    for name in $(sed -n "s/^\([a-z0-9_]*\): $2.*/\1/p" "$1"); do
        # shellcheck disable=SC2046 # a list of files
        wrong=$(awk -v fault="$name" -v only_look=1 -f tests/teeth/plant.awk "$1" $(find src -name '*.h')) || echo "$name: $wrong"
    done
}
stale=$(stale tests/teeth/faults.txt test_; stale tests/teeth/gpu_faults.txt 'teeth\.')
names=$(grep -cE '^[a-z0-9_]+: (test_|teeth\.)' tests/teeth/faults.txt tests/teeth/gpu_faults.txt | grep -v ':0$')
if [ "$(echo "$names" | wc -l)" -eq 2 ] && [ -z "$stale" ]; then echo "ok faults_have_their_place"; exit 0; fi
echo "$stale"
echo "not ok faults_have_their_place"
exit 1
