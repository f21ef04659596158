/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts over 656-byte rows (semantics 3.5): the tokens of a request select the same rows many times, so the
 * rows of all its pages are widened once, to 16 bits, and the kernel over 16-bit rows attends. Which
 * requests, and the copy. */
#ifndef WIDEN_ROWS_H
#define WIDEN_ROWS_H

#include "../latent/mla_params.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WIDENED_ROW = (512 + MLA_ROPE) * 2 }; /* bytes */

/* A batch and what there is room for: pages of the copy, entries of its table (requests times the pages of
 * the longest). always: whatever it costs. */
typedef struct widen_batch {
    const int32_t *q_start, *seq_lens; /* [num_reqs + 1], [num_reqs] */
    int32_t num_reqs, num_heads, topk, page_size;
    int32_t max_pages, max_entries, always;
} widen_batch;

/* The requests from first_request on, whose first token is first_token; num_pages 0: none. */
typedef struct widened {
    int32_t first_request, first_token, num_reqs;
    int32_t num_pages, longest; /* pages of all and of the longest */
} widened;

widened widen_choose(const widen_batch *batch);
/* starts [num_reqs + 1]: first page of each in the copy. */
void widen_starts(const widen_batch *batch, const widened *w, int32_t *starts);

typedef struct widen_params {
    const mla_counts *counts; /* of the batch */
    mla_counts *made;         /* the same with `table` for a block table, of the requests that are copied */
    const int32_t *starts;    /* [num_reqs + 1] */
    int32_t *table;           /* [num_reqs, longest]: pages of the copy; -1: the block table names none */
    const void *cache;
    void *rows;                                 /* [num_pages, page_size, WIDENED_ROW bytes] */
    int64_t cache_page, cache_row, cache_pages; /* strides in bytes */
    int32_t first_request, num_reqs, longest, page_size;
    int32_t dtype; /* enum mla_dtype */
} widen_params;

/* A cudaError_t as int. page_size: a multiple of 4. */
int widen_rows(const widen_params *params, void *stream);

#ifdef __cplusplus
}
#endif
#endif
