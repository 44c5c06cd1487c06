#!/bin/sh
# examples/ep over MPI on this machine's cores: the bits of one rank, and what is said when something is wrong. One line a test:
#   ok NAME | not ok NAME | skip NAME reason
# SUITE=quick has two ranks; SUITE=more four and three, BF16, and every fault.
set -u
cd "$(dirname "$0")/../.." || exit
SUITE=${SUITE:-all} failed=0
for tool in mpicc mpirun; do
    command -v $tool >/dev/null || { echo "skip ep_mpi needs $tool: apt-get install libopenmpi-dev openmpi-bin"; exit 0; }
done
scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1

report() { # status, name; what was said is in $scratch/log
    if [ "$1" -eq 0 ]; then echo "ok ep_mpi_$2"; else echo "not ok ep_mpi_$2"; failed=1; sed 's/^/    /' "$scratch/log"; fi
}
# By the command in its first line, with every warning.
command=$(sed -n '1s|^/\* mpicc \(.*\) -o ep_mpi \(.*\) && .* \*/$|mpicc -Wall -Wextra -Werror -std=gnu11 \1 -o '"$scratch"'/ep_mpi \2|p' examples/ep/ep_mpi.c)
# shellcheck disable=SC2086 # a command
[ -n "$command" ] && $command >"$scratch/log" 2>&1
report $? builds
[ $failed -eq 0 ] || exit 1

run() { # ranks, arguments
    of=$1; shift
    timeout 100 mpirun --oversubscribe -n "$of" "$scratch/ep_mpi" "$@" >"$scratch/log" 2>&1
}
same() { # name, ranks, arguments
    name=$1; shift
    run "$@" && grep -q 'have the bits of one rank$' "$scratch/log"
    report $? "$name"
}
close() { # name, ranks, arguments
    name=$1; shift
    run "$@" --sums-once && grep -q 'are within roundings of those of one rank$' "$scratch/log"
    report $? "$name"
}
fp8() { # ranks, arguments: every rank says how many rows it got in FP8, and some got some
    run "$@" && [ "$(grep -c "^rank [0-9]: FP8 with 1x128 scales: [0-9]* rows quantised before the dispatch are those quantised after it$" "$scratch/log")" -eq "$1" ] &&
        grep -q 'scales: [1-9]' "$scratch/log"
    report $? "fp8_across_$1_ranks"
}
refuses() { # name, words, arguments: a line of a rank with these words, and a failure in time
    name=$1 words=$2; shift 2
    run 2 "$@"
    code=$?
    [ $code -ne 0 ] && [ $code -ne 124 ] && grep -q "^ep_mpi: rank [01]: .*$words" "$scratch/log" && ! grep -q 'bits of one rank' "$scratch/log" && one_line_a_rank
    report $? "refuses_$name"
}
one_line_a_rank() { # and none of a rank that says something else
    [ "$(grep -c '^ep_mpi: rank 0:' "$scratch/log")" -le 1 ] && [ "$(grep -c '^ep_mpi: rank 1:' "$scratch/log")" -le 1 ] &&
        [ "$(grep '^ep_mpi: rank' "$scratch/log" | grep -cv "$words")" -eq 0 ]
}
if [ "$SUITE" != more ]; then
    same two_ranks 2
    same two_ranks_by_messages 2 --messages
    same two_ranks_tokens_once 2 --tokens-once --k 5
    fp8 2 --tokens-once
fi
if [ "$SUITE" != quick ]; then
    same one_rank 1
    same one_token_of_three_choices 2 --tokens 1 --k 3
    same tokens_of_eight_choices_on_two_ranks 2 --tokens 131 --k 8 --bf16
    same every_expert_on_three_ranks 3 --tokens 7 --k 12 --messages
    same two_ranks_bf16 2 --bf16
    same three_ranks_tokens_once_bf16 3 --bf16 --k 7 --tokens-once
    close two_ranks_sums_once 2 --k 6
    close three_ranks_sums_once_bf16 3 --k 7 --bf16
    same three_ranks 3
    same four_ranks 4
    fp8 4 --bf16
    same four_ranks_bf16_by_messages 4 --bf16 --messages
    make -s demo RANKS=2 >"$scratch/log" 2>&1 # exit status 0: better than a byte bigram
    report $? demo_on_two_ranks
    for way in '' --messages; do # the same losses, whichever way rows go
        # shellcheck disable=SC2086 # an option or none
        run 2 --train examples/data/persuasion.txt --steps 10 $way
        grep '^step' "$scratch/log" >"$scratch/losses$way"
    done
    [ "$(wc -l <"$scratch/losses")" -eq 10 ] && cmp -s "$scratch/losses" "$scratch/losses--messages"
    report $? training_by_messages_is_the_same
    refuses a_rank_that_does_not_come 'not all ranks came within 2 s' --fault gone --timeout 2
    refuses a_rank_that_does_not_send 'not all ranks came within 2 s' --fault gone --timeout 2 --messages
    refuses a_rank_that_is_late_for_the_windows 'making the windows: not all ranks came within 2 s' --fault late --timeout 2
    refuses a_rank_that_stops 'not all ranks came within 2 s' --fault stops --timeout 2
    refuses a_rank_that_stops_sending 'not all ranks came within 2 s' --fault stops --timeout 2 --messages
    for way in '' --messages; do # a dead rank leaves mpirun's line alone, or that of a rank which waited for it
        # shellcheck disable=SC2086 # an option or none
        run 2 --fault dead --timeout 5 $way
        code=$?
        words='not all ranks came within 5 s'
        [ $code -ne 0 ] && [ $code -ne 124 ] && ! grep -q 'bits of one rank' "$scratch/log" && [ -s "$scratch/log" ] && one_line_a_rank
        report $? "ends_with_a_dead_rank$way"
    done
    refuses hostile_counts 'rank 1 counts fewer than 0 rows for an expert' --fault hostile
    refuses counts_that_disagree 'do not have the same counts' --fault counts
    refuses a_small_window 'is too small: .* rows have no place' --fault small
    refuses a_small_window_by_messages 'is too small: .* rows have no place' --fault small --messages
    refuses a_misaligned_window 'windows.addresses must be 256-byte aligned' --fault misaligned
    for way in '' --messages; do # ranks of unlike types
        # shellcheck disable=SC2086 # an option or none
        timeout 100 mpirun --oversubscribe -n 1 "$scratch/ep_mpi" $way : -n 1 "$scratch/ep_mpi" --bf16 $way >"$scratch/log" 2>&1
        code=$?
        [ $code -ne 0 ] && [ $code -ne 124 ] && grep -q '^ep_mpi: rank [01]: the ranks do not run the same layer$' "$scratch/log"
        report $? "refuses_layers_that_differ$way"
    done
    refuses tokens_once_by_messages 'need windows, not --messages' --tokens-once --messages
    refuses no_tokens 'tokens must be 1 to 10000' --tokens 0
    refuses an_unknown_option 'unknown option --what' --what
    refuses an_unknown_fault 'unknown fault what' --fault what
fi
exit $failed
