#!/bin/sh
# Runs rustdoc as docs.rs does, with unstable features, one of which `--cfg docsrs` uses. The variable RUSTDOC tells cargo to run this script.
# First checks the links of private items, then renders the public pages; with `--check` does only the first.
export RUSTC_BOOTSTRAP=1
case " $* " in
    *' --crate-name leasehold '*) rustdoc "$@" --document-private-items -Z unstable-options --check || exit ;;
esac
exec rustdoc "$@"
