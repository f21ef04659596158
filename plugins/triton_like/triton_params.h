/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel is told at run time: pointers, element strides, lengths. Everything else is a macro
 * (triton_config.h). Read by the C compiler for the host and by NVRTC for the device, so only fixed-width
 * members. */
#ifndef TRITON_PARAMS_H
#define TRITON_PARAMS_H

#include <stdint.h>

/* One segment of one request for tl_decode. The kernel cuts the keys that the request sees into `pieces`
 * equal parts and takes number `piece`. slot < 0: the result is final, else the row block of the partial
 * buffers. The lengths are here too, so that a kernel need not wait for the item before it asks for them. */
typedef struct triton_item {
    int32_t seq, piece, pieces, slot;
    int32_t q0, q_len, kv_len;
    int32_t keys; /* of the segment: the planner sorts by it */
} triton_item_t;

/* One block of query rows of one request for tl_prefill, or a piece of its keys: those from piece *
 * piece_keys (triton_counts_t) on, as many, the last all that are left. slot < 0: the result is final. */
typedef struct triton_tile {
    int32_t seq, block;
    int32_t slot;          /* of the request's first piece */
    uint8_t piece, pieces; /* of the block */
    uint16_t ticket;       /* of the block */
} triton_tile_t;

/* A request whose segments tl_reduce puts together. */
typedef struct triton_split {
    int32_t seq, first_slot, count, reserved;
} triton_split_t;

/* First bytes of the metadata buffer. The counts and the addresses are read by the kernels, so that a
 * captured launch serves every later batch that is built into the same buffer. */
typedef struct triton_counts {
    int32_t num_items, num_splits, num_tiles, num_spans;
    const int32_t *block_table; /* [num_seqs, table_stride] */
    int64_t table_stride;
    const int32_t *spans;  /* [num_seqs, span_stride] pairs, both ends inclusive */
    const int32_t *prefix; /* [num_seqs] R-SWA prefix lengths */
    int64_t span_stride;   /* int32 elements */
    int64_t num_tokens;
    int64_t piece_keys; /* of tiles that are cut */
} triton_counts_t;

typedef struct triton_params {
    const void *q; /* [tokens, Hq, D] */
    void *out;     /* [tokens, Hq, Dv] */
    float *lse;    /* natural log, may be null */
    const void *k; /* cache, or the keys of the call */
    const void *v;
    const float *alibi, *sinks;               /* [Hq] */
    const float *q_scale, *k_scale, *v_scale; /* [1] or [Hkv], null: 1 */
    const float *out_scale;                   /* [1], null: 1 */
    const float *qq_bias;                     /* [tokens, qq_width] */
    const float *rel_bias;                    /* [Hq, 2 * rel_max + 1] */
    const triton_counts_t *counts;
    const int32_t
        *q_start; /* [num_seqs + 1]; it and seq_lens: the metadata's, or the batch's on the device */
    const int32_t *k_start;  /* [num_seqs], first rows of contiguous keys; null: as q_start */
    const int32_t *seq_lens; /* [num_seqs] */
    const int32_t *causal;   /* [num_seqs] */
    const triton_item_t *items;
    const triton_split_t *splits;
    const triton_tile_t *tiles;
    float *part_out; /* [slot][row][Dv], row = token * Hq + head */
    float *part_lse; /* [slot][row], base 2 */
    /* decode: [slot][CTA of a segment], prefill: [ticket][KV head]: pieces that are done; 0 before and after
     * a launch */
    int32_t *tickets;
    int64_t q_token, q_head, out_token, out_head, lse_head, lse_token; /* strides in elements */
    int64_t k_page, k_token, k_head, v_page, v_token, v_head, qq_row, rel_head;
    int32_t num_kv_heads, max_rows; /* max_rows: rows of a slot */
    int32_t q_scale_stride, kv_scale_stride, qq_width, rel_max;
    int32_t last_page; /* of the cache: a table's entries are taken for 0 to this */
    int32_t reserved;
    /* of whole pages: scales of K and V that the cache keeps; bytes */
    const void *k_rows_scales, *v_rows_scales;
    int64_t ks_page, ks_token, ks_head, vs_page, vs_token, vs_head;
    int64_t v_scale_head, v_scale_channel; /* elements of v_scale, where V has scales of channels */
} triton_params_t;

/* What tl_quantize makes, numbered as OUTPUT_* of plugins/common/output_scales.h. */
enum { TL_SCALE_FLOATS = 1, TL_SCALE_POWERS = 2, TL_SCALE_EXPONENTS = 3, TL_SCALE_NVFP4 = 4 };

/* tl_quantize: rows of attention's result into fp8 with group scales, or into e2m1 in pairs. Strides of
 * `from` in elements, others in bytes. */
typedef struct triton_quantize_params {
    const triton_counts_t *counts;
    const void *from; /* [tokens][Hq * Dv] */
    void *to;         /* [tokens, Hq, Dv], or Dv / 2 */
    void *scales;
    const float *tensor; /* of e2m1: the scale of all */
    int64_t from_token, to_token, to_head;
    int64_t tile, four, row, part, one; /* of scales: of t / 128, g / 4, t % 32, t / 32 % 4, g % 4 */
    int32_t num_groups, group_size;     /* group_size: 16, 64 or 128 */
    int32_t kind, pads;                 /* pads: places behind a row's last scale that become 0 */
} triton_quantize_params_t;

/* tl_write: one step's rows into the cache. Strides in elements, of the cache in cache elements. */
typedef struct triton_write_params {
    const void *key, *value;
    void *k_cache, *v_cache;
    const int64_t *slots;
    const float *k_scale, *v_scale;
    int64_t key_token, key_head, value_token, value_head;
    int64_t k_page, k_token, k_head, v_page, v_token, v_head;
    int64_t num_slots; /* of the cache: slots at and beyond it are skipped */
    int32_t num_tokens, num_kv_heads, scale_stride, reserved;
    void *k_rows_scales, *v_rows_scales; /* as in triton_params_t */
    int64_t ks_page, ks_token, ks_head, vs_page, vs_token, vs_head, v_scale_head, v_scale_channel;
} triton_write_params_t;

/* tl_rope: rotates queries and keys where they lie, and writes keys and values as tl_write does. */
typedef struct triton_rope_params {
    triton_write_params_t write;
    void *query, *key; /* key: write.key */
    const int64_t *positions;
    const void *cos_sin;
    int64_t query_token, query_head, table_row, table_rows; /* strides in elements */
    int32_t num_heads, is_table_float;                      /* num_heads: 0 without queries */
} triton_rope_params_t;

#endif
