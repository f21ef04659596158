/* SPDX-License-Identifier: Apache-2.0 */
/* ref_metadata.c: checks a batch and copies what forward needs of it into the metadata buffer. */
#include "../common/batch_mask.h"
#include "ref_instance.h"

static uint64_t round_up(uint64_t n, uint64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

uint64_t ref_metadata_bytes(uint64_t num_reqs, uint64_t num_spans) {
    uint64_t spans, bytes; /* the other lists are short: num_reqs has 32 bits */
    if (__builtin_mul_overflow(num_reqs, num_spans, &spans) ||
        __builtin_mul_overflow(spans, 2 * sizeof(int32_t), &bytes) || bytes > INT64_MAX)
        return UINT64_MAX;
    return round_up(sizeof(ref_metadata_t) + (5 * num_reqs + 2) * sizeof(int32_t) + bytes, 64);
}

int ref_check_buffer(const void *buffer, uint64_t have, uint64_t need, const char *name,
                     attn_error_t *error) {
    if (buffer == NULL || have < need)
        return attn_fail(error, ATTN_E_SPACE, name, "the %s buffer has %llu bytes; space_needed says %llu",
                         name, (unsigned long long)(buffer != NULL ? have : 0), (unsigned long long)need);
    if ((uintptr_t)buffer % sizeof(double) != 0)
        return attn_fail(error, ATTN_E_SPACE, name,
                         "the %s buffer at %p is not aligned; space_needed says 64 bytes", name, buffer);
    return ATTN_OK;
}

static batch_limits_t limits_of(const attn_instance_t *in) {
    return (batch_limits_t){.max_seqs = (int32_t)in->max_seqs,
                            .max_tokens = (int32_t)in->max_tokens,
                            .max_model_len = in->max_len,
                            .has_cache = in->has_cache,
                            .seq_counts_query = in->has_cache && in->p.role != ATTN_ROLE_ENCODER_DECODER,
                            .max_keys = batch_max_keys(&in->p),
                            .page_size = (int32_t)in->block_size};
}

/* Everything that later relies on lengths and table, and what is kept of the table. */
static int check_batch(const attn_instance_t *in, const attn_batch_t *b, ref_metadata_t *m,
                       attn_error_t *error) {
    const batch_limits_t limits = limits_of(in);
    int32_t max_block;
    int status = batch_check_lengths(&limits, b, error);
    if (status == ATTN_OK) status = batch_check_host_table(&limits, b, in->p.num_blocks, &max_block, error);
    if (status != ATTN_OK) return status;
    const int has_table = in->has_cache && b->num_reqs > 0;
    m->block_table = has_table ? attn_data(b->block_table) : NULL;
    m->block_table_stride = has_table ? attn_byte_stride(b->block_table, 0) : 0;
    m->block_table_width = has_table ? b->block_table->shape[1] : 0;
    return ATTN_OK;
}

/* Cascade: the two passes know no mask that looks at distances (semantics 6.4). */
static int check_cascade(const attn_instance_t *in, const attn_batch_t *b, attn_error_t *error) {
    int32_t prefix = b->common_prefix_len;
    if (prefix == 0) return ATTN_OK;
    if (prefix < 0 || prefix % (int32_t)in->block_size != 0 || in->p.role != ATTN_ROLE_DECODER)
        return attn_fail(error, ATTN_E_INVALID, "common_prefix_len",
                         "common_prefix_len is %d; expected 0 or, for a decoder, a positive multiple of the "
                         "block size %u",
                         prefix, in->block_size);
    uint64_t distances = ATTN_F_SLIDING_WINDOW | ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT | ATTN_F_REL_BIAS |
                         ATTN_F_RSWA | ATTN_F_MM_PREFIX;
    if ((in->features & distances) != 0 || in->p.chunk_size != 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "common_prefix_len",
                         "cascade attention excludes windows, ALiBi, relative bias, chunks and spans; pass "
                         "common_prefix_len 0");
    return batch_check_prefix(b, error);
}

int ref_build_metadata(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    (void)stream;
    attn_batch_t b;
    attn_space_t s;
    int32_t spans;
    int status = attn_intake(&b, sizeof b, batch, "batch", error);
    if (status == ATTN_OK) status = attn_intake(&s, sizeof s, space, "space", error);
    if (status == ATTN_OK)
        status = ref_check_buffer(s.metadata, s.metadata_bytes, in->metadata_bytes, "metadata", error);
    if (status != ATTN_OK) return status;
    ref_metadata_t *m = s.metadata;
    memset(m, 0, sizeof *m); /* no magic until everything is in place */
    status = check_batch(in, &b, m, error);
    if (status == ATTN_OK) status = check_cascade(in, &b, error);
    if (status == ATTN_OK) status = batch_check_device_lengths(&in->p, &b, error);
    if (status == ATTN_OK) status = batch_check_masks(&in->p, &b, error);
    if (status == ATTN_OK) status = batch_check_spans(&in->p, &b, in->max_spans, &spans, error);
    if (status != ATTN_OK) return status;

    if ((in->features & ATTN_F_DEVICE_LENGTHS) != 0 && b.num_reqs > 0) {
        m->device_starts = attn_data(b.query_start_loc);
        m->device_starts_stride = b.query_start_loc->strides[0];
        m->device_lens = attn_data(b.seq_lens);
        m->device_lens_stride = b.seq_lens->strides[0];
    }
    m->num_reqs = b.num_reqs;
    m->num_tokens = b.num_actual_tokens;
    m->common_prefix_len = b.common_prefix_len;
    m->num_spans = spans;
    uint64_t reqs = (uint64_t)b.num_reqs;
    m->query_start_at = sizeof *m;
    m->key_start_at = m->query_start_at + (reqs + 1) * sizeof(int32_t);
    m->seq_lens_at = m->key_start_at + (reqs + 1) * sizeof(int32_t);
    m->causal_at = m->seq_lens_at + reqs * sizeof(int32_t);
    m->rswa_at = m->causal_at + reqs * sizeof(int32_t);
    m->spans_at = m->rswa_at + reqs * sizeof(int32_t);
    m->bytes = ref_metadata_bytes(reqs, (uint64_t)spans);

    char *base = s.metadata;
    memcpy(base + m->query_start_at, b.query_start_loc_host, (reqs + 1) * sizeof(int32_t));
    const batch_limits_t limits = limits_of(in);
    const int32_t *key_start = batch_key_starts(&limits, &b);
    memcpy(base + m->key_start_at, key_start, (reqs + 1) * sizeof(int32_t));
    m->num_key_rows = key_start[reqs];
    if (reqs != 0) memcpy(base + m->seq_lens_at, b.seq_lens_host, reqs * sizeof(int32_t));
    int32_t *causal = (int32_t *)(void *)(base + m->causal_at);
    int32_t *rswa = (int32_t *)(void *)(base + m->rswa_at);
    for (int32_t r = 0; r < b.num_reqs; r++) {
        causal[r] = batch_causal(&in->p, &b, r);
        rswa[r] = batch_prefix(&in->p, &b, r);
    }
    batch_copy_spans(&b, spans, (int32_t *)(void *)(base + m->spans_at));
    m->magic = REF_METADATA_MAGIC;
    return ATTN_OK;
}

int ref_update_block_table(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    (void)stream;
    attn_batch_t b;
    attn_space_t s;
    int status = attn_intake(&b, sizeof b, batch, "batch", error);
    if (status == ATTN_OK) status = attn_intake(&s, sizeof s, space, "space", error);
    ref_metadata_t fresh;
    if (status == ATTN_OK) status = check_batch(in, &b, &fresh, error);
    if (status == ATTN_OK)
        status = ref_check_buffer(s.metadata, s.metadata_bytes, in->metadata_bytes, "metadata", error);
    if (status != ATTN_OK) return status;
    ref_metadata_t *m = s.metadata;
    if (m->magic != REF_METADATA_MAGIC || m->num_reqs != b.num_reqs)
        return attn_fail(error, ATTN_E_STATE, "metadata",
                         "the metadata was not built for this batch; call build_metadata first");
    m->block_table = fresh.block_table;
    m->block_table_stride = fresh.block_table_stride;
    m->block_table_width = fresh.block_table_width;
    return ATTN_OK;
}

int ref_read_lengths(const ref_metadata_t *m, void *room, const ref_metadata_t **now, attn_error_t *error) {
    *now = m;
    if (m->device_starts == NULL) return ATTN_OK;
    memcpy(room, m, m->bytes);
    ref_metadata_t *copy = room;
    int32_t *starts = (int32_t *)(void *)((char *)room + m->query_start_at),
            *lens = (int32_t *)(void *)((char *)room + m->seq_lens_at);
    const int32_t *most_starts = ref_metadata_ints(m, m->query_start_at),
                  *most_lens = ref_metadata_ints(m, m->seq_lens_at);
    for (int32_t r = 0; r <= m->num_reqs; r++)
        starts[r] = m->device_starts[r * m->device_starts_stride];
    for (int32_t r = 0; r < m->num_reqs; r++)
        lens[r] = m->device_lens[r * m->device_lens_stride];
    int status = ATTN_OK;
    for (int32_t r = 0; r < m->num_reqs && status == ATTN_OK; r++)
        status = batch_check_bounds(r, starts[r], (int64_t)starts[r + 1] - starts[r], lens[r],
                                    most_starts[r + 1] - most_starts[r], most_lens[r], error);
    copy->num_tokens = starts[m->num_reqs];
    *now = copy;
    return status;
}
