/* SPDX-License-Identifier: Apache-2.0 */
/* rank_team.h: the ranks of `attn run --ranks` and `attn bench --ranks`: threads of this process, or
 * the processes that mpirun started. */
#ifndef ATTN_TOOLS_RANK_TEAM_H
#define ATTN_TOOLS_RANK_TEAM_H

#include "base/tool.h"
#include "ranks/rank_layer.h"

typedef struct rank_team {
    int32_t world;
    int32_t rank; /* of this process; 0 where ranks are threads */
    int has_processes;
    const attn_device_t *device;
    attn_context_t *alone;     /* the command's own */
    attn_context_t **contexts; /* [world]; with processes one */
    void *processes;           /* rank_mpi.h */
} rank_team_t;

/* One context a rank, with its part of the CPU's threads unless an option of the command says how
 * many. TOOL_OK or an exit code after printing why. */
int rank_team_open(rank_team_t *team, int64_t ranks, const tool_common_t *common, const attn_device_t *device,
                   attn_context_t *context);
void rank_team_close(rank_team_t *team);
/* "4 threads", "4 processes" */
const char *rank_team_text(const rank_team_t *team, char *text, size_t size);

/* Runs the work on every rank. reports [world], outputs of the ranks one
 * after the other. Every process gets all of it. Returns the first failing rank's code, whose
 * report says why. [collective] */
int rank_team_run(rank_team_t *team, const rank_work_t *work, rank_report_t *reports, float *outputs);
/* One rank alone, in the process of rank 0, while the others rest; all get its *report, rank 0 the
 * output. [collective] */
int rank_team_alone(rank_team_t *team, const rank_work_t *work, rank_report_t *report, float *output);

#endif
