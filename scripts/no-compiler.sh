#!/usr/bin/env bash
# Stands for a C compiler where Rust is only checked: each file that it is to make is empty, and nothing links them.
out=
while [ $# -gt 0 ]; do
    [ "$1" != -o ] || out=${2:-}
    case $1 in -E) exit 1 ;; esac
    shift
done
[ -z "$out" ] || : >"$out"
