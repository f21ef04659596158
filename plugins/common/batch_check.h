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
    int32_t page_size;
} batch_limits_t;

int batch_check_lengths(const batch_limits_t *limits, const attn_batch_t *batch, attn_error_t *error);
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
