/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_lone.c: the part of group offsets about dimensions with one entry. Nothing lies at their stride, so
 * it may be any: a view of one token or head keeps that of what it was cut from.
 */
#include "../run/device_image.h"

#include <stdlib.h>

enum { MAX_LONE = 20 };
static struct lone {
    DLTensor t;
    int64_t strides[8];
} lone_tensors[MAX_LONE];
static int num_lone;

static const DLTensor *lone(const DLTensor *t) {
    if (t == NULL || t->ndim > 8 || num_lone == MAX_LONE) return t;
    struct lone *l = &lone_tensors[num_lone++];
    l->t = *t;
    for (int i = 0; i < t->ndim; i++)
        l->strides[i] = t->shape[i] == 1 ? 16 * (t->strides[i] > 0 ? t->strides[i] : 1) : t->strides[i];
    l->t.strides = l->strides;
    return &l->t;
}

static int lone_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                      void *stream, attn_error_t *error) {
    attn_batch_t b = *batch;
    num_lone = 0;
    b.block_table = lone(b.block_table);
    b.slot_mapping = lone(b.slot_mapping);
    b.query_start_loc = lone(b.query_start_loc);
    b.seq_lens = lone(b.seq_lens);
    return shim_target()->ops->build_metadata(instance, &b, space, stream, error);
}
static int lone_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                       attn_error_t *error) {
    attn_kv_update_t a = *args;
    num_lone = 0;
    a.key = lone(a.key);
    a.value = lone(a.value);
    a.kv_cache = lone(a.kv_cache);
    a.v_cache = lone(a.v_cache);
    a.slot_mapping = lone(a.slot_mapping);
    a.scales.k = lone(a.scales.k);
    a.scales.v = lone(a.scales.v);
    return shim_target()->ops->update_kv_cache(instance, &a, stream, error);
}
static int lone_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                        void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    num_lone = 0;
    a.query = lone(a.query);
    a.key = lone(a.key);
    a.value = lone(a.value);
    a.kv_cache = lone(a.kv_cache);
    a.v_cache = lone(a.v_cache);
    a.output = lone(a.output);
    a.lse = lone(a.lse);
    a.sinks = lone(a.sinks);
    a.alibi_slopes = lone(a.alibi_slopes);
    a.rel_bias = lone(a.rel_bias);
    a.scales.q = lone(a.scales.q);
    a.scales.k = lone(a.scales.k);
    a.scales.v = lone(a.scales.v);
    a.topk_indices = lone(a.topk_indices);
    a.slot_mapping = lone(a.slot_mapping);
    return shim_target()->ops->forward(instance, &a, space, stream, error);
}
static const attn_backend_ops_t lone_ops = {
    .build_metadata = lone_build, .update_kv_cache = lone_update, .forward = lone_forward};

/* One token, one request, one head of each kind, one page. */
static void single_entries(check_t *c) {
    for (int i = 0; i < 4 && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!check_start_without(c, &k)) return;
        k.padded_tokens = 0;
        if (!attn_role_is_mla(k.problem.role)) {
            if (i >= 1) k.problem.num_kv_heads = 1;
            if (i >= 2 || c->can.max_group == 1) k.problem.num_heads = k.problem.num_kv_heads;
        }
        if (!attn_role_has_cache(k.problem.role))
            kit_case_add(&k, 1, 1);
        else
            kit_case_add(&k, 1, i == 3 ? (int32_t)k.problem.block_size : 60);
        if (check_is_served(c, &k)) check_run(c, shim_make(c->backend, &lone_ops), &k, NULL);
    }
    if (c->report->num_cases == 0) check_skip(c, "one token of one head is not served");
}

/* ------------------------------------------------- tensors unlike each other */

/* The query's tokens lie twice as far apart as the output's. */
static int apart_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    DLTensor t = *args->query;
    int64_t strides[3];
    const size_t element = t.dtype.bits / 8u, row = (size_t)t.strides[0] * element, bytes = image_bytes(&t);
    if (t.ndim != 3 || t.shape[0] < 2)
        return shim_target()->ops->forward(instance, args, space, stream, error);
    const size_t rows = (size_t)t.shape[0], used = bytes - (rows - 1) * row;
    char *image = image_of(&t), *spread = malloc(2 * rows * row + used);
    if (spread == NULL) abort();
    memset(spread, 0xff, 2 * rows * row + used);
    for (size_t i = 0; i < rows; i++)
        memcpy(spread + 2 * i * row, image + i * row, used);
    memcpy(strides, t.strides, sizeof strides);
    strides[0] *= 2;
    t.strides = strides;
    t.data = image_new(spread, 2 * rows * row + used);
    t.byte_offset = 0;
    a.query = &t;
    free(image), free(spread);
    return shim_target()->ops->forward(instance, &a, space, stream, error);
}
static const attn_backend_ops_t apart_ops = {.forward = apart_forward};

static void queries_apart(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    check_run(c, shim_make(c->backend, &apart_ops), &k, NULL);
}

void check_lone_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "offsets", 1, single_entries, 0, "strides of dimensions with one entry");
    check_add(list, "offsets", 1, queries_apart, 0, "queries in other strides than outputs");
}
