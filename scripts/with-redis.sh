#!/usr/bin/env bash
#
#   scripts/with-redis.sh COMMAND…   runs a command while three Redis servers run, whose URLs are in LEASEHOLD_TEST_REDIS
#                                    (tests/support/server.rs). The servers end with the command.
#
# For a test program that cannot start a server itself, such as one under wine.
set -euo pipefail

program=${LEASEHOLD_TEST_SERVER:-redis-server}
folder=$(mktemp -d)
pids=()
finish() {
    local pid
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf "$folder"
}
trap finish EXIT

urls=()
# If another process takes the port first, the server ends, and another port is tried.
for number in 1 2 3; do
    until [ "${#urls[@]}" -eq "$number" ]; do
        port=$((20000 + RANDOM % 12000))
        own=$folder/$number-$port
        mkdir -p "$own"
        "$program" --port "$port" --bind 127.0.0.1 --dir "$own" --logfile "$own/log" --save "" \
            --appendonly yes --appendfsync always --enable-debug-command yes &
        pid=$!
        while kill -0 "$pid" 2>/dev/null && ! grep -qs "Ready to accept connections" "$own/log"; do sleep 0.1; done
        if kill -0 "$pid" 2>/dev/null; then
            pids+=("$pid")
            urls+=("redis://127.0.0.1:$port/")
        fi
    done
done
export LEASEHOLD_TEST_REDIS="${urls[*]}"
"$@"
