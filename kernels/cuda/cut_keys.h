/* SPDX-License-Identifier: Apache-2.0 */
/* Where blocks of query rows are too few for a device and their keys many: at which multiples of one length
 * the keys of all of them are cut, so that they and the merge take least. Free of CUDA and of the ABI. */
#ifndef CUT_KEYS_H
#define CUT_KEYS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CUT_MOST_PIECES = 120, CUT_LEAST_KEYS = 512 };

/* A request: its keys, those at whose multiples it may be cut (no piece but the last ends behind them), its
 * blocks of rows of a head. */
typedef struct cut_request {
    int32_t keys, seen, blocks;
} cut_request;

typedef struct cut_limits {
    double heads;         /* blocks of rows that run for each of a request's */
    int32_t slots;        /* that run at once */
    int32_t grain;        /* pieces are multiples of it */
    int32_t max_entries;  /* pieces of blocks of a head */
    int64_t max_rows;     /* of all pieces; 0: nothing is cut */
    int64_t rows_a_piece; /* rows that each number of a piece has room for, */
    int64_t rows_a_slot;  /* or, > 0, each piece of each request that is cut */
    double start, merge;  /* what a piece and the merge cost, in keys that a block reads meanwhile */
} cut_limits;

/* The length, 0 where cutting does not pay; pieces: of the request that has most; time: what the batch takes,
 * in keys. */
int32_t cut_keys(const cut_request *requests, int32_t num_requests, const cut_limits *limits, int32_t *pieces,
                 double *time);
/* Rows that a plugin sets aside for pieces: four waves of blocks, or all that requests of so many keys and a
 * batch with so many rows of heads can make; 0 where no request has enough keys. */
int64_t cut_rows(int64_t rows_of_wave, int64_t rows, int32_t keys);
/* Pieces of a request with so many keys. */
int32_t cut_pieces_of(int32_t keys, int32_t seen, int32_t piece_keys);

#ifdef __cplusplus
}
#endif
#endif
