/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_plan.c: `attn plan`: the KV cache of a model in a given memory, for one or several cache dtypes. */
#include <stdlib.h>

#include "cmd/cache_plan.h"
#include "base/describe.h"
#include "cmd/problem_args.h"
#include "base/term.h"

#define MAX_DTYPES 8

/* "auto,fp8" -> values; how many, or 0 after printing why. */
static int read_dtypes(const char *text, uint32_t *dtypes) {
    int count = 0;
    for (const char *at = text; *at != '\0';) {
        char name[40];
        size_t length = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        uint32_t kv = kv_dtype_by_name(name);
        if (kv == 0 || count == MAX_DTYPES) {
            tool_error("--kv-cache-dtype has '%s'; expected a list such as auto,fp8,int8_per_token_head",
                       name);
            return 0;
        }
        dtypes[count++] = kv;
        at += length + (at[length] == ',');
    }
    return count;
}

static void print_shapes(const cache_plan_t *plan, table_t *table) {
    for (uint32_t i = 0; i < plan->num_entries; i++) {
        const cache_entry_t *e = &plan->entries[i];
        char page[32];
        if (e->page_bytes != 0)
            describe_bytes((double)e->page_bytes, page, sizeof page);
        else
            snprintf(page, sizeof page, "-");
        table_cell(table, TERM_PLAIN, "%s", e->kind->is.name);
        table_cell(table, TERM_PLAIN, "%u", e->kind->is.num_layers);
        table_cell(table, TERM_PLAIN, "%s", attn_kv_name(e->spec.kv_cache_dtype));
        table_cell(table, TERM_PLAIN, "%s", e->shape_text);
        table_cell(table, TERM_PLAIN, "%s", e->stride_text);
        table_cell(table, TERM_PLAIN, "%s", page);
        table_cell(table, TERM_DIM, "%s", e->backend);
        if (e->indexer_page_bytes == 0) continue;
        describe_bytes((double)e->indexer_page_bytes, page, sizeof page);
        const long long row = e->indexer_page_bytes / e->spec.block_size;
        table_cell(table, TERM_PLAIN, "  keys of its indexer");
        table_cell(table, TERM_PLAIN, "%u", e->kind->is.num_layers);
        table_cell(table, TERM_PLAIN, "fp8 + scale");
        table_cell(table, TERM_PLAIN, "(n, %u, %lld)", e->spec.block_size, row);
        table_cell(table, TERM_PLAIN, "(%lld, %lld, 1)", (long long)e->indexer_page_bytes, row);
        table_cell(table, TERM_PLAIN, "%s", page);
        table_cell(table, TERM_DIM, "its extension");
    }
}

static void print_totals(const cache_plan_t *plan, uint32_t kv_cache_dtype, table_t *table) {
    table_cell(table, TERM_BOLD, "%s", attn_kv_name(kv_cache_dtype));
    if (!plan->is_possible) {
        for (int i = 0; i < 4; i++)
            table_cell(table, TERM_DIM, "-");
        return;
    }
    char sequence[32], token[32];
    describe_bytes((double)plan->bytes_per_sequence, sequence, sizeof sequence);
    describe_bytes(plan->bytes_per_token, token, sizeof token);
    table_cell(table, TERM_PLAIN, "%s", sequence);
    if (plan->is_served) {
        table_cell(table, plan->sequences > 0 ? TERM_GREEN : TERM_RED, "%lld", (long long)plan->sequences);
        table_cell(table, TERM_PLAIN, "%lld tokens", (long long)plan->longest);
    } else {
        table_cell(table, TERM_DIM, "not served");
        table_cell(table, TERM_DIM, "-");
    }
    table_cell(table, TERM_PLAIN, "%s", token);
}

static json_t *plan_json(const cache_plan_t *plan) {
    json_t *entries = json_array();
    for (uint32_t i = 0; i < plan->num_entries; i++) {
        const cache_entry_t *e = &plan->entries[i];
        json_t *shape = json_array(), *strides = json_array();
        for (uint32_t d = 0; d < e->shape.ndim; d++) {
            json_array_append_new(shape, json_integer(e->shape.shape[d]));
            json_array_append_new(strides, json_integer(e->shape.byte_strides[d]));
        }
        json_array_append_new(
            entries,
            json_pack("{s:s, s:s, s:i, s:s, s:i, s:I, s:I, s:s, s:o, s:o, s:I}", "kind", e->kind->is.name,
                      "spec", attn_kv_spec_kind_name(e->spec.kind), "num_layers", (int)e->kind->is.num_layers,
                      "kv_cache_dtype", attn_kv_name(e->spec.kv_cache_dtype), "block_size",
                      (int)e->spec.block_size, "page_bytes", (json_int_t)e->page_bytes, "indexer_page_bytes",
                      (json_int_t)e->indexer_page_bytes, "backend", e->backend, "shape", shape,
                      "byte_strides", strides, "max_blocks_per_sequence", (json_int_t)e->max_blocks));
    }
    const int fits = plan->is_possible && plan->is_served;
    return json_pack(
        "{s:s, s:b, s:b, s:o, s:I, s:o, s:o, s:f}", "kv_cache_dtype", attn_kv_name(plan->kv_cache_dtype),
        "possible", plan->is_possible, "served", plan->is_served, "layers", entries, "bytes_per_sequence",
        (json_int_t)plan->bytes_per_sequence, "tokens_in_one_sequence",
        fits ? json_integer(plan->longest) : json_null(), "sequences",
        fits ? json_integer(plan->sequences) : json_null(), "bytes_per_token", plan->bytes_per_token);
}

int cmd_plan(int argc, char **argv) {
    tool_common_t common = {0};
    problem_args_t args = {0};
    const char *device_text = NULL, *backend = NULL, *dtypes_text = "auto,fp8,int8_per_token_head";
    int64_t memory = 0, max_len = 0, inflight = 8192;
    int words;
    const tool_option_t options[] = {
        MODEL_OPTIONS(args),
        {"memory", "SIZE", TOOL_INT, &memory, 1, INT64_C(1) << 60, "memory for the cache, such as 80GiB"},
        {"kv-cache-dtype", "LIST", TOOL_TEXT, &dtypes_text, 0, 0,
         "cache dtypes to compare (auto,fp8,int8_per_token_head)"},
        {"max-len", "N", TOOL_INT, &max_len, 1, INT32_MAX, "longest sequence; otherwise the model's"},
        {"batched-tokens", "N", TOOL_INT, &inflight, 1, INT32_MAX,
         "maximum of new tokens in one step (8192)"},
        {"device", "NAME", TOOL_TEXT, &device_text, 0, 0, "cpu, cuda:0, or one that is not present: sm_90"},
        {"backend", "NAME", TOOL_TEXT, &backend, 0, 0, "request this backend"},
        TOOL_COMMON_OPTIONS(common),
    };
    const tool_usage_t usage = {
        "plan",
        "(--model FILE | PROBLEM) --memory SIZE [options]",
        "Shows the KV cache of a model: shape, strides and page bytes of each kind of layer, and how many "
        "tokens and\n"
        "sequences fit into the memory. Windows, chunks and latent attention need less; that is counted.",
        "  attn plan --model config.json --memory 80GiB\n"
        "  attn plan --model config.json --memory 40GiB --kv-cache-dtype fp8 --max-len 32k --tp 8",
        options,
        sizeof options / sizeof options[0]};
    int status = tool_parse(&usage, argc, argv, &words);
    if (status >= 0) return status;
    if (memory == 0) {
        tool_error("--memory is missing; give the size of the cache, as in --memory 80GiB");
        return TOOL_USAGE;
    }
    uint32_t dtypes[MAX_DTYPES];
    int num_dtypes = read_dtypes(dtypes_text, dtypes);
    tool_model_t model;
    ATTN_INIT(attn_error_t, error);
    ATTN_INIT(attn_device_t, device);
    attn_context_t *context;
    status = num_dtypes == 0
                 ? TOOL_USAGE
                 : problem_args_open(&args, words, argv, &common, device_text, &model, &device, &context);
    if (status != TOOL_OK) return status;

    const char *device_name = device_text != NULL ? device_text : device.name;
    cache_limits_t limits = {memory, max_len, inflight};
    table_t *shapes = table_new("kind|>layers|cache|shape|byte strides|>page|backend");
    table_t *totals =
        table_new("cache|>one sequence takes|>sequences that fit|>longest single sequence|>per token");
    json_t *list = json_array();
    int64_t used_len = 0;
    for (int i = 0; i < num_dtypes && status == TOOL_OK; i++) {
        cache_plan_t plan;
        model_set_kv_dtype(&model, dtypes[i]);
        int code = cache_plan_make(context, &device, backend, &model, &limits, &plan, &error);
        used_len = plan.max_len;
        if (code != ATTN_OK) {
            status = tool_library_error("", code, &error);
            break;
        }
        print_shapes(&plan, shapes);
        json_array_append_new(list, plan_json(&plan));
        print_totals(&plan, dtypes[i], totals);
    }
    char size[32];
    describe_bytes((double)memory, size, sizeof size);
    if (status == TOOL_OK && common.json) {
        json_t *notes = json_array();
        for (uint32_t i = 0; attn_model_note(model.file, i) != NULL; i++)
            json_array_append_new(notes, json_string(attn_model_note(model.file, i)));
        tool_print_json(json_pack("{s:s, s:s, s:I, s:I, s:O, s:o}", "model", model.type, "device",
                                  device_name, "memory_bytes", (json_int_t)memory, "max_len",
                                  (json_int_t)used_len, "plans", list, "notes", notes));
    }
    if (status == TOOL_OK && !common.json) {
        printf("%s on %s: %s for the cache, sequences of %lld tokens\n\n", model.type, device_name, size,
               (long long)used_len);
        table_print(shapes, stdout, "  ");
        printf("\n");
        table_print(totals, stdout, "  ");
        for (uint32_t i = 0; attn_model_note(model.file, i) != NULL; i++)
            printf("\nnote: %s\n", attn_model_note(model.file, i));
    } else {
        table_free(shapes);
        table_free(totals);
    }
    json_decref(list);
    attn_context_destroy(context);
    tool_model_free(&model);
    return status;
}
