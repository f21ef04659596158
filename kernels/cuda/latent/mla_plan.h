/* SPDX-License-Identifier: Apache-2.0 */
/* Work lists of a batch: pure functions of host lengths. Tokens go in slices, a slice's requests in tiles of
 * rows, and the keys of a tile are cut where there are fewer tiles than the device can run at once. A kernel
 * that starts one CTA an item gets the list alone; a persistent one also gets parts, runs of items of about
 * equal time. */
#ifndef MLA_PLAN_H
#define MLA_PLAN_H

#include "mla_params.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mla_plan_input {
    const int32_t *q_start, *seq_lens; /* [num_reqs + 1], [num_reqs] */
    int32_t num_reqs;
    int32_t num_heads;
    int32_t topk;         /* sparse: keys of every token; 0: dense */
    int32_t is_full;      /* dense: tokens see all keys of their request; 0: those up to their own */
    int32_t slots;        /* CTAs (or clusters) that run at once; 0: never cut keys */
    int32_t tile_rows;    /* rows of a tile: a multiple of 32 */
    int32_t parts;        /* persistent kernels: CTAs or clusters of the launch; 0: one CTA an item */
    int32_t slice_tokens; /* with is_bound: at least all tokens */
    /* The lengths are bounds of the device's (mla_live.cuh): tiles have all keys of their request, and
     * rows count from its first. */
    int32_t is_bound;
    int32_t border; /* > 0: a slice ends before this token; for capacities: one may */
} mla_plan_input;

typedef struct mla_plan_limits {
    int32_t max_seqs, max_tokens;
    int32_t max_slices, max_items, max_splits, max_slots;
    int32_t max_slice_items; /* largest launch of one slice */
} mla_plan_limits;

/* Where the slice ends that begins with `token`, of so many. */
static inline int32_t mla_slice_end(const mla_plan_input *in, int32_t token, int32_t tokens) {
    const int32_t end = tokens - token > in->slice_tokens ? token + in->slice_tokens : tokens;
    return token < in->border && in->border < end ? in->border : end;
}
/* Tokens of a slice: about 2^17 rows, so that the workspace stays near 128 MiB. */
int32_t mla_slice_tokens(int32_t num_heads, int32_t max_tokens);
/* Fills the capacities from max_seqs, max_tokens and the parts of `in` that are not the batch. Returns 0, or
 * -1 where they do not fit 31 bits. */
int mla_plan_capacity(mla_plan_limits *limits, const mla_plan_input *in);
/* Writes the lists; returns the number of slices, -1 if a capacity does not hold (never within the limits).
 * `parts` [max_slices][in->parts + 1], or NULL where in->parts is 0: part p of slice s has items parts[s][p]
 * .. parts[s][p + 1]. */
int mla_plan_build(const mla_plan_input *in, const mla_plan_limits *limits, mla_slice *slices,
                   mla_item *items, mla_split *splits, int32_t *parts);

#ifdef __cplusplus
}
#endif
#endif
