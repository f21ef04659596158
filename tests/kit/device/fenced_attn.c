/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fenced_attn.c: a plugin for the device of fenced_device.c, as a third party would build it: from installed
 * headers alone, with the device's kind in it. Its kernels are those of a CPU backend, FENCED_TARGET (a
 * plugin's C file), which see the device's memory through its view; the host side here follows no pointer of
 * the device. FENCED_WRONG makes it do so after all: 1: build_metadata reads seq_lens, 2: update_kv_cache
 * looks at a slot, 3: the profiling run clears the output by memset. 4 and 5: a process has three instances
 * and no more, the fourth is refused or ends it.
 */
#include "fenced_device.h"

#include <attn/attn_merge.h>

/* The other plugin's exported object becomes a variable of this file. */
#undef ATTN_PLUGIN_SYMBOL
#undef ATTN_PLUGIN_EXPORT
#define ATTN_PLUGIN_SYMBOL fenced_target
#define ATTN_PLUGIN_EXPORT static
#include FENCED_TARGET

#include <stdatomic.h>
#undef ATTN_PLUGIN_SYMBOL
#undef ATTN_PLUGIN_EXPORT
#define ATTN_PLUGIN_SYMBOL attn_plugin_v1
#define ATTN_PLUGIN_EXPORT __attribute__((visibility("default")))

#ifndef FENCED_WRONG
#define FENCED_WRONG 0
#endif

#define TARGET (fenced_target.backends[0])
enum { MAX_TENSORS = 19, MAX_DIMS = 8 };

/* A tensor as a kernel sees it; is_there 0: not given. */
typedef struct seen {
    DLTensor t;
    int64_t shape[MAX_DIMS], strides[MAX_DIMS];
    int is_there, has_strides;
} seen_t;

typedef struct member {
    size_t offset;
    const char *name;
} member_t;
#define MEMBER(TYPE, NAME)                                                                                   \
    { offsetof(TYPE, NAME), #NAME }
#define COUNT(LIST) (sizeof(LIST) / sizeof(LIST)[0])

static const member_t of_batch[] = {
    MEMBER(attn_batch_t, query_start_loc),  MEMBER(attn_batch_t, seq_lens),
    MEMBER(attn_batch_t, block_table),      MEMBER(attn_batch_t, slot_mapping),
    MEMBER(attn_batch_t, causal),           MEMBER(attn_batch_t, mm_prefix_ranges),
    MEMBER(attn_batch_t, rswa_prefix_lens), MEMBER(attn_batch_t, encoder_seq_lens),
    MEMBER(attn_batch_t, dcp_local_seq_lens)};
static const member_t of_update[] = {
    MEMBER(attn_kv_update_t, key),          MEMBER(attn_kv_update_t, value),
    MEMBER(attn_kv_update_t, kv_cache),     MEMBER(attn_kv_update_t, v_cache),
    MEMBER(attn_kv_update_t, slot_mapping), MEMBER(attn_kv_update_t, scales.q),
    MEMBER(attn_kv_update_t, scales.k),     MEMBER(attn_kv_update_t, scales.v)};
static const member_t of_forward[] = {MEMBER(attn_forward_t, query),
                                      MEMBER(attn_forward_t, key),
                                      MEMBER(attn_forward_t, value),
                                      MEMBER(attn_forward_t, kv_cache),
                                      MEMBER(attn_forward_t, v_cache),
                                      MEMBER(attn_forward_t, output),
                                      MEMBER(attn_forward_t, lse),
                                      MEMBER(attn_forward_t, scales.q),
                                      MEMBER(attn_forward_t, scales.k),
                                      MEMBER(attn_forward_t, scales.v),
                                      MEMBER(attn_forward_t, output_scale),
                                      MEMBER(attn_forward_t, output_block_scale),
                                      MEMBER(attn_forward_t, sinks),
                                      MEMBER(attn_forward_t, alibi_slopes),
                                      MEMBER(attn_forward_t, rel_bias),
                                      MEMBER(attn_forward_t, qq_bias),
                                      MEMBER(attn_forward_t, topk_indices),
                                      MEMBER(attn_forward_t, slot_mapping)};
static const member_t of_weights[] = {MEMBER(attn_weights_t, kv_b_proj),
                                      MEMBER(attn_weights_t, kv_b_proj_scale)};

/* ------------------------------------------------------------------ addresses */

static int see_address(const void *p, const char *name, void **seen, attn_error_t *error) {
    *seen = p != NULL ? fenced_view(p) : NULL;
    if (p == NULL || *seen != NULL) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, name, "%s is at %p, which is no memory of fenced:0", name, p);
}

static int see_tensor(const DLTensor *t, const char *name, seen_t *s, attn_error_t *error) {
    s->is_there = t != NULL;
    if (t == NULL) return ATTN_OK;
    if ((int)t->device.device_type != (int)FENCED_TYPE || t->device.device_id != 0 || t->ndim > MAX_DIMS)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s is on a device of type %d and has %d dimensions; expected fenced:0 and up to %d",
                         name, (int)t->device.device_type, t->ndim, MAX_DIMS);
    s->t = *t;
    s->t.device.device_type = kDLCPU;
    s->has_strides = t->strides != NULL;
    for (int i = 0; i < t->ndim; i++) {
        s->shape[i] = t->shape[i];
        if (s->has_strides) s->strides[i] = t->strides[i];
    }
    s->t.byte_offset = 0;
    return t->data != NULL ? see_address(attn_data(t), name, &s->t.data, error) : ATTN_OK;
}

/* The tensors of a struct: taken into seen[], and later pointed to, wherever seen[] lies then. */
static int see_all(const void *args, const member_t *list, size_t count, seen_t *seen, attn_error_t *error) {
    int code = ATTN_OK;
    for (size_t i = 0; i < count && code == ATTN_OK; i++) {
        const DLTensor *t;
        memcpy(&t, (const char *)args + list[i].offset, sizeof t);
        code = see_tensor(t, list[i].name, &seen[i], error);
    }
    return code;
}

static void point_all(void *args, const member_t *list, size_t count, seen_t *seen) {
    for (size_t i = 0; i < count; i++) {
        seen[i].t.shape = seen[i].shape;
        seen[i].t.strides = seen[i].has_strides ? seen[i].strides : NULL;
        const DLTensor *t = seen[i].is_there ? &seen[i].t : NULL;
        memcpy((char *)args + list[i].offset, &t, sizeof t);
    }
}

static int see_space(const attn_space_t *given, attn_space_t *space, attn_error_t *error) {
    int code = attn_intake(space, sizeof *space, given, "space", error);
    if (code == ATTN_OK) code = see_address(space->metadata, "metadata", &space->metadata, error);
    if (code == ATTN_OK) code = see_address(space->workspace, "workspace", &space->workspace, error);
    return code;
}

/* -------------------------------------------------------------------- kernels */

typedef struct update_call {
    attn_instance_t *instance;
    attn_kv_update_t args;
    seen_t seen[COUNT(of_update)];
} update_call_t;

static int run_update(void *arguments, attn_error_t *error) {
    update_call_t *c = arguments;
    point_all(&c->args, of_update, COUNT(of_update), c->seen);
    return TARGET->ops->update_kv_cache(c->instance, &c->args, NULL, error);
}

typedef struct forward_call {
    attn_instance_t *instance;
    attn_forward_t args;
    attn_space_t space;
    int has_space;
    seen_t seen[COUNT(of_forward)];
} forward_call_t;

static int run_forward(void *arguments, attn_error_t *error) {
    forward_call_t *c = arguments;
    point_all(&c->args, of_forward, COUNT(of_forward), c->seen);
    return TARGET->ops->forward(c->instance, &c->args, c->has_space ? &c->space : NULL, NULL, error);
}

/* ------------------------------------------------------------------ operations */

/* Merging runs the host's own functions over views. */
static _Atomic(const attn_merge_table_t *) host_merge; /* instances open on several threads */
static const attn_merge_table_t *merge_of_host(void) {
    return atomic_load(&host_merge);
}

static attn_device_t as_cpu(void) {
    ATTN_INIT(attn_device_t, d);
    d.type = kDLCPU;
    d.num_sms = 1;
    return d;
}

static int fenced_supports(const attn_problem_t *problem, const attn_device_t *device,
                           attn_reasons_t *reasons) {
    attn_problem_t p;
    const attn_device_t cpu = as_cpu();
    (void)device;
    if (attn_intake(&p, sizeof p, problem, "problem", NULL) != ATTN_OK) return ATTN_E_INVALID;
    p.features &= ~ATTN_F_CAPTURE;
    return ATTN_HAS_OP(TARGET->ops, supports_combination)
               ? TARGET->ops->supports_combination(&p, &cpu, reasons)
               : ATTN_OK;
}

static int fenced_open(const attn_problem_t *problem, const attn_device_t *device,
                       const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                       attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p;
    attn_device_t d;
    const attn_device_t cpu = as_cpu();
    int code = attn_intake(&p, sizeof p, problem, "problem", error);
    if (code == ATTN_OK) code = attn_intake_known(&d, sizeof d, device, "device", error);
    if (code == ATTN_OK && (d.type != (int)FENCED_TYPE || d.id != 0))
        code = attn_fail(error, ATTN_E_DEVICE, "device", "this backend runs on fenced:0; type %d was given",
                         (int)d.type);
    if (code != ATTN_OK) return code;
#if FENCED_WRONG >= 4
    static atomic_int opened;
    if (atomic_fetch_add(&opened, 1) >= 3) {
        if (FENCED_WRONG == 5) abort();
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "no place for another instance");
    }
#endif
    p.features &= ~ATTN_F_CAPTURE;
    if (host != NULL && host->get_extension != NULL)
        atomic_store(&host_merge, host->get_extension(host->ctx, ATTN_MERGE_EXTENSION));
    return TARGET->ops->open(&p, &cpu, options, num_options, host, instance, error);
}

static int fenced_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                        void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    seen_t seen[COUNT(of_batch)];
    (void)stream;
    int code = attn_intake(&b, sizeof b, batch, "batch", error);
    if (code == ATTN_OK) code = see_space(space, &s, error);
    if (code == ATTN_OK) code = see_all(&b, of_batch, COUNT(of_batch), seen, error);
    if (code != ATTN_OK) return code;
#if FENCED_WRONG == 1
    if (b.seq_lens != NULL && *(const volatile int32_t *)attn_data(b.seq_lens) < 0)
        return attn_fail(error, ATTN_E_INVALID, "seq_lens", "a length is negative");
#endif
    point_all(&b, of_batch, COUNT(of_batch), seen);
    return TARGET->ops->build_metadata(instance, &b, &s, NULL, error);
}

static int fenced_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                         attn_error_t *error) {
    update_call_t c = {.instance = instance};
    int code = attn_intake(&c.args, sizeof c.args, args, "args", error);
    if (code == ATTN_OK) code = see_all(&c.args, of_update, COUNT(of_update), c.seen, error);
    if (code != ATTN_OK) return code;
#if FENCED_WRONG == 2
    if (args->slot_mapping != NULL && *(const volatile int64_t *)attn_data(args->slot_mapping) < -1000)
        return attn_fail(error, ATTN_E_INVALID, "slot_mapping", "a strange slot");
#endif
    return fenced_launch(stream, run_update, &c, sizeof c, error);
}

static int fenced_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    forward_call_t c = {.instance = instance, .has_space = space != NULL};
    void *weights = NULL;
    int code = attn_intake(&c.args, sizeof c.args, args, "args", error);
#if FENCED_WRONG == 3
    if (code == ATTN_OK && space == NULL) memset(attn_data(args->output), 0, 4);
#endif
    if (code == ATTN_OK && c.has_space) code = see_space(space, &c.space, error);
    if (code == ATTN_OK) code = see_all(&c.args, of_forward, COUNT(of_forward), c.seen, error);
    if (code == ATTN_OK) code = see_address(c.args.weight_space, "weight_space", &weights, error);
    if (code != ATTN_OK) return code;
    c.args.weight_space = weights;
    return fenced_launch(stream, run_forward, &c, sizeof c, error);
}

static int fenced_prepare(attn_instance_t *instance, const attn_weights_t *weights, void *stream,
                          attn_error_t *error) {
    attn_weights_t w;
    seen_t seen[COUNT(of_weights)];
    (void)stream;
    int code = attn_intake(&w, sizeof w, weights, "weights", error);
    if (code == ATTN_OK) code = see_address(w.weight_space, "weight_space", &w.weight_space, error);
    if (code == ATTN_OK) code = see_all(&w, of_weights, COUNT(of_weights), seen, error);
    if (code != ATTN_OK) return code;
    point_all(&w, of_weights, COUNT(of_weights), seen);
    return TARGET->ops->prepare_weights(instance, &w, NULL, error);
}

/* -------------------------------------------------------------------- merging */

enum { MERGE_STATES, MERGE_WEIGH, ROWS_COPY, ROWS_GATHER, ROWS_SCATTER, MOST_STATES = 8 };
/* A merge: output, lse, sinks, then outputs and LSE of the states; rows: from, rows, scale, to. */
typedef struct merge_call {
    int which;
    int32_t count, own;
    int64_t tokens;
    seen_t seen[3 + 2 * MOST_STATES];
} merge_call_t;

static const DLTensor *point(seen_t *s) {
    s->t.shape = s->shape;
    s->t.strides = s->strides;
    return s->is_there ? &s->t : NULL;
}

static int run_merge(void *arguments, attn_error_t *error) {
    merge_call_t *c = arguments;
    const DLTensor *t[3 + 2 * MOST_STATES], *lses[MOST_STATES];
    attn_state_t states[MOST_STATES];
    for (size_t i = 0; i < COUNT(t); i++)
        t[i] = point(&c->seen[i]);
    for (int i = 0; i < MOST_STATES; i++)
        states[i] = (attn_state_t){t[3 + i], t[3 + MOST_STATES + i]}, lses[i] = states[i].lse;
    switch (c->which) {
    case MERGE_STATES:
        return merge_of_host()->merge_states(states, c->count, c->tokens, t[2], t[0], t[1], NULL, error);
    case MERGE_WEIGH:
        return merge_of_host()->merge_weigh(states[c->own].output, lses, c->count, c->own, c->tokens, t[2],
                                            t[0], t[1], NULL, error);
    case ROWS_COPY:
        return merge_of_host()->rows_copy(t[0], t[2], t[3], NULL, error);
    case ROWS_GATHER:
        return merge_of_host()->rows_gather(t[0], t[1], t[2], t[3], NULL, error);
    default:
        return merge_of_host()->rows_scatter(t[0], t[1], t[2], t[3], NULL, error);
    }
}

static int launch_merge(merge_call_t *c, void *stream, attn_error_t *error) {
    if (merge_of_host() == NULL)
        return attn_fail(error, ATTN_E_STATE, "stream", "open an instance first: the host's functions do it");
    return fenced_launch(stream, run_merge, c, sizeof *c, error);
}

static int fenced_merge(const attn_state_t *states, const DLTensor *const *lses, int32_t n, int32_t own,
                        const DLTensor *partial, int64_t tokens, const DLTensor *sinks,
                        const DLTensor *output, const DLTensor *lse, void *stream, attn_error_t *error) {
    merge_call_t c = {
        .which = states != NULL ? MERGE_STATES : MERGE_WEIGH, .count = n, .own = own, .tokens = tokens};
    if (n > MOST_STATES)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "num_states", "%d states; at most 8 are merged", (int)n);
    int code = see_tensor(output, "output", &c.seen[0], error);
    if (code == ATTN_OK) code = see_tensor(lse, "lse", &c.seen[1], error);
    if (code == ATTN_OK) code = see_tensor(sinks, "sinks", &c.seen[2], error);
    for (int32_t i = 0; i < n && code == ATTN_OK; i++) {
        const DLTensor *o = states != NULL ? states[i].output : i == own ? partial : NULL;
        code = see_tensor(o, "states", &c.seen[3 + i], error);
        if (code == ATTN_OK)
            code = see_tensor(states != NULL ? states[i].lse : lses[i], "lses", &c.seen[3 + MOST_STATES + i],
                              error);
    }
    return code != ATTN_OK ? code : launch_merge(&c, stream, error);
}
static int fenced_merge_states(const attn_state_t *states, int32_t n, int64_t tokens, const DLTensor *sinks,
                               const DLTensor *output, const DLTensor *lse, void *stream,
                               attn_error_t *error) {
    return fenced_merge(states, NULL, n, 0, NULL, tokens, sinks, output, lse, stream, error);
}
static int fenced_merge_weigh(const DLTensor *output, const DLTensor *const *lses, int32_t n, int32_t own,
                              int64_t tokens, const DLTensor *sinks, const DLTensor *weighed,
                              const DLTensor *lse, void *stream, attn_error_t *error) {
    return fenced_merge(NULL, lses, n, own, output, tokens, sinks, weighed, lse, stream, error);
}

static int fenced_rows(int which, const DLTensor *from, const DLTensor *rows, const DLTensor *scale,
                       const DLTensor *to, void *stream, attn_error_t *error) {
    merge_call_t c = {.which = which};
    int code = see_tensor(from, "from", &c.seen[0], error);
    if (code == ATTN_OK) code = see_tensor(rows, "rows", &c.seen[1], error);
    if (code == ATTN_OK) code = see_tensor(scale, "scale", &c.seen[2], error);
    if (code == ATTN_OK) code = see_tensor(to, "to", &c.seen[3], error);
    return code != ATTN_OK ? code : launch_merge(&c, stream, error);
}
static int fenced_copy(const DLTensor *from, const DLTensor *scale, const DLTensor *to, void *stream,
                       attn_error_t *error) {
    return fenced_rows(ROWS_COPY, from, NULL, scale, to, stream, error);
}
static int fenced_gather(const DLTensor *from, const DLTensor *rows, const DLTensor *scale,
                         const DLTensor *to, void *stream, attn_error_t *error) {
    return fenced_rows(ROWS_GATHER, from, rows, scale, to, stream, error);
}
static int fenced_scatter(const DLTensor *from, const DLTensor *rows, const DLTensor *scale,
                          const DLTensor *to, void *stream, attn_error_t *error) {
    return fenced_rows(ROWS_SCATTER, from, rows, scale, to, stream, error);
}
static const attn_merge_table_t fenced_merge_table = {.struct_size = sizeof(attn_merge_table_t),
                                                      .device_type = FENCED_TYPE,
                                                      .merge_states = fenced_merge_states,
                                                      .merge_weigh = fenced_merge_weigh,
                                                      .rows_copy = fenced_copy,
                                                      .rows_gather = fenced_gather,
                                                      .rows_scatter = fenced_scatter,
                                                      .peers_query = fenced_peers_query,
                                                      .peers_join = fenced_peers_join};

static const void *fenced_extension(attn_instance_t *instance, const char *id) {
    (void)instance;
    if (strcmp(id, ATTN_MERGE_EXTENSION) == 0) return &fenced_merge_table;
    return strcmp(id, ATTN_DEVICE_EXTENSION) == 0 ? &fenced_kind : NULL;
}

/* --------------------------------------------------------------------- tables */

static attn_capabilities_t fenced_capabilities;
static attn_backend_ops_t fenced_ops = {.struct_size = sizeof(attn_backend_ops_t),
                                        .supports_combination = fenced_supports,
                                        .open = fenced_open,
                                        .build_metadata = fenced_build,
                                        .forward = fenced_forward,
                                        .get_extension = fenced_extension};

/* What is the target's: it is read before main, so that the tables are whole when the host looks. */
__attribute__((constructor)) static void fill_tables(void) {
    const attn_backend_ops_t *ops = TARGET->ops;
    fenced_capabilities = *TARGET->capabilities;
    fenced_capabilities.device_types = ATTN_BIT(FENCED_TYPE);
    fenced_capabilities.features |= ATTN_F_CAPTURE;
    fenced_capabilities.graph_support = ATTN_GRAPH_ALWAYS;
    fenced_ops.close = ops->close;
    fenced_ops.kv_cache_shape = ops->kv_cache_shape;
    fenced_ops.space_needed = ops->space_needed;
    if (ops->update_kv_cache != NULL) fenced_ops.update_kv_cache = fenced_update;
    if (ops->prepare_weights != NULL) fenced_ops.prepare_weights = fenced_prepare;
}

static const attn_backend_t fenced_backend = {.struct_size = sizeof(attn_backend_t),
                                              .name = "FENCED_ATTN",
                                              .doc = "Runs on fenced:0, whose memory the host cannot touch.",
                                              .capabilities = &fenced_capabilities,
                                              .ops = &fenced_ops};
static const attn_backend_t *const fenced_backends[] = {&fenced_backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {.magic = ATTN_PLUGIN_MAGIC,
                                                             .struct_size = sizeof(attn_plugin_t),
                                                             .abi_major = ATTN_ABI_MAJOR,
                                                             .abi_minor = ATTN_ABI_MINOR,
                                                             .name = "fenced",
                                                             .version = "1.0",
                                                             .vendor = "libattn tests",
                                                             .license = "Apache-2.0",
                                                             .build_id = "",
                                                             .num_backends = 1,
                                                             .backends = fenced_backends};
