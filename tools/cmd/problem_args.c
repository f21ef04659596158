/* SPDX-License-Identifier: Apache-2.0 */
/* problem_args.c: models and problems from the command line. */
#include "cmd/problem_args.h"

#include <math.h>
#include <stdlib.h>

uint32_t kv_dtype_by_name(const char *name) {
    for (uint32_t kv = 1; kv < ATTN_KV_COUNT_; kv++) {
        const attn_kv_format_t *f = attn_kv_format(kv);
        if (strcmp(name, f->name) == 0 || (f->alias != NULL && strcmp(name, f->alias) == 0)) return kv;
    }
    return 0;
}

uint32_t float_dtype_by_name(const char *name) {
    for (uint32_t d = ATTN_DTYPE_FLOAT32; d <= ATTN_DTYPE_BFLOAT16; d++)
        if (strcmp(name, attn_dtype_name(d)) == 0) return d;
    return 0;
}

void model_set_kv_dtype(tool_model_t *model, uint32_t kv_cache_dtype) {
    for (uint32_t i = 0; i < model->num_kinds; i++) {
        attn_problem_t *p = &model->kinds[i].problem;
        if (!attn_role_has_cache(p->role)) continue;
        int sparse_fp8 = p->role == ATTN_ROLE_MLA_SPARSE && kv_cache_dtype == ATTN_KV_FP8_E4M3;
        p->kv_cache_dtype = sparse_fp8 ? ATTN_KV_FP8_DS_MLA : kv_cache_dtype;
    }
}

/* Whether text has the word "KEY=". */
static int has_key(const char *text, const char *key) {
    size_t length = strlen(key);
    for (const char *at = text; (at = strstr(at, key)) != NULL; at++)
        if ((at == text || at[-1] == ' ') && at[length] == '=') return 1;
    return 0;
}

int problem_from_text(const char *text, attn_problem_t *problem, attn_error_t *error) {
    char full[4096];
    const char *mask = "";
    if (!has_key(text, "mask")) {
        const char *role = strstr(text, "role=");
        int causal =
            role != NULL && (strncmp(role + 5, "decoder", 7) == 0 || strncmp(role + 5, "mla", 3) == 0);
        mask = causal ? " mask=causal" : " mask=full";
    }
    int n =
        snprintf(full, sizeof full, "%s%s%s%s", text, mask, has_key(text, "dtype") ? "" : " dtype=bfloat16",
                 has_key(text, "scale") ? "" : " scale=1");
    if (n < 0 || (size_t)n >= sizeof full)
        return attn_fail(error, ATTN_E_PARSE, "", "the problem text is too long");
    problem->struct_size = sizeof *problem;
    int code = attn_problem_parse(full, problem, error);
    if (code != ATTN_OK) return code;
    double size = attn_role_is_mla(problem->role)
                      ? (double)problem->qk_nope_head_dim + problem->qk_rope_head_dim
                      : (double)problem->head_size;
    if (!has_key(text, "scale") && size > 0) problem->scale = 1.0 / sqrt(size);
    return attn_problem_check(problem, error);
}

static int read_words(int num_words, char **words, tool_model_t *model) {
    char text[4096] = "";
    size_t used = 0;
    for (int i = 0; i < num_words; i++) {
        int n = snprintf(text + used, sizeof text - used, "%s%s", i != 0 ? " " : "", words[i]);
        if (n < 0 || used + (size_t)n >= sizeof text) {
            tool_error("the problem text is too long");
            return TOOL_USAGE;
        }
        used += (size_t)n;
    }
    static const uint32_t first[] = {0};
    ATTN_INIT(attn_error_t, error);
    tool_kind_t *kind = &model->kinds[0];
    if (problem_from_text(text, &kind->problem, &error) != ATTN_OK) {
        tool_error("%s", error.text);
        return TOOL_USAGE;
    }
    kind->is = (attn_model_kind_t){.struct_size = sizeof kind->is,
                                   .num_layers = 1,
                                   .layers = first,
                                   .layers_text = "0",
                                   .name = attn_role_name(kind->problem.role),
                                   .unserved = ""};
    model->type = "problem";
    model->num_kinds = 1;
    return TOOL_OK;
}

static int read_file(const char *path, tool_model_t *model) {
    ATTN_INIT(attn_error_t, error);
    if (attn_model_load(path, &model->file, &error) != ATTN_OK) {
        tool_error("%s", error.text);
        return TOOL_INPUT;
    }
    model->type = attn_model_type(model->file);
    for (;; model->num_kinds++) {
        tool_kind_t kind = {.is.struct_size = sizeof kind.is, .problem.struct_size = sizeof kind.problem};
        int code = attn_model_kind(model->file, model->num_kinds, &kind.is, &kind.problem, &error);
        if (code == ATTN_E_NOT_FOUND) return TOOL_OK;
        if (code != ATTN_OK || model->num_kinds == TOOL_MAX_KINDS) {
            tool_error("%s: %s", path, code != ATTN_OK ? error.text : "too many kinds of layers");
            return TOOL_INPUT;
        }
        model->kinds[model->num_kinds] = kind;
    }
}

static int apply(const problem_args_t *args, tool_model_t *model) {
    ATTN_INIT(attn_error_t, error);
    uint32_t dtype = 0;
    if (args->dtype != NULL) {
        dtype = float_dtype_by_name(args->dtype);
        if (dtype == 0) {
            tool_error("--dtype is '%s'; expected float32, float16 or bfloat16", args->dtype);
            return TOOL_USAGE;
        }
    }
    if (args->kv_cache_dtype != NULL) {
        uint32_t kv = kv_dtype_by_name(args->kv_cache_dtype);
        const char *names[ATTN_KV_COUNT_];
        for (uint32_t k = 1; k < ATTN_KV_COUNT_; k++)
            names[k - 1] = attn_kv_name(k);
        const char *near = tool_nearest(args->kv_cache_dtype, names, ATTN_KV_COUNT_ - 1);
        if (kv == 0) {
            tool_error("--kv-cache-dtype is '%s'; did you mean %s?", args->kv_cache_dtype,
                       near != NULL ? near : "fp8");
            return TOOL_USAGE;
        }
        model_set_kv_dtype(model, kv);
    }
    for (uint32_t i = 0; i < model->num_kinds; i++) {
        if (dtype != 0) model->kinds[i].problem.dtype = dtype;
        if (args->block_size != 0 && attn_role_has_cache(model->kinds[i].problem.role))
            model->kinds[i].problem.block_size = (uint32_t)args->block_size;
    }
    for (uint32_t i = 0; i < model->num_kinds; i++) {
        tool_kind_t *kind = &model->kinds[i];
        if (args->tensor_parallel > 1 &&
            attn_model_split(&kind->problem, (uint32_t)args->tensor_parallel, &error) != ATTN_OK) {
            tool_error("--tp is %lld; %s: %s", (long long)args->tensor_parallel, kind->is.name, error.text);
            return TOOL_USAGE;
        }
        if (args->context_parallel > 1) kind->problem.dcp_world_size = (uint32_t)args->context_parallel;
        if (attn_problem_check(&kind->problem, &error) != ATTN_OK) {
            tool_error("%s: %s", kind->is.name, error.text);
            return TOOL_USAGE;
        }
    }
    return TOOL_OK;
}

static int read_model(const problem_args_t *args, int num_words, char **words, tool_model_t *model) {
    memset(model, 0, sizeof *model);
    if ((args->model != NULL) == (num_words > 0)) {
        tool_error(args->model != NULL ? "--model and a problem text exclude each other"
                                       : "no model or problem: give --model FILE, or a problem such as "
                                         "role=decoder num_heads=32 head_size=128");
        return TOOL_USAGE;
    }
    int status = args->model != NULL ? read_file(args->model, model) : read_words(num_words, words, model);
    if (status == TOOL_OK) status = apply(args, model);
    if (status != TOOL_OK) tool_model_free(model);
    return status;
}

int problem_args_open(const problem_args_t *args, int num_words, char **words, const tool_common_t *common,
                      const char *device_text, tool_model_t *model, attn_device_t *device,
                      attn_context_t **context) {
    int status = read_model(args, num_words, words, model);
    if (status != TOOL_OK) return status;
    status = tool_place_open(common, device_text, device, context);
    if (status != TOOL_OK) tool_model_free(model);
    return status;
}

void tool_model_free(tool_model_t *model) {
    attn_model_free(model->file);
    model->file = NULL;
    model->num_kinds = 0;
}
