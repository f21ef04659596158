/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_device_lengths.c: the part of groups numerics and capture about lengths on the device (semantics
 * 1.6). Metadata is built once, for bounds; then lengths grow on the device from call to call, or, where
 * forward may be recorded, from replay to replay of one graph. Each result must be that of metadata built for
 * the lengths as they are, and the last one the oracle's.
 */
#include "../case/case_tensor.h"
#include "../run/device_image.h"

#include <math.h>
#include <stdlib.h>

enum { STEPS = 5, REPLAYED = 1 };

static check_t *current;
static const kit_case_t *the_case;
static int is_replayed;
static void *stream;
static attn_batch_t built;
static void *results[STEPS];

/* Lengths of step i of STEPS: the last ones are the case's. Requests begin with what a step adds at least. */
static void lengths_of(int step, int32_t *starts, int32_t *lens) {
    starts[0] = 0;
    for (int r = 0; r < the_case->num_reqs; r++) {
        const int32_t query = the_case->query_lens[r], all = the_case->seq_lens[r],
                      now = query - (step + r) % 2 * (query > 1 && step < STEPS - 1 ? 1 : 0);
        starts[r + 1] = starts[r] + now;
        lens[r] = now + (int32_t)((int64_t)(all - query) * (step + 1) / STEPS);
    }
}

static void put_lengths(int step) {
    int32_t starts[KIT_MAX_REQS + 1], lens[KIT_MAX_REQS];
    lengths_of(step, starts, lens);
    image_write(attn_data(built.query_start_loc), starts, ((size_t)the_case->num_reqs + 1) * sizeof *starts);
    image_write(attn_data(built.seq_lens), lens, (size_t)the_case->num_reqs * sizeof *lens);
}

static int build_once(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                      void *s, attn_error_t *error) {
    built = *batch;
    if (is_replayed) built.flags |= ATTN_BATCH_CAPTURE;
    put_lengths(0);
    return shim_target()->ops->build_metadata(instance, &built, space, is_replayed ? stream : s, error);
}

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

/* Rows of a result that were written: those of the lengths' tokens. */
static int same(const attn_forward_t *a, const void *image, const void *other, int step) {
    int32_t starts[KIT_MAX_REQS + 1], lens[KIT_MAX_REQS];
    double atol, rtol;
    const DLTensor *t = a->output;
    const uint32_t dtype = attn_dtype_of(t->dtype);
    kit_tolerance(the_case, &atol, &rtol);
    lengths_of(step, starts, lens);
    double *x = malloc(2 * (size_t)t->shape[2] * sizeof *x), *y;
    if (x == NULL) abort();
    y = x + t->shape[2];
    int is_same = 1;
    for (int64_t i = 0; i < starts[the_case->num_reqs]; i++)
        for (int64_t h = 0; h < t->shape[1]; h++) {
            const int64_t at = i * attn_byte_stride(t, 0) + h * attn_byte_stride(t, 1);
            kit_load_doubles((const char *)image + at, dtype, x, t->shape[2]);
            kit_load_doubles((const char *)other + at, dtype, y, t->shape[2]);
            for (int64_t d = 0; d < t->shape[2]; d++)
                is_same &= fabs(x[d] - y[d]) <= atol + rtol * fabs(y[d]) || (isnan(x[d]) && isnan(y[d]));
        }
    free(x);
    return is_same;
}

/* The same steps once more, each with metadata of its own lengths: the host's, to the token. */
static int compare_with_rebuilt(attn_instance_t *instance, const attn_forward_t *args,
                                const attn_space_t *space, attn_error_t *error) {
    const kit_memory_t *m = current->memory;
    for (int step = 0; step < STEPS; step++) {
        static int32_t starts[KIT_MAX_REQS + 1], lens[KIT_MAX_REQS];
        attn_batch_t b = built;
        lengths_of(step, starts, lens);
        b.query_start_loc_host = starts;
        b.seq_lens_host = lens;
        b.num_actual_tokens = starts[the_case->num_reqs];
        put_lengths(step);
        int status = shim_target()->ops->build_metadata(instance, &b, space, stream, error);
        if (status == ATTN_OK) status = shim_target()->ops->forward(instance, args, space, stream, error);
        if (status == ATTN_OK && m->sync(m->ctx) != 0) status = ATTN_E_DEVICE;
        if (status != ATTN_OK) return status;
        void *image = image_of(args->output);
        const int is_same = same(args, results[step], image, step);
        free(image);
        if (is_same) continue;
        check_fail(current,
                   "step %d of %d differs from the same step with metadata built for its lengths: forward "
                   "must read query_start_loc and seq_lens on the device%s",
                   step + 1, STEPS, is_replayed ? ", in every replay" : "");
        return attn_fail(error, ATTN_E_STATE, "seq_lens", "another result");
    }
    return ATTN_OK;
}

static int forward_often(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                         void *s, attn_error_t *error) {
    const kit_memory_t *m = current->memory;
    void *graph = NULL, *was = image_of(args->output);
    int status = ATTN_OK;
    if (!is_replayed) stream = s;
    if (is_replayed) { /* once to warm up, then recorded: with the lengths of the first step */
        status = shim_target()->ops->forward(instance, args, space, stream, error);
        if (status == ATTN_OK) status = record(instance, args, space, &graph, error);
    }
    for (int step = 0; step < STEPS && status == ATTN_OK; step++) {
        image_restore(args->output, was);
        put_lengths(step);
        if (is_replayed && m->sync(m->ctx) != 0) status = ATTN_E_DEVICE; /* its stream waits for no other */
        if (status != ATTN_OK) break;
        status = is_replayed ? m->kind->graph_launch(m->device_id, graph, stream, error)
                             : shim_target()->ops->forward(instance, args, space, stream, error);
        if (status == ATTN_OK && m->sync(m->ctx) != 0) status = ATTN_E_DEVICE;
        results[step] = image_of(args->output);
    }
    if (status == ATTN_OK) status = compare_with_rebuilt(instance, args, space, error);
    if (status == ATTN_OK)
        image_restore(args->output, results[STEPS - 1]); /* the last is the oracle's to judge */
    free(was);
    return status;
}

static const attn_backend_ops_t growing_ops = {.build_metadata = build_once, .forward = forward_often};

static int start(check_t *c, kit_case_t *k) {
    current = c;
    is_replayed = (c->arg & REPLAYED) != 0;
    const int is_latent = c->arg >> 1;
    if (is_latent ? !check_latent_case(c, k, ATTN_ROLE_MLA, c->seed) : !check_plain_case(c, k)) {
        check_skip(c, "the kit has no sizes that the table takes");
        return 0;
    }
    if (k->problem.role != ATTN_ROLE_DECODER && k->problem.role != ATTN_ROLE_MLA) {
        check_skip(c, "neither a decoder nor latent attention");
        return 0;
    }
    k->num_reqs = 0;
    k->problem.features |= ATTN_F_DEVICE_LENGTHS;
    k->problem.max_num_seqs = 16, k->problem.max_num_batched_tokens = 256, k->problem.max_model_len = 4096;
    if (is_replayed) k->problem.features |= ATTN_F_CAPTURE;
    return 1;
}

static void growing(check_t *c) {
    /* decodes; several tokens, as of speculation; and prefills beside them */
    static const int32_t batches[][4][2] = {{{1, 37}, {1, 700}, {1, 64}, {1, 1}},
                                            {{4, 300}, {2, 17}, {4, 2000}, {3, 96}},
                                            {{1, 90}, {40, 140}, {5, 5}, {1, 0}}};
    kit_case_t k;
    int found = 0;
    if (!start(c, &k)) return;
    if (is_replayed && (c->memory->kind == NULL || c->memory->kind->capture_begin == NULL)) {
        check_skip(c, "graphs need a device whose kind has them");
        return;
    }
    if (is_replayed && c->memory->kind->stream_create(c->memory->device_id, &stream, NULL) != ATTN_OK) {
        check_fail(c, "no stream");
        return;
    }
    const int most = is_replayed && c->can.graph_support < ATTN_GRAPH_ALWAYS ? 1 : 3;
    for (int i = 0; i < most && !c->report->is_failed; i++) {
        k.num_reqs = 0;
        for (int r = 0; r < 4; r++)
            if (batches[i][r][1] > 0) kit_case_add(&k, batches[i][r][0], batches[i][r][1]);
        the_case = &k;
        if (!check_is_served(c, &k)) continue;
        check_run(c, shim_make(c->backend, &growing_ops), &k, NULL);
        found++;
    }
    if (found == 0) check_skip(c, "the kit found no case that the backend serves");
}

/* A batch without the lists that its lengths are in. */
static int build_bad_first(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                           void *s, attn_error_t *error) {
    for (int i = 0; i < 2; i++) {
        attn_error_t e = {.struct_size = sizeof e};
        attn_batch_t b = *batch;
        if (i == 0) b.query_start_loc = NULL;
        if (i == 1) b.seq_lens = NULL;
        const int status = shim_target()->ops->build_metadata(instance, &b, space, s, &e);
        if (status == ATTN_E_INVALID && strcmp(e.param, i == 0 ? "query_start_loc" : "seq_lens") == 0)
            continue;
        check_fail(current, "build_metadata without %s: %d, parameter '%s'; it must refuse it by name",
                   i == 0 ? "query_start_loc" : "seq_lens", status, e.param);
        return attn_fail(error, ATTN_E_STATE, "batch", "a bad batch was taken");
    }
    return shim_target()->ops->build_metadata(instance, batch, space, s, error);
}

static void missing_lists(check_t *c) {
    static const attn_backend_ops_t bad_ops = {.build_metadata = build_bad_first};
    kit_case_t k;
    if (!start(c, &k)) return;
    kit_case_add(&k, 1, 40);
    kit_case_add(&k, 3, 20);
    check_run(c, shim_make(c->backend, &bad_ops), &k, NULL);
}

/* Lengths that grew beyond what metadata was built for: a host sees them, and refuses (semantics 1.6). */
static int forward_beyond(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                          void *s, attn_error_t *error) {
    int32_t *lens = attn_data(built.seq_lens), *starts = attn_data(built.query_start_loc);
    for (int i = 0; i < 3; i++) {
        attn_error_t e = {.struct_size = sizeof e};
        int32_t *at = i < 2 ? &lens[i] : &starts[built.num_reqs];
        const int32_t was = *at;
        *at = i == 0   ? built.seq_lens_host[0] + 1
              : i == 1 ? -3
                       : built.query_start_loc_host[built.num_reqs] + 1;
        const int status = shim_target()->ops->forward(instance, args, space, s, &e);
        *at = was;
        if (status == ATTN_OK)
            check_fail(current, "forward took %s of the device beyond the bounds that metadata was built for",
                       i == 0   ? "a seq_len"
                       : i == 1 ? "a negative seq_len"
                                : "a query_start_loc");
    }
    return shim_target()->ops->forward(instance, args, space, s, error);
}
static int build_and_keep(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                          void *s, attn_error_t *error) {
    built = *batch;
    return shim_target()->ops->build_metadata(instance, batch, space, s, error);
}
static void beyond_bounds(check_t *c) {
    static const attn_backend_ops_t beyond_ops = {.build_metadata = build_and_keep,
                                                  .forward = forward_beyond};
    kit_case_t k;
    if (!start(c, &k)) return;
    kit_case_add(&k, 1, 40);
    kit_case_add(&k, 3, 20);
    check_run(c, shim_make(c->backend, &beyond_ops), &k, NULL);
}

void check_device_lengths_list(check_list_t *list, const check_t *c) {
    if (!(c->can.features & ATTN_F_DEVICE_LENGTHS)) return;
    for (uint32_t latent = 0; latent < 2; latent++) {
        const uint32_t role = latent ? ATTN_ROLE_MLA : ATTN_ROLE_DECODER, arg = latent << 1;
        if (!(c->can.roles >> role & 1)) continue;
        const char *name = attn_role_name(role);
        check_add(list, "numerics", 1, growing, arg, "%s: lengths that grow on the device", name);
        check_add(list, "errors", 1, missing_lists, arg, "%s: lengths on the device without lists", name);
        check_add(list, "errors", CHECK_RUNS_ON_CPU, beyond_bounds, arg,
                  "%s: lengths on the device beyond their bounds", name);
        if (c->can.features & ATTN_F_CAPTURE)
            check_add(list, "capture", 1, growing, arg | REPLAYED,
                      "%s: a graph whose lengths grow on the device", name);
    }
}
