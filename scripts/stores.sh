#!/usr/bin/env bash
#
# Starts the stores that ./bench stores measures, each as a private server on a free port of 127.0.0.1, with its data below
# one folder. This file is sourced; all names begin with stores_.
#
#   stores_start NAME FOLDER   sets STORES_URL, STORES_PID (empty: no server) and STORES_ABOUT (its version and settings)
#   stores_stop                ends the servers that stores_start started, by process id
#
# A store is one line of the table and, if its kind of server is new, one function.

# name | the function that starts the store, and its arguments
STORES='
memory|stores_start_memory
redis|stores_start_redis no everysec
redis-fair|stores_start_redis_fair
redis-fsync|stores_start_redis yes always
zookeeper|stores_start_zookeeper
etcd|stores_start_etcd
postgres|stores_start_postgres rows
postgres-session|stores_start_postgres sessions
postgres-row|stores_start_postgres rows_in_transactions
postgres-advisory|stores_start_postgres advisory_in_transactions
mariadb|stores_start_mariadb rows
mariadb-session|stores_start_mariadb sessions
mariadb-row|stores_start_mariadb rows_in_transactions
sqlite|stores_start_sqlite
'

# The signal that ends each server, and its process id.
STORES_STARTED=()
STORES_URL=
STORES_PID=
STORES_ABOUT=
# URL and process id of the one server that all forms of locks in PostgreSQL share; the same for MariaDB.
STORES_POSTGRES=()
STORES_MARIADB=()

stores_names() { sed -n 's/^\([^|]*\)|.*/\1/p' <<<"$STORES"; }

stores_start() { # name folder
    local how
    how=$(sed -n "s/^$1|//p" <<<"$STORES")
    if [ -z "$how" ]; then
        servers_say "no store $1; there are: $(stores_names | tr '\n' ' ')"
        return 1
    fi
    STORES_URL='' STORES_PID='' STORES_ABOUT=''
    mkdir -p "$2/$1" || return 1
    # shellcheck disable=SC2086 # the function and its arguments
    $how "$2/$1"
}

stores_stop() {
    local server
    for server in ${STORES_STARTED[@]+"${STORES_STARTED[@]}"}; do
        kill -s "${server%% *}" "${server#* }" 2>/dev/null || true
        wait "${server#* }" 2>/dev/null || true
    done
    STORES_STARTED=() STORES_POSTGRES=() STORES_MARIADB=()
}

# Prints a random port, which is probably free. A server is tried on several ports until it runs.
stores_port() { echo $((20000 + RANDOM % 10000)); }

# Waits until a command succeeds; fails if the server ends first.
stores_wait() { # command…
    local _
    for _ in $(seq 600); do
        kill -0 "$STORES_PID" 2>/dev/null || return 1
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.05
    done
    return 1
}

stores_post() { # port path body
    exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf 'POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s' "$2" "${#3}" "$3" >&3
    timeout 5 cat <&3
    exec 3<&-
}

# Whether the server on this port is the started one, by an answer that only this server can give: another server may have taken
# the port first. Database servers are recognised by their logs.
stores_etcd_is() { # port name
    case $(stores_post "$1" /v3/kv/range '{"key":"YQ=="}') in *' 200 '*) ;; *) return 1 ;; esac
    case $(stores_post "$1" /v3/cluster/member/list '{}') in *"\"name\":\"$2\""*) return 0 ;; *) return 1 ;; esac
}
stores_zookeeper_is() { # port data-folder
    case $(stores_ask_zookeeper "$1" conf) in *"dataDir=$2/"*) ;; *) return 1 ;; esac
    case $(stores_ask_zookeeper "$1" srvr) in *Mode:*) return 0 ;; *) return 1 ;; esac
}

stores_started() { # url about [signal that ends it]
    STORES_STARTED+=("${3:-TERM} $STORES_PID")
    STORES_URL=$1
    STORES_ABOUT=$2
}

stores_give_up() {
    kill "$STORES_PID" 2>/dev/null || true
    wait "$STORES_PID" 2>/dev/null || true
    STORES_PID=
}

stores_start_memory() { # folder
    STORES_URL=memory:
    STORES_ABOUT='in the process itself'
}

stores_start_redis() { # append-only fsync folder
    local program port _
    program=$(servers_ensure_redis) || return 1
    for _ in 1 2 3 4 5; do
        port=$(stores_port)
        "$program" --port "$port" --bind 127.0.0.1 --save '' --appendonly "$1" --appendfsync "$2" --dir "$3" \
            --maxclients 10000 --tcp-backlog 2048 --logfile "$3/log" --daemonize no &
        STORES_PID=$!
        if stores_wait servers_redis_is "$port" "$STORES_PID"; then
            local persistence='nothing on disk'
            [ "$1" = no ] || persistence='each change on disk before the answer'
            stores_started "redis://127.0.0.1:$port" "$(servers_name "$program"), $persistence"
            return 0
        fi
        stores_give_up
    done
    return 1
}

# As stores_start_redis, for contenders that acquire fair locks.
stores_start_redis_fair() { # folder
    stores_start_redis no everysec "$1" || return 1
    STORES_ABOUT="$STORES_ABOUT; \`get_fair_lock\`"
}

stores_start_zookeeper() { # folder
    local jar port _
    jar=$(servers_ensure_zookeeper) && servers_have java || return 1
    mkdir -p "$1/data"
    for _ in 1 2 3 4 5; do
        port=$(stores_port)
        printf '%s\n' "tickTime=2000" "dataDir=$1/data" "clientPort=$port" clientPortAddress=127.0.0.1 \
            maxClientCnxns=0 admin.enableServer=false '4lw.commands.whitelist=srvr,conf' >"$1/zoo.cfg"
        java -Xmx512m -cp "$jar" org.apache.zookeeper.server.quorum.QuorumPeerMain "$1/zoo.cfg" >"$1/log" 2>&1 &
        STORES_PID=$!
        if stores_wait stores_zookeeper_is "$port" "$1/data"; then
            stores_started "zk://127.0.0.1:$port" \
                "ZooKeeper $(stores_ask_zookeeper "$port" srvr | sed -n 's/^Zookeeper version: \([0-9.]*\).*/\1/p'), one server, each change on disk before the answer"
            return 0
        fi
        stores_give_up
    done
    return 1
}

# Prints ZooKeeper's answer to a four-letter command.
stores_ask_zookeeper() { # port word
    exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf %s "$2" >&3
    timeout 5 cat <&3
    exec 3<&-
}

stores_start_etcd() { # folder
    local program port peer name _
    program=$(servers_ensure_etcd) || return 1
    for _ in 1 2 3 4 5; do
        port=$(stores_port)
        peer=$((port + 10000))
        name=bench-$$-$RANDOM$RANDOM
        "$program" --name "$name" --data-dir "$1/data" --log-level error \
            --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
            --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
            --initial-cluster "$name=http://127.0.0.1:$peer" >"$1/log" 2>&1 &
        STORES_PID=$!
        if stores_wait stores_etcd_is "$port" "$name"; then
            stores_started "etcd://127.0.0.1:$port" \
                "etcd $("$program" --version | sed -n 's/^etcd Version: //p'), one member, each change on disk before the answer"
            return 0
        fi
        stores_give_up
        rm -rf "$1/data"
    done
    return 1
}

# --- databases, with default settings except for the number of connections

STORES_MOST_CONNECTIONS=2000

stores_form() { # form
    case $1 in
        rows) echo 'rows with leases' ;;
        sessions) echo 'session locks, a connection each' ;;
        rows_in_transactions) echo 'FOR UPDATE in the caller'"'"'s transaction, at most 100 connections' ;;
        advisory_in_transactions) echo 'pg_advisory_xact_lock in the caller'"'"'s transaction, at most 100 connections' ;;
    esac
}

# For servers that refuse to run as root: sets STORES_AS to the words before a command, and gives the folder to that user.
stores_as() { # folder user…
    local folder=$1 user
    shift
    STORES_AS=()
    [ "$(id -u)" = 0 ] || return 0
    for user in "$@"; do
        id "$user" >/dev/null 2>&1 || continue
        STORES_AS=(setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups --)
        chmod a+x "$(dirname "$folder")" && chown "$user" "$folder"
        return
    done
}

stores_start_postgres() { # form folder
    local initdb version port _
    initdb=$(servers_find_initdb || { servers_ensure_postgres >/dev/null && servers_find_initdb; }) || return 1
    initdb=$(readlink -f "$initdb")
    version=$("$initdb" --version | sed 's/^.*) \([0-9.]*\).*/PostgreSQL \1/')
    if [ ${#STORES_POSTGRES[@]} = 0 ]; then
        stores_as "$2" postgres nobody || return 1
        (cd "$2" && ${STORES_AS[@]+"${STORES_AS[@]}"} "$initdb" -D "$2/data" -U bench -A trust -E UTF8 --locale=C) \
            >"$2/initdb.log" 2>&1 || return 1
        for _ in 1 2 3 4 5; do
            port=$(stores_port)
            (cd "$2" && exec ${STORES_AS[@]+"${STORES_AS[@]}"} "$(dirname "$initdb")/postgres" -D "$2/data" -k "$2" \
                -c "port=$port" -c listen_addresses=127.0.0.1 -c "max_connections=$STORES_MOST_CONNECTIONS") \
                >"$2/log" 2>&1 &
            STORES_PID=$!
            if stores_wait grep -q 'ready to accept connections' "$2/log"; then
                # SIGINT shuts the server down at once; after SIGTERM it would wait for its clients.
                stores_started "postgres://bench@127.0.0.1:$port/postgres" '' INT
                STORES_POSTGRES=("$STORES_URL" "$STORES_PID")
                break
            fi
            stores_give_up
        done
    fi
    [ ${#STORES_POSTGRES[@]} = 2 ] || return 1
    STORES_URL=${STORES_POSTGRES[0]} STORES_PID=${STORES_POSTGRES[1]}
    STORES_ABOUT="$version, $(stores_form "$1"); fsync and synchronous_commit on"
}

stores_start_mariadb() { # form folder
    local program version port _
    PATH="$PATH:/usr/sbin" servers_ensure_mariadb >/dev/null || return 1
    program=$(PATH="$PATH:/usr/sbin" && command -v mariadbd || PATH="$PATH:/usr/sbin" command -v mysqld) || return 1
    version=$("$program" --version | sed 's/^.*Ver \([0-9.]*\)\(-MariaDB\)*.*/\2 \1/; s/^-//; s/^ /MySQL /')
    if [ ${#STORES_MARIADB[@]} = 0 ]; then
        stores_as "$2" mysql nobody || return 1
        printf '%s\n' 'CREATE DATABASE IF NOT EXISTS locks;' "CREATE USER IF NOT EXISTS bench@'%';" \
            "GRANT ALL ON *.* TO bench@'%';" >"$2/init.sql"
        if servers_have mariadb-install-db; then
            ${STORES_AS[@]+"${STORES_AS[@]}"} mariadb-install-db --no-defaults "--datadir=$2/data" "--tmpdir=$2" \
                --auth-root-authentication-method=normal --skip-test-db >"$2/install.log" 2>&1 || return 1
        else
            ${STORES_AS[@]+"${STORES_AS[@]}"} "$program" --no-defaults --initialize-insecure "--datadir=$2/data" \
                >"$2/install.log" 2>&1 || return 1
        fi
        for _ in 1 2 3 4 5; do
            port=$(stores_port)
            ${STORES_AS[@]+"${STORES_AS[@]}"} "$program" --no-defaults "--datadir=$2/data" "--socket=$2/s" \
                "--tmpdir=$2" "--pid-file=$2/pid" "--init-file=$2/init.sql" "--port=$port" --bind-address=127.0.0.1 \
                "--max-connections=$STORES_MOST_CONNECTIONS" --back-log=2048 --skip-name-resolve \
                --innodb-flush-log-at-trx-commit=1 >"$2/log" 2>&1 &
            STORES_PID=$!
            if stores_wait grep -q 'ready for connections' "$2/log"; then
                stores_started "mysql://bench@127.0.0.1:$port/locks" ''
                STORES_MARIADB=("$STORES_URL" "$STORES_PID")
                break
            fi
            stores_give_up
        done
    fi
    [ ${#STORES_MARIADB[@]} = 2 ] || return 1
    STORES_URL=${STORES_MARIADB[0]} STORES_PID=${STORES_MARIADB[1]}
    STORES_ABOUT="$version, $(stores_form "$1"); innodb_flush_log_at_trx_commit=1"
}

stores_start_sqlite() { # folder
    STORES_URL=sqlite://$1/locks.db
    # shellcheck disable=SC2034 # for the script that sources this
    STORES_ABOUT='a file, rows with leases; write-ahead log, written to the disk at checkpoints (synchronous=NORMAL)'
}
