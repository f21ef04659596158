/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of batches and of the arrays in them. */
#ifndef ATTNI_CHECK_BATCH_H
#define ATTNI_CHECK_BATCH_H

#include "base/need.h"

/* attn_plan_check_batch of structs that are whole, as attn_intake leaves them: check_batch.c. */
int attni_check_batch(const attn_problem_t *problem, const attn_batch_t *batch, int64_t num_blocks,
                      attn_error_t *error);

/* query_start_loc is an exclusive prefix sum: [0] = 0 and never decreases. */
static inline int attni_check_starts(const int32_t *starts, int32_t num_reqs, attn_error_t *error) {
    ATTNI_AT_LEAST(num_reqs, 0, "num_reqs", error);
    ATTNI_NEED(starts, "query_start_loc", error);
    if (starts[0] != 0)
        return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                         "query_start_loc[0] is %d; a prefix sum starts with 0", (int)starts[0]);
    for (int32_t r = 0; r < num_reqs; r++)
        if (starts[r + 1] < starts[r])
            return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                             "query_start_loc[%d] is %d after %d; it must not decrease", (int)r + 1,
                             (int)starts[r + 1], (int)starts[r]);
    return ATTN_OK;
}

/* Every request's total length covers its new tokens. */
static inline int attni_check_lens(const int32_t *starts, const int32_t *seq_lens, int32_t num_reqs,
                                   attn_error_t *error) {
    if (num_reqs > 0) ATTNI_NEED(seq_lens, "seq_lens", error);
    for (int32_t r = 0; r < num_reqs; r++)
        if (seq_lens[r] < starts[r + 1] - starts[r])
            return attn_fail(
                error, ATTN_E_INVALID, "seq_lens",
                "seq_lens[%d] is %d with %d new tokens; it counts them too, so it cannot be less", (int)r,
                (int)seq_lens[r], (int)(starts[r + 1] - starts[r]));
    return ATTN_OK;
}

#endif
