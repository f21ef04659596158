/* SPDX-License-Identifier: Apache-2.0 */
/* run_cache.c: the cache of a running case: made as the backend wants it, written through it, looked
 * after. */
#include "case_run.h"

#include <attn/attn_plugin_util.h>

#include <stdlib.h>
#include <string.h>

/* Rows of K or V; latent ones have no heads dimension. */
static kit_tensor_t *make_kv_rows(kit_run_t *x, const char *name, int64_t n, int64_t size) {
    kit_tensor_t *t = kit_run_rows(x, name, x->c->problem.dtype, n, x->z.kv_heads, size);
    if (t == NULL || !x->z.is_latent) return t;
    t->t.ndim = 2;
    t->shape[1] = size;
    t->strides[1] = 1;
    return t;
}

static int64_t axis_of(const attn_kv_cache_shape_t *s, uint32_t axis) {
    for (uint32_t i = 0; i < s->ndim; i++)
        if (s->axes[i] == axis) return i;
    return -1;
}

/* K and V in two allocations, each dense in the order of the layout. */
static int make_apart(kit_run_t *x) {
    const attn_kv_cache_shape_t *s = &x->shape;
    const int is_hnd = s->byte_strides[1] > s->byte_strides[2];
    for (int i = 0; i < 2; i++) {
        const int64_t row = i == 0 ? x->z.key : x->z.value, heads = s->shape[1], tokens = s->shape[2],
                      apart = i == 1 && (x->c->flags & KIT_CROSS_LAYER) != 0 ? 2 : 1;
        const int64_t shape[4] = {s->shape[0], heads, tokens, row},
                      strides[4] = {apart * heads * tokens * row, is_hnd ? tokens * row : row,
                                    is_hnd ? row : heads * row, 1};
        kit_tensor_t *t = kit_tensor_make(&x->all, i == 0 ? "kv_cache" : "v_cache", attn_dtype_of(s->dtype),
                                          4, shape, strides, 0);
        if (t == NULL) return kit_run_no_memory(x);
        memset(t->host, 0xff, t->bytes);
        if (kit_tensor_send(&x->all, t)) return kit_run_no_memory(x);
        *(i == 0 ? &x->k_view : &x->v_view) = t;
    }
    x->cache = x->k_view;
    return ATTN_OK;
}

/* The cache in its own layout, all bytes 0xff: NaN in every float format. One layer of three where the case
 * says so. */
static int make_cache(kit_run_t *x) {
    const attn_kv_cache_shape_t *s = &x->shape;
    if (s->ndim == 0) return ATTN_OK;
    int64_t element = s->dtype.bits / 8, layers = (x->c->flags & KIT_CROSS_LAYER) != 0 ? 3 : 1;
    int64_t strides[KIT_TENSOR_DIMS], block = axis_of(s, ATTN_AXIS_BLOCK);
    if (s->ndim > KIT_TENSOR_DIMS || block < 0) {
        attn_fail(&x->result->error, ATTN_E_INTERNAL, "kv_cache_shape",
                  "the kit supports caches of at most %d dimensions"
                  " with a block axis",
                  KIT_TENSOR_DIMS);
        return kit_run_stop(x, "kv_cache_shape", ATTN_E_INTERNAL);
    }
    for (uint32_t i = 0; i < s->ndim; i++)
        strides[i] = s->byte_strides[i] / element;
    strides[block] *= layers;
    uint32_t dtype = attn_dtype_of(s->dtype);
    x->cache = kit_tensor_make(&x->all, "kv_cache", dtype, (int)s->ndim, s->shape, strides,
                               layers > 1 ? (size_t)s->page_bytes : 0);
    if (x->cache == NULL) return kit_run_no_memory(x);
    memset(x->cache->host, 0xff, x->cache->bytes);
    if (kit_tensor_send(&x->all, x->cache)) return kit_run_no_memory(x);
    x->k_view = x->cache;
    if (!x->is_separate) return ATTN_OK;
    if ((x->c->flags & KIT_APART) != 0) return make_apart(x);
    /* K and V apart: the two halves of the packed rows as tensors of their own */
    const attn_problem_t *p = &x->c->problem;
    const attn_kv_format_t *f = attn_kv_format(p->kv_cache_dtype);
    for (int i = 0; i < 2; i++) {
        const int64_t row = attn_kv_data_bytes(f, p->dtype, i == 0 ? x->z.key : x->z.value, i) +
                            (i == 0 ? f->k_beside : f->v_beside);
        x->views[i] = *x->cache;
        x->views[i].shape[3] = row / element;
        x->views[i].t.shape = x->views[i].shape;
        x->views[i].t.strides = x->views[i].strides;
        x->views[i].t.byte_offset += (uint64_t)(i == 0 ? s->k_offset : s->v_offset);
    }
    x->k_view = &x->views[0];
    x->v_view = &x->views[1];
    return ATTN_OK;
}

attn_scales_t kit_run_scales(const kit_run_t *x) {
    attn_scales_t s = {0};
    if (x->q_scale != NULL) s.q = &x->q_scale->t;
    if (x->k_scale != NULL) s.k = &x->k_scale->t;
    if (x->v_scale != NULL) s.v = &x->v_scale->t;
    return s;
}

static int update(kit_run_t *x, kit_tensor_t *key, kit_tensor_t *value, const int64_t *slots, int64_t n) {
    kit_tensor_t *slot = kit_run_ints(x, "slot_mapping", slots, ATTN_DTYPE_INT64, n, 0, 0);
    if (slot == NULL || x->all.failed) return kit_run_no_memory(x);
    attn_kv_update_t args = {.struct_size = sizeof args,
                             .key = &key->t,
                             .value = &value->t,
                             .kv_cache = &x->k_view->t,
                             .v_cache = x->v_view != NULL ? &x->v_view->t : NULL,
                             .slot_mapping = &slot->t,
                             .scales = kit_run_scales(x)};
    return kit_run_stop(x, "update_kv_cache",
                        x->ops->update_kv_cache(x->instance, &args, x->memory->stream, &x->result->error));
}

int64_t kit_run_slot(const kit_run_t *x, int r, int64_t position) {
    int64_t bs = x->shape.block_size;
    return x->in->block_table[r * x->in->table_width + position / bs] * bs + position % bs;
}

/* NaN in every format, and other bits than the cache is poisoned with. */
static void fill_with_nan(kit_tensor_t *t) {
    static const unsigned char pattern[2] = {0xc0, 0x7f};
    for (size_t i = 0; i < t->bytes; i++)
        t->host[i] = pattern[i & 1];
}

/* Writes everything that was there before this step. One row of NaN with a negative slot goes along per
 * request: it must not arrive anywhere. */
static int write_context(kit_run_t *x) {
    const kit_case_t *c = x->c;
    int is_cross = c->problem.role == ATTN_ROLE_ENCODER_DECODER;
    int64_t n = x->in->num_keys + c->num_reqs, row = 0;
    int64_t *slots = malloc((size_t)(n > 0 ? n : 1) * sizeof *slots);
    kit_tensor_t *key = make_kv_rows(x, "key", n, x->z.key);
    kit_tensor_t *value = make_kv_rows(x, "value", n, x->z.value);
    if (slots == NULL || key == NULL || value == NULL) {
        free(slots);
        return kit_run_no_memory(x);
    }
    fill_with_nan(key);
    fill_with_nan(value);
    for (int r = 0; r < c->num_reqs; r++) {
        int64_t context = is_cross ? c->seq_lens[r] : c->seq_lens[r] - c->query_lens[r];
        slots[row++] = -1 - r; /* in front, so that the last row of all counts */
        for (int64_t i = 0; i < context; i++, row++) {
            int64_t from = x->in->key_start[r] + i;
            slots[row] = kit_run_slot(x, r, i);
            for (int64_t h = 0; h < x->z.kv_heads; h++) {
                kit_store_floats(kit_tensor_at(key, row, h), key->dtype,
                                 x->in->key + (from * x->z.kv_heads + h) * x->z.key, x->z.key);
                kit_store_floats(kit_tensor_at(value, row, h), value->dtype,
                                 x->in->value + (from * x->z.kv_heads + h) * x->z.value, x->z.value);
            }
        }
    }
    int status =
        kit_tensor_send(&x->all, key) || kit_tensor_send(&x->all, value) ? kit_run_no_memory(x) : ATTN_OK;
    if (status == ATTN_OK && row > 0) status = update(x, key, value, slots, row);
    free(slots);
    return status;
}

/* With lengths of their own the rows of K and V are those of all keys. Between those of one request and the
 * next are some of nobody, where the case is strided and a scale is not that of all rows. Returns their
 * number. */
static int64_t place_keys(kit_run_t *x) {
    const kit_case_t *c = x->c;
    const int has_gaps = (c->flags & (KIT_STRIDED | KIT_HEADS_FIRST)) != 0 &&
                         (c->problem.features & ATTN_F_FP8_ATTENTION) == 0;
    x->key_starts[0] = 0;
    for (int r = 0; r < c->num_reqs; r++)
        x->key_starts[r + 1] = x->key_starts[r] + c->seq_lens[r] + (has_gaps ? r % 3 : 0);
    return x->key_starts[c->num_reqs];
}

/* The new rows of K and V: tokens of this step in batch order, rows of NaN behind them. */
static int make_new_rows(kit_run_t *x) {
    const kit_case_t *c = x->c;
    const int has_lengths = (c->problem.features & ATTN_F_KEY_LENGTHS) != 0;
    int64_t rows = x->in->num_tokens + kit_run_padding(x), row = 0,
            key_rows = has_lengths ? place_keys(x) + c->padded_tokens : rows;
    x->query = kit_run_rows(x, "query", x->z.query_dtype, rows, x->z.heads, x->z.query);
    x->key = make_kv_rows(x, "key", key_rows, x->z.key);
    x->value = make_kv_rows(x, "value", key_rows, x->z.value);
    if (x->all.failed) return kit_run_no_memory(x);
    memset(x->query->host, 0xff, x->query->bytes);
    fill_with_nan(x->key);
    fill_with_nan(x->value);
    kit_tensor_fill(x->query, x->in->query, x->in->num_tokens);
    for (int r = 0; r < c->num_reqs && c->problem.role != ATTN_ROLE_ENCODER_DECODER; r++) {
        if (has_lengths) row = x->key_starts[r];
        for (int64_t i = has_lengths ? 0 : c->seq_lens[r] - c->query_lens[r]; i < c->seq_lens[r]; i++, row++)
            for (int64_t h = 0; h < x->z.kv_heads; h++) {
                int64_t from = (x->in->key_start[r] + i) * x->z.kv_heads + h;
                kit_store_floats(kit_tensor_at(x->key, row, h), x->key->dtype, x->in->key + from * x->z.key,
                                 x->z.key);
                kit_store_floats(kit_tensor_at(x->value, row, h), x->value->dtype,
                                 x->in->value + from * x->z.value, x->z.value);
            }
    }
    if (kit_tensor_send(&x->all, x->query) || kit_tensor_send(&x->all, x->key) ||
        kit_tensor_send(&x->all, x->value))
        return kit_run_no_memory(x);
    return ATTN_OK;
}

int kit_run_update(kit_run_t *x) {
    const kit_case_t *c = x->c;
    int64_t n = x->in->num_tokens + c->padded_tokens, row = 0;
    if (c->problem.role == ATTN_ROLE_ENCODER_DECODER || n == 0 || x->cache == NULL) return ATTN_OK;
    if (x->is_written_by_forward) return ATTN_OK; /* as libattn, which does not call it either */
    int64_t *slots = malloc((size_t)n * sizeof *slots);
    if (slots == NULL) return kit_run_no_memory(x);
    for (int r = 0; r < c->num_reqs; r++)
        for (int64_t i = c->seq_lens[r] - c->query_lens[r]; i < c->seq_lens[r]; i++)
            slots[row++] = kit_run_slot(x, r, i);
    while (row < n)
        slots[row++] = -1;
    int status = ATTN_OK;
    if ((c->problem.features & ATTN_F_WRITE_IN_FORWARD) != 0) { /* it is given these with the call */
        x->slots = kit_run_ints(x, "slot_mapping", slots, ATTN_DTYPE_INT64, n, 0, 0);
        if (x->slots == NULL) status = kit_run_no_memory(x);
    } else
        status = update(x, x->key, x->value, slots, n);
    free(slots);
    return status;
}

static void make_scales(kit_run_t *x) {
    const attn_problem_t *p = &x->c->problem;
    const int has_scales = (x->c->flags & KIT_NO_SCALES) == 0;
    const int is_fp8 = (p->features & ATTN_F_FP8_ATTENTION) != 0 && has_scales;
    if ((p->query_dtype != 0 && p->query_dtype != p->dtype) || is_fp8)
        x->q_scale = kit_run_floats(x, "q_scale", x->in->q_scale, x->in->num_scales, 0);
    if ((attn_kv_has_static_scales(p->kv_cache_dtype) || is_fp8) && has_scales) {
        x->k_scale = kit_run_floats(x, "k_scale", x->in->k_scale, x->in->num_scales, 0);
        x->v_scale = kit_run_floats(x, "v_scale", x->in->v_scale, x->in->num_scales, 0);
    }
    if (x->in->channel_scale != NULL)
        x->v_scale = kit_run_floats(x, "v_scale", x->in->channel_scale, x->z.kv_heads, x->z.value);
}

int kit_run_fill(kit_run_t *x) {
    make_scales(x);
    int status = make_cache(x);
    if (status == ATTN_OK) status = make_new_rows(x);
    if (status == ATTN_OK && x->cache != NULL) status = write_context(x);
    return status;
}

int kit_run_continue(kit_run_t *x, const kit_run_t *before) {
    make_scales(x);
    x->cache = before->cache;
    x->k_view = before->k_view;
    x->v_view = before->v_view;
    return make_new_rows(x);
}

/* Unused pages, and those of other layers, still hold 0xff. */
void kit_run_check_cache(kit_run_t *x) {
    const attn_kv_cache_shape_t *s = &x->shape;
    if (x->cache == NULL || (x->c->flags & KIT_APART) != 0 || kit_tensor_fetch(&x->all, x->cache)) return;
    int64_t block = axis_of(s, ATTN_AXIS_BLOCK);
    if (s->byte_strides[block] != s->page_bytes)
        return; /* blocks are not outermost: pages are not ranges of bytes */
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
            kit_run_fault(x, "the cache was written outside the pages of the requests", at);
            break;
        }
    }
    free(is_used);
}
