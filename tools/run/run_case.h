/* SPDX-License-Identifier: Apache-2.0 */
/* run_case.h: `attn run --problem`: one random case through a backend and the oracle; also replays the lines
 * that `attn check` prints for a failure. */
#ifndef ATTN_TOOLS_RUN_CASE_H
#define ATTN_TOOLS_RUN_CASE_H

#include <jansson.h>

#include "ranks/run_ranks.h"
#include "run/run_layer.h"

typedef struct run_case_args {
    const char *problem;    /* problem text; "| query_lens=.. seq_lens=.. flags=.. seed=.." may follow */
    const char *query_lens; /* "1,5"; NULL: as the text says, else 1,5,33 */
    const char *seq_lens;   /* NULL: likewise, else query_lens and 77 */
    int64_t seed;           /* 0: as the text says, else 1 */
    run_ranks_args_t ranks; /* .ranks 0: a backend alone */
} run_case_args_t;

/* Prints the result, or makes *made of it (NULL where there is none). Returns an exit code. */
int run_case(attn_context_t *context, const run_options_t *options, const run_case_args_t *args,
             json_t **made);

#endif
