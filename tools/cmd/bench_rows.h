/* SPDX-License-Identifier: Apache-2.0 */
/* bench_rows.h: which workloads a command line of `attn bench` asks for. */
#ifndef ATTN_TOOLS_BENCH_ROWS_H
#define ATTN_TOOLS_BENCH_ROWS_H

#include "measure/bench_work.h"
#include "ranks/run_ranks.h"

enum { BENCH_MAX_ROWS = 512 };

typedef struct bench_args {
    const char *suite, *file, *rows, *device, *backend, *problem, *svg, *lens;
    int64_t requests, query_len, seq_len, milliseconds, threads;
    run_ranks_args_t ranks;
} bench_args_t;

/* Fills rows, which has room for BENCH_MAX_ROWS, from --problem, --workloads or a suite. TOOL_OK, or an exit
 * code after printing why. Lengths that rows point to last as long as the program. */
int bench_choose_rows(const bench_args_t *args, const attn_device_t *device, bench_row_t *rows, int *count);

#endif
