/* SPDX-License-Identifier: Apache-2.0 */
/* What a flash kernel is told: plain pointers, element strides and lengths. No ABI type appears here;
 * plugin.c translates. All strides count elements of the tensor they belong to and are 64-bit. */
#ifndef FLASH_PARAMS_H
#define FLASH_PARAMS_H

#include <stdint.h>

enum flash_dtype { FLASH_F16 = 1, FLASH_BF16 = 2, FLASH_E4M3 = 3, FLASH_NUM_DTYPES = 3 };
/* As dense_instances.h names them. */
#define FLASH_TYPE_f16   FLASH_F16
#define FLASH_TYPE_bf16  FLASH_BF16
#define FLASH_TYPE_e4m3  FLASH_E4M3
#define FLASH_KEYS_rows  0
#define FLASH_KEYS_pages 1

/* One piece of one request's keys for the decode kernel. The kernel cuts the visible keys of `seq` into
 * `pieces` equal parts and takes number `piece`. */
enum { FLASH_SLOT_FINAL = -1 }; /* the only piece: the result is final */
typedef struct flash_item {
    int32_t seq;
    int32_t piece;
    int32_t pieces;
    int32_t slot; /* where the partial result goes, one after the other; or FLASH_SLOT_FINAL */
    /* the request, so that a CTA needs no second trip to memory: first row of q, query tokens, keys,
     * causal */
    int32_t q0, q_len, kv_len, causal;
} flash_item;

/* One block of query rows of one sequence for the prefill kernels. */
typedef struct flash_tile {
    int32_t seq;
    int32_t block;
    int32_t k0;        /* first row of contiguous keys */
    int32_t first_key; /* keys before it are another pass's (cascade) */
    int32_t q0, q_len, kv_len, causal;
} flash_tile;

/* Query rows of a request whose result the merge makes, of so many pieces. */
typedef struct flash_span {
    int32_t q0, q_len, pieces, reserved;
} flash_span;

/* First bytes of the metadata buffer on the device; the counts are read by the kernels, so that a captured
 * launch serves any later batch that fits the capacities. */
typedef struct flash_counts {
    int32_t num_items;
    int32_t num_slots; /* pieces of all requests that were cut */
    int32_t num_tiles;
    int32_t max_pieces;
    const int32_t
        *block_table; /* [num_seqs, block_table_stride] of pages; here, so that replays see a new one */
    int64_t block_table_stride;
} flash_counts;

typedef struct flash_params {
    /* What decode needs before it asks for its first keys comes first, which makes no difference that one
     * could measure (dense-notes.md). */
    const flash_counts *counts;
    const flash_item *items;
    const int32_t *k_start; /* contiguous keys: their first rows; paged: NULL, or the lengths on the device */
    int32_t num_kv_heads, group;
    int32_t seq_offset;                /* added to the list's seq: kernels may serve a part of the batch */
    int32_t page_size;                 /* 0: contiguous keys */
    int32_t first_key;                 /* decode: keys before it are another pass's (cascade) */
    int32_t window_left, window_right; /* keys visible to the left and right of the query, -1: no bound */
    int32_t chunk,
        lookback; /* chunk > 0: keys of the query's chunk and of `lookback` before it, up to the query */
    /* Decode beside prefill of the same batch, the launch before it, which makes nothing that it reads: it
     * starts at once, and ends after it. */
    int32_t beside;
    int32_t q_dtype, kv_dtype, out_dtype; /* enum flash_dtype */
    int32_t head_size, head_size_v;
    const void *q; /* [tokens, num_q_heads, head_size] */
    int64_t q_token, q_head;
    const void *k; /* cache or contiguous keys */
    const void *v;
    int64_t k_page, k_token, k_head;
    int64_t v_page, v_token, v_head;
    int64_t num_pages;      /* pages of the cache */
    const int32_t *q_start; /* [num_seqs + 1], rows of q: decode reads them where lengths are on the device */

    void *out;  /* [tokens, num_q_heads, head_size_v] */
    float *lse; /* natural log, may be NULL */
    const void *
        /* contiguous keys on Hopper: columns k_tail_at .. of every head lie here, one row a key; NULL: in
         * k */
        k_tail;
    const float *alibi;   /* [num_q_heads], may be NULL */
    const float *sinks;   /* [num_q_heads], may be NULL */
    const float *k_scale; /* [1] or [num_kv_heads], NULL: 1 */
    const float *v_scale;
    const float *q_scale; /* of an e4m3 q: [1] or [num_kv_heads], NULL: 1 */
    int32_t *tickets;     /* [slots, ticket_stride]: pieces that are done; 0 before and after a launch */
    const flash_tile *tiles;
    float *part_out; /* [slots, max_rows, head_size_v], f32, normalised per piece */
    float *part_lse; /* [slots, max_rows], base 2 */
    int64_t out_token, out_head;
    int64_t lse_token, lse_head;
    int64_t k_tail_token;
    int32_t k_tail_at; /* a multiple of 64 */
    int32_t num_seqs, num_q_heads;
    int32_t scale_stride; /* 0: one k_scale and v_scale, 1: one per KV head */
    int32_t q_scale_stride;
    int32_t max_rows;      /* query rows (tokens * num_q_heads) of the longest decode request */
    int32_t ticket_stride; /* at least the CTAs of an item */
    int32_t keys_per_tile; /* average of the batch's prefill tiles, for tuning only */
    int32_t listed_items;  /* decode: as many items there are for certain; the counts need not be read */
    /* Decode's launcher sets these, which its CTAs would all compute: 2^32 / group and 2^32 / num_kv_heads,
     * rounded up, for divisions by them; log2 of the page size, -1 where it has none; whether a request's one
     * token sees all keys; whether rows of keys can only be copied by 8 bytes; whether K and V of a token are
     * one row. */
    uint32_t group_inverse, heads_inverse;
    int32_t page_shift, sees_all, by8, is_joined;
    int32_t piece_keys; /* prefill, > 0: a tile's result is that of piece first_key / piece_keys ... */
    int64_t out_piece, lse_piece; /* ... which lie so many elements apart */
    int32_t parts_are_f32;        /* prefill of pages, with piece_keys: out is float */
    int64_t q_rows;               /* rows of q that exist */
    int64_t kv_rows;              /* rows of contiguous k and v */
    float scale;                  /* softmax scale, natural units */
    float soft_cap;               /* 0: off */
} flash_params;

/* Merge of results of the same rows over different keys: the passes of a cascade, or pieces of tiles. */
typedef struct flash_merge_params {
    const void *part;      /* [pieces, num_rows, num_q_heads, head_size_v], float or the type of out */
    const float *part_lse; /* [pieces, num_q_heads, num_rows], natural log */
    void *out;
    float *lse;              /* where the merged value goes, may be NULL */
    const float *sinks;      /* [num_q_heads], may be NULL: counts once, here */
    const flash_span *spans; /* [num_spans] on the device */
    int64_t out_token, out_head, lse_token, lse_head;
    int32_t num_spans; /* 0: `all` is the only one */
    flash_span all;    /* or, of spans, q_len is that of the longest */
    int32_t first_row; /* that parts have */
    int32_t num_rows, num_q_heads, head_size_v;
    int32_t dtype; /* enum flash_dtype */
    int32_t parts_are_f32;
} flash_merge_params;

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

#endif
