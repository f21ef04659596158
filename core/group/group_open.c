/* SPDX-License-Identifier: Apache-2.0 */
/* group_open.c: select, fill the defaults in, open, and ask everything that later calls need: nothing
 * allocates after. */
#include "group/group.h"
#include "group/metadata_owner.h"
#include "group/ranks.h"
#include "load/mm_encoder.h"
#include "base/need.h"

#include <stdlib.h>

enum {
    DEFAULT_NUM_SEQS = 256,
    DEFAULT_BATCHED_TOKENS = 8192,
    DEFAULT_MODEL_LEN = 131072,
    DEFAULT_MM_RANGES = 8
};

/* The defaults that attn_types.h says at each member. Members that a role does not use stay zero. */
static void fill_problem(attn_problem_t *p, uint32_t block_size) {
    int has_cache = attn_role_has_cache(p->role), is_mla = attn_role_is_mla(p->role);
    if (p->out_dtype == 0) p->out_dtype = p->dtype;
    if (p->query_dtype == 0) p->query_dtype = p->dtype;
    if (p->kv_cache_dtype == 0 && has_cache) p->kv_cache_dtype = ATTN_KV_AUTO;
    if (p->num_kv_heads == 0) p->num_kv_heads = is_mla && has_cache ? 1 : p->num_heads;
    if (p->head_size_v == 0 && !is_mla) p->head_size_v = p->head_size;
    if (p->block_size == 0 && has_cache) p->block_size = block_size;
    if (p->max_num_seqs == 0) p->max_num_seqs = DEFAULT_NUM_SEQS;
    if (p->max_num_batched_tokens == 0) p->max_num_batched_tokens = DEFAULT_BATCHED_TOKENS;
    if (p->max_model_len == 0) p->max_model_len = DEFAULT_MODEL_LEN;
    if (p->dcp_world_size > 1 && p->cp_interleave == 0) p->cp_interleave = 1;
    if ((p->features & ATTN_F_MM_PREFIX) != 0 && p->max_mm_ranges == 0) p->max_mm_ranges = DEFAULT_MM_RANGES;
    if ((p->features & ATTN_F_KEY_LENGTHS) != 0 && p->max_num_batched_keys == 0)
        p->max_num_batched_keys = p->max_num_batched_tokens;
}

/* The block size that was filled in may not suit what the engine wants of it. */
static int check_multiples(const attn_problem_t *p, attn_error_t *error) {
    const struct {
        const char *name;
        uint32_t value;
    } multiples[] = {{"chunk_size", p->chunk_size}, {"static_sink_len", p->static_sink_len}};
    if (attn_role_has_cache(p->role) && p->block_size == 0)
        return attn_fail(error, ATTN_E_INTERNAL, "block_size",
                         "the backend has no preferred block size; give one in the problem");
    for (size_t i = 0; i < sizeof multiples / sizeof multiples[0]; i++)
        if (multiples[i].value != 0 && multiples[i].value % p->block_size != 0)
            return attn_fail(error, ATTN_E_INVALID, multiples[i].name,
                             "%s %u is not a multiple of block_size %u", multiples[i].name,
                             (unsigned)multiples[i].value, (unsigned)p->block_size);
    return ATTN_OK;
}

/* Blocks 1 .. static_sink_len / bs hold the sink tokens (semantics 2.11). */
static int check_sink_blocks(const attn_group_t *g, attn_error_t *error) {
    const attn_problem_t *p = &g->problem;
    if (p->static_sink_len == 0 || p->num_blocks == 0) return ATTN_OK; /* 0: not known yet */
    const int64_t last = p->static_sink_len / p->block_size;
    if (p->num_blocks > last) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, "num_blocks",
                     "num_blocks is %lld; static_sink_len %u takes blocks 1 to %lld of %u tokens",
                     (long long)p->num_blocks, (unsigned)p->static_sink_len, (long long)last,
                     (unsigned)p->block_size);
}

/* A rewritten problem has to pass the backend's table as the engine's did. */
static int check_inner(const attn_group_t *g, attn_error_t *error) {
    attn_reason_t first;
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &first};
    if (g->wrap.chunk_size == 0 && g->wrap.sink_len == 0 && g->ranks == NULL) return ATTN_OK;
    int code = attn_backend_validate(&g->backend->shown, &g->inner, &g->device, &reasons, error);
    if (code == ATTN_OK && reasons.count > 0)
        code = attn_fail(error, ATTN_E_UNSUPPORTED, first.param,
                         "%s does not serve the rewritten problem: %s", g->backend->shown.name, first.text);
    return code;
}

int attni_group_open_instance(attn_group_t *g, const attn_device_t *device, attn_instance_t **made,
                              attn_error_t *error) {
    attn_option_value_t *values = NULL;
    int code = attni_options_read(g->backend->plugin, &g->context->config, &values, error);
    if (code != ATTN_OK) return code;
    attn_instance_t *instance = NULL;
    g->options_hash = 0;
    for (uint32_t i = 0; i < g->backend->plugin->info.num_options; i++)
        g->options_hash = attn_fingerprint64(g->options_hash, values[i].s, strlen(values[i].s) + 1);
    code = g->backend->ops.open(&g->inner, device, values, g->backend->plugin->info.num_options,
                                &g->context->host, &instance, error);
    free(values);
    if (code == ATTN_OK && instance == NULL)
        code = attn_fail(error, ATTN_E_INTERNAL, "instance", "%s: open succeeded without an instance",
                         g->backend->shown.name);
    if (code != ATTN_OK) return code;
    *made = instance;
    return ATTN_OK;
}

static int open_instance(attn_group_t *g, attn_error_t *error) {
    attn_instance_t *instance;
    const int code = attni_group_open_instance(g, &g->device, &instance, error);
    if (code == ATTN_OK) g->stage = (struct attni_stage){.ops = g->backend->ops, .instance = instance};
    return code;
}

/* A backend may keep the fp8 cache of sparse MLA as fp8_ds_mla (semantics 5.7). Its pages say so, and the
 * spec, the scales and the scheduler have to know. */
static void resolve_kv_cache_dtype(attn_group_t *g) {
    attn_problem_t p = g->problem;
    attn_kv_spec_t spec;
    int64_t bytes = 0;
    if (p.role != ATTN_ROLE_MLA_SPARSE || p.kv_cache_dtype != ATTN_KV_FP8_E4M3) return;
    p.kv_cache_dtype = ATTN_KV_FP8_DS_MLA;
    int code = attn_kv_spec_of(&p, p.block_size, &spec, NULL);
    if (code == ATTN_OK) code = attn_kv_spec_page_bytes(&spec, &bytes, NULL);
    if (code == ATTN_OK && g->shape.page_bytes == bytes) g->problem = p;
}

/* What stays as it is until the group is closed, asked once. */
static int ask_instance(attn_group_t *g, attn_error_t *error) {
    g->shape.struct_size = sizeof g->shape;
    g->needed.struct_size = sizeof g->needed;
    int code = g->stage.ops.space_needed(g->stage.instance, &g->needed, error);
    if (code != ATTN_OK) return code;
    g->inner_needed = g->needed;
    if (g->ranks != NULL) code = attni_ranks_open_parts(g, error);
    if (code != ATTN_OK) return code;
    g->needed = g->inner_needed;
    uint64_t room = g->ranks != NULL ? attni_ranks_host_bytes(g) : attni_wrap_bytes(&g->wrap);
    if (room > 0) g->needed.host_bytes = (g->needed.host_bytes + 63) / 64 * 64 + room;
    if (g->wrap.is_device)
        g->needed.metadata_bytes = attni_wrap_device_offset(g) + attni_wrap_device_bytes(&g->wrap);
    if (g->ranks != NULL) attni_ranks_needed(g);
    if (attn_role_has_cache(g->problem.role)) {
        code = g->stage.ops.kv_cache_shape(g->stage.instance, g->problem.num_blocks, &g->shape, error);
        if (code != ATTN_OK) return code;
        if (g->shape.ndim == 0 || g->shape.ndim > ATTN_CACHE_MAX_DIMS)
            return attn_fail(error, ATTN_E_INTERNAL, "kv_cache_shape", "%s gives a cache of %u dimensions",
                             g->backend->shown.name, (unsigned)g->shape.ndim);
        if (g->problem.kv_layout == 0) g->problem.kv_layout = g->shape.kv_layout;
        resolve_kv_cache_dtype(g);
    }
    for (uint32_t i = 0; i < g->shape.ndim; i++)
        if (g->shape.axes[i] == ATTN_AXIS_BLOCK) g->block_axis = (int)i;
    return ATTN_OK;
}

/* Slots of the static sink tokens: blocks 1 .. sink_len / bs (semantics 2.11). */
static int make_sink_slots(attn_group_t *g, attn_error_t *error) {
    if (g->wrap.sink_len == 0) return ATTN_OK;
    g->sink_slots = malloc(g->wrap.sink_len * sizeof *g->sink_slots);
    if (g->sink_slots == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the sink slots");
    for (uint32_t i = 0; i < g->wrap.sink_len; i++)
        g->sink_slots[i] = (int64_t)g->problem.block_size + i;
    return ATTN_OK;
}

void attni_group_free(attn_group_t *g) {
    if (g->prefill != NULL) attni_group_free(g->prefill);
    if (g->ranks != NULL && g->ranks->beside != NULL) g->backend->ops.close(g->ranks->beside);
    if (g->stage.instance != NULL) g->stage.ops.close(g->stage.instance);
    attni_ranks_close(g->ranks);
    free(g->sink_slots);
    free(g);
}

int attni_group_open_one(attn_context_t *context, const attn_problem_t *problem, const attn_device_t *device,
                         const attn_selection_t *selection, attn_group_t **group, attn_error_t *error) {
    attn_group_t *g = calloc(1, sizeof *g);
    if (g == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for a group");
    g->context = context;
    g->backend = attni_backend_of(selection->backend);
    g->device = *device;
    g->problem = *problem;
    fill_problem(&g->problem, selection->block_size);
    g->features = attn_problem_features(&g->problem);
    int code = check_multiples(&g->problem, error);
    if (code == ATTN_OK) code = check_sink_blocks(g, error);
    if (code == ATTN_OK && g->problem.dcp_world_size > 1)
        code = attni_ranks_open(g->backend, device, &g->problem, &g->ranks, &g->inner, error);
    else if (code == ATTN_OK)
        code = attni_wrap_plan(g->backend, device, &g->problem, &g->wrap, &g->inner, error);
    if (code == ATTN_OK) code = check_inner(g, error);
    if (code == ATTN_OK) code = make_sink_slots(g, error);
    if (code == ATTN_OK) code = open_instance(g, error);
    const attn_instance_t *const bare = g->stage.instance;
    if (code == ATTN_OK) code = attni_hooks_open(g, error);
    if (g->ranks != NULL) g->ranks->is_hooked = g->stage.instance != bare;
    if (code == ATTN_OK) code = ask_instance(g, error);
    if (code != ATTN_OK) {
        attni_group_free(g);
        return code;
    }
    g->kind = attni_metadata_kind(g);
    g->is_plain = g->ranks == NULL;
    const uint32_t threshold = g->backend->capabilities.reorder_threshold;
    g->decode_len = threshold > 1 ? (int32_t)threshold : 1;
    *group = g;
    return ATTN_OK;
}

int attn_group_open(attn_context_t *context, const attn_problem_t *problem, const attn_device_t *device,
                    const char *backend, attn_group_t **group, attn_selection_t **selection,
                    attn_error_t *error) {
    attn_problem_t p;
    attn_device_t d;
    attn_selection_t *made = NULL;
    int code = attni_context_check(context, error);
    if (code != ATTN_OK) return code;
    ATTNI_NEED(group, "group", error);
    code = attn_intake(&p, sizeof p, problem, "problem", error);
    if (code == ATTN_OK && device != NULL) code = attn_intake_known(&d, sizeof d, device, "device", error);
    if (code == ATTN_OK && device == NULL) code = attn_device_parse(NULL, &d, error);
    if (code != ATTN_OK) return code;
    attni_mm_encoder_apply(context, &p);
    code = attn_select(context, &p, &d, backend, &made, error);
    if (code == ATTN_OK && made->backend == NULL)
        code = attn_fail(error, ATTN_E_UNSUPPORTED, "problem", "no backend serves the problem");
    if (code == ATTN_OK && d.id < 0)
        code = attn_fail(error, ATTN_E_DEVICE, "device",
                         "%s is not present; it can be used for selection, but nothing can be opened on it",
                         d.name);
    if (code == ATTN_OK) code = attni_group_open_phases(context, &p, &d, &made, group, error);
    if (code == ATTN_OK) atomic_fetch_add(&context->num_groups, 1);
    if (selection != NULL && made != NULL)
        *selection = made;
    else
        attn_selection_free(made);
    return code;
}

void attn_group_close(attn_group_t *group) {
    if (group == NULL || attni_group_check(group, NULL) != ATTN_OK)
        return; /* the parent's: its device is not ours */
    unsigned layers = atomic_load(&group->num_layers);
    if (layers != 0) {
        attni_log(&group->context->log, ATTN_LOG_ERROR,
                  "attn_group_close: %u layers still exist; destroy them first (the group stays open)",
                  layers);
        return;
    }
    attn_context_t *context = group->context;
    attni_group_free(group);
    atomic_fetch_sub(&context->num_groups, 1);
}
