#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_next.sh: what one call leaves for the next, what is right for the first way alone in which rows lie, a mask
# reads or a batch fills its room, and numbers that are none (tests/kit/kit_next_bad.c). Each is caught by the check
# of the conformance kit that is there for it, which passes without the mistake.
bad=kit_next_bad.c
. "${ATTN_TEST_SRCDIR:?}/tests/kit/over_reference.sh"
build NOTHING
noticed FIRST_SAYS_LSE steps 'calls without an LSE and with one'
noticed SAME_LENGTHS_BUILT steps 'a table that lies elsewhere'
noticed REFUSES_EVER_AFTER steps 'a cache that says it has one block'
noticed FULL_READS_HOST memory 'nothing of the batch is kept'
noticed OFFSET_AT_BUILD offsets 'byte_offset of every tensor'
noticed OUTPUT_LIKE_QUERY offsets 'tensors with gaps in every role'
noticed SINK_HAS_FLOOR numerics 'no sinks beside scores far below'
noticed E5M2_CLAMPS_NAN numerics 'NaN shows where it is'
noticed OPTION_FILLS_ROOM options 'values of pieces'
noticed DEVICE_LEAKS leaks 'refused problems, again and again'
noticed TABLE_IGNORES_TAIL structs 'of update_block_table that uses its tail is refused'
caught E5M2_HEADS capabilities 'feature per_head_scales opens'
tap_done
