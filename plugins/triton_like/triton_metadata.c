/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata: the batch is checked, lengths and work lists are written to the host mirror and copied to the device with one
 * asynchronous copy. Kernels read counts and table addresses there, so a captured forward serves every later batch that is
 * built into the same buffers. */
#include "triton_instance.h"

static int check_lengths(const attn_instance_t *in, const attn_batch_t *b, attn_error_t *error) {
    if (b->num_reqs < 0 || b->num_reqs > in->limits.seqs)
        return attn_fail(error, ATTN_E_INVALID, "num_reqs",
                         "num_reqs is %d; 0 to %d (max_num_seqs) were wanted", b->num_reqs, in->limits.seqs);
    if (b->num_actual_tokens < 0 || b->num_actual_tokens > in->limits.tokens)
        return attn_fail(error, ATTN_E_INVALID, "num_actual_tokens",
                         "num_actual_tokens is %d; 0 to %d (max_num_batched_tokens) were wanted",
                         b->num_actual_tokens, in->limits.tokens);
    if (b->common_prefix_len != 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "common_prefix_len",
                         "common_prefix_len is %d; this backend has no cascade: pass 0",
                         b->common_prefix_len);
    if (b->query_start_loc_host == NULL || (b->seq_lens_host == NULL && b->num_reqs > 0))
        return attn_fail(error, ATTN_E_INVALID,
                         b->query_start_loc_host == NULL ? "query_start_loc" : "seq_lens",
                         "query_start_loc_host and seq_lens_host are required");
    const int32_t *start = b->query_start_loc_host;
    int64_t max_len = in->problem.max_model_len ? in->problem.max_model_len : 131072;
    if (start[0] != 0 || start[b->num_reqs] != b->num_actual_tokens)
        return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                         "query_start_loc goes from %d to %d; 0 to num_actual_tokens (%d) was wanted",
                         start[0], start[b->num_reqs], b->num_actual_tokens);
    for (int32_t r = 0; r < b->num_reqs; r++) {
        int64_t query = (int64_t)start[r + 1] - start[r], seq = b->seq_lens_host[r];
        if (query < 0)
            return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                             "query_start_loc falls from %d to %d at request %d; it must not decrease",
                             start[r], start[r + 1], r);
        if (seq < 0 || seq > max_len)
            return attn_fail(error, ATTN_E_INVALID, "seq_lens",
                             "seq_lens[%d] is %lld; 0 to %lld (max_model_len) were wanted", r, (long long)seq,
                             (long long)max_len);
        if (in->problem.role == ATTN_ROLE_DECODER && seq < query)
            return attn_fail(error, ATTN_E_INVALID, "seq_lens",
                             "seq_lens[%d] is %lld, less than its %lld query tokens; it counts them", r,
                             (long long)seq, (long long)query);
        if (!in->has_cache && seq != query)
            return attn_fail(
                error, ATTN_E_INVALID, "seq_lens",
                "seq_lens[%d] is %lld but the request has %lld tokens; without a cache they are equal", r,
                (long long)seq, (long long)query);
    }
    return ATTN_OK;
}

static int take_block_table(const attn_instance_t *in, const attn_batch_t *b, triton_counts_t *c,
                            attn_error_t *error) {
    c->block_table = NULL;
    c->table_stride = 0;
    if (!in->has_cache || b->num_reqs == 0) return ATTN_OK;
    int status = attn_check_tensor(b->block_table, "block_table", ATTN_DTYPE_INT32, 2, NULL, error);
    if (status == ATTN_OK) status = triton_check_on_device(b->block_table, "block_table", error);
    if (status != ATTN_OK) return status;
    if (b->block_table->shape[0] < b->num_reqs)
        return attn_fail(error, ATTN_E_INVALID, "block_table", "block_table has %lld rows for %d requests",
                         (long long)b->block_table->shape[0], b->num_reqs);
    for (int32_t r = 0; r < b->num_reqs; r++) {
        int64_t blocks = ((int64_t)b->seq_lens_host[r] + in->config.page - 1) / in->config.page;
        if (b->query_start_loc_host[r + 1] > b->query_start_loc_host[r] && blocks > b->block_table->shape[1])
            return attn_fail(error, ATTN_E_INVALID, "block_table",
                             "block_table has %lld columns; seq_lens[%d] = %d needs %lld blocks of %d tokens",
                             (long long)b->block_table->shape[1], r, b->seq_lens_host[r], (long long)blocks,
                             in->config.page);
    }
    c->block_table = attn_data(b->block_table);
    c->table_stride = b->block_table->strides[0];
    return ATTN_OK;
}

/* Spans and R-SWA prefixes: the host mirror is copied into the metadata; without one the device tensor is read in place. */
static int take_spans(const attn_instance_t *in, const attn_batch_t *b, const attn_space_t *s,
                      triton_counts_t *c, attn_error_t *error) {
    if (!in->config.spans || b->num_reqs == 0) return ATTN_OK;
    int32_t *mirror = (int32_t *)(void *)((char *)s->host + TRITON_MIRROR_AT + in->spans_at);
    int64_t n = b->mm_prefix_ranges_host != NULL ? b->num_mm_ranges : 0;
    if (b->mm_prefix_ranges_host == NULL &&
        b->mm_prefix_ranges == NULL) /* no request has one (semantics 2.7) */
        return ATTN_OK;
    if (b->mm_prefix_ranges_host == NULL) {
        const int64_t shape[3] = {-1, -1, 2};
        int status =
            attn_check_tensor(b->mm_prefix_ranges, "mm_prefix_ranges", ATTN_DTYPE_INT32, 3, shape, error);
        if (status == ATTN_OK)
            status = triton_check_on_device(b->mm_prefix_ranges, "mm_prefix_ranges", error);
        if (status != ATTN_OK) return status;
        n = b->mm_prefix_ranges->shape[1];
        if (b->mm_prefix_ranges->shape[0] < b->num_reqs || (n > 1 && b->mm_prefix_ranges->strides[1] != 2))
            return attn_fail(error, ATTN_E_INVALID, "mm_prefix_ranges",
                             "mm_prefix_ranges has %lld rows for %d requests, or gaps between its pairs",
                             (long long)b->mm_prefix_ranges->shape[0], b->num_reqs);
    }
    if (n < 0 || n > in->max_spans)
        return attn_fail(error, ATTN_E_INVALID, "mm_prefix_ranges",
                         "%lld spans per request; 0 to %d (max_mm_ranges) were wanted", (long long)n,
                         in->max_spans);
    c->num_spans = (int32_t)n;
    if (b->mm_prefix_ranges_host != NULL) {
        memcpy(mirror, b->mm_prefix_ranges_host, (size_t)b->num_reqs * (size_t)n * 8);
        c->spans = (const int32_t *)(void *)((char *)s->metadata + in->spans_at);
        c->span_stride = 2 * n;
    } else {
        c->spans = attn_data(b->mm_prefix_ranges);
        c->span_stride = b->mm_prefix_ranges->strides[0];
    }
    return ATTN_OK;
}

static int take_prefixes(const attn_instance_t *in, const attn_batch_t *b, const attn_space_t *s,
                         triton_counts_t *c, attn_error_t *error) {
    if (!in->config.rswa || b->num_reqs == 0) return ATTN_OK;
    if (b->rswa_prefix_lens_host != NULL) {
        memcpy((char *)s->host + TRITON_MIRROR_AT + in->prefix_at, b->rswa_prefix_lens_host,
               (size_t)b->num_reqs * 4);
        c->prefix = (const int32_t *)(void *)((char *)s->metadata + in->prefix_at);
        return ATTN_OK;
    }
    int status = attn_check_tensor(b->rswa_prefix_lens, "rswa_prefix_lens", ATTN_DTYPE_INT32, 1, NULL, error);
    if (status == ATTN_OK) status = triton_check_on_device(b->rswa_prefix_lens, "rswa_prefix_lens", error);
    if (status == ATTN_OK && b->rswa_prefix_lens->shape[0] < b->num_reqs)
        status = attn_fail(error, ATTN_E_INVALID, "rswa_prefix_lens",
                           "rswa_prefix_lens has %lld entries for %d requests",
                           (long long)b->rswa_prefix_lens->shape[0], b->num_reqs);
    if (status == ATTN_OK) c->prefix = attn_data(b->rswa_prefix_lens);
    return status;
}

static int copy_causal(const attn_instance_t *in, const attn_batch_t *b, int32_t *out, attn_error_t *error) {
    if (in->config.causal == 2 && b->causal_host == NULL && b->num_reqs > 0)
        return attn_fail(error, ATTN_E_INVALID, "causal", "causal_host is required with mask per_request");
    for (int32_t r = 0; r < b->num_reqs; r++)
        out[r] = in->config.causal == 2 ? b->causal_host[r] != 0 : in->config.causal;
    return ATTN_OK;
}

static int check_space(const attn_instance_t *in, const attn_space_t *s, attn_error_t *error) {
    if (s->metadata == NULL || s->metadata_bytes < in->metadata_bytes)
        return attn_fail(error, ATTN_E_SPACE, "metadata",
                         "the metadata buffer has %llu bytes; space_needed says %llu",
                         (unsigned long long)(s->metadata ? s->metadata_bytes : 0),
                         (unsigned long long)in->metadata_bytes);
    if (s->host == NULL || s->host_bytes < TRITON_MIRROR_AT + in->metadata_bytes)
        return attn_fail(error, ATTN_E_SPACE, "host",
                         "the host buffer has %llu bytes; space_needed says %llu",
                         (unsigned long long)(s->host ? s->host_bytes : 0),
                         (unsigned long long)(TRITON_MIRROR_AT + in->metadata_bytes));
    return ATTN_OK;
}

/* Copies `bytes` of the mirror to the device; the host buffer is free again when the stream has passed here. */
static int send(const attn_instance_t *in, const attn_space_t *s, size_t bytes, void *stream,
                attn_error_t *error) {
    int status = triton_driver_enter(&in->driver, error);
    if (status != ATTN_OK) return status;
    int e = in->driver.copy_to_device((unsigned long long)(uintptr_t)s->metadata,
                                      (char *)s->host + TRITON_MIRROR_AT, bytes, stream);
    triton_driver_leave(&in->driver);
    return e == 0 ? ATTN_OK : triton_driver_fail(&in->driver, e, "copying the metadata", error);
}

static int intake(const attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                  attn_batch_t *b, attn_space_t *s, attn_error_t *error) {
    int status = attn_intake(b, sizeof *b, batch, "batch", error);
    if (status == ATTN_OK) status = attn_intake(s, sizeof *s, space, "space", error);
    return status == ATTN_OK ? check_space(in, s, error) : status;
}

/* Launch sizes: what the batch needs, or for capture the most that so many requests can need; surplus CTAs return. */
static void set_grids(const attn_instance_t *in, const attn_batch_t *b, const triton_plan_t *plan,
                      triton_host_header_t *h) {
    const triton_plan_limits_t *l = &in->limits;
    int longest = b->max_query_len, decode_tokens = plan->max_decode_tokens;
    h->grid_items = plan->num_items;
    h->grid_splits = plan->num_splits;
    h->grid_tiles = plan->num_tiles;
    h->decode_tokens = decode_tokens;
    if ((b->flags & ATTN_BATCH_CAPTURE) == 0) return;
    for (int32_t r = 0; r < b->num_reqs; r++) {
        int q = b->query_start_loc_host[r + 1] - b->query_start_loc_host[r];
        longest = q > longest ? q : longest;
    }
    int has_decode = in->plan_input.decode_tokens > 0;
    h->decode_tokens = longest < in->plan_input.decode_tokens ? longest : in->plan_input.decode_tokens;
    h->decode_tokens = h->decode_tokens < 1 ? 1 : h->decode_tokens;
    h->grid_items = !has_decode ? 0 : b->num_reqs + l->parts < l->items ? b->num_reqs + l->parts : l->items;
    h->grid_splits = !has_decode ? 0 : b->num_reqs < l->splits ? b->num_reqs : l->splits;
    h->grid_tiles = longest > in->plan_input.decode_tokens ? l->tiles : 0;
}

int triton_build_metadata(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    int status = intake(in, batch, space, &b, &s, error);
    if (status != ATTN_OK) return status;
    triton_host_header_t *h = s.host;
    char *mirror = (char *)s.host + TRITON_MIRROR_AT;
    h->magic = 0; /* until everything is in place */
    triton_counts_t counts;
    memset(&counts, 0, sizeof counts);
    status = check_lengths(in, &b, error);
    if (status == ATTN_OK) status = take_block_table(in, &b, &counts, error);
    if (status == ATTN_OK) status = take_spans(in, &b, &s, &counts, error);
    if (status == ATTN_OK) status = take_prefixes(in, &b, &s, &counts, error);
    if (status == ATTN_OK) status = copy_causal(in, &b, (int32_t *)(void *)(mirror + in->causal_at), error);
    if (status != ATTN_OK) return status;
    memcpy(mirror + in->q_start_at, b.query_start_loc_host, ((size_t)b.num_reqs + 1) * 4);
    if (b.num_reqs > 0) memcpy(mirror + in->seq_lens_at, b.seq_lens_host, (size_t)b.num_reqs * 4);
    triton_plan_t plan = {.items = (triton_item_t *)(void *)(mirror + in->items_at),
                          .splits = (triton_split_t *)(void *)(mirror + in->splits_at),
                          .tiles = (triton_tile_t *)(void *)(mirror + in->tiles_at),
                          .tile_keys = in->tile_keys,
                          .scratch = in->scratch};
    triton_plan_build(&in->plan_input, &in->limits, b.query_start_loc_host, b.seq_lens_host, b.num_reqs,
                      &plan);
    counts.num_items = plan.num_items;
    counts.num_splits = plan.num_splits;
    counts.num_tiles = plan.num_tiles;
    counts.num_tokens = b.num_actual_tokens;
    memcpy(mirror, &counts, sizeof counts);
    memset(mirror + in->tickets_at, 0, triton_tickets_bytes(in));
    h->num_reqs = b.num_reqs;
    h->num_tokens = b.num_actual_tokens;
    set_grids(in, &b, &plan, h);
    status = send(in, &s, in->tiles_at + (size_t)plan.num_tiles * sizeof(triton_tile_t), stream, error);
    if (status == ATTN_OK) h->magic = TRITON_MAGIC;
    return status;
}

int triton_update_block_table(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                              void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    int status = intake(in, batch, space, &b, &s, error);
    if (status == ATTN_OK) status = check_lengths(in, &b, error);
    if (status != ATTN_OK) return status;
    triton_host_header_t *h = s.host;
    if (h->magic != TRITON_MAGIC || h->num_reqs != b.num_reqs)
        return attn_fail(error, ATTN_E_STATE, "metadata",
                         "the metadata was not built for this batch; call build_metadata first");
    triton_counts_t changed;
    memcpy(&changed, (char *)s.host + TRITON_MIRROR_AT, sizeof changed);
    status = take_block_table(in, &b, &changed, error);
    if (status != ATTN_OK) return status;
    memcpy((char *)s.host + TRITON_MIRROR_AT, &changed, sizeof changed);
    return send(in, &s, sizeof changed, stream, error);
}
