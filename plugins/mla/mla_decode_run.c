/* SPDX-License-Identifier: Apache-2.0 */
/* From an instance to the launch of the Hopper decode kernel: the tensor map of the cache is encoded anew for each call
 * (about 0.1 us) because it holds the address. */
#include "mla_decode_sm90.h"
#include "mla_instance.h"

#include <cuda_runtime_api.h>

typedef CUresult (*encode_tiled_t)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                   const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                   CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                   CUtensorMapFloatOOBfill);

static int start(const attn_instance_t *in, const mla_decode_sm90_params *p, void *stream) {
    return in->dtype == MLA_BF16 ? mla_decode_sm90_bf16(p, in->config.ctas, in->config.parts, stream)
                                 : mla_decode_sm90_f16(p, in->config.ctas, in->config.parts, stream);
}

int mla_choose_kernel(attn_instance_t *in, attn_error_t *error) {
    mla_config_input input = {.compute_capability = in->compute_capability,
                              .num_sms = in->num_sms,
                              .heads = in->heads,
                              .latent = in->latent,
                              .cache_kind = in->cache_kind,
                              .is_sparse = in->problem.topk != 0,
                              .scale = in->problem.scale,
                              .portable = in->portable};
    if (in->compute_capability == 90) {
        mla_device_guard guard;
        int status = mla_enter_device(in, &guard, error);
        if (status != ATTN_OK) return status;
        int e = mla_decode_sm90_clusters(&input.clusters);
        mla_leave_device(&guard);
        if (e) return mla_fail_cuda(error, e, "asking how many clusters run at once");
    }
    in->config = mla_config_choose(&input);
    return ATTN_OK;
}

int mla_run_decode_sm90(const attn_instance_t *in, const mla_attend_params *params, void *stream) {
    if (params == NULL) return start(in, NULL, stream);
    mla_decode_sm90_params p = {.p = *params, .box_rows = MLA_TILE_KEYS};
    while (in->page_size % p.box_rows != 0)
        p.box_rows /= 2;
    const cuuint64_t dims[3] = {(cuuint64_t)(in->latent + MLA_ROPE), (cuuint64_t)in->page_size,
                                (cuuint64_t)(params->num_pages > 0 ? params->num_pages : 1)},
                     strides[2] = {(cuuint64_t)params->cache_row, (cuuint64_t)params->cache_page};
    const cuuint32_t box[3] = {64, (cuuint32_t)p.box_rows, 1}, ones[3] = {1, 1, 1};
    /* 128-byte swizzle, zeros outside, and no L2 promotion: it fetches neighbours that nobody asked for */
    CUresult r = ((encode_tiled_t)in->encode_tiled)(
        &p.keys,
        in->dtype == MLA_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
        (void *)(uintptr_t)params->cache, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? start(in, &p, stream) : (int)cudaErrorInvalidValue;
}

int mla_load_decode_sm90(attn_instance_t *in) {
    enum cudaDriverEntryPointQueryResult found;
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &in->encode_tiled, 12000,
                                                     cudaEnableDefault, &found);
    if (e != cudaSuccess) return (int)e;
    if (found != cudaDriverEntryPointSuccess) return (int)cudaErrorCallRequiresNewerDriver;
    return mla_run_decode_sm90(in, NULL, NULL);
}
