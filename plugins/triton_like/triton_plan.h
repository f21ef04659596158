/* SPDX-License-Identifier: Apache-2.0 */
/* Work lists of one batch, on the host: which requests decode in segments, and in which order blocks of
 * prefill run. Free of CUDA and of the ABI. */
#ifndef TRITON_PLAN_H
#define TRITON_PLAN_H

#include "kernels/cuda/cut_keys.h"
#include "triton_params.h"

typedef struct triton_plan_input {
    int group, kv_heads;
    int decode_tokens; /* requests with more query tokens are prefill; 0: all are */
    int decode_rows;   /* rows (of a token and a head of the group) that a CTA of decode takes */
    int slots;         /* CTAs of decode that run at once */
    int least_keys;    /* of a segment */
    int segments;      /* 0: as many as pay */
    int block_rows;    /* of prefill */
    int window;        /* keys that a query sees at most, 0: all */
    int causal;
    int cut_slots; /* CTAs of prefill that run at once; 0: its tiles are never cut */
    int cut_grain; /* keys that pieces of tiles are multiples of */
} triton_plan_input_t;

typedef struct triton_plan_limits {
    int seqs, tokens, keys; /* of the problem; keys: of a request */
    int items, splits, parts,
        tiles,       /* what triton_plan_capacity makes of them; parts: slots of partial results of decode */
        whole_tiles; /* where none is cut, as in captured launches */
    int64_t rows;    /* of heads, that partial results have room for */
    int tickets;     /* of a KV head */
} triton_plan_limits_t;

typedef struct triton_plan {
    triton_item_t *items;
    triton_split_t *splits;
    triton_tile_t *tiles;
    int32_t *tile_keys, *scratch; /* scratch: [limits.seqs] */
    cut_request *cuts;            /* scratch: [limits.seqs] */
    int num_items, num_splits, num_tiles, num_parts;
    int piece_keys; /* of tiles that are cut, 0: none is */
    int cut_rows;   /* rows of a slot of them */
    int num_slots, num_tickets;
    int max_decode_tokens; /* of the requests that decode */
} triton_plan_t;

/* CTAs of decode, of `rows` each, that the tokens of a request take for one KV head. */
static inline int triton_row_blocks(int group, int rows, int tokens) {
    return (tokens * group + rows - 1) / rows;
}
/* Whether a batch's requests take CTAs of wide_rows rows less time than those of decode_rows, of which more
 * read the same keys. */
int triton_plan_is_wide(const triton_plan_input_t *in, int wide_rows, const int32_t *q_start,
                        const int32_t *seq_lens, int num_seqs);
void triton_plan_capacity(const triton_plan_input_t *in, triton_plan_limits_t *limits);
void triton_plan_build(const triton_plan_input_t *in, const triton_plan_limits_t *limits,
                       const int32_t *q_start, const int32_t *seq_lens, int num_seqs, triton_plan_t *plan);

#endif
