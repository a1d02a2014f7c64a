# shellcheck shell=bash disable=SC2154 # the variables of ./release
# The part `pack` of ./release. Two runs on the same commit must write the same bytes.

repository() { sed -n 's/^repository = "\(.*\)"/\1/p' "$home/cli/Cargo.toml"; }

# Makes an archive whose entries are sorted and have one date and no owner, so that its bytes are always the same.
packed() { # folder entry
    LC_ALL=C tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --mode=u+w,go-w \
        --format=ustar -cf - -C "$1" "$2"
}

# Puts the files that are equal for all targets into $work/stage. The program itself writes its man pages and completions.
pack_what_all_have() {
    local stage=$work/stage native program
    native=$(uname -m)-unknown-linux-musl
    program=$(program_of "$native")
    [ -x "$program" ] || fail "the man page is written by the program for this machine: ./release build"
    rm -rf "$stage"
    mkdir -p "$stage/completions"
    "$program" man --to "$stage/man"
    "$program" completions bash >"$stage/completions/leasehold.bash"
    "$program" completions zsh >"$stage/completions/_leasehold"
    "$program" completions fish >"$stage/completions/leasehold.fish"
    cp "$home/LICENSE-MIT" "$home/LICENSE-APACHE" "$stage"
    pack_changelog >"$stage/changelog"
    # The licence text of each dependency that includes one.
    (cd "$home/cli" && "$tools/cargo/bin/cargo-bundle-licenses" bundle-licenses --format yaml --output "$stage/THIRD-PARTY-LICENSES") \
        >"$work/licences.log" 2>&1 || fail "the licences: see $work/licences.log"
    pack_sbom "$stage/leasehold.cdx.json"
}

# Writes a changelog in Debian's format that refers to the one in the repository.
pack_changelog() {
    printf 'leasehold (%s-1) unstable; urgency=medium\n\n  * See %s/blob/v%s/CHANGELOG.md\n\n -- %s  %s\n' "$version" "$(repository)" \
        "$version" "$(sed -n 's/^maintainer = "\(.*\)"/\1/p' "$home/cli/Cargo.toml")" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
}

# cargo cyclonedx writes a file beside each manifest of the workspace, but only the program's file is wanted.
pack_sbom() { # file
    local name=leasehold-release member
    (cd "$home" && "$tools/cargo/bin/cargo-cyclonedx" cyclonedx --quiet --manifest-path cli/Cargo.toml --format json \
        --spec-version 1.5 --target x86_64-unknown-linux-musl --override-filename "$name") >&2
    mv "$home/cli/$name.json" "$1"
    for member in "$home" "$home/xtask"; do
        rm -f "$member/$name.json"
    done
    # The names of this workspace's packages contain this folder's path, which must not differ between two runs.
    sed -i "s|$home|/leasehold|g" "$1"
}

pack_archive() { # target
    local name=leasehold-$version-$1 folder=$work/archive
    rm -rf "$folder"
    mkdir -p "$folder"
    cp -R "$work/stage" "$folder/$name"
    rm "$folder/$name/changelog"
    packed "$folder" "$name" | gzip -9 -n >"$files/$name.tar.gz"
}

# cargo-deb and cargo-generate-rpm read cli/Cargo.toml, and take the files from $work/stage.
pack_debian() { # target
    "$tools/cargo/bin/cargo-deb" deb --quiet --no-build --no-strip --locked --manifest-path "$home/cli/Cargo.toml" --target "$1" \
        --output "$files/leasehold_$version-1_$(debian_of "$1").deb"
}

pack_rpm() { # target
    (cd "$home" && "$tools/cargo/bin/cargo-generate-rpm" generate-rpm --package cli --arch "$(rpm_of "$1")" \
        --output "$files/leasehold-$version-1.$(rpm_of "$1").rpm")
}

# Makes an image with only the program and its licences, in an archive for each target. Podman and containerd read its index.json, which must have
# one image; Docker reads its manifest.json. Both files have the image's name.
pack_image() {
    local target architecture folder=$work/image layout=$work/oci date
    date=$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)
    rm -rf "$layout"
    for target in $targets; do
        architecture=$(debian_of "$target") # OCI uses the same names
        rm -rf "$folder"
        mkdir -p "$folder/usr/bin" "$folder/usr/share/doc/leasehold"
        cp "$(program_of "$target")" "$folder/usr/bin/leasehold"
        cp "$work/stage/"*LICENSE* "$folder/usr/share/doc/leasehold"
        packed "$folder" usr >"$work/layer.tar"
        "$tools/regctl" image create "ocidir://$layout:$architecture" --platform "linux/$architecture" --created "$date" >/dev/null
        # The user is a number, since the image has no file with users' names. Kubernetes needs a number for runAsNonRoot.
        "$tools/regctl" image mod "ocidir://$layout:$architecture" --replace --layer-add "tar=$work/layer.tar" --user 65532:65532 --env "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
            --config-entrypoint '["/usr/bin/leasehold"]' --label "org.opencontainers.image.version=$version" \
            --label "org.opencontainers.image.source=$(repository)" --label "org.opencontainers.image.licenses=MIT OR Apache-2.0" \
            --config-time "set=$date" >/dev/null
        # Replaces the time of writing, which alone would differ between two runs.
        sed -i "s/\"org.opencontainers.image.created\":\"[^\"]*\"/\"org.opencontainers.image.created\":\"$date\"/g" "$layout/index.json"
        "$tools/regctl" image export "ocidir://$layout:$architecture" "$(image_of "$architecture")" --name "docker.io/library/leasehold:$version"
    done
}

image_of() { echo "$files/leasehold-$version-image-$1.tar"; } # architecture

hash_of() { sha256sum "$1" | cut -d' ' -f1; }

# Writes the Homebrew formula. On Linux it installs the built program; on macOS, for which nothing is built here, it builds the tag.
pack_formula() {
    local from target commit
    from=$(repository)/releases/download/v$version
    commit=$(git -C "$home" rev-parse HEAD)
    {
        cat <<END
class Leasehold < Formula
  desc "Run commands under distributed locks: flock for many machines"
  homepage "$(repository)"
  version "$version"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    url "$(repository).git", tag: "v$version", revision: "$commit"
    depends_on "rust" => :build
  end

  on_linux do
END
        for target in $targets; do
            cat <<END
    on_$(case $target in x86_64-*) echo intel ;; *) echo arm ;; esac) do
      url "$from/leasehold-$version-$target.tar.gz"
      sha256 "$(hash_of "$files/leasehold-$version-$target.tar.gz")"
    end
END
        done
        cat <<'END'
  end

  def install
    if OS.mac?
      system "cargo", "install", *std_cargo_args(path: "cli")
      generate_completions_from_executable(bin/"leasehold", "completions")
      system bin/"leasehold", "man", "--to", buildpath/"man"
    else
      bin.install "leasehold"
      bash_completion.install "completions/leasehold.bash" => "leasehold"
      zsh_completion.install "completions/_leasehold"
      fish_completion.install "completions/leasehold.fish"
    end
    man1.install Dir["man/*.1"]
  end

  test do
    url = "sqlite://#{testpath}/locks.db"
    assert_equal "held", shell_output("#{bin}/leasehold --url #{url} run job -- echo held").strip
  end
end
END
    } >"$files/leasehold.rb"
}

# Signs the checksums with a maintainer's SSH key; docs/installing.md says how to verify the signature.
release_sign() {
    rm -f "$files/SHA256SUMS.sig"
    ssh-keygen -Y sign -q -n leasehold-release -f "${LEASEHOLD_RELEASE_KEY:?the file of a key}" "$files/SHA256SUMS" || fail "not signed"
}

release_pack() {
    local target
    rm -rf "$files"
    mkdir -p "$files"
    pack_what_all_have
    for target in $targets; do
        say "packing for $target"
        cp "$(program_of "$target")" "$work/stage/leasehold"
        pack_archive "$target"
        pack_debian "$target"
        pack_rpm "$target"
    done
    rm "$work/stage/leasehold"
    pack_image
    pack_formula
    cp "$work/stage/THIRD-PARTY-LICENSES" "$files"
    cp "$work/stage/leasehold.cdx.json" "$files/leasehold-$version.cdx.json"
    (cd "$files" && LC_ALL=C sha256sum ./* | sed 's|  \./|  |' >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
    say "in $files:"
    (cd "$files" && ls -l) >&2
}
