/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_check.c: the arguments of one call against the group's problem. An argument that would be ignored is
 * refused as one that is missing: both are wrong numbers in somebody's model.
 */
#include "layer/layer.h"
#include "base/arith.h"
#include <attn/attn_plugin_util.h>

#define REFUSE(PARAM, ...) return attn_fail(error, ATTN_E_INVALID, PARAM, __VA_ARGS__)

/* Given iff the problem has the feature. */
static int check_given(const attn_group_t *g, const void *t, uint64_t feature, const char *name, int required,
                       attn_error_t *error) {
    int known = (g->features & feature) != 0;
    if (t != NULL && !known)
        REFUSE(name, "%s is given, but the problem did not request that feature; it would be ignored", name);
    if (t == NULL && known && required)
        REFUSE(name, "%s is not given; the problem requested that feature", name);
    return ATTN_OK;
}

static int check_dims(const DLTensor *cache, const char *name, int ndim, attn_error_t *error) {
    if (cache->ndim != ndim || cache->shape == NULL || cache->strides == NULL || cache->data == NULL)
        REFUSE(name, "%s has %d dimensions or no data, shape or strides; expected %d dimensions", name,
               (int)cache->ndim, ndim);
    return ATTN_OK;
}

/* The cache is what kv_cache_shape said, but for the number of blocks and the strides. Of two caches the
 * backend knows the rows: each has four dimensions. */
static int check_cache(const attn_group_t *g, const DLTensor *cache, const DLTensor *v_cache,
                       attn_error_t *error) {
    int separate = (g->features & ATTN_F_SEPARATE_KV) != 0;
    if (cache == NULL)
        REFUSE("kv_cache", "kv_cache is not given; role %s has a cache", attn_role_name(g->problem.role));
    int code = check_given(g, v_cache, ATTN_F_SEPARATE_KV, "v_cache", 1, error);
    if (code == ATTN_OK) code = check_dims(cache, "kv_cache", separate ? 4 : (int)g->shape.ndim, error);
    if (code == ATTN_OK && separate) code = check_dims(v_cache, "v_cache", 4, error);
    if (code != ATTN_OK || separate) return code;
    for (int i = 0; i < cache->ndim; i++)
        if (i != g->block_axis && cache->shape[i] != g->shape.shape[i])
            REFUSE("kv_cache",
                   "kv_cache has size %lld in dimension %d; expected %lld (attn_group_kv_cache_shape)",
                   (long long)cache->shape[i], i, (long long)g->shape.shape[i]);
    return ATTN_OK;
}

/* [>= rows, heads, size] with the heads dimension left out by one-headed tensors if flat is allowed. */
static int check_rows(const DLTensor *t, const char *name, int64_t heads, int64_t size, int may_be_flat,
                      attn_error_t *error) {
    const int64_t full[3] = {-1, heads, size}, flat[2] = {-1, size};
    if (t != NULL && may_be_flat && t->ndim == 2) return attn_check_tensor(t, name, 0, 2, flat, error);
    return attn_check_tensor(t, name, 0, 3, full, error);
}

static int check_key_value(const attn_group_t *g, const DLTensor *key, const DLTensor *value,
                           attn_error_t *error) {
    const attn_problem_t *p = &g->problem;
    int is_mla = p->role == ATTN_ROLE_MLA || p->role == ATTN_ROLE_MLA_SPARSE;
    int64_t latent[2] = {-1, p->kv_lora_rank};
    if (p->role == ATTN_ROLE_MLA_PREFILL)
        return ATTN_OK; /* the MHA part alone: the backend knows its shapes */
    if (is_mla) {
        int code = attn_check_tensor(key, "key", 0, 2, latent, error);
        return code != ATTN_OK ? code : check_rows(value, "value", 1, p->qk_rope_head_dim, 1, error);
    }
    int code = check_rows(key, "key", p->num_kv_heads, p->head_size, 0, error);
    return code != ATTN_OK ? code : check_rows(value, "value", p->num_kv_heads, p->head_size_v, 0, error);
}

/* Slots that can be read here must lie in the cache; negative ones are skipped by the backend. */
static int check_slots(const attn_group_t *g, const attn_kv_update_t *a, attn_error_t *error) {
    const DLTensor *s = a->slot_mapping;
    if (s->device.device_type != kDLCPU || g->problem.block_size == 0) return ATTN_OK;
    const int64_t *slot = (const int64_t *)attn_data(s);
    int64_t blocks = a->kv_cache->shape[(g->features & ATTN_F_SEPARATE_KV) != 0 ? 0 : g->block_axis], end;
    if (__builtin_mul_overflow(blocks, (int64_t)g->problem.block_size, &end)) end = INT64_MAX;
    const int64_t i = attni_first_beyond(slot, s->shape[0], end);
    if (i < s->shape[0])
        REFUSE("slot_mapping", "slot_mapping[%lld] is %lld; the cache has %lld blocks of %u tokens",
               (long long)i, (long long)slot[i], (long long)blocks, (unsigned)g->problem.block_size);
    return ATTN_OK;
}

int attni_layer_check_update(const attn_layer_t *layer, const attn_kv_update_t *a, attn_error_t *error) {
    const attn_group_t *g = layer->group;
    int code = attn_check_tensor(a->slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, NULL, error);
    if (code == ATTN_OK) code = check_key_value(g, a->key, a->value, error);
    if (code == ATTN_OK) code = check_cache(g, a->kv_cache, a->v_cache, error);
    if (code != ATTN_OK) return code;
    if (a->key->shape[0] < a->slot_mapping->shape[0] || a->value->shape[0] < a->slot_mapping->shape[0])
        REFUSE(a->key->shape[0] < a->slot_mapping->shape[0] ? "key" : "value",
               "slot_mapping has %lld entries, key %lld rows and value %lld; every slot needs a row",
               (long long)a->slot_mapping->shape[0], (long long)a->key->shape[0],
               (long long)a->value->shape[0]);
    return check_slots(g, a, error);
}

static int check_optional(const attn_group_t *g, const attn_forward_t *a, attn_error_t *error) {
    int code = check_given(g, a->sinks, ATTN_F_SINK, "sinks", 1, error);
    if (code == ATTN_OK)
        code = check_given(g, a->alibi_slopes, ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT, "alibi_slopes", 1, error);
    if (code == ATTN_OK) code = check_given(g, a->rel_bias, ATTN_F_REL_BIAS, "rel_bias", 1, error);
    if (code == ATTN_OK) code = check_given(g, a->qq_bias, ATTN_F_QQ_BIAS, "qq_bias", 0, error);
    if (code == ATTN_OK) code = check_given(g, a->lse, ATTN_F_LSE, "lse", 0, error);
    if (code == ATTN_OK)
        code = check_given(g, a->output_scale, ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_NVFP4, "output_scale", 0,
                           error);
    if (code == ATTN_OK)
        code = check_given(g, a->output_block_scale, ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4,
                           "output_block_scale", 1, error);
    if (code == ATTN_OK)
        code = check_given(g, a->slot_mapping, ATTN_F_WRITE_IN_FORWARD, "slot_mapping", 0, error);
    if (code != ATTN_OK) return code;
    int is_sparse = g->problem.role == ATTN_ROLE_MLA_SPARSE;
    if ((a->topk_indices != NULL) != is_sparse)
        REFUSE("topk_indices", "topk_indices is %s; role %s %s",
               a->topk_indices != NULL ? "given" : "not given", attn_role_name(g->problem.role),
               is_sparse ? "needs it" : "does not use it");
    const int64_t topk[2] = {-1, g->problem.topk}, lse[2] = {g->problem.num_heads, -1};
    if (is_sparse)
        code = attn_check_tensor(a->topk_indices, "topk_indices", ATTN_DTYPE_INT32, 2, topk, error);
    if (code == ATTN_OK && a->lse != NULL)
        code = attn_check_tensor(a->lse, "lse", ATTN_DTYPE_FLOAT32, 2, lse, error);
    return code;
}

int attni_layer_check_forward(const attn_layer_t *layer, const attn_forward_t *a, int profiling,
                              attn_error_t *error) {
    const attn_group_t *g = layer->group;
    const attn_problem_t *p = &g->problem;
    const int64_t query[3] = {-1, p->num_heads, attn_query_size(p)},
                  output[3] = {-1, p->num_heads, attn_output_columns(p)};
    int code = attn_check_tensor(a->output, "output", p->out_dtype, 3, output, error);
    if (code != ATTN_OK || profiling) return code; /* nothing else is looked at in a profiling run */
    /* an fp8 query of latent attention is what the backend makes of it after absorption (semantics 7.4) */
    code = attn_check_tensor(a->query, "query", attn_problem_projects(p) ? p->dtype : p->query_dtype, 3,
                             query, error);
    if (code == ATTN_OK) code = check_optional(g, a, error);
    if (code != ATTN_OK) return code;
    int direct = (g->features & ATTN_F_CONTIGUOUS_KV) != 0; /* the keys of the call take the cache's place */
    if (attn_role_has_cache(p->role) && !(direct && a->kv_cache == NULL)) {
        code = check_cache(g, a->kv_cache, a->v_cache, error);
        if (code != ATTN_OK) return code;
    } else if (!attn_role_has_cache(p->role) && (a->kv_cache != NULL || a->v_cache != NULL)) {
        REFUSE("kv_cache", "kv_cache is given; role %s has no cache", attn_role_name(p->role));
    }
    if (a->slot_mapping != NULL) { /* what update_kv_cache would have been given */
        const attn_kv_update_t update = {.key = a->key,
                                         .value = a->value,
                                         .kv_cache = a->kv_cache,
                                         .v_cache = a->v_cache,
                                         .slot_mapping = a->slot_mapping};
        return attni_layer_check_update(layer, &update, error);
    }
    if (direct || !attn_role_has_cache(p->role) || a->key != NULL || a->value != NULL)
        return check_key_value(g, a->key, a->value, error);
    return ATTN_OK;
}
