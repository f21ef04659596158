/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the tensors of a call: place, type, sizes, alignment; and the cache as addresses and strides. */
#include "triton_instance.h"

/* Kernels were compiled for rows that are aligned like their size: address and every stride of a dimension longer than 1. */
static int check_alignment(const DLTensor *t, const char *name, int bytes, attn_error_t *error) {
    if ((uintptr_t)attn_data(t) % (unsigned)bytes)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s begins at %p; an address that is a multiple of %d was wanted", name,
                         attn_data(t), bytes);
    for (int i = 0; i + 1 < t->ndim; i++)
        if (t->shape[i] > 1 && attn_byte_stride(t, i) % bytes)
            return attn_fail(error, ATTN_E_INVALID, name,
                             "%s has a stride of %lld bytes in dimension %d; a multiple of "
                             "%d was wanted",
                             name, (long long)attn_byte_stride(t, i), i, bytes);
    return ATTN_OK;
}

int triton_check_rows(const DLTensor *t, const char *name, uint32_t dtype, int heads, int size, int64_t rows,
                      int align, attn_error_t *error) {
    const int64_t shape[3] = {-1, heads, size};
    int status = attn_check_tensor(t, name, dtype, 3, shape, error);
    if (status == ATTN_OK && t->shape[0] < rows)
        status = attn_fail(error, ATTN_E_INVALID, name, "%s has %lld rows; %lld were wanted", name,
                           (long long)t->shape[0], (long long)rows);
    if (status == ATTN_OK && rows > 0) status = gpu_check_tensor_device(t, name, error);
    return status == ATTN_OK && rows > 0 ? check_alignment(t, name, align, error) : status;
}

int triton_check_scale(const attn_instance_t *in, const DLTensor *t, const char *name, int *stride,
                       attn_error_t *error) {
    if (t == NULL) return ATTN_OK;
    int status = attn_check_tensor(t, name, ATTN_DTYPE_FLOAT32, t->ndim == 0 ? 0 : 1, NULL, error);
    if (status == ATTN_OK) status = gpu_check_tensor_device(t, name, error);
    if (status != ATTN_OK) return status;
    int64_t n = t->ndim == 0 ? 1 : t->shape[0];
    if (n != 1 && n != in->kv_heads)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s has %lld elements; 1 or %d (one per KV head) were wanted", name, (long long)n,
                         in->kv_heads);
    int own = n > 1;
    if (*stride >= 0 && own != *stride)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s has %lld elements, unlike the other scale; their sizes must "
                         "agree",
                         name, (long long)n);
    *stride = own;
    return ATTN_OK;
}

static int check_cache(const attn_instance_t *in, const DLTensor *t, const char *name, int64_t content,
                       attn_error_t *error) {
    const int64_t shape[4] = {-1, in->kv_heads, in->config.page, content};
    uint32_t storage = attn_kv_storage(in->problem.kv_cache_dtype, in->problem.dtype);
    int status = attn_check_tensor(t, name, storage, 4, shape, error);
    if (status == ATTN_OK) status = gpu_check_tensor_device(t, name, error);
    if (status == ATTN_OK) status = check_alignment(t, name, in->config.kv_align, error);
    if (status == ATTN_OK && in->config.joint && attn_byte_stride(t, 2) > INT32_MAX / 16)
        status = attn_fail(error, ATTN_E_INVALID, name,
                           "%s has a stride of %lld bytes between tokens; at most %d are served", name,
                           (long long)attn_byte_stride(t, 2), INT32_MAX / 16);
    if (status == ATTN_OK && t->shape[0] > INT32_MAX)
        status = attn_fail(error, ATTN_E_INVALID, name, "%s has %lld blocks; block ids are 32-bit", name,
                           (long long)t->shape[0]);
    return status;
}

int triton_view_cache(const attn_instance_t *in, const DLTensor *kv, const DLTensor *v,
                      triton_cache_view_t *view, attn_error_t *error) {
    int64_t tail = in->config.token_head ? 4 : 0, k_row = in->config.d + tail, v_row = in->config.dv + tail;
    int status = check_cache(in, kv, "kv_cache", in->is_separate ? k_row : k_row + v_row, error);
    if (status == ATTN_OK && in->is_separate) status = check_cache(in, v, "v_cache", v_row, error);
    if (status == ATTN_OK && !in->is_separate && v != NULL)
        status = attn_fail(error, ATTN_E_INVALID, "v_cache",
                           "v_cache was given, but the problem has no feature separate_kv; ask for it");
    if (status == ATTN_OK && in->is_separate && v->shape[0] != kv->shape[0])
        status = attn_fail(error, ATTN_E_INVALID, "v_cache", "v_cache has %lld blocks, kv_cache %lld",
                           (long long)v->shape[0], (long long)kv->shape[0]);
    if (status != ATTN_OK) return status;
    const DLTensor *vt = in->is_separate ? v : kv;
    view->pages = kv->shape[0];
    view->k = attn_data(kv);
    view->v = (char *)attn_data(vt) + (in->is_separate ? 0 : k_row * (int64_t)(kv->dtype.bits / 8u));
    view->k_page = kv->strides[0];
    view->k_head = kv->strides[1];
    view->k_token = kv->strides[2];
    view->v_page = vt->strides[0];
    view->v_head = vt->strides[1];
    view->v_token = vt->strides[2];
    return ATTN_OK;
}
