/* SPDX-License-Identifier: Apache-2.0 */
/* describe.c: short text and JSON for what the library's structs say. */
#include "base/describe.h"

#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_device.h>

static const char *member_name(int kind, unsigned bit) {
    switch (kind) {
    case 'r':
        return bit > 0 && bit < ATTN_ROLE_COUNT_ ? attn_role_name(bit) : NULL;
    case 'd':
        return bit > 0 && bit <= ATTN_DTYPE_FLOAT64 ? attn_dtype_name(bit) : NULL;
    case 'k':
        return bit > 0 && bit < ATTN_KV_COUNT_ ? attn_kv_name(bit) : NULL;
    case 'p':
        return attn_device_kind((int32_t)bit) != NULL ? attn_device_kind((int32_t)bit)->name : NULL;
    default:
        return attn_feature_name(bit);
    }
}

void describe_set(int kind, uint64_t set, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (unsigned bit = 0; bit < 64 && used < size; bit++) {
        const char *name = member_name(kind, bit);
        if ((set >> bit & 1) == 0 || name == NULL) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s", used != 0 ? " " : "", name);
    }
}

json_t *describe_set_json(int kind, uint64_t set) {
    json_t *list = json_array();
    for (unsigned bit = 0; bit < 64; bit++) {
        const char *name = member_name(kind, bit);
        if ((set >> bit & 1) != 0 && name != NULL) json_array_append_new(list, json_string(name));
    }
    return list;
}

void describe_ranges(const attn_range_t *ranges, uint32_t count, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "%s", count == 0 ? "any" : "");
    for (uint32_t i = 0; i < count && used < size; i++) {
        const attn_range_t *r = &ranges[i];
        const char *comma = i != 0 ? ", " : "";
        if (r->min == r->max)
            used += (size_t)snprintf(text + used, size - used, "%s%u", comma, r->min);
        else if (r->step <= 1)
            used += (size_t)snprintf(text + used, size - used, "%s%u-%u", comma, r->min, r->max);
        else
            used +=
                (size_t)snprintf(text + used, size - used, "%s%u-%u step %u", comma, r->min, r->max, r->step);
    }
}

void describe_block_sizes(const attn_capabilities_t *can, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "%s", can->num_block_sizes == 0 ? "any" : "");
    for (uint32_t i = 0; i < can->num_block_sizes && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s%u", i != 0 ? ", " : "",
                                 can->block_sizes[i].is_multiple != 0 ? "multiples of " : "",
                                 can->block_sizes[i].size);
}

static json_t *text_json(void (*describe)(const attn_range_t *, uint32_t, char *, size_t),
                         const attn_range_t *ranges, uint32_t count) {
    char text[512];
    describe(ranges, count, text, sizeof text);
    return json_string(text);
}

json_t *describe_capabilities_json(const attn_capabilities_t *can) {
    char blocks[256];
    describe_block_sizes(can, blocks, sizeof blocks);
    json_t *out = json_object();
    json_object_set_new(out, "roles", describe_set_json('r', can->roles));
    json_object_set_new(out, "dtypes", describe_set_json('d', can->dtypes));
    json_object_set_new(out, "kv_cache_dtypes", describe_set_json('k', can->kv_cache_dtypes));
    json_object_set_new(out, "features", describe_set_json('f', can->features));
    json_object_set_new(out, "devices", describe_set_json('p', can->device_types));
    json_object_set_new(out, "head_sizes", text_json(describe_ranges, can->head_sizes, can->num_head_sizes));
    json_object_set_new(out, "block_sizes", json_string(blocks));
    json_object_set_new(out, "compute_capabilities",
                        text_json(describe_ranges, can->compute_capabilities, can->num_compute_capabilities));
    json_object_set_new(out, "preferred_block_size", json_integer(can->preferred_block_size));
    json_object_set_new(out, "reorder_threshold", json_integer(can->reorder_threshold));
    static const char *const graphs[] = {"never", "never", "uniform_single_token_decode", "uniform_batch",
                                         "always"};
    uint32_t graph = can->graph_support <= ATTN_GRAPH_ALWAYS ? can->graph_support : 0;
    json_object_set_new(out, "graph_support", json_string(graphs[graph]));
    return out;
}

static void bounds_of(const attn_option_spec_t *o, char *text, size_t size) {
    text[0] = '\0';
    if (o->type == ATTN_OPTION_BOOL)
        snprintf(text, size, "yes or no");
    else if (o->type == ATTN_OPTION_ENUM)
        snprintf(text, size, "%s", o->choices);
    else if (o->type == ATTN_OPTION_INT && (o->min_int != 0 || o->max_int != 0))
        snprintf(text, size, "%lld to %lld", (long long)o->min_int, (long long)o->max_int);
    else if (o->type == ATTN_OPTION_DOUBLE && (o->min_double != 0 || o->max_double != 0))
        snprintf(text, size, "%g to %g", o->min_double, o->max_double);
    else
        snprintf(text, size, "%s", o->type == ATTN_OPTION_STRING ? "text" : "a number");
}

json_t *describe_options_json(const attn_plugin_t *plugin) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < plugin->num_options; i++) {
        /* the plugin's header may be older or newer: the step is its own */
        const attn_option_spec_t *o =
            (const void *)((const char *)plugin->options + (size_t)i * plugin->options->struct_size);
        char values[256];
        bounds_of(o, values, sizeof values);
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:s, s:s}", "name", o->name, "default", o->default_value,
                                        "values", values, "doc", o->doc != NULL ? o->doc : ""));
    }
    return list;
}

void describe_problem(const attn_problem_t *p, char *text, size_t size) {
    size_t used = 0;
    uint32_t kv = p->num_kv_heads != 0 ? p->num_kv_heads : p->num_heads;
    if (attn_role_is_mla(p->role))
        used = (size_t)snprintf(text, size, "%u heads, latent %u + %u", p->num_heads, p->kv_lora_rank,
                                p->qk_rope_head_dim);
    else if (kv == p->num_heads)
        used = (size_t)snprintf(text, size, "%u heads of %u", p->num_heads, p->head_size);
    else
        used = (size_t)snprintf(text, size, "%u/%u heads of %u", p->num_heads, kv, p->head_size);
    if (p->head_size_v != 0 && p->head_size_v != p->head_size && used < size)
        used += (size_t)snprintf(text + used, size - used, "/%u", p->head_size_v);
    if (used < size) used += (size_t)snprintf(text + used, size - used, ", %s", attn_dtype_name(p->dtype));
    if (p->kv_cache_dtype > ATTN_KV_AUTO && used < size)
        used += (size_t)snprintf(text + used, size - used, ", cache %s", attn_kv_name(p->kv_cache_dtype));
    if (p->logits_soft_cap != 0 && used < size)
        used += (size_t)snprintf(text + used, size - used, ", soft cap %g", p->logits_soft_cap);
    for (unsigned bit = 0; bit < 64 && used < size; bit++)
        if ((p->features >> bit & 1) != 0 && attn_feature_name(bit) != NULL)
            used += (size_t)snprintf(text + used, size - used, ", %s", attn_feature_name(bit));
}

json_t *describe_problem_json(const attn_problem_t *problem) {
    char text[2048];
    return attn_problem_format(problem, text, sizeof text) < 0 ? json_null() : json_string(text);
}

static json_t *candidate_json(const attn_candidate_t *c) {
    json_t *reasons = json_array();
    for (uint32_t i = 0; i < c->num_reasons; i++) {
        const attn_reason_t *r = &c->reasons[i];
        json_array_append_new(reasons, json_pack("{s:s, s:s, s:s, s:s, s:s}", "code",
                                                 attn_reason_name(r->code), "parameter", r->param, "have",
                                                 r->have, "want", r->want, "text", r->text));
    }
    return json_pack("{s:i, s:s, s:s, s:b, s:b, s:o}", "rank", c->rank, "backend", c->backend, "plugin",
                     c->plugin, "valid", c->is_valid != 0, "chosen", c->is_chosen != 0, "reasons", reasons);
}

json_t *describe_selection_json(const attn_selection_t *s) {
    if (s == NULL) return json_null();
    json_t *candidates = json_array();
    for (uint32_t i = 0; i < s->num_candidates; i++)
        json_array_append_new(candidates, candidate_json(&s->candidates[i]));
    json_t *out = json_pack(
        "{s:s?, s:s?, s:s, s:s, s:s, s:i, s:o}", "backend", s->backend != NULL ? s->backend->name : NULL,
        "plugin", s->backend != NULL ? s->plugin : NULL, "rule", s->rule, "source", s->source, "warning",
        s->warning, "block_size", (int)s->block_size, "candidates", candidates);
    return out != NULL ? out : json_null();
}

void describe_group_backends(const attn_group_t *group, char *text, size_t size) {
    const attn_backend_t *decode = attn_group_phase_backend(group, ATTN_PHASE_DECODE),
                         *prefill = attn_group_phase_backend(group, ATTN_PHASE_PREFILL);
    if (decode == prefill)
        snprintf(text, size, "%s", decode->name);
    else
        snprintf(text, size, "decode %s, prefill %s", decode->name, prefill->name);
}

void describe_bytes(double bytes, char *text, size_t size) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, size, bytes == (double)(long long)bytes || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes,
             units[unit]);
}
