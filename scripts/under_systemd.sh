#!/usr/bin/env bash
#
#   scripts/under_systemd.sh PROGRAM
#
# Runs the units of docs/deploying with all their limits under a separate systemd. It runs in its own namespaces, as process 1, with a
# private network, private /etc, /usr and /var, and a Redis. Needs Linux, root, systemd, curl and redis-server; prints SKIPPED if one of
# them is missing. Takes about 15 seconds. The control groups of this systemd are below the caller's, and end with it.

# shellcheck disable=SC2317 # called at the end
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

# --- in the namespaces, until systemd takes over ---------------------------------------------------------------------

if [ "${1:-}" = inside ]; then
    work=$2 redis=$3
    mount --make-rprivate / && mount -t tmpfs tmpfs "$work/layers" || exit
    for folder in usr etc var; do
        mkdir -p "$work/layers/$folder" "$work/layers/$folder.work" || exit
        layers="lowerdir=/$folder,upperdir=$work/layers/$folder,workdir=$work/layers/$folder.work"
        mount -t overlay overlay -o "$layers" "/$folder" || exit
    done
    mount -t tmpfs tmpfs /run && mkdir -p /run/lock /run/systemd/system && install -d -m 700 /etc/leasehold || exit
    install -m 755 "$work/leasehold" /usr/bin/leasehold || exit
    (umask 077 && echo redis://127.0.0.1:6379 >/etc/leasehold/url) || exit
    echo 'OPTIONS=--job nightly-report' >/etc/leasehold/serve
    # The scheduler tries to read root's file and to write to /usr, which its unit must forbid.
    cat >/usr/local/bin/scheduler <<'END'
#!/bin/sh
echo "leads as $(id -un) with term $LEASEHOLD_FENCE"
cat /etc/leasehold/url 2>/dev/null && echo "reads the file of root"
echo x 2>/dev/null >/usr/x && echo "writes to /usr"
(setsid sleep 1000 &)
exec sleep 1000
END
    cat >/usr/local/bin/report <<'END'
#!/bin/sh
echo "reports as $(id -un) for $LEASEHOLD_NAME"
END
    chmod 755 /usr/local/bin/scheduler /usr/local/bin/report
    for unit in scheduler report leasehold-serve; do
        # Removes default dependencies, on units that this small system lacks.
        sed -e 's/^\[Unit\]/&\nDefaultDependencies=no/' -e '/^\[Install\]/,$d' "docs/deploying/systemd/$unit.service" >/run/systemd/system/$unit.service
        printf '\n[Service]\nStandardOutput=append:%s\nStandardError=append:%s\n' "$work/$unit.out" "$work/$unit.out" >>/run/systemd/system/$unit.service
    done
    cat >/run/systemd/system/redis.service <<END
[Unit]
DefaultDependencies=no
[Service]
ExecStart=$redis --port 6379 --bind 127.0.0.1 --save ""
END
    cat >/run/systemd/system/test.service <<END
[Unit]
DefaultDependencies=no
# systemd keeps the state of these units after their end, because this unit names them.
After=redis.service scheduler.service report.service leasehold-serve.service
[Service]
Type=oneshot
WorkingDirectory=$PWD
ExecStart=/bin/bash scripts/under_systemd.sh test $work
StandardOutput=append:$work/test.out
StandardError=append:$work/test.out
END
    printf '[Unit]\nDefaultDependencies=no\nWants=redis.service test.service\n' >/run/systemd/system/all.target
    # Mounts must be shared, since a process of systemd mounts credentials for all others.
    mount --make-rshared / && export container=lxc
    exec "$4" --system --unit=all.target --log-target=console --show-status=no
fi

# --- a service of that systemd ---------------------------------------------------------------------------------------

if [ "${1:-}" = test ]; then
    work=$2
    failed() {
        echo "FAILED: $*"
        touch "$work/ended"
        exit 1
    }
    eventually() { # what command…
        local what=$1
        shift
        for ((turn = 0; turn < 200; turn++)); do
            "$@" >/dev/null 2>&1 && return 0
            sleep 0.1
        done
        failed "not within 20 s and more: $what"
    }
    is() { # unit property value
        local found
        found=$(systemctl show "$1" -p "$2" --value)
        [ "$found" = "$3" ] || failed "$1: $2 is $found, not $3"
    }
    eventually "Redis answers" bash -c 'exec 3<>/dev/tcp/127.0.0.1/6379'
    systemctl start scheduler.service
    eventually "the scheduler leads" curl -sf http://127.0.0.1:9478/leader
    curl -sf http://127.0.0.1:9478/ready >/dev/null || failed "it is not ready"
    eventually "its command runs" grep -q 'leads as scheduler with term [0-9]' "$work/scheduler.out"
    for never in 'reads the file' 'writes to'; do
        grep "$never" "$work/scheduler.out" && failed "the limits of the service are none"
    done
    systemctl start leasehold-serve.service
    eventually "the page is served, and its options are read" curl -sf http://127.0.0.1:9477/metrics
    curl -s http://127.0.0.1:9477/metrics | grep -q 'job_runs{name="nightly-report"} 0' || failed "no numbers of the job"
    systemctl stop leasehold-serve.service
    is leasehold-serve.service Result success
    systemctl stop scheduler.service
    is scheduler.service Result success
    is scheduler.service ExecMainStatus 143
    grep -l scheduler.service /proc/[0-9]*/cgroup 2>/dev/null && failed "a process of the scheduler is left"
    for _ in 1 2; do
        systemctl start report.service || failed "the report"
        is report.service Result success
    done
    [ "$(cat "$work/report.out")" = 'reports as report for nightly-report' ] || failed "not once: $(cat "$work/report.out")"
    echo "the units work under $(systemctl --version | head -n 1)"
    touch "$work/good" "$work/ended"
    exit 0
fi

# --- the caller ------------------------------------------------------------------------------------------------------

skipped() {
    echo "SKIPPED the units under systemd itself: $*"
    exit 0
}
program=$(readlink -f "${1:?PROGRAM}") || exit 2
[ "$(uname -s) $(id -u)" = 'Linux 0' ] || skipped "it needs Linux and root"
for needed in unshare curl redis-server; do command -v $needed >/dev/null || skipped "no $needed"; done
for systemd in /usr/lib/systemd/systemd /lib/systemd/systemd ''; do [ ! -x "$systemd" ] || break; done
[ -n "$systemd" ] || skipped "no systemd"
work=$(mktemp -d) || exit 2
chmod 755 "$work" && mkdir "$work/layers" && cp "$program" "$work/leasehold" || exit 2

groups() { find /sys/fs/cgroup -type d \( -name init.scope -o -name system.slice \) 2>/dev/null | sort; }
before=$(groups)
outer=
clean() {
    # Only KILL ends the first process of a namespace, and all other processes of the namespace end with it.
    [ -z "$outer" ] || kill -KILL "$outer" 2>/dev/null
    wait 2>/dev/null
    comm -13 <(echo "$before") <(groups) | while read -r group; do
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null
            [ -d "$group" ] || break
            sleep 0.2
        done
    done
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM
unshare --pid --fork --mount --cgroup --ipc --uts --net --mount-proc --kill-child \
    bash scripts/under_systemd.sh inside "$work" "$(command -v redis-server)" "$systemd" >"$work/systemd.log" 2>&1 &
outer=$!
for ((turn = 0; turn < 1200; turn++)); do
    if [ -e "$work/ended" ] || ! kill -0 "$outer" 2>/dev/null; then break; fi
    sleep 0.1
done
cat "$work/test.out" 2>/dev/null
[ -e "$work/good" ] && exit 0
tail -n 20 "$work/systemd.log" "$work/scheduler.out" "$work/report.out"
exit 1
