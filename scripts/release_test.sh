# shellcheck shell=bash disable=SC2015,SC2016,SC2031,SC2154 # words for other programs; the variables of ./release; a test ends by `fail`
# The part `test` of ./release: installs, uses and removes each file of a release in a separate root folder.

# shellcheck source=scripts/servers.sh
. "$home/scripts/servers.sh"

roots=$home/target/release-roots # root folders: a cached Debian, and temporary ones

# The programs that the test needs beside Rust, and Debian's packages with them.
TEST_NEEDS='debootstrap:debootstrap qemu-aarch64-static:qemu-user-static rpm:rpm lintian:lintian umoci:umoci skopeo:skopeo podman:podman
    busybox:busybox-static nsenter:util-linux groff:groff'

test_needs() {
    local need missing=()
    for need in $TEST_NEEDS; do
        have "${need%%:*}" || missing+=("${need##*:}")
    done
    [ ${#missing[@]} = 0 ] || servers_install "${missing[@]}"
}

# --- roots -----------------------------------------------------------------------------------------------------

# Copies a minimal Debian, which is made once, to a folder.
fresh_debian() { # folder
    local made=$roots/debian suite mirror
    if ! [ -e "$made/made" ]; then
        rm -rf "$made"
        mkdir -p "$made"
        suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
        # Uses the mirror that this machine uses for its own packages.
        mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $suite" | head -n 1)
        say "making a fresh Debian, once"
        debootstrap --variant=minbase "$suite" "$made/root" "$mirror" >"$roots/debootstrap.log" 2>&1 ||
            fail "no fresh Debian: see $roots/debootstrap.log"
        touch "$made/made"
    fi
    rm -rf "$1"
    cp -a "$made/root" "$1"
}

# Makes a root folder with only busybox.
bare_root() { # folder
    rm -rf "$1"
    mkdir -p "$1/bin" "$1/usr/bin" "$1/proc" "$1/dev" "$1/tmp"
    chmod 1777 "$1/tmp"
    cp "$(command -v busybox)" "$1/bin/busybox"
    chroot "$1" /bin/busybox --install -s /bin
    mknod -m 666 "$1/dev/null" c 1 3
}

# Runs a command in a root folder, in separate process and mount namespaces; processes that it leaves behind end with it.
in_root() { # root command…
    local root=$1
    shift
    # shellcheck disable=SC2016 # for the inner shell
    timeout 300 unshare --mount --pid --fork --kill-child sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' \
        "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}

names_in() { (cd "$1" && find . -path ./proc -prune -o -print | LC_ALL=C sort); }

# --- use -------------------------------------------------------------------------------------------------------

# Writes a script with the five examples of docs/command-line.md. Stand-ins for the user's own programs only write a line.
examples() { # lacks-fair
    local page section crontab blocks
    page=$home/docs/command-line.md
    section=$(sed -n '/^## Examples$/,/^## Running a command$/p' "$page")
    crontab=$(sed -n '/^```crontab$/,/^```$/p' <<<"$section" | sed -n 's/^0 3 \* \* \*  *//p' | sed 's|/opt/|./|')
    blocks=$(sed -n '/^```sh$/,/^```$/p' <<<"$section" | grep -v '^```' | grep -v '^leasehold top$')
    [ "$1" = no ] || blocks=${blocks/ --fair/}
    [ "$(grep -c '^leasehold ' <<<"$crontab"$'\n'"$blocks")" = 5 ] || fail "docs/command-line.md has not five examples"
    cat <<'END'
# shellcheck disable=SC2015,SC2016,SC2031
set -eu
mkdir /tmp/examples && cd /tmp/examples
for name in migrate shop deploy.sh scheduler report.sh; do
    printf '#!/bin/sh\necho %s >>ran\n' "$name" >"$name" && chmod 700 "$name"
done
END
    while IFS= read -r line; do
        printf '(%s)\n' "$line"
    done <<<"$crontab"$'\n'"$blocks"
    cat <<'END'
printf '%s\n' report.sh migrate shop deploy.sh scheduler | cmp - ran
cd / && rm -r /tmp/examples
END
}

# Runs the examples in a root folder, on each store. On SQLite leaves out --fair, as the page says, since SQLite has no queue.
use_in() { # root
    local root=$1 url lacks
    for url in "sqlite:///tmp/locks.db" "$redis"; do
        case $url in sqlite:*) lacks=yes ;; *) lacks=no ;; esac
        examples "$lacks" >"$root/tmp/examples.sh"
        "${runs[@]}" "$root" env "LEASEHOLD_URL=$url" sh /tmp/examples.sh >"$roots/examples.log" 2>&1 ||
            fail "the examples failed in $root on ${url%%:*}: $(tail -n 20 "$roots/examples.log")"
        # Removes the examples' files and locks, which the later comparison must not find.
        rm -f "$root/tmp/examples.sh" "$root"/tmp/locks.db*
        flush
    done
}

flush() { redis_says FLUSHALL; }

redis_says() { # command
    exec 3<>"/dev/tcp/127.0.0.1/${redis##*:}" || return 1
    printf '%s\r\nQUIT\r\n' "$1" >&3
    cat <&3
    exec 3>&-
} >/dev/null

start_redis() {
    local program port
    program=$(servers_ensure_redis) || exit 1
    for _ in {1..10}; do
        port=$((20000 + RANDOM % 12000))
        "$program" --bind 127.0.0.1 --port "$port" --save '' --appendonly no --dir "$roots" --logfile "" >"$roots/redis.log" 2>&1 &
        server=$!
        for _ in {1..200}; do
            if servers_redis_is "$port" "$server"; then
                redis=redis://127.0.0.1:$port
                return
            fi
            kill -0 "$server" 2>/dev/null || break
            sleep 0.05
        done
        kill "$server" 2>/dev/null || true
    done
    fail "the server did not start: see $roots/redis.log"
}

# Prints the time in milliseconds from the installation on an untouched system to a command that runs under a lock.
first_lock() { # root url install…
    local root=$1 url=$2 begun held
    shift 2
    begun=$(date +%s%N)
    # Reads the time from a file that the command touches, since `date` in the root folder may show only whole seconds.
    in_root "$root" sh -c "$* && leasehold --url $url run first -- touch /tmp/held" >"$roots/first.log" 2>&1 ||
        fail "no first lock: $(cat "$roots/first.log")"
    held=$(date -r "$root/tmp/held" +%s%N)
    rm "$root/tmp/held"
    flush
    rm -f "$root"/tmp/locks.db*
    echo $(((held - begun) / 1000000))
}

# --- tests -----------------------------------------------------------------------------------------------------

test_files() {
    (cd "$files" && sha256sum --quiet --check SHA256SUMS) || fail "checksums differ"
    local target name url key=$roots/key
    # Signs with a new key, and verifies as docs/installing.md says. Once SHA256SUMS is changed, the verification must fail.
    rm -f "$key" "$key.pub"
    ssh-keygen -q -t ed25519 -N '' -f "$key"
    LEASEHOLD_RELEASE_KEY=$key release_sign
    echo "releases@leasehold $(cat "$key.pub")" >"$roots/signers"
    is_signed() { ssh-keygen -Y verify -q -f "$roots/signers" -I releases@leasehold -n leasehold-release -s "$files/SHA256SUMS.sig" >&2; }
    is_signed <"$files/SHA256SUMS" || fail "the signature of the sums does not hold"
    ! (cat "$files/SHA256SUMS" && echo x) | is_signed 2>/dev/null || fail "sums that were changed are taken for signed"
    rm "$files/SHA256SUMS.sig"
    groff -K utf8 -T utf8 -man -ww -z "$work/stage/man/"*.1 2>"$roots/groff.log" || true
    [ ! -s "$roots/groff.log" ] || fail "the man page: $(head -n 5 "$roots/groff.log")"
    for name in $("$(program_of "$(uname -m)-unknown-linux-musl")" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
        [ "$name" = help ] || [ -s "$work/stage/man/leasehold-$name.1" ] || fail "there is no man page of $name"
    done
    # Each crate in the program must be in the licences and in the SBOM.
    while read -r name; do
        grep -q "package_name: $name\$" "$files/THIRD-PARTY-LICENSES" || fail "no licence of $name"
        grep -q "\"name\": \"$name\"" "$files/leasehold-$version.cdx.json" || fail "$name is not in the SBOM"
    done < <(cd "$home" && cargo tree --locked --package leasehold-cli --edges normal --prefix none --target x86_64-unknown-linux-musl \
        --format '{p}' | cut -d' ' -f1 | grep -v '^leasehold' | sort -u)
    for target in $targets; do
        # The URL that cargo binstall computes from cli/Cargo.toml must end in the name of a published file.
        url=$(sed -n 's/^pkg-url = "\(.*\)"/\1/p' "$home/cli/Cargo.toml" |
            sed "s/{ version }/$version/g; s/{ target }/$target/; s/{ archive-format }/tar.gz/")
        [ -e "$files/${url##*/}" ] || fail "cargo binstall would look for ${url##*/}"
        tar -tzf "$files/${url##*/}" "leasehold-$version-$target/leasehold" >/dev/null || fail "no program in ${url##*/}"
        grep -q "sha256 \"$(hash_of "$files/${url##*/}")\"" "$files/leasehold.rb" || fail "the formula has another hash"
    done
    ! have ruby || ruby -c "$files/leasehold.rb" >/dev/null
    bash -n "$work/stage/completions/leasehold.bash"
    ! have zsh || zsh -n "$work/stage/completions/_leasehold"
    ! have fish || fish --no-execute "$work/stage/completions/leasehold.fish"
    say "ok: checksums, man page, completions, licences, SBOM, formula, cargo binstall"
}

test_debian() {
    local root=$roots/now package left took
    package=$files/leasehold_$version-1_amd64.deb
    # Suppresses three findings that are intended: a static program, no closed bug of Debian's, the licence's text in the package.
    lintian --fail-on error --suppress-tags \
        statically-linked-binary,initial-upload-closes-no-bugs,copyright-not-using-common-license-for-apache2 "$package" >&2 ||
        fail "lintian has something against the package"
    fresh_debian "$root"
    cp "$package" "$root/tmp/leasehold.deb"
    names_in "$root" >"$roots/before"
    took=$(first_lock "$root" sqlite:///tmp/locks.db dpkg --install /tmp/leasehold.deb)
    say "ok: .deb, fresh Debian: first lock held (SQLite) after $took ms"
    runs=(in_root)
    use_in "$root"
    in_root "$root" sh -c 'test -s /usr/share/man/man1/leasehold.1.gz && test -s /usr/share/man/man1/leasehold-run.1.gz && test -s /usr/share/bash-completion/completions/leasehold &&
        test -s /usr/share/doc/leasehold/copyright && test -s /usr/lib/systemd/system/leasehold-serve.service &&
        test -s /usr/share/doc/leasehold/operating/prometheus.yml' || fail ".deb: man page, completions or licence are missing"
    in_root "$root" dpkg --purge leasehold >/dev/null 2>&1
    # Ignores the package manager's own records.
    left=$(names_in "$root" | diff "$roots/before" - | grep '^[<>]' | grep -v ' \./var/lib/dpkg/\|\./var/log/dpkg.log' || true)
    [ -z "$left" ] || fail ".deb left behind: $left"
    took=$(first_lock "$root" "$redis" dpkg --install /tmp/leasehold.deb)
    say "ok: .deb: five examples on SQLite and Redis, nothing left behind; first lock held (Redis) after $took ms"
}

test_rpm() {
    local root=$roots/now package left
    package=$files/leasehold-$version-1.x86_64.rpm
    [ "$(rpm --query --queryformat '%{NAME} %{VERSION} %{ARCH} %{LICENSE}' --package "$package")" = "leasehold $version x86_64 MIT OR Apache-2.0" ] ||
        fail ".rpm: the package says something else of itself"
    ! rpm --query --requires --package "$package" | grep -v '^rpmlib(' || fail ".rpm: it requires something"
    bare_root "$root"
    # Creates folders that a real system has: rpm removes only folders that belong to packages.
    mkdir -p "$root"/usr/lib/systemd/system "$root"/usr/share/{doc,man/man1,licenses,bash-completion/completions,zsh/site-functions,fish/vendor_completions.d} "$root/var/lib/rpm"
    rpm --root "$root" --dbpath /var/lib/rpm --initdb
    names_in "$root" >"$roots/before"
    rpm --root "$root" --dbpath /var/lib/rpm --install "$package" || fail ".rpm: not installed"
    rpm --root "$root" --dbpath /var/lib/rpm --verify leasehold || fail ".rpm: installed otherwise than packed"
    runs=(in_root)
    use_in "$root"
    rpm --root "$root" --dbpath /var/lib/rpm --erase leasehold || fail ".rpm: not removed"
    left=$(names_in "$root" | diff "$roots/before" - | grep '^[<>]' | grep -v ' \./var/lib/rpm/' || true)
    [ -z "$left" ] || fail ".rpm left behind: $left"
    say "ok: .rpm: queried, installed, verified, five examples, removed, nothing left behind"
}

test_archive() {
    local root=$roots/now took name=leasehold-$version-x86_64-unknown-linux-musl
    bare_root "$root"
    cp "$files/$name.tar.gz" "$root/tmp"
    took=$(first_lock "$root" sqlite:///tmp/locks.db "tar -xzf /tmp/$name.tar.gz -C /tmp && cp /tmp/$name/leasehold /usr/bin")
    runs=(in_root)
    use_in "$root"
    say "ok: archive, a root with busybox alone: first lock held (SQLite) after $took ms; five examples"
}

children_of() { ps -o pid=,stat=,args= --ppid "$1" || true; }

test_image() {
    local layout=$roots/oci bundle=$roots/bundle root first child target
    for target in $targets; do
        loads "$(debian_of "$target")"
    done
    rm -rf "$layout" "$bundle" && mkdir -p "$layout"
    tar -xf "$(image_of amd64)" -C "$layout"
    umoci unpack --image "$layout:$version" "$bundle" >&2
    root=$bundle/rootfs
    [ "$(cd "$root" && find . -type f | sort | head -n 1)" = ./usr/bin/leasehold ] || fail "the image has something else first"
    # Adds the files that a container runtime would mount, and a shell for the command.
    mkdir -p "$root/proc" "$root/tmp" "$root/bin" "$root/dev"
    mknod -m 666 "$root/dev/null" c 1 3
    chmod 1777 "$root/tmp"
    cp "$(command -v busybox)" "$root/bin/busybox"
    # The command starts orphans. Later `nsenter` starts two more, which only the first process of the namespace can adopt.
    # shellcheck disable=SC2016 # for the inner shells
    unshare --mount --pid --fork --kill-child sh -c 'mount -t proc proc "$0/proc" && exec chroot --userspec=65532:65532 "$0" "$@"' "$root" \
        /usr/bin/leasehold --url "$redis" run reaper -- \
        /bin/busybox sh -c 'for i in 1 2 3 4 5; do (/bin/busybox sleep 0.2 &); done; echo up >/tmp/up; exec /bin/busybox sleep 250' &
    child=$!
    # shellcheck disable=SC2064 # this process
    trap "kill -KILL $child 2>/dev/null; stop_redis" EXIT
    until_it test -e "$root/tmp/up" || fail "the image: the first process ran no command"
    first=$(ps -o pid= --ppid "$child" | tr -d ' ')
    [ "$(readlink "/proc/$first/root")" = "$root" ] && [ "$(awk '/^NSpid:/ { print $NF }' "/proc/$first/status")" = 1 ] ||
        fail "the image: the program is not the first process"
    nsenter --target "$first" --pid --root /bin/busybox sh -c '/bin/busybox sleep 0.2 & /bin/busybox sleep 0.3 & exit 0'
    until_it no_sleeper_below "$first" || fail "the first process does not reap orphans: $(children_of "$first")"
    kill -TERM "$first"
    wait "$child" || true
    trap stop_redis EXIT
    say "ok: image: loaded and copied from by podman for $targets; unpacked and run as the first process of a namespace, user 65532; orphans are reaped"
}

# Loads an archive with Podman, as docs/installing.md shows, and checks the file that `docker load` reads.
loads() { # architecture
    local archive store=$roots/podman found
    archive=$(image_of "$1")
    for form in oci-archive docker-archive; do
        skopeo --override-arch "$1" inspect --config "$form:$archive" | grep -q "\"architecture\": *\"$1\"" || fail "$archive is no $form of $1"
    done
    tar -xOf "$archive" manifest.json | grep -q "\"RepoTags\":\[\"docker.io/library/leasehold:$version\"\]" || fail "$archive has no name for docker load"
    rm -rf "$store" && mkdir -p "$store/build"
    podman_in "$store" load --input "$archive" >&2 || fail "podman load: $archive"
    # shellcheck disable=SC1083 # a template
    found=$(podman_in "$store" image inspect --format '{{.Architecture}} {{.Config.Env}}' "leasehold:$version") || fail "podman knows no leasehold:$version"
    case $found in "$1 [PATH="*) ;; *) fail "$archive: the image is $found" ;; esac
    printf 'FROM scratch\nCOPY --from=leasehold:%s /usr/bin/leasehold /usr/local/bin/leasehold\n' "$version" >"$store/build/Containerfile"
    podman_in "$store" build --isolation chroot "$store/build" >&2 || fail "COPY --from=leasehold:$version"
    rm -rf "$store"
}

podman_in() { # store command…
    local store=$1
    shift
    podman --root "$store/root" --runroot "$store/run" --storage-driver vfs "$@"
}

# Whether no orphan (a short sleep) is left. The pattern ends with `$`, because the helper's arguments contain the short sleep too.
no_sleeper_below() { # process
    local list
    list=$(children_of "$1"; children_of "$(ps -o pid= --ppid "$1" | head -n 1 | tr -d ' ')")
    ! grep -q ' /bin/busybox sleep 0\.[23]$\|defunct' <<<"$list"
}

until_it() { # condition…
    for _ in {1..400}; do
        "$@" && return
        sleep 0.05
    done
    return 1
}

# Runs the program for aarch64 by an emulator, which the kernel starts. The setting is in a user namespace, so that only this test uses it.
in_emulated_root() { # root command…
    local root=$1
    shift
    # shellcheck disable=SC2016 # for the inner shell
    timeout 300 unshare --user --map-root-user --mount --pid --fork --kill-child sh -c '
        mount -t binfmt_misc none /proc/sys/fs/binfmt_misc &&
            echo "$1" >/proc/sys/fs/binfmt_misc/register && mount -t proc proc "$0/proc" && shift && exec chroot "$0" "$@"' \
        "$root" "$emulated" env -i PATH=/usr/bin:/bin LANG=C.UTF-8 "$@"
}
# The first bytes of a program for Linux on aarch64, as binfmt_misc wants them. The emulator's path and the flag F follow; with F the
# kernel opens the emulator now, so that it need not be in the root folder.
AARCH64=':aarch64:M::\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'

test_emulated() {
    local root=$roots/now
    bare_root "$root"
    emulated=$AARCH64$(command -v qemu-aarch64-static):F
    cp "$(program_of aarch64-unknown-linux-musl)" "$root/usr/bin/leasehold"
    runs=(in_emulated_root)
    if ! in_emulated_root "$root" true; then
        say "SKIPPED on aarch64: this kernel has no binfmt_misc in a user namespace; asked for its version alone"
        qemu-aarch64-static "$root/usr/bin/leasehold" --version >&2
        return
    fi
    [ "$(in_emulated_root "$root" leasehold --version)" = "leasehold $version" ] || fail "aarch64: the program does not start"
    use_in "$root"
    say "ok: aarch64, emulated: five examples on SQLite and Redis"
}

stop_redis() { [ -z "${server:-}" ] || kill "$server" 2>/dev/null || true; }

release_test() {
    [ "$(id -u)" = 0 ] && have apt-get || fail "the test of a release needs root on a Debian"
    test_needs
    hash -r
    mkdir -p "$roots"
    test_files
    trap stop_redis EXIT
    start_redis
    case $targets in *x86_64*)
        test_debian
        test_rpm
        test_archive
        test_image
        ;;
    esac
    case $targets in *aarch64*) test_emulated ;; esac
    stop_redis
    trap - EXIT
    rm -rf "$roots/now" "$roots/bundle" "$roots/oci"
    say "all of it was installed, used and removed"
}
