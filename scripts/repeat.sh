#!/usr/bin/env bash
#
# Runs tests again and again, on a machine that is kept busy: a test that fails now and then fails here.
#
#   scripts/repeat.sh [--load N] [--times N] [--threads N] TESTBINARY PATTERN…
#
#   --load N     so many loops that do nothing else compete for the processors (0)
#   --times N    so often the tests are run (20)
#   --threads N  so many of them at the same time (as many as there are processors)
#   TESTBINARY   the name of a folder in tests/, such as faults; lib for the unit tests; or the path of a built program
#   PATTERN…     as for cargo test: each test is run whose name contains one of them
#
# Prints how often each test passed and failed. What failing runs wrote is in target/check/repeat-TESTBINARY-RUN.log. The
# exit status is 1 when a test failed, and 2 when no test was run. The same variables are read as by ./check; a run that
# has not ended after LEASEHOLD_LIMIT seconds (600) is ended, and has failed.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
TARGET=${CARGO_TARGET_DIR:-target}
LOGS=$TARGET/check
LOOPS=()

usage() {
    sed -n '3,/^$/s/^#\( \|$\)//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

# A loop looks for its parent now and then: it does not outlive one that was killed.
start_loops() { # how many
    local loop turn
    for ((loop = 0; loop < $1; loop++)); do
        while kill -0 $$ 2>/dev/null; do
            for ((turn = 0; turn < 200000; turn++)); do :; done
        done &
        LOOPS+=($!)
    done
}

end_loops() {
    [ ${#LOOPS[@]} -eq 0 ] || kill "${LOOPS[@]}" 2>/dev/null
    LOOPS=()
}

# The program that cargo builds of a test's name.
built() { # test binary
    local which=(--test "$1")
    [ "$1" != lib ] || which=(--lib)
    cargo test --locked --all-features --no-run "${which[@]}" --message-format=json-render-diagnostics |
        sed -n 's/.*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}

load=0
times=20
threads=
while :; do
    case ${1:-} in
        --load) load=${2:-} ;;
        --times) times=${2:-} ;;
        --threads) threads=${2:-} ;;
        *) break ;;
    esac
    shift 2 || usage
done
[[ $# -ge 2 && $load =~ ^[0-9]+$ && $times =~ ^[1-9][0-9]*$ && $threads =~ ^([1-9][0-9]*)?$ ]] || usage
name=$(basename "$1" | sed 's/-[0-9a-f]\{16\}$//')
program=$1
[ -x "$program" ] && [ -f "$program" ] || program=$(built "$1")
shift
if [ -z "$program" ]; then
    echo "no such test binary: $name" >&2
    exit 2
fi
limit=()
! command -v timeout >/dev/null 2>&1 || limit=(timeout --kill-after=30 "${LEASEHOLD_LIMIT:-600}")
mkdir -p "$LOGS"
rm -f "$LOGS/repeat-$name"-*
all=$(mktemp)
trap 'end_loops; rm -f "$all"' EXIT
trap 'exit 130' INT TERM
start_loops "$load"

failures=0
for ((run = 1; run <= times; run++)); do
    log=$LOGS/repeat-$name-$run.log
    # The tests' own words go to another file: in one they come between the name of a test and its verdict.
    ${limit[@]+"${limit[@]}"} "$program" ${threads:+"--test-threads=$threads"} "$@" >"$log" 2>"$log.words" </dev/null
    status=$?
    sed -n 's/^test \(.*\) \.\.\. \(ok\|FAILED\)$/\2 \1/p' "$log" >>"$all"
    if [ $status -eq 0 ]; then
        rm -f "$log" "$log.words"
        continue
    fi
    failures=$((failures + 1))
    cat "$log.words" >>"$log"
    rm -f "$log.words"
    printf 'run %d of %d: exit status %d, see %s\n' "$run" "$times" $status "$log"
    grep '^test .* FAILED$' "$log"
done

awk '
    { test = substr($0, index($0, " ") + 1); seen[test]; $1 == "ok" ? good[test]++ : bad[test]++ }
    END { for (test in seen) printf "%5d passed %5d failed  %s\n", good[test], bad[test], test }' "$all" | sort -k5
printf '%d of %d runs failed\n' $failures "$times"
if [ ! -s "$all" ]; then
    echo "no test was run by $program $*" >&2
    exit 2
fi
[ $failures -eq 0 ]
