/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_capture.c: group capture. forward is recorded into a graph, and the graph replayed: for the batch it
 * was recorded with, and for another one whose metadata was built in the same place. Recording is global, so
 * that an allocation or a wait inside forward is an error too.
 */
#include "../run/device_image.h"

#include <stdlib.h>

static check_t *current;
static void *stream;
static attn_batch_t real_batch;
static int swaps_batch;

/* One forward as a graph. */
static int record(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                  void **graph, attn_error_t *error) {
    const kit_memory_t *m = current->memory;
    int status = m->sync(m->ctx) != 0 ? ATTN_E_DEVICE : ATTN_OK;
    if (status == ATTN_OK) status = m->kind->capture_begin(m->device_id, stream, 1, error);
    if (status != ATTN_OK) return status;
    check_recording(1);
    status = shim_target()->ops->forward(instance, args, space, stream, error);
    check_recording(0);
    const int ended = m->kind->capture_end(m->device_id, stream, graph, status == ATTN_OK ? error : NULL);
    return status != ATTN_OK ? status : ended;
}

/* Another batch of as many requests and tokens: the query lengths in reverse order, or, where they are
 * uniform, shorter sequences. What a graph is recorded for is the number of requests and tokens (semantics
 * 6.2). */
static attn_batch_t other_batch(const attn_batch_t *batch, DLTensor tensors[2]) {
    attn_batch_t b = *batch;
    size_t n = (size_t)batch->num_reqs;
    static int32_t starts[KIT_MAX_REQS + 1], lens[KIT_MAX_REQS];
    starts[0] = 0;
    for (size_t r = 0; r < n; r++) {
        size_t from = n - 1 - r;
        starts[r + 1] = starts[r] + batch->query_start_loc_host[from + 1] - batch->query_start_loc_host[from];
        lens[r] = batch->seq_lens_host[r];
        if (batch->num_actual_tokens == batch->num_reqs) lens[r] = (lens[r] + 1) / 2;
    }
    tensors[0] = *batch->query_start_loc;
    tensors[1] = *batch->seq_lens;
    tensors[0].data = image_new(starts, (n + 1) * sizeof *starts);
    tensors[1].data = image_new(lens, n * sizeof *lens);
    tensors[0].byte_offset = tensors[1].byte_offset = 0;
    b.query_start_loc = &tensors[0];
    b.seq_lens = &tensors[1];
    b.query_start_loc_host = starts;
    b.seq_lens_host = lens;
    return b;
}

static int capture_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                         void *s, attn_error_t *error) {
    (void)s;
    DLTensor tensors[2];
    real_batch = *batch;
    real_batch.flags |= ATTN_BATCH_CAPTURE;
    attn_batch_t b = swaps_batch ? other_batch(&real_batch, tensors) : real_batch;
    return shim_target()->ops->build_metadata(instance, &b, space, stream, error);
}

/* As an engine does: once to warm up, then recorded, then replayed; the result of the replay is what
 * counts. */
static int capture_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                           void *s, attn_error_t *error) {
    (void)s;
    const kit_memory_t *m = current->memory;
    void *graph = NULL;
    void *was = image_of(args->output), *lists = NULL;
    if (swaps_batch &&
        args->topk_indices != NULL) { /* the lists are those of the other batch: no entry yet */
        lists = image_of(args->topk_indices);
        void *none = image_of(args->topk_indices);
        memset(none, 0xff, image_bytes(args->topk_indices));
        image_restore(args->topk_indices, none);
        free(none);
    }
    int status = shim_target()->ops->forward(instance, args, space, stream, error);
    if (status == ATTN_OK && m->sync(m->ctx) != 0) status = ATTN_E_DEVICE;
    if (status == ATTN_OK) image_restore(args->output, was);
    free(was);
    if (status == ATTN_OK && (status = record(instance, args, space, &graph, error)) != ATTN_OK) {
        check_fail(current, "recording forward: %d; it allocates, waits, or uses another stream", status);
        return status;
    }
    if (lists != NULL) image_restore(args->topk_indices, lists);
    free(lists);
    if (status == ATTN_OK && swaps_batch)
        status = shim_target()->ops->build_metadata(instance, &real_batch, space, stream, error);
    if (status == ATTN_OK && m->sync(m->ctx) != 0) status = ATTN_E_DEVICE;
    if (status == ATTN_OK &&
        (m->kind->graph_launch(m->device_id, graph, stream, NULL) != 0 || m->sync(m->ctx) != 0)) {
        check_fail(current, "replaying the graph failed");
        return ATTN_E_DEVICE;
    }
    return status;
}
static const attn_backend_ops_t capture_ops = {.build_metadata = capture_build, .forward = capture_forward};

static void capture(check_t *c) {
    kit_case_t k = {.num_reqs = 0};
    current = c;
    swaps_batch = c->arg == 1;
    if (c->memory->kind == NULL || c->memory->kind->capture_begin == NULL) {
        check_skip(c, c->memory->kind == NULL ? "graphs need a device" : "its kind of device has no graphs");
        return;
    }
    int is_stepwise = check_plain_case(c, &k) && attn_role_has_cache(k.problem.role) &&
                      k.problem.role != ATTN_ROLE_ENCODER_DECODER;
    if (k.num_reqs == 0 || (swaps_batch && !is_stepwise)) {
        check_skip(c, "the kit has no case for its roles");
        return;
    }
    if (is_stepwise) { /* every query length fits every sequence */
        k.num_reqs = 0;
        kit_case_add(&k, 1, 37);
        kit_case_add(&k, 5, 20);
        kit_case_add(&k, 18, 60);
    }
    if (c->can.graph_support < ATTN_GRAPH_ALWAYS) { /* uniform decode only */
        k.num_reqs = 0;
        kit_case_add(&k, 1, 37);
        kit_case_add(&k, 1, 20);
        kit_case_add(&k, 1, 400);
    }
    k.problem.features |= ATTN_F_CAPTURE;
    if (c->arg == 2) k.problem.features |= ATTN_F_WRITE_IN_FORWARD;
    k.problem.max_num_batched_tokens = 64;
    k.padded_tokens = 0;
    if (c->memory->kind->stream_create(c->memory->device_id, &stream, NULL) != ATTN_OK) {
        check_fail(c, "no stream");
        return;
    }
    check_run(c, shim_make(c->backend, &capture_ops), &k, NULL);
}

static void not_claimed(check_t *c) {
    check_skip(c, "not claimed in the table");
}

void check_capture_list(check_list_t *list, const check_t *c) {
    if (!(c->can.features & ATTN_F_CAPTURE)) {
        check_add(list, "capture", 0, not_claimed, 0, "forward in a graph");
        return;
    }
    check_add(list, "capture", 1, capture, 0, "forward in a graph");
    check_add(list, "capture", 1, capture, 1, "a graph replayed for another batch");
    if ((c->can.features & ATTN_F_WRITE_IN_FORWARD) && (c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER)))
        check_add(list, "capture", 1, capture, 2, "forward in a graph, which writes the cache");
}
