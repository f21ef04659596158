#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_limits.sh: mistakes at the ends of types and of what a table, an option or a feature allows
# (tests/kit/kit_limits_bad.c) are caught by the checks of the conformance kit that are there for them, which pass
# without the mistake.
bad=kit_limits_bad.c
. "${ATTN_TEST_SRCDIR:?}/tests/kit/over_reference.sh"
build NOTHING
noticed LOSES_FULL_NAN numerics 'NaN of every pattern in a cache of 16 bits'
noticed SATURATES_HALF numerics 'numbers beyond a cache of 16 bits'
noticed EMPTY_ROW_NAN numerics 'keys that a score of -inf hides'
noticed WIDE_OUTPUT_ROUNDED numerics 'float32 outputs of 16-bit models'
noticed WINDOW_IN_31_BITS numerics 'windows beyond every context'
noticed LENGTH_IN_31_BITS numerics 'the largest max_model_len'
noticed LOWEST_IS_1E30 numerics 'scores very far from zero'
noticed CAP_LOSES_NAN numerics 'NaN in a query shows, float32'
noticed SCALES_UNSAID capabilities 'pages of every cache format'
noticed SCALES_OVER_VALUES capabilities 'pages of every cache format'
caught QUERY_ALLOCATES capabilities 'supports_combination takes no memory'
noticed FEATURE_UNNAMED structs 'unknown feature bits are refused'
noticed WRITES_NO_VALUES errors 'a cache update without values'
noticed OPTION_TOO_FAR options 'values of pieces'
noticed OPTION_TOO_STEEP options 'values of pieces'
noticed OPTION_LEAVES_MASK options 'values of pieces'
[ "$(uname -m)" != x86_64 ] || noticed CAP_FLUSHES manners 'are left alone'

# no mistake: planes of K and V on an axis of their own
build FIVE_AXES
"$attn" check "$tap_scratch/FIVE_AXES.so" --group offsets --only 'beyond 2^3' >"$tap_scratch/said" 2>&1
ok "FIVE_AXES passes offsets: beyond 2^3" test $? -eq 0
ok "in cases" grep -q '^ok .* cases)' "$tap_scratch/said"
tap_done
