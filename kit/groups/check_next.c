/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_next.c: the part of group steps about what a call takes along for the next: that it had no LSE, where
 * its table lay, that it was refused, what its small tensors held.
 */
#include "../run/device_image.h"

#include <stdlib.h>

/* Each call says whether it wants an LSE; what the first said is not the next one's. */
static int forward_in_turns(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                            void *stream, attn_error_t *error) {
    int status = ATTN_OK;
    for (int i = 0; i < 4 && status == ATTN_OK; i++) {
        attn_forward_t a = *args;
        if (i % 2 == 0) a.lse = NULL;
        status = shim_target()->ops->forward(instance, &a, space, stream, error);
    }
    return status;
}
static const attn_backend_ops_t turns_ops = {.forward = forward_in_turns};

/* The step before had a table at another address, with rows further apart, and the same lengths. */
static int build_from_elsewhere(attn_instance_t *instance, const attn_batch_t *batch,
                                const attn_space_t *space, void *stream, attn_error_t *error) {
    attn_batch_t b = *batch;
    if (batch->block_table == NULL)
        return shim_target()->ops->build_metadata(instance, batch, space, stream, error);
    DLTensor t = *batch->block_table;
    int64_t strides[2] = {t.strides[0] + 5, 1};
    t.strides = strides;
    const size_t bytes = (size_t)(t.shape[0] * t.strides[0]) * 4;
    int32_t *zeros = calloc(1, bytes + 4);
    if (zeros == NULL) abort();
    t.data = image_new(zeros, bytes + 4);
    t.byte_offset = 0;
    b.block_table = &t;
    if (b.block_table_host != NULL) b.block_table_host = zeros, b.block_table_host_stride = t.strides[0];
    int status = shim_target()->ops->build_metadata(instance, &b, space, stream, error);
    free(zeros);
    if (status == ATTN_OK) status = shim_target()->ops->build_metadata(instance, batch, space, stream, error);
    return status;
}
static const attn_backend_ops_t elsewhere_ops = {.build_metadata = build_from_elsewhere};

/* A cache that says it has one block, though all are there: a backend may look at ids or trust them
 * (doc/plugin-author.md), and what it says of this call is not that of the next. */
static const DLTensor *one_block(const DLTensor *t, DLTensor *copy, int64_t shape[8]) {
    if (t == NULL || t->ndim > 8) return t;
    *copy = *t;
    for (int i = 0; i < t->ndim; i++)
        shape[i] = i == 0 && t->shape[0] > 1 ? 1 : t->shape[i];
    copy->shape = shape;
    return copy;
}
static int forward_after_one_block(attn_instance_t *instance, const attn_forward_t *args,
                                   const attn_space_t *space, void *stream, attn_error_t *error) {
    if (space != NULL && args->kv_cache != NULL) {
        attn_forward_t a = *args;
        DLTensor copies[2];
        int64_t shapes[2][8];
        attn_error_t e = {.struct_size = sizeof e};
        a.kv_cache = one_block(a.kv_cache, &copies[0], shapes[0]);
        a.v_cache = one_block(a.v_cache, &copies[1], shapes[1]);
        shim_target()->ops->forward(instance, &a, space, stream, &e);
    }
    return shim_target()->ops->forward(instance, args, space, stream, error);
}
static const attn_backend_ops_t one_block_ops = {.forward = forward_after_one_block};

/* Whose tensors held something else at the call before, in the same place: they are read anew in each. */
static int forward_after_others(attn_instance_t *instance, const attn_forward_t *args,
                                const attn_space_t *space, void *stream, attn_error_t *error) {
    const DLTensor *const all[] = {args->query,    args->sinks,    args->alibi_slopes, args->rel_bias,
                                   args->scales.q, args->scales.k, args->scales.v,     args->output_scale};
    enum { NUM = sizeof all / sizeof all[0] };
    void *images[NUM] = {NULL};
    for (int i = 0; i < NUM; i++) {
        if (all[i] == NULL || all[i]->data == NULL || image_bytes(all[i]) == 0) continue;
        void *other = image_of(all[i]);
        images[i] = image_of(all[i]);
        memset(other, 0x3f, image_bytes(all[i])); /* 0.75 or 1.9 in each type */
        image_restore(all[i], other);
        free(other);
    }
    int status = shim_target()->ops->forward(instance, args, space, stream, error);
    for (int i = 0; i < NUM; i++) {
        if (images[i] != NULL) image_restore(all[i], images[i]);
        free(images[i]);
    }
    return status != ATTN_OK ? status : shim_target()->ops->forward(instance, args, space, stream, error);
}
static const attn_backend_ops_t in_place_ops = {.forward = forward_after_others};

static const attn_backend_ops_t *const variants[] = {&turns_ops, &elsewhere_ops, &one_block_ops,
                                                     &in_place_ops};
enum { TURNS, ELSEWHERE, ONE_BLOCK, IN_PLACE };

static void run_next(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    if (c->arg == IN_PLACE)
        for (int i = 0; i < CHECK_NUM_LAYER && !c->report->is_failed; i++) {
            kit_case_t own;
            if (check_layer_case(c, &own, i)) check_run(c, shim_make(c->backend, &in_place_ops), &own, NULL);
        }
    else if (c->arg == TURNS ? !(k.problem.features & ATTN_F_LSE) : !attn_role_has_cache(k.problem.role)) {
        check_skip(c, c->arg == TURNS ? "lse is not in the table" : "its roles have no cache");
        return;
    }
    check_run(c, shim_make(c->backend, variants[c->arg]), &k, NULL);
    if (c->role == 0 && (c->can.features & ATTN_F_NON_CAUSAL) && k.problem.role == ATTN_ROLE_DECODER) {
        k.problem.mask = ATTN_MASK_FULL;
        check_run(c, shim_make(c->backend, variants[c->arg]), &k, NULL);
    }
    for (int i = 0; i < CHECK_NUM_SAID && c->arg != ONE_BLOCK && !c->report->is_failed; i++)
        if (check_said_case(c, &k, i)) check_run(c, shim_make(c->backend, variants[c->arg]), &k, NULL);
}

void check_next_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "steps", 1, run_next, TURNS, "calls without an LSE and with one, in turns");
    check_add(list, "steps", 1, run_next, ELSEWHERE, "a table that lies elsewhere at the next step");
    check_add(list, "steps", CHECK_RUNS_ON_CPU, run_next, ONE_BLOCK,
              "a cache that says it has one block, and then all");
    check_add(list, "steps", 1, run_next, IN_PLACE,
              "tensors of a layer that hold something else at the next call");
}
