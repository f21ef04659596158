/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_forward.c: one attention call. The work goes in tiles of a few query tokens of one request: start the
 * rows, walk over the keys (once, or prefix and suffix apart for cascade attention), finish, write.
 */
#include "ref_mla.h"
#include "ref_output.h"

/* Workspace in doubles, in this order: query rows, one key, one value, then one or two sets of row states.
 * Cascade needs the second set; whether a batch uses it is not known before, so it is always there for
 * decoders. */
static uint64_t state_doubles(const attn_instance_t *in) {
    return (uint64_t)REF_TILE_TOKENS * in->heads * (2 + (uint64_t)in->dv);
}

static uint64_t scratch_doubles(const attn_instance_t *in) {
    return (uint64_t)REF_TILE_TOKENS * in->group * in->d + in->d + in->dv;
}

uint64_t ref_workspace_doubles(const attn_instance_t *in) {
    if (ref_is_mla(in)) return ref_mla_workspace_doubles(in);
    return scratch_doubles(in) + (in->p.role == ATTN_ROLE_DECODER ? 2 : 1) * state_doubles(in);
}

static ref_state_t place_state(const attn_instance_t *in, double *at) {
    uint64_t rows = (uint64_t)REF_TILE_TOKENS * in->heads;
    return (ref_state_t){.max = at, .sum = at + rows, .acc = at + 2 * rows};
}

static int check_query_key_value(const attn_instance_t *in, const attn_forward_t *a, const ref_metadata_t *m,
                                 attn_error_t *error) {
    const call_cache_t c = ref_cache_of(in);
    int status = call_check_rows(a->query, "query", in->query_dtype, in->heads, in->d, m->num_tokens, error);
    if (status != ATTN_OK) return status;
    if (in->has_cache) return call_check_caches(&c, a->kv_cache, a->v_cache, error);
    const int64_t rows = m->num_key_rows;
    status = call_check_key_rows(a->key, "key", in->p.dtype, in->kv_heads, in->d, rows, error);
    return status == ATTN_OK
               ? call_check_key_rows(a->value, "value", in->p.dtype, in->kv_heads, in->dv, rows, error)
               : status;
}

/* Every block that will be read lies in the cache of this call. */
static int check_blocks(const attn_instance_t *in, const ref_metadata_t *m, int64_t num_blocks,
                        attn_error_t *error) {
    const int32_t *start = ref_metadata_ints(m, m->query_start_at),
                  *seq = ref_metadata_ints(m, m->seq_lens_at);
    for (int32_t r = 0; r < m->num_reqs; r++) {
        if (start[r + 1] == start[r]) continue;
        const int32_t *row = (const int32_t *)(const void *)(m->block_table + r * m->block_table_stride);
        for (int64_t i = 0; i * in->block_size < seq[r]; i++)
            if (row[i] < 0 || row[i] >= num_blocks)
                return attn_fail(error, ATTN_E_INVALID, "block_table",
                                 "block_table[%d][%lld] is %d; the cache has %lld blocks", r, (long long)i,
                                 row[i], (long long)num_blocks);
    }
    return ATTN_OK;
}

static int check_space(const attn_instance_t *in, const attn_space_t *s, attn_error_t *error) {
    int status = ref_check_buffer(s->metadata, s->metadata_bytes, in->metadata_bytes, "metadata", error);
    if (status != ATTN_OK) return status;
    if (((const ref_metadata_t *)s->metadata)->magic != REF_METADATA_MAGIC)
        return attn_fail(error, ATTN_E_STATE, "metadata",
                         "the metadata was never built, or building it failed; call build_metadata first");
    return ref_check_buffer(s->workspace, s->workspace_bytes, in->workspace_bytes, "workspace", error);
}

static ref_mask_t mask_of(const attn_instance_t *in, const ref_metadata_t *m, int32_t r, int64_t query_len) {
    uint64_t f = in->features;
    ref_mask_t mask = {
        .seq_len = ref_metadata_ints(m, m->seq_lens_at)[r],
        .is_causal = ref_metadata_ints(m, m->causal_at)[r],
        .window = in->p.sliding_window,
        .chunk = in->p.chunk_size,
        .rswa_window = in->p.rswa_window,
        .rswa_prefix = ref_metadata_ints(m, m->rswa_at)[r],
        .spans = ref_metadata_ints(m, m->spans_at) + (int64_t)r * 2 * m->num_spans,
        .num_spans = m->num_spans,
        .is_span_clamped = (f & ATTN_F_MM_PREFIX_CLAMP) != 0,
    };
    mask.context_len = mask.seq_len - query_len;
    if ((f & ATTN_F_CHUNK_LOOKBACK) != 0 &&
        in->p.sliding_window != 0) { /* off without a window (semantics 2.5) */
        mask.lookback = in->p.chunk_lookback;
        mask.lookback_chunk = in->p.sliding_window / (in->p.chunk_lookback + 1);
    }
    return mask;
}

static ref_keys_t keys_of(const attn_instance_t *in, const attn_forward_t *a, const ref_metadata_t *m,
                          int32_t r, int64_t first) {
    ref_keys_t keys = {
        .key = a->key, .value = a->value, .first = first, .dtype = in->p.dtype, .block_size = in->block_size};
    if ((in->features & ATTN_F_FP8_ATTENTION) != 0) keys.fp8 = &a->scales;
    if (in->has_cache) {
        keys.table = (const int32_t *)(const void *)(m->block_table + r * m->block_table_stride);
        keys.k = ref_cache_side(in, a->kv_cache, a->v_cache, &a->scales, 0);
        keys.v = ref_cache_side(in, a->kv_cache, a->v_cache, &a->scales, 1);
    }
    return keys;
}

/* The two passes of cascade attention: the prefix through the table of request 0 and with the sink, the
 * suffix without; then their merge (semantics 6.4, 6.5). Without a prefix it is one pass over all keys. */
static void run_tile(const attn_instance_t *in, const attn_forward_t *a, const ref_metadata_t *m, int32_t r,
                     const ref_tile_t *tile, const ref_mask_t *mask, double *workspace) {
    ref_scratch_t scratch = {.query = workspace};
    scratch.key = scratch.query + (uint64_t)REF_TILE_TOKENS * in->group * in->d;
    scratch.value = scratch.key + in->d;
    ref_state_t state = place_state(in, workspace + scratch_doubles(in));
    const float *sinks = a->sinks != NULL ? attn_data(a->sinks) : NULL;
    int64_t sink_stride = a->sinks != NULL ? a->sinks->strides[0] : 0;
    ref_keys_t keys = keys_of(in, a, m, r, ref_metadata_ints(m, m->key_start_at)[r]);

    ref_state_start(in, &state, tile->tokens, sinks, sink_stride);
    if (m->common_prefix_len == 0) {
        ref_attend(in, a, tile, mask, &keys, 0, mask->seq_len, &scratch, &state);
        ref_state_finish(in, &state, tile->tokens);
    } else {
        ref_state_t suffix = place_state(in, workspace + scratch_doubles(in) + state_doubles(in));
        ref_keys_t prefix_keys = keys_of(in, a, m, 0, 0);
        ref_mask_t prefix_mask = {.seq_len = m->common_prefix_len, .context_len = mask->context_len};
        ref_attend(in, a, tile, &prefix_mask, &prefix_keys, 0, m->common_prefix_len, &scratch, &state);
        ref_state_finish(in, &state, tile->tokens);
        ref_state_start(in, &suffix, tile->tokens, NULL, 0);
        ref_attend(in, a, tile, mask, &keys, m->common_prefix_len, mask->seq_len, &scratch, &suffix);
        ref_state_finish(in, &suffix, tile->tokens);
        ref_state_merge(in, &state, &suffix, tile->tokens);
    }
    for (int t = 0; t < tile->tokens; t++)
        ref_write_token(in, a, tile->row0 + t, in->out_size, state.acc + (int64_t)t * in->heads * in->dv,
                        state.max + (int64_t)t * in->heads);
}

int ref_forward(attn_instance_t *in, const attn_forward_t *args, const attn_space_t *space, void *stream,
                attn_error_t *error) {
    attn_forward_t a;
    attn_space_t s;
    int status = attn_intake(&a, sizeof a, args, "args", error);
    if (status == ATTN_OK && space == NULL) {
        status = call_check_rows(a.output, "output", in->out_dtype, in->heads, attn_output_columns(&in->p), 0,
                                 error);
        if (status == ATTN_OK) call_zero_rows(a.output);
        return status;
    }
    if (status == ATTN_OK) status = attn_intake(&s, sizeof s, space, "space", error);
    if (status == ATTN_OK) status = check_space(in, &s, error);
    if (status != ATTN_OK) return status;
    const ref_metadata_t *m;
    status = ref_read_lengths(s.metadata, (double *)s.workspace + ref_workspace_doubles(in), &m, error);
    if (status != ATTN_OK) return status;
    status =
        ref_is_mla(in) ? ref_mla_check_forward(in, &a, m, error) : check_query_key_value(in, &a, m, error);
    attn_forward_t extras = a; /* scales of channels have a check of their own */
    if (status == ATTN_OK && attn_kv_has_channel_scales(in->kv)) {
        status = call_check_channel_scale(a.scales.v, in->kv_heads, in->dv, error);
        extras.scales.v = NULL;
    }
    if (status == ATTN_OK)
        status = call_check_extras(&extras, in->features, in->heads, in->kv_heads, m->num_tokens, error);
    if (status == ATTN_OK) status = ref_check_output(in, &a, m->num_tokens, in->out_size, error);
    if (status == ATTN_OK && in->has_cache) status = check_blocks(in, m, a.kv_cache->shape[0], error);
    ref_fp8_scales_t scales;
    if (status == ATTN_OK && (in->features & ATTN_F_FP8_ATTENTION) != 0)
        status = ref_fp8_begin(in, &a, m->num_tokens, m->num_key_rows, &scales, error);
    attn_kv_update_t update;
    if (status == ATTN_OK) status = call_update_of_forward(&a, in->features, &update, error);
    if (status == ATTN_OK && update.slot_mapping != NULL)
        status = ref_update_kv_cache(in, &update, stream, error);
    if (status != ATTN_OK) return status;

    const int32_t *start = ref_metadata_ints(m, m->query_start_at),
                  *seq = ref_metadata_ints(m, m->seq_lens_at);
    for (int32_t r = 0; r < m->num_reqs; r++) {
        int64_t query_len = start[r + 1] - start[r];
        for (int64_t i = 0; i < query_len; i += REF_TILE_TOKENS) {
            ref_tile_t tile = {.row0 = start[r] + i, .q0 = seq[r] - query_len + i};
            tile.tokens = (int)(query_len - i < REF_TILE_TOKENS ? query_len - i : REF_TILE_TOKENS);
            ref_mask_t mask = mask_of(in, m, r, query_len);
            if (ref_is_mla(in))
                ref_mla_run_tile(in, &a, m, r, &tile, &mask, s.workspace);
            else
                run_tile(in, &a, m, r, &tile, &mask, s.workspace);
        }
    }
    return ATTN_OK;
}
