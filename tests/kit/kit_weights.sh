#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_weights.sh: weights that are lost, and what shows in other calls than the plain ones alone: a thread, a line in
# the log, an error without a failure (tests/kit/kit_weights_bad.c). Each is caught by the check of the conformance
# kit that is there for it, which passes without the mistake.
bad=kit_weights_bad.c
. "${ATTN_TEST_SRCDIR:?}/tests/kit/over_reference.sh"
build NOTHING
noticed DROPS_TINY numerics 'tiny weights under large values'
noticed SLOPES_IN_HALF numerics 'slopes below 0 over 5000 keys'
noticed SATURATES_INFINITY numerics 'infinite values of a request'
noticed LARGE_GROUP_PARTS numerics 'the largest group over 20000 keys'
noticed OPTION_LARGE_GROUP options 'values of pieces'
noticed THREAD_STAYS manners 'no thread or handler outlives'
noticed LOGS_PROMPTS manners 'the log is quiet while steps are alike'
noticed LOGS_LONG_DECODES manners 'the log is quiet while steps are alike'
noticed TIES_TO_EVEN numerics 'bits in a cache of int8_per_token_head'
noticed NOTES_SCALES errors 'left alone by calls that succeed'
tap_done
