/* SPDX-License-Identifier: Apache-2.0 */
/* What goes into buffers that stay: cache rows and weights. Also the checks of tensors that all calls
 * share. */
#include "mla_instance.h"

int mla_check_scale(const DLTensor *t, const char *name, attn_error_t *error) {
    int stride = -1;
    return gpu_check_scale(t, name, 1, &stride, error);
}

int mla_check_cache(const attn_instance_t *in, const DLTensor *t, const DLTensor *v_cache,
                    attn_error_t *error) {
    const int64_t shape[3] = {-1, in->page_size, in->row_elements};
    if (v_cache != NULL)
        return attn_fail(error, ATTN_E_INVALID, "v_cache",
                         "v_cache was given; latent caches have one tensor");
    int status = attn_check_tensor(t, "kv_cache", in->storage, 3, shape, error);
    return status == ATTN_OK ? gpu_check_pages(t, "kv_cache", 16, error) : status;
}

/* kv_c is [n, L]; k_pe is [n, R] or [n, 1, R]. */
static int check_new_rows(const attn_instance_t *in, const DLTensor *t, const char *name, int64_t size,
                          int64_t rows, attn_error_t *error) {
    const int64_t flat[2] = {-1, size}, one_head[3] = {-1, 1, size};
    int is_flat = t == NULL || t->ndim != 3;
    int status =
        attn_check_tensor(t, name, in->problem.dtype, is_flat ? 2 : 3, is_flat ? flat : one_head, error);
    if (status == ATTN_OK) status = gpu_check_tensor_device(t, name, error);
    if (status == ATTN_OK) status = gpu_check_alignment(t, name, 16, error);
    if (status == ATTN_OK && t->shape[0] < rows)
        status = attn_fail(error, ATTN_E_INVALID, name, "%s has %lld rows; slot_mapping has %lld", name,
                           (long long)t->shape[0], (long long)rows);
    return status;
}

int mla_update_kv_cache(attn_instance_t *in, const attn_kv_update_t *args, void *stream,
                        attn_error_t *error) {
    attn_kv_update_t a;
    int status = attn_intake(&a, sizeof a, args, "args", error);
    if (status == ATTN_OK) status = mla_check_cache(in, a.kv_cache, a.v_cache, error);
    if (status == ATTN_OK) status = gpu_check_slots(a.slot_mapping, INT32_MAX, error);
    int64_t rows = status == ATTN_OK ? a.slot_mapping->shape[0] : 0;
    if (status == ATTN_OK) status = check_new_rows(in, a.key, "key", in->latent, rows, error);
    if (status == ATTN_OK) status = check_new_rows(in, a.value, "value", in->rope, rows, error);
    if (status == ATTN_OK) status = mla_check_scale(a.scales.k, "k_scale", error);
    if (status != ATTN_OK || rows == 0) return status;
    mla_write_params w = {.kv_c = attn_data(a.key),
                          .k_pe = attn_data(a.value),
                          .slots = attn_data(a.slot_mapping),
                          .k_scale = a.scales.k ? attn_data(a.scales.k) : NULL,
                          .cache = attn_data(a.kv_cache),
                          .num_slots_total = a.kv_cache->shape[0] * in->page_size,
                          .cache_page = attn_byte_stride(a.kv_cache, 0),
                          .cache_row = attn_byte_stride(a.kv_cache, 1),
                          .kv_c_row = a.key->strides[0],
                          .k_pe_row = a.value->strides[0],
                          .num_tokens = rows,
                          .latent_rank = in->latent,
                          .page_size = in->page_size,
                          .dtype = in->dtype,
                          .cache_kind = in->cache_kind};
    gpu_device_guard guard;
    status = in->backend->device->enter(in, &guard, error);
    if (status != ATTN_OK) return status;
    int e = in->backend->device->write_cache(in, &w, stream);
    in->backend->device->leave(in, &guard);
    return e ? in->backend->device->fail(in, error, e, "writing the cache") : ATTN_OK;
}

int mla_prepare_weights(attn_instance_t *in, const attn_weights_t *weights, void *stream,
                        attn_error_t *error) {
    attn_weights_t w;
    int status = attn_intake(&w, sizeof w, weights, "weights", error);
    if (status != ATTN_OK) return status;
    if (!in->projects)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "weights",
                         "%s has no weights with feature latent: the caller projects", in->backend->name);
    const int64_t rows = (int64_t)in->heads * (in->nope + in->value), shape[2] = {rows, in->latent};
    int is_e4m3 = w.kv_b_proj != NULL && attn_dtype_of(w.kv_b_proj->dtype) == ATTN_DTYPE_FP8_E4M3;
    status = attn_check_tensor(w.kv_b_proj, "kv_b_proj",
                               is_e4m3 ? (uint32_t)ATTN_DTYPE_FP8_E4M3 : in->problem.dtype, 2, shape, error);
    if (status == ATTN_OK) status = gpu_check_tensor_device(w.kv_b_proj, "kv_b_proj", error);
    int is_blocks = 0;
    const DLTensor *t = w.kv_b_proj_scale;
    if (status == ATTN_OK) status = call_check_weight_scale(t, is_e4m3, rows, in->latent, &is_blocks, error);
    if (status == ATTN_OK && t != NULL) status = gpu_check_tensor_device(t, "kv_b_proj_scale", error);
    if (status != ATTN_OK) return status;
    const mla_weight_scale scale = {t != NULL ? attn_data(t) : NULL, is_blocks ? t->strides[0] : 0,
                                    is_blocks ? t->strides[1] : 0};
    if (w.weight_space == NULL || w.weight_space_bytes < in->weight_bytes)
        return attn_fail(error, ATTN_E_SPACE, "weight_space",
                         "weight_space has %llu bytes; space_needed says %llu",
                         (unsigned long long)(w.weight_space ? w.weight_space_bytes : 0),
                         (unsigned long long)in->weight_bytes);
    gpu_device_guard guard;
    status = in->backend->device->enter(in, &guard, error);
    if (status != ATTN_OK) return status;
    int e = in->backend->device->copy_weights(in, w.weight_space, attn_data(w.kv_b_proj), rows,
                                              w.kv_b_proj->strides[0], is_e4m3, &scale, stream);
    in->backend->device->leave(in, &guard);
    return e ? in->backend->device->fail(in, error, e, "copying the weights") : ATTN_OK;
}
