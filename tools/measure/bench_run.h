/* SPDX-License-Identifier: Apache-2.0 */
/* bench_run.h: measures one workload, each repetition beside a ceiling that is measured in the same
 * moment. */
#ifndef ATTN_TOOLS_BENCH_RUN_H
#define ATTN_TOOLS_BENCH_RUN_H

#include "measure/bench_gpu.h"
#include "measure/bench_work.h"

typedef struct bench_options {
    const attn_device_t *device;
    const char *backend;          /* NULL: selected */
    const char *level;            /* instruction set of the CPU ceilings; NULL: the best that this CPU has */
    int threads;                  /* of the CPU ceilings */
    double seconds;               /* for the repetitions of one row; a GPU has its own (bench_gpu.h) */
    const gpu_ceilings_t *limits; /* of a GPU; NULL: not measured */
} bench_options_t;

/* The ceilings of a GPU, which all rows share. */
int bench_limits(const attn_device_t *device, gpu_ceilings_t *limits);

/* The row has its name, problem and lengths. A row that cannot run has its failure filled; the return value
 * is then the ATTN_E_* code. */
int bench_run(attn_context_t *context, const bench_options_t *options, bench_row_t *row);

#endif
