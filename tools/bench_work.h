/* SPDX-License-Identifier: Apache-2.0 */
/* bench_work.h: what `attn bench` measures, and one measured row. */
#ifndef ATTN_TOOLS_BENCH_WORK_H
#define ATTN_TOOLS_BENCH_WORK_H

#include <attn/attn.h>

/* A batch of equal requests. */
typedef struct bench_work {
    const char *suite; /* "cpu", "quick", "gpu" */
    const char *name;
    const char *problem; /* problem text; mask, dtype and scale may be left out */
    int32_t requests, query_len, seq_len;
} bench_work_t;

/* Ends with a NULL name. */
extern const bench_work_t bench_works[];

enum { BENCH_MAX_CEILINGS = 3 };

typedef struct bench_ceiling {
    const char *name; /* "same-order read" */
    double rate;      /* GB/s or GFLOP/s, as the row's; 0: not there */
} bench_ceiling_t;

typedef struct bench_row {
    char name[64];
    char problem_text[600];
    attn_problem_t problem;
    int32_t requests, query_len, seq_len;
    char backend[40];
    char failure[440];    /* "" if it ran */
    int is_memory_bound;  /* its rate is GB/s of cache reads, else GFLOP/s */
    double bytes, flops;  /* of one call */
    double median, least; /* seconds of a call */
    int repetitions;
    double rate;                                  /* by the median */
    bench_ceiling_t ceilings[BENCH_MAX_CEILINGS]; /* [0] is the one that counts */
    double read_ceiling;                          /* GB/s, for the roofline; 0: not measured */
    double error; /* largest |got - double| over sampled outputs; negative: not checked */
} bench_row_t;

/* "35.1 GB/s", "1.06 TFLOP/s": a rate of that row. */
void bench_rate_text(const bench_row_t *row, double rate, char *text, size_t size);

#endif
