/* SPDX-License-Identifier: Apache-2.0 */
/* bench_run.h: measures one workload, each repetition beside a ceiling that is measured in the same moment. */
#ifndef ATTN_TOOLS_BENCH_RUN_H
#define ATTN_TOOLS_BENCH_RUN_H

#include "bench_work.h"

typedef struct bench_options {
    const attn_device_t *device;
    const char *backend; /* NULL: selected */
    const char *level;   /* instruction set of the CPU ceilings; NULL: the best that this CPU has */
    int threads;         /* of the CPU ceilings */
    double seconds;      /* for the repetitions of one row */
} bench_options_t;

/* The row has its name, problem and lengths. A row that cannot run has its failure filled; the return value is then the
 * ATTN_E_* code. */
int bench_run(attn_context_t *context, const bench_options_t *options, bench_row_t *row);

#endif
