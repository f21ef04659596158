/* SPDX-License-Identifier: Apache-2.0 */
/* What plugins check of every batch alike, wherever they run: its lengths against themselves and the limits,
 * and its block table. */
#ifndef ATTN_BATCH_CHECK_H
#define ATTN_BATCH_CHECK_H

#include <attn/attn_plugin.h>
#include <attn/attn_plugin_util.h>

typedef struct batch_limits {
    int32_t max_seqs, max_tokens;
    int64_t max_model_len;
    int32_t has_cache;        /* 0: seq_lens are the query lengths */
    int32_t seq_counts_query; /* 1: a seq_len cannot be less than its query length */
    /* rows of key and value at most, with lengths of their own (semantics 2.16); 0: they have none */
    int64_t max_keys;
    int32_t page_size;
} batch_limits_t;

int batch_check_lengths(const batch_limits_t *limits, const attn_batch_t *batch, attn_error_t *error);
/* max_keys of a problem. */
static inline int64_t batch_max_keys(const attn_problem_t *p) {
    if ((p->features & ATTN_F_KEY_LENGTHS) == 0) return 0;
    return p->max_num_batched_keys != 0     ? p->max_num_batched_keys
           : p->max_num_batched_tokens != 0 ? p->max_num_batched_tokens
                                            : 8192;
}
/* Lengths on the device (semantics 1.6): the two tensors are there. */
int batch_check_device_lengths(const attn_problem_t *problem, const attn_batch_t *batch, attn_error_t *error);
/* Of request r, what a host has read there: its first row, tokens and keys, against the batch's bounds. */
int batch_check_bounds(int32_t r, int32_t start, int64_t query, int32_t len, int32_t most_query,
                       int32_t most_len, attn_error_t *error);
/* Without a cache: [num_reqs + 1] first rows of the requests in key and value. */
static inline const int32_t *batch_key_starts(const batch_limits_t *l, const attn_batch_t *b) {
    return l->max_keys != 0 && b->num_reqs > 0 ? b->key_start_loc_host : b->query_start_loc_host;
}
/* With a cache and requests: an int32 table with a row for each request, wide enough for those with
 * queries. */
int batch_check_table(const batch_limits_t *limits, const attn_batch_t *batch, attn_error_t *error);
/* The same of a table in host memory, and every entry that will be read: a block, below num_blocks unless
 * that is 0.
 * *max_block: the largest, -1 where nothing will be read. */
int batch_check_host_table(const batch_limits_t *limits, const attn_batch_t *batch, int64_t num_blocks,
                           int32_t *max_block, attn_error_t *error);
/* Cascade: the prefix pass has no causal mask, so every query must come after the prefix (semantics 6.4). */
int batch_check_prefix(const attn_batch_t *batch, attn_error_t *error);
/* An int32 vector with an entry for each request. */
int batch_check_list(const DLTensor *list, const char *name, int32_t num_reqs, attn_error_t *error);

#endif
