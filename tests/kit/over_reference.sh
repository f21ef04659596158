# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# over_reference.sh: tests of the kit by a plugin over the reference backend with one mistake at a time; sourced with
# $bad, the C file of the mistakes (over_reference.h).
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
attn=$ATTN_TEST_BUILDDIR/tools/attn
case $ATTN_TEST_SANITIZERS in
'' | no) ;;
*)
    echo "1..0 # SKIP broken plugins on purpose are no work for a sanitizer"
    exit 0
    ;;
esac

build() { # MISTAKE
    ${ATTN_TEST_CC:-cc} -std=c11 -O1 -fPIC -shared -fvisibility=hidden -I"$ATTN_TEST_SRCDIR/include" -DMISTAKE="$1" \
        -DREFERENCE="\"$ATTN_TEST_PLUGIN_DIR/reference.so\"" "$ATTN_TEST_SRCDIR/tests/kit/${bad:?}" -lm \
        -o "$tap_scratch/$1.so" >"$tap_scratch/out" 2>&1 || bail_out "$(cat "$tap_scratch/out")"
}
caught_as() { # FILE MISTAKE GROUP CHECK
    "$attn" check "$1" --group "$3" --only "$4" >"$tap_scratch/out" 2>&1
    status=$?
    if [ $status -eq 1 ] && grep -q "^not ok .* - $3: .*$4" "$tap_scratch/out"; then pass "$2 is caught by $3: $4"; else
        fail "$2 is caught by $3: $4" "status $status
$(tail -n 5 "$tap_scratch/out")"
    fi
}
caught() { # MISTAKE GROUP CHECK
    build "$1"
    caught_as "$tap_scratch/$1.so" "$@"
    rm -f "$tap_scratch/$1.so"
}
noticed() { # MISTAKE GROUP CHECK; the check passes without the mistake, as NOTHING, which is built before
    caught "$@"
    ok "and passes without it" "$attn" check "$tap_scratch/NOTHING.so" --group "$2" --only "$3"
}
