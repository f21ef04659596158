#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_in_tree_use.sh: the plugins of this tree under the conformance kit: long use, threads, options, manners.
. "${ATTN_TEST_SRCDIR:?}/tests/kit/kit_in_tree_run.sh"
without_sanitizer
in_tree threads,leaks,manners,steps,options,relations "$ATTN_TEST_PLUGIN_DIR"/*.so
tap_done
