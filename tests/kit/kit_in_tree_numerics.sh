#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_in_tree_numerics.sh: the plugins of this tree under the conformance kit: numbers, of all but cpu (kit_cpu_numerics.sh).
. "${ATTN_TEST_SRCDIR:?}/tests/kit/kit_in_tree_run.sh"
without_sanitizer
for plugin in "$ATTN_TEST_PLUGIN_DIR"/*.so; do
    [ "$(basename "$plugin")" = cpu.so ] || in_tree abi,numerics "$plugin"
done
tap_done
