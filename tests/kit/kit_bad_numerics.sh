#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_bad_numerics.sh: wrong numbers.
wanted_groups="numerics"
. "${ATTN_TEST_SRCDIR:?}/tests/kit/kit_bad_run.sh"
