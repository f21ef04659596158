/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hook_shadow.c: a second backend computes every n-th call from the same cache into a buffer of its own, and
 * what is farthest beyond the tolerances of semantics 10.2 goes to the log. A backend of the group's device
 * reads the engine's tensors; one of the processor gets copies of them (host_batch.h). The shadow never
 * changes what the engine gets: where it cannot run, it logs why and steps aside.
 */
#include "hook/hook.h"
#include "hook/host_batch.h"
#include "hook/shadow_compare.h"
#include <attn/attn_plugin_util.h>
#include "base/arith.h"

#include <math.h>
#include <stdlib.h>

struct shadow {
    struct attni_hook hook;
    struct attni_stage other;
    const char *name; /* of its backend */
    uint64_t sample, calls, compared;
    attn_device_t device; /* where it computes: the group's, or the processor */
    const attn_device_kind_t *kind;
    int is_apart; /* on the processor, beside a group on a device */
    attn_space_t space;
    const void *built_for; /* the engine's metadata for which the shadow's was built; NULL: none */
    uint32_t built_flags;
    int said_batch; /* the log has that a batch could not be planned */
    int32_t tokens;
    int64_t longest;               /* request of the batch */
    struct attni_host_batch batch; /* is_apart */
    struct attni_host_forward inputs;
    void *output, *lse; /* on its device: [max_num_batched_tokens, Hq, Dv], [Hq, max_num_batched_tokens] */
    struct attni_host_copy seen[2]; /* of the engine's output or LSE, and of its own */
    double largest, worst;          /* |a - b| seen so far, and as a multiple of what is allowed */
    char worst_layer[128];
    struct attni_tolerance allowed;
    uint64_t weight_bytes;
    struct shadow_weights *weights; /* latent attention: of each layer that was prepared */
};

/* What the shadow's backend made of one layer's projections, beside what the group's backend made of them. */
struct shadow_weights {
    struct shadow_weights *next;
    const void *engines; /* the layer's weight_space */
    void *space;
};

static struct shadow *shadow_of(attn_instance_t *i) {
    return (struct shadow *)(void *)i;
}

/* On the shadow's device; NULL and the device's words: there is none. */
static void *buffer(const struct shadow *s, uint64_t bytes, attn_error_t *error) {
    void *p = NULL;
    return s->kind->alloc(s->device.id, (size_t)bytes + 1, &p, error) == ATTN_OK ? p : NULL;
}

static void give_back(const struct shadow *s, void *p) {
    if (p != NULL) s->kind->free(s->device.id, p);
}

static void warn(const struct shadow *s, const char *what, const char *why) {
    attni_log(&s->hook.group->context->log, ATTN_LOG_WARN, "[hook shadow] %s %s: %s", s->name, what, why);
}

/* Logs a difference that is larger than any before. */
static void report(struct shadow *s, const struct attni_comparison *c, const char *what) {
    if (c->largest > s->largest) s->largest = c->largest;
    if (!(c->worst > s->worst)) return;
    s->worst = c->worst;
    snprintf(s->worst_layer, sizeof s->worst_layer, "%s", s->hook.group->calling);
    attni_log(&s->hook.group->context->log, c->worst > 1 ? ATTN_LOG_WARN : ATTN_LOG_INFO,
              "[hook shadow] layer '%s', call %llu: %s of %s and %s differ by %.3g (%.6g and %.6g; allowed "
              "%.3g + %.3g of "
              "the latter)",
              s->worst_layer, (unsigned long long)s->calls, what, s->hook.group->backend->shown.name, s->name,
              isfinite(c->worst) ? fabs(c->a - c->b) : INFINITY, c->a, c->b, c->allowed.atol,
              c->allowed.rtol);
}

/* Dense tensors over the shadow's own buffers, shaped like the engine's. */
struct twin {
    DLTensor t;
    int64_t shape[3], strides[3];
};

static const DLTensor *make_twin(const struct shadow *s, struct twin *w, const DLTensor *like, void *data,
                                 int dim, int64_t size) {
    int64_t stride = 1;
    w->t = *like;
    w->t.device = (DLDevice){(DLDeviceType)s->device.type, s->device.id};
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

/* What is read by the shadow's forward: the engine's tensors, or copies of them. */
static int take_inputs(struct shadow *s, const attn_forward_t *a, attn_forward_t *mine, void *stream,
                       attn_error_t *error) {
    *mine = *a;
    if (!s->is_apart) return ATTN_OK;
    const int code = attni_host_forward_make(&s->inputs, s->hook.group, a, &s->batch, stream, error);
    *mine = s->inputs.args;
    return code;
}

/* The rows of the batch, which are dimension dim. */
static int compare(struct shadow *s, const DLTensor *engine, const DLTensor *mine, int dim, const char *name,
                   void *stream, struct attni_comparison *c, attn_error_t *error) {
    const struct attni_host_read read = {s->hook.group, stream, dim, s->tokens};
    return attni_compare(&read, engine, mine, name, &s->allowed, s->longest, s->seen, c, error);
}

static void run_shadow(struct shadow *s, const attn_forward_t *a, const struct shadow_weights *weights,
                       void *stream) {
    struct twin output, lse;
    struct attni_comparison c;
    attn_forward_t mine;
    attn_error_t error = {.struct_size = sizeof error};
    int code = take_inputs(s, a, &mine, stream, &error);
    mine.output = make_twin(s, &output, a->output, s->output, 0, s->tokens);
    if (a->lse != NULL) mine.lse = make_twin(s, &lse, a->lse, s->lse, 1, s->tokens);
    if (weights != NULL) mine.weight_space = weights->space, mine.weight_space_bytes = s->weight_bytes;
    if (code == ATTN_OK)
        code = s->other.ops.forward(s->other.instance, &mine, &s->space, s->is_apart ? NULL : stream, &error);
    attni_host_forward_free(&s->inputs);
    if (code == ATTN_OK) code = compare(s, a->output, mine.output, 0, "output", stream, &c, &error);
    if (code == ATTN_OK) {
        s->compared++;
        report(s, &c, "outputs");
        if (a->lse != NULL) code = compare(s, a->lse, mine.lse, 1, "lse", stream, &c, &error);
        if (code == ATTN_OK && a->lse != NULL) report(s, &c, "LSEs");
    }
    if (code != ATTN_OK) warn(s, "fails", error.text);
}

/* Always built, because the batch is gone when a call is sampled. */
static int build_mine(struct shadow *s, const attn_batch_t *b, void *stream) {
    attn_error_t error = {.struct_size = sizeof error};
    s->tokens = b->num_actual_tokens;
    s->built_flags = b->flags;
    s->longest = 0;
    for (int32_t r = 0; r < b->num_reqs; r++)
        s->longest = attni_max64(s->longest, b->seq_lens_host[r]);
    if (attni_hook_must_not_read(&s->hook, "shadow", NULL, b->flags, stream)) return ATTN_E_STATE;
    int code = ATTN_OK;
    if (s->is_apart) code = attni_host_batch_make(&s->batch, s->hook.group, b, stream, &error);
    if (code == ATTN_OK)
        code = s->other.ops.build_metadata(s->other.instance, s->is_apart ? &s->batch.batch : b, &s->space,
                                           s->is_apart ? NULL : stream, &error);
    if (code != ATTN_OK && !s->said_batch) warn(s, "cannot plan a batch", error.text);
    if (code != ATTN_OK) s->said_batch = 1;
    return code;
}

static int shadow_plan(attn_instance_t *i, const attn_batch_t *b, const attn_space_t *space, void *stream,
                       int is_table, attn_error_t *error) {
    struct shadow *s = shadow_of(i);
    const struct attni_stage *next = &s->hook.next;
    int code = (is_table ? next->ops.update_block_table : next->ops.build_metadata)(next->instance, b, space,
                                                                                    stream, error);
    if (code != ATTN_OK) return code;
    s->built_for = build_mine(s, b, stream) == ATTN_OK ? space->metadata : NULL;
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
    const struct shadow_weights *w = s->weights;
    while (w != NULL && w->engines != a->weight_space)
        w = w->next;
    /* dynamic fp8 scales would count the call a second time; a layer whose weights were refused has none */
    if (a->weight_space != NULL && w == NULL) return ATTN_OK;
    if (is_sampled && s->built_for == space->metadata && a->output->shape[0] >= s->tokens &&
        !attni_hook_must_not_read(&s->hook, "shadow", s->hook.group->calling, s->built_flags, stream))
        run_shadow(s, a, w, stream);
    return ATTN_OK;
}

/* Latent attention: both backends absorb the projections, each in its own way and place. */
static int shadow_prepare(attn_instance_t *i, const attn_weights_t *args, void *stream, attn_error_t *error) {
    struct shadow *s = shadow_of(i);
    attn_weights_t mine = *args;
    attn_error_t why = {.struct_size = sizeof why};
    int code = s->hook.next.ops.prepare_weights(s->hook.next.instance, args, stream, error);
    if (code != ATTN_OK || args->kv_b_proj == NULL || s->other.ops.prepare_weights == NULL) return code;
    if (attni_hook_must_not_read(&s->hook, "shadow", s->hook.group->calling, 0, stream)) return ATTN_OK;
    struct shadow_weights *w = s->weights;
    while (w != NULL && w->engines != args->weight_space)
        w = w->next;
    if (w == NULL && (w = calloc(1, sizeof *w)) != NULL &&
        (w->space = buffer(s, s->weight_bytes, NULL)) != NULL) {
        w->next = s->weights;
        s->weights = w;
    } else if (w != NULL && w->space == NULL) {
        free(w);
        w = NULL;
    }
    if (w == NULL) return ATTN_OK;
    mine.weight_space = w->space;
    mine.weight_space_bytes = s->weight_bytes;
    struct attni_host_copy copies[2] = {{.memory = NULL}, {.memory = NULL}};
    const struct attni_host_read read = {s->hook.group, stream, 0, -1};
    int other = ATTN_OK;
    if (s->is_apart)
        other = attni_host_copy(&read, args->kv_b_proj, "kv_b_proj", &copies[0], &mine.kv_b_proj, &why);
    if (other == ATTN_OK && s->is_apart)
        other = attni_host_copy(&read, args->kv_b_proj_scale, "kv_b_proj_scale", &copies[1],
                                &mine.kv_b_proj_scale, &why);
    if (other == ATTN_OK)
        other = s->other.ops.prepare_weights(s->other.instance, &mine, s->is_apart ? NULL : stream, &why);
    attni_host_copy_free(&copies[0]);
    attni_host_copy_free(&copies[1]);
    w->engines = other == ATTN_OK ? args->weight_space : NULL;
    if (other != ATTN_OK)
        attni_log(&s->hook.group->context->log, ATTN_LOG_WARN,
                  "[hook shadow] layer '%s' runs without it: %s refuses its weights: %s",
                  s->hook.group->calling, s->name, why.text);
    return ATTN_OK;
}

static void free_shadow(struct shadow *s) {
    if (s->other.instance != NULL) s->other.ops.close(s->other.instance);
    for (struct shadow_weights *w = s->weights, *next; w != NULL; w = next) {
        next = w->next;
        give_back(s, w->space);
        free(w);
    }
    give_back(s, s->space.metadata);
    give_back(s, s->space.workspace);
    free(s->space.host);
    give_back(s, s->output);
    give_back(s, s->lse);
    attni_host_batch_free(&s->batch);
    attni_host_copy_free(&s->seen[0]);
    attni_host_copy_free(&s->seen[1]);
    free(s);
}

static void shadow_close(attn_instance_t *i) {
    struct shadow *s = shadow_of(i);
    attni_log(
        &s->hook.group->context->log, ATTN_LOG_INFO,
        "[hook shadow] %s beside %s: %llu of %llu calls compared, largest difference %.3g, at most %.3g of "
        "what is allowed%s%s",
        s->name, s->hook.group->backend->shown.name, (unsigned long long)s->compared,
        (unsigned long long)s->calls, s->largest, s->worst, s->worst > 0 ? ", in layer " : "",
        s->worst_layer);
    s->hook.next.ops.close(s->hook.next.instance);
    free_shadow(s);
}

/* ------------------------------------------------------------------ opening */

/* The shadow's own buffers. */
static int allocate_buffers(struct shadow *s, const attn_problem_t *p, const attn_space_needed_t *need,
                            attn_error_t *error) {
    uint64_t rows = p->max_num_batched_tokens, values_per_row = (uint64_t)p->num_heads * attn_output_size(p);
    s->weight_bytes = need->weight_bytes;
    s->space = (attn_space_t){.struct_size = sizeof s->space,
                              .metadata = buffer(s, need->metadata_bytes, error),
                              .metadata_bytes = need->metadata_bytes,
                              .workspace = buffer(s, need->workspace_bytes, error),
                              .workspace_bytes = need->workspace_bytes,
                              .host = aligned_alloc(4096, (size_t)(need->host_bytes / 4096 + 1) * 4096),
                              .host_bytes = need->host_bytes};
    s->output = buffer(s, rows * values_per_row * attn_dtype_size(p->out_dtype), error);
    s->lse = buffer(s, rows * p->num_heads * sizeof(float), error);
    return s->space.metadata != NULL && s->space.workspace != NULL && s->space.host != NULL &&
                   s->output != NULL && s->lse != NULL
               ? ATTN_OK
               : ATTN_E_NO_MEMORY;
}

/* Reasons that are known before anything is opened; "": none. */
static const char *known_obstacle(const attn_group_t *g, const struct attni_backend *backend) {
    if (attn_device_kind(g->device.type) == NULL)
        return "the memory of its device cannot be reached: its plugin brings no device kind";
    if ((g->features & (ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4)) != 0)
        return "outputs with block scales are written in two places";
    if (g->inner.role == ATTN_ROLE_MLA_PREFILL) return "it is a part of a layer";
    if ((g->features & ATTN_F_DEVICE_LENGTHS) != 0)
        return "lengths on the device do not say which rows have a result";
    if (g->backend->capabilities.forward_writes_cache || backend->capabilities.forward_writes_cache ||
        (g->features & ATTN_F_WRITE_IN_FORWARD) != 0)
        return "a forward that writes the cache cannot run twice";
    return "";
}

/* The device on which this backend serves the problem: the group's, else the processor. "" or the first
 * reason of the former. */
static const char *choose_device(struct shadow *s, const struct attni_backend *backend, attn_problem_t *p,
                                 char *why, size_t size) {
    const attn_group_t *g = s->hook.group;
    attn_reason_t first = {.text = ""};
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &first};
    attn_error_t error = {.struct_size = sizeof error};
    s->device = g->device;
    int code = attn_backend_validate(&backend->shown, p, &s->device, &reasons, &error);
    if (code == ATTN_OK && reasons.count > 0) snprintf(why, size, "%s", first.text);
    if (code == ATTN_OK && reasons.count > 0 && g->device.type != kDLCPU && g->inner.dcp_world_size <= 1) {
        reasons.count = 0;
        s->is_apart = 1;
        p->features &= ~ATTN_F_CAPTURE; /* copies are made, so nothing of it is captured */
        code = attn_device_parse("cpu", &s->device, &error);
        if (code == ATTN_OK) code = attn_backend_validate(&backend->shown, p, &s->device, &reasons, &error);
        if (code == ATTN_OK && reasons.count > 0 && first.code != ATTN_REASON_DEVICE)
            snprintf(why, size, "%s", first.text);
    }
    if (code != ATTN_OK) snprintf(why, size, "%s", error.text);
    return code != ATTN_OK || reasons.count > 0 ? why : "";
}

static int open_instance(struct shadow *s, const struct attni_backend *backend, const attn_problem_t *p,
                         attn_kv_cache_shape_t *shape, attn_error_t *error) {
    attn_group_t *g = s->hook.group;
    attn_option_value_t *values = NULL;
    int code = attni_options_read(backend->plugin, &g->context->config, &values, error);
    if (code == ATTN_OK)
        code = backend->ops.open(p, &s->device, values, backend->plugin->info.num_options, &g->context->host,
                                 &s->other.instance, error);
    free(values);
    s->other.ops = backend->ops;
    if (code == ATTN_OK && attn_role_has_cache(p->role))
        code = backend->ops.kv_cache_shape(s->other.instance, p->num_blocks, shape, error);
    return code;
}

/* "" or why this backend cannot run beside the group's. */
static const char *open_other(struct shadow *s, const struct attni_backend *backend, char *why, size_t size) {
    attn_group_t *g = s->hook.group;
    attn_error_t error = {.struct_size = sizeof error};
    attn_kv_cache_shape_t mine = {.struct_size = sizeof mine}, theirs = {.struct_size = sizeof theirs};
    attn_space_needed_t need = {.struct_size = sizeof need};
    attn_problem_t with_layout = g->inner, *p = &with_layout;
    int code = ATTN_OK;
    if (attn_role_has_cache(p->role)) { /* both read the cache that the group's backend laid out */
        code = s->hook.next.ops.kv_cache_shape(s->hook.next.instance, p->num_blocks, &mine, &error);
        if (code == ATTN_OK) p->kv_layout = mine.kv_layout;
        /* which for sparse MLA may be fp8_ds_mla in place of fp8 (semantics 5.7) */
        if (p->role == ATTN_ROLE_MLA_SPARSE && p->kv_cache_dtype == ATTN_KV_FP8_E4M3 &&
            mine.k_scale_offset >= 0)
            p->kv_cache_dtype = ATTN_KV_FP8_DS_MLA;
    }
    if (code == ATTN_OK) {
        const char *reason = choose_device(s, backend, p, why, size);
        if (reason[0] != '\0') return reason;
        s->kind = attn_device_kind(s->device.type);
        code = open_instance(s, backend, p, &theirs, &error);
    }
    if (code == ATTN_OK && attn_role_has_cache(p->role) &&
        (mine.fingerprint != theirs.fingerprint || mine.layout_id != theirs.layout_id))
        return "its cache has another format";
    if (code == ATTN_OK) code = s->other.ops.space_needed(s->other.instance, &need, &error);
    if (code == ATTN_OK) {
        snprintf(error.text, sizeof error.text, "out of memory");
        code = allocate_buffers(s, p, &need, &error);
    }
    if (code == ATTN_OK) return "";
    snprintf(why, size, "%s", error.text);
    return why;
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
    if (backend == group->backend) return ATTN_OK; /* the same backend: nothing to compare */
    struct shadow *s = calloc(1, sizeof *s);
    if (s == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the shadow hook");
    s->hook.next = *stage;
    s->hook.group = group;
    s->name = backend->shown.name;
    s->sample = sample > 0 ? sample : 1;
    s->allowed = attni_tolerance_of(&group->inner);
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
    if (ops.prepare_weights != NULL) ops.prepare_weights = shadow_prepare;
    attni_hook_insert(&s->hook, group, stage, ops);
    return ATTN_OK;
}
