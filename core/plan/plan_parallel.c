/* SPDX-License-Identifier: Apache-2.0 */
/* plan_parallel.c: shares of context parallelism, the batch of logit rows, and rows by request (semantics
 * 8.1, 6.8). */
#include "base/arith.h"
#include "plan/check_batch.h"

#include <attn/attn_plan.h>

int64_t attn_plan_cp_local_len(int64_t seq_len, int32_t world, int32_t rank, int32_t interleave) {
    if (seq_len <= 0 || rank < 0 || rank >= (world > 1 ? world : 1)) return 0;
    if (world <= 1) return seq_len;
    int64_t run = interleave > 0 ? interleave : 1;
    int64_t base = seq_len / run / world * run;
    int64_t rest = seq_len - base * world - rank * run;
    return base + attni_max64(0, attni_min64(rest, run));
}

int64_t attn_plan_cp_local_bound(int64_t seq_len, int32_t world, int32_t interleave) {
    if (seq_len <= 0) return 0;
    if (world <= 1) return seq_len;
    int64_t run = interleave > 0 ? interleave : 1;
    return attni_cdiv(seq_len, world * run) * run;
}

int attn_plan_fast_prefill(const int32_t *query_start_loc, int32_t num_reqs, const int32_t *logits_indices,
                           int32_t num_indices, int32_t *query_start_loc_out, int32_t *max_query_len,
                           attn_error_t *error) {
    int code = attni_check_starts(query_start_loc, num_reqs, error);
    if (code != ATTN_OK) return code;
    ATTNI_AT_LEAST(num_indices, 0, "num_indices", error);
    if (num_indices > 0) ATTNI_NEED(logits_indices, "logits_indices", error);
    ATTNI_NEED(query_start_loc_out, "query_start_loc_out", error);
    ATTNI_NEED(max_query_len, "max_query_len", error);
    for (int32_t i = 0; i < num_indices; i++) {
        int32_t row = logits_indices[i];
        if (row < 0 || row >= query_start_loc[num_reqs] || (i > 0 && row <= logits_indices[i - 1]))
            return attn_fail(error, ATTN_E_INVALID, "logits_indices",
                             "logits_indices[%d] is %d; rows must ascend and lie in 0 .. %d", (int)i,
                             (int)row, (int)query_start_loc[num_reqs] - 1);
    }
    /* The rows ascend as the requests do, so one pass over both replaces a search per row. */
    int32_t i = 0, longest = 0;
    query_start_loc_out[0] = 0;
    for (int32_t r = 0; r < num_reqs; r++) {
        int32_t begin = i;
        while (i < num_indices && logits_indices[i] < query_start_loc[r + 1])
            i++;
        query_start_loc_out[r + 1] = i;
        if (i - begin > longest) longest = i - begin;
    }
    *max_query_len = longest;
    return ATTN_OK;
}

int attn_plan_token_to_req(const int32_t *query_start_loc, int32_t num_reqs, int32_t *token_to_req,
                           int64_t num_tokens, attn_error_t *error) {
    int code = attni_check_starts(query_start_loc, num_reqs, error);
    if (code != ATTN_OK) return code;
    ATTNI_AT_LEAST(num_tokens, query_start_loc[num_reqs], "num_tokens", error);
    if (num_tokens > 0) ATTNI_NEED(token_to_req, "token_to_req", error);
    int64_t t = 0;
    for (int32_t r = 0; r < num_reqs; r++)
        while (t < query_start_loc[r + 1])
            token_to_req[t++] = r;
    while (t < num_tokens)
        token_to_req[t++] = 0;
    return ATTN_OK;
}
