/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hook_shadow.c: a second backend computes every n-th call from the same cache into a buffer of its own, and the largest
 * difference goes to the log. The shadow never changes what the engine gets: where it cannot run, it says so and steps
 * aside.
 */
#include "hook.h"
#include "plan_arith.h"
#include "tensor_values.h"

#include <math.h>
#include <stdlib.h>

struct shadow {
    struct attni_hook hook;
    struct attni_stage other;
    const char *name; /* of its backend */
    uint64_t sample, calls, compared;
    attn_space_t space;
    const void *built_for; /* the engine's metadata for which the shadow's was built; NULL: none */
    int32_t tokens;
    char *output; /* [max_num_batched_tokens, Hq, Dv] */
    float *lse;
    double largest;   /* seen so far */
    double tolerance; /* above which it is a warning */
};

static struct shadow *shadow_of(attn_instance_t *i) {
    return (struct shadow *)(void *)i;
}

/* Elementwise tolerances of semantics 10.2 by the least exact type in play. */
static double tolerance_of(const attn_problem_t *p) {
    if (p->out_dtype == ATTN_DTYPE_FP8_E4M3 || attn_kv_is_quantized(p->kv_cache_dtype) ||
        p->query_dtype != p->dtype)
        return 1.5e-1;
    return p->dtype == ATTN_DTYPE_FLOAT32 ? 1e-3 : 1.5e-2;
}

/* The largest |a - b|; a value that only one side has (NaN, infinity) counts as infinite. */
struct compare {
    const char *other; /* dense rows in the same order */
    double largest;
};

static int compare_row(void *user, const DLTensor *t, const char *row, int64_t index) {
    struct compare *c = user;
    int64_t n = t->shape[t->ndim - 1], step = attn_byte_stride(t, t->ndim - 1), size = t->dtype.bits / 8;
    const char *other = c->other + index * n * size;
    for (int64_t i = 0; i < n; i++) {
        double a = attni_value(t->dtype, row + i * step), b = attni_value(t->dtype, other + i * size);
        double difference = a == b || (isnan(a) && isnan(b)) ? 0 : fabs(a - b);
        if (!(difference <= c->largest)) c->largest = isnan(difference) ? INFINITY : difference;
    }
    return 0;
}

static void report(struct shadow *s, double difference, const char *what) {
    const struct attni_log *log = &s->hook.group->context->log;
    if (!(difference > s->largest)) return;
    s->largest = difference;
    attni_log(log, difference > s->tolerance ? ATTN_LOG_WARN : ATTN_LOG_INFO,
              "[hook shadow] call %llu: %s of %s and %s differ by %.3g (tolerance %.3g)",
              (unsigned long long)s->calls, what, s->hook.group->backend->shown.name, s->name, difference,
              s->tolerance);
}

/* Dense tensors over the shadow's own buffers, shaped like the engine's. */
struct twin {
    DLTensor t;
    int64_t shape[3], strides[3];
};

static const DLTensor *make_twin(struct twin *w, const DLTensor *like, void *data, int dim, int64_t size) {
    int64_t stride = 1;
    w->t = *like;
    for (int i = like->ndim - 1; i >= 0; i--) {
        w->shape[i] = i == dim ? size : like->shape[i];
        w->strides[i] = stride;
        stride *= w->shape[i];
    }
    w->t.data = data;
    w->t.byte_offset = 0;
    w->t.shape = w->shape;
    w->t.strides = w->strides;
    return &w->t;
}

static void run_shadow(struct shadow *s, const attn_forward_t *a, void *stream) {
    struct twin output, lse;
    attn_forward_t mine = *a;
    attn_error_t error = {.struct_size = sizeof error};
    mine.output = make_twin(&output, a->output, s->output, 0, s->tokens);
    if (a->lse != NULL) mine.lse = make_twin(&lse, a->lse, s->lse, 1, s->tokens);
    int code = s->other.ops.forward(s->other.instance, &mine, &s->space, stream, &error);
    if (code != ATTN_OK) {
        attni_log(&s->hook.group->context->log, ATTN_LOG_WARN, "[hook shadow] %s fails: %s", s->name,
                  error.text);
        return;
    }
    s->compared++;
    struct compare c = {.other = s->output};
    attni_each_row(a->output, s->tokens, compare_row, &c);
    report(s, c.largest, "outputs");
    if (a->lse == NULL) return;
    int64_t shape[2] = {a->lse->shape[0], s->tokens};
    DLTensor used = *a->lse;
    used.shape = shape;
    c = (struct compare){.other = (const char *)s->lse};
    attni_each_row(&used, -1, compare_row, &c);
    report(s, c.largest, "LSEs");
}

static int shadow_plan(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *space, void *stream,
                       int is_table, attn_error_t *error) {
    struct shadow *s = shadow_of(i);
    const struct attni_stage *next = &s->hook.next;
    int code = (is_table ? next->ops.update_block_table : next->ops.build_metadata)(next->instance, b, space,
                                                                                    stream, error);
    if (code != ATTN_OK) return code;
    /* Always built, because the batch is gone when a call is sampled. */
    s->built_for = s->other.ops.build_metadata(s->other.instance, b, &s->space, stream, NULL) == ATTN_OK
                       ? space->metadata
                       : NULL;
    s->tokens = b->num_actual_tokens;
    return ATTN_OK;
}

static int shadow_build(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *space, void *stream,
                        attn_error_t *error) {
    return shadow_plan(i, b, space, stream, 0, error);
}

static int shadow_table(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *space, void *stream,
                        attn_error_t *error) {
    return shadow_plan(i, b, space, stream, 1, error);
}

static int shadow_forward(attn_instance_t *i, const attn_forward_t *a, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    struct shadow *s = shadow_of(i);
    int code = s->hook.next.ops.forward(s->hook.next.instance, a, space, stream, error);
    if (code != ATTN_OK || space == NULL) return code;
    int is_sampled = s->calls++ % s->sample == 0;
    if (a->weight_space != NULL) return ATTN_OK; /* dynamic fp8 scales would count the call a second time */
    if (is_sampled && s->built_for == space->metadata && a->output->shape[0] >= s->tokens)
        run_shadow(s, a, stream);
    return ATTN_OK;
}

static void free_shadow(struct shadow *s) {
    if (s->other.instance != NULL) s->other.ops.close(s->other.instance);
    free(s->space.metadata);
    free(s->space.workspace);
    free(s->space.host);
    free(s->output);
    free(s->lse);
    free(s);
}

static void shadow_close(attn_instance_t *i) {
    struct shadow *s = shadow_of(i);
    attni_log(&s->hook.group->context->log, ATTN_LOG_INFO,
              "[hook shadow] %s beside %s: %llu of %llu calls compared, largest difference %.3g", s->name,
              s->hook.group->backend->shown.name, (unsigned long long)s->compared,
              (unsigned long long)s->calls, s->largest);
    s->hook.next.ops.close(s->hook.next.instance);
    free_shadow(s);
}

/* ------------------------------------------------------------------ opening */

static void *buffer(uint64_t bytes) {
    return aligned_alloc(4096, (size_t)((bytes + 4096) / 4096 * 4096));
}

/* The shadow's own buffers; 0: out of memory. */
static int take_buffers(struct shadow *s, const attn_problem_t *p, const attn_space_needed_t *need) {
    uint64_t rows = p->max_num_batched_tokens, values_per_row = (uint64_t)p->num_heads * p->head_size_v;
    s->space = (attn_space_t){.struct_size = sizeof s->space,
                              .metadata = buffer(need->metadata_bytes),
                              .metadata_bytes = need->metadata_bytes,
                              .workspace = buffer(need->workspace_bytes),
                              .workspace_bytes = need->workspace_bytes,
                              .host = buffer(need->host_bytes),
                              .host_bytes = need->host_bytes};
    s->output = buffer(rows * values_per_row * attn_dtype_size(p->out_dtype));
    s->lse = buffer(rows * p->num_heads * sizeof *s->lse);
    return s->space.metadata != NULL && s->space.workspace != NULL && s->space.host != NULL &&
           s->output != NULL && s->lse != NULL;
}

/* What can be said before anything is opened; "": nothing against it. */
static const char *known_obstacle(const attn_group_t *g, const struct attni_backend *backend) {
    if (g->device.type != kDLCPU) return "it computes on CPUs only";
    if (attn_role_is_mla(g->inner.role)) return "MLA weights are prepared for one backend";
    if (g->backend->capabilities.forward_writes_cache || backend->capabilities.forward_writes_cache)
        return "a forward that writes the cache cannot run twice";
    return "";
}

/* "" or why this backend cannot stand beside the group's. */
static const char *open_other(struct shadow *s, const struct attni_backend *backend, char *why, size_t size) {
    attn_group_t *g = s->hook.group;
    attn_reason_t first = {.text = ""};
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &first};
    attn_error_t error = {.struct_size = sizeof error};
    attn_option_value_t *values = NULL;
    attn_kv_cache_shape_t mine = {.struct_size = sizeof mine}, theirs = {.struct_size = sizeof theirs};
    attn_space_needed_t need = {.struct_size = sizeof need};
    attn_problem_t with_layout = g->inner, *p = &with_layout;
    int code = ATTN_OK;
    if (attn_role_has_cache(p->role)) { /* both read the cache that the group's backend laid out */
        code = s->hook.next.ops.kv_cache_shape(s->hook.next.instance, p->num_blocks, &mine, &error);
        if (code == ATTN_OK) p->kv_layout = mine.kv_layout;
    }
    if (code == ATTN_OK) code = attn_backend_validate(&backend->shown, p, &g->device, &reasons, &error);
    if (code == ATTN_OK && reasons.count > 0) {
        snprintf(why, size, "%s", first.text);
        return why;
    }
    if (code == ATTN_OK) code = attni_options_read(backend->plugin, &g->context->config, &values, &error);
    if (code == ATTN_OK)
        code = backend->ops.open(p, &g->device, values, backend->plugin->info.num_options, &g->context->host,
                                 &s->other.instance, &error);
    free(values);
    s->other.ops = backend->ops;
    if (code == ATTN_OK && attn_role_has_cache(p->role)) {
        code = backend->ops.kv_cache_shape(s->other.instance, p->num_blocks, &theirs, &error);
        if (code == ATTN_OK && (mine.fingerprint != theirs.fingerprint || mine.layout_id != theirs.layout_id))
            return "its cache has another format";
    }
    if (code == ATTN_OK) code = backend->ops.space_needed(s->other.instance, &need, &error);
    if (code != ATTN_OK) {
        snprintf(why, size, "%s", error.text);
        return why;
    }
    return take_buffers(s, p, &need) ? "" : "out of memory";
}

int attni_hook_shadow_open(attn_group_t *group, struct attni_stage *stage, const char *name, uint64_t sample,
                           attn_error_t *error) {
    const struct attni_backend *backend = attni_registry_find(&group->context->registry, name);
    char why[sizeof error->text];
    if (backend == NULL) {
        attn_error_t nearest = {.struct_size = sizeof nearest};
        char origin[200];
        attn_context_find_backend(group->context, name, &nearest);
        attni_config_origin(&group->context->config, "hook shadow", "backend", origin, sizeof origin);
        return attn_fail(error, ATTN_E_NOT_FOUND, "backend", "%s: [hook shadow] %s", origin, nearest.text);
    }
    if (backend == group->backend) return ATTN_OK; /* nothing to learn from itself */
    struct shadow *s = calloc(1, sizeof *s);
    if (s == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the shadow hook");
    s->hook.next = *stage;
    s->hook.group = group;
    s->name = backend->shown.name;
    s->sample = sample > 0 ? sample : 1;
    s->tolerance = tolerance_of(&group->inner);
    const char *reason = known_obstacle(group, backend);
    if (reason[0] == '\0') reason = open_other(s, backend, why, sizeof why);
    if (reason[0] != '\0') {
        attni_log(&group->context->log, ATTN_LOG_WARN, "[hook shadow] %s cannot run beside %s: %s", s->name,
                  group->backend->shown.name, reason);
        free_shadow(s);
        return ATTN_OK;
    }
    attn_backend_ops_t ops = attni_hook_pass(stage);
    ops.close = shadow_close;
    ops.build_metadata = shadow_build;
    ops.forward = shadow_forward;
    if (stage->ops.update_block_table != NULL) ops.update_block_table = shadow_table;
    attni_hook_insert(&s->hook, group, stage, ops);
    return ATTN_OK;
}
