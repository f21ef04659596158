/* SPDX-License-Identifier: Apache-2.0 */
/* What a flash kernel is told: plain pointers, element strides and lengths. No ABI type appears here; plugin.c
 * translates. All strides count elements of the tensor they belong to and are 64-bit. */
#ifndef FLASH_PARAMS_H
#define FLASH_PARAMS_H

#include <stdint.h>

enum flash_dtype { FLASH_F16 = 1, FLASH_BF16 = 2, FLASH_E4M3 = 3 };

/* One piece of one sequence's keys for the decode kernel. The kernel cuts the visible keys of `seq` (known exactly
 * only on the device) into `pieces` equal parts and takes number `piece`. slot < 0: the result is final. */
typedef struct flash_item {
    int32_t seq;
    int32_t piece;
    int32_t pieces;
    int32_t slot; /* row block of the partial buffers */
} flash_item;

/* One block of query rows of one sequence for the prefill kernels. */
typedef struct flash_tile {
    int32_t seq;
    int32_t block;
} flash_tile;

/* Where a sequence's partial results lie: count <= 1 means nothing to combine. */
typedef struct flash_split {
    int32_t seq;
    int32_t first_slot;
    int32_t count;
    int32_t reserved;
} flash_split;

/* First bytes of the metadata buffer on the device; the counts are read by the kernels, so that a captured launch
 * serves any later batch that fits the capacities. */
typedef struct flash_counts {
    int32_t num_items;
    int32_t num_splits;
    int32_t num_tiles;
    int32_t max_pieces;
} flash_counts;

typedef struct flash_params {
    const void *q; /* [tokens, num_q_heads, head_size] */
    void *out;     /* [tokens, num_q_heads, head_size_v] */
    float *lse;    /* natural log, may be NULL */
    const void *k; /* cache or contiguous keys */
    const void *v;
    const int32_t *q_start;     /* [num_seqs + 1], rows of q */
    const int32_t *k_start;     /* [num_seqs + 1], rows of contiguous k and v; NULL: paged */
    const int32_t *seq_lens;    /* [num_seqs], NULL: from k_start */
    const int32_t *block_table; /* [num_seqs, block_table_stride] */
    const int32_t *causal_per_seq; /* [num_seqs], may be NULL: `causal` holds for all */
    const float *alibi;            /* [num_q_heads], may be NULL */
    const float *sinks;            /* [num_q_heads], may be NULL */
    const float *k_scale;          /* [1] or [num_kv_heads], NULL: 1 */
    const float *v_scale;
    const flash_counts *counts;
    const flash_item *items;
    const flash_split *splits;
    const flash_tile *tiles;
    float *part_out; /* [slots, max_rows, head_size_v], f32, normalised per piece */
    float *part_lse; /* [slots, max_rows], base 2 */
    int64_t block_table_stride;
    int64_t q_token, q_head;
    int64_t out_token, out_head;
    int64_t k_page, k_token, k_head;
    int64_t v_page, v_token, v_head;
    int64_t lse_token, lse_head;
    int32_t q_dtype, kv_dtype; /* enum flash_dtype */
    int32_t num_seqs, num_q_heads, num_kv_heads, group;
    int32_t head_size, head_size_v;
    int32_t page_size;
    int32_t causal;
    int32_t window_left, window_right; /* keys visible to the left and right of the query, -1: no bound */
    int32_t scale_stride;              /* 0: one k_scale and v_scale, 1: one per KV head */
    int32_t max_rows;                  /* query rows (tokens * num_q_heads) of the longest decode request */
    int32_t seq_offset;                /* added to the list's seq: kernels may serve a part of the batch */
    int32_t num_slots;
    int64_t q_rows;   /* rows of q that exist */
    int64_t kv_rows;  /* rows of contiguous k and v */
    int64_t num_pages; /* pages of the cache */
    float scale;    /* softmax scale, natural units */
    float soft_cap; /* 0: off */
} flash_params;

/* Cache write: one row of K and V per slot. */
typedef struct flash_write_params {
    const void *key, *value; /* [tokens, num_kv_heads, head_size(_v)] */
    void *k_cache, *v_cache;
    const int64_t *slots;
    const float *k_scale, *v_scale; /* NULL: 1 */
    int64_t num_slots_total;        /* pages * page_size; slots outside are skipped */
    int64_t key_token, key_head, value_token, value_head;
    int64_t k_page, k_token, k_head, v_page, v_token, v_head;
    int32_t num_tokens, num_kv_heads, head_size, head_size_v, page_size;
    int32_t dtype, kv_dtype;
    int32_t scale_stride;
} flash_write_params;

/* Merge of two partial results (semantics 6.5). */
typedef struct flash_merge_params {
    const void *prefix, *suffix; /* [tokens, heads, head_size] */
    const float *prefix_lse, *suffix_lse;
    void *out;
    float *lse; /* may be NULL */
    int64_t prefix_token, prefix_head, suffix_token, suffix_head, out_token, out_head;
    int64_t prefix_lse_token, prefix_lse_head, suffix_lse_token, suffix_lse_head, lse_token, lse_head;
    int32_t tokens, heads, head_size, dtype;
} flash_merge_params;

#endif
