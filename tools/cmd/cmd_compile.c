/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_compile.c: `attn compile`: for each kind of layer, makes the kernels that opening it would compile,
 * ahead of time and for a device that need not be here, so that the first start of a server finds them in the
 * folder. */
#include "base/describe.h"
#include "cmd/problem_args.h"
#include "base/term.h"
#include "run/run_options.h"

#include <attn/draft/attn_compile.h>
#include <stdlib.h>

typedef struct job {
    const attn_backend_t *backend;
    const attn_compile_extension_t *extension;
    const attn_device_t *device;
    attn_option_value_t options[RUN_MOST_OPTIONS];
    uint32_t num_options;
    int json;
} job_t;

/* One kind: TOOL_OK, or TOOL_NO after saying why. */
static int compile_kind(const job_t *job, const tool_kind_t *kind, json_t *list) {
    attn_reason_t reason;
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &reason};
    attn_compile_report_t report = {.struct_size = sizeof report};
    attn_problem_t problem = kind->problem;
    ATTN_INIT(attn_error_t, error);
    if (attn_role_has_cache(problem.role) && problem.block_size == 0)
        problem.block_size = attn_backend_preferred_block_size(job->backend, 16);
    double start = tool_seconds();
    int code = attn_backend_validate(job->backend, &problem, job->device, &reasons, &error);
    if (code == ATTN_OK && reasons.count != 0) {
        code = ATTN_E_UNSUPPORTED;
        snprintf(error.text, sizeof error.text, "%s", reason.text);
    }
    if (code == ATTN_OK)
        code = job->extension->compile(&problem, job->device, job->options, job->num_options, NULL, &report,
                                       &error);
    double took = tool_seconds() - start;
    json_t *item = json_pack("{s:s, s:b, s:i, s:i, s:I, s:f}", "kind", kind->is.name, "compiled",
                             code == ATTN_OK, "programs", (int)report.num_programs, "cached",
                             (int)report.num_cached, "bytes", (json_int_t)report.bytes, "seconds", took);
    if (code != ATTN_OK) json_object_set_new(item, "error", json_string(error.text));
    json_array_append_new(list, item);
    if (!job->json) {
        char shape[256], bytes[32];
        describe_problem(&kind->problem, shape, sizeof shape);
        describe_bytes((double)report.bytes, bytes, sizeof bytes);
        term_print(TERM_BOLD, "%s", kind->is.name);
        printf("  %s\n    ", shape);
        if (code == ATTN_OK)
            printf("%u program%s, %s, %.2f s%s\n", report.num_programs, report.num_programs == 1 ? "" : "s",
                   bytes, took, report.num_cached == report.num_programs ? ", all there already" : "");
        else
            printf("not compiled: %s\n", error.text);
    }
    return code == ATTN_OK ? TOOL_OK : TOOL_NO;
}

static int prepare(const attn_context_t *context, const char *name, const char *cache_dir, job_t *job) {
    ATTN_INIT(attn_error_t, error);
    attn_plugin_info_t info;
    job->backend = attn_context_find_backend(context, name, &error);
    if (job->backend == NULL) return tool_library_error("--backend", ATTN_E_NOT_FOUND, &error);
    if (ATTN_HAS_OP(job->backend->ops, get_extension))
        job->extension = job->backend->ops->get_extension(NULL, ATTN_COMPILE_EXTENSION);
    if (job->extension == NULL || run_plugin_of(context, job->backend, &info) != 0) {
        tool_error("%s compiles nothing at run time; its kernels are compiled into it", job->backend->name);
        return TOOL_NO;
    }
    job->num_options = run_options_of(context, &info, job->options);
    for (uint32_t i = 0; i < job->num_options; i++) {
        if (strcmp(job->options[i].name, "cache_dir") != 0) continue;
        if (cache_dir != NULL) job->options[i].s = cache_dir;
        if (job->options[i].s[0] == '\0') {
            tool_error(
                "no folder to keep the kernels in; give --cache-dir DIR, or set cache_dir in [option %s]",
                info.name);
            return TOOL_USAGE;
        }
    }
    return TOOL_OK;
}

int cmd_compile(int argc, char **argv) {
    tool_common_t common = {0};
    problem_args_t args = {0};
    const char *device_text = NULL, *backend = "TRITON_ATTN", *cache_dir = NULL;
    int words;
    const tool_option_t options[] = {
        PROBLEM_OPTIONS(args),
        {"device", "NAME", TOOL_TEXT, &device_text, 0, 0, "cuda:0, or one that is not present: sm_90"},
        {"backend", "NAME", TOOL_TEXT, &backend, 0, 0, "compile for this backend; otherwise TRITON_ATTN"},
        {"cache-dir", "DIR", TOOL_TEXT, &cache_dir, 0, 0, "folder for the kernels; otherwise as configured"},
        TOOL_COMMON_OPTIONS(common),
    };
    const tool_usage_t usage = {
        "compile",
        "(--model FILE | PROBLEM) [options]",
        "Compiles the kernels of a model's attention layers ahead of time. No GPU is needed. PROBLEM is "
        "key=value words;\n"
        "mask, dtype and scale may be left out.",
        "  attn compile --model config.json --device sm_90 --cache-dir /var/cache/attn\n"
        "  attn compile role=decoder num_heads=32 num_kv_heads=8 head_size=128 --device sm_80",
        options,
        sizeof options / sizeof options[0]};
    int status = tool_parse(&usage, argc, argv, &words);
    if (status >= 0) return status;
    tool_model_t model;
    ATTN_INIT(attn_device_t, device);
    attn_context_t *context;
    status = problem_args_open(&args, words, argv, &common, device_text, &model, &device, &context);
    if (status != TOOL_OK) return status;
    job_t job = {.device = &device, .json = common.json};
    status = prepare(context, backend, cache_dir, &job);
    json_t *list = json_array();
    for (uint32_t i = 0;
         i < model.num_kinds && (status == TOOL_OK || status == TOOL_NO) && job.extension != NULL; i++)
        if (compile_kind(&job, &model.kinds[i], list) != TOOL_OK) status = TOOL_NO;
    if (common.json && job.extension != NULL)
        tool_print_json(json_pack("{s:s, s:s, s:O}", "backend", job.backend->name, "device",
                                  device_text != NULL ? device_text : device.name, "kinds", list));
    json_decref(list);
    attn_context_destroy(context);
    tool_model_free(&model);
    return status;
}
