#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance kit on latent attention: the reference serves all of its cases, each role has some.
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
attn=$ATTN_TEST_BUILDDIR/tools/attn
"$attn" check "$ATTN_TEST_PLUGIN_DIR/reference.so" --group numerics --only mla >"$tap_scratch/checks" 2>&1
ok "no case is wrong" test $? -eq 0
for role in mla mla_prefill mla_sparse; do
    for what in 'compositions of a batch' 'head counts' 'quantised output'; do
        ok "$role: $what" grep -q "^ok .*numerics: $role: $what ([0-9]* cases)" "$tap_scratch/checks"
    done
done
for role in mla mla_sparse; do
    ok "$role: absorbed queries" grep -q "^ok .*numerics: $role, latent: compositions of a batch (6 cases)" "$tap_scratch/checks"
    ok "$role: fp8 queries" grep -q "^ok .*numerics: $role: fp8 queries (3 cases)" "$tap_scratch/checks"
    ok "$role: page borders" grep -q "^ok .*numerics: $role: page borders" "$tap_scratch/checks"
    ok "$role: cache formats" grep -q "^ok .*numerics: $role: cache formats" "$tap_scratch/checks"
done
"$attn" check "$ATTN_TEST_PLUGIN_DIR/cpu.so" --group numerics --only latent >"$tap_scratch/checks" 2>&1
ok "no case of CPU_ATTN is wrong" test $? -eq 0
for what in 'compositions of a batch (6' 'head counts (4' 'fp8 queries (3' 'page borders (3' 'every key visible (6'; do
    ok "CPU_ATTN: $what cases)" grep -q "^ok .*numerics: mla, latent: $what cases)" "$tap_scratch/checks"
done
"$attn" check "$ATTN_TEST_PLUGIN_DIR/cpu.so" --group numerics --only mla_sparse >"$tap_scratch/checks" 2>&1
ok "no case of CPU_ATTN over selected tokens is wrong" test $? -eq 0
for what in 'mla_sparse: compositions of a batch' 'mla_sparse, latent: compositions of a batch' 'mla_sparse: cache formats' \
    'mla_sparse: page borders'; do
    ok "CPU_ATTN: $what" grep -q "^ok .*numerics: $what ([0-9]* cases)" "$tap_scratch/checks"
done
tap_done
