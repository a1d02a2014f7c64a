#!/bin/sh
# rustdoc as docs.rs runs it: with features that are not stable, of which `--cfg docsrs` uses one. Cargo takes it by RUSTDOC.
# Before it renders the public pages, it looks at the links of private items, which is all that `--check` does.
export RUSTC_BOOTSTRAP=1
case " $* " in
    *' --crate-name leasehold '*) rustdoc "$@" --document-private-items -Z unstable-options --check || exit ;;
esac
exec rustdoc "$@"
