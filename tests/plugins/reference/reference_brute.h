/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reference_brute.h: attention of a kit case once more, written from the formulas with another structure than
 * the plugin's: whole score matrices, masks painted by ranges, softmax in two passes, the sink as one more
 * column, quantisation by searching the nearest of all codes.
 */
#ifndef ATTN_TESTS_REFERENCE_BRUTE_H
#define ATTN_TESTS_REFERENCE_BRUTE_H

#include "kit/case/attn_case.h"

#include <math.h>

/* out [T, Hq, Dv] and lse [Hq, T] as kit_result_t has them. */
void brute_attention(const kit_case_t *c, const kit_inputs_t *in, double *out, double *lse);

/* The larger of two errors; NaN is the largest, so that no maximum swallows it. */
static inline double brute_worse(double worst, double e) {
    if (isnan(e)) return INFINITY;
    return e > worst ? e : worst;
}

/* Nearest value of an fp8 format (e4m3, or e5m2 if is_e5m2), found by looking at all 256. */
double brute_nearest_fp8(double x, int is_e5m2);

#endif
