/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata: the batch is checked, lengths and work lists are written to the host mirror and copied to the
 * device with one asynchronous copy. Kernels read counts and table addresses there, so a captured forward
 * serves every later batch that is built into the same buffers. */
#include "triton_instance.h"

static batch_limits_t limits_of(const attn_instance_t *in) {
    return (batch_limits_t){.max_seqs = in->limits.seqs,
                            .max_tokens = in->limits.tokens,
                            .max_model_len = in->problem.max_model_len ? in->problem.max_model_len : 131072,
                            .has_cache = in->has_cache,
                            .seq_counts_query = in->problem.role == ATTN_ROLE_DECODER,
                            .max_keys = batch_max_keys(&in->problem),
                            .page_size = in->config.page};
}

static int check_batch(const attn_instance_t *in, const attn_batch_t *b, triton_counts_t *c,
                       attn_error_t *error) {
    const batch_limits_t limits = limits_of(in);
    int status = batch_check_lengths(&limits, b, error);
    if (status == ATTN_OK && b->common_prefix_len != 0)
        status =
            attn_fail(error, ATTN_E_UNSUPPORTED, "common_prefix_len",
                      "common_prefix_len is %d; this backend has no cascade: pass 0", b->common_prefix_len);
    if (status == ATTN_OK) status = gpu_check_block_table(&limits, b, error);
    if (status == ATTN_OK) status = gpu_check_device_lengths(&in->problem, b, error);
    if (status != ATTN_OK) return status;
    c->block_table = NULL;
    c->table_stride = 0;
    if (!in->has_cache || b->num_reqs == 0) return ATTN_OK;
    c->block_table = attn_data(b->block_table);
    c->table_stride = b->block_table->strides[0];
    return ATTN_OK;
}

/* Spans and R-SWA prefixes: the host mirror is copied into the metadata; without one the device tensor is
 * read in place. */
static int read_spans(const attn_instance_t *in, const attn_batch_t *b, const attn_space_t *s,
                      triton_counts_t *c, attn_error_t *error) {
    if (!in->config.spans || b->num_reqs == 0) return ATTN_OK;
    const DLTensor *t = b->mm_prefix_ranges;
    int32_t n;
    int status = batch_check_spans(&in->problem, b, (uint32_t)in->max_spans, &n, error);
    if (status != ATTN_OK) return status;
    c->num_spans = n;
    if (b->mm_prefix_ranges_host != NULL) {
        memcpy(gpu_mirror_of(&in->metadata, s) + in->spans_at, b->mm_prefix_ranges_host,
               (size_t)b->num_reqs * (size_t)n * 8);
        c->spans = (const int32_t *)(void *)((char *)s->metadata + in->spans_at);
        c->span_stride = 2 * n;
    } else if (t != NULL) {
        status = gpu_check_tensor_device(t, "mm_prefix_ranges", error);
        if (status == ATTN_OK && n > 1 && t->strides[1] != 2)
            status = attn_fail(error, ATTN_E_INVALID, "mm_prefix_ranges",
                               "mm_prefix_ranges has a stride of %lld between its pairs; expected 2",
                               (long long)t->strides[1]);
        if (status != ATTN_OK) return status;
        c->spans = attn_data(t);
        c->span_stride = t->strides[0];
    }
    return ATTN_OK;
}

static int read_prefixes(const attn_instance_t *in, const attn_batch_t *b, const attn_space_t *s,
                         triton_counts_t *c, attn_error_t *error) {
    if (!in->config.rswa || b->num_reqs == 0) return ATTN_OK;
    if (b->rswa_prefix_lens_host != NULL) {
        memcpy(gpu_mirror_of(&in->metadata, s) + in->prefix_at, b->rswa_prefix_lens_host,
               (size_t)b->num_reqs * 4);
        c->prefix = (const int32_t *)(void *)((char *)s->metadata + in->prefix_at);
        return ATTN_OK;
    }
    int status = batch_check_list(b->rswa_prefix_lens, "rswa_prefix_lens", b->num_reqs, error);
    if (status == ATTN_OK) status = gpu_check_tensor_device(b->rswa_prefix_lens, "rswa_prefix_lens", error);
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

int triton_copy(const attn_instance_t *in, void *to, const void *from, size_t bytes, void *stream,
                attn_error_t *error) {
    int status = triton_driver_enter(&in->driver, error);
    if (status != ATTN_OK) return status;
    int e = in->driver.copy_to_device((unsigned long long)(uintptr_t)to, from, bytes, stream);
    triton_driver_leave(&in->driver);
    return e == 0 ? ATTN_OK : triton_driver_fail(&in->driver, e, "copying the metadata", error);
}

static int longest_query(const attn_batch_t *b) {
    int longest = b->max_query_len;
    for (int32_t r = 0; r < b->num_reqs; r++) {
        const int q = b->query_start_loc_host[r + 1] - b->query_start_loc_host[r];
        longest = q > longest ? q : longest;
    }
    return longest;
}

/* Launch sizes: what the batch needs, or for capture the most that so many requests can need; surplus CTAs
 * return. */
static void set_grids(const attn_instance_t *in, const attn_batch_t *b, const triton_plan_t *plan,
                      triton_host_header_t *h) {
    const triton_plan_limits_t *l = &in->limits;
    int decode_tokens = plan->max_decode_tokens;
    h->grid_items = plan->num_items;
    h->grid_splits = plan->num_splits;
    h->grid_tiles = plan->num_tiles;
    h->decode_tokens = decode_tokens;
    if ((b->flags & ATTN_BATCH_CAPTURE) == 0) return;
    const int longest = longest_query(b);
    int has_decode = in->plan_input.decode_tokens > 0;
    h->decode_tokens = longest < in->plan_input.decode_tokens ? longest : in->plan_input.decode_tokens;
    h->decode_tokens = h->decode_tokens < 1 ? 1 : h->decode_tokens;
    h->grid_items = !has_decode ? 0 : b->num_reqs + l->parts < l->items ? b->num_reqs + l->parts : l->items;
    h->grid_splits = !has_decode ? 0 : b->num_reqs < l->splits ? b->num_reqs : l->splits;
    h->grid_tiles = longest > in->plan_input.decode_tokens ? l->whole_tiles : 0;
}

/* By the batch; of captured launches, which other batches are for, by its longest request. */
static int is_wide(const attn_instance_t *in, const attn_batch_t *b) {
    int32_t starts[2] = {0, 0};
    const int32_t one = 1;
    if ((b->flags & ATTN_BATCH_CAPTURE) == 0)
        return triton_plan_is_wide(&in->plan_input, in->wide.decode_rows, b->query_start_loc_host,
                                   b->seq_lens_host, b->num_reqs);
    starts[1] = longest_query(b);
    if (starts[1] > in->plan_input.decode_tokens) starts[1] = in->plan_input.decode_tokens;
    return triton_plan_is_wide(&in->plan_input, in->wide.decode_rows, starts, &one, 1);
}

int triton_build_metadata(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    int status = gpu_build_intake(&in->metadata, batch, space, &b, &s, error);
    if (status != ATTN_OK) return status;
    triton_host_header_t *h = s.host;
    char *mirror = gpu_begin_build(&in->metadata, &s);
    triton_counts_t counts;
    memset(&counts, 0, sizeof counts);
    status = check_batch(in, &b, &counts, error);
    if (status == ATTN_OK) status = read_spans(in, &b, &s, &counts, error);
    if (status == ATTN_OK) status = read_prefixes(in, &b, &s, &counts, error);
    if (status == ATTN_OK) status = copy_causal(in, &b, (int32_t *)(void *)(mirror + in->causal_at), error);
    if (status != ATTN_OK) return status;
    memcpy(mirror + in->q_start_at, b.query_start_loc_host, ((size_t)b.num_reqs + 1) * 4);
    const batch_limits_t limits = limits_of(in);
    const int32_t *key_start = batch_key_starts(&limits, &b);
    const int on_device = in->config.device_lengths && b.num_reqs > 0;
    h->device_starts = on_device ? attn_data(b.query_start_loc) : NULL;
    h->device_lens = on_device ? attn_data(b.seq_lens) : NULL;
    h->num_key_rows = in->has_cache ? 0 : key_start[b.num_reqs];
    if (limits.max_keys > 0) memcpy(mirror + in->k_start_at, key_start, (size_t)b.num_reqs * 4);
    if (b.num_reqs > 0) memcpy(mirror + in->seq_lens_at, b.seq_lens_host, (size_t)b.num_reqs * 4);
    triton_plan_t plan = {.items = (triton_item_t *)(void *)(mirror + in->items_at),
                          .splits = (triton_split_t *)(void *)(mirror + in->splits_at),
                          .tiles = (triton_tile_t *)(void *)(mirror + in->tiles_at),
                          .tile_keys = in->tile_keys,
                          .scratch = in->scratch,
                          .cuts = in->cuts};
    triton_plan_input_t input = in->plan_input;
    h->is_wide = in->decode_wide != NULL && is_wide(in, &b);
    if (h->is_wide)
        input.decode_rows = in->wide.decode_rows, input.slots = in->driver.num_sms * in->wide.decode_ctas;
    if (b.flags & ATTN_BATCH_CAPTURE) input.cut_slots = 0; /* the rows of a slot are part of the launch */
    triton_plan_build(&input, &in->limits, b.query_start_loc_host, b.seq_lens_host, b.num_reqs, &plan);
    h->cut_rows = plan.cut_rows;
    counts.num_items = plan.num_items;
    counts.num_splits = plan.num_splits;
    counts.num_tiles = plan.num_tiles;
    counts.num_tokens = b.num_actual_tokens;
    counts.piece_keys = plan.piece_keys;
    memcpy(mirror, &counts, sizeof counts);
    memset(mirror + in->tickets_at, 0, triton_tickets_bytes(in));
    set_grids(in, &b, &plan, h);
    status = gpu_send(in, &in->metadata, &s, in->tiles_at + (size_t)plan.num_tiles * sizeof(triton_tile_t),
                      stream, error);
    if (status == ATTN_OK) gpu_finish_build(&in->metadata, &b, &s);
    return status;
}

int triton_update_block_table(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                              void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    int status = gpu_build_intake(&in->metadata, batch, space, &b, &s, error);
    if (status != ATTN_OK) return status;
    char *mirror = gpu_mirror_of(&in->metadata, &s);
    triton_counts_t changed;
    memcpy(&changed, mirror, sizeof changed);
    status = check_batch(in, &b, &changed, error);
    if (status == ATTN_OK) status = gpu_check_update(&in->metadata, &b, &s, error);
    if (status != ATTN_OK) return status;
    memcpy(mirror, &changed, sizeof changed);
    return gpu_send(in, &in->metadata, &s, sizeof changed, stream, error);
}
