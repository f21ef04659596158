/* SPDX-License-Identifier: Apache-2.0 */
/* run_ranks.h: `attn run --problem .. --ranks N`: a case over ranks, held against one rank alone and
 * the oracle. */
#ifndef ATTN_TOOLS_RUN_RANKS_H
#define ATTN_TOOLS_RUN_RANKS_H

#include <jansson.h>

#include "ranks/rank_team.h"

/* "all_to_all", "reduce_scatter"; 0: neither. NULL is the first. */
uint32_t rank_join_by_name(const char *name);
const char *rank_join_name(uint32_t join);
/* The text of a problem over ranks, " dcp_world_size=N" appended where it says nothing of it; NULL
 * after printing that there is no room. */
const char *rank_problem_text(const char *problem, int64_t ranks, char *text, size_t size);
/* What of the problem's text cannot be with --ranks; TOOL_OK or an exit code after printing why. */
int rank_check_problem(const attn_problem_t *problem, int64_t ranks);

typedef struct run_ranks_args {
    int64_t ranks;
    const char *join;
    const tool_common_t *common;
} run_ranks_args_t;

/* Prints the result, or makes *made of it where made is not NULL. Returns an exit code. */
int run_ranks(attn_context_t *context, const attn_device_t *device, const rank_work_t *work,
              const run_ranks_args_t *args, json_t **made);

#endif
