# shellcheck shell=bash
# The end of ./demo: workers sell, and the program `leasehold` shows their locks as an operator sees them.

# Shows the locks on REDIS_URL while workers sell, and ends the workers. If a signal ends this function, the caller must end the shell's jobs.
show_locks_at_work() { # the program stock, the program leasehold
    local stock=$1 leasehold=$2 lines='' name
    "$stock" --url "$REDIS_URL" --rows redis_lock_fenced --stock 2000 >/dev/null 2>&1 </dev/null &
    running=$!
    # A client writes its directory entry within 0.33 s, and a hold lasts milliseconds, so the list is repeated until it shows both.
    for _ in {1..400}; do
        lines=$(LEASEHOLD_URL=$REDIS_URL "$leasehold" ls 'leasehold-demo:*' 2>&1)
        # The list must have a holder with its process, and waiters in the last column.
        ! grep -qE '\(process [0-9]+\).* [1-9][0-9]*$' <<<"$lines" || break
        kill -0 "$running" 2>/dev/null || return 1
        sleep 0.05
    done
    name=$(sed -n '2s/ .*//p' <<<"$lines")
    printf '\nWhile workers sell, the program leasehold shows who is at it:\n\n$ leasehold ls\n%s\n' "$lines"
    printf '\n$ leasehold show %s\n' "$name"
    LEASEHOLD_URL=$REDIS_URL "$leasehold" show "$name"
    # At SIGTERM the program ends its workers and removes its keys, as after Ctrl-C.
    kill -TERM "$running" 2>/dev/null || true
    wait "$running" 2>/dev/null || true
    running=
}
