#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# debian_symbols.sh: debian/libattn0.symbols lists what the library exports, so that a package that uses a new function
# asks for a new enough libattn0. With --update LIBRARY (from the top folder) it adds what is missing, as of this version.
list() { # LIBRARY
    nm -D --defined-only "$1" | awk '{ print $3 }' | grep '^attn_' | LC_ALL=C sort
}
if [ "${1-}" = --update ]; then
    file=debian/libattn0.symbols
    version=$(sed -n 's/^AC_INIT(\[libattn\], \[\([^]]*\)\].*/\1/p' configure.ac)
    [ -n "$version" ] && [ -e "${2:?name libattn.so}" ] || exit 1
    old=$(cat "$file" 2>/dev/null)
    {
        echo "libattn.so.0 libattn0 #MINVER#"
        echo "* Build-Depends-Package: libattn-dev"
        list "$2" | while read -r name; do
            line=$(printf '%s\n' "$old" | grep " $name@Base ")
            printf '%s\n' "${line:- $name@Base $version}"
        done
    } >"$file"
    exit
fi
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
library=$ATTN_TEST_BUILDDIR/core/.libs/libattn.so.0
if [ ! -e "$library" ] || ! command -v nm >/dev/null 2>&1; then
    skip "the symbols of libattn0" "no shared library or no nm"
    tap_done
fi
file=$ATTN_TEST_SRCDIR/debian/libattn0.symbols
list "$library" >"$tap_scratch/exported"
sed -n 's/^ \([a-z0-9_]*\)@Base [0-9][0-9.]*$/\1/p' "$file" >"$tap_scratch/listed"
ok "the library exports something" test "$(wc -l <"$tap_scratch/exported")" -gt 100
same() {
    diff "$tap_scratch/listed" "$tap_scratch/exported" && return
    echo "in the top folder: sh tests/project/debian_symbols.sh --update BUILD/core/.libs/libattn.so.0"
    return 1
}
ok "debian/libattn0.symbols lists exactly that" same
ok "and has no other line" test "$(wc -l <"$file")" -eq $(($(wc -l <"$tap_scratch/listed") + 2))
version=$(sed -n 's/^AC_INIT(\[libattn\], \[\([^]]*\)\].*/\1/p' "$ATTN_TEST_SRCDIR/configure.ac")
ok "debian/changelog has this version" grep -q "^libattn ($version)" "$ATTN_TEST_SRCDIR/debian/changelog"
tap_done
