#!/usr/bin/env bash
#
#   scripts/fleet.sh PROGRAM
#
# The documented uses side by side on one Redis: candidates of an election, permits, `run`, `--max-hold`, jobs of `once`, and Redisson with locks of its own and
# in the queue of ours (where there are Java and Maven; else it says so). A real Prometheus scrapes
# `leasehold serve` with docs/operating/prometheus.yml, and goes by docs/operating/alerts.yml, each `for:` a tenth of what it is. No alert may fire;
# then each of three faults fires its own and no other. Takes some four minutes. Needs redis-server and prometheus; without one it says SKIPPED.

# shellcheck disable=SC2317 # called at the end
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
. scripts/servers.sh
program=$(readlink -f "${1:?PROGRAM}") || exit 2
candidates=${LEASEHOLD_CANDIDATES:-40}

skipped() {
    echo "SKIPPED the fleet: $*"
    case ${CI:-} in '' | 0 | false) exit 0 ;; *) exit 1 ;; esac
}
redis=$(servers_ensure_redis) || skipped "no redis-server"
promtool=$(servers_ensure_promtool) && prometheus=${promtool%promtool}prometheus && [ -x "$prometheus" ] || skipped "no prometheus"
work=$(mktemp -d) || exit 2
all=()
clean() {
    kill -CONT "${all[0]}" 2>/dev/null
    kill "${all[@]}" 2>/dev/null
    wait 2>/dev/null
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM

failed() {
    echo "FAILED: $*"
    tail -n 5 "$work"/*.log
    exit 1
}
start() { # command…
    "$@" >>"$work/out.log" 2>&1 &
    all+=($!)
}
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
firing() {
    curl -s "http://127.0.0.1:$port_of_prometheus/api/v1/alerts" |
        python3 -c 'import json, sys; print(*sorted({one["labels"]["alertname"] for one in json.load(sys.stdin)["data"]["alerts"] if one["state"] == "firing"}))'
}
# For so many seconds at most, until these alerts fire: none but them may, before and then.
fires() { # what seconds alerts
    local found=
    for ((second = 0; second < $2; second += 3)); do
        sleep 3
        found=$(firing)
        [ -z "$found" ] || [ "$found" = "$3" ] || failed "$1: $found"
        [ -z "$found" ] || { echo "$1: $found after $second s" && return; }
    done
    [ "$found" = "$3" ] || failed "$1: nothing fires in $2 s, and $3 should"
    echo "$1: no alert in $2 s"
}
calm() {
    for _ in {1..40}; do [ -z "$(firing)" ] && return || sleep 3; done
    failed "an alert does not end: $(firing)"
}

port_of_redis=$(free_port) port_of_serve=$(free_port) port_of_prometheus=$(free_port)
export LEASEHOLD_URL=redis://127.0.0.1:$port_of_redis XDG_RUNTIME_DIR=$work
start "$redis" --port "$port_of_redis" --bind 127.0.0.1 --save '' --dir "$work"
for _ in {1..100}; do servers_redis_is "$port_of_redis" "${all[0]}" && break || sleep 0.1; done
"$program" once nightly --at-least 1h --at-most 2h -- true || failed "the job of the night"
start "$program" serve --listen "127.0.0.1:$port_of_serve" --job nightly
serve=$!
for ((one = 0; one < candidates; one++)); do start "$program" elect scheduler -- sleep 1000; done
for _ in {1..8}; do start "$program" run --permits 4 seats -- sleep 1000; done
for _ in {1..8}; do start "$program" run import -- sleep 1000; done
start "$program" run --max-hold 2h deploy -- sleep 1000
start "$program" once long --at-least 1m --at-most 2h -- sleep 1000
# Redisson beside, in a JVM: the agent of tests/interop reads requests, one a line, and answers in the log.
redisson() { # number thread verb argument…
    local line="$1	$2	java	${*:3:1}"
    for word in "${@:4}"; do line+="	$word"; done
    printf '%s\n' "$line" >&4
}
agent=tests/interop/java/target/agent.jar
[ -f "$agent" ] || mvn -q -B -f tests/interop/java/pom.xml package >"$work/mvn.log" 2>&1
if [ -f "$agent" ] && command -v java >/dev/null; then
    mkfifo "$work/requests" && exec 4<>"$work/requests"
    java -XX:+UseSerialGC -XX:-UsePerfData -Xmx256m -jar "$agent" <&4 >>"$work/out.log" 2>&1 &
    all+=($!)
    redisson 1 first connect "$LEASEHOLD_URL" 30000
    for _ in {1..600}; do grep -q $'^1\tok' "$work/out.log" && break || sleep 0.1; done
    redisson 2 holder lock java:import
    redisson 3 second lock java:import
    redisson 4 fair fair-lock java:fair
    redisson 5 fair-second fair-lock java:fair
    redisson 6 reader read-lock java:halves
    redisson 7 writer write-lock java:halves
    redisson 8 leased lock-lease java:leased 3600000
    redisson 9 permits permits-set java:seats 1
    redisson 10 permits permits-try-for java:seats 1000 3600000
    redisson 11 permits-second permits-try-for java:seats 3600000 1000
    redisson 12 queue lock import
    for _ in {1..100}; do "$program" ls -q 'java:*' | grep -c . | grep -qx 6 && break || sleep 0.3; done
    "$program" ls -q 'java:*' | grep -c . | grep -qx 6 || failed "Redisson's five locks are not held: $(grep -P '^\d+\terror' "$work/out.log")"
    echo "Redisson is beside"
else
    echo "SKIPPED Redisson beside the fleet: no java, or no Maven"
fi
sed -E 's/for: 10m/for: 60s/; s/for: 5m/for: 30s/; s/for: 2m/for: 12s/; s/for: 1m/for: 6s/' docs/operating/alerts.yml >"$work/alerts.yml"
sed "s/127.0.0.1:9477/127.0.0.1:$port_of_serve/; s/scrape_interval: .*/scrape_interval: 4s/; /job_name: shop/,\$d" docs/operating/prometheus.yml >"$work/prometheus.yml"
printf 'global: {evaluation_interval: 2s}\n' >>"$work/prometheus.yml"
start "$prometheus" --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" --web.listen-address="127.0.0.1:$port_of_prometheus"

fires "no fault" 90 ''
exec 3<>"/dev/tcp/127.0.0.1/$port_of_redis"
printf 'HSET forever 0a0a0a0a-0000-4000-8000-000000000000:1 1\r\n' >&3
fires "a lock without an end" 120 LeaseholdLockWithoutEnd
printf 'DEL forever\r\nQUIT\r\n' >&3
exec 3>&-
calm
kill -STOP "${all[0]}"
fires "the store is away" 60 LeaseholdStoreIsAway
kill -CONT "${all[0]}"
calm
kill "$serve"
fires "nobody serves" 120 LeaseholdStoreIsNotWatched
echo "the fleet is as the page has it"
