/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a batch and turns it into the plan that forward walks; everything forward needs but the tensors. */
#include "../common/batch_mask.h"
#include "cpu_instance.h"
#include "cpu_mask.h"

static batch_limits_t limits_of(const attn_instance_t *in) {
    return (batch_limits_t){.max_seqs = in->limits.max_seqs,
                            .max_tokens = in->limits.max_tokens,
                            .max_model_len = in->max_len,
                            .has_cache = in->has_cache,
                            .seq_counts_query = in->p.role == ATTN_ROLE_DECODER || in->is_latent,
                            .max_keys = batch_max_keys(&in->p),
                            .page_size = (int32_t)in->block_size};
}

/* The column of checks that everything later relies on, and the address of the table with the largest block
 * of it that may be read, for forward's check. */
static int check_batch(const attn_instance_t *in, const attn_batch_t *b, struct cpu_metadata *m,
                       attn_error_t *error) {
    const batch_limits_t limits = limits_of(in);
    int status = batch_check_lengths(&limits, b, error);
    if (status == ATTN_OK)
        status = batch_check_host_table(&limits, b, in->p.num_blocks, &m->max_block, error);
    if (status != ATTN_OK) return status;
    const int has_table = in->has_cache && b->num_reqs > 0;
    m->block_table = has_table ? attn_data(b->block_table) : NULL;
    m->block_table_row = has_table ? b->block_table->strides[0] : 0;
    m->block_table_width = has_table ? b->block_table->shape[1] : 0;
    return ATTN_OK;
}

/* Semantics 2.2 to 2.8 as the distances of cpu_mask. */
static void set_mask(const attn_instance_t *in, const attn_batch_t *b, int32_t r, struct cpu_mask *m) {
    const attn_problem_t *p = &in->p;
    const int32_t W = (int32_t)p->sliding_window;
    m->causal = batch_causal(p, b, r);
    m->window_left = m->window_right = W > 0 ? W - 1 : -1; /* causal rows never meet the right side */
    m->chunk = (int)p->chunk_size;
    m->lookback = 0;
    m->prefix = batch_prefix(p, b, r);
    m->span_window = (in->features & ATTN_F_MM_PREFIX_CLAMP) != 0 ? W : 0;
    if ((in->features & ATTN_F_CHUNK_LOOKBACK) != 0 && W > 0) {
        m->lookback = (int)p->chunk_lookback;
        m->chunk = W / (m->lookback + 1);
        m->window_left = m->window_right = -1;
    }
    if (p->rswa_window != 0) {
        m->causal = 1;
        m->window_left = (int)p->rswa_window - 1;
        m->window_right = -1;
    }
}

int cpu_build_metadata(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    (void)stream;
    attn_batch_t b;
    attn_space_t s;
    int32_t spans;
    int status = attn_intake(&b, sizeof b, batch, "batch", error);
    if (status == ATTN_OK) status = attn_intake(&s, sizeof s, space, "space", error);
    if (status != ATTN_OK) return status;
    if (s.metadata == NULL || s.metadata_bytes < in->metadata_bytes || (uintptr_t)s.metadata % 64 != 0)
        return attn_fail(error, ATTN_E_SPACE, "metadata",
                         "the metadata buffer has %llu bytes at %p; space_needed says %zu, aligned to 64",
                         (unsigned long long)(s.metadata != NULL ? s.metadata_bytes : 0), s.metadata,
                         in->metadata_bytes);
    struct cpu_metadata *m = s.metadata;
    m->magic = 0; /* nothing to run until everything is in place */
    status = check_batch(in, &b, m, error);
    if (status == ATTN_OK) status = batch_check_device_lengths(&in->p, &b, error);
    if (status == ATTN_OK) status = batch_check_masks(&in->p, &b, error);
    if (status == ATTN_OK) status = batch_check_spans(&in->p, &b, in->max_spans, &spans, error);
    if (status != ATTN_OK) return status;
    if (b.common_prefix_len < 0)
        return attn_fail(error, ATTN_E_INVALID, "common_prefix_len",
                         "common_prefix_len is %d; expected 0 or more", b.common_prefix_len);

    const batch_limits_t limits = limits_of(in);
    const int32_t *key_start = batch_key_starts(&limits, &b);
    m->device_starts = m->device_lens = NULL;
    if ((in->features & ATTN_F_DEVICE_LENGTHS) != 0 && b.num_reqs > 0) {
        m->device_starts = attn_data(b.query_start_loc);
        m->device_starts_stride = b.query_start_loc->strides[0];
        m->device_lens = attn_data(b.seq_lens);
        m->device_lens_stride = b.seq_lens->strides[0];
    }
    m->num_tokens = b.num_actual_tokens;
    m->num_key_rows = in->has_cache ? 0 : key_start[b.num_reqs];
    struct cpu_attn shape = in->shape;
    if (in->projects && !in->is_sparse) shape.num_q_heads = cpu_latent_heads(in, b.num_actual_tokens);
    m->heads_per_pass = shape.num_q_heads;
    struct cpu_plan *plan = cpu_plan_init(cpu_metadata_plan(m), &shape, &in->tiling, &in->limits,
                                          (int64_t)in->limits.max_seqs * in->max_spans);
    plan->num_seqs = b.num_reqs;
    for (int32_t r = 0; r < b.num_reqs; r++) {
        struct cpu_seq *q = &plan->seqs[r];
        *q = (struct cpu_seq){.q_start = b.query_start_loc_host[r], .k_start = key_start[r]};
        q->q_len = b.query_start_loc_host[r + 1] - b.query_start_loc_host[r];
        q->kv_len = b.seq_lens_host[r];
        q->q_offset = q->kv_len - q->q_len;
        q->table_row = r;
        set_mask(in, &b, r, &q->mask);
        q->mask.num_spans = spans;
        q->mask.spans = plan->spans + (int64_t)2 * spans * r;
    }
    batch_copy_spans(&b, spans, plan->spans);
    if (!in->is_sparse) cpu_plan_build(plan, in->k, &shape, &in->tiling, &in->limits);
    m->magic = CPU_METADATA_MAGIC;
    return ATTN_OK;
}

int cpu_update_block_table(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    (void)stream;
    attn_batch_t b;
    attn_space_t s;
    int status = attn_intake(&b, sizeof b, batch, "batch", error);
    if (status == ATTN_OK) status = attn_intake(&s, sizeof s, space, "space", error);
    struct cpu_metadata fresh;
    if (status == ATTN_OK) status = check_batch(in, &b, &fresh, error);
    if (status != ATTN_OK) return status;
    struct cpu_metadata *m = s.metadata;
    if (m == NULL || s.metadata_bytes < in->metadata_bytes || m->magic != CPU_METADATA_MAGIC ||
        cpu_metadata_plan(m)->num_seqs != b.num_reqs)
        return attn_fail(error, ATTN_E_STATE, "metadata",
                         "the metadata was not built for this batch; call build_metadata first");
    m->block_table = fresh.block_table;
    m->block_table_row = fresh.block_table_row;
    m->block_table_width = fresh.block_table_width;
    m->max_block = fresh.max_block;
    return ATTN_OK;
}

int cpu_plan_of_call(const attn_instance_t *in, struct cpu_metadata *m, void *workspace,
                     struct cpu_plan **plan, attn_error_t *error) {
    const struct cpu_plan *built = cpu_metadata_plan(m);
    *plan = cpu_metadata_plan(m);
    if (m->device_starts == NULL) return ATTN_OK;
    struct cpu_attn shape = in->shape;
    shape.num_q_heads = m->heads_per_pass;
    struct cpu_plan *p = cpu_plan_init((char *)workspace + in->plan_at, &shape, &in->tiling, &in->limits, 0);
    p->num_seqs = built->num_seqs;
    for (int32_t r = 0; r < built->num_seqs; r++) {
        const int32_t start = m->device_starts[r * m->device_starts_stride],
                      end = m->device_starts[(r + 1) * m->device_starts_stride],
                      len = m->device_lens[r * m->device_lens_stride];
        const int status = batch_check_bounds(r, start, (int64_t)end - start, len, built->seqs[r].q_len,
                                              built->seqs[r].kv_len, error);
        if (status != ATTN_OK) return status;
        struct cpu_seq *q = &p->seqs[r];
        *q = built->seqs[r];
        q->q_start = start;
        q->q_len = end - start;
        q->kv_len = len;
        q->q_offset = len - q->q_len;
    }
    cpu_plan_build(p, in->k, &shape, &in->tiling, &in->limits);
    *plan = p;
    return ATTN_OK;
}
