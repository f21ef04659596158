/* SPDX-License-Identifier: Apache-2.0 */
/* rank_layer.h: one layer as one of several ranks runs it (doc/parallel.md), or as one rank alone with
 * the heads of all of them, over the same numbers. */
#ifndef ATTN_TOOLS_RANK_LAYER_H
#define ATTN_TOOLS_RANK_LAYER_H

#include <attn/attn_comm.h>

/* What all ranks run. */
typedef struct rank_work {
    attn_problem_t
        problem; /* of one rank: its query heads, all KV heads; of dcp_* only cp_interleave counts */
    int32_t world, num_reqs;
    const int32_t *query_lens, *seq_lens;
    uint64_t seed;
    uint32_t join;       /* ATTN_JOIN_* */
    const char *backend; /* NULL: selected */
    double seconds;      /* for repetitions; 0: one call */
} rank_work_t;

/* What one rank says afterwards; plain data, which ranks exchange. */
typedef struct rank_report {
    int32_t code; /* ATTN_OK, or why it failed */
    int32_t repetitions;
    char text[440]; /* of the failure */
    char backend[40];
    uint32_t block_size;
    int32_t exchanges;        /* of one forward */
    int64_t tokens;           /* in its cache */
    uint64_t sent;            /* bytes of one forward, to all others together */
    double forward, exchange; /* medians of one call in seconds; exchange: the part of it, waiting included */
} rank_report_t;

/* Query tokens of all requests. */
int64_t rank_work_tokens(const rank_work_t *work);
/* Elements of a rank's output, [tokens, heads, Dv]. */
size_t rank_work_outputs(const rank_work_t *work);
/* Where the output of a rank's head h is among the heads of one rank alone. */
int64_t rank_work_head(const rank_work_t *work, int rank, int64_t h);

/* Runs rank `rank` and fills *report and output [rank_work_outputs]. host: the ranks' communicator, of host
 * memory, also where the device is another; NULL: alone, with an output of world times as many heads.
 * Returns report->code. [collective] */
int rank_layer_run(attn_context_t *context, const attn_device_t *device, const rank_work_t *work, int rank,
                   const attn_comm_t *host, rank_report_t *report, float *output);

#endif
