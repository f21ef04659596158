#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_edges.sh: mistakes in tensors, formats, roles and batches that the plain case does not have
# (tests/kit/kit_edges_bad.c) are caught by the checks of the conformance kit that are there for them, also where the
# plugin is named by a relative path or through a link.
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
attn=$ATTN_TEST_BUILDDIR/tools/attn
reference=$ATTN_TEST_PLUGIN_DIR/reference.so
case $ATTN_TEST_SANITIZERS in
'' | no) ;;
*)
    echo "1..0 # SKIP broken plugins on purpose are no work for a sanitizer"
    exit 0
    ;;
esac

build() { # MISTAKE
    ${ATTN_TEST_CC:-cc} -std=c11 -O1 -fPIC -shared -fvisibility=hidden -I"$ATTN_TEST_SRCDIR/include" -DMISTAKE="$1" \
        -DREFERENCE="\"$reference\"" "$ATTN_TEST_SRCDIR/tests/kit/kit_edges_bad.c" -lm -o "$tap_scratch/$1.so" \
        >"$tap_scratch/out" 2>&1 || { echo "Bail out! $(cat "$tap_scratch/out")"; exit 1; }
}
caught_as() { # FILE MISTAKE GROUP CHECK
    "$attn" check "$1" --group "$3" --only "$4" >"$tap_scratch/out" 2>&1
    status=$?
    if [ $status -eq 1 ] && grep -q "^not ok .* - $3: .*$4" "$tap_scratch/out"; then pass "$2 is caught by $3: $4"; else
        fail "$2 is caught by $3: $4" "status $status
$(tail -n 5 "$tap_scratch/out")"
    fi
}
caught() { # MISTAKE GROUP CHECK; without the mistake the check passes
    build "$1"
    caught_as "$tap_scratch/$1.so" "$@"
    ok "and passes without it" "$attn" check "$tap_scratch/NOTHING.so" --group "$2" --only "$3"
    rm -f "$tap_scratch/$1.so"
}

build NOTHING
caught OLD_TABLE_OFFSET offsets 'byte_offset of every tensor'
caught SLOPES_OFFSET offsets 'byte_offset of every tensor'
caught ENCODER_ROWS_32 offsets 'encoder: tokens beyond 2^31'
caught HEADS_PACKED offsets 'heads of a cache beyond'
caught TABLE_UNBUILT errors 'update_block_table refuses'
caught SLOPES_OF_ANY_TYPE errors 'slopes of another element type'
caught ENCODER_WITHOUT_VALUES errors 'encoder_only: keys and values that are not there'
caught ENCODER_WITH_FEW_KEYS errors 'mm_encoder: keys and values that are not there'
caught COUNT_DECIDES determinism 'batch invariance'
caught LOSES_NAN_IN_INT8 numerics 'NaN shows where it is'
caught LOSES_SMALL_IN_INT8 relations 'small values in rows'
caught SIZES_ADDED capabilities 'fingerprints distinguish pages'
caught PAGE_WITHOUT_SCALES capabilities 'pages of every cache format'
caught OFFSET_IN_ELEMENTS capabilities 'pages of every cache format'
caught FOLLOWS_STREAM manners 'the stream is not looked at'
caught WRITES_INSTANCE manners 'nonsense in a problem'
caught ROWS_PACKED offsets 'a cache with gaps between its rows'
caught LOSES_LAST_PIECE memory 'buffers of exactly space_needed that end'
caught COUNTS_LONE_CALLS manners 'no state outside the instance'
caught BOUND_DECIDES determinism 'batch invariance'
caught WRITES_BEFORE_CHECK errors 'an lse with fewer columns'
caught FOLLOWS_DEVICE manners 'answers from the problem alone'
[ "$(uname -m)" != x86_64 ] || caught FLUSHES_AFTER_FP8 manners 'are left alone'

# what is no mistake
allowed() { # NAME GROUP CHECK
    build "$1"
    "$attn" check "$tap_scratch/$1.so" --group "$2" --only "$3" >"$tap_scratch/said" 2>&1
    ok "$1 passes $2: $3" test $? -eq 0
    ok "in cases" grep -q '^ok .* cases)' "$tap_scratch/said"
    rm -f "$tap_scratch/$1.so"
}
allowed THREE_AXES memory 'writes the rows of its slots only'
allowed THREE_AXES offsets 'beyond 2^3'
allowed TRUSTS_THE_CORE errors 'key lengths that contradict'
build LATENT_ALONE
"$attn" check "$tap_scratch/LATENT_ALONE.so" --group numerics >"$tap_scratch/said" 2>&1
ok "LATENT_ALONE passes numerics" test $? -eq 0
ok "in cases" grep -q '^ok .*mla, latent: .* cases)' "$tap_scratch/said"

# by the name that the manual gives it, and by a link
cd "$tap_scratch" || exit 1
build READS_ENVIRONMENT
build COUNTS_CALLS
ln -s READS_ENVIRONMENT.so link.so
caught_as ./READS_ENVIRONMENT.so READS_ENVIRONMENT manners 'the environment is not read'
caught_as link.so "READS_ENVIRONMENT, by a link," manners 'the environment is not read'
caught_as ./COUNTS_CALLS.so COUNTS_CALLS manners 'no state outside the instance'
tap_done
