/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata: the batch is checked, the work lists are written to the host mirror and copied to the device with one
 * asynchronous copy. Kernels read counts and the address of the block table there, so a captured forward serves every
 * later batch that is built into the same buffers. */
#include "mla_prefill.h"

#include <cuda_runtime_api.h>

static int check_lengths(const attn_instance_t *in, const attn_batch_t *b, attn_error_t *error) {
    if (b->num_reqs < 0 || b->num_reqs > in->limits.max_seqs)
        return attn_fail(error, ATTN_E_INVALID, "num_reqs",
                         "num_reqs is %d; 0 to %d (max_num_seqs) were wanted", b->num_reqs,
                         in->limits.max_seqs);
    if (b->num_actual_tokens < 0 || b->num_actual_tokens > in->limits.max_tokens)
        return attn_fail(error, ATTN_E_INVALID, "num_actual_tokens",
                         "num_actual_tokens is %d; 0 to %d (max_num_batched_tokens) were wanted",
                         b->num_actual_tokens, in->limits.max_tokens);
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
        if (seq < query)
            return attn_fail(error, ATTN_E_INVALID, "seq_lens",
                             "seq_lens[%d] is %lld, less than its %lld query tokens; it counts them", r,
                             (long long)seq, (long long)query);
    }
    return ATTN_OK;
}

static int take_block_table(const attn_instance_t *in, const attn_batch_t *b, mla_counts *c,
                            attn_error_t *error) {
    c->block_table = NULL;
    c->block_table_stride = c->block_table_width = 0;
    if (b->num_reqs == 0) return ATTN_OK;
    int status = attn_check_tensor(b->block_table, "block_table", ATTN_DTYPE_INT32, 2, NULL, error);
    if (status == ATTN_OK) status = mla_check_device(b->block_table, "block_table", error);
    if (status != ATTN_OK) return status;
    if (b->block_table->shape[0] < b->num_reqs)
        return attn_fail(error, ATTN_E_INVALID, "block_table", "block_table has %lld rows for %d requests",
                         (long long)b->block_table->shape[0], b->num_reqs);
    for (int32_t r = 0; r < b->num_reqs; r++) {
        int64_t blocks = ((int64_t)b->seq_lens_host[r] + in->page_size - 1) / in->page_size;
        if (b->query_start_loc_host[r + 1] > b->query_start_loc_host[r] && blocks > b->block_table->shape[1])
            return attn_fail(error, ATTN_E_INVALID, "block_table",
                             "block_table has %lld columns; seq_lens[%d] = %d needs %lld blocks of %d tokens",
                             (long long)b->block_table->shape[1], r, b->seq_lens_host[r], (long long)blocks,
                             in->page_size);
    }
    c->block_table = attn_data(b->block_table);
    c->block_table_stride = b->block_table->strides[0];
    c->block_table_width = b->block_table->shape[1];
    return ATTN_OK;
}

static int check_space(const attn_instance_t *in, const attn_space_t *s, attn_error_t *error) {
    if (s->metadata == NULL || s->metadata_bytes < in->metadata_bytes)
        return attn_fail(error, ATTN_E_SPACE, "metadata",
                         "the metadata buffer has %llu bytes; space_needed says %llu",
                         (unsigned long long)(s->metadata ? s->metadata_bytes : 0),
                         (unsigned long long)in->metadata_bytes);
    if (s->host == NULL || s->host_bytes < mla_mirror_at(in) + in->metadata_bytes)
        return attn_fail(error, ATTN_E_SPACE, "host",
                         "the host buffer has %llu bytes; space_needed says %llu",
                         (unsigned long long)(s->host ? s->host_bytes : 0),
                         (unsigned long long)(mla_mirror_at(in) + in->metadata_bytes));
    return ATTN_OK;
}

static int take_batch(const attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                      attn_batch_t *b, attn_space_t *s, mla_counts *counts, attn_error_t *error) {
    int status = attn_intake(b, sizeof *b, batch, "batch", error);
    if (status == ATTN_OK) status = attn_intake(s, sizeof *s, space, "space", error);
    if (status == ATTN_OK) status = check_lengths(in, b, error);
    if (status == ATTN_OK) status = check_space(in, s, error);
    memset(counts, 0, sizeof *counts);
    if (status == ATTN_OK) status = take_block_table(in, b, counts, error);
    counts->num_tokens = b->num_actual_tokens;
    return status;
}

/* Copies `bytes` of the mirror and `more` of its prefill part to the device; the host buffer is free again when the stream
 * has passed here. */
static int send(const attn_instance_t *in, const attn_space_t *s, size_t bytes, size_t more, void *stream,
                attn_error_t *error) {
    mla_device_guard guard;
    const char *mirror = (const char *)s->host + mla_mirror_at(in);
    int status = mla_enter_device(in, &guard, error);
    if (status != ATTN_OK) return status;
    cudaError_t e =
        cudaMemcpyAsync(s->metadata, mirror, bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream);
    if (e == cudaSuccess && more > 0) {
        const size_t at = in->prefill->metadata_at;
        e = cudaMemcpyAsync((char *)s->metadata + at, mirror + at, more, cudaMemcpyHostToDevice,
                            (cudaStream_t)stream);
    }
    mla_leave_device(&guard);
    return e == cudaSuccess ? ATTN_OK : mla_fail_cuda(error, (int)e, "copying the metadata");
}

/* Launch sizes of slice i that serve every batch of at most these tokens and requests. */
static mla_launch_size worst_case(const attn_instance_t *in, const attn_batch_t *b, int32_t i) {
    int64_t tokens = (int64_t)b->num_actual_tokens - (int64_t)i * in->plan.slice_tokens;
    tokens = tokens < in->plan.slice_tokens ? tokens : in->plan.slice_tokens;
    int64_t segments = in->plan.topk || tokens < b->num_reqs ? tokens : b->num_reqs;
    int64_t tiles = tokens * in->heads / in->plan.tile_rows + segments, slots = in->limits.max_slots;
    return (mla_launch_size){(int32_t)(tiles + slots), (int32_t)(tiles < slots / 2 ? tiles : slots / 2)};
}

int mla_build_metadata(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    mla_counts counts;
    int status = take_batch(in, batch, space, &b, &s, &counts, error);
    if (status != ATTN_OK) return status;
    mla_host_header *h = s.host;
    mla_launch_size *launches = (mla_launch_size *)(void *)(h + 1);
    char *mirror = (char *)s.host + mla_mirror_at(in);
    h->magic = 0; /* until everything is in place */
    mla_plan_input plan = in->plan;
    plan.q_start = b.query_start_loc_host, plan.seq_lens = b.seq_lens_host, plan.num_reqs = b.num_reqs;
    int32_t num_absorbed = b.num_actual_tokens;
    size_t more = 0;
    if (in->prefill != NULL) { /* the requests behind the border take the multi-head form */
        mla_prefill_plan *prefill = (mla_prefill_plan *)(void *)((char *)s.host + mla_prefill_plan_at(in));
        mla_backend_prefill->build(in, &b, prefill, mirror, &more);
        plan.num_reqs = prefill->first_request, num_absorbed = prefill->first_token;
    }
    counts.num_tokens = num_absorbed;
    mla_slice *slices = (mla_slice *)(void *)(mirror + in->slices_at);
    /* a slice that a captured forward launches and this batch lacks must be empty, not old */
    memset(slices, 0, in->items_at - in->slices_at);
    int n = mla_plan_build(&plan, &in->limits, slices, (mla_item *)(void *)(mirror + in->items_at),
                           (mla_split *)(void *)(mirror + in->splits_at),
                           (int32_t *)(void *)(mirror + in->parts_at));
    if (n < 0)
        return attn_fail(error, ATTN_E_INTERNAL, "batch",
                         "the work lists of this batch exceed their capacity");
    counts.num_slices = n;
    memcpy(mirror, &counts, sizeof counts);
    size_t used = in->items_at;
    for (int i = 0; i < n; i++) {
        launches[i] = b.flags & ATTN_BATCH_CAPTURE
                          ? worst_case(in, &b, i)
                          : (mla_launch_size){slices[i].num_items, slices[i].num_splits};
        used = in->splits_at + (size_t)(slices[i].first_split + slices[i].num_splits) * sizeof(mla_split);
    }
    h->num_reqs = b.num_reqs, h->num_tokens = b.num_actual_tokens, h->num_slices = n;
    h->num_absorbed = num_absorbed;
    status = send(in, &s, used, more, stream, error);
    if (status == ATTN_OK) h->magic = MLA_MAGIC;
    return status;
}

int mla_update_block_table(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    mla_counts changed;
    int status = take_batch(in, batch, space, &b, &s, &changed, error);
    if (status != ATTN_OK) return status;
    const mla_host_header *h = s.host;
    if (h->magic != MLA_MAGIC || h->num_reqs != b.num_reqs || h->num_tokens != b.num_actual_tokens)
        return attn_fail(error, ATTN_E_STATE, "metadata",
                         "the metadata was not built for this batch; call build_metadata first");
    mla_counts *counts = (mla_counts *)(void *)((char *)s.host + mla_mirror_at(in));
    changed.num_slices = counts->num_slices, changed.num_tokens = counts->num_tokens;
    *counts = changed;
    return send(in, &s, sizeof changed, 0, stream, error);
}
