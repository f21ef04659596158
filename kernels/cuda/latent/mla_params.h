/* SPDX-License-Identifier: Apache-2.0 */
/* What the MLA kernels see: plain structs, shared by host and device. A row is one head of one query token,
 * numbered token * num_heads + head. */
#ifndef MLA_PARAMS_H
#define MLA_PARAMS_H

#include <stdint.h>

enum { MLA_TILE_ROWS = 64, MLA_TILE_KEYS = 64, MLA_ROPE = 64, MLA_THREADS = 256 };
enum mla_dtype { MLA_F16 = 1, MLA_BF16 = 2 };                              /* as in ptx_sm80.cuh */
enum mla_cache { MLA_CACHE_16 = 0, MLA_CACHE_E4M3 = 1, MLA_CACHE_DS = 2 }; /* semantics 3.5 */
/* Sparse on Hopper: lists of at most so many positions are packed; longer ones are read as they are, and what
 * names no key there costs the time of one. Packed, they would take gigabytes of workspace. */
enum { MLA_PACKED_LIST = 65536 };
enum { MLA_DS_ROW = 656, MLA_DS_SCALES_AT = 512, MLA_DS_ROPE_AT = 528 };

/* At most tile_rows (64 or 128) rows of one request against keys k_begin <= k < k_end. */
typedef struct mla_item {
    int32_t request;
    int32_t first_row, num_rows;
    int32_t base; /* token t sees keys k < base + t + 1 */
    int32_t k_begin, k_end;
    int32_t slot; /* of the partial result; -1: the keys are not cut */
    int32_t reserved;
} mla_item; /* with lengths on the device: mla_live.cuh */

/* Partial results of the same rows, to be merged. */
typedef struct mla_split {
    int32_t first_row, num_rows;
    int32_t slot, pieces;
    int32_t request;
    int32_t reserved[3];
} mla_split;

/* A range of tokens that is absorbed, attended and projected in one go; bounds the workspace. */
typedef struct mla_slice {
    int32_t first_item, num_items;
    int32_t first_split, num_splits;
    int32_t most_rows; /* of an item; where results may not depend on the batch: tile_rows */
} mla_slice;

/* Head of the metadata on the device; the slices follow at 64 bytes. */
/* Of e4m3 weights: value (r, c) times at[r / 128 * row + c / 128 * column]; at NULL: 1. One scale: strides of
 * 0. */
typedef struct mla_weight_scale {
    const float *at;
    int64_t row, column;
} mla_weight_scale;

typedef struct mla_counts {
    int32_t num_tokens, num_slices;
    const int32_t *block_table;
    int64_t block_table_stride, block_table_width;
    /* Lengths on the device, [num_reqs + 1] and [num_reqs]; NULL: what the plan says is exact. */
    const int32_t *starts, *lens;
    int32_t num_reqs, is_full;
    int64_t reserved;
} mla_counts;

typedef struct mla_attend_params {
    const mla_counts *counts;
    const mla_slice *slice;
    const mla_item *items;
    const mla_split *splits;
    const int32_t *parts; /* persistent kernels: items parts[i] .. parts[i + 1] are of part i */
    /* The absorbed queries of the slice, absorbed_rows rows that can be read, absorbed_row elements apart;
     * and [tokens of the slice * num_heads, L], the attended latents, which may lie in their place. */
    const void *absorbed;
    int64_t absorbed_row;
    void *latent;
    const void *query;       /* whose columns nope .. nope + 64 are the rope */
    int64_t q_token, q_head; /* elements */
    const void *cache;
    int64_t cache_page, cache_row, num_pages; /* strides in bytes */
    const float *k_scale;                     /* of an e4m3 cache; NULL: 1 */
    const float *q_scale;                     /* of e4m3 queries, which are read as 16-bit numbers; NULL: 1 */
    const int32_t *topk;                      /* sparse: [T, topk_count]; NULL: dense */
    int64_t topk_row;
    /* sparse on Hopper: [CTAs of the launch, topk_count], the list of a CTA's item without its holes; NULL
     * where topk_count is beyond MLA_PACKED_LIST */
    int32_t *lists;
    float *part_out, *part_lse; /* [slots, tile_rows, L], [slots, tile_rows]; on Hopper mla_part */
    float *lse;                 /* NULL: not wanted */
    int64_t lse_head, lse_token;
    float scale;
    int32_t num_heads, latent_rank, nope, page_size;
    int32_t slice_row0, absorbed_rows; /* first row of the slice */
    int32_t dtype, cache_kind, stages;
    int32_t tile_rows; /* of an item: 64 per CTA that works on it */
    int32_t topk_count;
    /* The launch before this one is no absorption: the kernel waits for all of it before it reads lists and
     * keys. */
    int32_t in_order;
    int32_t reads_lengths; /* items and splits are for bounds (mla_live.cuh) */
} mla_attend_params;

/* c[t][h][:] = a[t][h][:] x b[h], b [k][n] (absorption) or [n][k] (values); strides in elements. */
typedef struct mla_project_params {
    const mla_counts *counts;
    const void *a, *b;
    void *c;
    int64_t a_token, a_head, b_head, b_row, c_token, c_head;
    int32_t token0, tokens, num_heads, n, k;
    int32_t b_is_nk, dtype;
    /* May start while the launch before ends, which makes a and nothing else that is read here. */
    int32_t early;
    /* The absorption of an fp8 query: c gets the e4m3 numbers of a x b / q_scale, and rope [tokens,
     * num_heads, 64] those of columns k .. k + 64 of a, all of them as 16-bit numbers. NULL: c is a x b. */
    void *rope;
    const float *q_scale; /* NULL: 1 */
} mla_project_params;

/* to[t][h][:] = from[t][h][:]; strides in elements. */
typedef struct mla_copy_params {
    const mla_counts *counts; /* their num_tokens, less token0, bounds tokens */
    const void *from;
    void *to;
    int64_t from_token, from_head, to_token, to_head;
    int32_t token0, tokens, num_heads, width;
    int32_t is_e4m3, dtype; /* of from; of to */
} mla_copy_params;

typedef struct mla_write_params {
    const void *kv_c, *k_pe;
    const int64_t *slots;
    const float *k_scale;
    void *cache;
    int64_t num_slots_total, cache_page, cache_row; /* strides in bytes */
    int64_t kv_c_row, k_pe_row;
    int64_t num_tokens;
    int32_t latent_rank, page_size, dtype, cache_kind;
} mla_write_params;

#endif
