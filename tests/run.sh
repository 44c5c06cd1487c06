#!/bin/sh
# Test programs and scripts, run and counted. Each prints a line a test: "ok NAME", "not ok NAME" or "skip NAME REASON".
#
#   run.sh begin SUITE PROGRAM...   none of them has run
#   run.sh one SUITE PROGRAM        runs one and prints a line about it, its skips, and the end of its log where a test failed
#   run.sh sum SUITE...             what failed, and "N passed, N failed, N skipped"; the exit status is 1 where a test failed or
#                                   none passed
#
# Logs are in build/logs/SUITE. A program that cannot be built, does not run to its end or fails without naming a test counts as
# one failure. Where CI is "true" a skip is a failure unless it is for want of a GPU: everything else can be installed.
set -u
logs=build/logs
mode=$1
shift

log_of() { echo "$logs/$1/$(echo "$2" | tr / _).log"; } # suite, program

# Of lines "skip NAME needs WHAT" those that need the same become one.
skips() {
    awk '/^skip / {
        at = index($0, " needs "); name = substr($0, 6, at - 6); reason = substr($0, at + 1)
        if (!at) { name = $2; reason = substr($0, 7 + length($2)) }
        if (!(reason in count)) { order[++n] = reason; first[reason] = name }
        count[reason]++
    }
    END {
        for (i = 1; i <= n; i++) {
            reason = order[i]; others = count[reason] - 1; name = first[reason]
            if (others) { name = name " and " others " more"; sub(/^needs /, "need ", reason) }
            print "    skip", name, reason
        }
    }' "$1"
}

one() { # suite, program
    log=$(log_of "$1" "$2") forbidden=0
    # the plain build runs them all
    case $2 in build/sanitized/* | build/*/test_quantised_gemm) scale=0.1 ;; *) scale=1 ;; esac
    begin=$(date +%s)
    SUITE=$1 TEGROUP_TEST_SCALE=${TEGROUP_TEST_SCALE:-$scale} OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} \
        "$2" > "$log" 2>&1
    code=$?
    passed=$(grep -ac '^ok ' "$log") failed=$(grep -ac '^not ok ' "$log") skipped=$(grep -ac '^skip ' "$log")
    if [ "${CI:-}" = true ]; then
        forbidden=$(grep -a '^skip ' "$log" | grep -avcE '^skip gpu| needs a GPU')
        failed=$((failed + forbidden)) skipped=$((skipped - forbidden))
    fi
    if [ $code -ne 0 ] || [ $((passed + skipped)) -eq 0 ]; then [ "$failed" -gt 0 ] || failed=1; fi
    echo "$passed $failed $skipped $2" > "${log%.log}.count"
    {
        printf '%-36s %4d passed %3d failed %3d skipped %5d s\n' "$2" "$passed" "$failed" "$skipped" $(($(date +%s) - begin))
        skips "$log"
        [ "$forbidden" -eq 0 ] || echo "    | $forbidden of these skips are failures where CI is true"
        [ "$failed" -eq 0 ] || { grep -avE '^(begin|ok|skip) ' "$log" | tail -n 60 | sed 's/^/    | /'; echo "    | exit status $code; all of it is in $log"; }
    } > "$log.told"
    cat "$log.told" # at once: others run beside this one
    rm "$log.told"
}

case $mode in
begin)
    suite=$1
    shift
    rm -rf "${logs:?}/$suite" && mkdir -p "$logs/$suite" || exit
    for program; do
        log=$(log_of "$suite" "$program")
        echo "0 1 0 $program" > "${log%.log}.count"
    done ;;
one) one "$1" "$2" ;;
sum)
    for suite; do
        for count in "$logs/$suite"/*.count; do
            read -r _ failed _ program < "$count"
            if [ ! -e "${count%.count}.log" ]; then
                echo "did not run: $program"
            elif [ "$failed" -gt 0 ]; then
                echo "failed: $program"
                # what did not pass, each with what was said of it: this may be all of the output that anybody keeps
                awk '/^(begin|ok|skip gpu)|^skip .* needs a GPU/ { told = 0; next } /^(not ok|skip) / { told = 1 } told' "${count%.count}.log" |
                    head -n 40 | cut -c 1-700 | sed 's/^/    | /'
            fi
            cat "$count"
        done
    done | awk '/^(did not run|failed)|^    \|/ { print; next } { passed += $1; failed += $2; skipped += $3 }
        END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 || passed == 0 }' ;;
esac
