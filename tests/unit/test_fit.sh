#!/bin/sh
# The fit of SM90's costs (tests/bench/tiles.py). One line a test: ok NAME | not ok NAME | skip NAME reason.
set -u
cd "$(dirname "$0")/../.." || exit 1
python=${PYTHON:-python3}
"$python" -c 'import numpy, scipy' 2>/dev/null || { echo 'skip fit needs numpy and scipy: python3 -m pip install numpy scipy'; exit 0; }
failed=0
mkdir -p build

# Times that the table itself predicts, with noise: a fit that starts a third off must come back to the table.
if "$python" tests/bench/tiles.py simulate --products 600 --out build/simulated.csv > build/simulated.log 2>&1 \
    && "$python" tests/bench/tiles.py fit --data build/simulated.csv --start 1.3 --check >> build/simulated.log 2>&1
then echo 'ok fit_finds_the_costs_again'
else echo 'not ok fit_finds_the_costs_again'; tail -n 25 build/simulated.log; failed=1
fi

# The same with a kernel that takes a third longer than the table says: the fit must tell.
if awk -F, -v OFS=, '/^op,/ { for (i = 1; i <= NF; i++) if ($i == "FORWARD_128X192") at = i } /^[0-9]/ && $at != "" { $at *= 1.3 } { print }' \
        build/simulated.csv > build/slower.csv \
    && ! "$python" tests/bench/tiles.py fit --data build/slower.csv --check > build/slower.log 2>&1 && grep -q 'FORWARD_128X192: ns' build/slower.log
then echo 'ok fit_tells_a_wrong_cost'
else echo 'not ok fit_tells_a_wrong_cost'; tail -n 25 build/slower.log; failed=1
fi

# The table that is shipped, beside the times that are kept with it, whichever Hopper GPU they are from.
if "$python" tests/bench/tiles.py compare > build/compare.log 2>&1; then echo 'ok fit_table_agrees_with_the_times'
else echo 'not ok fit_table_agrees_with_the_times'; tail -n 20 build/compare.log; failed=1
fi

# A kernel that was never timed, and one with the costs of another: a tenth faster than it is.
column() { # what becomes of the column of FORWARD_64X128
    awk -F, -v OFS=, '/^op,/ { for (i = 1; i <= NF; i++) if ($i == "FORWARD_64X128") at = i } /^1,/ && at { $at = '"$1"' } { print }' tests/bench/tiles.csv
}
column '""' > build/untimed.csv
column '$at * 1.1' > build/slower.csv
if ! "$python" tests/bench/tiles.py compare --data build/untimed.csv > build/untimed.log 2>&1 && grep -q 'no times of FORWARD_64X128: `make tiles`' build/untimed.log \
    && ! "$python" tests/bench/tiles.py compare --data build/slower.csv > build/compared.log 2>&1 && grep -q 'bear out: .*FORWARD_64X128' build/compared.log
then echo 'ok fit_tells_costs_that_nobody_measured'
else echo 'not ok fit_tells_costs_that_nobody_measured'; tail -n 5 build/untimed.log build/compared.log; failed=1
fi
exit $failed
