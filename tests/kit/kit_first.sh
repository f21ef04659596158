#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_first.sh: what two threads begin at once, what is kept from one call or instance for another, and sizes at which
# something else begins (tests/kit/kit_first_bad.c). Each is caught by the check of the conformance kit that is there
# for it, which passes without the mistake.
bad=kit_first_bad.c
. "${ATTN_TEST_SRCDIR:?}/tests/kit/over_reference.sh"
build NOTHING
noticed TABLE_WITHOUT_LOCK threads 'the first calls of a process'
caught STATIC_ROWS threads 'the first calls of a process'
noticed WINDOW_OF_16_BITS numerics 'windows beyond every context'
noticed ALIGNED_ROWS offsets 'query, key, value, output and lse with gaps'
if [ "$(nproc)" -gt 1 ]; then
    noticed PARTS_OF_CALLER determinism 'a thread bound to one processor'
fi
noticed SCALE_OF_HEAD numerics 'feature per_head_scales'
noticed KEEPS_LENS_OF_70 memory 'nothing of the batch is kept'
noticed QUERY_OF_16_BITS numerics '66000 tokens'
noticed EMPTY_PART numerics 'contexts of many lengths'
noticed LAST_ONE_OPENED options 'values of pieces'
caught ROOM_FOR_GROUP memory 'no allocation in the first long or large step'
noticed SLOPES_BY_ADDRESS steps 'hold something else at the next call'
noticed PRODUCT_OF_7_BITS options 'options at their ends'
noticed ROWS_BEYOND_256 options 'values of pieces'
noticed CAP_OF_LAST threads 'live beside each other'
caught WINDOW_OF_LAST threads 'live beside each other'
caught SINK_OF_LAST threads 'live beside each other'
noticed FIRST_LONGEST steps 'batches of other sizes'
noticed TABLE_OF_FP8 threads 'the first calls of a process over a cache of fp8_e4m3'
noticed TEAM_FLUSHES manners 'the OpenMP threads are as before'
[ "$(nproc)" -eq 1 ] || noticed TEAM_IS_BOUND manners 'the OpenMP threads are as before'
tap_done
