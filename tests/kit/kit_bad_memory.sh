#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_bad_memory.sh: wrong addresses, buffers and bits.
wanted_groups="memory offsets determinism"
. "${ATTN_TEST_SRCDIR:?}/tests/kit/kit_bad_run.sh"
