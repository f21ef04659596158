/* SPDX-License-Identifier: Apache-2.0 */
/* Plain parameter structs of the CPU kernels: one attention call, one request of it, one work item.
 * Kernels know nothing of the plugin ABI; everything they read or write is named here. */
#ifndef CPU_TYPES_H
#define CPU_TYPES_H

#include <stddef.h>
#include <stdint.h>

enum cpu_dtype {
    CPU_F32,
    CPU_F16,
    CPU_BF16,
    CPU_E4M3,
    CPU_E5M2,
    CPU_I8,
    CPU_I4,
    /* Of a cache: rows of K and V as cpu_attn's k_row and v_row say, which become floats before they are
     * multiplied. */
    CPU_PACKED,
    CPU_NUM_DTYPES,
    /* Rows of TurboQuant (semantics 3.7): centroids of 4 and 3 bits, steps above a minimum of 4 and 3 bits.
     * What belongs to them is behind the codes. */
    CPU_C4 = CPU_NUM_DTYPES,
    CPU_C3,
    CPU_V4,
    CPU_V3,
    CPU_E2M1, /* of nvfp4 (semantics 3.6): two codes a byte, an e4m3 scale for each 16 values lies apart */
    CPU_DS,   /* of fp8_ds_mla (semantics 3.5): 512 e4m3 values, their 4 scales, 64 bf16 values */
};

/* Widest group of query rows (tokens x heads of one KV head) that the row-dot path takes. */
enum { CPU_ROWDOT_MAX = 32 };

/* Keys per tile of the row-dot path: a multiple of every vector width. */
enum { CPU_ROWDOT_TILE = 32 };

/* Bytes of an element as the products read it: int4 rows become signed bytes first. */
static inline int cpu_dtype_size(enum cpu_dtype t) {
    return t == CPU_F32 ? 4 : t == CPU_F16 || t == CPU_BF16 ? 2 : 1;
}

/* Bytes of n elements of a row in memory, without a scale behind them. */
static inline int cpu_row_bytes(enum cpu_dtype t, int n) {
    return t == CPU_I4 || t == CPU_C4 || t == CPU_V4 || t == CPU_E2M1 ? n / 2
           : t == CPU_C3 || t == CPU_V3                               ? n / 8 * 3
           : t == CPU_DS                                              ? n + 16 + (n > 512 ? n - 512 : 0)
                                                                      : n * cpu_dtype_size(t);
}

/* Where the rows of K (or V, or of their scales) lie: byte strides, any layout (NHD, HND, packed K|V,
 * contiguous). Row of token x of a request: base + block(x) * block + head * head + (x in block) * token. */
struct cpu_rows {
    const char *base;
    int64_t block, head, token;
};

/* What does not change between the requests of one call. */
struct cpu_attn {
    int num_q_heads, num_kv_heads;
    int head_size, head_size_v;
    enum cpu_dtype q_dtype, kv_dtype, out_dtype;
    enum cpu_dtype k_row, v_row; /* with kv_dtype CPU_PACKED: how a row of K and of V is stored */
    float scale;                 /* softmax scale, not yet times log2 e */
    float soft_cap;              /* 0: off */
    const float *alibi;          /* slope per query head, or NULL */
    int alibi_sqrt;
    const float *rel_bias; /* [query head][-rel_max .. rel_max]: entry of distance 0 of head 0, or NULL */
    int64_t rel_stride;    /* between heads */
    int32_t rel_max;
    const float *sinks;   /* logit per query head, or NULL */
    const float *qq_bias; /* [query token][qq_width], added to keys q_offset0 + x, or NULL (2.9 step 5) */
    int64_t qq_stride, qq_width;
    float q_scale;                  /* of a quantised query, else 1 */
    const float *k_scale, *v_scale; /* static scales, or NULL for 1 */
    int scale_per_head;             /* k_scale and v_scale have one value per KV head */

    const char *q;
    int64_t q_token, q_head; /* byte strides */
    char *out;
    int64_t out_token, out_head;
    float *lse; /* natural log, or NULL */
    int64_t lse_token, lse_head;

    struct cpu_rows k, v;
    struct cpu_rows k_row_scale,
        v_row_scale; /* inline fp32 per (token, head), strides as k and v; base NULL: none */
    /* Scales that lie apart from the rows, with strides of their own: those of groups (cpu_has_groups), or
     * with rounds_query the float32 of each K row; base NULL: none. */
    struct cpu_rows k_apart, v_apart;
    int rounds_query;           /* queries become int8 by token and head (semantics 3.8) */
    const float *v_channel;     /* static scales of V's channels, [KV head][head_size_v], or NULL */
    int block_size;             /* tokens per block of a paged cache */
    const int32_t *block_table; /* [request][row length], or NULL: contiguous keys */
    int64_t block_table_row;
    /* Selected keys (semantics 9.2): a request is one query token, whose keys are the positions below
     * topk_end that row q_start of topk_indices names, in that order. 0: all keys of requests. */
    int topk;
    const int32_t *topk_indices; /* [query token][topk] */
    int64_t topk_row, topk_end;
};

/* Each key has a scale of its own. */
static inline int cpu_scales_keys(const struct cpu_attn *a) {
    return a->k_row_scale.base != NULL || a->rounds_query;
}

/* Rows have scales of groups. */
static inline int cpu_has_groups(const struct cpu_attn *a) {
    return a->kv_dtype == CPU_PACKED && a->k_row == CPU_E2M1;
}

/* Packed rows of K are those of V too: made once. */
static inline int cpu_is_shared(const struct cpu_attn *a) {
    return a->kv_dtype == CPU_PACKED && a->k_row == CPU_DS;
}

/* Mask of one request, semantics 2.2 to 2.8. Window sizes are distances: -1 is "no bound". */
struct cpu_mask {
    int causal;
    int window_left, window_right; /* allowed: q - k <= left, k - q <= right */
    int chunk;                     /* > 0: keys of the query's chunk and of `lookback` chunks before it */
    int lookback;
    int prefix;           /* > 0: keys [0, prefix) stay visible beside the window (R-SWA, sink tokens) */
    const int32_t *spans; /* [num_spans][2], inclusive: bidirectional inside (prefix-LM) */
    int num_spans;
    int span_window; /* > 0: a span's past is cut at this window (clamped spans) */
};

/* One request. Query token t is at absolute position q_offset + t. */
struct cpu_seq {
    int64_t q_start;       /* first query token in the batch */
    int64_t k_start;       /* first key row of contiguous keys */
    int32_t q_len, kv_len; /* keys at and beyond kv_len are never read */
    int32_t q_offset;
    int32_t table_row; /* row of the block table */
    /* Bytes from cpu_rows.base to the rows of selected keys, while an item runs; else NULL. */
    const int64_t *selected;
    struct cpu_mask mask;
};

/* A piece of work: rows [row0, row1) (row = token * group + head in group) of KV heads [head0, head1)
 * over keys [key0, key1). part >= 0: unfinished, (m, l, O) go to that partial slot and its successors. */
struct cpu_item {
    int32_t seq;
    int32_t head0, head1;
    int32_t row0, row1;
    int32_t key0, key1;
    int32_t rowdot; /* 1: row-dot path, 0: lanes-are-queries path */
    float cost;     /* estimated, for the order of the work */
    int64_t part;
};

/* Merge of `splits` partial results of one item's rows; slots of a split are `stride` apart. */
struct cpu_merge {
    int32_t seq;
    int32_t head0, head1;
    int32_t row0, row1;
    int32_t splits;
    int64_t part, stride;
};

/* Floats of one partial slot: O, then m (log2 units) and l, padded to a cache line. */
static inline int64_t cpu_part_floats(int head_size_v) {
    return ((int64_t)head_size_v + 2 + 15) / 16 * 16;
}

/* The projections of a latent layer (semantics 7.4): rows of kv_b_proj, padded with zeros to w_columns. */
struct cpu_projection {
    int nope, rope, latent, value; /* P, R, L, V */
    enum cpu_dtype q_type, y_type, out_type, w_type;
    float w_scale;
    int w_columns; /* L, up to the next multiple of CPU_PROJECT_PAD */
    int64_t w_row; /* bytes */
    int dots;      /* weights and queries are bf16, whose pairs' products are worth two FMA */
};

/* Logits of an indexer (semantics 9.5): e4m3 rows of CPU_INDEX_SIZE values, of query and key; row t sees
 * columns [first[t], end[t]). */
struct cpu_index {
    int heads;
    int amx; /* products by tiles, as in cpu_tiling */
    const char *q;
    int64_t q_row, q_head; /* bytes */
    const char *weights;   /* float32 */
    int64_t weights_row;
    char *logits; /* float32 */
    int64_t logits_row;
    const int32_t *first, *end;
};
enum { CPU_INDEX_SIZE = 128 };

/* Elements that any level loads at once, and tokens of one block of a projection. */
enum { CPU_PROJECT_PAD = 32, CPU_PROJECT_TOKENS = 16 };

/* Sizes that a level derives from the problem at open. */
struct cpu_tiling {
    int num_sub;          /* sub-blocks of lanes per work item of the lanes-are-queries path */
    int rows_per_item;    /* num_sub * lanes */
    int heads_per_item;   /* KV heads that one row-dot item may hold */
    int bf16_dot;         /* products on bf16 pairs */
    int amx;              /* products on bf16 pairs by tiles */
    int vnni;             /* integer products may use AVX512_VNNI, at level avx2 AVX_VNNI */
    int vbmi;             /* e4m3 decode may use AVX512_VBMI */
    int dots;             /* decode on bf16 pairs */
    int fast_bf16;        /* a product of bf16 pairs is worth two FMA, and there are no tiles */
    int into_l2;          /* decode prefetches the next tile into L2, not into L1 */
    int far;              /* decode prefetches two tiles ahead, into L2 */
    size_t scratch_bytes; /* per thread; at its end the offsets of selected keys */
};

#endif
