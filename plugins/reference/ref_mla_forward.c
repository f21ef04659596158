/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_mla_forward.c: latent attention as MQA for every token (semantics 7.4): q_nope x W_UK gives L values
 * per head, which with q_pe meet the latent rows of the cache; the sum of latents goes through W_UV. An fp8
 * query is those L + R values as e4m3 of one scale. With ATTN_F_LATENT the query is those values, and the sum
 * of latents is the output (semantics 7.11).
 * Up-projecting K and V instead (the MHA form of prefill) is the same number in exact arithmetic.
 */
#include "ref_mla.h"
#include "ref_output.h"

/* Workspace in doubles, in this order: absorbed queries, one latent row, one query as given, states, output
 * rows. */
uint64_t ref_mla_workspace_doubles(const attn_instance_t *in) {
    uint64_t rows = (uint64_t)REF_TILE_TOKENS * in->heads;
    return rows * in->d + in->d + attn_query_size(&in->p) + rows * (2 + (uint64_t)in->dv) +
           rows * in->p.v_head_dim;
}

/* An index at or beyond seq_len would read what nobody wrote; beyond the table it means none (semantics 9.3).
 * */
static int check_indices(const attn_instance_t *in, const attn_forward_t *a, const ref_metadata_t *m,
                         attn_error_t *error) {
    int status = call_check_topk(a->topk_indices, in->p.topk, m->num_tokens, error);
    const int32_t *start = ref_metadata_ints(m, m->query_start_at),
                  *seq = ref_metadata_ints(m, m->seq_lens_at);
    const int64_t end = m->block_table_width * (int64_t)in->block_size;
    for (int32_t r = 0; r < m->num_reqs; r++)
        for (int64_t t = start[r]; status == ATTN_OK && t < start[r + 1]; t++) {
            int32_t count;
            status = call_count_selected((const int32_t *)(const void *)ref_at2(a->topk_indices, t, 0),
                                         in->p.topk, end, seq[r], t, r, &count, error);
        }
    return status;
}

int ref_mla_check_forward(const attn_instance_t *in, const attn_forward_t *a, const ref_metadata_t *m,
                          attn_error_t *error) {
    int status = call_check_rows(a->query, "query", in->query_dtype, in->heads, attn_query_size(&in->p),
                                 m->num_tokens, error);
    if (status == ATTN_OK) status = ref_mla_check_cache(in, a->kv_cache, a->v_cache, error);
    if (status == ATTN_OK) status = call_check_scale(a->scales.k, "k_scale", 1, error);
    if (status == ATTN_OK && in->is_fp8_query) status = call_check_scale(a->scales.q, "q_scale", 1, error);
    if (status == ATTN_OK && in->is_fp8_query) status = ref_fp8_check_scale(a->scales.q, "q_scale", error);
    if (status == ATTN_OK && attn_problem_projects(&in->p)) status = ref_mla_check_weights(in, a, error);
    if (status != ATTN_OK) return status;
    if (in->p.role == ATTN_ROLE_MLA_SPARSE) return check_indices(in, a, m, error);
    if (a->topk_indices != NULL)
        return attn_fail(error, ATTN_E_INVALID, "topk_indices",
                         "topk_indices was given; role mla attends to every token");
    return ATTN_OK;
}

/* out [L + R] of one head: sum over p of q_nope[p] * W_UK[p][:], then q_pe as it is. */
static void absorb(const attn_instance_t *in, const void *weights, int64_t head, const double *query,
                   double *out) {
    int64_t nope = in->p.qk_nope_head_dim, latent = in->p.kv_lora_rank;
    memset(out, 0, (size_t)latent * sizeof *out);
    for (int64_t p = 0; p < nope; p++) {
        const float *w = ref_mla_weight_row(in, weights, head, p);
        for (int64_t l = 0; l < latent; l++)
            out[l] += query[p] * w[l];
    }
    memcpy(out + latent, query + nope, in->p.qk_rope_head_dim * sizeof *out);
}

static void project_values(const attn_instance_t *in, const void *weights, int64_t head, const double *acc,
                           double *out) {
    for (int64_t v = 0; v < in->p.v_head_dim; v++) {
        const float *w = ref_mla_weight_row(in, weights, head, (int64_t)in->p.qk_nope_head_dim + v);
        out[v] = 0;
        for (int64_t l = 0; l < in->p.kv_lora_rank; l++)
            out[v] += acc[l] * w[l];
    }
}

/* One token over its own list of keys, duplicates counted as often as they come (semantics 9.2). */
static void attend_selected(const attn_instance_t *in, const attn_forward_t *a, const ref_metadata_t *m,
                            const ref_tile_t *tile, const ref_keys_t *keys, const ref_scratch_t *scratch,
                            const ref_state_t *state) {
    for (int t = 0; t < tile->tokens; t++) {
        const int32_t *row = (const int32_t *)(const void *)ref_at2(a->topk_indices, tile->row0 + t, 0);
        uint8_t visible[REF_TILE_TOKENS] = {0};
        visible[t] = 1;
        for (uint32_t j = 0; j < in->p.topk; j++)
            if (row[j] >= 0 && row[j] / (int64_t)in->block_size < m->block_table_width)
                ref_attend_key(in, a, tile, keys, 0, row[j], 0, visible, scratch, state);
    }
}

void ref_mla_run_tile(const attn_instance_t *in, const attn_forward_t *a, const ref_metadata_t *m, int32_t r,
                      const ref_tile_t *tile, const ref_mask_t *mask, double *workspace) {
    uint64_t rows = (uint64_t)REF_TILE_TOKENS * in->heads;
    ref_scratch_t scratch = {.query = workspace, .key = workspace + rows * in->d};
    scratch.value = scratch.key; /* the latent part of the key row is the value */
    double *query = scratch.key + in->d, *at = query + attn_query_size(&in->p);
    ref_state_t state = {.max = at, .sum = at + rows, .acc = at + 2 * rows};
    const int projects = attn_problem_projects(&in->p);
    double *out = projects ? state.acc + rows * in->dv : state.acc;
    ref_mla_cache_t cache = ref_mla_cache(in, a->kv_cache, &a->scales);
    ref_keys_t keys = {.mla = &cache, .block_size = in->block_size};
    keys.table = (const int32_t *)(const void *)(m->block_table + r * m->block_table_stride);

    for (int64_t t = 0; t < tile->tokens; t++)
        for (int64_t h = 0; h < in->heads; h++) {
            double *absorbed = scratch.query + (t * in->heads + h) * in->d;
            ref_load_row(ref_at2(a->query, tile->row0 + t, h), in->query_dtype, attn_query_size(&in->p),
                         projects ? query : absorbed);
            if (!projects) continue;
            absorb(in, a->weight_space, h, query, absorbed);
            if (in->is_fp8_query) ref_fp8_row(absorbed, in->d, a->scales.q);
        }
    ref_state_start(in, &state, tile->tokens, NULL, 0);
    if (in->p.role == ATTN_ROLE_MLA_SPARSE)
        attend_selected(in, a, m, tile, &keys, &scratch, &state);
    else
        ref_attend(in, a, tile, mask, &keys, 0, mask->seq_len, &scratch, &state);
    ref_state_finish(in, &state, tile->tokens);
    for (int64_t t = 0; t < tile->tokens; t++) {
        for (int64_t h = 0; projects && h < in->heads; h++)
            project_values(in, a->weight_space, h, state.acc + (t * in->heads + h) * in->dv,
                           out + (t * in->heads + h) * in->p.v_head_dim);
        ref_write_token(in, a, tile->row0 + t, in->out_size, out + t * in->heads * in->out_size,
                        state.max + t * in->heads);
    }
}
