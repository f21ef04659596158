/* SPDX-License-Identifier: Apache-2.0 */
/* Which requests of a batch take the multi-head form, and the passes over their keys: pure functions of host
 * lengths. Chunks of context come from the host's planning functions (semantics 6.9); the last pass holds the
 * last chunk of each request and its new tokens, so that a batch whose context fits the workspace needs no
 * merge. */
#ifndef MLA_PREFILL_PLAN_H
#define MLA_PREFILL_PLAN_H

#include "kernels/cuda/dense/flash_plan.h"

#include <attn/attn_plan.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MLA_MAX_PASSES = 64 };

typedef struct mla_prefill_sizes {
    int32_t heads, latent, rope, nope, value;
    int32_t block_rows, ctas; /* query rows of a tile, tiles that the device runs at once; 0: any number */
} mla_prefill_sizes;

/* One pass; places are bytes in the prefill part of the metadata. */
typedef struct mla_pass {
    size_t counts_at, starts_at, cu_at,
        tiles_at; /* flash_counts, [reqs], [reqs + 1], flash_tile [num_tiles] */
    int32_t num_rows, num_tiles, keys_per_tile;
    int32_t heads; /* of one launch */
} mla_pass;

typedef struct mla_prefill_limits {
    int32_t max_seqs, max_tokens;
    int32_t max_passes;
    size_t metadata_bytes;    /* capacity of the lists */
    int64_t workspace_tokens; /* context of one pass (semantics 6.9) */
    int64_t kv_elements;      /* capacity of the projected keys and values */
    int32_t part_heads;       /* heads whose result of one pass fits beside the output */
} mla_prefill_limits;

typedef struct mla_prefill_input {
    const attn_plan_table_t *table;    /* of the host: members mla_context_size and mla_context */
    const int32_t *q_start, *seq_lens; /* of the whole batch */
    int32_t num_reqs, first_request;
    int32_t page_size, row_elements; /* row_elements: of the projected keys and values of a token and head */
    int32_t num_heads;
    flash_plan_input tiles; /* block_rows; the rest is filled in */
} mla_prefill_input;

/* Scratch: [max_seqs + 1], [max_seqs], [max_seqs], [capacity of tiles]. */
typedef struct mla_prefill_scratch {
    int32_t *q_start, *lens, *causal;
    flash_plan_tile *tiles;
} mla_prefill_scratch;

/* The first request of the multi-head form, num_reqs if none: those before it are cheaper absorbed, together,
 * than those behind it projected up; counted in multiplications. is_forced: the first request with several
 * query tokens. */
int32_t mla_prefill_border(const int32_t *q_start, const int32_t *seq_lens, int32_t num_reqs,
                           const mla_prefill_sizes *sizes, int is_forced);

/* Tiles that the largest pass can have, and bytes of lists. max_passes is lowered for very large limits. */
int32_t mla_prefill_tile_capacity(const mla_prefill_limits *limits, int32_t block_rows);
void mla_prefill_capacity(mla_prefill_limits *limits, int32_t block_rows);

/* Writes the passes, and their lists to `metadata`. Returns the number of passes; 0 where the batch has more
 * than the limits hold: then everything has to go the absorbed way. *used: bytes of metadata. */
int32_t mla_prefill_build(const mla_prefill_input *in, const mla_prefill_limits *limits,
                          const mla_prefill_scratch *scratch, mla_pass *passes, char *metadata, size_t *used);

#ifdef __cplusplus
}
#endif
#endif
