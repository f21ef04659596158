/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Selection (semantics 5.2): every candidate is validated, so the record can say why each was not taken;
 * the first valid one in order is chosen. An explicit backend that does not serve is an error, or, if the
 * configuration said so itself ([attn] fallback), gives way to the priority list.
 */
#include "select/capability.h"
#include "device/device_kind.h"
#include "load/context.h"
#include "load/mm_encoder.h"
#include "base/nearest.h"
#include "select/select_rules.h"

#include <attn/attn_plugin_util.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_REASONS = 64 };

/* The record as the caller sees it, and the memory behind it. */
struct record {
    attn_selection_t shown; /* first: attn_selection_free gets its address */
    struct attni_arena arena;
    attn_candidate_t *candidates;
    const attn_candidate_t *chosen;
};

struct search {
    const attn_context_t *context;
    const attn_problem_t *problem;
    const attn_device_t *device;
    uint32_t phase; /* 0: who serves everything; else who serves batches of one phase */
    struct attni_select_rule rule;
    struct record *record;
    attn_error_t *error;
};

/* A name that no loaded plugin has: a typo, or a plugin that was refused. */
static void explain_absent(const struct search *in, const char *name, attn_reasons_t *reasons) {
    const char *holder = attni_plugin_of_backend(name);
    const struct attni_plugin *plugin = holder ? attni_plugins_find(&in->context->plugins, holder) : NULL;
    if (plugin && plugin->refusal.code != ATTN_OK) {
        attn_add_reason(reasons, ATTN_REASON_IMPORT_ERROR, "plugin", holder, "loaded",
                        "plugin %s did not load: %s", holder, plugin->refusal.text);
        return;
    }
    /* A name of the built-in list is not a typo. */
    if (name != in->rule.explicit_backend && strcmp(in->rule.priority_source, "default") == 0) {
        attn_add_reason(reasons, ATTN_REASON_UNKNOWN, "backend", name, "a backend of a loaded plugin",
                        "no loaded plugin has '%.60s' of the built-in list", name);
        return;
    }
    attn_error_t error = {.struct_size = sizeof error};
    attn_context_find_backend(in->context, name, &error);
    attn_add_reason(reasons, ATTN_REASON_UNKNOWN, "backend", name, "a backend of a loaded plugin", "%s",
                    error.text);
}

static int add_candidate(struct search *in, const char *name) {
    struct record *record = in->record;
    attn_reason_t found[MAX_REASONS];
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = MAX_REASONS, .items = found};
    const struct attni_backend *backend = attni_registry_find(&in->context->registry, name);
    int code = ATTN_OK;
    if (backend)
        code = attn_backend_validate(&backend->shown, in->problem, in->device, &reasons, in->error);
    else
        explain_absent(in, name, &reasons);
    if (code != ATTN_OK) return code;
    uint32_t kept = reasons.count < MAX_REASONS ? reasons.count : MAX_REASONS;
    attn_reason_t *items = attni_arena_alloc(&record->arena, (kept + 1) * sizeof *items);
    if (!items) return attn_fail(in->error, ATTN_E_NO_MEMORY, "", "out of memory for a selection");
    memcpy(items, found, kept * sizeof *items);
    attn_candidate_t *candidate = &record->candidates[record->shown.num_candidates];
    *candidate = (attn_candidate_t){
        .struct_size = sizeof *candidate,
        .rank = (int32_t)record->shown.num_candidates,
        .is_valid = backend && !reasons.count,
        .backend = attni_arena_text(&record->arena, "%s", backend ? backend->shown.name : name),
        .plugin = attni_arena_text(&record->arena, "%s", backend ? backend->plugin->name : ""),
        .num_reasons = kept,
        .reasons = items,
    };
    record->shown.num_candidates++;
    if (candidate->is_valid && !record->shown.backend) {
        candidate->is_chosen = 1;
        record->chosen = candidate;
        record->shown.backend = &backend->shown;
        record->shown.plugin = candidate->plugin;
    }
    return ATTN_OK;
}

static int walk_priority(struct search *in) {
    int code = ATTN_OK;
    in->record->shown.rule = "priority";
    for (size_t i = 0; code == ATTN_OK && i < in->rule.count; i++) {
        const struct attni_select_rule *rule = &in->rule;
        if (rule->explicit_backend && !strcasecmp(rule->explicit_backend, rule->names[i]))
            continue; /* was tried */
        code = add_candidate(in, rule->names[i]);
    }
    return code;
}

/* How far a candidate is from serving; an unknown name is farthest. */
static uint32_t distance_of(const attn_candidate_t *candidate) {
    const int is_known = candidate->num_reasons == 0 || candidate->reasons[0].code != ATTN_REASON_UNKNOWN;
    return is_known ? candidate->num_reasons : MAX_REASONS + 1;
}

static int is_absent(const attn_candidate_t *c) {
    return c->num_reasons != 0 &&
           (c->reasons[0].code == ATTN_REASON_UNKNOWN || c->reasons[0].code == ATTN_REASON_IMPORT_ERROR);
}

/* "text; text; text", each once, of the nearest candidates first and of those that are not there last, as
 * much as fits; the record has all of them. */
static void list_reasons(const attn_selection_t *selection, char *text, size_t size) {
    static const char more[] = " .. (all reasons: the selection record, or attn select)";
    const uint32_t most = MAX_REASONS + 1;
    size_t used = 0;
    text[0] = 0;
    for (uint32_t rank = 1; rank <= 2 * most; rank++) /* first all distances of the present */
        for (uint32_t i = 0; i < selection->num_candidates; i++) {
            const attn_candidate_t *candidate = &selection->candidates[i];
            if (distance_of(candidate) + (is_absent(candidate) ? most : 0) != rank) continue;
            for (uint32_t j = 0; j < candidate->num_reasons && used < size; j++)
                if (strstr(text, candidate->reasons[j].text) == NULL)
                    used += (size_t)snprintf(text + used, size - used, "%s%s", used ? "; " : "",
                                             candidate->reasons[j].text);
        }
    if (used >= size) memcpy(text + size - sizeof more, more, sizeof more);
}

static int fail_explicit(const struct search *in) {
    const struct attni_select_rule *rule = &in->rule;
    const attn_candidate_t *candidate = &in->record->candidates[0];
    char reasons[340];
    list_reasons(&in->record->shown, reasons, sizeof reasons);
    return attn_fail(in->error, is_absent(candidate) ? ATTN_E_NOT_FOUND : ATTN_E_UNSUPPORTED, "backend",
                     "backend %s was requested (%s) and cannot be used: %s", rule->explicit_backend,
                     rule->source, reasons);
}

/*
 * fallback = warn or quiet holds for what the configuration requests; what the call requests is used or is
 * an error.
 */
static int try_explicit(struct search *in) {
    struct record *record = in->record;
    record->shown.rule = "explicit";
    int code = add_candidate(in, in->rule.explicit_backend);
    if (code || record->shown.backend) return code;
    const char *fallback = attni_config_get(&in->context->config, "attn", "fallback");
    if (in->rule.is_from_api || !strcmp(fallback, "error")) return fail_explicit(in);
    char reasons[512];
    list_reasons(&record->shown, reasons, sizeof reasons);
    record->shown.warning = attni_arena_text(
        &record->arena, "backend %s (%s) cannot be used, so %s (%s) decides: %s", in->rule.explicit_backend,
        in->rule.source,
        in->phase != 0 && in->rule.count == 0 ? "the choice for all batches" : "the priority list",
        in->rule.priority_source, reasons);
    attni_log(&in->context->log, strcmp(fallback, "warn") ? ATTN_LOG_INFO : ATTN_LOG_WARN, "%s",
              record->shown.warning);
    record->shown.source = in->rule.priority_source;
    return walk_priority(in);
}

/* Semantics 5.2 step 6: better backends that only the caller's own block size rules out. */
static void warn_block_size(struct search *in) {
    struct record *record = in->record;
    char names[256] = "";
    size_t used = 0;
    if (!in->problem->block_size || record->shown.warning[0]) return;
    for (const attn_candidate_t *c = record->candidates; c < record->chosen; c++)
        if (c->num_reasons == 1 && c->reasons[0].code == ATTN_REASON_BLOCK_SIZE && used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", c->backend);
    if (!used) return;
    record->shown.warning = attni_arena_text(
        &record->arena, "block_size %u alone rules out %s, which has priority over %s; leave block_size 0",
        in->problem->block_size, names, record->chosen->backend);
    attni_log(&in->context->log, ATTN_LOG_WARN, "selection: %s", record->shown.warning);
}

/* Whether a candidate could have served here: not one that is for another device, or that nobody has
 * installed. */
static int is_near(const struct search *in, const attn_candidate_t *c) {
    const char *holder = attni_plugin_of_backend(c->backend);
    const struct attni_plugin *plugin = holder ? attni_plugins_find(&in->context->plugins, holder) : NULL;
    const int32_t code = c->reasons[0].code;
    for (uint32_t i = 0; i < c->num_reasons; i++)
        if (c->reasons[i].code == ATTN_REASON_DEVICE) return 0;
    return code != ATTN_REASON_UNKNOWN && !(code == ATTN_REASON_IMPORT_ERROR && plugin && plugin->is_absent);
}

/* The oracle serves everything, at a small fraction of any other backend's speed: say so before it is
 * noticed as slowness. */
static void warn_oracle(struct search *in) {
    struct record *record = in->record;
    char reasons[512] = "";
    size_t used = 0;
    if (record->chosen == record->candidates || strcasecmp(record->chosen->backend, "REFERENCE") != 0 ||
        record->shown.warning[0])
        return;
    for (const attn_candidate_t *c = record->candidates; c < record->chosen && used < sizeof reasons; c++)
        if (is_near(in, c))
            used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%s", used ? "; " : "",
                                     c->reasons[0].text);
    record->shown.warning =
        attni_arena_text(&record->arena, "only REFERENCE, the slow oracle, is left for role %s: %s",
                         attn_role_name(in->problem->role),
                         reasons[0] ? reasons : "no other backend of the list is installed for this device");
    attni_log(&in->context->log, ATTN_LOG_WARN, "selection: %s", record->shown.warning);
}

static void log_decision(const struct search *in) {
    const attn_selection_t *selection = &in->record->shown;
    const struct attni_log *log = &in->context->log;
    for (uint32_t i = 0; i < selection->num_candidates; i++)
        for (uint32_t j = 0; j < selection->candidates[i].num_reasons; j++)
            attni_log(log, ATTN_LOG_DEBUG, "selection: %s rejected (%s): %s",
                      selection->candidates[i].backend,
                      attn_reason_name(selection->candidates[i].reasons[j].code),
                      selection->candidates[i].reasons[j].text);
    if (!selection->backend) return;
    attni_log(log, ATTN_LOG_INFO, "selection: %s for %srole %s (%s, %s)", selection->backend->name,
              in->phase == 0                   ? ""
              : in->phase == ATTN_PHASE_DECODE ? "decode of "
                                               : "prefill of ",
              attn_role_name(in->problem->role), selection->rule, selection->source);
    uint32_t layout = attn_backend_required_kv_layout(selection->backend);
    if (layout)
        attni_log(log, ATTN_LOG_INFO, "selection: %s needs cache layout %s", selection->backend->name,
                  layout == ATTN_LAYOUT_HND ? "HND" : "NHD");
}

static int search(struct search *in) {
    attn_selection_t *shown = &in->record->shown;
    shown->source = in->rule.source;
    int code = in->rule.explicit_backend ? try_explicit(in) : walk_priority(in);
    shown->candidates = in->record->candidates;
    if (code == ATTN_OK && !shown->backend && in->phase == 0) {
        char reasons[340], device[64];
        list_reasons(shown, reasons, sizeof reasons);
        attni_device_text(in->device->type, in->device->compute_capability, device, sizeof device);
        code = attn_fail(in->error, ATTN_E_UNSUPPORTED, "backend", "no backend serves role %s on %s: %s",
                         attn_role_name(in->problem->role), device, reasons);
    }
    if (shown->backend) {
        if (in->phase == 0) {
            warn_block_size(in);
            warn_oracle(in);
        }
        shown->block_size = in->problem->block_size;
        if (!shown->block_size && attn_role_has_cache(in->problem->role))
            shown->block_size = attn_backend_preferred_block_size(shown->backend, 16);
    }
    log_decision(in);
    return code;
}

static struct record *new_record(const struct search *in) {
    struct record *record = calloc(1, sizeof *record);
    if (!record) return NULL;
    record->shown = (attn_selection_t){.struct_size = sizeof record->shown,
                                       .plugin = "",
                                       .rule = "priority",
                                       .source = "default",
                                       .warning = ""};
    record->candidates = attni_arena_alloc(&record->arena, (in->rule.count + 1) * sizeof *record->candidates);
    record->shown.candidates = record->candidates;
    return record;
}

static int select_for(const attn_context_t *context, const attn_problem_t *problem,
                      const attn_device_t *device, uint32_t phase, const char *backend,
                      attn_selection_t **selection, attn_error_t *error) {
    attn_problem_t taken;
    attn_device_t taken_device;
    int code = attni_context_check(context, error);
    if (code == ATTN_OK && !selection)
        code =
            attn_fail(error, ATTN_E_INVALID, "selection", "selection is NULL; pass the address of a pointer");
    if (code == ATTN_OK) code = attn_problem_check(problem, error);
    if (code == ATTN_OK) code = attn_intake(&taken, sizeof taken, problem, "problem", error);
    if (code == ATTN_OK && device)
        code = attn_intake_known(&taken_device, sizeof taken_device, device, "device", error);
    if (code == ATTN_OK && !device) {
        taken_device = (attn_device_t){.struct_size = sizeof taken_device};
        code = attn_device_parse(NULL, &taken_device, error);
    }
    if (code != ATTN_OK) return code;
    attni_mm_encoder_apply(context, &taken);
    struct attni_arena names = {0};
    struct search in = {
        .context = context, .problem = &taken, .device = &taken_device, .phase = phase, .error = error};
    code = attni_select_rule(&context->config, taken.role, phase, &taken_device, backend, &names, &in.rule);
    if (code == ATTN_OK && phase != 0 && in.rule.names == NULL && in.rule.explicit_backend == NULL) {
        attni_arena_free(&names);
        *selection = NULL;
        return ATTN_OK;
    }
    in.record = code ? NULL : new_record(&in);
    if (!in.record || in.record->arena.failed) {
        attn_selection_free(in.record ? &in.record->shown : NULL);
        attni_arena_free(&names);
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for a selection");
    }
    code = search(&in);
    in.record->shown.source = attni_arena_text(&in.record->arena, "%s", in.record->shown.source);
    attni_arena_free(&names);
    if (in.record->arena.failed)
        code = attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for a selection");
    if (code == ATTN_OK || code == ATTN_E_UNSUPPORTED || code == ATTN_E_NOT_FOUND)
        *selection = &in.record->shown;
    else
        attn_selection_free(&in.record->shown);
    return code;
}

int attn_select(const attn_context_t *context, const attn_problem_t *problem, const attn_device_t *device,
                const char *backend, attn_selection_t **selection, attn_error_t *error) {
    return select_for(context, problem, device, 0, backend, selection, error);
}

int attn_select_phase(const attn_context_t *context, const attn_problem_t *problem,
                      const attn_device_t *device, uint32_t phase, attn_selection_t **selection,
                      attn_error_t *error) {
    if (phase != ATTN_PHASE_DECODE && phase != ATTN_PHASE_PREFILL)
        return attn_fail(error, ATTN_E_INVALID, "phase",
                         "phase is %u; expected ATTN_PHASE_DECODE or _PREFILL", (unsigned)phase);
    return select_for(context, problem, device, phase, NULL, selection, error);
}

void attni_selection_warn(attn_selection_t *selection, const char *warning) {
    struct record *record = (struct record *)(void *)selection;
    selection->warning = attni_arena_text(&record->arena, "%s%s%s", selection->warning,
                                          selection->warning[0] != '\0' ? "; " : "", warning);
}

void attn_selection_free(attn_selection_t *selection) {
    if (!selection) return;
    struct record *record = (struct record *)(void *)selection;
    attni_arena_free(&record->arena);
    free(record);
}
