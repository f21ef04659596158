/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata: the batch is checked, the work lists are written to the host mirror and copied to the device with
 * one asynchronous copy. Kernels read counts and the address of the block table there, so a captured forward
 * serves every later batch that is built into the same buffers. */
#include "mla_instance.h"

static batch_limits_t limits_of(const attn_instance_t *in) {
    return (batch_limits_t){.max_seqs = in->limits.max_seqs,
                            .max_tokens = in->limits.max_tokens,
                            .max_model_len = in->problem.max_model_len ? in->problem.max_model_len : 131072,
                            .has_cache = 1,
                            .seq_counts_query = 1,
                            .page_size = in->page_size};
}

static int read_batch(const attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                      attn_batch_t *b, attn_space_t *s, mla_counts *counts, attn_error_t *error) {
    int status = gpu_build_intake(&in->metadata, batch, space, b, s, error);
    const batch_limits_t limits = limits_of(in);
    if (status == ATTN_OK) status = batch_check_lengths(&limits, b, error);
    if (status == ATTN_OK && b->common_prefix_len != 0)
        status =
            attn_fail(error, ATTN_E_UNSUPPORTED, "common_prefix_len",
                      "common_prefix_len is %d; this backend has no cascade: pass 0", b->common_prefix_len);
    memset(counts, 0, sizeof *counts);
    if (status == ATTN_OK) status = gpu_check_block_table(&limits, b, error);
    if (status == ATTN_OK) status = gpu_check_device_lengths(&in->problem, b, error);
    if (status == ATTN_OK && b->num_reqs > 0) {
        counts->block_table = attn_data(b->block_table);
        counts->block_table_stride = b->block_table->strides[0];
        counts->block_table_width = b->block_table->shape[1];
    }
    if (status == ATTN_OK && in->plan.is_bound && b->num_reqs > 0) {
        counts->starts = attn_data(b->query_start_loc);
        counts->lens = attn_data(b->seq_lens);
        counts->num_reqs = b->num_reqs, counts->is_full = in->plan.is_full;
    }
    counts->num_tokens = b->num_actual_tokens;
    return status;
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
    int status = read_batch(in, batch, space, &b, &s, &counts, error);
    if (status != ATTN_OK) return status;
    mla_host_header *h = s.host;
    mla_launch_size *launches = (mla_launch_size *)(void *)(h + 1);
    char *mirror = gpu_begin_build(&in->metadata, &s);
    mla_plan_input plan = in->plan;
    plan.q_start = b.query_start_loc_host, plan.seq_lens = b.seq_lens_host, plan.num_reqs = b.num_reqs;
    mla_border border = {b.num_reqs, b.num_actual_tokens, 0};
    if (in->prefill != NULL) /* the requests behind the border take the multi-head form */
        border = in->backend->prefill->build(
            in, &b, (struct mla_prefill_plan *)(void *)((char *)s.host + mla_prefill_plan_at(in)), mirror);
    plan.num_reqs = border.first_request, counts.num_tokens = border.first_token;
    size_t widen_bytes = 0;
    h->widened = (widened){0, 0, 0, 0, 0};
    if (in->widen_pages > 0 && !(b.flags & ATTN_BATCH_CAPTURE)) /* a copy is part of the launch */
        widen_bytes = in->backend->widen->build(in, &b, &h->widened, mirror);
    plan.border = h->widened.num_pages > 0 ? h->widened.first_token : 0;
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
    h->num_slices = n, h->num_absorbed = border.first_token;
    status = gpu_send(in, &in->metadata, &s, used, stream, error);
    if (status == ATTN_OK)
        status = gpu_send_part(in, &in->metadata, &s, in->prefill_at, border.used, stream, error);
    if (status == ATTN_OK)
        status = gpu_send_part(in, &in->metadata, &s, in->widen_starts_at, widen_bytes, stream, error);
    if (status == ATTN_OK) gpu_finish_build(&in->metadata, &b, &s);
    return status;
}

int mla_update_block_table(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    mla_counts changed;
    int status = read_batch(in, batch, space, &b, &s, &changed, error);
    if (status == ATTN_OK) status = gpu_check_update(&in->metadata, &b, &s, error);
    if (status != ATTN_OK) return status;
    if (gpu_header_of(&s)->num_tokens != b.num_actual_tokens)
        return attn_fail(
            error, ATTN_E_STATE, "metadata",
            "the metadata was built for a batch of %d tokens, this one has %d; call build_metadata "
            "first",
            gpu_header_of(&s)->num_tokens, b.num_actual_tokens);
    mla_counts *counts = (mla_counts *)(void *)gpu_mirror_of(&in->metadata, &s);
    changed.num_slices = counts->num_slices, changed.num_tokens = counts->num_tokens;
    *counts = changed;
    return gpu_send(in, &in->metadata, &s, sizeof changed, stream, error);
}
