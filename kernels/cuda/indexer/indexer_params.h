/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of the indexer are told, and their launchers: plain structs, strides in elements of what
 * is pointed to unless a name says bytes. The launchers return a cudaError_t as int. */
#ifndef INDEXER_PARAMS_H
#define INDEXER_PARAMS_H

#include <stdint.h>

enum { INDEXER_DIM = 128, INDEXER_ROW_BYTES = INDEXER_DIM + 4 };
/* Keys of a row that each CTA of a cluster keeps at most. */
enum { INDEXER_CLUSTER_KEYS = 16384 };
enum { INDEXER_F32 = 0, INDEXER_F16 = 1, INDEXER_BF16 = 2 }; /* element types before quantisation */

typedef struct indexer_cache_view {
    uint8_t *data;
    int64_t page_bytes; /* from page to page */
    int32_t num_pages, page_size;
} indexer_cache_view;

typedef struct indexer_write_params {
    indexer_cache_view cache;
    const void *key; /* rows of 128 */
    const int64_t *slots;
    int64_t key_row;
    int32_t num_rows, dtype, power_of_two;
} indexer_write_params;

typedef struct indexer_gather_params {
    indexer_cache_view cache;
    const int32_t *table, *prefix;
    uint8_t *keys;
    float *scales;
    int64_t table_row, key_row;
    int32_t table_width, num_reqs, num_keys;
} indexer_gather_params;

typedef struct indexer_quantize_params {
    const void *query, *weights;
    uint8_t *quantized;
    float *out_weights;
    int64_t query_row, query_head, weights_row, quantized_row, quantized_head, out_row;
    int32_t num_rows, num_heads, dtype, weights_dtype;
    float weight_scale;
} indexer_quantize_params;

/* Both forms of logits: keys in one piece (cache.data NULL) or in pages. Row t sees keys [starts[t],
 * ends[t]), starts NULL meaning 0, cut to num_keys; paged rows belong to request t / rows_per_request. */
typedef struct indexer_logits_params {
    const uint8_t *query;
    const float *weights;
    const uint8_t *keys;
    const float *key_scales;
    indexer_cache_view cache;
    const int32_t *table, *starts, *ends;
    float *logits;
    int64_t query_row, query_head, weights_row, key_row, table_row, logits_row;
    int32_t num_rows, num_heads, num_keys, table_width, rows_per_request;
} indexer_logits_params;

typedef struct indexer_select_params {
    const float *logits;
    const int32_t *starts, *ends; /* starts may be NULL */
    int32_t *indices;
    int64_t logits_row, indices_row;
    int32_t num_rows, num_columns, topk;
} indexer_select_params;

#ifdef __cplusplus
extern "C" {
#endif

int indexer_write_keys(const indexer_write_params *p, void *stream);
int indexer_gather_keys(const indexer_gather_params *p, void *stream);
int indexer_quantize_queries(const indexer_quantize_params *p, void *stream);
/* -inf outside the ranges, num_columns of each row. */
int indexer_clean_logits(const indexer_logits_params *p, int32_t num_columns, void *stream);
int indexer_logits_sm80(const indexer_logits_params *p, void *stream);
/* Hopper's, on num_sms multiprocessors, by cuTensorMapEncodeTiled; what it has no instance for goes to the
 * portable one. p NULL prepares the kernels. cudaErrorInvalidValue where a tensor map cannot be made. */
int indexer_logits_sm90(void *encode_tiled, const indexer_logits_params *p, int num_sms, void *stream);
/* Below: p NULL prepares the kernels of the current device. */
/* is_large: 1024 threads for a row, faster where there is a multiprocessor for each. */
int indexer_select_rows(const indexer_select_params *p, int is_large, void *stream);
int indexer_select_cluster(const indexer_select_params *p, int cluster, void *stream);
/* How many clusters of that size the device runs at once; 0: none. */
int indexer_max_clusters(int cluster);

#ifdef __cplusplus
}
#endif
#endif
