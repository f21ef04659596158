/* SPDX-License-Identifier: Apache-2.0 */
/* indexer_plan.c: what every indexer answers without a device. */
#include "indexer_plan.h"

#include "cache_shape.h"

static const attn_indexer_problem_t *problem_of(attn_indexer_t *indexer) {
    return &((const indexer_rules *)(const void *)indexer)->p;
}

int indexer_check_open(const attn_indexer_problem_t *problem, const attn_device_t *device,
                       attn_indexer_t *const *indexer, attn_indexer_problem_t *p, attn_device_t *taken,
                       attn_error_t *error) {
    int status = indexer_check_problem(problem, p, error);
    if (status == ATTN_OK && indexer == NULL)
        status =
            attn_fail(error, ATTN_E_INVALID, "indexer", "indexer is NULL; pass the address of a pointer");
    return status == ATTN_OK ? attn_intake_known(taken, sizeof *taken, device, "device", error) : status;
}

int indexer_cache_shape(attn_indexer_t *indexer, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                        attn_error_t *error) {
    const attn_indexer_problem_t *p = problem_of(indexer);
    attn_kv_cache_shape_t s;
    int status = cache_shape_check_blocks(num_blocks, error);
    if (status != ATTN_OK) return status;
    attn_row_cache_shape(ATTN_DTYPE_UINT8, INDEXER_ROW(p), p->block_size, num_blocks, &s);
    /* of the page: its scales follow all values */
    s.k_scale_offset = (int64_t)p->block_size * p->head_size;
    s.layout_id = 3; /* pages of index keys */
    const int64_t key[4] = {3, p->block_size, p->head_size, p->scale_format};
    s.fingerprint = attn_fingerprint64(0, key, sizeof key);
    return attn_give(shape, &s, sizeof s, "shape", error);
}

int indexer_space_needed(attn_indexer_t *indexer, attn_indexer_space_t *space, attn_error_t *error) {
    const attn_indexer_problem_t *p = problem_of(indexer);
    attn_indexer_space_t s = {.struct_size = sizeof s, .alignment = 256};
    s.max_gathered_keys = 40 * p->max_model_len;
    s.gathered_key_bytes = (uint64_t)s.max_gathered_keys * p->head_size;
    /* one row of the longest request goes beyond the budget if it must */
    uint64_t row = (uint64_t)p->max_model_len * 4;
    s.prefill_logits_bytes = p->max_logits_bytes > row ? p->max_logits_bytes : row;
    return attn_give(space, &s, sizeof s, "space", error);
}

/* Requests join a chunk while its keys fit the workspace and its logits the budget; one that is too large
 * alone is cut along its query rows into pieces of budget / (4 * keys), and its keys are gathered once
 * (semantics 9.5). */
int indexer_plan_prefill(attn_indexer_t *indexer, int32_t num_reqs, const int32_t *query_start_loc,
                         const int32_t *seq_lens, attn_indexer_chunk_t *chunks, int32_t capacity,
                         int32_t *num_chunks, attn_error_t *error) {
    const attn_indexer_problem_t *p = problem_of(indexer);
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
                             "request %d has %lld new tokens of %d; expected 0 to %d", r, (long long)rows,
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
