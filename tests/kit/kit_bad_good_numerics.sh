#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_bad_good_numerics.sh: the plugin that the bad ones are made from passes everything.
wanted_groups=nothing
good_groups=numerics
. "${ATTN_TEST_SRCDIR:?}/tests/kit/kit_bad_run.sh"
