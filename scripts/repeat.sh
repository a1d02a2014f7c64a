#!/usr/bin/env bash
#
# Repeats tests on a busy machine, to find tests that fail now and then.
#
#   scripts/repeat.sh [--load N] [--times N] [--threads N] TESTBINARY PATTERN…
#
#   --load N     runs N busy loops beside the tests (0)
#   --times N    repeats the tests N times (20)
#   --threads N  runs N tests at the same time (as many as there are processors)
#   TESTBINARY   the name of a folder in tests/, such as faults; lib for the unit tests; or the path of a built program
#   PATTERN…     runs the tests whose names contain one of the patterns, as cargo test does
#
# Prints how often each test passed and failed. The output of failed runs is in target/check/repeat-TESTBINARY-RUN.log. The
# exit status is 1 if a test failed, and 2 if no test ran. Reads the same variables as ./check; a run is ended after
# LEASEHOLD_LIMIT seconds (600), and has then failed.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
TARGET=${CARGO_TARGET_DIR:-target}
LOGS=$TARGET/check
LOOPS=()

usage() {
    sed -n '3,/^$/s/^#\( \|$\)//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

# Each loop checks now and then whether this script lives, so that it ends even if the script was killed.
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

# Builds a test program by its name, and prints its path.
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
    # The tests' own output goes to another file; in the same file it would come between a test's name and its result.
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
