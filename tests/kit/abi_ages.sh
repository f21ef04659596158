#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# abi_ages.sh: plugins and libraries of different age, by faked sizes: what an older or a newer plugin may bring along, and
# what this library has to refuse. The other direction, this library's structs as a plugin sees them, is the group
# structs of attn check.
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
attn=$ATTN_TEST_BUILDDIR/tools/attn
chmod 700 "$tap_scratch"
printf '[attn]\nplugin_dir = %s\nplugins = aged\n' "$tap_scratch" >"$tap_scratch/aged.ini"
case $ATTN_TEST_SANITIZERS in
'' | no) ;;
*)
    echo "1..0 # SKIP plugins built here have no sanitizer"
    exit 0
    ;;
esac

aged() { # NAME loads|refused TEXT FLAGS...
    name=$1 want=$2 text=$3
    shift 3
    rm -f "$tap_scratch/aged.so"
    if ! ${ATTN_TEST_CC:-cc} -std=c11 -O1 -fPIC -shared -fvisibility=hidden -I"$ATTN_TEST_SRCDIR/include" "$@" \
        "$ATTN_TEST_SRCDIR/tests/kit/abi_ages_plugin.c" -lm -o "$tap_scratch/aged.so" >"$tap_scratch/log" 2>&1; then
        fail "$name builds" "$(cat "$tap_scratch/log")"
        return
    fi
    chmod 755 "$tap_scratch/aged.so"
    ATTN_CONFIG=$tap_scratch/aged.ini "$attn" info --json >"$tap_scratch/log" 2>&1
    have=refused
    grep -q AGED_ATTN "$tap_scratch/log" && have=loads
    if [ $have = "$want" ] && grep -q -e "$text" "$tap_scratch/log"; then pass "$name: $want"; else
        fail "$name: $want, with '$text'" "$(cat "$tap_scratch/log")"
    fi
    if [ "$want" = loads ]; then
        ok "$name: it runs" "$attn" check "$tap_scratch/aged.so" --group numerics --only "page borders"
    fi
}

aged "a plugin of this header" loads AGED_ATTN -DAGE_SAME
aged "an older plugin, whose ops end early" loads AGED_ATTN -DAGE_OLD_OPS
aged "a newer plugin with longer ops, unused" loads AGED_ATTN -DAGE_OPS=16
aged "a newer plugin with a longer table, unused" loads AGED_ATTN -DAGE_TABLE=16
aged "a newer plugin with a longer backend, unused" loads AGED_ATTN -DAGE_BACKEND=16
aged "a newer plugin that uses the tail of its table" refused capabilities -DAGE_TABLE=16 -DAGE_USED=1
aged "a newer plugin that uses the tail of its ops" refused ops -DAGE_OPS=16 -DAGE_USED=1
aged "a newer plugin that uses the tail of its backend" refused backend -DAGE_BACKEND=16 -DAGE_USED=1
aged "a plugin of a header before the freeze" refused "aged.so was built with a header of plugin ABI 1.0 from before its freeze" \
    -DAGE_MAGIC=0x3067756c506e7441
aged "a plugin of the next minor" loads AGED_ATTN -DAGE_MINOR=1
aged "a plugin of a far later minor" loads AGED_ATTN -DAGE_MINOR=40 -DAGE_OPS=16 -DAGE_TABLE=16
tap_done
