/* SPDX-License-Identifier: Apache-2.0 */
/* bench_work.h: what `attn bench` measures, and one measured row. */
#ifndef ATTN_TOOLS_BENCH_WORK_H
#define ATTN_TOOLS_BENCH_WORK_H

#include <attn/attn.h>

/* A batch of equal requests, or of requests of the lengths in lens. */
typedef struct bench_work {
    const char *suite; /* "cpu", "quick", "gpu", "h200" */
    const char *name;
    const char *problem; /* problem text; mask, dtype and scale may be left out */
    int32_t requests, query_len,
        seq_len; /* query_len 0: each is as long as its keys; seq_len with lens: the longest */
    const int32_t *lens;
    int is_write; /* the cache writer is measured instead of attention */
} bench_work_t;

/* Ends with a NULL name. */
extern const bench_work_t bench_works[];

enum { BENCH_MAX_CEILINGS = 3 };

typedef struct bench_ceiling {
    const char *name; /* "same-order read" */
    double rate;      /* GB/s or GFLOP/s, as the row's; 0: not there */
    double burst;     /* the same in a burst; 0: not measured */
} bench_ceiling_t;

typedef struct bench_row {
    char name[64];
    char problem_text[600];
    attn_problem_t problem;
    int32_t requests, query_len, seq_len; /* as in bench_work_t */
    const int32_t *lens;
    int is_write;
    char wanted[40]; /* backend of this row; "": as for all rows */
    char backend[40];
    char failure[440];    /* "" if it ran */
    int is_memory_bound;  /* its rate is GB/s of cache reads, else GFLOP/s */
    double bytes, flops;  /* of one call */
    double median, least; /* seconds of a call; on a GPU sustained */
    double burst, host;   /* on a GPU: of a burst, and of the host for one launch; 0: not measured */
    int repetitions;
    double rate;                                  /* by the median */
    bench_ceiling_t ceilings[BENCH_MAX_CEILINGS]; /* [0] is the one that counts */
    double read_ceiling;                          /* GB/s, for the roofline; 0: not measured */
    double error; /* largest |got - double| over sampled outputs; negative: not checked */
} bench_row_t;

/* The backend to measure a row with: its own, or the run's; NULL: the selected one. */
static inline const char *bench_backend(const bench_row_t *row, const char *otherwise) {
    return row->wanted[0] != '\0' ? row->wanted : otherwise;
}
/* Keys and query tokens of request r. */
static inline int32_t bench_len(const bench_row_t *row, int64_t r) {
    return row->lens != NULL ? row->lens[r] : row->seq_len;
}
static inline int32_t bench_query(const bench_row_t *row, int64_t r) {
    return row->query_len != 0 ? row->query_len : bench_len(row, r);
}
/* Where those of request r begin; of request `requests`: how many there are. */
static inline int64_t bench_key_start(const bench_row_t *row, int64_t r) {
    int64_t start = row->lens == NULL ? r * row->seq_len : 0;
    for (int64_t i = 0; i < r && row->lens != NULL; i++)
        start += row->lens[i];
    return start;
}
static inline int64_t bench_query_start(const bench_row_t *row, int64_t r) {
    return row->query_len != 0 ? r * row->query_len : bench_key_start(row, r);
}

/* "35.1 GB/s", "1.06 TFLOP/s": a rate of that row. */
void bench_rate_text(const bench_row_t *row, double rate, char *text, size_t size);

#endif
