/* SPDX-License-Identifier: Apache-2.0 */
/* run_case.c: reads a case from text and runs it with the conformance kit's engine. */
#include "run_case.h"

#include <math.h>
#include <stdlib.h>

#include "../kit/check_cuda.h"
#include "describe.h"
#include "problem_args.h"
#include "term.h"

/* Value of KEY= in the words of text, or NULL; points into text. */
static const char *word_of(const char *text, const char *key) {
    size_t length = strlen(key);
    for (const char *at = text; text != NULL && (at = strstr(at, key)) != NULL; at++)
        if ((at == text || at[-1] == ' ') && at[length] == '=') return at + length + 1;
    return NULL;
}

/* Numbers up to a space, with any of separators between them, into values; how many. */
static int read_numbers(const char *text, const char *separators, int32_t *values, int capacity) {
    int count = 0;
    while (text != NULL && count < capacity) {
        char *end;
        long n = strtol(text, &end, 10);
        if (end == text) break;
        values[count++] = (int32_t)n;
        if (*end == '\0' || strchr(separators, *end) == NULL) break;
        text = end + 1;
    }
    return count;
}

/* What stands behind the lengths in a line of kit_case_text. */
static void read_details(const char *tail, kit_case_t *c) {
    int32_t values[KIT_MAX_REQS * KIT_MAX_SPANS * 2];
    const char *flags = word_of(tail, "flags"), *prefix = word_of(tail, "common_prefix_len"),
               *amplitude = word_of(tail, "amplitude"), *padded = word_of(tail, "padded_tokens");
    if (flags != NULL) c->flags = (uint32_t)strtoul(flags, NULL, 10);
    if (prefix != NULL) c->common_prefix_len = (int32_t)strtol(prefix, NULL, 10);
    if (padded != NULL) c->padded_tokens = (int32_t)strtol(padded, NULL, 10) & 1023;
    if (amplitude != NULL) c->amplitude = strtod(amplitude, NULL);
    int n = read_numbers(word_of(tail, "causal"), ",", values, c->num_reqs);
    for (int r = 0; r < n; r++)
        c->causal[r] = values[r] != 0;
    n = read_numbers(word_of(tail, "rswa_prefix_lens"), ",", values, c->num_reqs);
    for (int r = 0; r < n; r++)
        c->rswa_prefix_lens[r] = values[r];
    n = read_numbers(word_of(tail, "spans"), "-,;", values, KIT_MAX_REQS * KIT_MAX_SPANS * 2);
    int columns = n / 2 / c->num_reqs;
    if (columns == 0 || columns > KIT_MAX_SPANS || n != columns * c->num_reqs * 2) return;
    c->num_spans = columns;
    for (int i = 0; i < n; i++)
        c->spans[i / 2 / columns][i / 2 % columns][i % 2] = values[i];
}

/* "1,5,33" up to a space into values; how many, or -1 after printing why. */
static int read_lens(const char *what, const char *text, int64_t *values) {
    char copy[1024];
    snprintf(copy, sizeof copy, "%.*s", (int)strcspn(text, " "), text);
    int n = tool_parse_list(copy, INT32_MAX, values, KIT_MAX_REQS);
    if (n < 1) tool_error("%s is '%s'; 1 to %d lengths were wanted, as 1,5,33", what, copy, KIT_MAX_REQS);
    return n;
}

static int read_case(const run_case_args_t *args, const run_options_t *options, kit_case_t *c) {
    char text[4096];
    const char *bar = strchr(args->problem, '|'), *tail = bar != NULL ? bar + 1 : NULL;
    snprintf(text, sizeof text, "%.*s", (int)strcspn(args->problem, "|"), args->problem);
    for (size_t n = strlen(text); n > 0 && text[n - 1] == ' '; n--)
        text[n - 1] = '\0';
    ATTN_INIT(attn_error_t, error);
    ATTN_INIT(attn_problem_t, problem);
    if (problem_from_text(text, &problem, &error) != ATTN_OK) {
        tool_error("--problem: %s", error.text);
        return TOOL_USAGE;
    }
    const char *left_out = problem.static_sink_len != 0 ? "static_sink_len"
                           : problem.dcp_world_size > 1 ? "dcp_world_size"
                           : problem.pcp_world_size > 1 ? "pcp_world_size"
                                                        : NULL;
    if (left_out != NULL) { /* an answer without it would be about another problem */
        tool_error(
            "--problem: %s is not run here, where a backend runs alone: the library and the ranks of an "
            "engine do that around it",
            left_out);
        return TOOL_USAGE;
    }
    int64_t query[KIT_MAX_REQS] = {1, 5, 33}, seq[KIT_MAX_REQS] = {77, 77, 110};
    const char *query_text = args->query_lens != NULL ? args->query_lens : word_of(tail, "query_lens");
    const char *seq_text = args->seq_lens != NULL ? args->seq_lens : word_of(tail, "seq_lens");
    int n = query_text != NULL ? read_lens("--query-lens", query_text, query) : 3, m = n;
    for (int i = 0; query_text != NULL && seq_text == NULL && i < n; i++)
        seq[i] = query[i];
    if (seq_text != NULL) m = read_lens("--seq-lens", seq_text, seq);
    if (n < 0 || m < 0) return TOOL_USAGE;
    if (n != m) {
        tool_error("%d query lengths and %d sequence lengths; give one of each for every request", n, m);
        return TOOL_USAGE;
    }
    const char *seed = word_of(tail, "seed");
    kit_case_start(c, problem.role,
                   args->seed != 0 ? (uint64_t)args->seed
                   : seed != NULL  ? strtoull(seed, NULL, 10)
                                   : 1);
    uint32_t block_size = c->problem.block_size;
    problem.max_num_seqs = c->problem.max_num_seqs;
    problem.max_num_batched_tokens = c->problem.max_num_batched_tokens;
    problem.max_model_len = c->problem.max_model_len;
    c->problem = problem;
    if (c->problem.block_size == 0) c->problem.block_size = block_size;
    if (options->block_size != 0) c->problem.block_size = options->block_size;
    if (options->kv_cache_dtype != 0) c->problem.kv_cache_dtype = options->kv_cache_dtype;
    int64_t tokens = 0;
    for (int i = 0; i < n; i++) {
        if (attn_role_has_cache(problem.role) && problem.role != ATTN_ROLE_ENCODER_DECODER &&
            query[i] > seq[i]) {
            tool_error("request %d has %lld query tokens and a length of %lld; the length includes them", i,
                       (long long)query[i], (long long)seq[i]);
            return TOOL_USAGE;
        }
        if (seq[i] > c->problem.max_model_len) c->problem.max_model_len = seq[i];
        tokens += query[i];
        kit_case_add(c, (int32_t)query[i], (int32_t)seq[i]);
    }
    if (tokens > INT32_MAX / 2) {
        tool_error("%lld query tokens together; at most %d are run", (long long)tokens, INT32_MAX / 2);
        return TOOL_USAGE;
    }
    read_details(tail, c);
    for (int i = 0; i < n; i++)
        if (c->common_prefix_len < 0 || c->common_prefix_len > seq[i] || c->rswa_prefix_lens[i] < 0) {
            tool_error("common_prefix_len and rswa_prefix_lens must be from 0 to the length of a request");
            return TOOL_USAGE;
        }
    if (tokens > c->problem.max_num_batched_tokens) c->problem.max_num_batched_tokens = (uint32_t)tokens;
    return TOOL_OK;
}

static int run_both(const attn_backend_t *backend, const attn_backend_t *reference, const kit_case_t *c,
                    const kit_memory_t *memory, json_t **made) {
    char text[2048];
    kit_inputs_t *in = kit_inputs_make(c);
    if (in == NULL) {
        tool_error("no memory for the inputs of the case");
        return TOOL_SETUP;
    }
    kit_result_t got = {0}, want = {0};
    double started = tool_seconds();
    kit_run(backend, c, in, memory, &got);
    double seconds = tool_seconds() - started;
    kit_run_oracle(reference, c, in, &want);
    kit_difference_t d = kit_compare(c, &got, &want);
    kit_case_text(c, text, sizeof text);
    if (made != NULL) {
        *made = json_pack("{s:s, s:s, s:b, s:f, s:f, s:s, s:f}", "case", text, "backend", backend->name, "ok",
                          d.is_close, "max_abs", isfinite(d.max_abs) ? d.max_abs : 1e300, "max_lse",
                          isfinite(d.max_lse) ? d.max_lse : 1e300, "text", d.text, "seconds", seconds);
    } else {
        printf("%s\n%s: ", text, backend->name);
        if (d.is_close) {
            term_print(TERM_GREEN, "ok");
            printf(", largest error %.2e, of the LSE %.2e\n", d.max_abs, d.max_lse);
        } else {
            term_print(TERM_RED, "WRONG");
            printf(": %s\n", d.text);
        }
    }
    kit_result_free(&got);
    kit_result_free(&want);
    kit_inputs_free(in);
    return d.is_close ? TOOL_OK : TOOL_NO;
}

int run_case(attn_context_t *context, const run_options_t *options, const run_case_args_t *args,
             json_t **made) {
    kit_case_t *c = calloc(1, sizeof *c);
    if (c == NULL) {
        tool_error("no memory");
        return TOOL_SETUP;
    }
    int status = read_case(args, options, c);
    kit_memory_t memory = kit_cpu_memory;
    if (status == TOOL_OK && options->device->type != kDLCPU &&
        cuda_memory_start(&memory, options->device->id) != 0) {
        tool_error("nothing can run on %s; give --device cpu or cuda:N of this machine",
                   options->device->name);
        status = TOOL_SETUP;
    }
    ATTN_INIT(attn_error_t, error);
    attn_selection_t *selection = NULL;
    if (status == TOOL_OK) {
        const attn_backend_t *reference = attn_context_find_backend(context, "REFERENCE", &error);
        int code = reference == NULL ? ATTN_E_NOT_FOUND
                                     : attn_select(context, &c->problem, options->device, options->backend,
                                                   &selection, &error);
        if (code != ATTN_OK)
            status = tool_library_error("", code, &error);
        else
            status = run_both(selection->backend, reference, c, &memory, made);
    }
    attn_selection_free(selection);
    free(c);
    return status;
}
