/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a batch: lengths, block table, lists of one entry a request. */
#include "batch_check.h"

int batch_check_lengths(const batch_limits_t *l, const attn_batch_t *b, attn_error_t *error) {
    if (b->num_reqs < 0 || b->num_reqs > l->max_seqs)
        return attn_fail(error, ATTN_E_INVALID, "num_reqs", "num_reqs is %d; expected 0 to %d (max_num_seqs)",
                         b->num_reqs, l->max_seqs);
    if (b->num_actual_tokens < 0 || b->num_actual_tokens > l->max_tokens)
        return attn_fail(error, ATTN_E_INVALID, "num_actual_tokens",
                         "num_actual_tokens is %d; expected 0 to %d (max_num_batched_tokens)",
                         b->num_actual_tokens, l->max_tokens);
    if (b->query_start_loc_host == NULL || (b->seq_lens_host == NULL && b->num_reqs > 0))
        return attn_fail(error, ATTN_E_INVALID,
                         b->query_start_loc_host == NULL ? "query_start_loc" : "seq_lens",
                         "query_start_loc_host and seq_lens_host are required");
    const int32_t *start = b->query_start_loc_host;
    if (start[0] != 0 || start[b->num_reqs] != b->num_actual_tokens)
        return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                         "query_start_loc goes from %d to %d; expected 0 to num_actual_tokens (%d)", start[0],
                         start[b->num_reqs], b->num_actual_tokens);
    for (int32_t r = 0; r < b->num_reqs; r++) {
        int64_t query = (int64_t)start[r + 1] - start[r], seq = b->seq_lens_host[r];
        if (query < 0)
            return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                             "query_start_loc falls from %d to %d at request %d; it must not decrease",
                             start[r], start[r + 1], r);
        if (seq < 0 || seq > l->max_model_len)
            return attn_fail(error, ATTN_E_INVALID, "seq_lens",
                             "seq_lens[%d] is %lld; expected 0 to %lld (max_model_len)", r, (long long)seq,
                             (long long)l->max_model_len);
        if (l->seq_counts_query && seq < query)
            return attn_fail(error, ATTN_E_INVALID, "seq_lens",
                             "seq_lens[%d] is %lld, less than its %lld query tokens; it counts them", r,
                             (long long)seq, (long long)query);
        if (!l->has_cache && seq != query)
            return attn_fail(
                error, ATTN_E_INVALID, "seq_lens",
                "seq_lens[%d] is %lld but the request has %lld tokens; without a cache they are equal", r,
                (long long)seq, (long long)query);
    }
    return ATTN_OK;
}

/* Blocks of request r that will be read: none for a request without queries. */
static int64_t blocks_read(const batch_limits_t *l, const attn_batch_t *b, int32_t r) {
    if (b->query_start_loc_host[r + 1] == b->query_start_loc_host[r]) return 0;
    return ((int64_t)b->seq_lens_host[r] + l->page_size - 1) / l->page_size;
}

int batch_check_table(const batch_limits_t *l, const attn_batch_t *b, attn_error_t *error) {
    const DLTensor *t = b->block_table;
    if (!l->has_cache || b->num_reqs == 0) return ATTN_OK;
    int status = attn_check_tensor(t, "block_table", ATTN_DTYPE_INT32, 2, NULL, error);
    if (status == ATTN_OK && t->shape[0] < b->num_reqs)
        status = attn_fail(error, ATTN_E_INVALID, "block_table", "block_table has %lld rows for %d requests",
                           (long long)t->shape[0], b->num_reqs);
    for (int32_t r = 0; r < b->num_reqs && status == ATTN_OK; r++)
        if (blocks_read(l, b, r) > t->shape[1])
            status =
                attn_fail(error, ATTN_E_INVALID, "block_table",
                          "block_table has %lld columns; seq_lens[%d] = %d needs %lld blocks of %d tokens",
                          (long long)t->shape[1], r, b->seq_lens_host[r], (long long)blocks_read(l, b, r),
                          l->page_size);
    return status;
}

int batch_check_host_table(const batch_limits_t *l, const attn_batch_t *b, int64_t num_blocks,
                           int32_t *max_block, attn_error_t *error) {
    *max_block = -1;
    int status = batch_check_table(l, b, error);
    if (status != ATTN_OK || !l->has_cache) return status;
    for (int32_t r = 0; r < b->num_reqs; r++) {
        const int32_t *row = (const int32_t *)attn_data(b->block_table) + r * b->block_table->strides[0];
        for (int64_t i = 0, blocks = blocks_read(l, b, r); i < blocks; i++) {
            if (row[i] < 0 || (num_blocks > 0 && row[i] >= num_blocks))
                return attn_fail(error, ATTN_E_INVALID, "block_table",
                                 "block_table[%d][%lld] is %d; expected 0 to %lld, the blocks of the cache",
                                 r, (long long)i, row[i],
                                 (long long)(num_blocks > 0 ? num_blocks : INT32_MAX) - 1);
            if (row[i] > *max_block) *max_block = row[i];
        }
    }
    return ATTN_OK;
}

int batch_check_prefix(const attn_batch_t *b, attn_error_t *error) {
    int32_t prefix = b->common_prefix_len;
    for (int32_t r = 0; r < b->num_reqs; r++) {
        int32_t query = b->query_start_loc_host[r + 1] - b->query_start_loc_host[r];
        if (query > 0 && b->seq_lens_host[r] - query < prefix)
            return attn_fail(
                error, ATTN_E_INVALID, "common_prefix_len",
                "common_prefix_len is %d but request %d has a context of %d tokens; pass at most that",
                prefix, r, b->seq_lens_host[r] - query);
    }
    return ATTN_OK;
}

int batch_check_list(const DLTensor *t, const char *name, int32_t num_reqs, attn_error_t *error) {
    int status = attn_check_tensor(t, name, ATTN_DTYPE_INT32, 1, NULL, error);
    if (status == ATTN_OK && t->shape[0] < num_reqs)
        return attn_fail(error, ATTN_E_INVALID, name, "%s has %lld entries for %d requests", name,
                         (long long)t->shape[0], num_reqs);
    return status;
}
