/* SPDX-License-Identifier: Apache-2.0 */
/* plan_cascade.c: shared prefixes: how long, whether a separate pass over them pays, and the merge of two
 * passes. */
#include "base/arith.h"
#include "base/need.h"

#include <attn/attn_plan.h>
#include <math.h>

/* The decision and its constants are those of semantics 6.4. */
int32_t attn_plan_use_cascade(const attn_cascade_params_t *params, const int32_t *query_lens,
                              int32_t num_reqs) {
    const int64_t tile = 128;
    const int32_t shortest_prefix = 256, fewest_requests = 8;
    attn_cascade_params_t p;
    if (attn_intake(&p, sizeof p, params, "params", NULL) != ATTN_OK || query_lens == NULL) return 0;
    if (p.common_prefix_len < shortest_prefix || num_reqs < fewest_requests) return 0;
    if (p.has_alibi || p.has_sliding_window || p.has_local_attention || p.dcp_world_size > 1) return 0;
    if (p.num_heads < 1 || p.num_kv_heads < 1) return 0;

    int64_t group = p.num_heads / p.num_kv_heads;
    int single = 1;
    for (int32_t r = 0; r < num_reqs; r++)
        single = single && query_lens[r] == 1;
    if (!(group > 1 && single)) return 1; /* flash decoding would not be used without a cascade either */

    int64_t sms = p.num_sms > 0 ? p.num_sms : 1;
    int64_t prefix_tiles = attni_cdiv(p.common_prefix_len, tile);
    int64_t cascade = attni_cdiv(p.num_heads * attni_cdiv(num_reqs, tile), sms) * prefix_tiles;
    int64_t decoding =
        attni_cdiv((int64_t)num_reqs * p.num_kv_heads * attni_cdiv(group, tile) * prefix_tiles, sms);
    return cascade < decoding;
}

int32_t attn_plan_common_prefix(const int32_t *block_table, int64_t table_stride, const int32_t *seq_lens,
                                int32_t num_reqs, int32_t block_size) {
    if (block_table == NULL || seq_lens == NULL || num_reqs < 1 || block_size < 1) return 0;
    int64_t blocks = table_stride;
    for (int32_t r = 0; r < num_reqs; r++)
        blocks = attni_min64(blocks, seq_lens[r] / block_size);
    int64_t shared = 0;
    for (; shared < blocks; shared++)
        for (int32_t r = 1; r < num_reqs; r++)
            if (block_table[r * table_stride + shared] != block_table[shared])
                return (int32_t)(shared * block_size);
    return (int32_t)(attni_max64(shared, 0) * block_size);
}

/* One pair of rows; *lse receives the merged log-sum-exp. Empty sides (-inf; some kernels write +inf)
 * contribute nothing, whatever their rows hold (semantics 2.14). */
static void merge_row(const float *a, float lse_a, const float *b, float lse_b, int32_t n, float *out,
                      float *lse) {
    int has_a = !isinf(lse_a), has_b = !isinf(lse_b);
    double top = has_a && (!has_b || lse_a > lse_b) ? lse_a : lse_b;
    double wa = has_a ? exp(lse_a - top) : 0, wb = has_b ? exp(lse_b - top) : 0, sum = wa + wb;
    if (!has_a && !has_b) {
        memset(out, 0, (size_t)n * sizeof *out);
        *lse = -INFINITY;
        return;
    }
    for (int32_t d = 0; d < n; d++)
        out[d] = (float)((has_a ? a[d] * (wa / sum) : 0) + (has_b ? b[d] * (wb / sum) : 0));
    *lse = (float)(top + log(sum));
}

int attn_plan_merge_states(const float *prefix_out, const float *prefix_lse, const float *suffix_out,
                           const float *suffix_lse, int64_t num_tokens, int32_t num_heads,
                           int32_t head_size_v, int64_t prefill_tokens_with_context, float *out,
                           float *lse_out, attn_error_t *error) {
    ATTNI_AT_LEAST(num_tokens, 0, "num_tokens", error);
    ATTNI_AT_LEAST(num_heads, 1, "num_heads", error);
    ATTNI_AT_LEAST(head_size_v, 1, "head_size_v", error);
    ATTNI_AT_LEAST(prefill_tokens_with_context, 0, "prefill_tokens_with_context", error);
    if (num_tokens == 0) return ATTN_OK;
    ATTNI_NEED(prefix_out, "prefix_out", error);
    ATTNI_NEED(prefix_lse, "prefix_lse", error);
    ATTNI_NEED(suffix_out, "suffix_out", error);
    ATTNI_NEED(suffix_lse, "suffix_lse", error);
    ATTNI_NEED(out, "out", error);
    for (int64_t t = 0; t < num_tokens; t++) {
        for (int32_t h = 0; h < num_heads; h++) {
            int64_t row = (t * num_heads + h) * head_size_v, at = h * num_tokens + t;
            float lse = suffix_lse[at];
            if (t < prefill_tokens_with_context)
                merge_row(prefix_out + row, prefix_lse[at], suffix_out + row, lse, head_size_v, out + row,
                          &lse);
            else
                memmove(out + row, suffix_out + row, (size_t)head_size_v * sizeof *out);
            if (lse_out != NULL) lse_out[at] = lse;
        }
    }
    return ATTN_OK;
}
