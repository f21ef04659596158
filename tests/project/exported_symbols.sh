#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# exported_symbols.sh: what the built objects show to the world. The library exports attn_ and nothing else, and every
# function that the engine headers declare; a plugin exports its one descriptor and needs nothing of ours.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"

# Defined dynamic symbols, without the version node's own absolute symbol.
defined() { nm -D --defined-only "$1" | awk '$2 != "A" { print $2, $3 }'; }

only_prefix() {
    defined "$1" | awk -v lib="$1" '$2 !~ /^attn_[a-z]/ { print lib " exports " $2; bad = 1 } END { exit bad }'
}
all_declared() { # every NAME( of a declaration that is not static inline
    defined "$1" | awk '{ print $2 }' | sort >"$tap_scratch/have"
    set -- "$1" attn.h attn_calibration.h attn_comm.h attn_merge.h attn_model.h attn_plan.h
    shift
    for header; do sed -e 's://.*::' "$ATTN_TEST_SRCDIR/include/attn/$header"; done |
        awk '{ gsub(/\/\*[^*]*\*\//, "") } /\/\*/ { c = 1 } !c { print } /\*\// { c = 0 }' |
        grep -v 'static inline' | grep -oE '^[a-z].*[ *](attn_[a-z0-9_]+)\(' |
        grep -oE 'attn_[a-z0-9_]+\($' | tr -d '(' | sort -u >"$tap_scratch/want"
    [ -s "$tap_scratch/want" ] || { echo "no declarations found"; return 1; }
    missing=$(comm -13 "$tap_scratch/have" "$tap_scratch/want")
    [ -z "$missing" ] || { echo "declared and not exported: $missing"; return 1; }
}
one_symbol() {
    defined "$1" | awk '$2 != "attn_plugin_v1" { print "exports " $2; bad = 1 } { n++ } END { exit bad || n != 1 }'
}
no_unique() { ! nm -D "$1" | grep ' u '; }
nothing_of_ours() { ! nm -D --undefined-only "$1" | grep ' attn_'; }
not_executable_stack() { ! readelf -lW "$1" | grep GNU_STACK | grep 'E '; }

library=$ATTN_TEST_BUILDDIR/core/.libs/libattn.so
if [ -e "$library" ]; then
    ok "libattn.so exports attn_ only" only_prefix "$library"
    ok "libattn.so exports what the engine headers declare" all_declared "$library"
    ok "libattn.so has no unique symbols" no_unique "$library"
    ok "libattn.so has no executable stack" not_executable_stack "$library"
else
    fail "libattn.so is built" "no $library"
fi
for plugin in "$ATTN_TEST_PLUGIN_DIR"/*.so; do
    name=${plugin##*/}
    [ -e "$plugin" ] || { fail "plugins are built" "no $plugin"; continue; }
    ok "$name exports attn_plugin_v1 only" one_symbol "$plugin"
    ok "$name has no unique symbols" no_unique "$plugin"
    ok "$name needs no symbol of libattn" nothing_of_ours "$plugin"
    ok "$name has no executable stack" not_executable_stack "$plugin"
done
tap_done
