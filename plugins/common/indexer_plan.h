/* SPDX-License-Identifier: Apache-2.0 */
/* The pure parts of attn.draft.indexer/0, the same for every backend: the shape of the cache, the sizes of the buffers, and
 * how a batch of prefills is cut into chunks (semantics 9.4, 9.5). */
#ifndef INDEXER_PLAN_H
#define INDEXER_PLAN_H

#include "indexer_check.h"

static inline int indexer_cache_shape(const attn_indexer_problem_t *p, int64_t num_blocks,
                                      attn_kv_cache_shape_t *shape, attn_error_t *error) {
    if (num_blocks < 0)
        return attn_fail(error, ATTN_E_INVALID, "num_blocks", "num_blocks is %lld; it must not be negative",
                         (long long)num_blocks);
    static const uint32_t axes[3] = {ATTN_AXIS_BLOCK, ATTN_AXIS_TOKEN, ATTN_AXIS_CONTENT};
    static const uint32_t with_layers[4] = {1, 0, 2, 3}; /* layers apart, pages whole */
    attn_kv_cache_shape_t s = {.struct_size = sizeof s, .ndim = 3};
    int64_t row = INDEXER_ROW(p);
    s.shape[0] = num_blocks, s.shape[1] = p->block_size, s.shape[2] = row;
    s.byte_strides[0] = p->block_size * row, s.byte_strides[1] = row, s.byte_strides[2] = 1;
    for (uint32_t i = 0; i < 3; i++)
        s.axes[i] = axes[i], s.stride_order[i] = i;
    for (uint32_t i = 0; i < 4; i++)
        s.stride_order_layers[i] = with_layers[i];
    s.dtype = attn_dl_dtype(ATTN_DTYPE_UINT8);
    s.kv_layout = ATTN_LAYOUT_NHD;
    s.alignment = 256;
    s.block_size = p->block_size;
    s.num_kv_heads = 1;
    s.page_bytes = s.byte_strides[0];
    s.total_bytes = s.page_bytes * num_blocks;
    s.k_scale_offset =
        (int64_t)p->block_size * p->head_size; /* of the page: its scales stand behind all values */
    s.v_scale_offset = -1;
    s.layout_id = 3; /* pages of index keys */
    const int64_t key[4] = {3, p->block_size, p->head_size, p->scale_format};
    s.fingerprint = attn_fingerprint64(0, key, sizeof key);
    uint32_t given = shape->struct_size;
    memcpy(shape, &s, given < sizeof s ? given : sizeof s);
    shape->struct_size = given;
    return ATTN_OK;
}

static inline void indexer_space(const attn_indexer_problem_t *p, attn_indexer_space_t *space) {
    attn_indexer_space_t s = {.struct_size = sizeof s, .alignment = 256};
    s.max_gathered_keys = 40 * p->max_model_len;
    s.gathered_key_bytes = (uint64_t)s.max_gathered_keys * p->head_size;
    /* one row of the longest request goes beyond the budget if it must */
    uint64_t row = (uint64_t)p->max_model_len * 4;
    s.prefill_logits_bytes = p->max_logits_bytes > row ? p->max_logits_bytes : row;
    uint32_t given = space->struct_size;
    memcpy(space, &s, given < sizeof s ? given : sizeof s);
    space->struct_size = given;
}

/* Requests join a chunk while its keys fit the workspace and its logits the budget; one that is too large alone is cut
 * along its query rows into pieces of budget / (4 * keys), and its keys are gathered once (semantics 9.5). */
static inline int indexer_plan_prefill(const attn_indexer_problem_t *p, int32_t num_reqs,
                                       const int32_t *query_start_loc, const int32_t *seq_lens,
                                       attn_indexer_chunk_t *chunks, int32_t capacity, int32_t *num_chunks,
                                       attn_error_t *error) {
    if (num_reqs < 0 || capacity < 0 || num_chunks == NULL || (capacity > 0 && chunks == NULL) ||
        (num_reqs > 0 && (query_start_loc == NULL || seq_lens == NULL)))
        return attn_fail(error, ATTN_E_INVALID, "num_reqs",
                         "num_reqs is %d, capacity %d; neither may be negative, and the arrays and "
                         "num_chunks must be given",
                         num_reqs, capacity);
    for (int32_t r = 0; r < num_reqs; r++) {
        int64_t rows = (int64_t)query_start_loc[r + 1] - query_start_loc[r];
        if (rows < 0 || rows > seq_lens[r])
            return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                             "request %d has %lld new tokens of %d; 0 to %d were wanted", r, (long long)rows,
                             seq_lens[r], seq_lens[r]);
        if (seq_lens[r] > p->max_model_len)
            return attn_fail(error, ATTN_E_INVALID, "seq_lens", "seq_lens[%d] is %d; max_model_len is %lld",
                             r, seq_lens[r], (long long)p->max_model_len);
    }
    const int64_t max_keys = 40 * p->max_model_len;
    int32_t n = 0;
    for (int32_t r = 0; r < num_reqs;) {
        attn_indexer_chunk_t c = {.first_req = r, .first_row = query_start_loc[r], .gathers = 1};
        for (; r < num_reqs; r++) {
            int64_t keys = c.num_keys + seq_lens[r],
                    rows = c.num_rows + ((int64_t)query_start_loc[r + 1] - query_start_loc[r]);
            if (c.num_reqs > 0 && (keys > max_keys || (uint64_t)(keys * rows) * 4 > p->max_logits_bytes))
                break;
            c.num_keys = keys, c.num_rows = rows, c.num_reqs++;
        }
        int64_t left = c.num_rows, per = left;
        if ((uint64_t)(c.num_keys * left) * 4 > p->max_logits_bytes) { /* one request, too large alone */
            per = (int64_t)(p->max_logits_bytes / ((uint64_t)c.num_keys * 4));
            if (per < 1) per = 1;
        }
        for (; left > 0; left -= c.num_rows, c.first_row += c.num_rows, c.gathers = 0) {
            c.num_rows = per < left ? per : left;
            if (n < capacity) chunks[n] = c;
            n++;
        }
    }
    *num_chunks = n;
    return ATTN_OK;
}

#endif
