/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a batch and turns it into the plan that forward walks; everything forward needs but the tensors. */
#include "cpu_instance.h"
#include "cpu_mask.h"

static int64_t cdiv(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Lengths of every request: the column of checks that everything later relies on. */
static int check_lengths(const attn_instance_t *in, const attn_batch_t *b, attn_error_t *error) {
    if (b->num_reqs < 0 || b->num_reqs > in->limits.max_seqs)
        return attn_fail(error, ATTN_E_INVALID, "num_reqs",
                         "num_reqs is %d; 0 to %d (max_num_seqs) were wanted", b->num_reqs,
                         in->limits.max_seqs);
    if (b->num_actual_tokens < 0 || b->num_actual_tokens > in->limits.max_tokens)
        return attn_fail(error, ATTN_E_INVALID, "num_actual_tokens",
                         "num_actual_tokens is %d; 0 to %d (max_num_batched_tokens) were wanted",
                         b->num_actual_tokens, in->limits.max_tokens);
    if (b->query_start_loc_host == NULL || (b->seq_lens_host == NULL && b->num_reqs > 0))
        return attn_fail(error, ATTN_E_INVALID,
                         b->query_start_loc_host == NULL ? "query_start_loc" : "seq_lens",
                         "query_start_loc_host and seq_lens_host are required");
    const int32_t *start = b->query_start_loc_host;
    if (start[0] != 0 || start[b->num_reqs] != b->num_actual_tokens)
        return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                         "query_start_loc goes from %d to %d; 0 to num_actual_tokens (%d) was wanted",
                         start[0], start[b->num_reqs], b->num_actual_tokens);
    for (int32_t r = 0; r < b->num_reqs; r++) {
        const int64_t query = (int64_t)start[r + 1] - start[r], seq = b->seq_lens_host[r];
        if (query < 0)
            return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                             "query_start_loc falls from %d to %d at request %d; it must not decrease",
                             start[r], start[r + 1], r);
        if (seq < 0 || seq > in->max_len)
            return attn_fail(error, ATTN_E_INVALID, "seq_lens",
                             "seq_lens[%d] is %lld; 0 to %lld (max_model_len) were wanted", r, (long long)seq,
                             (long long)in->max_len);
        if (in->p.role == ATTN_ROLE_DECODER && seq < query)
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

/* Address of the table and every entry that may be read; remembers the largest block for forward's check. */
static int take_block_table(const attn_instance_t *in, const attn_batch_t *b, struct cpu_metadata *m,
                            attn_error_t *error) {
    m->block_table = NULL;
    m->block_table_row = 0;
    m->max_block = -1;
    if (!in->has_cache || b->num_reqs == 0) return ATTN_OK;
    const int status = attn_check_tensor(b->block_table, "block_table", ATTN_DTYPE_INT32, 2, NULL, error);
    if (status != ATTN_OK) return status;
    if (b->block_table->shape[0] < b->num_reqs)
        return attn_fail(error, ATTN_E_INVALID, "block_table", "block_table has %lld rows for %d requests",
                         (long long)b->block_table->shape[0], b->num_reqs);
    m->block_table = attn_data(b->block_table);
    m->block_table_row = b->block_table->strides[0];
    const int32_t *start = b->query_start_loc_host;
    for (int32_t r = 0; r < b->num_reqs; r++) {
        if (start[r + 1] == start[r]) continue; /* nothing is read for a request without queries */
        const int64_t blocks = cdiv(b->seq_lens_host[r], in->block_size);
        if (blocks > b->block_table->shape[1])
            return attn_fail(error, ATTN_E_INVALID, "block_table",
                             "block_table has %lld columns; seq_lens[%d] = %d needs %lld blocks of %u tokens",
                             (long long)b->block_table->shape[1], r, b->seq_lens_host[r], (long long)blocks,
                             in->block_size);
        const int32_t *row = m->block_table + r * m->block_table_row;
        for (int64_t i = 0; i < blocks; i++) {
            if (row[i] < 0 || (in->p.num_blocks > 0 && row[i] >= in->p.num_blocks))
                return attn_fail(
                    error, ATTN_E_INVALID, "block_table",
                    "block_table[%d][%lld] is %d; a block of the cache was wanted (num_blocks %lld)", r,
                    (long long)i, row[i], (long long)in->p.num_blocks);
            m->max_block = row[i] > m->max_block ? row[i] : m->max_block;
        }
    }
    return ATTN_OK;
}

/* An int32 vector with one entry for each request: its host mirror, or the tensor. */
static int check_per_request(const DLTensor *t, const char *name, int32_t num_reqs, attn_error_t *error) {
    const int status = attn_check_tensor(t, name, ATTN_DTYPE_INT32, 1, NULL, error);
    if (status == ATTN_OK && t->shape[0] < num_reqs)
        return attn_fail(error, ATTN_E_INVALID, name, "%s has %lld entries for %d requests", name,
                         (long long)t->shape[0], num_reqs);
    return status;
}

static int32_t int32_at(const DLTensor *t, int64_t i) {
    return ((const int32_t *)attn_data(t))[i * t->strides[0]];
}

static int check_optional(const attn_instance_t *in, const attn_batch_t *b, int64_t *num_spans,
                          attn_error_t *error) {
    int status = ATTN_OK;
    if (in->p.mask == ATTN_MASK_PER_REQUEST && b->causal_host == NULL && b->num_reqs > 0)
        status = check_per_request(b->causal, "causal", b->num_reqs, error);
    if (status == ATTN_OK && in->p.rswa_window != 0 && b->rswa_prefix_lens_host == NULL && b->num_reqs > 0)
        status = check_per_request(b->rswa_prefix_lens, "rswa_prefix_lens", b->num_reqs, error);
    if (status != ATTN_OK) return status;
    if (b->common_prefix_len < 0)
        return attn_fail(error, ATTN_E_INVALID, "common_prefix_len",
                         "common_prefix_len is %d; 0 or more was wanted", b->common_prefix_len);
    *num_spans = 0;
    if (b->mm_prefix_ranges_host != NULL) {
        *num_spans = b->num_mm_ranges;
    } else if (b->mm_prefix_ranges != NULL) {
        const int64_t shape[3] = {-1, -1, 2};
        status =
            attn_check_tensor(b->mm_prefix_ranges, "mm_prefix_ranges", ATTN_DTYPE_INT32, 3, shape, error);
        if (status != ATTN_OK) return status;
        if (b->mm_prefix_ranges->shape[0] < b->num_reqs)
            return attn_fail(error, ATTN_E_INVALID, "mm_prefix_ranges",
                             "mm_prefix_ranges has %lld rows for %d requests",
                             (long long)b->mm_prefix_ranges->shape[0], b->num_reqs);
        *num_spans = b->mm_prefix_ranges->shape[1];
    }
    if (*num_spans != 0 && (in->features & ATTN_F_MM_PREFIX) == 0)
        return attn_fail(
            error, ATTN_E_INVALID, "mm_prefix_ranges",
            "spans were given, but the problem has no feature mm_prefix; ask for it in features");
    if (*num_spans < 0 || *num_spans > in->max_spans)
        return attn_fail(error, ATTN_E_INVALID, "mm_prefix_ranges",
                         "%lld spans per request were given; at most %u (max_mm_ranges) were declared",
                         (long long)*num_spans, in->max_spans);
    return ATTN_OK;
}

/* Semantics 2.2 to 2.8 as the distances of cpu_mask. */
static void set_mask(const attn_instance_t *in, const attn_batch_t *b, int32_t r, struct cpu_mask *m) {
    const attn_problem_t *p = &in->p;
    const int32_t W = (int32_t)p->sliding_window;
    m->causal = p->mask == ATTN_MASK_CAUSAL ? 1
                : p->mask == ATTN_MASK_FULL ? 0
                : b->causal_host != NULL    ? b->causal_host[r] != 0
                                            : int32_at(b->causal, r) != 0;
    m->window_left = m->window_right = W > 0 ? W - 1 : -1; /* causal rows never meet the right side */
    m->chunk = (int)p->chunk_size;
    m->lookback = 0;
    m->prefix = 0;
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
        m->prefix =
            b->rswa_prefix_lens_host != NULL ? b->rswa_prefix_lens_host[r] : int32_at(b->rswa_prefix_lens, r);
    }
}

static void set_spans(const attn_batch_t *b, int32_t r, int64_t count, int32_t *out) {
    for (int64_t i = 0; i < count; i++)
        for (int j = 0; j < 2; j++) {
            if (b->mm_prefix_ranges_host != NULL) {
                out[2 * i + j] = b->mm_prefix_ranges_host[(r * count + i) * 2 + j];
            } else {
                const DLTensor *t = b->mm_prefix_ranges;
                out[2 * i + j] = ((const int32_t *)attn_data(t))[r * t->strides[0] + i * t->strides[1] + j];
            }
        }
}

int cpu_build_metadata(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    (void)stream;
    attn_batch_t b;
    attn_space_t s;
    int64_t spans = 0;
    int status = attn_intake(&b, sizeof b, batch, "batch", error);
    if (status == ATTN_OK) status = attn_intake(&s, sizeof s, space, "space", error);
    if (status == ATTN_OK) status = check_lengths(in, &b, error);
    if (status == ATTN_OK) status = check_optional(in, &b, &spans, error);
    if (status != ATTN_OK) return status;
    if (s.metadata == NULL || s.metadata_bytes < in->metadata_bytes || (uintptr_t)s.metadata % 64 != 0)
        return attn_fail(error, ATTN_E_SPACE, "metadata",
                         "the metadata buffer has %llu bytes at %p; space_needed says %zu, aligned to 64",
                         (unsigned long long)(s.metadata != NULL ? s.metadata_bytes : 0), s.metadata,
                         in->metadata_bytes);

    struct cpu_metadata *m = s.metadata;
    m->magic = 0; /* nothing to run until everything is in place */
    status = take_block_table(in, &b, m, error);
    if (status != ATTN_OK) return status;
    m->num_tokens = b.num_actual_tokens;
    struct cpu_plan *plan = cpu_plan_init(cpu_metadata_plan(m), &in->shape, &in->tiling, &in->limits,
                                          (int64_t)in->limits.max_seqs * in->max_spans);
    plan->num_seqs = b.num_reqs;
    for (int32_t r = 0; r < b.num_reqs; r++) {
        struct cpu_seq *q = &plan->seqs[r];
        *q = (struct cpu_seq){.q_start = b.query_start_loc_host[r], .k_start = b.query_start_loc_host[r]};
        q->q_len = b.query_start_loc_host[r + 1] - b.query_start_loc_host[r];
        q->kv_len = b.seq_lens_host[r];
        q->q_offset = q->kv_len - q->q_len;
        q->table_row = r;
        set_mask(in, &b, r, &q->mask);
        q->mask.num_spans = (int)spans;
        q->mask.spans = plan->spans + 2 * spans * r;
        set_spans(&b, r, spans, plan->spans + 2 * spans * r);
    }
    cpu_plan_build(plan, in->k, &in->shape, &in->tiling, &in->limits);
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
    if (status == ATTN_OK) status = check_lengths(in, &b, error);
    if (status != ATTN_OK) return status;
    struct cpu_metadata *m = s.metadata;
    if (m == NULL || s.metadata_bytes < in->metadata_bytes || m->magic != CPU_METADATA_MAGIC ||
        cpu_metadata_plan(m)->num_seqs != b.num_reqs)
        return attn_fail(error, ATTN_E_STATE, "metadata",
                         "the metadata was not built for this batch; call build_metadata first");
    struct cpu_metadata changed = *m;
    status = take_block_table(in, &b, &changed, error);
    if (status == ATTN_OK) *m = changed;
    return status;
}
