#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_lengths.sh: mistakes about the lengths of a batch (tests/kit/kit_lengths_bad.c) are caught by the checks of the
# conformance kit that are there for them.
bad=kit_lengths_bad.c
. "${ATTN_TEST_SRCDIR:?}/tests/kit/over_reference.sh"

build NOTHING
"$attn" check "$tap_scratch/NOTHING.so" --group numerics,errors --only lengths >"$tap_scratch/checks" 2>&1
ok "the plugin without a mistake passes" test $? -eq 0
sed -n 's/^not ok/# &/p' "$tap_scratch/checks"
for role in encoder encoder_only mla_prefill mm_encoder; do
    ok "$role has cases" grep -q "^ok .*$role: keys with lengths.*([0-9]* cases)" "$tap_scratch/checks"
done
caught IGNORES_GAPS numerics 'encoder: keys with lengths of their own'
caught ALIGNS_AT_START numerics 'mm_encoder: keys with lengths of their own'
caught FULL_IS_CAUSAL numerics 'encoder_only: all of keys with lengths of their own'
caught EMPTY_HAS_LSE numerics 'mla_prefill: keys with lengths of their own'
caught TAKES_NO_ROWS errors 'key lengths that contradict'
for role in decoder mla; do
    ok "$role has cases of lengths on the device" grep -q "^ok .*$role: lengths that grow.*([0-9]* cases)" "$tap_scratch/checks"
done
caught READS_HOST_LENGTHS numerics 'decoder: lengths that grow on the device'
caught READS_HOST_LENGTHS numerics 'mla: lengths that grow on the device'
caught READS_AT_BUILD numerics 'decoder: lengths that grow on the device'
caught READS_STARTS_AT_BUILD numerics 'decoder: lengths that grow on the device'
caught TAKES_NO_LISTS errors 'decoder: lengths on the device without'
tap_done
