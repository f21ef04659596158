/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_chunked.c: chunked local attention by virtual requests. Each request is cut where its positions cross
 * a chunk border; each piece sees the keys of its own chunk only and is causal in it (semantics 6.7).
 */
#include "base/arith.h"
#include "plan/check_batch.h"

#include <attn/attn_plan.h>

/* One request cut into pieces: `count` pieces, the first with `first` new tokens, the last with `last`
 * keys. */
struct pieces {
    int64_t first, last, count;
};

static struct pieces cut(int64_t query_len, int64_t seq_len, int64_t chunk) {
    struct pieces p;
    p.first = attni_min64(chunk - (seq_len - query_len) % chunk, query_len);
    p.last = seq_len % chunk != 0 ? seq_len % chunk : chunk;
    if (seq_len == 0) p.last = 0; /* a padding request has no keys, not a chunk of them */
    p.count = 1 + attni_cdiv(query_len - p.first, chunk);
    return p;
}

static int check_request_lists(const int32_t *query_start_loc, const int32_t *seq_lens, int32_t num_reqs,
                               int32_t chunk_size, attn_error_t *error) {
    ATTNI_AT_LEAST(chunk_size, 1, "chunk_size", error);
    int code = attni_check_starts(query_start_loc, num_reqs, error);
    return code != ATTN_OK ? code : attni_check_lens(query_start_loc, seq_lens, num_reqs, error);
}

int attn_plan_chunked_local_size(const int32_t *query_start_loc, const int32_t *seq_lens, int32_t num_reqs,
                                 int32_t chunk_size, int32_t *num_virtual, attn_error_t *error) {
    ATTNI_NEED(num_virtual, "num_virtual", error);
    int code = check_request_lists(query_start_loc, seq_lens, num_reqs, chunk_size, error);
    if (code != ATTN_OK) return code;
    int64_t total = 0;
    for (int32_t r = 0; r < num_reqs; r++)
        total += cut(query_start_loc[r + 1] - query_start_loc[r], seq_lens[r], chunk_size).count;
    if (total > INT32_MAX - 1)
        return attn_fail(error, ATTN_E_INVALID, "chunk_size",
                         "chunk_size %d makes %lld virtual requests; that is more than 32-bit counts hold",
                         (int)chunk_size, (long long)total);
    *num_virtual = (int32_t)total;
    return ATTN_OK;
}

int attn_plan_chunked_local(const int32_t *query_start_loc, const int32_t *seq_lens, int32_t num_reqs,
                            int32_t chunk_size, int32_t block_size, int32_t num_virtual,
                            int32_t *query_start_loc_out, int32_t *seq_lens_out, int32_t *request_out,
                            int32_t *first_block_out, attn_error_t *error) {
    ATTNI_AT_LEAST(block_size, 1, "block_size", error);
    int32_t needed;
    int code = attn_plan_chunked_local_size(query_start_loc, seq_lens, num_reqs, chunk_size, &needed, error);
    if (code != ATTN_OK) return code;
    if (chunk_size % block_size != 0)
        return attn_fail(error, ATTN_E_INVALID, "chunk_size",
                         "chunk_size %d is not a multiple of block_size %d; a chunk must begin with a block",
                         (int)chunk_size, (int)block_size);
    if (num_virtual != needed)
        return attn_fail(error, ATTN_E_INVALID, "num_virtual",
                         "num_virtual is %d; this batch makes %d (attn_plan_chunked_local_size)",
                         (int)num_virtual, (int)needed);
    ATTNI_NEED(query_start_loc_out, "query_start_loc_out", error);
    if (needed > 0) {
        ATTNI_NEED(seq_lens_out, "seq_lens_out", error);
        ATTNI_NEED(request_out, "request_out", error);
        ATTNI_NEED(first_block_out, "first_block_out", error);
    }
    int64_t chunk = chunk_size;
    int32_t v = 0;
    query_start_loc_out[0] = 0;
    for (int32_t r = 0; r < num_reqs; r++) {
        int64_t query_len = query_start_loc[r + 1] - query_start_loc[r], seq_len = seq_lens[r];
        struct pieces p = cut(query_len, seq_len, chunk);
        for (int64_t j = 0; j < p.count; j++, v++) {
            int64_t len = j == 0 ? p.first : attni_min64(query_len - p.first - chunk * (j - 1), chunk);
            int64_t start = seq_len - (p.last + (p.count - 1 - j) * chunk);
            query_start_loc_out[v + 1] = query_start_loc_out[v] + (int32_t)len;
            seq_lens_out[v] = (int32_t)(j == p.count - 1 ? p.last : chunk);
            request_out[v] = r;
            first_block_out[v] = (int32_t)(start / block_size);
        }
    }
    return ATTN_OK;
}

int attn_plan_chunked_local_table(const int32_t *block_table, int64_t table_stride, int64_t table_width,
                                  const int32_t *request, const int32_t *first_block, int32_t num_virtual,
                                  int32_t chunk_blocks, int32_t *virtual_table, attn_error_t *error) {
    ATTNI_AT_LEAST(num_virtual, 0, "num_virtual", error);
    ATTNI_AT_LEAST(chunk_blocks, 1, "chunk_blocks", error);
    if (num_virtual == 0) return ATTN_OK;
    ATTNI_AT_LEAST(table_width, 1, "table_width", error);
    ATTNI_AT_LEAST(table_stride, table_width, "table_stride", error);
    ATTNI_NEED(block_table, "block_table", error);
    ATTNI_NEED(request, "request", error);
    ATTNI_NEED(first_block, "first_block", error);
    ATTNI_NEED(virtual_table, "virtual_table", error);
    for (int32_t v = 0; v < num_virtual; v++) {
        ATTNI_AT_LEAST(request[v], 0, "request", error);
        ATTNI_AT_LEAST(first_block[v], 0, "first_block", error);
        const int32_t *row = block_table + request[v] * table_stride;
        for (int64_t c = 0; c < chunk_blocks; c++)
            virtual_table[(int64_t)v * chunk_blocks + c] =
                row[attni_min64(first_block[v] + c, table_width - 1)];
    }
    return ATTN_OK;
}
