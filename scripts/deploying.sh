#!/usr/bin/env bash
#
# Checks the files of docs/deploying by the programs that read them:
#
#   systemd      systemd-analyze verify, beside the units of this machine; systemd-analyze security
#   Kubernetes   the schemas in the package kubernetes-validate
#   Compose      the parser of the package compose-spec
#
# A missing checker is skipped with a message; with CI=true that is a failure. The packages are fetched once from PyPI to
# LEASEHOLD_SERVERS_DIR (scripts/servers.sh). Every checker also gets a file with a mistake, which it must find.

# shellcheck disable=SC2317 # judges are called by their names
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
. scripts/servers.sh
# The first version with sidecars on by default, and the last version in the package.
KUBERNETES_VERSIONS='1.29 1.37'
PACKAGES='kubernetes-validate==1.37.0 compose-spec==0.2.1'
# The maximum exposure by systemd-analyze security, out of 100. A service without any limits has 96.
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

# Checks a file, and then the file after an edit by sed, which the checker must refuse.
judged() { # judge file edit
    local name=${2##*/}
    "$1" "$2" || failed "$2"
    sed "$3" "$2" >"$SCRATCH/$name"
    cmp -s "$2" "$SCRATCH/$name" && failed "$2: $3 changes nothing"
    if "$1" "$SCRATCH/$name" >/dev/null 2>&1; then failed "$1 does not find a mistake in $2: $3"; fi
}

# Verifies the unit beside the system's units, with programs at the paths that the unit names. A warning is a failure, since an
# unknown key is only a warning.
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

# Sets PYTHON to a Python that has the packages, and installs them if needed.
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
    # Checks services only, since a timer has no limits.
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
