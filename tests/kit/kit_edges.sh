#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_edges.sh: mistakes in tensors, formats, roles and batches that the plain case does not have
# (tests/kit/kit_edges_bad.c) are caught by the checks of the conformance kit that are there for them, also where the
# plugin is named by a relative path or through a link.
bad=kit_edges_bad.c
. "${ATTN_TEST_SRCDIR:?}/tests/kit/over_reference.sh"
build NOTHING
noticed OLD_TABLE_OFFSET offsets 'byte_offset of every tensor'
noticed SLOPES_OFFSET offsets 'byte_offset of every tensor'
noticed ENCODER_ROWS_32 offsets 'encoder: tokens beyond 2^31'
noticed HEADS_PACKED offsets 'heads of a cache beyond'
noticed TABLE_UNBUILT errors 'update_block_table refuses'
noticed SLOPES_OF_ANY_TYPE errors 'slopes of another element type'
noticed ENCODER_WITHOUT_VALUES errors 'encoder_only: keys and values that are not there'
noticed ENCODER_WITH_FEW_KEYS errors 'mm_encoder: keys and values that are not there'
noticed COUNT_DECIDES determinism 'batch invariance'
noticed LOSES_NAN_IN_INT8 numerics 'NaN shows where it is'
noticed LOSES_SMALL_IN_INT8 relations 'small values in rows'
noticed SIZES_ADDED capabilities 'fingerprints distinguish pages'
noticed PAGE_WITHOUT_SCALES capabilities 'pages of every cache format'
noticed OFFSET_IN_ELEMENTS capabilities 'pages of every cache format'
noticed FOLLOWS_STREAM manners 'the stream is not looked at'
noticed WRITES_INSTANCE manners 'nonsense in a problem'
noticed ROWS_PACKED offsets 'a cache with gaps between its rows'
noticed LOSES_LAST_PIECE memory 'buffers of exactly space_needed that end'
noticed COUNTS_LONE_CALLS manners 'no state outside the instance'
noticed BOUND_DECIDES determinism 'batch invariance'
noticed WRITES_BEFORE_CHECK errors 'an lse with fewer columns'
noticed FOLLOWS_DEVICE manners 'answers from the problem alone'
[ "$(uname -m)" != x86_64 ] || noticed FLUSHES_AFTER_FP8 manners 'are left alone'

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
