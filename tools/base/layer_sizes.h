/* SPDX-License-Identifier: Apache-2.0 */
/* layer_sizes.h: what one token has in each tensor of a layer, by role: plain heads, or latents (semantics
 * 7.4, 7.11). */
#ifndef ATTN_TOOLS_LAYER_SIZES_H
#define ATTN_TOOLS_LAYER_SIZES_H

#include <attn/attn_plugin_util.h>

typedef struct layer_sizes {
    int is_latent;                     /* key and value have no heads: kv_c and k_pe */
    int64_t heads, kv_heads;           /* kv_heads: 1 where is_latent */
    int64_t query, key, value, output; /* elements of one head */
} layer_sizes_t;

static inline layer_sizes_t layer_sizes(const attn_problem_t *p) {
    layer_sizes_t s = {.heads = p->num_heads, .query = p->head_size, .key = p->head_size};
    s.is_latent = p->role == ATTN_ROLE_MLA || p->role == ATTN_ROLE_MLA_SPARSE;
    s.kv_heads = s.is_latent ? 1 : p->num_kv_heads != 0 ? p->num_kv_heads : p->num_heads;
    s.value = p->role == ATTN_ROLE_MLA_PREFILL ? p->v_head_dim
              : p->head_size_v != 0            ? p->head_size_v
                                               : p->head_size;
    s.output = s.value;
    if (!s.is_latent) return s;
    s.query = attn_query_size(p), s.output = attn_output_size(p);
    s.key = p->kv_lora_rank, s.value = p->qk_rope_head_dim;
    return s;
}

/* Rows of kv_b_proj, whose columns are the latent's; only where attn_problem_projects. */
static inline int64_t layer_weight_rows(const attn_problem_t *p) {
    return p->num_heads * ((int64_t)p->qk_nope_head_dim + p->v_head_dim);
}

#endif
