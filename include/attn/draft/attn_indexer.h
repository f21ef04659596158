/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_indexer.h: a draft extension of sparse MLA backends: the indexer of DeepSeek-V3.2, which chooses the
 * keys that each token attends to (semantics 9.4, 9.5 of doc/semantics.md). It writes the cache of fp8 index
 * keys, computes
 *
 *     logit[t][k] = key_scale[k] * sum over heads h of weight[t][h] * max(0, query[t][h] . key[k])
 *
 * and selects the topk largest logits of each row; the indices are what attn_forward_t.topk_indices takes. A
 * draft may change in every release; its number is part of the id.
 *
 *     const attn_indexer_extension_t *x = attn_group_get_extension(group, ATTN_INDEXER_EXTENSION);
 *     x->open(&problem, &device, NULL, &indexer, &error);               once
 *     x->write_keys(indexer, &write, stream, &error);                   each step and layer: new keys into
 *     the cache
 *     x->quantize_queries(indexer, &quantize, stream, &error);          queries to fp8, their scales into the
 *     weights
 *     x->logits_paged(indexer, &paged, stream, &error);                 decode: keys where they lie in the
 *     cache
 *     x->select(indexer, &select, stream, &error);                      indices, relative to the request
 *
 * Prefill gathers the keys of a chunk of requests first: plan_prefill, then for each chunk gather_keys,
 * logits, select.
 *
 * The table is the same for all problems and instances of a backend, and an indexer is an object of its own:
 * a group is needed for nothing but to find the table; get_extension(NULL, id) of the backend's operations
 * gives it too.
 *
 * THE CACHE is uint8 [nb, bs, Di + 4] and only its first dimension has a stride of its own (a multiple of 16
 * bytes). A page is bs * Di bytes of e4m3 values, token by token, then bs float32 scales: value d of token o
 * lies at byte o * Di + d of its page, the scale at byte bs * Di + o * 4 (semantics 9.4).
 *
 * RULES OF ALL CALLS: tensors lie on the device of the indexer; last dimensions are dense; rows beyond those
 * that are counted are neither read nor written. Arrays of lengths, ranges and tables lie on the device too:
 * a call reads them when the stream gets there, so that a captured graph may be replayed after they changed.
 * What only the device can see is clamped rather than refused: ranges to the keys that there are; a slot or
 * block id outside the cache is as -1, which writes nothing and gathers nothing, and the logits of keys in
 * such a block have no defined value. Calls allocate nothing, never wait, and may be captured; an indexer
 * serves one thread at a time.
 *
 * SYMBOLS: Hi index heads, Di index head size, M query rows of a call, N keys of a call, W entries of a
 * block-table row; the others are those of attn_types.h.
 */
#ifndef ATTN_DRAFT_INDEXER_H
#define ATTN_DRAFT_INDEXER_H

#include <attn/attn_plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_INDEXER_EXTENSION "attn.draft.indexer/0"

typedef struct attn_indexer attn_indexer_t; /* the backend's own */

/* How the scale of a key is rounded; it is stored as float32 either way (semantics 9.4). */
enum {
    ATTN_INDEXER_SCALE_FLOAT32 = 1, /* max(largest |value|, 1e-4) / 448 */
    ATTN_INDEXER_SCALE_UE8M0 = 2    /* the smallest power of two that is not less; DeepSeek-V3.2's */
};

/* What is fixed for all layers of a model. */
typedef struct attn_indexer_problem {
    uint32_t struct_size;
    uint32_t num_heads;  /* Hi, required: a multiple of 8, at most 128 (index_n_heads; 64 in DeepSeek-V3.2) */
    uint32_t head_size;  /* Di; 0: 128, which is also the only size of this draft */
    uint32_t block_size; /* bs, a multiple of 16; 0: 64 */
    uint32_t topk;       /* selected keys of a row, a multiple of 128, at most 2048; 0: 2048 */
    uint32_t scale_format; /* ATTN_INDEXER_SCALE_*; 0: UE8M0 */
    /* of keys and queries before they are quantised: ATTN_DTYPE_FLOAT32, _FLOAT16, _BFLOAT16 (0) */
    uint32_t dtype;
    uint32_t reserved0;
    int64_t max_model_len;     /* longest request that plan_prefill takes; 0: 131072 */
    uint64_t max_logits_bytes; /* of a chunk of plan_prefill; 0: 512 MiB (semantics 9.5) */
    double weight_scale;       /* factor of the weights; 0: Di^-0.5 * Hi^-0.5 */
    uint64_t reserved[4];
} attn_indexer_problem_t;

/* Buffers of prefill that the engine allocates: as large as the chunks of plan_prefill may need. Decode
 * needs logits of its rows times its longest request. */
typedef struct attn_indexer_space {
    uint32_t struct_size;
    uint32_t alignment;            /* bytes, of each buffer */
    int64_t max_gathered_keys;     /* rows of gather_keys' outputs: 40 * max_model_len (semantics 9.5) */
    uint64_t gathered_key_bytes;   /* of `keys`; 4 bytes for each key more for `key_scales` */
    uint64_t prefill_logits_bytes; /* of the logits of one chunk */
    uint64_t workspace_bytes;      /* scratch of every call, may be shared on one stream; 0: none */
} attn_indexer_space_t;

/* One piece of prefill work: requests [first_req, first_req + num_reqs), of which query rows [first_row,
 * first_row + num_rows), counted from the first query row of the batch, against num_keys gathered keys. */
typedef struct attn_indexer_chunk {
    int32_t first_req, num_reqs;
    int64_t first_row, num_rows;
    int64_t num_keys;
    /* 1: gather_keys first; 0: the keys of the chunk before, with whose request this one goes on */
    int32_t gathers;
    int32_t reserved0;
} attn_indexer_chunk_t;

/* New keys into the cache. */
typedef struct attn_indexer_write {
    uint32_t struct_size;
    uint32_t reserved0;
    const DLTensor *key;          /* [>= n, Di] */
    const DLTensor *cache;        /* as cache_shape. Written */
    const DLTensor *slot_mapping; /* int64 [n]; negative: do not write */
    uint64_t reserved[4];
} attn_indexer_write_t;

/* Keys of requests, one behind the other: keys[prefix[r] + j] = key j of request r for prefix[r] + j <
 * prefix[r + 1] and below the rows of `keys`. */
typedef struct attn_indexer_gather {
    uint32_t struct_size;
    int32_t num_reqs;
    const DLTensor *cache;
    const DLTensor *block_table; /* int32 [>= num_reqs, W] */
    const DLTensor *prefix;      /* int32 [>= num_reqs + 1], non-decreasing, [0] = 0 */
    const DLTensor *keys;        /* e4m3 [N, Di]. Written */
    const DLTensor *key_scales;  /* float32 [>= N]. Written */
    uint64_t reserved[4];
} attn_indexer_gather_t;

/* quantised[t][h] = e4m3(query[t][h] / s), s the smallest power of two not below max(largest |value|, 1e-10)
 * / 448; out_weights[t][h] = weights[t][h] * s * weight_scale. */
typedef struct attn_indexer_quantize {
    uint32_t struct_size;
    int32_t num_rows;            /* M */
    const DLTensor *query;       /* [>= M, Hi, Di] */
    const DLTensor *weights;     /* float32 or the problem's dtype, [>= M, Hi] */
    const DLTensor *quantized;   /* e4m3 [>= M, Hi, Di]. Written */
    const DLTensor *out_weights; /* float32 [>= M, Hi]. Written */
    uint64_t reserved[4];
} attn_indexer_quantize_t;

#define ATTN_INDEXER_CLEAN                                                                                   \
    (UINT32_C(1) << 0) /* logits outside the range of a row become -inf; else they stay as they are */

/* Logits against keys in one piece: row t sees keys row_starts[t] <= k < row_ends[t], and logits[t][k] is
 * written. */
typedef struct attn_indexer_logits {
    uint32_t struct_size;
    uint32_t flags;   /* ATTN_INDEXER_CLEAN */
    int32_t num_rows; /* M */
    int32_t reserved0;
    const DLTensor *query;      /* e4m3 [>= M, Hi, Di] */
    const DLTensor *weights;    /* float32 [>= M, Hi], as quantize_queries writes them */
    const DLTensor *keys;       /* e4m3 [N, Di] */
    const DLTensor *key_scales; /* float32 [>= N] */
    const DLTensor *row_starts; /* int32 [>= M] */
    const DLTensor *row_ends;   /* int32 [>= M] */
    const DLTensor *logits;     /* float32 [>= M, >= N]. Written */
    uint64_t reserved[4];
} attn_indexer_logits_t;

/* Logits against keys in the cache: row t belongs to request t / rows_per_request and sees its first
 * row_lens[t] keys; logits[t][k] is written for k < row_lens[t]. Requests of several rows have row_lens L - n
 * + 1 .. L (semantics 9.5). */
typedef struct attn_indexer_paged {
    uint32_t struct_size;
    uint32_t flags;           /* ATTN_INDEXER_CLEAN */
    int32_t num_rows;         /* M, a multiple of rows_per_request */
    int32_t rows_per_request; /* at most 8; 0: 1 */
    const DLTensor *query;    /* e4m3 [>= M, Hi, Di] */
    const DLTensor *weights;  /* float32 [>= M, Hi] */
    const DLTensor *cache;
    const DLTensor *block_table; /* int32 [>= M / rows_per_request, W]; N = W * bs */
    const DLTensor *row_lens;    /* int32 [>= M] */
    const DLTensor
        *logits; /* float32 [>= M, at least as many columns as the longest row has keys]. Written */
    uint64_t reserved[4];
} attn_indexer_paged_t;

/* The topk largest logits of each row within its range. indices[t] holds their columns minus row_starts[t] in
 * ascending order, and -1 behind them where the range has fewer keys; a range of at most topk keys is
 * selected whole without reading the logits. Of equal logits the lower columns are taken; -0 equals 0, and
 * NaN is below everything. The result depends on the logits alone: two calls give the same bytes. */
typedef struct attn_indexer_select {
    uint32_t struct_size;
    int32_t num_rows;           /* M */
    const DLTensor *logits;     /* float32 [>= M, columns] */
    const DLTensor *row_starts; /* int32 [>= M]; NULL: 0 */
    const DLTensor *row_ends;   /* int32 [>= M] */
    const DLTensor *indices;    /* int32 [>= M, topk]. Every row below M is written */
    void *workspace;            /* NULL where space_needed says 0 bytes */
    uint64_t workspace_bytes;
    uint64_t reserved[4];
} attn_indexer_select_t;

/* All return ATTN_OK or ATTN_E_* and fill *error (which may be NULL) on failure: ATTN_E_INVALID names the
 * argument, ATTN_E_UNSUPPORTED the member of the problem, ATTN_E_DEVICE has the driver's message. Nothing is
 * written on failure. */
typedef struct attn_indexer_extension {
    uint32_t struct_size;
    uint32_t reserved0;
    /* Everything slow happens here. host may be NULL. *indexer is written on success only. [any thread] */
    int (*open)(const attn_indexer_problem_t *problem, const attn_device_t *device, const attn_host_t *host,
                attn_indexer_t **indexer, attn_error_t *error);
    /* The device must have finished its work. NULL is allowed. [instance] */
    void (*close)(attn_indexer_t *indexer);
    /* Shape of the cache for num_blocks blocks. [instance] [pure] */
    int (*cache_shape)(attn_indexer_t *indexer, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                       attn_error_t *error);
    /* [instance] [pure] */
    int (*space_needed)(attn_indexer_t *indexer, attn_indexer_space_t *space, attn_error_t *error);
    /* Cuts a batch of prefills into chunks whose keys fit max_gathered_keys and whose logits fit
     * max_logits_bytes (semantics 9.5); a request too large for the logits is cut along its query rows.
     * Arrays lie in host memory: query_start_loc [num_reqs + 1], seq_lens [num_reqs] with the new tokens.
     * *num_chunks is the number of chunks also where it exceeds capacity; then only the first were stored.
     * [instance] [pure] */
    int (*plan_prefill)(attn_indexer_t *indexer, int32_t num_reqs, const int32_t *query_start_loc,
                        const int32_t *seq_lens, attn_indexer_chunk_t *chunks, int32_t capacity,
                        int32_t *num_chunks, attn_error_t *error);
    /* [instance] [no alloc] [no sync] [capture-safe], as all that follow */
    int (*write_keys)(attn_indexer_t *indexer, const attn_indexer_write_t *args, void *stream,
                      attn_error_t *error);
    int (*gather_keys)(attn_indexer_t *indexer, const attn_indexer_gather_t *args, void *stream,
                       attn_error_t *error);
    int (*quantize_queries)(attn_indexer_t *indexer, const attn_indexer_quantize_t *args, void *stream,
                            attn_error_t *error);
    int (*logits)(attn_indexer_t *indexer, const attn_indexer_logits_t *args, void *stream,
                  attn_error_t *error);
    int (*logits_paged)(attn_indexer_t *indexer, const attn_indexer_paged_t *args, void *stream,
                        attn_error_t *error);
    int (*select)(attn_indexer_t *indexer, const attn_indexer_select_t *args, void *stream,
                  attn_error_t *error);
} attn_indexer_extension_t;

#ifdef __cplusplus
}
#endif
#endif
