/* SPDX-License-Identifier: Apache-2.0 */
/* bench_ranks.h: `attn bench --ranks N`: workloads over ranks beside one rank alone. */
#ifndef ATTN_TOOLS_BENCH_RANKS_H
#define ATTN_TOOLS_BENCH_RANKS_H

#include "measure/bench_work.h"
#include "ranks/run_ranks.h"

/* Measures and prints the rows; a row's problem is one rank's. seconds: for the repetitions of each.
 * Returns an exit code. */
int bench_ranks(attn_context_t *context, const attn_device_t *device, const char *backend,
                const run_ranks_args_t *args, const bench_row_t *rows, int count, double seconds);

#endif
