#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_in_tree.sh: the plugins of this tree under the conformance kit: its tables, its memory, its errors.
. "${ATTN_TEST_SRCDIR:?}/tests/kit/kit_in_tree_run.sh"
case $ATTN_TEST_SANITIZERS in
'' | no) groups=abi,structs,capabilities,memory,offsets,capture,errors ;;
*) groups=abi,structs,errors ;;
esac
in_tree "${ATTN_TEST_GROUPS:-$groups}" "$ATTN_TEST_PLUGIN_DIR"/*.so
tap_done
