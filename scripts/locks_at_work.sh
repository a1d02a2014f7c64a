# shellcheck shell=bash
# The end of ./demo: workers sell, and the program `leasehold` shows their locks as an operator sees them.

# Shows the locks on REDIS_URL while workers sell. They end with this; should a signal end it, the shell's jobs are to be ended.
show_locks_at_work() { # the program stock, the program leasehold
    local stock=$1 leasehold=$2 lines='' name
    "$stock" --url "$REDIS_URL" --rows redis_lock_fenced --stock 2000 >/dev/null 2>&1 </dev/null &
    running=$!
    # Its clients say where they are within a third of their lease of 1 s; a hold is over in milliseconds.
    for _ in {1..400}; do
        lines=$(LEASEHOLD_URL=$REDIS_URL "$leasehold" ls 'leasehold-demo:*' 2>&1)
        # A holder that says where it is, and in the last column those who wait.
        ! grep -qE '\(process [0-9]+\).* [1-9][0-9]*$' <<<"$lines" || break
        kill -0 "$running" 2>/dev/null || return 1
        sleep 0.05
    done
    name=$(sed -n '2s/ .*//p' <<<"$lines")
    printf '\nWhile workers sell, the program leasehold shows who is at it:\n\n$ leasehold ls\n%s\n' "$lines"
    printf '\n$ leasehold show %s\n' "$name"
    LEASEHOLD_URL=$REDIS_URL "$leasehold" show "$name"
    # As after Ctrl-C it ends its workers and removes its keys.
    kill -TERM "$running" 2>/dev/null || true
    wait "$running" 2>/dev/null || true
    running=
}
