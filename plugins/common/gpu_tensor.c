/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the tensors of a call on a GPU. */
#include "gpu_tensor.h"

#include "output_scales.h"

int gpu_check_tensor_device(const DLTensor *t, const char *name, attn_error_t *error) {
    if (t->device.device_type == kDLCUDA || t->device.device_type == kDLCUDAManaged) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, name, "%s is on device type %d; expected a CUDA tensor", name,
                     (int)t->device.device_type);
}

int gpu_check_alignment(const DLTensor *t, const char *name, int bytes, attn_error_t *error) {
    const uint64_t odd = (uint64_t)bytes - 1; /* divisions cost half of a forward's own time */
    if (t->shape[0] > 0 && ((uintptr_t)attn_data(t) & odd) != 0)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s begins at %p; expected an address that is a multiple of %d", name, attn_data(t),
                         bytes);
    for (int i = 0; i + 1 < t->ndim; i++)
        if (t->shape[i] > 1 && ((uint64_t)attn_byte_stride(t, i) & odd) != 0)
            return attn_fail(error, ATTN_E_INVALID, name,
                             "%s has a stride of %lld bytes in dimension %d; expected a multiple of %d", name,
                             (long long)attn_byte_stride(t, i), i, bytes);
    return ATTN_OK;
}

int gpu_check_rows(const DLTensor *t, const char *name, uint32_t dtype, int64_t heads, int64_t size,
                   int64_t rows, int align, attn_error_t *error) {
    int status = call_check_rows(t, name, dtype, heads, size, rows, error);
    if (status != ATTN_OK || t->shape[0] == 0) return status;
    status = gpu_check_tensor_device(t, name, error);
    return status == ATTN_OK ? gpu_check_alignment(t, name, align, error) : status;
}

int gpu_check_key_rows(const DLTensor *t, const char *name, uint32_t dtype, int64_t heads, int64_t size,
                       int64_t rows, int align, attn_error_t *error) {
    int status = call_check_key_rows(t, name, dtype, heads, size, rows, error);
    return status == ATTN_OK ? gpu_check_rows(t, name, dtype, heads, size, 0, align, error) : status;
}

int gpu_check_vector(const DLTensor *t, const char *name, const char *feature, int is_wanted, int64_t heads,
                     attn_error_t *error) {
    int status = call_check_vector(t, name, feature, is_wanted, heads, error);
    return status == ATTN_OK && t != NULL ? gpu_check_tensor_device(t, name, error) : status;
}

int gpu_check_lse(const DLTensor *t, int64_t heads, int64_t tokens, attn_error_t *error) {
    int status = call_check_lse(t, heads, tokens, error);
    return status == ATTN_OK && t != NULL ? gpu_check_tensor_device(t, "lse", error) : status;
}

int gpu_check_slots(const DLTensor *t, int64_t most, attn_error_t *error) {
    int status = attn_check_tensor(t, "slot_mapping", ATTN_DTYPE_INT64, 1, NULL, error);
    if (status == ATTN_OK && t->shape[0] > 0) status = gpu_check_tensor_device(t, "slot_mapping", error);
    if (status == ATTN_OK && t->shape[0] > most)
        status = attn_fail(error, ATTN_E_INVALID, "slot_mapping",
                           "slot_mapping has %lld entries; at most %lld are served", (long long)t->shape[0],
                           (long long)most);
    return status;
}

int gpu_check_scale(const DLTensor *t, const char *name, int64_t heads, int *stride, attn_error_t *error) {
    if (t == NULL) return ATTN_OK;
    int status = call_check_scale(t, name, heads, error);
    if (status == ATTN_OK) status = gpu_check_tensor_device(t, name, error);
    if (status != ATTN_OK) return status;
    const int own = t->ndim != 0 && t->shape[0] > 1;
    if (*stride >= 0 && own != *stride)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s has %lld values, unlike the other scale; their sizes must agree", name,
                         t->ndim != 0 ? (long long)t->shape[0] : 1LL);
    *stride = own;
    return ATTN_OK;
}

int gpu_check_output_scales(const attn_forward_t *a, uint64_t features, int64_t width, int64_t tokens,
                            attn_error_t *error) {
    int stride = -1, status = output_scales_given(a, features, error);
    if (status == ATTN_OK) status = gpu_check_scale(a->output_scale, "output_scale", 1, &stride, error);
    if (status != ATTN_OK || a->output_block_scale == NULL) return status;
    status = output_block_scale_check(a->output_block_scale, features, width, tokens, error);
    return status == ATTN_OK ? gpu_check_tensor_device(a->output_block_scale, "output_block_scale", error)
                             : status;
}

int gpu_check_pages(const DLTensor *t, const char *name, int align, attn_error_t *error) {
    int status = gpu_check_tensor_device(t, name, error);
    if (status == ATTN_OK) status = gpu_check_alignment(t, name, align, error);
    if (status == ATTN_OK && t->shape[0] > INT32_MAX)
        status = attn_fail(error, ATTN_E_INVALID, name, "%s has %lld blocks; block ids are 32-bit", name,
                           (long long)t->shape[0]);
    return status;
}

/* Only the distance between whole pages is free, so that only it is looked at beside the address. */
static int view_whole_pages(const call_cache_t *c, int align, const DLTensor *kv, gpu_cache_view *view,
                            attn_error_t *error) {
    const attn_kv_page_t page = call_cache_page(c);
    char *const at = attn_data(kv);
    DLTensor pages = *kv;
    pages.ndim = 2; /* the block's dimension, and one that is not looked at */
    int status = gpu_check_pages(&pages, "kv_cache", align, error);
    if (status != ATTN_OK) return status;
    *view = (gpu_cache_view){.k = at + page.values[0].at,
                             .v = at + page.values[1].at,
                             .pages = kv->shape[0],
                             .k_page = kv->strides[0],
                             .k_head = page.values[0].head,
                             .k_token = page.values[0].token,
                             .v_page = kv->strides[0],
                             .v_head = page.values[1].head,
                             .v_token = page.values[1].token};
    for (int i = 0; i < 2; i++)
        if (page.scales[i].row != 0)
            view->scales[i] = (gpu_scales_view){at + page.scales[i].at, kv->strides[0], page.scales[i].head,
                                                page.scales[i].token};
    return ATTN_OK;
}

int gpu_view_cache(const call_cache_t *c, int align, const DLTensor *kv, const DLTensor *v,
                   gpu_cache_view *view, attn_error_t *error) {
    int status = call_check_caches(c, kv, v, error);
    if (status == ATTN_OK && attn_kv_is_whole_page(c->kv)) return view_whole_pages(c, align, kv, view, error);
    if (status == ATTN_OK) status = gpu_check_pages(kv, "kv_cache", align, error);
    if (status == ATTN_OK && c->is_separate) status = gpu_check_pages(v, "v_cache", align, error);
    if (status != ATTN_OK) return status;
    const DLTensor *vt = c->is_separate ? v : kv;
    const int64_t k_bytes = call_cache_row_bytes(c, 0);
    *view = (gpu_cache_view){.k = attn_data(kv),
                             .v = (char *)attn_data(vt) + (c->is_separate ? 0 : k_bytes),
                             .pages = kv->shape[0],
                             .k_page = kv->strides[0],
                             .k_head = kv->strides[1],
                             .k_token = kv->strides[2],
                             .v_page = vt->strides[0],
                             .v_head = vt->strides[1],
                             .v_token = vt->strides[2]};
    return ATTN_OK;
}
