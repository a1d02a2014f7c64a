#!/bin/sh
# rustdoc as docs.rs runs it: with features that are not stable, of which `--cfg docsrs` uses one. Cargo takes it by RUSTDOC.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
