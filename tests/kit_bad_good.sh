#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_bad_good.sh: the plugin that the bad ones are made from, which passes everything.
wanted_groups="nothing"
. "${ATTN_TEST_SRCDIR:?}/tests/kit_bad_run.sh"
