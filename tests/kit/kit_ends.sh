#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_ends.sh: ends of the host's arrays, sizes beyond those of most models, codes of a cache, and what large calls leave
# (tests/kit/kit_ends_bad.c). Each is caught by the check of the conformance kit that is there for it, which passes
# without the mistake.
bad=kit_ends_bad.c
. "${ATTN_TEST_SRCDIR:?}/tests/kit/over_reference.sh"
build NOTHING
noticed LENS_ONE_MORE memory 'that end at a faulting page'
caught STARTS_ONE_MORE memory 'that end at a faulting page'
noticed GROUP_OF_128 numerics '65 to 256 heads'
caught HEADS_OF_8_BITS numerics '65 to 256 heads'
noticed PRINT_OF_SIZES capabilities 'fingerprints distinguish pages'
noticed TIES_TO_ZERO numerics 'codes of one key in a cache of int8_per_token_head'
noticed BYTES_REFUSED numerics 'a cache of fp8_e4m3 as uint8'
noticed LEAK_OF_GROUP leaks 'open and close, again and again'
noticed LENS_OF_PROCESS threads 'the first calls of a process'
noticed STACK_OF_REQUESTS memory 'the stack does not grow'
caught STACK_OF_ROWS memory 'the stack does not grow'
noticed THREAD_AFTER_PROMPT manners 'no thread or handler outlives'
tap_done
