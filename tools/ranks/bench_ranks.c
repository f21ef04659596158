/* SPDX-License-Identifier: Apache-2.0 */
/* bench_ranks.c: times of every rank, the part of them that communication takes, and one rank with all
 * heads on the same machine. */
#include "ranks/bench_ranks.h"

#include <attn/attn_plugin_util.h>
#include <stdlib.h>

#include "base/describe.h"
#include "base/term.h"

/* One row over ranks: what they said, what one rank alone said. */
typedef struct measured {
    rank_report_t *ranks, alone;
    char failure[440];
} measured_t;

static const char *milliseconds(double seconds, char *text, size_t size) {
    snprintf(text, size, seconds < 1e-3 ? "%.1f us" : "%.2f ms", seconds * (seconds < 1e-3 ? 1e6 : 1e3));
    return text;
}

static double slowest(const measured_t *m, int32_t world) {
    double t = 0;
    for (int32_t r = 0; r < world; r++)
        t = m->ranks[r].forward > t ? m->ranks[r].forward : t;
    return t;
}

static int fail(measured_t *m, const char *text) {
    snprintf(m->failure, sizeof m->failure, "%s", text);
    return TOOL_NO;
}

static int measure(rank_team_t *team, const bench_row_t *row, const char *backend, uint32_t join,
                   double seconds, measured_t *m) {
    const size_t n = (size_t)row->requests;
    if ((m->ranks = calloc((size_t)team->world, sizeof *m->ranks)) == NULL) return fail(m, "out of memory");
    if (row->is_write)
        return fail(m, "the cache write does not communicate: every rank writes its own tokens");
    if (rank_check_problem(&row->problem, team->world) != TOOL_OK)
        return fail(m, "the problem's members and --ranks differ");
    int32_t *query = malloc(n * sizeof *query), *seq = malloc(n * sizeof *seq);
    rank_work_t work = {.problem = row->problem,
                        .world = team->world,
                        .num_reqs = row->requests,
                        .query_lens = query,
                        .seq_lens = seq,
                        .seed = 1,
                        .join = join,
                        .backend = backend,
                        .seconds = seconds};
    for (size_t i = 0; query != NULL && seq != NULL && i < n; i++) {
        query[i] = bench_query(row, (int64_t)i);
        seq[i] = bench_len(row, (int64_t)i);
    }
    float *outputs = query != NULL && seq != NULL
                         ? malloc(rank_work_outputs(&work) * (size_t)team->world * sizeof *outputs + 1)
                         : NULL;
    int status = outputs == NULL ? fail(m, "out of memory") : TOOL_OK;
    int code = status == TOOL_OK ? rank_team_run(team, &work, m->ranks, outputs) : ATTN_OK;
    for (int32_t r = 0; r < team->world && code != ATTN_OK && status == TOOL_OK; r++)
        if (m->ranks[r].code == code) status = fail(m, m->ranks[r].text);
    if (status == TOOL_OK && rank_team_alone(team, &work, &m->alone, outputs) != ATTN_OK)
        status = fail(m, m->alone.text);
    free(outputs), free(query), free(seq);
    return status;
}

static void print_row(const rank_team_t *team, const bench_row_t *row, const measured_t *m, uint32_t join) {
    char shape[256], who[40], text[32], other[32];
    describe_problem(&row->problem, shape, sizeof shape);
    printf("%s: %s on each of %s, joined by %s\n", row->name, shape, rank_team_text(team, who, sizeof who),
           rank_join_name(join));
    if (m->failure[0] != '\0') {
        printf("  failed: %s\n\n", m->failure);
        return;
    }
    printf("\n");
    table_t *table = table_new("rank|backend|>tokens kept|>forward|>of it communication|>share|>sent");
    for (int32_t r = 0; r < team->world; r++) {
        const rank_report_t *k = &m->ranks[r];
        table_cell(table, TERM_PLAIN, "%d", (int)r);
        table_cell(table, TERM_BOLD, "%s", k->backend);
        table_cell(table, TERM_PLAIN, "%lld", (long long)k->tokens);
        table_cell(table, TERM_PLAIN, "%s", milliseconds(k->forward, text, sizeof text));
        table_cell(table, TERM_PLAIN, "%s", milliseconds(k->exchange, text, sizeof text));
        table_cell(table, TERM_PLAIN, "%.0f%%", 100 * k->exchange / k->forward);
        table_cell(table, TERM_DIM, "%llu B", (unsigned long long)k->sent);
    }
    table_print(table, stdout, "  ");
    const double all = slowest(m, team->world);
    printf("\n  one rank alone, with all heads: %s; the slowest of %d: %s, %.2f times as fast\n\n",
           milliseconds(m->alone.forward, text, sizeof text), (int)team->world,
           milliseconds(all, other, sizeof other), m->alone.forward / all);
}

static json_t *row_json(const rank_team_t *team, const bench_row_t *row, const measured_t *m, uint32_t join) {
    json_t *out = json_pack("{s:s, s:o, s:i, s:i, s:i, s:s}", "name", row->name, "problem",
                            describe_problem_json(&row->problem), "requests", row->requests, "query_len",
                            row->query_len, "seq_len", row->seq_len, "join", rank_join_name(join));
    if (m->failure[0] != '\0') {
        json_object_set_new(out, "failure", json_string(m->failure));
        return out;
    }
    json_t *list = json_array();
    for (int32_t r = 0; r < team->world; r++) {
        const rank_report_t *k = &m->ranks[r];
        json_array_append_new(list, json_pack("{s:i, s:s, s:I, s:f, s:f, s:i, s:I, s:i}", "rank", (int)r,
                                              "backend", k->backend, "tokens", (json_int_t)k->tokens,
                                              "median_seconds", k->forward, "communication_seconds",
                                              k->exchange, "exchanges", k->exchanges, "sent_bytes",
                                              (json_int_t)k->sent, "repetitions", k->repetitions));
    }
    json_object_set_new(out, "ranks", list);
    json_object_set_new(out, "one_rank_seconds", json_real(m->alone.forward));
    return out;
}

int bench_ranks(attn_context_t *context, const attn_device_t *device, const char *backend,
                const run_ranks_args_t *args, const bench_row_t *rows, int count, double seconds) {
    rank_team_t team;
    const uint32_t join = rank_join_by_name(args->join);
    if (join == 0) return TOOL_USAGE;
    int status = rank_team_open(&team, args->ranks, args->common, device, context);
    json_t *list = json_array();
    const int is_first = status == TOOL_OK && team.rank == 0;
    if (is_first && !args->common->json) printf("%s, libattn %s\n\n", device->name, attn_version());
    for (int i = 0, is_open = status == TOOL_OK; i < count && is_open; i++) {
        measured_t m = {.failure = ""};
        const int row = measure(&team, &rows[i], bench_backend(&rows[i], backend), join, seconds, &m);
        if (row != TOOL_OK) status = row;
        if (is_first && args->common->json)
            json_array_append_new(list, row_json(&team, &rows[i], &m, join));
        else if (is_first)
            print_row(&team, &rows[i], &m, join);
        free(m.ranks);
    }
    if (is_first && args->common->json)
        tool_print_json(json_pack("{s:s, s:s, s:i, s:s, s:o}", "device", device->name, "version",
                                  attn_version(), "world", (int)team.world, "ranks_are",
                                  team.has_processes ? "processes" : "threads", "rows", list));
    else
        json_decref(list);
    rank_team_close(&team);
    return status;
}
