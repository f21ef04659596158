/* SPDX-License-Identifier: Apache-2.0 */
/* update_kv_cache: checks, and one launch of the cache writer. */
#include "flash_instance.h"

int flash_update_kv_cache(attn_instance_t *in, const attn_kv_update_t *args, void *stream,
                          attn_error_t *error) {
    attn_kv_update_t a;
    gpu_cache_view c;
    int stride = -1;
    int status = attn_intake(&a, sizeof a, args, "args", error);
    if (status == ATTN_OK && !in->has_cache)
        status = attn_fail(error, ATTN_E_STATE, "kv_cache", "role %s has no cache to update",
                           attn_role_name(in->problem.role));
    if (status == ATTN_OK) status = flash_view_cache(in, a.kv_cache, a.v_cache, &c, error);
    if (status == ATTN_OK) status = gpu_check_slots(a.slot_mapping, INT32_MAX, error);
    int64_t rows = status == ATTN_OK ? a.slot_mapping->shape[0] : 0;
    if (status == ATTN_OK)
        status = gpu_check_rows(a.key, "key", in->problem.dtype, in->kv_heads, in->d, rows, 16, error);
    if (status == ATTN_OK)
        status = gpu_check_rows(a.value, "value", in->problem.dtype, in->kv_heads, in->dv, rows, 16, error);
    if (status == ATTN_OK) status = gpu_check_scale(a.scales.k, "k_scale", in->kv_heads, &stride, error);
    if (status == ATTN_OK) status = gpu_check_scale(a.scales.v, "v_scale", in->kv_heads, &stride, error);
    if (status != ATTN_OK || rows == 0) return status;
    flash_write_params w;
    memset(&w, 0, sizeof w);
    w.key = attn_data(a.key), w.value = attn_data(a.value), w.k_cache = c.k, w.v_cache = c.v;
    w.slots = attn_data(a.slot_mapping), w.num_slots_total = c.pages * in->page_size;
    if (in->kv_dtype == FLASH_E4M3) {
        w.k_scale = a.scales.k ? attn_data(a.scales.k) : NULL;
        w.v_scale = a.scales.v ? attn_data(a.scales.v) : NULL;
        w.scale_stride = stride > 0;
    }
    w.key_token = a.key->strides[0], w.key_head = a.key->strides[1];
    w.value_token = a.value->strides[0], w.value_head = a.value->strides[1];
    w.k_page = c.k_page, w.k_token = c.k_token, w.k_head = c.k_head;
    w.v_page = c.v_page, w.v_token = c.v_token, w.v_head = c.v_head;
    w.num_tokens = (int)rows, w.num_kv_heads = in->kv_heads, w.head_size = in->d, w.head_size_v = in->dv;
    w.page_size = in->page_size, w.dtype = in->out_dtype, w.kv_dtype = in->kv_dtype;
    gpu_device_guard guard;
    status = gpu_enter(in->device_id, &guard, error);
    if (status != ATTN_OK) return status;
    int e = flash_write_cache(&w, stream);
    gpu_leave(&guard);
    return e ? gpu_fail(error, e, "writing the cache") : ATTN_OK;
}
