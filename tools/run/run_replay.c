/* SPDX-License-Identifier: Apache-2.0 */
/* run_replay.c: each call of a file on the asked backend and on REFERENCE. With three outputs (the recorded
 * one, today's, the reference's) the odd one is named. Calls without tensors become random cases with the
 * same problem and lengths. */
#include "run/run_replay.h"

#include <math.h>
#include <stdlib.h>

#include "base/describe.h"
#include "run/replay_call.h"
#include "run/run_case.h"
#include "base/term.h"
#include "base/tool.h"

enum { TO_RECORDED, TO_REFERENCE, RECORDED_TO_REFERENCE, NUM_PAIRS };

/* One comparison: output and, where both sides have it, LSE. */
typedef struct pair {
    int is_there;
    run_difference_t output, lse;
} pair_t;

typedef struct replayed {
    const replay_call_t *call;
    replay_result_t result;
    pair_t pairs[NUM_PAIRS];
    char note[200]; /* why there is no reference */
    const char *verdict;
} replayed_t;

static int pair_is_close(const pair_t *p) {
    return !p->is_there || (p->output.is_close && p->lse.is_close);
}

/* The LSE is float32 on every backend. */
static pair_t make_pair(const attn_problem_t *p, const float *got, const float *want, size_t count,
                        const float *got_lse, const float *want_lse, size_t lse_count) {
    double tol = run_tolerance(p, 0), lse_tol = tol < 1e-3 ? 1e-3 : tol;
    pair_t pair = {.is_there = got != NULL && want != NULL, .output.is_close = 1, .lse.is_close = 1};
    if (p->out_dtype == ATTN_DTYPE_FP8_E4M3 || p->out_dtype == ATTN_DTYPE_FP8_E5M2) tol = 1.5e-1;
    if (pair.is_there) pair.output = run_compare(got, want, count, tol, tol);
    if (pair.is_there && got_lse != NULL && want_lse != NULL)
        pair.lse = run_compare(got_lse, want_lse, lse_count, lse_tol, lse_tol);
    return pair;
}

static void compare(attn_context_t *context, replayed_t *r) {
    const replay_call_t *c = r->call;
    replay_result_t reference;
    const replay_result_t *got = &r->result;
    ATTN_INIT(attn_device_t, cpu);
    ATTN_INIT(attn_error_t, error);
    int code = attn_device_parse("cpu", &cpu, &error);
    memset(&reference, 0, sizeof reference);
    if (code == ATTN_OK) code = replay_call(context, c, "REFERENCE", &cpu, &reference, &error);
    if (code != ATTN_OK) snprintf(r->note, sizeof r->note, "%.190s", error.text);
    float *recorded = NULL, *recorded_lse = NULL;
    if (c->output != NULL) recorded = replay_floats(c->output->data, c->problem.out_dtype, got->output_count);
    if (c->output != NULL && c->lse != NULL && got->lse != NULL)
        recorded_lse = replay_floats(c->lse->data, ATTN_DTYPE_FLOAT32, got->lse_count);
    const attn_problem_t *p = &c->problem;
    const float *want = code == ATTN_OK ? reference.output : NULL;
    r->pairs[TO_RECORDED] =
        make_pair(p, got->output, recorded, got->output_count, got->lse, recorded_lse, got->lse_count);
    r->pairs[TO_REFERENCE] =
        make_pair(p, got->output, want, got->output_count, got->lse, reference.lse, got->lse_count);
    r->pairs[RECORDED_TO_REFERENCE] =
        make_pair(p, recorded, want, got->output_count, recorded_lse, reference.lse, got->lse_count);
    replay_result_free(&reference);
    free(recorded);
    free(recorded_lse);
}

/* Which of the three is the odd one. */
static const char *verdict(const replayed_t *r) {
    int recorded = pair_is_close(&r->pairs[TO_RECORDED]), reference = pair_is_close(&r->pairs[TO_REFERENCE]),
        old = pair_is_close(&r->pairs[RECORDED_TO_REFERENCE]);
    if (recorded && reference && old) return "all agree";
    if (!r->pairs[TO_REFERENCE].is_there) return "the replay differs from the recorded output";
    if (!r->pairs[TO_RECORDED].is_there) return "the replay differs from the reference";
    if (reference && !old) return "the recorded output differs; the replay agrees with the reference";
    if (!reference && old) return "the replay differs; the recorded output agrees with the reference";
    if (!reference && recorded)
        return "the replay reproduces the recorded output; both differ from the reference";
    if (reference) return "the replay differs from the recorded output, though both are near the reference";
    return "all three differ from each other";
}

static void print_pair(const char *what, const pair_t *p) {
    if (!p->is_there) return;
    printf("  %-40s %.1e ", what, p->output.max_abs);
    if (p->output.is_close)
        term_print(TERM_GREEN, "ok");
    else
        term_print(TERM_RED, "WRONG");
    if (p->lse.max_abs > 0 || !p->lse.is_close)
        printf(", LSE %.1e %s", p->lse.max_abs, p->lse.is_close ? "ok" : "WRONG");
    printf("\n");
}

static json_t *pair_json(const pair_t *p) {
    if (!p->is_there) return json_null();
    return json_pack("{s:f, s:f, s:b}", "max_abs", isfinite(p->output.max_abs) ? p->output.max_abs : 1e300,
                     "max_lse", isfinite(p->lse.max_abs) ? p->lse.max_abs : 1e300, "ok", pair_is_close(p));
}

static void report(const replayed_t *r, json_t *list) {
    const replay_call_t *c = r->call;
    const char *name = r->result.backend;
    char shape[256], what[2][100];
    if (list != NULL) {
        json_array_append_new(
            list, json_pack("{s:i, s:s, s:s, s:b, s:i, s:o, s:o, s:o, s:s, s:o, s:f}", "call", c->number,
                            "recorded_backend", c->backend, "backend", name, "returned", c->has_returned,
                            "status", c->status, "to_recorded", pair_json(&r->pairs[TO_RECORDED]),
                            "to_reference", pair_json(&r->pairs[TO_REFERENCE]), "recorded_to_reference",
                            pair_json(&r->pairs[RECORDED_TO_REFERENCE]), "verdict", r->verdict, "problem",
                            describe_problem_json(&c->problem), "seconds", r->result.seconds));
        return;
    }
    describe_problem(&c->problem, shape, sizeof shape);
    printf("call %d: %s, %d request%s, %d tokens; recorded with %s\n", c->number, shape, c->num_reqs,
           c->num_reqs == 1 ? "" : "s", c->num_tokens, c->backend);
    if (!c->has_returned) printf("  the process ended within this call\n");
    if (c->status != ATTN_OK) printf("  this call failed: %s: %s\n", attn_error_name(c->status), c->error);
    snprintf(what[0], sizeof what[0], "%.40s to the recorded output", name);
    snprintf(what[1], sizeof what[1], "%.40s to REFERENCE", name);
    print_pair(what[0], &r->pairs[TO_RECORDED]);
    print_pair(what[1], &r->pairs[TO_REFERENCE]);
    print_pair("the recorded output to REFERENCE", &r->pairs[RECORDED_TO_REFERENCE]);
    if (r->note[0] != '\0') printf("  no reference: %s\n", r->note);
    printf("  %s (%.2f ms)\n", r->verdict, r->result.seconds * 1e3);
}

/* "CPU_ATTN" as recorded if it is loaded here, else NULL: the selection decides. */
static const char *recorded_backend(const attn_context_t *context, const replay_call_t *c) {
    const attn_backend_t *b;
    for (uint32_t i = 0; (b = attn_context_backend(context, i)) != NULL; i++)
        if (strcmp(b->name, c->backend) == 0) return b->name;
    return NULL;
}

static int run_tensors(attn_context_t *context, const replay_call_t *c, const run_options_t *options,
                       json_t *list) {
    replayed_t r = {.call = c};
    ATTN_INIT(attn_error_t, error);
    const char *backend = options->backend != NULL ? options->backend : recorded_backend(context, c);
    int code = replay_call(context, c, backend, options->device, &r.result, &error), status = TOOL_OK;
    if (code != ATTN_OK) {
        char what[32];
        snprintf(what, sizeof what, "call %d", c->number);
        status = tool_library_error(what, code, &error);
        if (code == ATTN_E_NOT_FOUND && options->backend != NULL) status = TOOL_NO;
        if (code == ATTN_E_INVALID || code == ATTN_E_PARSE) status = TOOL_INPUT; /* the batch is the file's */
    } else {
        compare(context, &r);
        r.verdict = verdict(&r);
        report(&r, list);
        for (int i = 0; i < NUM_PAIRS; i++)
            if (!pair_is_close(&r.pairs[i])) status = TOOL_NO;
    }
    replay_result_free(&r.result);
    return status;
}

/* The same problem and lengths with random numbers, as text for run_case. */
static int run_shapes(attn_context_t *context, const replay_call_t *c, const run_options_t *options,
                      json_t *list) {
    char text[8192], problem_text[4096];
    attn_problem_t problem = c->problem;
    problem.num_blocks = 0; /* the case has a cache of its own */
    int n = attn_problem_format(&problem, problem_text, sizeof problem_text);
    if (n <= 0 || (size_t)n >= sizeof problem_text || c->num_reqs < 1 || c->num_reqs > 64) {
        tool_error("call %d has no tensors (%s) and %d requests; random cases have 1 to 64", c->number,
                   c->tensors, c->num_reqs);
        return TOOL_INPUT;
    }
    size_t used = (size_t)snprintf(text, sizeof text, "%s | query_lens=", problem_text);
    for (int i = 0; i < c->num_reqs; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i > 0 ? "," : "",
                                 (int)((int64_t)c->starts[i + 1] - c->starts[i]));
    used += (size_t)snprintf(text + used, sizeof text - used, " seq_lens=");
    for (int i = 0; i < c->num_reqs; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i > 0 ? "," : "", c->lens[i]);
    for (int i = 0; c->causal != NULL && i < c->num_reqs; i++)
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%s%d", i > 0 ? "," : " causal=", c->causal[i]);
    for (int i = 0; c->rswa != NULL && i < c->num_reqs; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d",
                                 i > 0 ? "," : " rswa_prefix_lens=", c->rswa[i]);
    if (c->common_prefix_len > 0)
        snprintf(text + used, sizeof text - used, " common_prefix_len=%d", c->common_prefix_len);
    if (list == NULL)
        printf("call %d: recorded with %s without tensors (%s); random numbers of the same shapes:\n",
               c->number, c->backend, strcmp(c->tensors, "no") == 0 ? "none were requested" : c->tensors);
    run_case_args_t args = {.problem = text};
    run_options_t plain = *options;
    if (plain.backend == NULL) plain.backend = recorded_backend(context, c);
    json_t *made = NULL;
    int status = run_case(context, &plain, &args, list != NULL ? &made : NULL);
    if (made != NULL) {
        json_object_set_new(made, "call", json_integer(c->number));
        json_object_set_new(made, "recorded_backend", json_string(c->backend));
        json_array_append_new(list, made);
    }
    return status;
}

int run_replay(attn_context_t *context, const char *path, const run_options_t *options, int json) {
    st_file_t *file = NULL;
    replay_call_t call = {0};
    json_t *list = json ? json_array() : NULL;
    ATTN_INIT(attn_error_t, error);
    int count = st_open(path, &file, &error), status = TOOL_OK;
    if (count == ATTN_OK) count = replay_file_calls(file, path, &error);
    if (count < 0) {
        tool_error("%s", error.text);
        status = TOOL_INPUT;
    }
    for (int i = 0; i < count; i++) {
        int one;
        if (replay_file_read(file, path, i, &call, &error) != ATTN_OK) {
            tool_error("%s", error.text);
            one = TOOL_INPUT;
        } else {
            one = (call.has_tensors ? run_tensors : run_shapes)(context, &call, options, list);
        }
        replay_call_free(&call);
        if (one > status) status = one;
        if (one > TOOL_NO) break;
    }
    if (json && json_array_size(list) > 0)
        tool_print_json(json_pack("{s:s, s:O}", "file", path, "calls", list));
    json_decref(list);
    st_close(file);
    return status;
}
