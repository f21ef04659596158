/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_select.c: `attn select`: for each kind of layer the backend that serves it, and why the others do
 * not. */
#include "base/describe.h"
#include "cmd/problem_args.h"
#include "base/term.h"

static void print_candidates(const attn_selection_t *s) {
    table_t *table = table_new("backend|verdict|why");
    for (uint32_t i = 0; i < s->num_candidates; i++) {
        const attn_candidate_t *c = &s->candidates[i];
        if (c->is_chosen) {
            table_cell(table, TERM_GREEN, "%s", c->backend);
            table_cell(table, TERM_GREEN, "chosen");
            if (s->block_size != 0)
                table_cell(table, TERM_PLAIN, "%s from %s; pages of %u tokens", s->rule, s->source,
                           s->block_size);
            else
                table_cell(table, TERM_PLAIN, "%s from %s", s->rule, s->source);
        } else if (c->is_valid) {
            table_cell(table, TERM_PLAIN, "%s", c->backend);
            table_cell(table, TERM_DIM, "eligible");
            table_cell(table, TERM_DIM, "lower priority");
        }
        for (uint32_t r = 0; r < c->num_reasons; r++) {
            table_cell(table, TERM_DIM, "%s", r == 0 ? c->backend : "");
            table_cell(table, TERM_RED, "%s", r == 0 ? "no" : "");
            table_cell(table, TERM_DIM, "%s", c->reasons[r].text);
        }
    }
    table_print(table, stdout, "    ");
    if (s->warning[0] != '\0') {
        term_print(TERM_YELLOW, "    warning: ");
        printf("%s\n", s->warning);
    }
}

/* What the configuration names for phases, and what a group then has. */
struct phases {
    attn_selection_t *named[2]; /* decode, prefill; NULL: none */
    int is_named, is_refused, is_open;
    char backends[128]; /* is_open: as describe_group_backends */
    char note[640];     /* why one does both, or why no group opens */
};

static void ask_phases(attn_context_t *context, const attn_problem_t *problem, const attn_device_t *device,
                       struct phases *out) {
    static const uint32_t phases[2] = {ATTN_PHASE_DECODE, ATTN_PHASE_PREFILL};
    attn_group_t *group = NULL;
    attn_selection_t *record = NULL;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < 2; i++) {
        ATTN_INIT(attn_error_t, why);
        const int code = attn_select_phase(context, problem, device, phases[i], &out->named[i], &why);
        out->is_named |= out->named[i] != NULL;
        if (code != ATTN_OK) snprintf(out->note, sizeof out->note, "%s", why.text);
        out->is_refused |= code != ATTN_OK;
    }
    if (!out->is_named || out->is_refused) return;
    if (device->id < 0) {
        snprintf(out->note, sizeof out->note,
                 "whether caches agree is known where the device is: this one is not present");
        return;
    }
    ATTN_INIT(attn_error_t, why);
    out->is_open = attn_group_open(context, problem, device, NULL, &group, &record, &why) == ATTN_OK;
    if (out->is_open) describe_group_backends(group, out->backends, sizeof out->backends);
    out->is_refused = !out->is_open;
    snprintf(out->note, sizeof out->note, "%s", !out->is_open ? why.text : record->warning);
    attn_selection_free(record);
    attn_group_close(group);
}

static void free_phases(struct phases *phases) {
    attn_selection_free(phases->named[0]);
    attn_selection_free(phases->named[1]);
}

static void print_phases(const struct phases *phases) {
    for (int i = 0; i < 2; i++) {
        if (phases->named[i] == NULL) continue;
        printf("    %s\n",
               i == 0 ? "for batches of decode alone, and captured ones" : "for batches with prefill");
        print_candidates(phases->named[i]);
    }
    if (!phases->is_named) return;
    if (phases->is_open) printf("    a group here has %s\n", phases->backends);
    if (phases->note[0] != '\0') {
        term_print(TERM_YELLOW, "    note: ");
        printf("%s\n", phases->note);
    }
}

static json_t *phases_json(const struct phases *phases) {
    if (!phases->is_named) return json_null();
    return json_pack("{s:o, s:o, s:s?, s:s}", "decode", describe_selection_json(phases->named[0]), "prefill",
                     describe_selection_json(phases->named[1]), "opened",
                     phases->is_open ? phases->backends : NULL, "note", phases->note);
}

static void print_kind(const tool_kind_t *kind, const attn_selection_t *s, const struct phases *phases,
                       const attn_error_t *error) {
    char shape[256];
    describe_problem(&kind->problem, shape, sizeof shape);
    term_print(TERM_BOLD, "%s", kind->is.name);
    if (kind->is.num_layers > 0)
        printf("  (%u layer%s: %s)", kind->is.num_layers, kind->is.num_layers == 1 ? "" : "s",
               kind->is.layers_text);
    printf("  %s\n", shape);
    if (kind->is.unserved[0] != '\0') {
        term_print(TERM_RED, "    no backend serves it");
        printf(": %s\n\n", kind->is.unserved);
        return;
    }
    if (s == NULL || s->backend == NULL) {
        term_print(TERM_RED, "    no backend serves it");
        printf("%s%s\n", s == NULL ? ": " : "", s == NULL ? error->text : "");
    }
    if (s != NULL) print_candidates(s);
    print_phases(phases);
    printf("\n");
}

static json_t *kind_json(const tool_kind_t *kind, const attn_selection_t *s, const struct phases *phases,
                         const attn_error_t *error) {
    json_t *numbers = json_array();
    for (uint32_t i = 0; i < kind->is.num_layers; i++)
        json_array_append_new(numbers, json_integer(kind->is.layers[i]));
    json_t *out = json_pack("{s:s, s:s, s:o, s:i, s:o, s:o, s:o}", "kind", kind->is.name, "layers",
                            kind->is.layers_text, "layer_numbers", numbers, "num_layers",
                            (int)kind->is.num_layers, "problem", describe_problem_json(&kind->problem),
                            "selection", describe_selection_json(s), "phases", phases_json(phases));
    if (kind->is.unserved[0] != '\0')
        json_object_set_new(out, "error", json_string(kind->is.unserved));
    else if (s == NULL)
        json_object_set_new(out, "error", json_string(error->text));
    return out;
}

int cmd_select(int argc, char **argv) {
    tool_common_t common = {.prints_selection = 1};
    problem_args_t args = {0};
    const char *device_text = NULL, *backend = NULL;
    int words;
    const tool_option_t options[] = {
        PROBLEM_OPTIONS(args),
        {"device", "NAME", TOOL_TEXT, &device_text, 0, 0, "cpu, cuda:0, or one that is not present: sm_90"},
        {"backend", "NAME", TOOL_TEXT, &backend, 0, 0,
         "request this backend: it is chosen, or you see every reason why not"},
        TOOL_COMMON_OPTIONS(common),
    };
    const tool_usage_t usage = {
        "select",
        "(--model FILE | PROBLEM) [options]",
        "Says which backend serves each kind of attention layer, and why the others do not. PROBLEM is "
        "key=value words;\n"
        "mask, dtype and scale may be left out.",
        "  attn select --model config.json --device sm_90\n"
        "  attn select role=decoder num_heads=32 num_kv_heads=8 head_size=128 sliding_window=4096\n"
        "  attn select --model config.json --kv-cache-dtype fp8 --backend FLASH_ATTN",
        options,
        sizeof options / sizeof options[0]};
    int status = tool_parse(&usage, argc, argv, &words);
    if (status >= 0) return status;
    tool_model_t model;
    ATTN_INIT(attn_error_t, error);
    ATTN_INIT(attn_device_t, device);
    attn_context_t *context;
    status = problem_args_open(&args, words, argv, &common, device_text, &model, &device, &context);
    if (status != TOOL_OK) return status;

    json_t *kinds = json_array(), *notes = json_array(), *unread = json_array();
    if (!common.json)
        printf("%s on %s%s\n\n", model.type, device_text != NULL ? device_text : device.name,
               device.id < 0 ? " (not present)" : "");
    for (uint32_t i = 0; i < model.num_kinds; i++) {
        attn_selection_t *selection = NULL;
        const int is_unserved = model.kinds[i].is.unserved[0] != '\0';
        int code = is_unserved
                       ? ATTN_E_UNSUPPORTED
                       : attn_select(context, &model.kinds[i].problem, &device, backend, &selection, &error);
        if (code != ATTN_OK && code != ATTN_E_UNSUPPORTED && selection == NULL && status != TOOL_NO)
            status = code == ATTN_E_NOT_FOUND ? TOOL_NO : TOOL_SETUP;
        if (selection == NULL || selection->backend == NULL) status = status == TOOL_OK ? TOOL_NO : status;
        struct phases phases = {.is_named = 0};
        if (code == ATTN_OK && backend == NULL)
            ask_phases(context, &model.kinds[i].problem, &device, &phases);
        if (phases.is_refused) status = TOOL_NO;
        if (common.json)
            json_array_append_new(kinds, kind_json(&model.kinds[i], selection, &phases, &error));
        else
            print_kind(&model.kinds[i], selection, &phases, &error);
        free_phases(&phases);
        attn_selection_free(selection);
    }
    const char *text;
    for (uint32_t i = 0; (text = attn_model_note(model.file, i)) != NULL; i++) {
        json_array_append_new(notes, json_string(text));
        if (!common.json) printf("note: %s\n", text);
    }
    for (uint32_t i = 0; (text = attn_model_not_understood(model.file, i)) != NULL; i++) {
        json_array_append_new(unread, json_string(text));
        if (common.json) continue;
        if (i == 0) term_print(TERM_YELLOW, "not understood, so not in the problems above: ");
        printf("%s%s", text, attn_model_not_understood(model.file, i + 1) != NULL ? ", " : "\n");
    }
    if (common.json)
        tool_print_json(json_pack("{s:s, s:s, s:o, s:o, s:o}", "model", model.type, "device",
                                  device_text != NULL ? device_text : device.name, "kinds", kinds, "notes",
                                  notes, "not_understood", unread));
    else {
        json_decref(kinds);
        json_decref(notes);
        json_decref(unread);
    }
    attn_context_destroy(context);
    tool_model_free(&model);
    return status;
}
