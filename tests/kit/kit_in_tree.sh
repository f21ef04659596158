#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_in_tree.sh: the plugins of this tree under the conformance kit. One line for each; the failures of the kit follow.
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
attn=$ATTN_TEST_BUILDDIR/tools/attn
groups=${ATTN_TEST_GROUPS:-abi,structs,capabilities,numerics,memory,offsets,determinism,capture,errors,threads,leaks,manners,steps,options,relations}
# A sanitizer slows everything down and owns allocator and address space; it looks at memory itself.
case $ATTN_TEST_SANITIZERS in
'' | no) ;;
*) groups=abi,structs,errors ;;
esac
for plugin in "$ATTN_TEST_PLUGIN_DIR"/*.so; do
    name=$(basename "$plugin" .so)
    "$attn" check "$plugin" --group "$groups" >"$tap_scratch/out" 2>&1
    status=$?
    summary=$(tail -n 1 "$tap_scratch/out" | sed 's/^# //')
    if [ $status -eq 0 ]; then pass "$name: $summary"; else
        fail "$name: $summary" "$(grep -A 3 '^not ok' "$tap_scratch/out" | sed 's/^# */  /')"
    fi
done
tap_done
