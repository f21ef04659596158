/* SPDX-License-Identifier: Apache-2.0 */
/* engine_ranks.h: what engine_parallel.c and engine_nccl.c share: the layer over ranks, slots, tensors. */
#ifndef ENGINE_RANKS_H
#define ENGINE_RANKS_H

#include <attn/attn.h>
#include <attn/attn_comm.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 8, D = 64, BLOCK = 16, PAGES = 16, PROMPT = 100, STEPS = 20, MAX_RANKS = 8 };
enum { INTERLEAVE = 4, LIMIT_MS = 60000 };

static void must_be_ok(int rank, const attn_error_t *error, int code, const char *what) {
    if (code == ATTN_OK) return;
    fprintf(stderr, "rank %d: %s: %s: %s\n", rank, what, attn_error_name(code), error->text);
    exit(1); /* an engine would leave or abort the communicator and stop its other ranks */
}

/* One rank's layer. All heads of the model read one KV head, which every rank has; HEADS / world are
 * its own. */
static attn_problem_t problem_of(int world, int rank, uint32_t dtype) {
    ATTN_INIT(attn_problem_t, p);
    p.role = ATTN_ROLE_DECODER;
    p.mask = ATTN_MASK_CAUSAL;
    p.dtype = dtype;
    p.num_heads = (uint32_t)(HEADS / world);
    p.num_kv_heads = 1;
    p.head_size = D;
    p.scale = 1 / sqrt(D);
    p.block_size = BLOCK;
    p.max_num_seqs = 1;
    p.max_num_batched_tokens = PROMPT;
    p.max_model_len = PROMPT + STEPS;
    p.num_blocks = PAGES;
    if (world > 1) {
        p.dcp_world_size = (uint32_t)world;
        p.dcp_rank = (uint32_t)rank;
        p.cp_interleave = INTERLEAVE;
    }
    return p;
}

/* Slots of the tokens that are this rank's; -1 for the others, which are not written. */
static int slots_of(int world, int rank, const int32_t *starts, const int32_t *lens, const int32_t *table,
                    int64_t *slots, attn_error_t *error) {
    const attn_slot_params_t params = {.struct_size = sizeof params,
                                       .block_size = BLOCK,
                                       .cp_world = world,
                                       .cp_rank = rank,
                                       .cp_interleave = INTERLEAVE,
                                       .num_blocks = PAGES};
    return attn_plan_slot_mapping(&params, starts, lens, 1, table, PAGES, starts[1], slots, error);
}

typedef struct tensor {
    DLTensor dl;
    int64_t shape[4], strides[4];
} tensor_t;
static const DLTensor *dense_on(DLDevice device, tensor_t *t, void *data, DLDataTypeCode code, int bits,
                                int ndim, int64_t a, int64_t b, int64_t c, int64_t d) {
    *t = (tensor_t){.shape = {a, b, c, d}, .strides = {b * c * d, c * d, d, 1}};
    t->dl =
        (DLTensor){.data = data, .device = device, .ndim = ndim, .dtype = {(uint8_t)code, (uint8_t)bits, 1}};
    t->dl.shape = t->shape, t->dl.strides = t->strides;
    return &t->dl;
}

#endif
