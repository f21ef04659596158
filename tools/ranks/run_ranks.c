/* SPDX-License-Identifier: Apache-2.0 */
/* run_ranks.c: a random case over ranks. One rank with all heads and the whole cache computes it too,
 * and REFERENCE in double; every rank's outputs are held against both. */
#include "ranks/run_ranks.h"

#include <attn/attn_plugin_util.h>
#include <math.h>
#include <stdlib.h>

#include "base/describe.h"
#include "base/layer_sizes.h"
#include "base/term.h"
#include "run/run_layer.h"

static const char *const join_names[] = {NULL, "all_to_all", "reduce_scatter"};

uint32_t rank_join_by_name(const char *name) {
    for (uint32_t i = ATTN_JOIN_ALL_TO_ALL; i <= ATTN_JOIN_REDUCE_SCATTER; i++)
        if (name == NULL || strcmp(name, join_names[i]) == 0) return i;
    tool_error("--join is '%s'; expected all_to_all or reduce_scatter", name);
    return 0;
}
const char *rank_join_name(uint32_t join) {
    return join_names[join];
}

const char *rank_problem_text(const char *problem, int64_t ranks, char *text, size_t size) {
    char added[40] = "";
    if (strstr(problem, "dcp_world_size=") == NULL)
        snprintf(added, sizeof added, " dcp_world_size=%lld", (long long)ranks);
    if ((size_t)snprintf(text, size, "%s%s", problem, added) < size) return text;
    tool_error("--problem: the problem has over %zu characters", size - sizeof added);
    return NULL;
}

int rank_check_problem(const attn_problem_t *p, int64_t ranks) {
    if (p->dcp_world_size > 1 && p->dcp_world_size != (uint64_t)ranks)
        tool_error(
            "--ranks is %lld and the problem says dcp_world_size=%u; they must be equal, or leave the latter "
            "away",
            (long long)ranks, p->dcp_world_size);
    else if (p->dcp_rank != 0)
        tool_error("the problem says dcp_rank=%u; --ranks runs every rank: leave it away", p->dcp_rank);
    else if (p->out_dtype != 0 && p->out_dtype != ATTN_DTYPE_FLOAT32 && p->out_dtype != ATTN_DTYPE_FLOAT16 &&
             p->out_dtype != ATTN_DTYPE_BFLOAT16)
        tool_error("the problem says out_dtype=%s; --ranks compares float32, float16 and bfloat16",
                   attn_dtype_name(p->out_dtype));
    else
        return TOOL_OK;
    return TOOL_USAGE;
}

/* One rank's outputs against the same heads of one rank alone. */
static run_difference_t compare(const rank_work_t *w, int rank, const float *got, const float *alone,
                                double tol, float *want) {
    const layer_sizes_t z = layer_sizes(&w->problem);
    const int64_t tokens = rank_work_tokens(w), all = z.heads * w->world;
    const size_t count = rank_work_outputs(w);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < z.heads; h++)
            memcpy(want + (t * z.heads + h) * z.output,
                   alone + (t * all + rank_work_head(w, rank, h)) * z.output,
                   (size_t)z.output * sizeof *want);
    run_difference_t d = run_compare(got, want, count, tol, tol);
    for (size_t i = 0; i < count; i++)
        if (isnan(got[i])) {
            d.is_close = 0;
            d.max_abs = INFINITY;
        }
    return d;
}

static void cell(table_t *table, const run_difference_t *d) {
    table_cell(table, d->is_close ? TERM_GREEN : TERM_RED, "%.1e %s", d->max_abs,
               d->is_close ? "ok" : "WRONG");
}

/* What the ranks said, and how far each is from one rank (first) and from double (second). */
static void print_report(const rank_team_t *team, const rank_work_t *w, const rank_report_t *reports,
                         const run_difference_t *first, const run_difference_t *second) {
    char shape[256], who[40];
    describe_problem(&w->problem, shape, sizeof shape);
    printf("%s on each of %s, %d request%s, joined by %s\n\n", shape, rank_team_text(team, who, sizeof who),
           (int)w->num_reqs, w->num_reqs == 1 ? "" : "s", rank_join_name(w->join));
    table_t *table = table_new("rank|backend|>tokens kept|>sent|difference from one rank|error to reference");
    for (int32_t r = 0; r < w->world; r++) {
        table_cell(table, TERM_PLAIN, "%d", (int)r);
        table_cell(table, TERM_BOLD, "%s", reports[r].backend);
        table_cell(table, TERM_PLAIN, "%lld", (long long)reports[r].tokens);
        table_cell(table, TERM_PLAIN, "%llu B", (unsigned long long)reports[r].sent);
        cell(table, &first[r]);
        cell(table, &second[r]);
    }
    table_print(table, stdout, "  ");
}

static json_t *difference_json(const run_difference_t *d) {
    return json_pack("{s:f, s:b}", "max_abs", isfinite(d->max_abs) ? d->max_abs : 1e300, "ok", d->is_close);
}
static json_t *report_json(const rank_team_t *team, const rank_work_t *w, const rank_report_t *reports,
                           const run_difference_t *first, const run_difference_t *second) {
    json_t *list = json_array();
    for (int32_t r = 0; r < w->world; r++)
        json_array_append_new(list, json_pack("{s:i, s:s, s:I, s:I, s:o, s:o}", "rank", (int)r, "backend",
                                              reports[r].backend, "tokens", (json_int_t)reports[r].tokens,
                                              "sent_bytes", (json_int_t)reports[r].sent,
                                              "difference_from_one_rank", difference_json(&first[r]),
                                              "error_to_reference", difference_json(&second[r])));
    return json_pack("{s:o, s:i, s:s, s:s, s:o}", "problem", describe_problem_json(&w->problem), "world",
                     (int)w->world, "ranks_are", team->has_processes ? "processes" : "threads", "join",
                     rank_join_name(w->join), "ranks", list);
}

static int run_all(rank_team_t *team, const rank_work_t *w, json_t **made) {
    const size_t count = rank_work_outputs(w), all = count * (size_t)w->world;
    float *outputs = malloc(all * sizeof *outputs), *alone = malloc(all * sizeof *alone),
          *oracle = malloc(all * sizeof *oracle), *want = malloc(count * sizeof *want);
    rank_report_t *reports = calloc((size_t)w->world + 1, sizeof *reports), *one;
    run_difference_t *first = calloc((size_t)w->world * 2, sizeof *first), *second;
    int status = TOOL_OK, code;
    one = reports != NULL ? reports + w->world : NULL;
    second = first != NULL ? first + w->world : NULL;
    if (outputs == NULL || alone == NULL || oracle == NULL || want == NULL || reports == NULL ||
        first == NULL) {
        tool_error("out of memory for %d ranks", (int)w->world);
        status = TOOL_SETUP;
    }
    ATTN_INIT(attn_error_t, error);
    ATTN_INIT(attn_device_t, cpu);
    rank_work_t exact = *w;
    exact.backend = "REFERENCE";
    exact.problem.out_dtype = ATTN_DTYPE_FLOAT32;
    if (status == TOOL_OK && (code = rank_team_run(team, w, reports, outputs)) != ATTN_OK) {
        for (int32_t r = 0; r < w->world; r++)
            if (reports[r].code == code && team->rank == 0) {
                snprintf(error.text, sizeof error.text, "%s", reports[r].text);
                break;
            }
        status = team->rank == 0              ? tool_library_error("", code, &error)
                 : code == ATTN_E_UNSUPPORTED ? TOOL_NO
                                              : TOOL_SETUP;
    }
    if (status == TOOL_OK && rank_team_alone(team, w, one, alone) != ATTN_OK) {
        if (team->rank == 0) tool_error("one rank alone: %s", one->text);
        status = TOOL_SETUP;
    }
    if (status == TOOL_OK) {
        rank_team_t on_cpu = *team;
        on_cpu.device = &cpu;
        if (attn_device_parse("cpu", &cpu, &error) != ATTN_OK ||
            rank_team_alone(&on_cpu, &exact, one, oracle) != ATTN_OK) {
            if (team->rank == 0) tool_error("REFERENCE: %s", one->text);
            status = TOOL_SETUP;
        }
    }
    const double tol = run_tolerance(&w->problem, 0);
    for (int32_t r = 0; r < w->world && status == TOOL_OK && team->rank == 0; r++) {
        first[r] = compare(w, r, outputs + count * (size_t)r, alone, tol, want);
        second[r] = compare(w, r, outputs + count * (size_t)r, oracle, tol, want);
    }
    for (int32_t r = 0; r < w->world && status == TOOL_OK && team->rank == 0; r++)
        if (!first[r].is_close || !second[r].is_close) status = TOOL_NO;
    if ((status == TOOL_OK || status == TOOL_NO) && team->rank == 0 && reports[0].repetitions != 0) {
        if (made != NULL)
            *made = report_json(team, w, reports, first, second);
        else
            print_report(team, w, reports, first, second);
    }
    free(outputs), free(alone), free(oracle), free(want), free(reports), free(first);
    return status;
}

int run_ranks(attn_context_t *context, const attn_device_t *device, const rank_work_t *work,
              const run_ranks_args_t *args, json_t **made) {
    rank_team_t team;
    rank_work_t w = *work;
    int status = rank_check_problem(&w.problem, args->ranks);
    if (status != TOOL_OK) return status;
    if ((w.join = rank_join_by_name(args->join)) == 0) return TOOL_USAGE;
    w.world = (int32_t)args->ranks;
    status = rank_team_open(&team, args->ranks, args->common, device, context);
    if (status == TOOL_OK) status = run_all(&team, &w, made);
    rank_team_close(&team);
    return status;
}
