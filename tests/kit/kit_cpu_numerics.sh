#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_cpu_numerics.sh: CPU_ATTN under the conformance kit: numbers.
. "${ATTN_TEST_SRCDIR:?}/tests/kit/kit_in_tree_run.sh"
without_sanitizer
[ -e "$ATTN_TEST_PLUGIN_DIR/cpu.so" ] || {
    echo "1..0 # SKIP this build has no plugin cpu"
    exit 0
}
in_tree numerics "$ATTN_TEST_PLUGIN_DIR/cpu.so"
tap_done
