/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels around the multi-head form of MLA prefill see, and their launchers. A pass is one set of
 * keys: for every request of the pass some neighbouring tokens of its sequence, gathered from the cache into
 * rows of latents, and projected up to keys and values for some heads at a time. Launchers return a
 * cudaError_t as int. */
#ifndef MLA_PREFILL_PARAMS_H
#define MLA_PREFILL_PARAMS_H

#include "mla_params.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* rows [cu[num_reqs], L + R] of 16-bit elements: token starts[r] + i of request r goes to row cu[r] + i. */
typedef struct mla_gather_params {
    const mla_counts *counts; /* the block table */
    const int32_t *starts, *cu;
    const void *cache;
    int64_t cache_page, cache_row, num_pages; /* strides in bytes */
    const float *k_scale;                     /* of an e4m3 cache; NULL: 1 */
    void *rows;
    int32_t *ticket; /* becomes 0; each launch of attention over these rows leaves it so */
    int32_t num_reqs, first_request, num_rows;
    int32_t latent_rank, page_size, dtype, cache_kind;
} mla_gather_params;
int mla_gather(const mla_gather_params *params, void *stream);

/* Projected keys of the portable attention kernel: the rope part of each row behind the nope part of every
 * head. */
typedef struct mla_spread_params {
    const void *rows; /* [num_rows, L + R] */
    void *keys;       /* [num_rows, num_heads, row elements], written at column `nope` of each head */
    int64_t key_row, key_head;
    int32_t num_rows, num_heads, latent_rank, nope;
} mla_spread_params;
int mla_spread_rope(const mla_spread_params *params, void *stream);

/* out and its LSE merged with the result of one more pass (semantics 6.5); natural logarithms. */
typedef struct mla_merge_params {
    void *out;                   /* [tokens, heads, V], in place */
    const void *part;            /* [tokens, heads, V], dense */
    const float *lse, *part_lse; /* [heads, lse_head ..] */
    float *lse_out;              /* must not be lse; NULL: not wanted */
    int64_t out_token, out_head, lse_head, part_lse_head, lse_out_head, lse_out_token;
    int32_t num_tokens, num_heads, value, dtype;
} mla_merge_params;
int mla_merge(const mla_merge_params *params, void *stream);

#ifdef __cplusplus
}
#endif
#endif
