/* SPDX-License-Identifier: Apache-2.0 */
/* Queries to the peers and partial results from them: what the kernels see, and their launchers. The memory
 * of every rank begins with a peers_control; the regions behind it lie alike on all ranks. */
#ifndef PEERS_PARAMS_H
#define PEERS_PARAMS_H

#include "merge_params.h"

#include <stdint.h>

enum { PEERS_MAX = 8 };

/* Words marked [rank] are written by that rank, the others by the owner. All begin at 0. */
typedef struct peers_control {
    uint64_t failed;            /* bit r: rank r did not come in time; then nothing is waited for or said */
    uint32_t epoch;             /* number of the exchange whose queries are here; from 1, never 0 */
    uint32_t joined;            /* of the one that was joined last */
    uint32_t arrived;           /* blocks of the running kernel that are done with sending */
    uint32_t query[PEERS_MAX];  /* [rank]: its queries of exchange number .. are here */
    uint32_t result[PEERS_MAX]; /* [rank]: its results of exchange number .. are in its memory */
} peers_control;

typedef struct peers_params {
    char *base[PEERS_MAX];                     /* memory of the ranks, as this one reaches it */
    int32_t world, rank, tokens, heads, group; /* group: query heads of a rank per KV head */
    int32_t size;                              /* elements of a row; of queries: units */
    int32_t part, parts, first;                /* of the batch; its first token */
    uint64_t limit_ns;
    uint64_t at, lse_at, places_at;   /* the queries, or the results, bytes from base */
    uint64_t packed_at, packed_bytes; /* [rank]: room for a packed message of that rank, and how large */
    int64_t columns;                  /* of the LSE */
    /* queries: */
    const void *from;              /* NULL: none, but the others do not wait */
    int64_t from_token, from_head; /* strides, in units */
    int32_t unit;                  /* bytes copied at once: 16 or 2 */
    /* results: */
    int32_t partial, type; /* merge_type: F32, F16 or BF16 */
    void *output;          /* NULL: the others are served, and that is all */
    float *lse;            /* NULL: not wanted */
    const float *sinks;
    int64_t token, head, lse_head, lse_token, sink;
    int32_t is_aligned; /* output: eight neighbours can be stored at once */
    int32_t lanes;      /* threads of a row, a power of two */
} peers_params;

#ifdef __cplusplus
extern "C" {
#endif
/* A cudaError_t as int. */
int peers_query_run(const peers_params *params, void *stream);
int peers_join_run(const peers_params *params, void *stream);
#ifdef __cplusplus
}
#endif
#endif
