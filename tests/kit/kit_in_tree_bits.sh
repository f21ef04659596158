#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_in_tree_bits.sh: the plugins of this tree under the conformance kit: the same bits again, whatever lies around a request.
. "${ATTN_TEST_SRCDIR:?}/tests/kit/kit_in_tree_run.sh"
without_sanitizer
in_tree abi,determinism "$ATTN_TEST_PLUGIN_DIR"/*.so
tap_done
