/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of a call as addresses and strides. */
#include "triton_instance.h"

/* Kernels that copy rows wherever they begin count 16 of them in 32 bits. */
static int check_token_stride(const DLTensor *t, const char *name, attn_error_t *error) {
    const int64_t stride = attn_byte_stride(t, 2);
    if (stride >= 0 && stride <= INT32_MAX / 16) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, name,
                     "%s has a stride of %lld bytes between tokens; 0 to %d are served", name,
                     (long long)stride, INT32_MAX / 16);
}

int triton_view_cache(const attn_instance_t *in, const DLTensor *kv, const DLTensor *v, gpu_cache_view *view,
                      attn_error_t *error) {
    const attn_problem_t *p = &in->problem;
    const call_cache_t c = {.role = p->role,
                            .kv = p->kv_cache_dtype,
                            .storage = attn_kv_storage(p->kv_cache_dtype, p->dtype),
                            .kv_heads = in->kv_heads,
                            .block_size = in->config.page,
                            .head_size = in->config.d,
                            .head_size_v = in->config.dv,
                            .is_separate = in->is_separate,
                            .layout = in->layout,
                            .dtype = p->dtype};
    int status = gpu_view_cache(&c, in->config.kv_align, kv, v, view, error);
    if (status == ATTN_OK && in->config.k_apart) { /* bytes to elements of V; kv_align divides what is free */
        const int64_t bytes = in->config.v_channels ? 1 : (int64_t)attn_dtype_size(p->dtype);
        view->v_page /= bytes, view->v_head /= bytes, view->v_token /= bytes;
    }
    if (status == ATTN_OK && (in->config.joint || in->config.packed))
        status = check_token_stride(kv, "kv_cache", error);
    if (status == ATTN_OK && in->config.packed && in->is_separate)
        status = check_token_stride(v, "v_cache", error);
    return status;
}

int triton_view_channels(const attn_instance_t *in, const DLTensor *v_scale, int64_t *head, int64_t *channel,
                         attn_error_t *error) {
    int status = call_check_channel_scale(v_scale, in->kv_heads, in->config.dv, error);
    if (status == ATTN_OK) status = gpu_check_tensor_device(v_scale, "v_scale", error);
    if (status != ATTN_OK) return status;
    *head = v_scale->ndim == 2 ? v_scale->strides[0] : 0;
    *channel = v_scale->ndim == 2 ? v_scale->strides[1] : 0;
    return ATTN_OK;
}
