/* SPDX-License-Identifier: Apache-2.0 */
/* cache_plan.c: counts pages. What a sequence may hold is the library's admission limit (semantics 3.10), so
 * that a window costs its window and not the sequence. */
#include "cmd/cache_plan.h"

#include "base/describe.h"

#include <attn/attn_plugin_util.h>

static void join(const int64_t *values, uint32_t n, int blocks_first, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "(");
    for (uint32_t i = 0; i < n && used < size; i++) {
        if (i == 0 && blocks_first)
            used += (size_t)snprintf(text + used, size - used, "n");
        else
            used += (size_t)snprintf(text + used, size - used, "%s%lld", i != 0 ? ", " : "",
                                     (long long)values[i]);
    }
    if (used < size) snprintf(text + used, size - used, ")");
}

/* The shape that the selected backend wants, if it can be opened here: a device that is not present has no
 * instance. */
static void ask_shape(attn_context_t *context, const attn_device_t *device, const char *backend,
                      cache_entry_t *e) {
    attn_group_t *group = NULL;
    e->shape.struct_size = sizeof e->shape;
    if (device->id < 0 ||
        attn_group_open(context, &e->kind->problem, device, backend, &group, NULL, NULL) != ATTN_OK ||
        attn_group_kv_cache_shape(group, 1, &e->shape, NULL) != ATTN_OK)
        e->shape.ndim = 0;
    if (group != NULL) {
        describe_group_backends(group, e->backend, sizeof e->backend);
        attn_group_close(group);
    }
    join(e->shape.shape, e->shape.ndim, 1, e->shape_text, sizeof e->shape_text);
    join(e->shape.byte_strides, e->shape.ndim, 0, e->stride_text, sizeof e->stride_text);
    if (e->shape.ndim == 0) {
        snprintf(e->shape_text, sizeof e->shape_text, "unknown here");
        e->stride_text[0] = '\0';
    }
}

/* Which backend serves the layers that none on this device does: the first loaded backend that would on
 * another one. */
static void name_server(attn_context_t *context, const attn_problem_t *problem, char *text, size_t size) {
    attn_reason_t item;
    const attn_backend_t *b;
    for (uint32_t i = 0; (b = attn_context_backend(context, i)) != NULL; i++) {
        attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &item};
        if (attn_backend_validate(b, problem, NULL, &reasons, NULL) != ATTN_OK || reasons.count != 0)
            continue;
        snprintf(text, size, "none on this device; %s on another", b->name);
        return;
    }
    snprintf(text, size, "no loaded backend serves it");
}

static int make_entry(attn_context_t *context, const attn_device_t *device, const char *backend,
                      const tool_kind_t *kind, cache_entry_t *e, attn_error_t *error) {
    memset(e, 0, sizeof *e);
    e->kind = kind;
    attn_selection_t *selection = NULL;
    int code = attn_select(context, &kind->problem, device, backend, &selection, error);
    uint32_t block_size = kind->problem.block_size;
    if (code == ATTN_OK) {
        snprintf(e->backend, sizeof e->backend, "%s", selection->backend->name);
        if (selection->block_size != 0) block_size = selection->block_size;
    }
    attn_selection_free(selection);
    if (kind->is.unserved[0] != '\0') code = ATTN_E_UNSUPPORTED;
    if (code == ATTN_E_UNSUPPORTED && backend == NULL) {
        /* pages are arithmetic: count them all the same */
        if (kind->is.unserved[0] != '\0')
            snprintf(e->backend, sizeof e->backend, "no loaded backend serves it");
        else
            name_server(context, &kind->problem, e->backend, sizeof e->backend);
        if (attn_role_is_mla(kind->problem.role) && block_size == 0) block_size = 64;
    } else if (code != ATTN_OK) {
        return code;
    }
    const int is_served = e->is_served = code == ATTN_OK;
    e->spec.struct_size = sizeof e->spec;
    code = attn_kv_spec_of(&kind->problem, block_size != 0 ? block_size : 16, &e->spec, error);
    if (code == ATTN_OK) code = attn_kv_spec_page_bytes(&e->spec, &e->page_bytes, error);
    if (code == ATTN_E_INVALID && !is_served && attn_role_is_mla(kind->problem.role)) {
        snprintf(e->backend, sizeof e->backend, "latent rows have no such form");
        code = ATTN_OK;
    }
    if (code != ATTN_OK) return code;
    if (kind->is.indexer_dim != 0 &&
        e->page_bytes != 0) /* e4m3 and one fp32 for 128 values (semantics 9.4) */
        e->indexer_page_bytes =
            (int64_t)e->spec.block_size * (kind->is.indexer_dim + 4 * ((kind->is.indexer_dim + 127) / 128));
    if (is_served)
        ask_shape(context, device, backend, e);
    else
        snprintf(e->shape_text, sizeof e->shape_text, "-");
    if (e->shape.ndim != 0) e->page_bytes = e->shape.page_bytes;
    return ATTN_OK;
}

/* Ranks that share the tokens: pages are counted for one of them. */
static int32_t ranks_of(const cache_entry_t *e) {
    return (int32_t)e->kind->problem.dcp_world_size;
}

/* Bytes that one sequence of len tokens can hold at most; -1 beyond 2^62. */
static int64_t sequence_bytes(const cache_plan_t *plan, int64_t len, int64_t inflight) {
    int64_t total = 0;
    for (uint32_t i = 0; i < plan->num_entries; i++) {
        const cache_entry_t *e = &plan->entries[i];
        int64_t blocks, bytes, encoder = e->kind->problem.max_model_len;
        if (attn_kv_spec_max_blocks(&e->spec, len, inflight < len ? inflight : len,
                                    encoder != 0 ? encoder : len, ranks_of(e), &blocks, NULL) != ATTN_OK ||
            __builtin_mul_overflow(blocks, e->page_bytes + e->indexer_page_bytes, &bytes) ||
            __builtin_mul_overflow(bytes, (int64_t)e->kind->is.num_layers, &bytes) ||
            __builtin_add_overflow(total, bytes, &total))
            return -1;
    }
    return total;
}

int cache_plan_make(attn_context_t *context, const attn_device_t *device, const char *backend,
                    const tool_model_t *model, const cache_limits_t *limits, cache_plan_t *plan,
                    attn_error_t *error) {
    memset(plan, 0, sizeof *plan);
    for (uint32_t i = 0; i < model->num_kinds; i++) {
        const tool_kind_t *kind = &model->kinds[i];
        if (kind->is.num_layers == 0 || !attn_role_has_cache(kind->problem.role)) continue;
        if (plan->kv_cache_dtype == 0) plan->kv_cache_dtype = kind->problem.kv_cache_dtype;
        if (kind->problem.role != ATTN_ROLE_ENCODER_DECODER && kind->problem.max_model_len > plan->max_len)
            plan->max_len = kind->problem.max_model_len;
        plan->num_entries++;
    }
    if (limits->max_len != 0) plan->max_len = limits->max_len;
    if (plan->max_len == 0) plan->max_len = 4096;
    if (plan->num_entries == 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "role",
                         "this model has no KV cache: its layers are encoders");
    uint32_t at = 0;
    for (uint32_t i = 0; i < model->num_kinds; i++) {
        const tool_kind_t *kind = &model->kinds[i];
        if (kind->is.num_layers == 0 || !attn_role_has_cache(kind->problem.role)) continue;
        int code = make_entry(context, device, backend, kind, &plan->entries[at++], error);
        if (code != ATTN_OK) {
            plan->num_entries = 0;
            return code;
        }
    }
    plan->is_possible = plan->is_served = 1;
    for (uint32_t i = 0; i < plan->num_entries; i++) {
        cache_entry_t *e = &plan->entries[i];
        if (e->page_bytes == 0) plan->is_possible = 0;
        if (!e->is_served) plan->is_served = 0;
        int64_t encoder = e->kind->problem.max_model_len;
        int code = attn_kv_spec_max_blocks(&e->spec, plan->max_len, limits->inflight, encoder, ranks_of(e),
                                           &e->max_blocks, error);
        if (code != ATTN_OK) return code;
    }
    if (!plan->is_possible) return ATTN_OK;
    plan->bytes_per_sequence = sequence_bytes(plan, plan->max_len, limits->inflight);
    if (plan->bytes_per_sequence <= 0)
        return attn_fail(error, ATTN_E_INVALID, "max_len",
                         "the cache of a sequence of %lld tokens is too large to count",
                         (long long)plan->max_len);
    plan->bytes_per_token = (double)plan->bytes_per_sequence / (double)plan->max_len;
    plan->sequences = limits->memory / plan->bytes_per_sequence;
    int64_t fits = 0, beyond = (int64_t)INT32_MAX + 1;
    while (beyond - fits > 1) {
        int64_t middle = fits + (beyond - fits) / 2, bytes = sequence_bytes(plan, middle, limits->inflight);
        if (bytes >= 0 && bytes <= limits->memory)
            fits = middle;
        else
            beyond = middle;
    }
    plan->longest = fits;
    return ATTN_OK;
}
