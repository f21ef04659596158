/* SPDX-License-Identifier: Apache-2.0 */
/* ref_metadata.c: checks a batch and copies what forward needs of it into the metadata buffer. */
#include "ref_instance.h"
#include "ref_rows.h"

static uint64_t round_up(uint64_t n, uint64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

uint64_t ref_metadata_bytes(uint64_t num_reqs, uint64_t num_spans) {
    uint64_t ints = (num_reqs + 1) + 3 * num_reqs + 2 * num_reqs * num_spans;
    return round_up(sizeof(ref_metadata_t) + ints * sizeof(int32_t), 64);
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

static int64_t cdiv(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Lengths of every request: the column of checks that everything later relies on. */
static int check_lengths(const attn_instance_t *in, const attn_batch_t *b, attn_error_t *error) {
    if (b->num_reqs < 0 || (uint32_t)b->num_reqs > in->max_seqs)
        return attn_fail(error, ATTN_E_INVALID, "num_reqs",
                         "num_reqs is %d; 0 to %u (max_num_seqs) were wanted", b->num_reqs, in->max_seqs);
    if (b->num_actual_tokens < 0 || (uint32_t)b->num_actual_tokens > in->max_tokens)
        return attn_fail(error, ATTN_E_INVALID, "num_actual_tokens",
                         "num_actual_tokens is %d; 0 to %u (max_num_batched_tokens) were wanted",
                         b->num_actual_tokens, in->max_tokens);
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
        int64_t query = (int64_t)start[r + 1] - start[r], seq = b->seq_lens_host[r];
        if (query < 0)
            return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                             "query_start_loc falls from %d to %d at request %d; it must not decrease",
                             start[r], start[r + 1], r);
        if (seq < 0 || seq > in->max_len)
            return attn_fail(error, ATTN_E_INVALID, "seq_lens",
                             "seq_lens[%d] is %lld; 0 to %lld (max_model_len) were wanted", r, (long long)seq,
                             (long long)in->max_len);
        if (in->has_cache && in->p.role != ATTN_ROLE_ENCODER_DECODER && seq < query)
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

/* Address of the table, its width, and every entry that will be read. */
static int take_block_table(const attn_instance_t *in, const attn_batch_t *b, ref_metadata_t *m,
                            attn_error_t *error) {
    m->block_table = NULL;
    m->block_table_stride = m->block_table_width = 0;
    if (!in->has_cache || b->num_reqs == 0) return ATTN_OK;
    int status = attn_check_tensor(b->block_table, "block_table", ATTN_DTYPE_INT32, 2, NULL, error);
    if (status != ATTN_OK) return status;
    if (b->block_table->shape[0] < b->num_reqs)
        return attn_fail(error, ATTN_E_INVALID, "block_table", "block_table has %lld rows for %d requests",
                         (long long)b->block_table->shape[0], b->num_reqs);
    m->block_table = attn_data(b->block_table);
    m->block_table_stride = attn_byte_stride(b->block_table, 0);
    m->block_table_width = b->block_table->shape[1];
    const int32_t *start = b->query_start_loc_host;
    for (int32_t r = 0; r < b->num_reqs; r++) {
        if (start[r + 1] == start[r]) continue; /* nothing is read for a request without queries */
        int64_t blocks = cdiv(b->seq_lens_host[r], in->block_size);
        if (blocks > m->block_table_width)
            return attn_fail(error, ATTN_E_INVALID, "block_table",
                             "block_table has %lld columns; seq_lens[%d] = %d needs %lld blocks of %u tokens",
                             (long long)m->block_table_width, r, b->seq_lens_host[r], (long long)blocks,
                             in->block_size);
        const int32_t *row = (const int32_t *)(const void *)(m->block_table + r * m->block_table_stride);
        for (int64_t i = 0; i < blocks; i++)
            if (row[i] < 0 || (in->p.num_blocks > 0 && row[i] >= in->p.num_blocks))
                return attn_fail(
                    error, ATTN_E_INVALID, "block_table",
                    "block_table[%d][%lld] is %d; a block of the cache was wanted (num_blocks %lld)", r,
                    (long long)i, row[i], (long long)in->p.num_blocks);
    }
    return ATTN_OK;
}

/* Cascade: the prefix pass has no causal mask, so every query must come after the prefix; and the two passes
 * know no mask that looks at distances (semantics 6.4). */
static int check_cascade(const attn_instance_t *in, const attn_batch_t *b, attn_error_t *error) {
    int32_t prefix = b->common_prefix_len;
    if (prefix == 0) return ATTN_OK;
    if (prefix < 0 || prefix % (int32_t)in->block_size != 0 || in->p.role != ATTN_ROLE_DECODER)
        return attn_fail(error, ATTN_E_INVALID, "common_prefix_len",
                         "common_prefix_len is %d; 0 or a positive multiple of the block size %u, for a "
                         "decoder, was wanted",
                         prefix, in->block_size);
    uint64_t distances =
        ATTN_F_SLIDING_WINDOW | ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT | ATTN_F_RSWA | ATTN_F_MM_PREFIX;
    if ((in->features & distances) != 0 || in->p.chunk_size != 0)
        return attn_fail(
            error, ATTN_E_UNSUPPORTED, "common_prefix_len",
            "cascade attention excludes windows, ALiBi, chunks and spans; pass common_prefix_len 0");
    for (int32_t r = 0; r < b->num_reqs; r++) {
        int32_t query = b->query_start_loc_host[r + 1] - b->query_start_loc_host[r];
        if (query > 0 && b->seq_lens_host[r] - query < prefix)
            return attn_fail(
                error, ATTN_E_INVALID, "common_prefix_len",
                "common_prefix_len is %d but request %d has a context of %d tokens; pass at most that",
                prefix, r, b->seq_lens_host[r] - query);
    }
    return ATTN_OK;
}

static int copy_causal(const attn_instance_t *in, const attn_batch_t *b, int32_t *out, attn_error_t *error) {
    if (in->p.mask == ATTN_MASK_PER_REQUEST && b->causal_host == NULL && b->num_reqs > 0) {
        int status = attn_check_tensor(b->causal, "causal", ATTN_DTYPE_INT32, 1, NULL, error);
        if (status != ATTN_OK) return status;
        if (b->causal->shape[0] < b->num_reqs)
            return attn_fail(error, ATTN_E_INVALID, "causal", "causal has %lld entries for %d requests",
                             (long long)b->causal->shape[0], b->num_reqs);
    }
    for (int32_t r = 0; r < b->num_reqs; r++)
        out[r] = in->p.mask == ATTN_MASK_CAUSAL ? 1
                 : in->p.mask == ATTN_MASK_FULL ? 0
                 : b->causal_host != NULL       ? b->causal_host[r] != 0
                                                : ref_int32_at(b->causal, r) != 0;
    return ATTN_OK;
}

static int copy_rswa(const attn_instance_t *in, const attn_batch_t *b, int32_t *out, attn_error_t *error) {
    memset(out, 0, (size_t)b->num_reqs * sizeof *out);
    if (in->p.rswa_window == 0 || b->num_reqs == 0) return ATTN_OK;
    if (b->rswa_prefix_lens_host != NULL) {
        memcpy(out, b->rswa_prefix_lens_host, (size_t)b->num_reqs * sizeof *out);
        return ATTN_OK;
    }
    int status = attn_check_tensor(b->rswa_prefix_lens, "rswa_prefix_lens", ATTN_DTYPE_INT32, 1, NULL, error);
    if (status != ATTN_OK) return status;
    if (b->rswa_prefix_lens->shape[0] < b->num_reqs)
        return attn_fail(error, ATTN_E_INVALID, "rswa_prefix_lens",
                         "rswa_prefix_lens has %lld entries for %d requests",
                         (long long)b->rswa_prefix_lens->shape[0], b->num_reqs);
    for (int32_t r = 0; r < b->num_reqs; r++)
        out[r] = ref_int32_at(b->rswa_prefix_lens, r);
    return ATTN_OK;
}

/* Number of spans per request in this batch; no tensor at all means none (semantics 2.7). */
static int count_spans(const attn_instance_t *in, const attn_batch_t *b, int32_t *count,
                       attn_error_t *error) {
    *count = 0;
    int64_t n = 0;
    if (b->mm_prefix_ranges_host != NULL) {
        n = b->num_mm_ranges;
    } else if (b->mm_prefix_ranges != NULL) {
        const int64_t shape[3] = {-1, -1, 2};
        int status =
            attn_check_tensor(b->mm_prefix_ranges, "mm_prefix_ranges", ATTN_DTYPE_INT32, 3, shape, error);
        if (status != ATTN_OK) return status;
        if (b->mm_prefix_ranges->shape[0] < b->num_reqs)
            return attn_fail(error, ATTN_E_INVALID, "mm_prefix_ranges",
                             "mm_prefix_ranges has %lld rows for %d requests",
                             (long long)b->mm_prefix_ranges->shape[0], b->num_reqs);
        n = b->mm_prefix_ranges->shape[1];
    }
    if (n != 0 && (in->features & ATTN_F_MM_PREFIX) == 0)
        return attn_fail(
            error, ATTN_E_INVALID, "mm_prefix_ranges",
            "spans were given, but the problem has no feature mm_prefix; ask for it in features");
    if (n < 0 || n > in->max_spans)
        return attn_fail(error, ATTN_E_INVALID, "mm_prefix_ranges",
                         "%lld spans per request were given; at most %u (max_mm_ranges) were declared",
                         (long long)n, in->max_spans);
    *count = (int32_t)n;
    return ATTN_OK;
}

static void copy_spans(const attn_batch_t *b, int32_t count, int32_t *out) {
    for (int32_t r = 0; r < b->num_reqs; r++)
        for (int32_t i = 0; i < 2 * count; i++) {
            int64_t at = (int64_t)r * 2 * count + i;
            if (b->mm_prefix_ranges_host != NULL)
                out[at] = b->mm_prefix_ranges_host[at];
            else
                out[at] = ((const int32_t *)(const void *)ref_at2(b->mm_prefix_ranges, r, i / 2))[i % 2];
        }
}

int ref_build_metadata(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    (void)stream;
    attn_batch_t b;
    attn_space_t s;
    int32_t spans = 0;
    int status = attn_intake(&b, sizeof b, batch, "batch", error);
    if (status == ATTN_OK) status = attn_intake(&s, sizeof s, space, "space", error);
    if (status == ATTN_OK) status = check_lengths(in, &b, error);
    if (status == ATTN_OK) status = check_cascade(in, &b, error);
    if (status == ATTN_OK) status = count_spans(in, &b, &spans, error);
    if (status != ATTN_OK) return status;
    status = ref_check_buffer(s.metadata, s.metadata_bytes, in->metadata_bytes, "metadata", error);
    if (status != ATTN_OK) return status;

    ref_metadata_t *m = s.metadata;
    memset(m, 0, sizeof *m); /* no magic until everything is in place */
    status = take_block_table(in, &b, m, error);
    if (status != ATTN_OK) return status;
    m->num_reqs = b.num_reqs;
    m->num_tokens = b.num_actual_tokens;
    m->common_prefix_len = b.common_prefix_len;
    m->num_spans = spans;
    uint64_t reqs = (uint64_t)b.num_reqs;
    m->query_start_at = sizeof *m;
    m->seq_lens_at = m->query_start_at + (reqs + 1) * sizeof(int32_t);
    m->causal_at = m->seq_lens_at + reqs * sizeof(int32_t);
    m->rswa_at = m->causal_at + reqs * sizeof(int32_t);
    m->spans_at = m->rswa_at + reqs * sizeof(int32_t);
    m->bytes = ref_metadata_bytes(reqs, (uint64_t)spans);

    char *base = s.metadata;
    memcpy(base + m->query_start_at, b.query_start_loc_host, (reqs + 1) * sizeof(int32_t));
    if (reqs != 0) memcpy(base + m->seq_lens_at, b.seq_lens_host, reqs * sizeof(int32_t));
    status = copy_causal(in, &b, (int32_t *)(void *)(base + m->causal_at), error);
    if (status == ATTN_OK) status = copy_rswa(in, &b, (int32_t *)(void *)(base + m->rswa_at), error);
    if (status != ATTN_OK) return status;
    copy_spans(&b, spans, (int32_t *)(void *)(base + m->spans_at));
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
    if (status == ATTN_OK) status = check_lengths(in, &b, error);
    if (status == ATTN_OK)
        status = ref_check_buffer(s.metadata, s.metadata_bytes, in->metadata_bytes, "metadata", error);
    if (status != ATTN_OK) return status;
    ref_metadata_t *m = s.metadata;
    if (m->magic != REF_METADATA_MAGIC || m->num_reqs != b.num_reqs)
        return attn_fail(error, ATTN_E_STATE, "metadata",
                         "the metadata was not built for this batch; call build_metadata first");
    ref_metadata_t changed = *m;
    status = take_block_table(in, &b, &changed, error);
    if (status == ATTN_OK) *m = changed;
    return status;
}
