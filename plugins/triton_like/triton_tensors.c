/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of a call as addresses and strides. */
#include "triton_instance.h"

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
                            .is_separate = in->is_separate};
    int status = gpu_view_cache(&c, in->config.kv_align, kv, v, view, error);
    if (status == ATTN_OK && in->config.joint && attn_byte_stride(kv, 2) > INT32_MAX / 16)
        status = attn_fail(error, ATTN_E_INVALID, "kv_cache",
                           "kv_cache has a stride of %lld bytes between tokens; at most %d are served",
                           (long long)attn_byte_stride(kv, 2), INT32_MAX / 16);
    return status;
}
