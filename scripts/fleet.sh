#!/usr/bin/env bash
#
#   scripts/fleet.sh PROGRAM
#
# Runs the documented uses at the same time on one Redis: candidates of an election, permits, `run`, `--max-hold`, jobs of `once`, Redisson with its own locks
# and in the wait queue of this crate's locks (if there are Java and Maven; otherwise prints that), and the metrics of a service. A real Prometheus scrapes them
# with docs/operating/prometheus.yml and docs/operating/alerts.yml, but with shorter times (mostly a tenth). No alert may fire for LEASEHOLD_CALM_SECONDS (90); then
# each of thirteen faults must fire its own alert and no other. Two alerts have no fault here, but in tests/meta/fleet.rs: LeaseholdHoldIsLong and
# LeaseholdThreadsWaitForEachOther. Takes about fifteen minutes. Needs redis-server and prometheus; prints SKIPPED without them.

# shellcheck disable=SC2317 # called at the end
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
. scripts/servers.sh
program=$(readlink -f "${1:?PROGRAM}") || exit 2
candidates=${LEASEHOLD_CANDIDATES:-40}
lasts=${LEASEHOLD_CALM_SECONDS:-90}
long=$((lasts + 1000))

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
    curl -s "http://127.0.0.1:$port_of_prometheus/api/v1/alerts"
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
# Waits for the alerts $3, $2 seconds at most. No other alert may fire meanwhile; with an empty $3, none at all.
fires() { # what seconds alerts
    local found='' begun=$SECONDS
    while ((SECONDS < begun + $2)); do
        sleep 3
        found=$(firing)
        [ -z "$found" ] || [ "$found" = "$3" ] || failed "$1: $found after $((SECONDS - begun)) s"
        [ -z "$found" ] || { echo "$1: $found after $((SECONDS - begun)) s" && return; }
    done
    [ "$found" = "$3" ] || failed "$1: nothing fires in $2 s, and $3 should"
    echo "$1: no alert in $2 s"
}
calm() {
    for _ in {1..40}; do [ -z "$(firing)" ] && return || sleep 3; done
    failed "an alert does not end: $(firing)"
}

redis_says() { # command…
    exec 3<>"/dev/tcp/127.0.0.1/$port_of_redis"
    printf '%s\r\n' "${@//$'\n'/ }" QUIT >&3
    cat <&3 >>"$work/out.log"
    exec 3>&-
}
# Changes the value of a series in the service's metrics.
number() { # series value
    sed "s/^\($1\) .*/\1 $2/" "$work/service/metrics" >"$work/next" && mv "$work/next" "$work/service/metrics"
}

port_of_redis=$(free_port) port_of_service=$(free_port) port_of_serve=$(free_port) port_of_prometheus=$(free_port)
export LEASEHOLD_URL=redis://127.0.0.1:$port_of_redis XDG_RUNTIME_DIR=$work
start "$redis" --port "$port_of_redis" --bind 127.0.0.1 --save '' --dir "$work"
for _ in {1..100}; do servers_redis_is "$port_of_redis" "${all[0]}" && break || sleep 0.1; done
"$program" once nightly --at-least 1h --at-most 2h -- true || failed "the job of the night"
start "$program" serve --listen "127.0.0.1:$port_of_serve" --job nightly
serve=$!
mkdir "$work/service"
cat >"$work/service/metrics" <<'END'
leasehold_lost_total 0
leasehold_renewal_overdue_max_seconds 0.4
leasehold_renewals_total{result="ok"} 5
leasehold_renewals_total{result="error"} 0
leasehold_acquire_wait_seconds_count{outcome="granted"} 90
leasehold_acquire_wait_seconds_count{outcome="timeout"} 0
leasehold_subscription_up 1
leasehold_abandoned_total 0
leasehold_deadlocks_total 0
leasehold_release_failures_total 0
END
start python3 -m http.server --bind 127.0.0.1 --directory "$work/service" "$port_of_service"
for ((one = 0; one < candidates; one++)); do start "$program" elect scheduler -- sleep "$long"; done
for _ in {1..8}; do start "$program" run --permits 4 seats -- sleep "$long"; done
for _ in {1..8}; do start "$program" run import -- sleep 1000; done
start "$program" run --max-hold 4h deploy -- sleep "$long"
start "$program" once long --at-least 1m --at-most 4h -- sleep "$long"
# Sends a request to Redisson in a JVM: the agent of tests/interop reads one request a line, and answers in the log.
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
sed -E 's/for: 10m/for: 60s/; s/for: 5m/for: 30s/; s/for: 2m/for: 12s/; s/for: 1m/for: 6s/; s/\[10m\]/[60s]/g; s/\[5m\]/[30s]/g; s/\[1h\]/[60s]/g' \
    docs/operating/alerts.yml >"$work/alerts.yml"
sed "s/127.0.0.1:9477/127.0.0.1:$port_of_serve/; s/127.0.0.1:9090/127.0.0.1:$port_of_service/; s/scrape_interval: .*/scrape_interval: 4s/" \
    docs/operating/prometheus.yml >"$work/prometheus.yml"
printf 'global: {evaluation_interval: 2s}\n' >>"$work/prometheus.yml"
start "$prometheus" --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" --web.listen-address="127.0.0.1:$port_of_prometheus"

fires "no fault" "$lasts" ''
curl -s "http://127.0.0.1:$port_of_serve/metrics" | "$promtool" check metrics || failed "names or units are not as Prometheus has them"
# The faults of the service: a number changes once, or keeps growing.
while read -r how series value alert; do
    number "$series" "$value"
    [ "$how" = once ] || { while sleep 2; do number "$series" $((++value)); done & }
    fires "$series" 180 "$alert"
    [ "$how" = once ] || { kill $! && wait $! 2>/dev/null; }
    case $series in *_max_seconds) number "$series" 0 ;; *_up) number "$series" 1 ;; esac
    calm
done <<'END'
once leasehold_lost_total 1 LeaseholdLockLost
once leasehold_renewal_overdue_max_seconds 5 LeaseholdHoldAtRisk
grows leasehold_renewals_total{result="error"} 1 LeaseholdRenewalsFail
grows leasehold_acquire_wait_seconds_count{outcome="timeout"} 1 LeaseholdWaitsEndWithoutLock
once leasehold_subscription_up 0 LeaseholdWaitsWithoutMessages
once leasehold_abandoned_total 1 LeaseholdThreadsEndWithoutRelease
once leasehold_deadlocks_total 1 LeaseholdDeadlock
grows leasehold_release_failures_total 1 LeaseholdReleasesFail
END
# The faults of the store.
owner=0a0a0a0a-0000-4000-8000-000000000000
redis_says "HSET forever $owner:1 1"
fires "a lock without an end" 120 LeaseholdLockWithoutEnd
redis_says "DEL forever"
calm
redis_says "HSET crowd:one $owner:1 1" "EXPIRE crowd:one 600" "RPUSH redisson_lock_queue:{crowd:one} $(seq -s ' ' -f "$owner:%g" 2 102)"
fires "a crowd waits" 180 LeaseholdManyWait
redis_says "DEL crowd:one redisson_lock_queue:{crowd:one}"
calm
# Sets the expiry of the job's record as if the last run had ended $1 hours ago: a record lasts for 40 days from the run's end.
ran() { # hours ago
    redis_says "EVAL \"for _, key in ipairs(redis.call('KEYS', 'leasehold_client:*')) do local text = redis.call('GET', key)
        if text and text:find('job=nightly', 1, true) then redis.call('EXPIRE', key, 40 * 86400 - $1 * 3600) end end\" 0"
}
ran 27
fires "a job is late" 120 LeaseholdJobIsLate
ran 0
calm
kill -STOP "${all[0]}"
fires "the store is away" 60 LeaseholdStoreIsAway
kill -CONT "${all[0]}"
calm
kill "$serve"
fires "nobody serves" 120 LeaseholdStoreIsNotWatched
echo "the fleet is as the page has it"
