/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_offsets.c: group offsets. Addresses are data + byte_offset + index * stride, in 64 bits: views with
 * gaps, caches of several layers, both layouts; what lies far apart is in check_far.c.
 */
#include "../run/device_image.h"

#include <math.h>
#include <stdlib.h>

static void strides(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    k.flags |= KIT_STRIDED;
    check_run(c, c->backend, &k, NULL);
    for (int n = 0; n < 6; n++) {
        check_random_case(c, &k, c->seed * 271 + (uint64_t)n, 80);
        k.flags |= KIT_STRIDED;
        check_run(c, c->backend, &k, NULL);
    }
}

/* Every role by itself, with gaps behind tokens and with gaps behind heads: what a decoder reads from
 * pages, an encoder reads from the call. */
static void strides_of_roles(check_t *c) {
    static const uint32_t flags[] = {KIT_STRIDED, KIT_HEADS_FIRST};
    for (uint32_t role = ATTN_ROLE_DECODER; role < ATTN_ROLE_COUNT_; role++)
        for (int i = 0; i < 4 && !c->report->is_failed; i++) {
            kit_case_t k;
            if (!check_start(c, &k)) return;
            if (!(c->can.roles & ATTN_BIT(role)) || attn_role_is_mla(role)) continue;
            k.problem.role = role;
            if (role != ATTN_ROLE_DECODER) k.problem.mask = ATTN_MASK_FULL;
            if (!attn_role_has_cache(role)) k.problem.block_size = k.problem.kv_cache_dtype = 0;
            k.flags |= flags[i % 2];
            k.num_reqs = 0;
            if (i >= 2 && c->can.max_group != 1) k.problem.num_heads = 6, k.problem.num_kv_heads = 3;
            kit_case_add(&k, 20, 20);
            kit_case_add(&k, 7, attn_role_has_cache(role) ? 40 : 7);
            check_run(c, c->backend, &k, NULL);
        }
    if (c->report->num_cases == 0) check_skip(c, "the kit has no case that the backend serves");
}

static void layouts(check_t *c) {
    for (uint32_t layout = ATTN_LAYOUT_NHD; layout <= ATTN_LAYOUT_HND; layout++) {
        kit_case_t k;
        if (!check_start(c, &k)) return;
        if (k.problem.block_size == 0) {
            check_skip(c, "no role with a cache");
            return;
        }
        if (c->can.required_layout != 0 && c->can.required_layout != layout) continue;
        k.problem.kv_layout = layout;
        check_run(c, c->backend, &k, NULL);
    }
}

static void layers(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    if (k.problem.block_size == 0 || !(c->can.features & ATTN_F_BLOCK_STRIDE)) {
        check_skip(c, "block_stride is not in the table");
        return;
    }
    for (uint32_t layout = 0; layout <= ATTN_LAYOUT_HND; layout++) {
        if (c->can.required_layout != 0 && layout != 0 && layout != c->can.required_layout) continue;
        k.problem.kv_layout = layout;
        k.flags |= KIT_CROSS_LAYER;
        check_run(c, c->backend, &k, NULL);
    }
}

/* ------------------------------------------------------------ byte_offset */

enum { SHIFT = 4096, MAX_SHIFTED = 14 };
static DLTensor shifted_tensors[MAX_SHIFTED];
static int num_shifted, keeps_built; /* of a run: its table is not exchanged, so that build's own is used */

/* The same tensor with its data pointer moved back and its byte_offset forward. */
static const DLTensor *shifted(const DLTensor *t) {
    if (t == NULL || t->data == NULL || num_shifted == MAX_SHIFTED) return t;
    DLTensor *s = &shifted_tensors[num_shifted++];
    *s = *t;
    s->data = (void *)((uintptr_t)t->data - SHIFT);
    s->byte_offset += SHIFT;
    return s;
}
static int shifted_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    attn_batch_t b = *batch;
    num_shifted = 0;
    b.block_table = shifted(b.block_table);
    b.seq_lens = shifted(b.seq_lens);
    b.query_start_loc = shifted(b.query_start_loc);
    b.causal = shifted(b.causal);
    b.mm_prefix_ranges = shifted(b.mm_prefix_ranges);
    b.rswa_prefix_lens = shifted(b.rswa_prefix_lens);
    const int status = shim_target()->ops->build_metadata(instance, &b, space, stream, error);
    if (status != ATTN_OK || b.block_table == NULL || keeps_built ||
        shim_target()->ops->update_block_table == NULL)
        return status;
    return shim_target()->ops->update_block_table(instance, &b, space, stream, error);
}
static int shifted_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                          attn_error_t *error) {
    attn_kv_update_t a = *args;
    num_shifted = 0;
    shim_each_of_update(&a, shifted);
    return shim_target()->ops->update_kv_cache(instance, &a, stream, error);
}
static int shifted_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    num_shifted = 0;
    shim_each_of_forward(&a, shifted);
    return shim_target()->ops->forward(instance, &a, space, stream, error);
}
static int shifted_prepare(attn_instance_t *instance, const attn_weights_t *args, void *stream,
                           attn_error_t *error) {
    attn_weights_t w = *args;
    num_shifted = 0;
    w.kv_b_proj = shifted(w.kv_b_proj);
    w.kv_b_proj_scale = shifted(w.kv_b_proj_scale);
    return shim_target()->ops->prepare_weights(instance, &w, stream, error);
}
static const attn_backend_ops_t shifted_ops = {.build_metadata = shifted_build,
                                               .update_kv_cache = shifted_update,
                                               .prepare_weights = shifted_prepare,
                                               .forward = shifted_forward};

static void byte_offsets(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    for (keeps_built = 0; keeps_built < 2; keeps_built++)
        check_run(c, shim_make(c->backend, &shifted_ops), &k, NULL);
    if (k.problem.role == ATTN_ROLE_DECODER && (c->can.features & ATTN_F_WRITE_IN_FORWARD)) {
        k.problem.features |= ATTN_F_WRITE_IN_FORWARD;
        check_run(c, shim_make(c->backend, &shifted_ops), &k, NULL);
    }
    for (int n = 0; n < 6; n++) {
        check_random_case(c, &k, c->seed * 577 + (uint64_t)n, 80);
        keeps_built = n % 2;
        check_run(c, shim_make(c->backend, &shifted_ops), &k, NULL);
    }
    /* what a random case may lack: each tensor that a feature brings, and what a batch says */
    static const uint64_t brings[] = {ATTN_F_SINK, ATTN_F_ALIBI, ATTN_F_ALIBI_SQRT, ATTN_F_REL_BIAS,
                                      ATTN_F_PER_HEAD_SCALES};
    for (size_t i = 0; i < sizeof brings / sizeof brings[0] && c->role == 0; i++) {
        if (!(c->can.features & brings[i]) || !check_start(c, &k)) continue;
        if (brings[i] == ATTN_F_PER_HEAD_SCALES) {
            if (check_fp8_cache(c) == 0 || k.problem.block_size == 0) continue;
            k.problem.kv_cache_dtype = check_fp8_cache(c);
            k.flags |= KIT_PER_HEAD;
            check_fit_size(c, &k);
        }
        k.problem.features |= brings[i];
        if (check_is_served(c, &k)) check_run(c, shim_make(c->backend, &shifted_ops), &k, NULL);
    }
    for (int i = 0; i < CHECK_NUM_SAID; i++) {
        keeps_built = i % 2;
        if (check_said_case(c, &k, i)) check_run(c, shim_make(c->backend, &shifted_ops), &k, NULL);
    }
}

/* ------------------------------------------- one number in two, one dimension */

enum { MAX_GAPPED = 6 };
static struct gapped {
    DLTensor t;
    int64_t strides[2];
} gapped_tensors[MAX_GAPPED];
static int num_gapped;

/* A list with a gap behind each entry; what lies in the gaps is not an entry. */
static const DLTensor *gapped(const DLTensor *t) {
    if (t == NULL || t->ndim != 1 || t->shape[0] < 2 || num_gapped == MAX_GAPPED) return t;
    struct gapped *g = &gapped_tensors[num_gapped++];
    const size_t element = t->dtype.bits / 8u, n = (size_t)t->shape[0];
    char *data = malloc(2 * n * element), *image = image_of(t);
    if (data == NULL) abort();
    memset(data, 0x11, 2 * n * element);
    for (size_t i = 0; i < n; i++)
        memcpy(data + 2 * i * element, image + i * element, element);
    g->t = *t;
    g->t.data = image_new(data, 2 * n * element); /* lives until the process ends */
    free(data);
    free(image);
    g->t.byte_offset = 0;
    g->t.strides = g->strides;
    g->strides[0] = 2;
    return &g->t;
}
static int gapped_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                         attn_error_t *error) {
    attn_kv_update_t a = *args;
    attn_error_t e = {.struct_size = sizeof e};
    num_gapped = 0;
    a.slot_mapping = gapped(a.slot_mapping);
    a.scales.k = gapped(a.scales.k);
    a.scales.v = gapped(a.scales.v);
    int status = shim_target()->ops->update_kv_cache(instance, &a, stream, &e);
    return status == ATTN_OK ? status : shim_target()->ops->update_kv_cache(instance, args, stream, error);
}
static int gapped_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    attn_error_t e = {.struct_size = sizeof e};
    num_gapped = 0;
    a.sinks = gapped(a.sinks);
    a.alibi_slopes = gapped(a.alibi_slopes);
    a.scales.k = gapped(a.scales.k);
    a.scales.v = gapped(a.scales.v);
    int status = shim_target()->ops->forward(instance, &a, space, stream, &e);
    return status == ATTN_OK ? status : shim_target()->ops->forward(instance, args, space, stream, error);
}
static const attn_backend_ops_t gapped_ops = {.update_kv_cache = gapped_update, .forward = gapped_forward};

/* Served as they are, or refused; not taken for dense. */
static void gaps_in_lists(check_t *c) {
    static const uint64_t asked[] = {0, ATTN_F_SINK, ATTN_F_ALIBI, ATTN_F_PER_HEAD_SCALES};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        kit_case_t k;
        if (!check_start(c, &k)) return;
        if ((c->can.features & asked[i]) != asked[i] || (c->role != 0 && i > 0)) continue;
        k.problem.features |= asked[i];
        if (asked[i] == ATTN_F_PER_HEAD_SCALES) {
            if (check_fp8_cache(c) == 0 || k.problem.block_size == 0) continue;
            k.problem.kv_cache_dtype = check_fp8_cache(c);
            k.flags |= KIT_PER_HEAD;
        }
        check_run(c, shim_make(c->backend, &gapped_ops), &k, NULL);
    }
}

/* A table of rows as a view of one whose rows are longer, with NaN in what lies between. */
static const DLTensor *in_longer_rows(const DLTensor *t) {
    enum { MORE = 5 };
    static struct gapped made[2];
    static int next;
    if (t == NULL || t->ndim != 2 || image_bytes(t) == 0) return t;
    struct gapped *g = &made[next++ % 2];
    const int64_t rows = t->shape[0], columns = t->shape[1], row = columns + MORE;
    float *data = malloc((size_t)(rows * row) * sizeof *data), *image = image_of(t);
    if (data == NULL) abort();
    for (int64_t i = 0; i < rows * row; i++)
        data[i] = i % row < columns ? image[i / row * t->strides[0] + i % row] : NAN;
    g->t = *t;
    g->t.data = image_new(data, (size_t)(rows * row) * sizeof *data);
    g->t.byte_offset = 0;
    g->t.strides = g->strides;
    g->strides[0] = row, g->strides[1] = 1;
    free(data);
    free(image);
    return &g->t;
}
static int longer_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    attn_error_t e = {.struct_size = sizeof e};
    a.qq_bias = in_longer_rows(a.qq_bias);
    a.rel_bias = in_longer_rows(a.rel_bias);
    const int status = shim_target()->ops->forward(instance, &a, space, stream, &e);
    return status == ATTN_OK ? status : shim_target()->ops->forward(instance, args, space, stream, error);
}
static const attn_backend_ops_t longer_ops = {.forward = longer_forward};
static void gaps_in_biases(check_t *c) {
    static const uint64_t biases[] = {ATTN_F_QQ_BIAS, ATTN_F_REL_BIAS};
    for (int i = 0; i < 2; i++) {
        kit_case_t k;
        if (!(c->can.features & biases[i]) || !check_start(c, &k)) continue;
        k.problem.features |= biases[i];
        if (check_is_served(c, &k)) check_run(c, shim_make(c->backend, &longer_ops), &k, NULL);
    }
}

void check_offsets_list(check_list_t *list, const check_t *c) {
    check_add(list, "offsets", 1, strides, 0, "query, key, value, output and lse with gaps");
    if (list->role == 0)
        check_add(list, "offsets", 1, strides_of_roles, 0, "tensors with gaps in every role");
    check_add(list, "offsets", 1, byte_offsets, 0, "byte_offset of every tensor");
    check_add(list, "offsets", 1, layouts, 0, "pages in NHD and in HND");
    check_add(list, "offsets", 1, layers, 0, "a cache that is one layer of three");
    check_add(list, "offsets", 1, gaps_in_lists, 0, "lists with gaps are served or refused");
    if (list->role == 0 && (c->can.features & (ATTN_F_QQ_BIAS | ATTN_F_REL_BIAS)))
        check_add(list, "offsets", 1, gaps_in_biases, 0, "biases with gaps between rows");
    check_lone_list(list, c);
    check_far_list(list, c);
}
