#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_latent.sh: the groups of the conformance kit on latent attention: each of its roles has cases in them, and mistakes
# that only latent attention can make (tests/kit/kit_latent_bad.c) are caught by the group that is there for them.
bad=kit_latent_bad.c
. "${ATTN_TEST_SRCDIR:?}/tests/kit/over_reference.sh"

build NOTHING
"$attn" check "$tap_scratch/NOTHING.so" --group structs,memory,offsets,determinism,errors,threads,leaks,manners \
    >"$tap_scratch/checks" 2>&1
ok "the plugin without a mistake passes" test $? -eq 0
sed -n 's/^not ok/# &/p' "$tap_scratch/checks"
for role in mla mla_sparse; do
    for what in 'memory: R: buffers of exactly space_needed' 'memory: R: inputs are not changed' 'memory: R: update_kv_cache writes' \
        'offsets: R: byte_offset' 'offsets: R: blocks beyond' 'determinism: R: batch invariance' \
        'threads: R: instances run in parallel'; do
        what=$(echo "$what" | sed "s/R/$role/")
        ok "$what" grep -q "^ok .*$what.*([0-9]* cases)" "$tap_scratch/checks"
    done
done
caught FORGETS_TOPK_OFFSET offsets 'mla_sparse: byte_offset'
caught FORGETS_WEIGHT_OFFSET offsets 'mla: byte_offset'
caught WRAPS_FAR_SLOTS offsets 'mla: blocks beyond'
caught READS_BEHIND_TOPK memory 'mla_sparse: buffers of exactly'
caught CHANGES_TOPK memory 'mla_sparse: inputs are not changed'
caught CHANGES_WEIGHTS memory 'mla: inputs are not changed'
caught WRITES_OTHER_ROWS memory 'mla: update_kv_cache writes'
caught ALLOCATES memory 'mla: no allocation'
caught KEEPS_WEIGHTS errors 'mla: forward without prepared weights'
caught TAKES_NO_WEIGHTS_FOR_GOOD errors 'mla: prepare_weights without weights'
caught TAKES_NARROW_TOPK errors 'mla_sparse: fewer selected tokens'
caught CHANGES_WITH_EVERY_CALL determinism 'mla: the same call'
caught DEPENDS_ON_BATCH determinism 'mla: batch invariance'
caught FULL_IS_CAUSAL numerics 'mla, latent: every key'
caught FORGETS_ROPE numerics 'mla, latent: head counts'
caught LOSES_FAR_SCORES numerics 'mla, latent: scores far from zero'
caught TAKES_SINKS capabilities 'role mla: no feature'
# The table of FLASH_ATTN has sinks, for its other roles: no device is needed to see that mla_prefill goes without.
if [ -f "$ATTN_TEST_PLUGIN_DIR/flash.so" ]; then
    "$attn" check "$ATTN_TEST_PLUGIN_DIR/flash.so" --backend FLASH_ATTN --group capabilities --only 'role mla_prefill: no feature' \
        >"$tap_scratch/checks" 2>&1
    ok "FLASH_ATTN takes no sinks for mla_prefill" grep -q '^ok .*role mla_prefill: no feature.*([1-9][0-9]* cases)' "$tap_scratch/checks"
else
    skip "FLASH_ATTN takes no sinks for mla_prefill" "the flash plugin is not built"
fi
tap_done
