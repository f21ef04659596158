#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_bad_contract.sh: wrong tables, structs, errors, threads and manners.
wanted_groups="abi structs capabilities errors threads leaks manners steps options relations"
. "${ATTN_TEST_SRCDIR:?}/tests/kit/kit_bad_run.sh"
