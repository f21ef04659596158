/* SPDX-License-Identifier: Apache-2.0 */
/* What plugins on the host take of a batch that only some masks have: causal flags, R-SWA prefixes and spans,
 * from the host mirror where there is one, else from the tensor (semantics 2.5 to 2.7). */
#ifndef ATTN_BATCH_MASK_H
#define ATTN_BATCH_MASK_H

#include "batch_check.h"

/* The lists that the problem's mask needs are there. */
int batch_check_masks(const attn_problem_t *problem, const attn_batch_t *batch, attn_error_t *error);
/* Entries of request r. */
int32_t batch_causal(const attn_problem_t *problem, const attn_batch_t *batch, int32_t r);
int32_t batch_prefix(const attn_problem_t *problem, const attn_batch_t *batch, int32_t r);

/* Spans a request has in this batch, at most max_spans; without mirror and tensor there are none. */
int batch_check_spans(const attn_problem_t *problem, const attn_batch_t *batch, uint32_t max_spans,
                      int32_t *count, attn_error_t *error);
/* out: int32 [num_reqs, count, 2]. */
void batch_copy_spans(const attn_batch_t *batch, int32_t count, int32_t *out);

#endif
