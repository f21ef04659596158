#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bindings_listed.sh: every file of the bindings that git knows is in the tarball too, which takes what bindings.am
# names. Automake cannot see what a Python package imports.
set -u
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
files=$(git -C "$ATTN_TEST_SRCDIR" ls-files bindings 2>/dev/null)
[ -n "$files" ] || { echo "1..0 # SKIP not a checkout of git"; exit 0; }
missing=
for file in $files; do
    case $file in
    *.am) continue ;;
    esac
    grep -qF "$file" "$ATTN_TEST_SRCDIR/bindings/bindings.am" || missing="$missing $file"
done
if [ -z "$missing" ]; then
    pass "bindings.am names every file"
else
    fail "bindings.am names every file" "not there:$missing"
fi
tap_done
