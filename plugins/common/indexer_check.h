/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of attn.draft.indexer/0 that do not depend on who computes: defaults and limits of the problem,
 * and the arguments of every call. Each check takes the caller's struct in and gives a complete one out. */
#ifndef INDEXER_CHECK_H
#define INDEXER_CHECK_H

#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_indexer.h>

#include <math.h>

#define INDEXER_ROW(p) ((int64_t)(p)->head_size + 4) /* bytes of a token in the cache */

/* What the checks need to know about an indexer. */
typedef struct indexer_rules {
    attn_indexer_problem_t p; /* complete: no member is 0 that has a default */
    int device_type;          /* DLPack's */
    int alignment;            /* of rows that kernels read in one piece, bytes */
} indexer_rules;

static inline int indexer_check_problem(const attn_indexer_problem_t *given, attn_indexer_problem_t *p,
                                        attn_error_t *error) {
    int status = attn_intake(p, sizeof *p, given, "problem", error);
    if (status != ATTN_OK) return status;
    if (p->head_size == 0) p->head_size = 128;
    if (p->block_size == 0) p->block_size = 64;
    if (p->topk == 0) p->topk = 2048;
    if (p->scale_format == 0) p->scale_format = ATTN_INDEXER_SCALE_UE8M0;
    if (p->dtype == 0) p->dtype = ATTN_DTYPE_BFLOAT16;
    if (p->max_model_len == 0) p->max_model_len = 131072;
    if (p->max_logits_bytes == 0) p->max_logits_bytes = UINT64_C(512) << 20;
    if (p->num_heads == 0 || p->num_heads % 8 != 0 || p->num_heads > 128)
        return attn_fail(
            error, ATTN_E_UNSUPPORTED, "num_heads",
            "num_heads is %u; expected a multiple of 8 from 8 to 128 (index_n_heads of the model)",
            p->num_heads);
    if (p->head_size != 128)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "head_size",
                         "head_size is %u; index keys have 128 values", p->head_size);
    if (p->block_size % 16 != 0 || p->block_size > 65536)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "block_size",
                         "block_size is %u; expected a multiple of 16 up to 65536 (64 is usual)",
                         p->block_size);
    if (p->topk % 128 != 0 || p->topk > 2048)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "topk",
                         "topk is %u; expected a multiple of 128 from 128 to 2048", p->topk);
    if (p->scale_format > ATTN_INDEXER_SCALE_UE8M0)
        return attn_fail(error, ATTN_E_INVALID, "scale_format",
                         "scale_format is %u; expected FLOAT32 (1) or UE8M0 (2)", p->scale_format);
    if (p->dtype > ATTN_DTYPE_BFLOAT16)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "dtype",
                         "dtype is %s; expected float32, float16 or bfloat16", attn_dtype_name(p->dtype));
    if (p->max_model_len < 0 || p->max_model_len > INT32_MAX / 64)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "max_model_len",
                         "max_model_len is %lld; at most %d keys of a request are counted",
                         (long long)p->max_model_len, INT32_MAX / 64);
    if (!isfinite(p->weight_scale))
        return attn_fail(error, ATTN_E_INVALID, "weight_scale",
                         "weight_scale is not finite; 0 gives the usual one");
    if (p->weight_scale == 0) p->weight_scale = 1 / sqrt((double)p->head_size * p->num_heads);
    return ATTN_OK;
}

/* A tensor of the indexer's device whose first dimension has at least `rows` and whose others are as in
 * `shape`. `whole`: rows must lie at multiples of the alignment. */
static inline int indexer_check(const indexer_rules *r, const DLTensor *t, const char *name, uint32_t dtype,
                                int ndim, int64_t rows, int64_t b, int64_t c, int whole,
                                attn_error_t *error) {
    const int64_t shape[3] = {-1, b, c};
    int status = attn_check_tensor(t, name, dtype, ndim, shape, error);
    if (status != ATTN_OK) return status;
    if ((int)t->device.device_type != r->device_type &&
        !(r->device_type == (int)kDLCUDA && t->device.device_type == kDLCUDAManaged))
        return attn_fail(error, ATTN_E_INVALID, name, "%s is on device type %d; expected device type %d",
                         name, (int)t->device.device_type, r->device_type);
    if (t->shape[0] < rows)
        return attn_fail(error, ATTN_E_INVALID, name, "%s has %lld rows; expected %lld", name,
                         (long long)t->shape[0], (long long)rows);
    if (!whole || t->shape[0] == 0) return ATTN_OK;
    int bad = (uintptr_t)attn_data(t) % (uintptr_t)r->alignment != 0;
    for (int i = 0; i + 1 < ndim; i++)
        bad |= t->shape[i] > 1 && attn_byte_stride(t, i) % r->alignment != 0;
    return bad ? attn_fail(error, ATTN_E_INVALID, name,
                           "%s is not aligned: address and strides must be multiples of %d bytes", name,
                           r->alignment)
               : ATTN_OK;
}

static inline int indexer_check_count(int64_t n, const char *name, attn_error_t *error) {
    return n >= 0 ? ATTN_OK
                  : attn_fail(error, ATTN_E_INVALID, name, "%s is %lld; it must not be negative", name,
                              (long long)n);
}

/* bs tokens of a page follow each other; only pages may lie apart. */
static inline int indexer_check_cache(const indexer_rules *r, const DLTensor *t, attn_error_t *error) {
    int64_t row = INDEXER_ROW(&r->p), page = row * r->p.block_size;
    int status = indexer_check(r, t, "cache", ATTN_DTYPE_UINT8, 3, 0, r->p.block_size, row, 0, error);
    if (status != ATTN_OK || t->shape[0] == 0) return status;
    if (t->strides[1] != row)
        return attn_fail(error, ATTN_E_INVALID, "cache",
                         "cache has stride %lld between tokens; a page is dense: %lld",
                         (long long)t->strides[1], (long long)row);
    if (t->shape[0] > INT32_MAX || (uintptr_t)attn_data(t) % 16 != 0 ||
        (t->shape[0] > 1 && (t->strides[0] < page || t->strides[0] % 16 != 0)))
        return attn_fail(error, ATTN_E_INVALID, "cache",
                         "cache has %lld pages %lld bytes apart; expected pages of at least %lld bytes at "
                         "multiples of 16",
                         (long long)t->shape[0], (long long)t->strides[0], (long long)page);
    return ATTN_OK;
}

static inline int indexer_check_write(const indexer_rules *r, const attn_indexer_write_t *given,
                                      attn_indexer_write_t *a, attn_error_t *error) {
    int status = attn_intake(a, sizeof *a, given, "args", error);
    if (status == ATTN_OK) status = indexer_check_cache(r, a->cache, error);
    if (status == ATTN_OK)
        status = indexer_check(r, a->slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, 0, 0, 0, 0, error);
    if (status == ATTN_OK && a->slot_mapping->shape[0] > INT32_MAX / 2)
        status = attn_fail(error, ATTN_E_INVALID, "slot_mapping",
                           "slot_mapping has %lld entries; at most %d are served",
                           (long long)a->slot_mapping->shape[0], INT32_MAX / 2);
    if (status == ATTN_OK)
        status = indexer_check(r, a->key, "key", r->p.dtype, 2, a->slot_mapping->shape[0], r->p.head_size, 0,
                               1, error);
    return status;
}

static inline int indexer_check_gather(const indexer_rules *r, const attn_indexer_gather_t *given,
                                       attn_indexer_gather_t *a, attn_error_t *error) {
    int status = attn_intake(a, sizeof *a, given, "args", error);
    if (status == ATTN_OK) status = indexer_check_count(a->num_reqs, "num_reqs", error);
    if (status == ATTN_OK) status = indexer_check_cache(r, a->cache, error);
    if (status == ATTN_OK)
        status = indexer_check(r, a->block_table, "block_table", ATTN_DTYPE_INT32, 2, a->num_reqs, -1, 0, 0,
                               error);
    if (status == ATTN_OK)
        status = indexer_check(r, a->prefix, "prefix", ATTN_DTYPE_INT32, 1, (int64_t)a->num_reqs + 1, 0, 0, 0,
                               error);
    if (status == ATTN_OK)
        status = indexer_check(r, a->keys, "keys", ATTN_DTYPE_FP8_E4M3, 2, 0, r->p.head_size, 0, 1, error);
    if (status == ATTN_OK && a->keys->shape[0] > INT32_MAX / 2)
        status = attn_fail(error, ATTN_E_INVALID, "keys", "keys has %lld rows; at most %d are served",
                           (long long)a->keys->shape[0], INT32_MAX / 2);
    if (status == ATTN_OK)
        status = indexer_check(r, a->key_scales, "key_scales", ATTN_DTYPE_FLOAT32, 1, a->keys->shape[0], 0, 0,
                               1, error);
    return status;
}

static inline int indexer_check_quantize(const indexer_rules *r, const attn_indexer_quantize_t *given,
                                         attn_indexer_quantize_t *a, attn_error_t *error) {
    const int64_t heads = r->p.num_heads, size = r->p.head_size;
    int status = attn_intake(a, sizeof *a, given, "args", error);
    if (status == ATTN_OK) status = indexer_check_count(a->num_rows, "num_rows", error);
    if (status == ATTN_OK)
        status = indexer_check(r, a->query, "query", r->p.dtype, 3, a->num_rows, heads, size, 1, error);
    if (status == ATTN_OK) {
        int is_f32 = a->weights != NULL && attn_dtype_of(a->weights->dtype) == ATTN_DTYPE_FLOAT32;
        status = indexer_check(r, a->weights, "weights", is_f32 ? ATTN_DTYPE_FLOAT32 : r->p.dtype, 2,
                               a->num_rows, heads, 0, 0, error);
    }
    if (status == ATTN_OK)
        status = indexer_check(r, a->quantized, "quantized", ATTN_DTYPE_FP8_E4M3, 3, a->num_rows, heads, size,
                               1, error);
    if (status == ATTN_OK)
        status = indexer_check(r, a->out_weights, "out_weights", ATTN_DTYPE_FLOAT32, 2, a->num_rows, heads, 0,
                               0, error);
    return status;
}

/* Query, weights and the rows of logits, which both forms have. */
static inline int indexer_check_rows(const indexer_rules *r, int32_t num_rows, uint32_t flags,
                                     const DLTensor *query, const DLTensor *weights, const DLTensor *logits,
                                     int64_t columns, attn_error_t *error) {
    int status = indexer_check_count(num_rows, "num_rows", error);
    if (status == ATTN_OK && (flags & ~ATTN_INDEXER_CLEAN) != 0)
        status = attn_fail(error, ATTN_E_TOO_NEW, "flags", "flags are 0x%x; this build knows 0x%x", flags,
                           ATTN_INDEXER_CLEAN);
    if (status == ATTN_OK)
        status = indexer_check(r, query, "query", ATTN_DTYPE_FP8_E4M3, 3, num_rows, r->p.num_heads,
                               r->p.head_size, 1, error);
    if (status == ATTN_OK)
        status = indexer_check(r, weights, "weights", ATTN_DTYPE_FLOAT32, 2, num_rows, r->p.num_heads, 0, 0,
                               error);
    if (status == ATTN_OK)
        status = indexer_check(r, logits, "logits", ATTN_DTYPE_FLOAT32, 2, num_rows, -1, 0, 0, error);
    if (status == ATTN_OK && (logits->shape[1] < columns || logits->shape[1] > INT32_MAX / 2))
        status = attn_fail(error, ATTN_E_INVALID, "logits", "logits has %lld columns; expected %lld to %d",
                           (long long)logits->shape[1], (long long)columns, INT32_MAX / 2);
    return status;
}

static inline int indexer_check_logits(const indexer_rules *r, const attn_indexer_logits_t *given,
                                       attn_indexer_logits_t *a, attn_error_t *error) {
    int status = attn_intake(a, sizeof *a, given, "args", error);
    if (status == ATTN_OK)
        status = indexer_check(r, a->keys, "keys", ATTN_DTYPE_FP8_E4M3, 2, 0, r->p.head_size, 0, 1, error);
    if (status == ATTN_OK)
        status = indexer_check_rows(r, a->num_rows, a->flags, a->query, a->weights, a->logits,
                                    a->keys->shape[0], error);
    if (status == ATTN_OK)
        status = indexer_check(r, a->key_scales, "key_scales", ATTN_DTYPE_FLOAT32, 1, a->keys->shape[0], 0, 0,
                               1, error);
    if (status == ATTN_OK)
        status =
            indexer_check(r, a->row_starts, "row_starts", ATTN_DTYPE_INT32, 1, a->num_rows, 0, 0, 0, error);
    if (status == ATTN_OK)
        status = indexer_check(r, a->row_ends, "row_ends", ATTN_DTYPE_INT32, 1, a->num_rows, 0, 0, 0, error);
    return status;
}

static inline int indexer_check_paged(const indexer_rules *r, const attn_indexer_paged_t *given,
                                      attn_indexer_paged_t *a, attn_error_t *error) {
    int status = attn_intake(a, sizeof *a, given, "args", error);
    if (status == ATTN_OK && a->rows_per_request == 0) a->rows_per_request = 1;
    if (status == ATTN_OK && (a->rows_per_request < 0 || a->rows_per_request > 8))
        status = attn_fail(error, ATTN_E_INVALID, "rows_per_request",
                           "rows_per_request is %d; expected 1 to 8", a->rows_per_request);
    if (status == ATTN_OK && a->num_rows % a->rows_per_request != 0)
        status = attn_fail(error, ATTN_E_INVALID, "num_rows",
                           "num_rows is %d; expected a multiple of rows_per_request (%d)", a->num_rows,
                           a->rows_per_request);
    if (status == ATTN_OK) status = indexer_check_cache(r, a->cache, error);
    if (status == ATTN_OK)
        status = indexer_check_rows(r, a->num_rows, a->flags, a->query, a->weights, a->logits, 0, error);
    if (status == ATTN_OK)
        status = indexer_check(r, a->block_table, "block_table", ATTN_DTYPE_INT32, 2,
                               a->num_rows / a->rows_per_request, -1, 0, 0, error);
    if (status == ATTN_OK)
        status = indexer_check(r, a->row_lens, "row_lens", ATTN_DTYPE_INT32, 1, a->num_rows, 0, 0, 0, error);
    return status;
}

/* Keys that a row can have: what the table holds, cut to the columns. */
static inline int32_t indexer_paged_keys(const indexer_rules *r, const attn_indexer_paged_t *a) {
    int64_t n = a->block_table->shape[1] * (int64_t)r->p.block_size;
    return (int32_t)(n < a->logits->shape[1] ? n : a->logits->shape[1]);
}

static inline int indexer_check_select(const indexer_rules *r, const attn_indexer_select_t *given,
                                       attn_indexer_select_t *a, attn_error_t *error) {
    int status = attn_intake(a, sizeof *a, given, "args", error);
    if (status == ATTN_OK) status = indexer_check_count(a->num_rows, "num_rows", error);
    if (status == ATTN_OK)
        status = indexer_check(r, a->logits, "logits", ATTN_DTYPE_FLOAT32, 2, a->num_rows, -1, 0, 0, error);
    if (status == ATTN_OK && a->logits->shape[1] > INT32_MAX / 2)
        status = attn_fail(error, ATTN_E_INVALID, "logits", "logits has %lld columns; at most %d are served",
                           (long long)a->logits->shape[1], INT32_MAX / 2);
    if (status == ATTN_OK && a->row_starts != NULL)
        status =
            indexer_check(r, a->row_starts, "row_starts", ATTN_DTYPE_INT32, 1, a->num_rows, 0, 0, 0, error);
    if (status == ATTN_OK)
        status = indexer_check(r, a->row_ends, "row_ends", ATTN_DTYPE_INT32, 1, a->num_rows, 0, 0, 0, error);
    if (status == ATTN_OK)
        status =
            indexer_check(r, a->indices, "indices", ATTN_DTYPE_INT32, 2, a->num_rows, r->p.topk, 0, 0, error);
    return status;
}

#endif
