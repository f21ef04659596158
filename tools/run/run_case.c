/* SPDX-License-Identifier: Apache-2.0 */
/* run_case.c: reads a case from text and runs it with the conformance kit's engine. */
#include "run/run_case.h"

#include <math.h>
#include <stdlib.h>

#include "../../kit/case/attn_case.h"
#include "base/describe.h"
#include "cmd/problem_args.h"
#include "run/case_text.h"
#include "run/run_options.h"
#include "base/term.h"
#include "tensor/device_memory.h"

static int read_case(const run_case_args_t *args, const run_options_t *options, kit_case_t *c) {
    char text[4096];
    const char *bar = strchr(args->problem, '|'), *tail = bar != NULL ? bar + 1 : NULL;
    if (snprintf(text, sizeof text, "%.*s", (int)strcspn(args->problem, "|"), args->problem) >=
        (int)sizeof text) {
        tool_error("--problem: the problem has over %zu characters", sizeof text - 1);
        return TOOL_USAGE;
    }
    for (size_t n = strlen(text); n > 0 && text[n - 1] == ' '; n--)
        text[n - 1] = '\0';
    ATTN_INIT(attn_error_t, error);
    ATTN_INIT(attn_problem_t, problem);
    char over[sizeof text + 40];
    const char *words = text;
    if (args->ranks.ranks != 0 &&
        (words = rank_problem_text(text, args->ranks.ranks, over, sizeof over)) == NULL)
        return TOOL_USAGE;
    if (problem_from_text(words, &problem, &error) != ATTN_OK) {
        tool_error("--problem: %s", error.text);
        return TOOL_USAGE;
    }
    if (problem.dcp_world_size > 1 && args->ranks.ranks == 0) {
        /* an answer without it would be about another problem */
        tool_error(
            "--problem: dcp_world_size is context parallelism, which a backend alone does not serve: give "
            "--ranks %u",
            problem.dcp_world_size);
        return TOOL_USAGE;
    }
    if (args->ranks.ranks != 0 && bar != NULL) {
        tool_error("--problem: what attn check prints behind '|' is of one backend alone; leave it away with "
                   "--ranks");
        return TOOL_USAGE;
    }
    if (problem.static_sink_len != 0) {
        tool_error(
            "--problem: static_sink_len is not run here, where a backend runs alone: the library writes the "
            "sink tokens around it");
        return TOOL_USAGE;
    }
    if (case_text_check(tail) != 0) return TOOL_USAGE;
    int64_t query[KIT_MAX_REQS] = {1, 5, 33}, seq[KIT_MAX_REQS] = {77, 77, 110};
    char values[2][1024], number[32], *end = NULL;
    const char *query_text = args->query_lens, *seq_text = args->seq_lens;
    if (query_text == NULL) query_text = case_text_value(tail, "query_lens", values[0], sizeof values[0]);
    if (seq_text == NULL) seq_text = case_text_value(tail, "seq_lens", values[1], sizeof values[1]);
    const int has_cache = attn_role_has_cache(problem.role);
    if (!has_cache && query_text == NULL) query_text = seq_text; /* one length is the other */
    int n = query_text != NULL ? case_text_lens("--query-lens", query_text, query) : 3, m = n;
    for (int i = 0; (query_text != NULL || !has_cache) && seq_text == NULL && i < n; i++)
        seq[i] = query[i];
    if (seq_text != NULL) m = case_text_lens("--seq-lens", seq_text, seq);
    if (n < 0 || m < 0) return TOOL_USAGE;
    if (n != m) {
        tool_error("%d query lengths and %d sequence lengths; give one of each for every request", n, m);
        return TOOL_USAGE;
    }
    const char *seed = case_text_value(tail, "seed", number, sizeof number);
    uint64_t given = seed != NULL ? strtoull(seed, &end, 10) : 1;
    if (seed != NULL && (*seed < '0' || *seed > '9' || *end != '\0')) {
        tool_error("--problem: seed is '%s'; expected a whole number", seed);
        return TOOL_USAGE;
    }
    kit_case_start(c, problem.role, args->seed != 0 ? (uint64_t)args->seed : given);
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
        if (!has_cache && (problem.features & ATTN_F_KEY_LENGTHS) == 0 && query[i] != seq[i]) {
            tool_error(
                "request %d has %lld query tokens and a length of %lld; role %s has no cache, so both are "
                "equal: give --query-lens alone, or features=key_lengths",
                i, (long long)query[i], (long long)seq[i], attn_role_name(problem.role));
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
    if (case_text_details(tail, c) != 0) return TOOL_USAGE;
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
        tool_error("out of memory for the inputs of the case");
        return TOOL_SETUP;
    }
    kit_result_t got = {0}, want = {0};
    double started = tool_seconds();
    kit_run(backend, c, in, memory, &got);
    double seconds = tool_seconds() - started;
    kit_run_oracle(reference, c, in, &want);
    kit_difference_t d = kit_compare(c, &got, &want);
    const int is_itself = backend == reference; /* equal by construction: nothing was shown */
    kit_case_text(c, text, sizeof text);
    if (made != NULL) {
        *made = json_pack("{s:s, s:s, s:b, s:b, s:f, s:f, s:s, s:f}", "case", text, "backend", backend->name,
                          "ok", d.is_close, "compared", !is_itself, "max_abs",
                          isfinite(d.max_abs) ? d.max_abs : 1e300, "max_lse",
                          isfinite(d.max_lse) ? d.max_lse : 1e300, "text", d.text, "seconds", seconds);
    } else {
        printf("%s\n%s: ", text, backend->name);
        if (d.is_close && is_itself) {
            term_print(TERM_YELLOW, "ran");
            printf("; it is the oracle, so nothing was compared: name another backend with --backend\n");
        } else if (d.is_close) {
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

/* Over ranks, whose inputs are made by position: each has its own part of them. */
static int run_over_ranks(attn_context_t *context, const run_options_t *options, const run_case_args_t *args,
                          const kit_case_t *c, json_t **made) {
    rank_work_t work = {.problem = c->problem,
                        .num_reqs = c->num_reqs,
                        .query_lens = c->query_lens,
                        .seq_lens = c->seq_lens,
                        .seed = c->seed,
                        .backend = options->backend};
    return run_ranks(context, options->device, &work, &args->ranks, made);
}

int run_case(attn_context_t *context, const run_options_t *options, const run_case_args_t *args,
             json_t **made) {
    kit_case_t *c = calloc(1, sizeof *c);
    if (c == NULL) {
        tool_error("out of memory");
        return TOOL_SETUP;
    }
    int status = read_case(args, options, c);
    if (status != TOOL_OK || args->ranks.ranks != 0) {
        if (status == TOOL_OK) status = run_over_ranks(context, options, args, c, made);
        free(c);
        return status;
    }
    kit_memory_t memory = kit_cpu_memory;
    ATTN_INIT(attn_error_t, error);
    if (status == TOOL_OK && options->device->type != kDLCPU) {
        const attn_device_kind_t *kind = device_kind_of(options->device, &error);
        if (kind == NULL || kit_memory_of(kind, options->device, &memory) != ATTN_OK)
            status = tool_library_error("--device", ATTN_E_DEVICE, &error);
    }
    attn_selection_t *selection = NULL;
    if (status == TOOL_OK) {
        const attn_backend_t *reference = attn_context_find_backend(context, "REFERENCE", &error);
        int code = reference == NULL ? ATTN_E_NOT_FOUND
                                     : attn_select(context, &c->problem, options->device, options->backend,
                                                   &selection, &error);
        attn_option_value_t values[RUN_MOST_OPTIONS];
        attn_plugin_info_t info;
        if (code == ATTN_OK) {
            memory.options = values;
            if (run_plugin_of(context, selection->backend, &info) == 0)
                memory.num_options = run_options_of(context, &info, values);
            status = run_both(selection->backend, reference, c, &memory, made);
        } else
            status = tool_library_error("", code, &error);
    }
    attn_selection_free(selection);
    kit_memory_end(&memory);
    free(c);
    return status;
}
