/* SPDX-License-Identifier: Apache-2.0 */
/* rank_team.c: starts ranks, each with a context of its own, and collects what they report. */
#include "ranks/rank_team.h"

#include <attn/attn_comm_threads.h>
#include <stdlib.h>

#include "measure/bench_data.h"
#include "ranks/rank_mpi.h"

enum { LIMIT_MS = 600000 };

struct processes {
    rank_mpi_t *mpi;
    attn_comm_t comm;
};

/* One rank as a thread. */
struct job {
    rank_team_t *team;
    const rank_work_t *work;
    attn_comm_t comm;
    int rank;
    rank_report_t *report;
    float *output;
    pthread_t thread;
};

static int start_processes(rank_team_t *team, int64_t ranks) {
    ATTN_INIT(attn_error_t, error);
    struct processes *all = calloc(1, sizeof *all);
    team->processes = all;
    if (all == NULL) {
        tool_error("out of memory");
        return TOOL_SETUP;
    }
    if (rank_mpi_start(&all->mpi, &all->comm, &error) != ATTN_OK) {
        tool_error("%s", error.text);
        return TOOL_SETUP;
    }
    team->rank = all->comm.rank;
    team->has_processes = 1;
    if (all->comm.world == ranks) return TOOL_OK;
    if (team->rank == 0)
        tool_error("--ranks is %lld, and mpirun started %d processes; they must be equal", (long long)ranks,
                   (int)all->comm.world);
    return TOOL_USAGE;
}

int rank_team_open(rank_team_t *team, int64_t ranks, const tool_common_t *common, const attn_device_t *device,
                   attn_context_t *context) {
    *team = (rank_team_t){.world = (int32_t)ranks, .device = device, .alone = context};
    int status = rank_mpi_processes() > 0 ? start_processes(team, ranks) : TOOL_OK;
    const int here = team->has_processes ? 1 : team->world;
    tool_common_t own = *common;
    char threads[40];
    int is_given = device->type != kDLCPU || attn_context_find_backend(context, "CPU_ATTN", NULL) == NULL;
    for (size_t i = 0; i < own.settings.count; i++)
        is_given |= strncmp(own.settings.items[i], "cpu.num_threads=", 16) == 0;
    if (!is_given && own.settings.count < TOOL_LIST_MAX) {
        const int64_t n = device->num_sms / ranks;
        snprintf(threads, sizeof threads, "cpu.num_threads=%lld", (long long)(n > 0 ? n : 1));
        own.settings.items[own.settings.count++] = threads;
    }
    if (status == TOOL_OK && (team->contexts = calloc((size_t)here, sizeof *team->contexts)) == NULL) {
        tool_error("out of memory");
        status = TOOL_SETUP;
    }
    for (int i = 0; i < here && status == TOOL_OK; i++)
        status = tool_context_open(&own, 0, &team->contexts[i]);
    bench_value(BENCH_QUERY, ATTN_DTYPE_FLOAT32, 0); /* makes the table that all threads read */
    return status;
}

void rank_team_close(rank_team_t *team) {
    struct processes *all = team->processes;
    for (int i = 0; team->contexts != NULL && i < (team->has_processes ? 1 : team->world); i++)
        attn_context_destroy(team->contexts[i]);
    free(team->contexts);
    if (all != NULL) rank_mpi_end(all->mpi);
    free(all);
}

const char *rank_team_text(const rank_team_t *team, char *text, size_t size) {
    snprintf(text, size, "%d %s", (int)team->world, team->has_processes ? "processes" : "threads");
    return text;
}

static void *run_thread(void *user) {
    struct job *j = user;
    if (rank_layer_run(j->team->contexts[j->rank], j->team->device, j->work, j->rank, &j->comm, j->report,
                       j->output) != ATTN_OK)
        attn_comm_threads_leave(&j->comm); /* nobody waits for a rank that failed */
    return NULL;
}

/* The failing rank whose own error it is, rather than that another one is missing. */
static int first_failure(const rank_report_t *reports, int32_t world) {
    int code = ATTN_OK;
    for (int32_t r = 0; r < world; r++) {
        if (reports[r].code != ATTN_OK && code == ATTN_OK) code = reports[r].code;
        if (reports[r].code != ATTN_OK && reports[r].code != ATTN_E_STATE) return reports[r].code;
    }
    return code;
}

static int run_threads(rank_team_t *team, const rank_work_t *work, rank_report_t *reports, float *outputs) {
    const size_t count = rank_work_outputs(work);
    attn_comm_threads_t *all = NULL;
    struct job *jobs = calloc((size_t)team->world, sizeof *jobs);
    ATTN_INIT(attn_error_t, error);
    int code =
        jobs == NULL ? ATTN_E_NO_MEMORY : attn_comm_threads_create(team->world, LIMIT_MS, &all, &error);
    int32_t begun = 0;
    for (; code == ATTN_OK && begun < team->world; begun++) {
        struct job *j = &jobs[begun];
        *j = (struct job){.team = team,
                          .work = work,
                          .comm = attn_comm_threads_rank(all, begun),
                          .rank = begun,
                          .report = &reports[begun],
                          .output = outputs + count * (size_t)begun};
        if (pthread_create(&j->thread, NULL, run_thread, j) == 0) continue;
        attn_comm_threads_leave(&j->comm);
        code = ATTN_E_NO_MEMORY;
        break;
    }
    for (int32_t r = 0; r < begun; r++)
        pthread_join(jobs[r].thread, NULL);
    if (code != ATTN_OK) {
        reports[0].code = code;
        snprintf(reports[0].text, sizeof reports[0].text, "out of memory for %d threads", (int)team->world);
    }
    attn_comm_threads_destroy(all);
    free(jobs);
    return code != ATTN_OK ? code : first_failure(reports, team->world);
}

static int run_processes(rank_team_t *team, const rank_work_t *work, rank_report_t *reports, float *outputs) {
    const struct processes *all = team->processes;
    const size_t count = rank_work_outputs(work);
    float *mine = malloc(count * sizeof *mine + 1);
    rank_report_t report = {.code = ATTN_E_NO_MEMORY};
    ATTN_INIT(attn_error_t, error);
    if (mine != NULL)
        rank_layer_run(team->contexts[0], team->device, work, team->rank, &all->comm, &report, mine);
    int code = all->comm.all_gather(all->comm.ctx, &report, reports, sizeof report, NULL, &error);
    if (code == ATTN_OK)
        code = first_failure(reports, team->world);
    else {
        tool_error("%s", report.code != ATTN_OK ? report.text : error.text);
        rank_mpi_abort(all->mpi, TOOL_SETUP);
    }
    if (code == ATTN_OK)
        code = all->comm.all_gather(all->comm.ctx, mine, outputs, count * sizeof *mine, NULL, &error);
    free(mine);
    return code;
}

int rank_team_run(rank_team_t *team, const rank_work_t *work, rank_report_t *reports, float *outputs) {
    return (team->has_processes ? run_processes : run_threads)(team, work, reports, outputs);
}

int rank_team_alone(rank_team_t *team, const rank_work_t *work, rank_report_t *report, float *output) {
    const struct processes *all = team->processes;
    memset(report, 0, sizeof *report);
    if (team->rank == 0) rank_layer_run(team->alone, team->device, work, 0, NULL, report, output);
    if (!team->has_processes) return report->code;
    rank_mpi_rest(all->mpi);
    rank_report_t *reports = calloc((size_t)team->world, sizeof *reports); /* all come to the same end */
    ATTN_INIT(attn_error_t, error);
    int code = reports == NULL
                   ? ATTN_E_NO_MEMORY
                   : all->comm.all_gather(all->comm.ctx, report, reports, sizeof *report, NULL, &error);
    if (code == ATTN_OK) *report = reports[0];
    free(reports);
    return code == ATTN_OK ? report->code : code;
}
