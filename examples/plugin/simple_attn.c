/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simple_attn.c: a complete attention backend for libattn in one file: paged decoder and cross attention on
 * the CPU, float32 and bfloat16, fp8 cache, sliding window, soft cap, sinks, LSE. Written to be read, not to
 * be fast. The order below is the order of the calls: what can it do, open, how big, plan a batch, write the
 * cache, attend.
 */
#include <attn/attn_plugin_util.h>

#include <stdlib.h>

#include "simple_rules.h"

#define SIMPLE_FEATURES                                                                                      \
    (ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_SINK | ATTN_F_NON_CAUSAL | ATTN_F_DIFF_KV |            \
     ATTN_F_LSE | ATTN_F_PER_HEAD_SCALES | ATTN_F_BATCH_INVARIANT | ATTN_F_BLOCK_STRIDE)

struct attn_instance {
    attn_problem_t problem;
    simple_layer_t layer;
    int64_t max_seqs, max_tokens, max_len;
};

/* What build_metadata leaves for forward; query_start_loc[num_reqs + 1] and seq_lens[num_reqs] follow it. */
typedef struct simple_plan {
    uint64_t magic;
    int64_t num_reqs, num_tokens;
    const int32_t *block_table;
    int64_t table_stride;
} simple_plan_t;

#define SIMPLE_PLAN_MAGIC UINT64_C(0x6e616c702d706d73)

static const int32_t *simple_starts(const simple_plan_t *plan) {
    return (const int32_t *)(plan + 1);
}
static const int32_t *simple_lens(const simple_plan_t *plan) {
    return simple_starts(plan) + plan->num_reqs + 1;
}

/* ------------------------------------------------------------ what it can do */

/* The capability table answers nearly everything; this is for what it cannot express. */
static int simple_supports_combination(const attn_problem_t *problem, const attn_device_t *device,
                                       attn_reasons_t *reasons) {
    (void)device;
    attn_problem_t p;
    if (attn_intake(&p, sizeof p, problem, "problem", NULL) != ATTN_OK) return ATTN_E_INVALID;
    if (p.role == ATTN_ROLE_ENCODER_DECODER && p.sliding_window != 0)
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, "sliding_window", "encoder_decoder with a window",
                        "sliding_window=0", "cross attention has no positions to measure a window with");
    return ATTN_OK;
}

/* ---------------------------------------------------------------------- open */

static int simple_open(const attn_problem_t *problem, const attn_device_t *device,
                       const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                       attn_instance_t **instance, attn_error_t *error) {
    (void)options, (void)num_options, (void)host;
    attn_problem_t p;
    attn_device_t d;
    int rc = attn_intake(&p, sizeof p, problem, "problem", error);
    if (rc == ATTN_OK) rc = attn_intake_known(&d, sizeof d, device, "device", error);
    if (rc != ATTN_OK) return rc;
    uint64_t unknown = attn_problem_features(&p) & ~SIMPLE_FEATURES;
    if (unknown != 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "features",
                         "features has bits 0x%llx that are not served", (unsigned long long)unknown);
    if (p.role != ATTN_ROLE_DECODER && p.role != ATTN_ROLE_ENCODER_DECODER)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "role", "role %s is not served", attn_role_name(p.role));
    if (p.dtype != ATTN_DTYPE_FLOAT32 && p.dtype != ATTN_DTYPE_BFLOAT16)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "dtype",
                         "dtype %s is not served; use float32 or bfloat16", attn_dtype_name(p.dtype));
    uint32_t storage = attn_kv_storage(p.kv_cache_dtype, p.dtype);
    if (storage != p.dtype && p.kv_cache_dtype != ATTN_KV_FP8_E4M3)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "kv_cache_dtype",
                         "kv_cache_dtype %s is not served; use auto or fp8", attn_kv_name(p.kv_cache_dtype));
    if (p.out_dtype != 0 && p.out_dtype != p.dtype)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "out_dtype", "out_dtype must be 0 or the dtype");
    if (d.type != kDLCPU)
        return attn_fail(error, ATTN_E_DEVICE, "device", "device type %d is not served; use the CPU",
                         (int)d.type);
    if (p.num_kv_heads == 0) p.num_kv_heads = p.num_heads;
    if (p.head_size_v == 0) p.head_size_v = p.head_size;
    if (p.num_heads == 0 || p.head_size == 0 || p.num_heads % p.num_kv_heads != 0)
        return attn_fail(error, ATTN_E_INVALID, "num_heads",
                         "num_heads %u must be a multiple of num_kv_heads %u", p.num_heads, p.num_kv_heads);

    attn_instance_t *self = calloc(1, sizeof *self);
    if (self == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for an instance");
    self->problem = p;
    self->layer.num_heads = p.num_heads;
    self->layer.num_kv_heads = p.num_kv_heads;
    self->layer.head_size = p.head_size;
    self->layer.head_size_v = p.head_size_v;
    self->layer.block_size = p.block_size != 0 ? p.block_size : 16;
    self->layer.window = p.sliding_window;
    self->layer.scale = p.scale;
    self->layer.soft_cap = p.logits_soft_cap;
    self->layer.is_causal = p.mask == ATTN_MASK_CAUSAL && p.role == ATTN_ROLE_DECODER;
    self->layer.has_sink = (p.features & ATTN_F_SINK) != 0;
    self->layer.dtype = p.dtype == ATTN_DTYPE_FLOAT32 ? SIMPLE_F32 : SIMPLE_BF16;
    self->layer.storage = storage == ATTN_DTYPE_FP8_E4M3 ? SIMPLE_E4M3 : self->layer.dtype;
    self->max_seqs = p.max_num_seqs != 0 ? p.max_num_seqs : 256;
    self->max_tokens = p.max_num_batched_tokens != 0 ? p.max_num_batched_tokens : 8192;
    self->max_len = p.max_model_len != 0 ? p.max_model_len : 131072;
    *instance = self;
    return ATTN_OK;
}

static void simple_close(attn_instance_t *self) {
    free(self);
}

/* ------------------------------------------------------------------- how big */

static int simple_kv_cache_shape(attn_instance_t *self, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                                 attn_error_t *error) {
    attn_kv_cache_shape_t full;
    uint32_t layout = self->problem.kv_layout != 0 ? self->problem.kv_layout : (uint32_t)ATTN_LAYOUT_NHD;
    if (num_blocks == 0) num_blocks = self->problem.num_blocks;
    int rc = attn_dense_cache_shape(&self->problem, layout, (uint32_t)self->layer.block_size, num_blocks,
                                    &full, error);
    if (rc == ATTN_OK) rc = attn_give(shape, &full, sizeof full, "shape", error);
    return rc;
}

static int simple_space_needed(attn_instance_t *self, attn_space_needed_t *needed, attn_error_t *error) {
    attn_space_needed_t full = {0};
    full.struct_size = sizeof full;
    full.alignment = 16;
    full.metadata_bytes = sizeof(simple_plan_t) + (2 * (uint64_t)self->max_seqs + 1) * sizeof(int32_t);
    full.workspace_bytes = (uint64_t)self->layer.head_size_v * sizeof(double); /* one row of the output */
    return attn_give(needed, &full, sizeof full, "needed", error);
}

/* -------------------------------------------------------------- plan a batch */

static int simple_check_space(attn_instance_t *self, const attn_space_t *space, attn_error_t *error) {
    attn_space_needed_t needed = {sizeof needed, 0, 0, 0, 0, 0};
    simple_space_needed(self, &needed, NULL);
    if (space->metadata == NULL || space->metadata_bytes < needed.metadata_bytes)
        return attn_fail(error, ATTN_E_SPACE, "metadata", "metadata has %llu bytes; %llu are needed",
                         (unsigned long long)space->metadata_bytes,
                         (unsigned long long)needed.metadata_bytes);
    if (space->workspace == NULL || space->workspace_bytes < needed.workspace_bytes)
        return attn_fail(error, ATTN_E_SPACE, "workspace", "workspace has %llu bytes; %llu are needed",
                         (unsigned long long)space->workspace_bytes,
                         (unsigned long long)needed.workspace_bytes);
    return ATTN_OK;
}

static int simple_build_metadata(attn_instance_t *self, const attn_batch_t *batch, const attn_space_t *space,
                                 void *stream, attn_error_t *error) {
    (void)stream;
    attn_batch_t b;
    attn_space_t s;
    int rc = attn_intake(&b, sizeof b, batch, "batch", error);
    if (rc == ATTN_OK) rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc == ATTN_OK) rc = simple_check_space(self, &s, error);
    if (rc != ATTN_OK) return rc;
    if (b.num_reqs < 0 || b.num_reqs > self->max_seqs)
        return attn_fail(error, ATTN_E_INVALID, "num_reqs", "num_reqs is %d; the problem declared 0 to %lld",
                         b.num_reqs, (long long)self->max_seqs);
    if (b.num_actual_tokens < 0 || b.num_actual_tokens > self->max_tokens)
        return attn_fail(error, ATTN_E_INVALID, "num_actual_tokens",
                         "num_actual_tokens is %d; the problem declared 0 to %lld", b.num_actual_tokens,
                         (long long)self->max_tokens);
    if (b.common_prefix_len != 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "common_prefix_len", "cascade is not served; give 0");
    if (b.query_start_loc_host == NULL || b.seq_lens_host == NULL)
        return attn_fail(error, ATTN_E_INVALID,
                         b.seq_lens_host == NULL ? "seq_lens_host" : "query_start_loc_host",
                         "the host arrays of starts and lengths are required");
    int64_t rows[2] = {b.num_reqs, -1};
    rc = attn_check_tensor(b.block_table, "block_table", ATTN_DTYPE_INT32, 2, rows, error);
    if (rc != ATTN_OK) return rc;
    for (int32_t r = 0; r < b.num_reqs; r++) {
        int64_t query_len = (int64_t)b.query_start_loc_host[r + 1] - b.query_start_loc_host[r];
        int64_t len = b.seq_lens_host[r];
        int too_short = self->problem.role == ATTN_ROLE_DECODER && len < query_len;
        if (query_len < 0 || b.query_start_loc_host[r] < 0)
            return attn_fail(error, ATTN_E_INVALID, "query_start_loc", "query_start_loc falls at request %d",
                             r);
        if (len < 0 || len > self->max_len || too_short ||
            len > b.block_table->shape[1] * self->layer.block_size)
            return attn_fail(error, ATTN_E_INVALID, "seq_lens",
                             "seq_lens[%d] is %lld; it must hold the %lld queries, "
                             "fit the block table and stay below %lld",
                             r, (long long)len, (long long)query_len, (long long)self->max_len);
    }
    if (b.query_start_loc_host[0] != 0 || b.query_start_loc_host[b.num_reqs] != b.num_actual_tokens)
        return attn_fail(error, ATTN_E_INVALID, "query_start_loc", "query_start_loc must run from 0 to %d",
                         b.num_actual_tokens);

    simple_plan_t *plan = s.metadata;
    plan->magic = SIMPLE_PLAN_MAGIC;
    plan->num_reqs = b.num_reqs;
    plan->num_tokens = b.num_actual_tokens;
    plan->block_table = attn_data(b.block_table);
    plan->table_stride = b.block_table->strides[0];
    memcpy(plan + 1, b.query_start_loc_host, ((size_t)b.num_reqs + 1) * sizeof(int32_t));
    memcpy((int32_t *)(plan + 1) + b.num_reqs + 1, b.seq_lens_host, (size_t)b.num_reqs * sizeof(int32_t));
    return ATTN_OK;
}

/* ----------------------------------------------------------- write the cache */

static int simple_read_cache(attn_instance_t *self, const DLTensor *t, const attn_scales_t *scales,
                             simple_cache_t *cache, attn_error_t *error) {
    const simple_layer_t *l = &self->layer;
    uint32_t type = attn_kv_storage(self->problem.kv_cache_dtype, self->problem.dtype);
    int64_t shape[4] = {-1, l->num_kv_heads, l->block_size, l->head_size + l->head_size_v};
    int rc = attn_check_tensor(t, "kv_cache", type, 4, shape, error);
    if (rc == ATTN_OK && scales->k != NULL)
        rc = attn_check_tensor(scales->k, "k_scale", ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc == ATTN_OK && scales->v != NULL)
        rc = attn_check_tensor(scales->v, "v_scale", ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc != ATTN_OK) return rc;
    cache->base = attn_data(t);
    cache->block_stride = attn_byte_stride(t, 0);
    cache->head_stride = attn_byte_stride(t, 1);
    cache->token_stride = attn_byte_stride(t, 2);
    int is_scaled = l->storage == SIMPLE_E4M3;
    cache->k_scale = is_scaled && scales->k != NULL ? attn_data(scales->k) : NULL;
    cache->v_scale = is_scaled && scales->v != NULL ? attn_data(scales->v) : NULL;
    cache->num_k_scales = cache->k_scale != NULL ? scales->k->shape[0] : 0;
    cache->num_v_scales = cache->v_scale != NULL ? scales->v->shape[0] : 0;
    return ATTN_OK;
}

static int simple_update_kv_cache(attn_instance_t *self, const attn_kv_update_t *args, void *stream,
                                  attn_error_t *error) {
    (void)stream;
    const simple_layer_t *l = &self->layer;
    attn_kv_update_t a;
    simple_cache_t cache;
    int64_t any[1] = {-1}, k_shape[3] = {-1, l->num_kv_heads, l->head_size};
    int64_t v_shape[3] = {-1, l->num_kv_heads, l->head_size_v};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.key, "key", self->problem.dtype, 3, k_shape, error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.value, "value", self->problem.dtype, 3, v_shape, error);
    if (rc == ATTN_OK)
        rc = attn_check_tensor(a.slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, any, error);
    if (rc == ATTN_OK) rc = simple_read_cache(self, a.kv_cache, &a.scales, &cache, error);
    if (rc != ATTN_OK) return rc;
    const int64_t *slots = attn_data(a.slot_mapping);
    int64_t n = a.slot_mapping->shape[0], end = a.kv_cache->shape[0] * l->block_size;
    if (n > a.key->shape[0] || n > a.value->shape[0])
        return attn_fail(error, ATTN_E_INVALID, "slot_mapping",
                         "slot_mapping has %lld rows, key and value fewer", (long long)n);
    for (int64_t t = 0; t < n; t++)
        if (slots[t] >= end)
            return attn_fail(error, ATTN_E_INVALID, "slot_mapping",
                             "slot_mapping[%lld] is %lld; the cache ends at %lld", (long long)t,
                             (long long)slots[t], (long long)end);

    for (int64_t t = 0; t < n; t++) {
        if (simple_is_padding(slots[t])) continue;
        for (int64_t h = 0; h < l->num_kv_heads; h++) {
            char *row = simple_cache_row(&cache, slots[t] / l->block_size, h, slots[t] % l->block_size);
            const char *k =
                (char *)attn_data(a.key) + t * attn_byte_stride(a.key, 0) + h * attn_byte_stride(a.key, 1);
            const char *v = (char *)attn_data(a.value) + t * attn_byte_stride(a.value, 0) +
                            h * attn_byte_stride(a.value, 1);
            double k_scale = simple_scale_of(cache.k_scale, cache.num_k_scales, h);
            double v_scale = simple_scale_of(cache.v_scale, cache.num_v_scales, h);
            for (int64_t i = 0; i < l->head_size; i++)
                simple_store(row, l->storage, i, simple_load(k, l->dtype, i) / k_scale);
            for (int64_t i = 0; i < l->head_size_v; i++)
                simple_store(row, l->storage, l->head_size + i, simple_load(v, l->dtype, i) / v_scale);
        }
    }
    return ATTN_OK;
}

/* -------------------------------------------------------------------- attend */

/* One row of one head: softmax over the visible keys in one pass (Milakov and Gimelshein 2018). acc has Dv
 * numbers. */
static double simple_row(const simple_layer_t *l, const simple_cache_t *cache, const int32_t *blocks,
                         const char *query, int64_t h, int64_t q, int64_t seq_len, double sink, double *acc) {
    int64_t kv_head = simple_kv_head(l, h);
    double k_scale = simple_scale_of(cache->k_scale, cache->num_k_scales, kv_head);
    double v_scale = simple_scale_of(cache->v_scale, cache->num_v_scales, kv_head);
    int64_t end = simple_key_end(l, q, seq_len);
    double max, sum;
    simple_start(sink, l->has_sink, &max, &sum);
    for (int64_t i = 0; i < l->head_size_v; i++)
        acc[i] = 0;
    for (int64_t k = 0; k < end; k++) {
        if (!simple_is_visible(l, q, k, seq_len)) continue;
        const char *row = simple_cache_row(cache, blocks[k / l->block_size], kv_head, k % l->block_size);
        double dot = 0;
        for (int64_t i = 0; i < l->head_size; i++)
            dot += simple_load(query, l->dtype, i) * (simple_load(row, l->storage, i) * k_scale);
        double s = simple_score(l, dot), new_max = s > max ? s : max;
        if (s == -INFINITY) continue; /* hides its key; of infinities there is no difference */
        double keep = exp(max - new_max), p = exp(s - new_max);
        for (int64_t i = 0; i < l->head_size_v; i++)
            acc[i] = acc[i] * keep + p * (simple_load(row, l->storage, l->head_size + i) * v_scale);
        sum = sum * keep + p;
        max = new_max;
    }
    for (int64_t i = 0; i < l->head_size_v; i++)
        acc[i] /= sum > 0 ? sum : 1; /* no visible key: stays 0 */
    return simple_lse(max, sum);
}

static int simple_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    (void)stream;
    const simple_layer_t *l = &self->layer;
    attn_forward_t a;
    attn_space_t s;
    simple_cache_t cache;
    int64_t q_shape[3] = {-1, l->num_heads, l->head_size}, o_shape[3] = {-1, l->num_heads, l->head_size_v};
    int64_t lse_shape[2] = {l->num_heads, -1}, sink_shape[1] = {l->num_heads};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.query, "query", self->problem.dtype, 3, q_shape, error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.output, "output", self->problem.dtype, 3, o_shape, error);
    if (rc != ATTN_OK) return rc;
    char *out = attn_data(a.output);
    int64_t out_token = attn_byte_stride(a.output, 0), out_head = attn_byte_stride(a.output, 1);
    if (space == NULL) { /* the profiling run: there is no batch */
        for (int64_t t = 0; t < a.output->shape[0]; t++)
            for (int64_t h = 0; h < l->num_heads; h++)
                memset(out + t * out_token + h * out_head, 0,
                       (size_t)(l->head_size_v * simple_size(l->dtype)));
        return ATTN_OK;
    }
    rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc == ATTN_OK) rc = simple_check_space(self, &s, error);
    if (rc == ATTN_OK) rc = simple_read_cache(self, a.kv_cache, &a.scales, &cache, error);
    if (rc == ATTN_OK && a.lse != NULL)
        rc = attn_check_tensor(a.lse, "lse", ATTN_DTYPE_FLOAT32, 2, lse_shape, error);
    if (rc == ATTN_OK && l->has_sink)
        rc = attn_check_tensor(a.sinks, "sinks", ATTN_DTYPE_FLOAT32, 1, sink_shape, error);
    if (rc != ATTN_OK) return rc;
    const simple_plan_t *plan = s.metadata;
    if (plan->magic != SIMPLE_PLAN_MAGIC)
        return attn_fail(error, ATTN_E_STATE, "metadata", "metadata is not built; call build_metadata first");
    const char *too_short = plan->num_tokens > a.query->shape[0]                  ? "query"
                            : plan->num_tokens > a.output->shape[0]               ? "output"
                            : a.lse != NULL && plan->num_tokens > a.lse->shape[1] ? "lse"
                                                                                  : NULL;
    if (too_short != NULL)
        return attn_fail(error, ATTN_E_INVALID, too_short, "%s must hold the %lld tokens of the batch",
                         too_short, (long long)plan->num_tokens);

    const int32_t *starts = simple_starts(plan), *lens = simple_lens(plan);
    const float *sinks = l->has_sink ? attn_data(a.sinks) : NULL;
    double *acc = s.workspace;
    for (int64_t r = 0; r < plan->num_reqs; r++) {
        const int32_t *blocks = plan->block_table + r * plan->table_stride;
        for (int64_t j = 0; j * l->block_size < lens[r]; j++)
            if (blocks[j] < 0 || blocks[j] >= a.kv_cache->shape[0])
                return attn_fail(error, ATTN_E_INVALID, "block_table",
                                 "block_table[%lld][%lld] is %d; the cache has "
                                 "blocks 0 to %lld",
                                 (long long)r, (long long)j, (int)blocks[j],
                                 (long long)a.kv_cache->shape[0] - 1);
    }
    for (int64_t r = 0; r < plan->num_reqs; r++) {
        const int32_t *blocks = plan->block_table + r * plan->table_stride;
        for (int64_t t = starts[r]; t < starts[r + 1]; t++) {
            int64_t q = simple_query_position(t - starts[r], starts[r + 1] - starts[r], lens[r]);
            for (int64_t h = 0; h < l->num_heads; h++) {
                const char *query = (char *)attn_data(a.query) + t * attn_byte_stride(a.query, 0) +
                                    h * attn_byte_stride(a.query, 1);
                double lse =
                    simple_row(l, &cache, blocks, query, h, q, lens[r], sinks != NULL ? sinks[h] : 0, acc);
                for (int64_t i = 0; i < l->head_size_v; i++)
                    simple_store(out + t * out_token + h * out_head, l->dtype, i, acc[i]);
                if (a.lse != NULL) ((float *)attn_data(a.lse))[h * a.lse->strides[0] + t] = (float)lse;
            }
        }
    }
    return ATTN_OK;
}

/* -------------------------------------------------------------------- tables */

static const attn_capabilities_t simple_capabilities = {
    .struct_size = sizeof(attn_capabilities_t),
    .graph_support = ATTN_GRAPH_NEVER,
    .roles = ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER_DECODER),
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),
    .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FP8_E4M3),
    .features = SIMPLE_FEATURES,
    .device_types = ATTN_BIT(kDLCPU),
    .query_len_support = ATTN_QUERY_LEN_VARLEN,
};

static const attn_backend_ops_t simple_ops = {
    .struct_size = sizeof(attn_backend_ops_t),
    .supports_combination = simple_supports_combination,
    .open = simple_open,
    .close = simple_close,
    .kv_cache_shape = simple_kv_cache_shape,
    .space_needed = simple_space_needed,
    .build_metadata = simple_build_metadata,
    .update_kv_cache = simple_update_kv_cache,
    .forward = simple_forward,
};

static const attn_backend_t simple_backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "SIMPLE_ATTN",
    .doc = "Example of a third party: plain C on the CPU.",
    .capabilities = &simple_capabilities,
    .ops = &simple_ops,
};
static const attn_backend_t *const simple_backends[] = {&simple_backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    .magic = ATTN_PLUGIN_MAGIC,
    .struct_size = sizeof(attn_plugin_t),
    .abi_major = ATTN_ABI_MAJOR,
    .abi_minor = ATTN_ABI_MINOR,
    .name = "simple",
    .version = "1.0",
    .vendor = "Example Kernels",
    .license = "Apache-2.0",
    .build_id = "",
    .num_backends = 1,
    .backends = simple_backends,
};
