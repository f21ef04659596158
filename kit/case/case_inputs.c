/* SPDX-License-Identifier: Apache-2.0 */
/* case_inputs.c: the inputs of a case from its seed: values, scales, and a shuffled block table. */
#include "attn_case.h"
#include "case_families.h"

#include <attn/attn_plugin_util.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

float kit_round(uint32_t dtype, double x) {
    switch (dtype) {
    case ATTN_DTYPE_FLOAT16:
        return (float)attn_from_f16(attn_to_f16(x));
    case ATTN_DTYPE_BFLOAT16:
        return (float)attn_from_bf16(attn_to_bf16(x));
    case ATTN_DTYPE_FP8_E4M3:
        return (float)attn_from_e4m3(attn_to_e4m3(x));
    case ATTN_DTYPE_FP8_E5M2:
        return (float)attn_from_e5m2(attn_to_e5m2(x));
    default:
        return (float)x;
    }
}

/* Normal values; every 61st or so is an extreme on purpose: zero, a power of two, or a few times the usual
 * size. */
static float *make_values(uint64_t *state, int64_t n, uint32_t dtype, double amplitude) {
    static const double extremes[] = {0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 1e-6, 4.5};
    float *x = malloc((size_t)(n > 0 ? n : 1) * sizeof *x);
    for (int64_t i = 0; x != NULL && i < n; i++) {
        uint64_t pick = kit_random(state) % 61;
        double value = pick == 0 ? extremes[kit_random(state) & 7] : kit_random_normal(state);
        x[i] = kit_round(dtype, amplitude * value);
    }
    return x;
}

static float *make_range(uint64_t *state, int64_t n, double low, double high) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; x != NULL && i < n; i++)
        x[i] = (float)(low + (high - low) * ((double)(kit_random(state) >> 11) * 0x1p-53));
    return x;
}

/* Pages in random order with unused ones between them; page 0 is unused (semantics 1.3). Requests share the
 * pages of the common prefix. */
static int make_table(const kit_case_t *c, kit_inputs_t *in, uint64_t *state) {
    int64_t bs = c->problem.block_size, needed = 0, width = 1;
    for (int r = 0; r < c->num_reqs; r++) {
        int64_t blocks = (c->seq_lens[r] + bs - 1) / bs;
        needed += blocks;
        if (blocks + 1 > width) width = blocks + 1;
    }
    in->table_width = width;
    in->num_blocks = needed + needed / 4 + 3;
    int32_t *pages = malloc((size_t)in->num_blocks * sizeof *pages);
    in->block_table =
        malloc((size_t)(c->num_reqs > 0 ? c->num_reqs : 1) * (size_t)width * sizeof *in->block_table);
    if (pages == NULL || in->block_table == NULL) {
        free(pages);
        return -1;
    }
    for (int64_t i = 0; i < in->num_blocks; i++)
        pages[i] = (int32_t)i;
    for (int64_t i = in->num_blocks - 1; i > 1; i--) { /* page 0 stays where it is */
        int64_t j = kit_random_in(state, 1, i);
        int32_t t = pages[i];
        pages[i] = pages[j];
        pages[j] = t;
    }
    int64_t next = 1;
    for (int r = 0; r < c->num_reqs; r++)
        for (int64_t i = 0; i < width; i++) {
            int32_t *entry = &in->block_table[r * width + i];
            if (r > 0 && i < c->common_prefix_len / bs)
                *entry = in->block_table[i];
            else if (i * bs < c->seq_lens[r])
                *entry = pages[next++];
            else
                *entry = INT32_C(0x7ffffff0); /* garbage: must not be read */
        }
    free(pages);
    return 0;
}

/* Lists of positions in no order, some twice, holes of -1 between; a list longer than the request repeats
 * itself. The first token of request 0 selects nothing. */
static int32_t *make_topk(const kit_case_t *c, uint64_t *state, int64_t tokens) {
    int64_t topk = c->problem.topk, row = 0;
    int32_t *out = malloc((size_t)(tokens > 0 ? tokens : 1) * (size_t)topk * sizeof *out);
    for (int r = 0; out != NULL && r < c->num_reqs; r++)
        for (int32_t i = 0; i < c->query_lens[r]; i++, row++) {
            int64_t last = (int64_t)c->seq_lens[r] - c->query_lens[r] + i;
            for (int64_t j = 0; j < topk; j++)
                out[row * topk + j] = j % 5 == 3 || row == 0 ? -1 : (int32_t)kit_random_in(state, 0, last);
        }
    return out;
}

/* The first tokens of every request become those of request 0. */
static void share_prefix(const kit_case_t *c, kit_inputs_t *in, int64_t k_row, int64_t v_row) {
    for (int r = 1; r < c->num_reqs; r++) {
        memcpy(in->key + in->key_start[r] * k_row, in->key,
               (size_t)(c->common_prefix_len * k_row) * sizeof(float));
        memcpy(in->value + in->key_start[r] * v_row, in->value,
               (size_t)(c->common_prefix_len * v_row) * sizeof(float));
    }
}

/* Query, key and value of a family, request after request; 0 on success. */
static int make_family(const kit_case_t *c, const kit_sizes_t *z, kit_inputs_t *in) {
    const attn_problem_t *p = &c->problem;
    kit_family_t f = {.heads = z->heads,
                      .kv_heads = z->kv_heads,
                      .query_size = z->query,
                      .key_size = z->key,
                      .value_size = z->value,
                      /* of an absorbed query, whose output has every column, it is ours to say */
                      .nope_size = attn_problem_projects(p) ? p->qk_nope_head_dim
                                   : z->is_latent           ? (p->kv_lora_rank + 1) / 2
                                                            : 0,
                      .scale = p->scale,
                      .magnitude = kit_value_size(c)};
    in->query = malloc((size_t)(in->num_tokens * z->heads * z->query + 1) * sizeof *in->query);
    in->key = malloc((size_t)(in->num_keys * z->kv_heads * z->key + 1) * sizeof *in->key);
    in->value = malloc((size_t)(in->num_keys * z->kv_heads * z->value + 1) * sizeof *in->value);
    if (in->query == NULL || in->key == NULL || in->value == NULL) return -1;
    int64_t token = 0;
    for (int r = 0; r < c->num_reqs; r++) {
        f.num_tokens = c->query_lens[r], f.num_keys = c->seq_lens[r];
        f.needle = r % 3 == 0 ? f.num_keys / 3 : r % 3 == 1 ? f.num_keys - 1 : 0;
        f.query = in->query + token * z->heads * z->query;
        f.key = in->key + in->key_start[r] * z->kv_heads * z->key;
        f.value = in->value + in->key_start[r] * z->kv_heads * z->value;
        if (kit_family_fill(c->family, c->seed + (uint64_t)r, &f) != 0) return -1;
        token += c->query_lens[r];
    }
    return 0;
}

/* kv_b_proj becomes what e4m3 codes times the scales of their blocks are, of scales far from each other. */
static int make_block_weights(const kit_case_t *c, int64_t rows, int64_t columns, kit_inputs_t *in) {
    const int64_t across = (columns + 127) / 128, n = (rows + 127) / 128 * across;
    uint64_t own = c->seed + 77;
    in->weight_scale = make_range(&own, n, -4, 3);
    if (in->weight_scale == NULL) return -1;
    for (int64_t i = 0; i < n; i++) /* about 1 of the weights' size, whatever the others are */
        in->weight_scale[i] = 0.01f * (float)exp2((double)in->weight_scale[i]);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < columns; k++) {
            const float scale = in->weight_scale[r / 128 * across + k / 128];
            float *w = in->kv_b_proj + r * columns + k;
            *w = (float)attn_from_e4m3(attn_to_e4m3((double)(*w / scale))) * scale;
        }
    return 0;
}

kit_inputs_t *kit_inputs_make(const kit_case_t *c) {
    const attn_problem_t *p = &c->problem;
    uint64_t state = c->seed ^ UINT64_C(0x5bd1e995), *s = &state;
    kit_sizes_t z = kit_sizes(p);
    int64_t heads = z.heads, kv_heads = z.kv_heads, d = z.key, dv = z.value;
    double amplitude = c->amplitude != 0 ? c->amplitude : 1.0;
    kit_inputs_t *in = calloc(1, sizeof *in);
    if (in == NULL) return NULL;
    for (int r = 0; r < c->num_reqs; r++) {
        in->num_tokens += c->query_lens[r];
        if (c->query_lens[r] > in->bias_width) in->bias_width = c->query_lens[r];
        in->key_start[r + 1] = in->key_start[r] + c->seq_lens[r];
    }
    in->num_keys = in->key_start[c->num_reqs];
    if (c->seed % 3 == 1) in->bias_width = (in->bias_width + 1) / 2; /* the last keys of a step have none */
    if (c->seed % 3 == 2) in->bias_width += 3;
    const int has_bias = (p->features & ATTN_F_QQ_BIAS) != 0;
    if (in->bias_width == 0 || (!has_bias && in->bias_width > 4200)) in->bias_width = 1;
    in->bias_rows = in->num_tokens + 1;
    for (int r = 0; has_bias && r < c->num_reqs; r++)
        in->bias_rows += kit_case_more_tokens(c, r); /* bounds of lengths have rows as well */
    in->num_scales = (c->flags & KIT_PER_HEAD) != 0 ? kv_heads : 1;
    in->q_scale = make_range(s, in->num_scales, 0.02, 0.05);
    in->k_scale = make_range(s, in->num_scales, 0.02, 0.05);
    in->v_scale = make_range(s, in->num_scales, 0.02, 0.05);
    if (in->k_scale != NULL && (c->flags & KIT_TURNED_KEYS) != 0)
        for (int64_t h = 0; h < in->num_scales; h += 2)
            in->k_scale[h] = -in->k_scale[h];
    in->output_scale = (p->features & ATTN_F_OUT_NVFP4) == 0
                           ? KIT_OUTPUT_SCALE
                           : KIT_OUTPUT_FP4_SCALE * (float)(amplitude * kit_value_size(c));
    if (attn_kv_has_channel_scales(p->kv_cache_dtype)) {
        uint64_t own = c->seed + 99; /* what follows stays as it is for other formats */
        in->channel_scale = make_range(&own, kv_heads * dv, 0.02, 0.08);
    }
    int failed = 0;
    if (c->family != KIT_USUAL)
        failed = make_family(c, &z, in) != 0;
    else {
        in->query = make_values(s, in->num_tokens * heads * z.query, z.query_dtype,
                                z.query_dtype != p->dtype ? 30.0 : amplitude);
        in->key = make_values(s, in->num_keys * kv_heads * d, p->dtype, amplitude);
        in->value = make_values(s, in->num_keys * kv_heads * dv, p->dtype, amplitude);
    }
    in->sinks = make_range(s, heads, -2.0, 4.0);
    in->alibi_slopes = make_range(s, heads, 0.01, KIT_MAX_SLOPE);
    in->qq_bias = make_range(s, in->bias_rows * in->bias_width, -2.0, 2.0);
    /* tables that most distances are within, and that most are beyond */
    static const int64_t far[] = {20, 0, 1, 7, 128};
    in->rel_max = far[c->seed % (sizeof far / sizeof far[0])];
    if ((p->features & ATTN_F_REL_BIAS) != 0)
        in->rel_bias = make_range(s, heads * (2 * in->rel_max + 1), -4.0, 4.0);
    failed = failed || ((p->features & ATTN_F_REL_BIAS) != 0 && in->rel_bias == NULL);
    if (p->topk != 0) in->topk_indices = make_topk(c, s, in->num_tokens);
    failed = failed || (p->topk != 0 && in->topk_indices == NULL);
    if (attn_problem_projects(p)) {
        int64_t rows = heads * ((int64_t)p->qk_nope_head_dim + p->v_head_dim);
        in->kv_b_proj = make_values(s, rows * p->kv_lora_rank, p->dtype, 1.0 / sqrt((double)p->kv_lora_rank));
        if (in->kv_b_proj != NULL && c->family != KIT_USUAL)
            kit_family_projection(in->kv_b_proj, heads, p->qk_nope_head_dim, p->v_head_dim, p->kv_lora_rank);
        failed = failed || in->kv_b_proj == NULL;
        if (!failed && (c->flags & KIT_BLOCK_WEIGHTS) != 0)
            failed = make_block_weights(c, rows, p->kv_lora_rank, in) != 0;
    }
    failed = failed || (attn_kv_has_channel_scales(p->kv_cache_dtype) && !in->channel_scale);
    failed = failed || !in->q_scale || !in->k_scale || !in->v_scale || !in->query || !in->key || !in->value ||
             !in->sinks || !in->alibi_slopes || !in->qq_bias;
    if (!failed && attn_role_has_cache(p->role)) failed = make_table(c, in, s) != 0;
    if (failed) {
        kit_inputs_free(in);
        return NULL;
    }
    if (c->common_prefix_len > 0) share_prefix(c, in, kv_heads * d, kv_heads * dv);
    return in;
}

void kit_inputs_free(kit_inputs_t *in) {
    if (in == NULL) return;
    free(in->query);
    free(in->key);
    free(in->value);
    free(in->sinks);
    free(in->alibi_slopes);
    free(in->qq_bias);
    free(in->rel_bias);
    free(in->q_scale);
    free(in->k_scale);
    free(in->v_scale);
    free(in->channel_scale);
    free(in->block_table);
    free(in->kv_b_proj);
    free(in->weight_scale);
    free(in->topk_indices);
    free(in);
}
