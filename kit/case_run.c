/* SPDX-License-Identifier: Apache-2.0 */
/* case_run.c: runs one case on one backend through the plugin ABI, and looks after what it must not touch. */
#include "case_tensor.h"

#include <attn/attn_plugin_util.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct run {
    const attn_backend_ops_t *ops;
    const kit_case_t *c;
    const kit_inputs_t *in;
    const kit_memory_t *memory;
    kit_result_t *result;
    kit_tensors_t all;
    attn_instance_t *instance;
    attn_kv_cache_shape_t shape;
    attn_space_needed_t needed;
    attn_space_t space;
    kit_tensor_t *query, *key, *value, *output, *lse, *block_scale, *cache, *v_view, *k_view;
    kit_tensor_t views[2]; /* K and V of a separate cache */
    kit_tensor_t *q_scale, *k_scale, *v_scale, *metadata, *workspace, *weights;
    kit_sizes_t z;
    uint32_t out_dtype;
    int is_separate;
} run_t;

static int stop(run_t *x, const char *operation, int status) {
    if (status == ATTN_OK || x->result->status != ATTN_OK) return status;
    x->result->status = status;
    snprintf(x->result->operation, sizeof x->result->operation, "%s", operation);
    if (x->result->error.code == 0) { /* the operation gave no text */
        x->result->error.code = status;
        snprintf(x->result->error.text, sizeof x->result->error.text, "%s failed with %d and said nothing",
                 operation, status);
    }
    return status;
}

static int no_memory(run_t *x) {
    attn_fail(&x->result->error, ATTN_E_NO_MEMORY, "", "the kit could not allocate or copy a tensor");
    return stop(x, "memory", ATTN_E_NO_MEMORY);
}

static void fault(run_t *x, const char *what, int64_t at) {
    if (x->result->fault[0] != '\0') return;
    snprintf(x->result->fault, sizeof x->result->fault, "%s, at byte %lld", what, (long long)at);
}

/* [n, heads, size] rows; strided: like one part of a fused QKV buffer, two parts wide, not at the
 * allocation's start. */
static kit_tensor_t *make_rows(run_t *x, const char *name, uint32_t dtype, int64_t n, int64_t heads,
                               int64_t size) {
    const int64_t shape[3] = {n, heads, size}, gaps[3] = {2 * heads * size, size, 1};
    int strided = (x->c->flags & KIT_STRIDED) != 0;
    return kit_tensor_make(&x->all, name, dtype, 3, shape, strided ? gaps : NULL, strided ? 64 : 0);
}

/* Rows of K or V; latent ones have no heads dimension. */
static kit_tensor_t *make_kv_rows(run_t *x, const char *name, int64_t n, int64_t size) {
    kit_tensor_t *t = make_rows(x, name, x->c->problem.dtype, n, x->z.kv_heads, size);
    if (t == NULL || !x->z.is_latent) return t;
    t->t.ndim = 2;
    t->shape[1] = size;
    t->strides[1] = 1;
    return t;
}

static kit_tensor_t *make_floats(run_t *x, const char *name, const float *values, int64_t n,
                                 int64_t columns) {
    const int64_t flat[1] = {n}, two[2] = {n, columns};
    kit_tensor_t *t = kit_tensor_make(&x->all, name, ATTN_DTYPE_FLOAT32, columns != 0 ? 2 : 1,
                                      columns != 0 ? two : flat, NULL, 0);
    if (t == NULL) return NULL;
    memcpy(kit_tensor_at(t, 0, 0), values, (size_t)(n * (columns != 0 ? columns : 1)) * sizeof(float));
    kit_tensor_send(&x->all, t);
    return t;
}

static kit_tensor_t *make_ints(run_t *x, const char *name, const void *values, uint32_t dtype, int64_t n,
                               int64_t columns, int64_t depth) {
    const int64_t shape[3] = {n, columns, depth};
    int ndim = depth != 0 ? 3 : columns != 0 ? 2 : 1;
    kit_tensor_t *t = kit_tensor_make(&x->all, name, dtype, ndim, shape, NULL, 0);
    if (t == NULL) return NULL;
    int64_t count = n * (columns != 0 ? columns : 1) * (depth != 0 ? depth : 1);
    memcpy(kit_tensor_at(t, 0, 0), values, (size_t)count * attn_dtype_size(dtype));
    kit_tensor_send(&x->all, t);
    return t;
}

static int open_instance(run_t *x) {
    const kit_memory_t *m = x->memory;
    attn_device_t device = {.struct_size = sizeof device,
                            .type = m->device_type,
                            .id = m->device_id,
                            .compute_capability = m->compute_capability,
                            .num_sms = m->num_sms};
    attn_problem_t problem = x->c->problem;
    problem.num_blocks = x->in->num_blocks;
    int status =
        x->ops->open(&problem, &device, m->options, m->num_options, m->host, &x->instance, &x->result->error);
    if (status != ATTN_OK) return stop(x, "open", status);
    x->shape.struct_size = sizeof x->shape;
    status = x->ops->kv_cache_shape(x->instance, x->in->num_blocks, &x->shape, &x->result->error);
    if (status != ATTN_OK) return stop(x, "kv_cache_shape", status);
    x->result->page_bytes = x->shape.ndim != 0 ? x->shape.page_bytes : 0;
    x->needed.struct_size = sizeof x->needed;
    return stop(x, "space_needed", x->ops->space_needed(x->instance, &x->needed, &x->result->error));
}

static int64_t axis_of(const attn_kv_cache_shape_t *s, uint32_t axis) {
    for (uint32_t i = 0; i < s->ndim; i++)
        if (s->axes[i] == axis) return i;
    return -1;
}

/* The cache in its own layout, all bytes 0xff: NaN in every float format. One layer of three where the case
 * says so. */
static int make_cache(run_t *x) {
    const attn_kv_cache_shape_t *s = &x->shape;
    if (s->ndim == 0) return ATTN_OK;
    int64_t element = s->dtype.bits / 8, layers = (x->c->flags & KIT_CROSS_LAYER) != 0 ? 3 : 1;
    int64_t strides[KIT_TENSOR_DIMS], block = axis_of(s, ATTN_AXIS_BLOCK);
    if (s->ndim > KIT_TENSOR_DIMS || block < 0) {
        attn_fail(&x->result->error, ATTN_E_INTERNAL, "kv_cache_shape",
                  "the kit knows caches of at most %d dimensions"
                  " with a block axis",
                  KIT_TENSOR_DIMS);
        return stop(x, "kv_cache_shape", ATTN_E_INTERNAL);
    }
    for (uint32_t i = 0; i < s->ndim; i++)
        strides[i] = s->byte_strides[i] / element;
    strides[block] *= layers;
    uint32_t dtype = attn_dtype_of(s->dtype);
    x->cache = kit_tensor_make(&x->all, "kv_cache", dtype, (int)s->ndim, s->shape, strides,
                               layers > 1 ? (size_t)s->page_bytes : 0);
    if (x->cache == NULL) return no_memory(x);
    memset(x->cache->host, 0xff, x->cache->bytes);
    if (kit_tensor_send(&x->all, x->cache)) return no_memory(x);
    x->k_view = x->cache;
    if (!x->is_separate) return ATTN_OK;
    /* K and V apart: the two halves of the packed rows as tensors of their own */
    int64_t scale = attn_kv_is_per_token_head(x->c->problem.kv_cache_dtype) ? 4 : 0;
    for (int i = 0; i < 2; i++) {
        x->views[i] = *x->cache;
        x->views[i].shape[3] = (i == 0 ? x->z.key : x->z.value) + scale;
        x->views[i].t.shape = x->views[i].shape;
        x->views[i].t.strides = x->views[i].strides;
        x->views[i].t.byte_offset += (uint64_t)(i == 0 ? s->k_offset : s->v_offset);
    }
    x->k_view = &x->views[0];
    x->v_view = &x->views[1];
    return ATTN_OK;
}

static attn_scales_t scales_of(const run_t *x) {
    attn_scales_t s = {0};
    if (x->q_scale != NULL) s.q = &x->q_scale->t;
    if (x->k_scale != NULL) s.k = &x->k_scale->t;
    if (x->v_scale != NULL) s.v = &x->v_scale->t;
    return s;
}

static int update(run_t *x, kit_tensor_t *key, kit_tensor_t *value, const int64_t *slots, int64_t n) {
    kit_tensor_t *slot = make_ints(x, "slot_mapping", slots, ATTN_DTYPE_INT64, n, 0, 0);
    if (slot == NULL || x->all.failed) return no_memory(x);
    attn_kv_update_t args = {.struct_size = sizeof args,
                             .key = &key->t,
                             .value = &value->t,
                             .kv_cache = &x->k_view->t,
                             .v_cache = x->v_view != NULL ? &x->v_view->t : NULL,
                             .slot_mapping = &slot->t,
                             .scales = scales_of(x)};
    return stop(x, "update_kv_cache",
                x->ops->update_kv_cache(x->instance, &args, x->memory->stream, &x->result->error));
}

static int64_t slot_of(const run_t *x, int r, int64_t position) {
    int64_t bs = x->shape.block_size;
    return x->in->block_table[r * x->in->table_width + position / bs] * bs + position % bs;
}

/* Writes everything that was there before this step. One row of NaN with a negative slot goes along per
 * request: it must not arrive anywhere. */
static int write_context(run_t *x) {
    const kit_case_t *c = x->c;
    int is_cross = c->problem.role == ATTN_ROLE_ENCODER_DECODER;
    int64_t n = x->in->num_keys + c->num_reqs, row = 0;
    int64_t *slots = malloc((size_t)(n > 0 ? n : 1) * sizeof *slots);
    kit_tensor_t *key = make_kv_rows(x, "key", n, x->z.key);
    kit_tensor_t *value = make_kv_rows(x, "value", n, x->z.value);
    if (slots == NULL || key == NULL || value == NULL) {
        free(slots);
        return no_memory(x);
    }
    memset(key->host, 0xff, key->bytes);
    memset(value->host, 0xff, value->bytes);
    for (int r = 0; r < c->num_reqs; r++) {
        int64_t context = is_cross ? c->seq_lens[r] : c->seq_lens[r] - c->query_lens[r];
        for (int64_t i = 0; i < context; i++, row++) {
            int64_t from = x->in->key_start[r] + i;
            slots[row] = slot_of(x, r, i);
            for (int64_t h = 0; h < x->z.kv_heads; h++) {
                kit_store_floats(kit_tensor_at(key, row, h), key->dtype,
                                 x->in->key + (from * x->z.kv_heads + h) * x->z.key, x->z.key);
                kit_store_floats(kit_tensor_at(value, row, h), value->dtype,
                                 x->in->value + (from * x->z.kv_heads + h) * x->z.value, x->z.value);
            }
        }
        slots[row++] = -1 - r;
    }
    int status = kit_tensor_send(&x->all, key) || kit_tensor_send(&x->all, value) ? no_memory(x) : ATTN_OK;
    if (status == ATTN_OK && row > 0) status = update(x, key, value, slots, row);
    free(slots);
    return status;
}

/* The new rows of K and V: tokens of this step in batch order, rows of NaN behind them. */
static int make_new_rows(run_t *x) {
    const kit_case_t *c = x->c;
    int64_t rows = x->in->num_tokens + c->padded_tokens, row = 0;
    x->query = make_rows(x, "query", x->z.query_dtype, rows, x->z.heads, x->z.query);
    x->key = make_kv_rows(x, "key", rows, x->z.key);
    x->value = make_kv_rows(x, "value", rows, x->z.value);
    if (x->all.failed) return no_memory(x);
    memset(x->query->host, 0xff, x->query->bytes);
    memset(x->key->host, 0xff, x->key->bytes);
    memset(x->value->host, 0xff, x->value->bytes);
    kit_tensor_fill(x->query, x->in->query, x->in->num_tokens);
    for (int r = 0; r < c->num_reqs && c->problem.role != ATTN_ROLE_ENCODER_DECODER; r++)
        for (int64_t i = c->seq_lens[r] - c->query_lens[r]; i < c->seq_lens[r]; i++, row++)
            for (int64_t h = 0; h < x->z.kv_heads; h++) {
                int64_t from = (x->in->key_start[r] + i) * x->z.kv_heads + h;
                kit_store_floats(kit_tensor_at(x->key, row, h), x->key->dtype, x->in->key + from * x->z.key,
                                 x->z.key);
                kit_store_floats(kit_tensor_at(x->value, row, h), x->value->dtype,
                                 x->in->value + from * x->z.value, x->z.value);
            }
    if (kit_tensor_send(&x->all, x->query) || kit_tensor_send(&x->all, x->key) ||
        kit_tensor_send(&x->all, x->value))
        return no_memory(x);
    return ATTN_OK;
}

static int write_new_rows(run_t *x) {
    const kit_case_t *c = x->c;
    int64_t n = x->in->num_tokens + c->padded_tokens, row = 0;
    if (c->problem.role == ATTN_ROLE_ENCODER_DECODER || n == 0) return ATTN_OK;
    int64_t *slots = malloc((size_t)n * sizeof *slots);
    if (slots == NULL) return no_memory(x);
    for (int r = 0; r < c->num_reqs; r++)
        for (int64_t i = c->seq_lens[r] - c->query_lens[r]; i < c->seq_lens[r]; i++)
            slots[row++] = slot_of(x, r, i);
    while (row < n)
        slots[row++] = -1;
    int status = update(x, x->key, x->value, slots, n);
    free(slots);
    return status;
}

static int make_outputs(run_t *x) {
    const kit_case_t *c = x->c;
    int64_t rows = x->in->num_tokens + c->padded_tokens;
    const int64_t lse_shape[2] = {x->z.heads, rows}, lse_strides[2] = {rows + 5, 1};
    x->output = make_rows(x, "output", x->out_dtype, rows, x->z.heads, x->z.output);
    kit_tensor_send(&x->all, x->output);
    if ((c->flags & KIT_NO_LSE) == 0 && (c->problem.features & ATTN_F_LSE) != 0) {
        x->lse = kit_tensor_make(&x->all, "lse", ATTN_DTYPE_FLOAT32, 2, lse_shape,
                                 (c->flags & KIT_STRIDED) != 0 ? lse_strides : NULL, 0);
        kit_tensor_send(&x->all, x->lse);
    }
    if ((c->problem.features & ATTN_F_OUT_FP8_GROUP) != 0) {
        int64_t width = x->z.heads * x->z.output, group = width % 128 == 0 ? 128 : 64;
        const int64_t scale_shape[2] = {x->in->num_tokens, width / group};
        x->block_scale =
            kit_tensor_make(&x->all, "output_block_scale", ATTN_DTYPE_FLOAT32, 2, scale_shape, NULL, 0);
        kit_tensor_send(&x->all, x->block_scale);
    }
    const int64_t metadata_shape[1] = {(int64_t)x->needed.metadata_bytes},
                  workspace_shape[1] = {(int64_t)x->needed.workspace_bytes};
    x->metadata = kit_tensor_make(&x->all, "metadata", ATTN_DTYPE_UINT8, 1, metadata_shape, NULL, 0);
    x->workspace = kit_tensor_make(&x->all, "workspace", ATTN_DTYPE_UINT8, 1, workspace_shape, NULL, 0);
    kit_tensor_send(&x->all, x->metadata);
    kit_tensor_send(&x->all, x->workspace);
    if (x->all.failed) return no_memory(x);
    x->space = (attn_space_t){.struct_size = sizeof x->space,
                              .metadata = x->metadata->t.data,
                              .metadata_bytes = x->needed.metadata_bytes,
                              .workspace = x->workspace->t.data,
                              .workspace_bytes = x->needed.workspace_bytes};
    if (x->needed.host_bytes != 0) {
        x->space.host = malloc((size_t)x->needed.host_bytes);
        x->space.host_bytes = x->needed.host_bytes;
        if (x->space.host == NULL) return no_memory(x);
        memset(x->space.host, KIT_CANARY, (size_t)x->needed.host_bytes);
    }
    return ATTN_OK;
}

/* MLA: the weights of the layer, prepared in a buffer of exactly the size asked for. */
static int prepare_weights(run_t *x) {
    const attn_problem_t *p = &x->c->problem;
    const int64_t shape[2] = {x->z.heads * ((int64_t)p->qk_nope_head_dim + p->v_head_dim), p->kv_lora_rank},
                  bytes[1] = {(int64_t)x->needed.weight_bytes};
    if (x->in->kv_b_proj == NULL || !ATTN_HAS_OP(x->ops, prepare_weights)) return ATTN_OK;
    kit_tensor_t *w = kit_tensor_make(&x->all, "kv_b_proj", p->dtype, 2, shape, NULL, 0);
    x->weights = kit_tensor_make(&x->all, "weight_space", ATTN_DTYPE_UINT8, 1, bytes, NULL, 0);
    if (x->all.failed) return no_memory(x);
    kit_store_floats(kit_tensor_at(w, 0, 0), w->dtype, x->in->kv_b_proj, shape[0] * shape[1]);
    if (kit_tensor_send(&x->all, w) || kit_tensor_send(&x->all, x->weights)) return no_memory(x);
    attn_weights_t args = {.struct_size = sizeof args,
                           .kv_b_proj = &w->t,
                           .weight_space = x->weights->t.data,
                           .weight_space_bytes = x->needed.weight_bytes};
    return stop(x, "prepare_weights",
                x->ops->prepare_weights(x->instance, &args, x->memory->stream, &x->result->error));
}

static int build_and_forward(run_t *x) {
    const kit_case_t *c = x->c;
    int32_t start[KIT_MAX_REQS + 1] = {0}, causal[KIT_MAX_REQS], spans[KIT_MAX_REQS * KIT_MAX_SPANS * 2];
    for (int r = 0; r < c->num_reqs; r++) {
        start[r + 1] = start[r] + c->query_lens[r];
        causal[r] = c->causal[r];
        for (int i = 0; i < c->num_spans * 2; i++)
            spans[r * c->num_spans * 2 + i] = c->spans[r][i / 2][i % 2];
    }
    uint64_t f = c->problem.features;
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = c->num_reqs,
                      .num_actual_tokens = start[c->num_reqs],
                      .common_prefix_len = c->common_prefix_len,
                      .query_start_loc_host = start,
                      .seq_lens_host = c->seq_lens};
    kit_tensor_t *t = make_ints(x, "query_start_loc", start, ATTN_DTYPE_INT32, c->num_reqs + 1, 0, 0);
    if (t != NULL) b.query_start_loc = &t->t;
    t = make_ints(x, "seq_lens", c->seq_lens, ATTN_DTYPE_INT32, c->num_reqs, 0, 0);
    if (t != NULL) b.seq_lens = &t->t;
    if (x->in->block_table != NULL) {
        t = make_ints(x, "block_table", x->in->block_table, ATTN_DTYPE_INT32, c->num_reqs, x->in->table_width,
                      0);
        if (t != NULL) b.block_table = &t->t;
        b.block_table_host = x->in->block_table;
        b.block_table_host_stride = x->in->table_width;
    }
    if (c->problem.mask == ATTN_MASK_PER_REQUEST) {
        t = make_ints(x, "causal", causal, ATTN_DTYPE_INT32, c->num_reqs, 0, 0);
        if (t != NULL) b.causal = &t->t;
        b.causal_host = c->causal;
    }
    if (c->num_spans > 0) {
        t = make_ints(x, "mm_prefix_ranges", spans, ATTN_DTYPE_INT32, c->num_reqs, c->num_spans, 2);
        if (t != NULL) b.mm_prefix_ranges = &t->t;
        b.mm_prefix_ranges_host = spans;
        b.num_mm_ranges = c->num_spans;
    }
    if (c->problem.rswa_window != 0) {
        t = make_ints(x, "rswa_prefix_lens", c->rswa_prefix_lens, ATTN_DTYPE_INT32, c->num_reqs, 0, 0);
        if (t != NULL) b.rswa_prefix_lens = &t->t;
        b.rswa_prefix_lens_host = c->rswa_prefix_lens;
    }
    attn_forward_t a = {.struct_size = sizeof a,
                        .query = &x->query->t,
                        .key = &x->key->t,
                        .value = &x->value->t,
                        .kv_cache = x->k_view != NULL ? &x->k_view->t : NULL,
                        .v_cache = x->v_view != NULL ? &x->v_view->t : NULL,
                        .output = &x->output->t,
                        .lse = x->lse != NULL ? &x->lse->t : NULL,
                        .scales = scales_of(x)};
    if ((f & ATTN_F_OUT_FP8_STATIC) != 0 &&
        (t = make_floats(x, "output_scale", &x->in->output_scale, 1, 0)) != NULL)
        a.output_scale = &t->t;
    if (x->block_scale != NULL) a.output_block_scale = &x->block_scale->t;
    if ((f & ATTN_F_SINK) != 0 && (t = make_floats(x, "sinks", x->in->sinks, x->z.heads, 0)) != NULL)
        a.sinks = &t->t;
    if ((f & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT)) != 0 &&
        (t = make_floats(x, "alibi_slopes", x->in->alibi_slopes, x->z.heads, 0)) != NULL)
        a.alibi_slopes = &t->t;
    if ((f & ATTN_F_QQ_BIAS) != 0 &&
        (t = make_floats(x, "qq_bias", x->in->qq_bias, x->in->num_tokens + 1, x->in->bias_width)) != NULL)
        a.qq_bias = &t->t;
    if (x->in->topk_indices != NULL) {
        t = make_ints(x, "topk_indices", x->in->topk_indices, ATTN_DTYPE_INT32, x->in->num_tokens,
                      c->problem.topk, 0);
        if (t != NULL) a.topk_indices = &t->t;
    }
    if (x->weights != NULL) {
        a.weight_space = x->weights->t.data;
        a.weight_space_bytes = x->needed.weight_bytes;
    }
    if (x->all.failed) return no_memory(x);
    int status = x->ops->build_metadata(x->instance, &b, &x->space, x->memory->stream, &x->result->error);
    if (status != ATTN_OK) return stop(x, "build_metadata", status);
    status = x->ops->forward(x->instance, &a, &x->space, x->memory->stream, &x->result->error);
    if (status != ATTN_OK) return stop(x, "forward", status);
    if (x->memory->sync(x->memory->ctx) != 0) {
        attn_fail(&x->result->error, ATTN_E_DEVICE, "", "the device reported an error after forward");
        return stop(x, "sync", ATTN_E_DEVICE);
    }
    return ATTN_OK;
}

/* Pages of nobody, and of other layers, still hold their 0xff. */
static void check_cache(run_t *x) {
    const attn_kv_cache_shape_t *s = &x->shape;
    if (x->cache == NULL || kit_tensor_fetch(&x->all, x->cache)) return;
    int64_t block = axis_of(s, ATTN_AXIS_BLOCK);
    if (s->byte_strides[block] != s->page_bytes)
        return; /* blocks are not outermost: pages are no byte ranges */
    int64_t layers = (x->c->flags & KIT_CROSS_LAYER) != 0 ? 3 : 1;
    unsigned char *is_used = calloc((size_t)s->shape[block] + 1, 1);
    if (is_used == NULL) return;
    for (int r = 0; r < x->c->num_reqs; r++)
        for (int64_t i = 0; i * s->block_size < x->c->seq_lens[r]; i++)
            is_used[x->in->block_table[r * x->in->table_width + i]] = 1;
    size_t front = (size_t)((char *)x->cache->t.data - (char *)x->cache->raw) + x->cache->t.byte_offset;
    for (size_t i = 0; i < x->cache->bytes; i++) {
        int64_t at = (int64_t)i - (int64_t)front;
        int64_t page = at >= 0 ? at / (s->page_bytes * layers) : -1;
        int inside = at >= 0 && at - page * s->page_bytes * layers < s->page_bytes && page < s->shape[block];
        if ((!inside || !is_used[page]) && x->cache->host[i] != 0xff) {
            fault(x, "the cache was written outside the pages of the requests", at);
            break;
        }
    }
    free(is_used);
}

static int read_results(run_t *x) {
    int64_t tokens = x->in->num_tokens, n = tokens * x->z.heads * x->z.output;
    kit_result_t *result = x->result;
    if (kit_tensor_fetch(&x->all, x->output) || (x->lse != NULL && kit_tensor_fetch(&x->all, x->lse)) ||
        kit_tensor_fetch(&x->all, x->metadata) || kit_tensor_fetch(&x->all, x->workspace) ||
        (x->block_scale != NULL && kit_tensor_fetch(&x->all, x->block_scale)))
        return no_memory(x);
    int64_t at;
    if ((at = kit_tensor_damage(x->output, 0, tokens)) >= 0)
        fault(x, "output was written outside its rows", at);
    if (x->lse != NULL && (at = kit_tensor_damage(x->lse, 1, tokens)) >= 0)
        fault(x, "lse was written outside its entries", at);
    if ((at = kit_tensor_damage(x->metadata, 0, x->metadata->shape[0])) >= 0)
        fault(x, "written outside the metadata buffer", at);
    if (x->weights != NULL && !kit_tensor_fetch(&x->all, x->weights) &&
        (at = kit_tensor_damage(x->weights, 0, x->weights->shape[0])) >= 0)
        fault(x, "written outside the weight buffer", at);
    if ((at = kit_tensor_damage(x->workspace, 0, x->workspace->shape[0])) >= 0)
        fault(x, "written outside the workspace", at);
    check_cache(x);
    result->num_out = n;
    result->num_lse = x->lse != NULL ? x->z.heads * tokens : 0;
    result->out = malloc((size_t)(n > 0 ? n : 1) * sizeof(double));
    result->lse =
        x->lse != NULL ? malloc((size_t)(result->num_lse > 0 ? result->num_lse : 1) * sizeof(double)) : NULL;
    if (result->out == NULL || (x->lse != NULL && result->lse == NULL)) return no_memory(x);
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t h = 0; h < x->z.heads; h++) {
            double *out = result->out + (i * x->z.heads + h) * x->z.output;
            kit_load_doubles(kit_tensor_at(x->output, i, h), x->out_dtype, out, x->z.output);
            for (int64_t e = 0; e < x->z.output && x->out_dtype == ATTN_DTYPE_FP8_E4M3; e++) {
                float scale = x->in->output_scale;
                if (x->block_scale != NULL) {
                    int64_t group = x->z.heads * x->z.output / x->block_scale->shape[1];
                    memcpy(&scale, kit_tensor_at(x->block_scale, i, (h * x->z.output + e) / group),
                           sizeof scale);
                }
                out[e] *= (double)scale;
            }
        }
    for (int64_t h = 0; x->lse != NULL && h < x->z.heads; h++)
        kit_load_doubles(kit_tensor_at(x->lse, h, 0), ATTN_DTYPE_FLOAT32, result->lse + h * tokens, tokens);
    return ATTN_OK;
}

static int run_all(run_t *x) {
    const attn_problem_t *p = &x->c->problem;
    int status = open_instance(x);
    if (status != ATTN_OK) return status;
    int is_fp8 = (p->features & ATTN_F_FP8_ATTENTION) != 0 && (x->c->flags & KIT_NO_SCALES) == 0;
    int is_fp8_query = p->query_dtype != 0 && p->query_dtype != p->dtype;
    if (is_fp8_query || is_fp8) x->q_scale = make_floats(x, "q_scale", x->in->q_scale, 1, 0);
    if ((p->kv_cache_dtype == ATTN_KV_FP8_E4M3 || p->kv_cache_dtype == ATTN_KV_FP8_E5M2 || is_fp8) &&
        (x->c->flags & KIT_NO_SCALES) == 0) {
        x->k_scale = make_floats(x, "k_scale", x->in->k_scale, x->in->num_scales, 0);
        x->v_scale = make_floats(x, "v_scale", x->in->v_scale, x->in->num_scales, 0);
    }
    status = make_cache(x);
    if (status == ATTN_OK) status = make_new_rows(x);
    if (status == ATTN_OK && x->cache != NULL) status = write_context(x);
    if (status == ATTN_OK && x->cache != NULL) status = write_new_rows(x);
    if (status == ATTN_OK) status = prepare_weights(x);
    if (status == ATTN_OK) status = make_outputs(x);
    if (status == ATTN_OK) status = build_and_forward(x);
    if (status == ATTN_OK) status = read_results(x);
    return status;
}

int kit_run(const attn_backend_t *backend, const kit_case_t *c, const kit_inputs_t *in,
            const kit_memory_t *memory, kit_result_t *result) {
    memset(result, 0, sizeof *result);
    result->error.struct_size = sizeof result->error;
    run_t *x = calloc(1, sizeof *x);
    if (x == NULL) return result->status = ATTN_E_NO_MEMORY;
    const attn_problem_t *p = &c->problem;
    x->ops = backend->ops;
    x->c = c;
    x->in = in;
    x->memory = x->all.memory = memory;
    x->result = result;
    x->z = kit_sizes(p);
    x->out_dtype = p->out_dtype != 0 ? p->out_dtype : p->dtype;
    x->is_separate = (p->features & ATTN_F_SEPARATE_KV) != 0;
    run_all(x);
    if (x->instance != NULL) x->ops->close(x->instance);
    free(x->space.host);
    kit_tensors_free(&x->all);
    free(x);
    return result->status;
}

int kit_run_oracle(const attn_backend_t *reference, const kit_case_t *c, const kit_inputs_t *in,
                   kit_result_t *result) {
    kit_case_t exact = *c;
    exact.problem.out_dtype = ATTN_DTYPE_FLOAT64;
    exact.problem.features &= ~(ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP);
    exact.problem.features |= ATTN_F_LSE;
    exact.flags &= ~(KIT_NO_LSE | KIT_CROSS_LAYER);
    return kit_run(reference, &exact, in, &kit_cpu_memory, result);
}

void kit_result_free(kit_result_t *result) {
    free(result->out);
    free(result->lse);
    result->out = result->lse = NULL;
}

const attn_backend_t *kit_load(const char *path, const char *name, char *why, size_t why_size) {
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (file == NULL) {
        snprintf(why, why_size, "%s", dlerror());
        return NULL;
    }
    const attn_plugin_t *plugin = dlsym(file, ATTN_PLUGIN_SYMBOL_NAME);
    if (plugin == NULL || plugin->magic != ATTN_PLUGIN_MAGIC || plugin->abi_major != ATTN_ABI_MAJOR) {
        snprintf(why, why_size, "%s exports no %s of ABI %d.%d", path, ATTN_PLUGIN_SYMBOL_NAME,
                 ATTN_ABI_MAJOR, ATTN_ABI_MINOR);
        return NULL;
    }
    for (uint32_t i = 0; i < plugin->num_backends; i++)
        if (name == NULL || strcmp(plugin->backends[i]->name, name) == 0) return plugin->backends[i];
    snprintf(why, why_size, "%s has no backend %s", path, name != NULL ? name : "at all");
    return NULL;
}
