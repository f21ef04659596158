/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a batch: lengths, block table, lists of one entry a request. */
#include "batch_check.h"

/* Keys of the call with lengths of their own: where the rows of each request lie, and that they hold its
 * keys. */
static int check_key_rows(const batch_limits_t *l, const attn_batch_t *b, attn_error_t *error) {
    const int32_t *start = b->key_start_loc_host;
    if (l->max_keys == 0 && start != NULL)
        return attn_fail(
            error, ATTN_E_INVALID, "key_start_loc",
            "key_start_loc_host was given, but the problem has no feature key_lengths; request it");
    if (l->max_keys == 0 || b->num_reqs == 0) return ATTN_OK;
    if (start == NULL)
        return attn_fail(error, ATTN_E_INVALID, "key_start_loc",
                         "key_start_loc_host is not given; it is required with key_lengths");
    if (start[0] != 0 || start[b->num_reqs] > l->max_keys)
        return attn_fail(
            error, ATTN_E_INVALID, "key_start_loc",
            "key_start_loc goes from %d to %d; expected 0 to at most %lld (max_num_batched_keys)", start[0],
            start[b->num_reqs], (long long)l->max_keys);
    for (int32_t r = 0; r < b->num_reqs; r++) {
        if (start[r + 1] < start[r])
            return attn_fail(error, ATTN_E_INVALID, "key_start_loc",
                             "key_start_loc falls from %d to %d at request %d; it must not decrease",
                             start[r], start[r + 1], r);
        if (b->seq_lens_host[r] > start[r + 1] - start[r])
            return attn_fail(error, ATTN_E_INVALID, "seq_lens",
                             "seq_lens[%d] is %d, but key_start_loc gives the request %d rows", r,
                             b->seq_lens_host[r], start[r + 1] - start[r]);
    }
    return ATTN_OK;
}

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
        if (!l->has_cache && l->max_keys == 0 && seq != query)
            return attn_fail(
                error, ATTN_E_INVALID, "seq_lens",
                "seq_lens[%d] is %lld but the request has %lld tokens; without a cache they are equal", r,
                (long long)seq, (long long)query);
    }
    return check_key_rows(l, b, error);
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

int batch_check_device_lengths(const attn_problem_t *p, const attn_batch_t *b, attn_error_t *error) {
    if ((p->features & ATTN_F_DEVICE_LENGTHS) == 0 || b->num_reqs == 0) return ATTN_OK;
    const struct {
        const DLTensor *t;
        const char *name;
        int32_t entries;
    } lists[] = {{b->query_start_loc, "query_start_loc", b->num_reqs + 1},
                 {b->seq_lens, "seq_lens", b->num_reqs}};
    for (int i = 0; i < 2; i++) {
        int status = attn_check_tensor(lists[i].t, lists[i].name, ATTN_DTYPE_INT32, 1, NULL, error);
        if (status == ATTN_OK && lists[i].t->shape[0] < lists[i].entries)
            status = attn_fail(error, ATTN_E_INVALID, lists[i].name,
                               "%s has %lld entries; with device_lengths the batch needs %d", lists[i].name,
                               (long long)lists[i].t->shape[0], lists[i].entries);
        if (status != ATTN_OK) return status;
    }
    return ATTN_OK;
}

int batch_check_bounds(int32_t r, int32_t start, int64_t query, int32_t len, int32_t most_query,
                       int32_t most_len, attn_error_t *error) {
    if (r == 0 && start != 0)
        return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                         "query_start_loc[0] is %d on the device; expected 0", start);
    if (query < 0 || query > most_query)
        return attn_fail(
            error, ATTN_E_INVALID, "query_start_loc",
            "query_start_loc gives request %d %lld tokens on the device; expected 0 to %d, the bound "
            "of query_start_loc_host",
            r, (long long)query, most_query);
    if (len < query || len > most_len)
        return attn_fail(
            error, ATTN_E_INVALID, "seq_lens",
            "seq_lens[%d] is %d on the device; expected %lld, its query tokens, to %d, the bound of "
            "seq_lens_host",
            r, len, (long long)query, most_len);
    return ATTN_OK;
}
