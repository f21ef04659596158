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
    shim_each_of_update(&a, lone);
    return shim_target()->ops->update_kv_cache(instance, &a, stream, error);
}
static int lone_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                        void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    num_lone = 0;
    shim_each_of_forward(&a, lone);
    a.scales.q = lone(a.scales.q);
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

/* ---------------------------------------------------- the order of all layers */

/* The cache as the second of three layers in the order that kv_cache_shape recommends for them, in which
 * heads, too, may lie further apart. It takes the place of the run's own, which stays as it was. */
static DLTensor among_layers;
static int64_t among_strides[8], among_layer, among_all; /* in elements: from layer to layer, of all */
static const DLTensor *in_layers(attn_instance_t *instance, const DLTensor *t) {
    attn_kv_cache_shape_t s = {.struct_size = sizeof s};
    if (t == NULL || among_layers.data != NULL) return t == NULL ? t : &among_layers;
    if (shim_target()->ops->kv_cache_shape(instance, t->shape[0], &s, NULL) != ATTN_OK) return t;
    int64_t at = 1, layer = 0;
    for (uint32_t j = s.ndim + 1; j-- > 0;) {
        const uint32_t d = s.stride_order_layers[j];
        if (d == 0) layer = at;
        if (d > 0) among_strides[d - 1] = at;
        at *= d == 0 ? 3 : t->shape[d - 1];
    }
    const size_t element = t->dtype.bits / 8u, bytes = (size_t)at * element;
    void *image = malloc(bytes);
    if (image == NULL) abort();
    memset(image, 0xff, bytes); /* no number in any type */
    among_layers = *t;
    among_layers.data = image_new(image, bytes);
    among_layers.byte_offset = (uint64_t)layer * element;
    among_layers.strides = among_strides;
    among_layer = layer, among_all = at;
    free(image);
    return &among_layers;
}
static int layered_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                          attn_error_t *error) {
    attn_kv_update_t a = *args;
    a.kv_cache = in_layers(instance, a.kv_cache);
    return shim_target()->ops->update_kv_cache(instance, &a, stream, error);
}
static int layered_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    a.kv_cache = in_layers(instance, a.kv_cache);
    return shim_target()->ops->forward(instance, &a, space, stream, error);
}
static const attn_backend_ops_t layered_ops = {.update_kv_cache = layered_update, .forward = layered_forward};

/* What is wrong in writing and in reading alike lies in the other two layers. */
static void look_at_other_layers(check_t *c) {
    const size_t element = among_layers.dtype.bits / 8u, bytes = (size_t)among_all * element;
    unsigned char *image = among_layers.data != NULL ? malloc(bytes) : NULL;
    if (image == NULL) return;
    image_read(image, among_layers.data, bytes);
    for (size_t i = 0; i < bytes && !c->report->is_failed; i++)
        if ((int64_t)(i / element) / among_layer % 3 != 1 && image[i] != 0xff)
            check_fail(c, "byte %zu of a cache of three layers was written, which is of another layer", i);
    free(image);
}

static void order_of_layers(check_t *c) {
    for (uint32_t layout = ATTN_LAYOUT_NHD; layout <= ATTN_LAYOUT_HND && !c->report->is_failed; layout++) {
        kit_case_t k;
        if (!check_start(c, &k)) return;
        if (k.problem.role != ATTN_ROLE_DECODER || (c->can.features & ATTN_F_BLOCK_STRIDE) == 0) continue;
        if (c->can.required_layout != 0 && c->can.required_layout != layout) continue;
        k.problem.kv_layout = layout;
        memset(&among_layers, 0, sizeof among_layers);
        if (check_run(c, shim_make(c->backend, &layered_ops), &k, NULL)) look_at_other_layers(c);
    }
    if (c->report->num_cases == 0) check_skip(c, "no decoder with feature block_stride");
}

/* ------------------------------------------------------ gaps between rows */

/* The cache with every stride but the last twice as long: behind each row of a head lies one of nobody. */
static DLTensor gapped_cache;
static int64_t gapped_strides[8], gapped_count, gapped_row;
static const DLTensor *with_gaps(const DLTensor *t) {
    if (t == NULL || gapped_cache.data != NULL) return t == NULL ? t : &gapped_cache;
    const size_t element = t->dtype.bits / 8u;
    gapped_count = gapped_row = t->shape[t->ndim - 1];
    for (int i = 0; i < t->ndim; i++) {
        gapped_strides[i] = i < t->ndim - 1 ? 2 * t->strides[i] : t->strides[i];
        if (i < t->ndim - 1) gapped_count += (t->shape[i] - 1) * gapped_strides[i];
    }
    void *image = malloc((size_t)gapped_count * element);
    if (image == NULL) abort();
    memset(image, 0xff, (size_t)gapped_count * element); /* no number in any type */
    gapped_cache = *t;
    gapped_cache.data = image_new(image, (size_t)gapped_count * element);
    gapped_cache.byte_offset = 0;
    gapped_cache.strides = gapped_strides;
    free(image);
    return &gapped_cache;
}
static int gapped_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                         attn_error_t *error) {
    attn_kv_update_t a = *args;
    a.kv_cache = with_gaps(a.kv_cache);
    return shim_target()->ops->update_kv_cache(instance, &a, stream, error);
}
static int gapped_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    a.kv_cache = with_gaps(a.kv_cache);
    return shim_target()->ops->forward(instance, &a, space, stream, error);
}
static const attn_backend_ops_t gapped_ops = {.update_kv_cache = gapped_update, .forward = gapped_forward};

static void gaps_between_rows(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    if (!attn_role_has_cache(k.problem.role)) {
        check_skip(c, "no role with a cache");
        return;
    }
    gapped_cache.data = NULL;
    if (!check_run(c, shim_make(c->backend, &gapped_ops), &k, NULL)) return;
    if (gapped_cache.data == NULL) {
        check_skip(c, "no call had a cache");
        return;
    }
    const size_t element = gapped_cache.dtype.bits / 8u, bytes = (size_t)gapped_count * element;
    unsigned char *image = malloc(bytes);
    if (image == NULL) abort();
    image_read(image, gapped_cache.data, bytes);
    for (size_t i = 0; i < bytes && !c->report->is_failed; i++)
        if ((int64_t)(i / element) % (2 * gapped_row) >= gapped_row && image[i] != 0xff)
            check_fail(c, "byte %zu of a cache was written, which lies in a gap between its rows", i);
    free(image);
}

void check_lone_list(check_list_t *list, const check_t *c) {
    if (c->can.features & ATTN_F_BLOCK_STRIDE)
        check_add(list, "offsets", CHECK_RUNS_ON_CPU, gaps_between_rows, 0,
                  "a cache with gaps between its rows");
    if (list->role == 0 && (c->can.features & ATTN_F_BLOCK_STRIDE))
        check_add(list, "offsets", 1, order_of_layers, 0, "a cache in the order of all layers");
    check_add(list, "offsets", 1, single_entries, 0, "strides of dimensions with one entry");
    check_add(list, "offsets", 1, queries_apart, 0, "queries in other strides than outputs");
}
