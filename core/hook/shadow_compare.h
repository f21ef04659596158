/* SPDX-License-Identifier: Apache-2.0 */
/* How far the outputs of two backends may be apart, and how far they are. */
#ifndef ATTNI_SHADOW_COMPARE_H
#define ATTNI_SHADOW_COMPARE_H

#include "hook/host_copy.h"

/* Allowed is atol + rtol * |b|: semantics 10.2. */
struct attni_tolerance {
    double atol, rtol;
};

struct attni_tolerance attni_tolerance_of(const attn_problem_t *problem);

/* The element that is farthest from what is allowed; a value that only one side has (NaN, infinity) is
 * infinitely far. */
struct attni_comparison {
    const char *other; /* dense rows in the same order */
    struct attni_tolerance allowed;
    double largest, worst; /* |a - b|, and as a multiple of what is allowed */
    double a, b;           /* where it is worst */
};

/* What `read` says of the engine's tensor beside the shadow's, which is dense; seen has room for copies of
 * both. longest: keys of the longest request. */
int attni_compare(const struct attni_host_read *read, const DLTensor *engine, const DLTensor *mine,
                  const char *name, const struct attni_tolerance *allowed, int64_t longest,
                  struct attni_host_copy seen[2], struct attni_comparison *found, attn_error_t *error);

#endif
