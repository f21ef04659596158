/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of attn.draft.indexer/0: arguments are checked, made into the kernels' parameters, and
 * launched. */
#include "indexer_instance.h"

static int kernel_dtype(uint32_t dtype) {
    return dtype == ATTN_DTYPE_FLOAT32   ? INDEXER_F32
           : dtype == ATTN_DTYPE_FLOAT16 ? INDEXER_F16
                                         : INDEXER_BF16;
}

static indexer_cache_view cache_view(const attn_indexer_t *x, const DLTensor *t) {
    indexer_cache_view v = {.data = attn_data(t),
                            .page_bytes = t->strides[0],
                            .num_pages = (int32_t)t->shape[0],
                            .page_size = (int32_t)x->r.p.block_size};
    if (t->shape[0] <= 1)
        v.page_bytes = (int64_t)x->r.p.block_size * INDEXER_ROW_BYTES; /* any stride was given */
    return v;
}

static const void *data_or_null(const DLTensor *t) {
    return t != NULL ? attn_data(t) : NULL;
}

/* The end of every call. */
#define LAUNCH(X, WHAT, CALL)                                                                                \
    do {                                                                                                     \
        gpu_device_guard guard;                                                                              \
        int status_ = gpu_enter((X)->device_id, &guard, error);                                              \
        if (status_ != ATTN_OK) return status_;                                                              \
        int e_ = CALL;                                                                                       \
        gpu_leave(&guard);                                                                                   \
        return e_ == 0 ? ATTN_OK : gpu_fail(error, e_, WHAT);                                                \
    } while (0)

int indexer_write(attn_indexer_t *x, const attn_indexer_write_t *args, void *stream, attn_error_t *error) {
    attn_indexer_write_t a;
    int status = indexer_check_write(&x->r, args, &a, error);
    if (status != ATTN_OK || a.slot_mapping->shape[0] == 0) return status;
    const indexer_write_params p = {.cache = cache_view(x, a.cache),
                                    .key = attn_data(a.key),
                                    .slots = attn_data(a.slot_mapping),
                                    .key_row = a.key->strides[0],
                                    .num_rows = (int32_t)a.slot_mapping->shape[0],
                                    .dtype = kernel_dtype(x->r.p.dtype),
                                    .power_of_two = x->r.p.scale_format == ATTN_INDEXER_SCALE_UE8M0};
    LAUNCH(x, "writing index keys", indexer_write_keys(&p, stream));
}

int indexer_gather(attn_indexer_t *x, const attn_indexer_gather_t *args, void *stream, attn_error_t *error) {
    attn_indexer_gather_t a;
    int status = indexer_check_gather(&x->r, args, &a, error);
    if (status != ATTN_OK || a.keys->shape[0] == 0 || a.num_reqs == 0) return status;
    const indexer_gather_params p = {.cache = cache_view(x, a.cache),
                                     .table = attn_data(a.block_table),
                                     .prefix = attn_data(a.prefix),
                                     .keys = attn_data(a.keys),
                                     .scales = attn_data(a.key_scales),
                                     .table_row = a.block_table->strides[0],
                                     .key_row = a.keys->strides[0],
                                     .table_width = (int32_t)a.block_table->shape[1],
                                     .num_reqs = a.num_reqs,
                                     .num_keys = (int32_t)a.keys->shape[0]};
    LAUNCH(x, "gathering index keys", indexer_gather_keys(&p, stream));
}

int indexer_quantize(attn_indexer_t *x, const attn_indexer_quantize_t *args, void *stream,
                     attn_error_t *error) {
    attn_indexer_quantize_t a;
    int status = indexer_check_quantize(&x->r, args, &a, error);
    if (status != ATTN_OK || a.num_rows == 0) return status;
    const indexer_quantize_params p = {.query = attn_data(a.query),
                                       .weights = attn_data(a.weights),
                                       .quantized = attn_data(a.quantized),
                                       .out_weights = attn_data(a.out_weights),
                                       .query_row = a.query->strides[0],
                                       .query_head = a.query->strides[1],
                                       .weights_row = a.weights->strides[0],
                                       .quantized_row = a.quantized->strides[0],
                                       .quantized_head = a.quantized->strides[1],
                                       .out_row = a.out_weights->strides[0],
                                       .num_rows = a.num_rows,
                                       .num_heads = (int32_t)x->r.p.num_heads,
                                       .dtype = kernel_dtype(x->r.p.dtype),
                                       .weights_dtype = kernel_dtype(attn_dtype_of(a.weights->dtype)),
                                       .weight_scale = (float)x->r.p.weight_scale};
    LAUNCH(x, "quantising index queries", indexer_quantize_queries(&p, stream));
}

static int run_logits(const attn_indexer_t *x, const indexer_logits_params *p, int clean, int32_t columns,
                      void *stream) {
    int e = clean && columns > 0 ? indexer_clean_logits(p, columns, stream) : 0;
    if (e != 0 || p->num_keys == 0) return e;
    return x->has_sm90 ? indexer_logits_sm90(x->encode_tiled, p, x->num_sms, stream)
                       : indexer_logits_sm80(p, stream);
}

int indexer_logits(attn_indexer_t *x, const attn_indexer_logits_t *args, void *stream, attn_error_t *error) {
    attn_indexer_logits_t a;
    int status = indexer_check_logits(&x->r, args, &a, error);
    if (status != ATTN_OK || a.num_rows == 0) return status;
    const indexer_logits_params p = {.query = attn_data(a.query),
                                     .weights = attn_data(a.weights),
                                     .keys = attn_data(a.keys),
                                     .key_scales = attn_data(a.key_scales),
                                     .starts = attn_data(a.row_starts),
                                     .ends = attn_data(a.row_ends),
                                     .logits = attn_data(a.logits),
                                     .query_row = a.query->strides[0],
                                     .query_head = a.query->strides[1],
                                     .weights_row = a.weights->strides[0],
                                     .key_row = a.keys->strides[0],
                                     .logits_row = a.logits->strides[0],
                                     .num_rows = a.num_rows,
                                     .num_heads = (int32_t)x->r.p.num_heads,
                                     .num_keys = (int32_t)a.keys->shape[0],
                                     .rows_per_request = 1};
    LAUNCH(x, "computing index logits",
           run_logits(x, &p, (a.flags & ATTN_INDEXER_CLEAN) != 0, (int32_t)a.logits->shape[1], stream));
}

int indexer_logits_paged(attn_indexer_t *x, const attn_indexer_paged_t *args, void *stream,
                         attn_error_t *error) {
    attn_indexer_paged_t a;
    int status = indexer_check_paged(&x->r, args, &a, error);
    if (status != ATTN_OK || a.num_rows == 0) return status;
    const indexer_logits_params p = {.query = attn_data(a.query),
                                     .weights = attn_data(a.weights),
                                     .cache = cache_view(x, a.cache),
                                     .table = attn_data(a.block_table),
                                     .ends = attn_data(a.row_lens),
                                     .logits = attn_data(a.logits),
                                     .query_row = a.query->strides[0],
                                     .query_head = a.query->strides[1],
                                     .weights_row = a.weights->strides[0],
                                     .table_row = a.block_table->strides[0],
                                     .logits_row = a.logits->strides[0],
                                     .num_rows = a.num_rows,
                                     .num_heads = (int32_t)x->r.p.num_heads,
                                     .num_keys = indexer_paged_keys(&x->r, &a),
                                     .table_width = (int32_t)a.block_table->shape[1],
                                     .rows_per_request = a.rows_per_request};
    LAUNCH(x, "computing index logits of cached keys",
           run_logits(x, &p, (a.flags & ATTN_INDEXER_CLEAN) != 0, (int32_t)a.logits->shape[1], stream));
}

/* Few rows get a cluster each, of 16 CTAs or of 8, if all of them run at once; then a CTA, wide while there
 * is a multiprocessor for each. */
static int run_select(const attn_indexer_t *x, const indexer_select_params *p, void *stream) {
    for (int i = 0; i < 2; i++)
        if (p->num_rows <= x->max_clusters[i] && p->num_columns <= (16 >> i) * INDEXER_CLUSTER_KEYS)
            return indexer_select_cluster(p, 16 >> i, stream);
    return indexer_select_rows(p, p->num_rows <= x->num_sms, stream);
}

int indexer_select(attn_indexer_t *x, const attn_indexer_select_t *args, void *stream, attn_error_t *error) {
    attn_indexer_select_t a;
    int status = indexer_check_select(&x->r, args, &a, error);
    if (status != ATTN_OK || a.num_rows == 0) return status;
    const indexer_select_params p = {.logits = attn_data(a.logits),
                                     .starts = data_or_null(a.row_starts),
                                     .ends = attn_data(a.row_ends),
                                     .indices = attn_data(a.indices),
                                     .logits_row = a.logits->strides[0],
                                     .indices_row = a.indices->strides[0],
                                     .num_rows = a.num_rows,
                                     .num_columns = (int32_t)a.logits->shape[1],
                                     .topk = (int32_t)x->r.p.topk};
    LAUNCH(x, "selecting the largest logits", run_select(x, &p, stream));
}
