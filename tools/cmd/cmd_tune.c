/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_tune.c: `attn tune`: measures every backend that serves a model's layers on this machine, by batch and
 * context, and writes the priority lists that follow as an INI file. */
#include <errno.h>
#include <stdlib.h>
#include <strings.h>

#include "base/out_file.h"
#include "base/term.h"
#include "cmd/problem_args.h"
#include "measure/tune.h"
#include "tensor/device_memory.h"

enum { MAX_LIST = 16 };

/* A backend that takes this many times the best at a point is not measured at longer ones. */
static const double hopeless = 20;

typedef struct tune_args {
    problem_args_t problem;
    const char *device, *requests, *context, *output, *state, *backends, *svg;
    int64_t milliseconds, prefill_tokens, decode_percent, threads;
    int no_options;
    tool_list_t vary;
} tune_args_t;

/* "1,8,64" ascending; 0 after printing why not. */
static int read_list(const char *option, const char *text, int32_t *values) {
    int count = 0;
    for (const char *at = text; count == 0 || *at != '\0';) {
        char *end;
        const long value = strtol(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || value < 1 || value > 1 << 24 || count == MAX_LIST ||
            (count > 0 && value <= values[count - 1])) {
            tool_error("--%s is '%s'; expected up to %d ascending numbers, such as 1,8,64", option, text,
                       MAX_LIST);
            return 0;
        }
        values[count++] = (int32_t)value;
        at = end + (*end == ',');
    }
    return count;
}

/* Decode for every batch and context; prefill of one request for every context. */
static int make_points(const tune_args_t *args, tune_t *t) {
    int32_t requests[MAX_LIST] = {0}, contexts[MAX_LIST] = {0};
    const int num_requests = read_list("requests", args->requests, requests);
    const int num_contexts = num_requests != 0 ? read_list("context", args->context, contexts) : 0;
    if (num_contexts == 0) return TOOL_USAGE;
    if ((num_requests + 1) * num_contexts > TUNE_MAX_POINTS) {
        tool_error("--requests and --context make more than %d batches", TUNE_MAX_POINTS);
        return TOOL_USAGE;
    }
    for (int c = 0; c < num_contexts; c++) {
        const int32_t prompt =
            (int32_t)(contexts[c] < args->prefill_tokens ? contexts[c] : args->prefill_tokens);
        t->points[t->num_points++] = (tune_point_t){0, 1, prompt, contexts[c]};
        for (int r = 0; r < num_requests; r++)
            t->points[t->num_points++] = (tune_point_t){1, requests[r], 1, contexts[c]};
    }
    return TOOL_OK;
}

static int is_listed(const char *list, const char *name) {
    for (const char *at = list; at != NULL && *at != '\0';) {
        const size_t length = strcspn(at, ",");
        if (strlen(name) == length && strncasecmp(at, name, length) == 0) return 1;
        at += length + (at[length] == ',');
    }
    return 0;
}

/* Every name of --backends is a backend. */
static int check_backends(const attn_context_t *context, const char *list) {
    for (const char *at = list; at != NULL && *at != '\0';) {
        char name[64];
        ATTN_INIT(attn_error_t, error);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
        if (attn_context_find_backend(context, name, &error) == NULL)
            return tool_library_error("--backends", ATTN_E_NOT_FOUND, &error);
        at += strcspn(at, ",");
        at += *at == ',';
    }
    return TOOL_OK;
}

static int serves_any(const tune_t *t, const attn_backend_t *backend) {
    for (uint32_t k = 0; k < t->model->num_kinds; k++) {
        attn_reason_t reason;
        attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &reason};
        if (t->model->kinds[k].is.unserved[0] == '\0' &&
            attn_backend_validate(backend, &t->model->kinds[k].problem, t->device, &reasons, NULL) ==
                ATTN_OK &&
            reasons.count == 0)
            return 1;
    }
    return 0;
}

/* The plugin of a backend. */
static int plugin_of(const attn_context_t *context, const attn_backend_t *backend, attn_plugin_info_t *info) {
    for (uint32_t i = 0; info->struct_size = sizeof *info, attn_context_plugin(context, i, info) == ATTN_OK;
         i++)
        for (uint32_t b = 0; info->plugin != NULL && b < info->plugin->num_backends; b++)
            if (info->plugin->backends[b] == backend) return 1;
    return 0;
}

static int add_candidate(tune_t *t, const tool_common_t *common, const attn_plugin_info_t *info,
                         const char *backend, const char *setting) {
    tool_common_t with = *common;
    if (t->num_candidates == TUNE_MAX_CANDIDATES || with.settings.count + 1 >= TOOL_LIST_MAX) {
        tool_error("more than %d backends and options", TUNE_MAX_CANDIDATES);
        return TOOL_USAGE;
    }
    tune_candidate_t *c = &t->candidates[t->num_candidates];
    snprintf(c->backend, sizeof c->backend, "%s", backend);
    snprintf(c->plugin, sizeof c->plugin, "%s", info->name);
    snprintf(c->identity, sizeof c->identity, "%s %s", info->version, info->build_id);
    snprintf(c->setting, sizeof c->setting, "%s", setting);
    if (setting[0] != '\0') with.settings.items[with.settings.count++] = c->setting;
    const int status = tool_context_open(&with, 0, &c->context);
    if (status == TOOL_OK) t->num_candidates++;
    return status;
}

/* Whether the plugin refuses a value of the option by its name where it opens: other processors' instructions
 * are values, too. Limits are small, since nothing is computed. */
static int is_left_out(tune_t *t, const char *backend, const char *setting, const char *key,
                       const tool_common_t *common) {
    tool_common_t with = *common;
    attn_context_t *context = NULL;
    int is_refused = 0, is_taken = 0;
    if (with.settings.count + 1 >= TOOL_LIST_MAX) return 0;
    with.settings.items[with.settings.count++] = setting;
    if (tool_context_open(&with, 0, &context) != TOOL_OK) return 0;
    for (uint32_t k = 0; k < t->model->num_kinds && !is_refused && !is_taken; k++) {
        attn_problem_t problem = t->model->kinds[k].problem;
        attn_group_t *group = NULL;
        ATTN_INIT(attn_error_t, error);
        problem.max_num_seqs = problem.max_num_batched_tokens = 1;
        const int code = attn_group_open(context, &problem, t->device, backend, &group, NULL, &error);
        attn_group_close(group);
        is_taken = code == ATTN_OK;
        is_refused = !is_taken && strcmp(error.param, key) == 0;
        if (!is_refused || t->num_left_out == TUNE_MAX_CANDIDATES) continue;
        snprintf(t->left_out[t->num_left_out].setting, sizeof t->left_out[0].setting, "%s", setting);
        snprintf(t->left_out[t->num_left_out].why, sizeof t->left_out[0].why, "%.120s", error.text);
        t->num_left_out++;
    }
    attn_context_destroy(context);
    return is_refused;
}

/* The other values of the options that are names (instruction sets, algorithms), and those of --vary. */
static int add_settings(tune_t *t, const tune_args_t *args, const tool_common_t *common,
                        const attn_plugin_info_t *info, const char *backend) {
    char setting[128];
    int status = TOOL_OK;
    for (uint32_t o = 0; !args->no_options && o < info->plugin->num_options; o++) {
        const attn_option_spec_t *spec = &info->plugin->options[o];
        for (const char *at = spec->type == ATTN_OPTION_ENUM ? spec->choices : "";
             *at != '\0' && status == TOOL_OK;) {
            const int length = (int)strcspn(at, " ");
            if ((int)strlen(spec->default_value) != length ||
                strncmp(at, spec->default_value, (size_t)length) != 0) {
                snprintf(setting, sizeof setting, "%s.%s=%.*s", info->name, spec->name, length, at);
                if (!is_left_out(t, backend, setting, spec->name, common))
                    status = add_candidate(t, common, info, backend, setting);
            }
            at += length + (at[length] == ' ');
        }
    }
    for (size_t v = 0; v < args->vary.count && status == TOOL_OK; v++) {
        const char *text = args->vary.items[v], *dot = strchr(text, '.'), *equals = strchr(text, '=');
        if (dot == NULL || equals == NULL || dot > equals || equals[1] == '\0') {
            tool_error("--vary is '%s'; expected PLUGIN.KEY=VALUE,VALUE, as in cpu.num_threads=1,2,4", text);
            return TOOL_USAGE;
        }
        if (strlen(info->name) != (size_t)(dot - text) ||
            strncmp(text, info->name, (size_t)(dot - text)) != 0)
            continue;
        for (const char *at = equals + 1; *at != '\0' && status == TOOL_OK;) {
            const int length = (int)strcspn(at, ",");
            snprintf(setting, sizeof setting, "%.*s=%.*s", (int)(equals - text), text, length, at);
            status = add_candidate(t, common, info, backend, setting);
            at += length + (at[length] == ',');
        }
    }
    return status;
}

static int make_candidates(tune_t *t, const tune_args_t *args, const tool_common_t *common,
                           const attn_context_t *context) {
    const attn_backend_t *backend;
    int status = check_backends(context, args->backends);
    for (uint32_t i = 0; status == TOOL_OK && (backend = attn_context_backend(context, i)) != NULL; i++) {
        attn_plugin_info_t info = {.struct_size = sizeof info};
        const int is_wanted = args->backends != NULL ? is_listed(args->backends, backend->name)
                                                     : strcmp(backend->name, "REFERENCE") != 0;
        if (!is_wanted || !serves_any(t, backend) || !plugin_of(context, backend, &info)) continue;
        status = add_candidate(t, common, &info, backend->name, "");
        if (status == TOOL_OK) status = add_settings(t, args, common, &info, backend->name);
    }
    if (status == TOOL_OK && t->num_candidates == 0) {
        tool_error("no loaded backend serves these layers on %s; attn select says why", t->device->name);
        status = TOOL_NO;
    }
    return status;
}

/* More than rounding: rows are held against double precision, values have magnitude 1. */
static int is_wrong(const attn_problem_t *p, double error) {
    const attn_kv_format_t *format =
        attn_kv_format(p->kv_cache_dtype != 0 ? p->kv_cache_dtype : ATTN_KV_AUTO);
    const int is_small = format != NULL && format->k_bits != 0 && format->k_bits <= 8;
    const double most = is_small ? 0.5 : p->dtype == ATTN_DTYPE_FLOAT32 ? 1e-3 : 5e-2;
    return !(error <= most);
}

static void measure(tune_t *t, const tune_args_t *args, uint32_t kind, int candidate, int point,
                    tune_result_t *r) {
    const tune_point_t *at = &t->points[point];
    const tune_candidate_t *c = &t->candidates[candidate];
    bench_row_t row;
    memset(&row, 0, sizeof row);
    snprintf(row.name, sizeof row.name, "tune");
    row.problem = t->model->kinds[kind].problem;
    row.requests = at->requests, row.seq_len = at->seq_len;
    row.query_len = attn_role_has_cache(row.problem.role) ? at->query_len : at->seq_len;
    bench_options_t options = {
        t->device, c->backend, NULL, (int)args->threads, (double)args->milliseconds * 1e-3, NULL};
    *r = (tune_result_t){.error = -1};
    if (bench_run(c->context, &options, &row) != ATTN_OK) {
        snprintf(r->failure, sizeof r->failure, "%.199s", row.failure[0] != '\0' ? row.failure : "failed");
        return;
    }
    /* other load on the cores only ever adds; a GPU is measured sustained, as it is used */
    r->seconds = t->device->type == kDLCPU ? row.least : row.median;
    r->error = row.error;
}

static double best_so_far(const tune_t *t, uint32_t kind, int point) {
    double best = 0;
    for (int c = 0; c < t->num_candidates; c++) {
        const tune_result_t *r = tune_result(t, kind, c, point);
        if (r->seconds > 0 && !r->is_wrong && (best == 0 || r->seconds < best)) best = r->seconds;
    }
    return best;
}

/* Whether a candidate failed at an earlier point, or was far behind at one of the phase: longer ones are then
 * left out. The first time the result says so. */
static int is_given_up(const tune_t *t, uint32_t kind, int candidate, int point, tune_result_t *result) {
    for (int p = 0; p < point; p++) {
        const tune_result_t *r = tune_result(t, kind, candidate, p);
        if (r->failure[0] != '\0' && (r->seconds == 0 && r->error < 0)) return 1;
        if (t->points[p].is_decode != t->points[point].is_decode) continue;
        if (r->failure[0] != '\0') return 1;
        if (r->seconds == 0 || r->seconds <= hopeless * best_so_far(t, kind, p)) continue;
        snprintf(result->failure, sizeof result->failure, "given up: over %.0f times the best before",
                 hopeless);
        return 1;
    }
    return 0;
}

static int run_all(tune_t *t, const tune_args_t *args, int *num_measured) {
    const int total = (int)t->model->num_kinds * t->num_points * t->num_candidates;
    int status = TOOL_OK, done = 0;
    progress_t progress;
    progress_start(&progress, "tuning");
    for (uint32_t k = 0; k < t->model->num_kinds; k++)
        for (int p = 0; p < t->num_points; p++)
            for (int c = 0; c < t->num_candidates && status == TOOL_OK; c++, done++) {
                tune_result_t *r = tune_result(t, k, c, p);
                const attn_problem_t *problem = &t->model->kinds[k].problem;
                progress_step(&progress, (double)done / total);
                if (!tune_point_fits(problem, &t->points[p]) || t->model->kinds[k].is.unserved[0] != '\0')
                    continue;
                if (problem->max_model_len != 0 && t->points[p].seq_len > problem->max_model_len) continue;
                if (is_given_up(t, k, c, p, r)) continue;
                if (!tune_state_find(t, k, c, p, r)) {
                    measure(t, args, k, c, p, r);
                    status = tune_state_add(t, k, c, p);
                    ++*num_measured;
                }
                r->is_wrong = r->seconds > 0 && r->error >= 0 && is_wrong(problem, r->error);
            }
    progress_end(&progress);
    return status;
}

static void print_results(const tune_t *t) {
    for (uint32_t k = 0; k < t->model->num_kinds; k++) {
        table_t *table = table_new("phase|>requests|>query|>context|backend|option|>time|>of the best");
        for (int p = 0; p < t->num_points; p++)
            for (int c = 0; c < t->num_candidates; c++) {
                const tune_result_t *r = tune_result(t, k, c, p);
                const double best = best_so_far(t, k, p);
                if (r->seconds == 0 && r->failure[0] == '\0') continue;
                table_cell(table, TERM_PLAIN, "%s", t->points[p].is_decode ? "decode" : "prefill");
                table_cell(table, TERM_PLAIN, "%d", t->points[p].requests);
                table_cell(table, TERM_PLAIN, "%d", t->points[p].query_len);
                table_cell(table, TERM_PLAIN, "%d", t->points[p].seq_len);
                table_cell(table, TERM_PLAIN, "%s", t->candidates[c].backend);
                table_cell(table, TERM_DIM, "%s", t->candidates[c].setting);
                if (r->seconds > 0)
                    table_cell(table, TERM_PLAIN, "%.1f us", r->seconds * 1e6);
                else
                    table_cell(table, TERM_DIM, "-");
                if (r->is_wrong)
                    table_cell(table, TERM_RED, "wrong by %.1e", r->error);
                else if (r->seconds > 0)
                    table_cell(table, r->seconds == best ? TERM_GREEN : TERM_PLAIN, "%.2f",
                               r->seconds / best);
                else
                    table_cell(table, TERM_DIM, "-");
                if (r->failure[0] != '\0') table_note(table, "    %s", r->failure);
            }
        term_print(TERM_BOLD, "%s", t->model->kinds[k].is.name);
        printf("  (%u layers)\n", t->model->kinds[k].is.num_layers);
        table_print(table, stdout, "  ");
        printf("\n");
    }
    for (uint32_t role = 1; role < ATTN_ROLE_COUNT_; role++)
        tune_pair_print(t, role);
    for (int i = 0; i < t->num_left_out; i++)
        printf("%s%s%s", i == 0 ? "not of this machine or build: " : ", ", t->left_out[i].setting,
               i + 1 == t->num_left_out ? "\n\n" : "");
}

/* Prints the conclusions, or writes them to --output; draws --svg. */
static int conclude(tune_t *t, const tune_args_t *args, int is_json, int num_measured) {
    tune_pairs(t);
    char *ini = tune_ini(t);
    int status = ini != NULL ? TOOL_OK : TOOL_SETUP;
    if (is_json) {
        json_t *all = tune_conclusions_json(t);
        json_object_set_new(all, "device", json_string(t->device->name));
        json_object_set_new(all, "version", json_string(attn_version()));
        json_object_set_new(all, "measured", json_integer(num_measured));
        json_object_set_new(all, "rows", tune_rows_json(t));
        tool_print_json(all);
    } else {
        print_results(t);
        if (args->output == NULL && ini != NULL) /* the sections; the numbers stand above */
            printf("%s", strstr(ini, "\n[") != NULL ? strstr(ini, "\n[") + 1 : "");
    }
    if (args->output != NULL && ini != NULL) {
        const struct attni_bytes part = {ini, strlen(ini)};
        const int failed = attni_out_file_write(args->output, &part, 1, 0644);
        if (failed != 0) {
            tool_error("--output: %s: %s", args->output, strerror(failed));
            status = TOOL_SETUP;
        } else if (!is_json)
            printf("%s is written: put it into conf.d, or name it in $ATTN_CONFIG\n", args->output);
    }
    if (args->svg != NULL && tune_picture(t, args->svg) != 0) {
        tool_error("--svg: %s: %s", args->svg, strerror(errno));
        status = TOOL_SETUP;
    }
    free(ini);
    return status;
}

int cmd_tune(int argc, char **argv) {
    tool_common_t common = {0};
    tune_args_t args = {.requests = "1,8",
                        .context = "512,4096",
                        .milliseconds = 300,
                        .prefill_tokens = 2048,
                        .decode_percent = 50};
    int words;
    const tool_option_t options[] = {
        PROBLEM_OPTIONS(args.problem),
        {"requests", "LIST", TOOL_TEXT, &args.requests, 0, 0, "requests of a decode batch (1,8)"},
        {"context", "LIST", TOOL_TEXT, &args.context, 0, 0, "tokens of each request (512,4096)"},
        {"prefill", "N", TOOL_INT, &args.prefill_tokens, 1, 1 << 24, "new tokens of a prompt at most (2048)"},
        {"decode-share", "PERCENT", TOOL_INT, &args.decode_percent, 0, 100,
         "how much decode counts beside prefill (50)"},
        {"time", "MS", TOOL_INT, &args.milliseconds, 1, 600000, "milliseconds for each measurement (300)"},
        {"backends", "LIST", TOOL_TEXT, &args.backends, 0, 0, "only these; by default all but REFERENCE"},
        {"no-options", NULL, TOOL_FLAG, &args.no_options, 0, 0, "backends as configured, no other options"},
        {"vary", "PLUGIN.KEY=LIST", TOOL_LIST, &args.vary, 0, 0, "also try these values of an option"},
        {"state", "FILE", TOOL_TEXT, &args.state, 0, 0, "keep measurements there, and go on from it"},
        {"output", "FILE", TOOL_TEXT, &args.output, 0, 0, "write the INI file; otherwise it is printed"},
        {"svg", "FILE", TOOL_TEXT, &args.svg, 0, 0, "write a picture: a bar for each backend and batch"},
        {"device", "NAME", TOOL_TEXT, &args.device, 0, 0, "cpu or cuda:0; by default a GPU if there is one"},
        TOOL_COMMON_OPTIONS(common),
    };
    const tool_usage_t usage = {
        "tune",
        "(--model FILE | PROBLEM) [options]",
        "Measures every backend that serves a model's layers on this machine, decode and prefill, and the\n"
        "options that are a choice of names, and writes the priority lists that follow as an INI file.",
        "  attn tune --model config.json --state tune.json --output /etc/attn/conf.d/50-tuned.ini\n"
        "  attn tune --model config.json --requests 1,32 --context 1024,16384 --decode-share 80",
        options,
        sizeof options / sizeof options[0]};
    int status = tool_parse(&usage, argc, argv, &words), num_measured = 0;
    if (status >= 0) return status;
    if (args.problem.context_parallel > 1) {
        tool_error("--dcp is %lld; attn tune measures one rank alone: leave --dcp away",
                   (long long)args.problem.context_parallel);
        return TOOL_USAGE;
    }
    tool_model_t model;
    tune_t t = {.model = &model, .common = &common, .decode_share = (double)args.decode_percent / 100};
    ATTN_INIT(attn_device_t, device);
    ATTN_INIT(attn_error_t, error);
    attn_context_t *context;
    t.device = &device;
    status = make_points(&args, &t);
    if (status == TOOL_OK)
        status =
            problem_args_open(&args.problem, words, argv, &common, args.device, &model, &device, &context);
    if (status != TOOL_OK) return status;
    const attn_device_kind_t *kind = device_kind_of(&device, &error);
    if (kind == NULL) status = tool_library_error("--device", ATTN_E_DEVICE, &error);
    if (status == TOOL_OK && kind->capability_prefix != NULL)
        snprintf(t.device_section, sizeof t.device_section, "%.40s%d", kind->capability_prefix,
                 (int)device.compute_capability);
    else if (status == TOOL_OK)
        snprintf(t.device_section, sizeof t.device_section, "%.60s", kind->name);
    args.threads = device.num_sms > 0 ? device.num_sms : 1;
    if (status == TOOL_OK) status = make_candidates(&t, &args, &common, context);
    if (status == TOOL_OK && args.state != NULL) status = tune_state_open(&t, args.state);
    if (status == TOOL_OK) {
        t.results = calloc((size_t)model.num_kinds * (size_t)t.num_candidates * (size_t)t.num_points,
                           sizeof *t.results);
        if (t.results == NULL) tool_error("no memory");
        status = t.results != NULL ? run_all(&t, &args, &num_measured) : TOOL_SETUP;
    }
    if (status == TOOL_OK) status = conclude(&t, &args, common.json, num_measured);
    for (int c = 0; c < t.num_candidates; c++)
        attn_context_destroy(t.candidates[c].context);
    attn_context_destroy(context);
    json_decref(t.state);
    free(t.results);
    tool_model_free(&model);
    return status;
}
