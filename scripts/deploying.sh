#!/usr/bin/env bash
#
# The files of docs/deploying, judged by the programs whose files they are:
#
#   systemd      systemd-analyze verify, over the units that this machine has; systemd-analyze security
#   Kubernetes   the schemas of one version, which the package kubernetes-validate carries
#   Compose      the reader of the package compose-spec
#
# A judge that is not there is skipped loudly; with CI=true that is a failure. The packages are fetched from PyPI, once, to
# LEASEHOLD_SERVERS_DIR (scripts/servers.sh). Every judge is also given a file with a mistake, which it has to find.

# shellcheck disable=SC2317 # judges are called by their names
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
. scripts/servers.sh
# The first version that has sidecars without being asked for them, and the last one that the package knows.
KUBERNETES_VERSIONS='1.29 1.37'
PACKAGES='kubernetes-validate==1.37.0 compose-spec==0.2.1'
# Out of 100. A service of systemd without any limits has 96.
MOST_EXPOSED=20
FILES=docs/deploying
SCRATCH=$(mktemp -d) || exit 2
trap 'rm -rf "$SCRATCH"' EXIT
bad=0

failed() {
    printf 'FAILED: %s\n' "$*"
    bad=1
}

skipped() {
    printf 'SKIPPED %s\n' "$*"
    case ${CI:-} in '' | 0 | false) ;; *) bad=1 ;; esac
}

# A judge, a file, and an edit by sed after which the judge has to refuse it.
judged() { # judge file edit
    local name=${2##*/}
    "$1" "$2" || failed "$2"
    sed "$3" "$2" >"$SCRATCH/$name"
    cmp -s "$2" "$SCRATCH/$name" && failed "$2: $3 changes nothing"
    if "$1" "$SCRATCH/$name" >/dev/null 2>&1; then failed "$1 does not find a mistake in $2: $3"; fi
}

# The unit beside the system's own, with programs where it has them. Warnings count: a key that is not known is one.
verified() { # unit
    local root=$SCRATCH/root name=${1##*/} said
    if [ ! -d "$root" ]; then
        mkdir -p "$root"/usr/{bin,local/bin,lib/systemd} "$root"/etc/systemd/system
        ln -s usr/lib "$root/lib"
        cp -a "$(systemd_units)" "$root/usr/lib/systemd/system"
        for program in bin/leasehold local/bin/scheduler local/bin/report; do
            printf '#!/bin/sh\n' >"$root/usr/$program"
            chmod +x "$root/usr/$program"
        done
    fi
    cp "$FILES"/systemd/* "$root/etc/systemd/system"
    cp "$1" "$root/etc/systemd/system"
    said=$(systemd-analyze verify --root="$root" "$name" 2>&1)
    local code=$?
    [ -z "$said" ] || printf '%s\n' "$said"
    [ "$code" = 0 ] && [ -z "$said" ]
}

systemd_units() {
    local folder
    for folder in /usr/lib/systemd/system /lib/systemd/system; do
        if [ -d "$folder" ]; then
            echo "$folder"
            return
        fi
    done
    return 1
}

guarded() { # unit
    systemd-analyze security --offline=true --threshold="$MOST_EXPOSED" "$1" >"$SCRATCH/security" 2>&1
    local code=$?
    tail -n 1 "$SCRATCH/security"
    return "$code"
}

in_schema() { # manifest
    local version
    for version in $KUBERNETES_VERSIONS; do
        "$PYTHON" -m kubernetes_validate --strict --quiet --kubernetes-version "$version" "$1" || return 1
    done
}

composed() { # file
    "$PYTHON" -c 'import sys, compose_spec; compose_spec.PyCompose.from_yaml(open(sys.argv[1]).read()).validate()' "$1"
}

# The Python that has the packages.
ensure_packages() {
    local venv=$LEASEHOLD_SERVERS_DIR/deploying
    PYTHON=$venv/bin/python
    local stamp=$venv/has-${PACKAGES// /-}
    [ -e "$stamp" ] && return 0
    rm -rf "$venv"
    # shellcheck disable=SC2086 # words of their own
    {
        servers_have python3 && mkdir -p "$LEASEHOLD_SERVERS_DIR" && python3 -m venv "$venv" &&
            "$PYTHON" -m pip install --quiet --disable-pip-version-check $PACKAGES
    } >&2 && : >"$stamp"
}

if systemd-analyze --version >/dev/null 2>&1 && systemd_units >/dev/null; then
    systemd-analyze --version | head -n 1
    for unit in "$FILES"/systemd/*; do judged verified "$unit" 's/^Description=/Descripton=/'; done
    # A timer has no limits of its own.
    for unit in "$FILES"/systemd/*.service; do judged guarded "$unit" '/^Protect\|^Restrict\|^Private\|^SystemCall/d'; done
else
    skipped "systemd-analyze, and with it the units of systemd"
fi
if ensure_packages; then
    for file in "$FILES"/kubernetes/*; do judged in_schema "$file" 's/command:/comand:/'; done
    for file in "$FILES"/compose/*; do judged composed "$file" 's/secrets: \[leasehold_url\]/secrets: [other]/'; done
else
    skipped "a Python with $PACKAGES, and with it the manifests of Kubernetes and the Compose file"
fi
[ $bad = 0 ] && echo "the files of $FILES are what they should be"
exit $bad
