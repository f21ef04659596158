/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor map by which the Hopper decode kernel reads the cache, and the launch. Encoded anew for each call (about
 * 0.1 us) because it holds the address. Free of the ABI: also linked into bench/mla_decode_bench. */
#include "mla_decode_sm90.h"

#include <cuda_runtime_api.h>

typedef CUresult (*encode_tiled_t)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                   const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                   CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                   CUtensorMapFloatOOBfill);

int mla_decode_sm90_load(void **encode_tiled, int dtype, int ctas) {
    enum cudaDriverEntryPointQueryResult found;
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", encode_tiled, 12000,
                                                     cudaEnableDefault, &found);
    if (e != cudaSuccess) return (int)e;
    if (found != cudaDriverEntryPointSuccess) return (int)cudaErrorCallRequiresNewerDriver;
    return dtype == MLA_BF16 ? mla_decode_sm90_bf16(NULL, ctas, 0, NULL)
                             : mla_decode_sm90_f16(NULL, ctas, 0, NULL);
}

int mla_decode_sm90_run(void *encode_tiled, const mla_attend_params *params, int ctas, int parts,
                        void *stream) {
    const int columns = params->latent_rank + MLA_ROPE;
    mla_decode_sm90_params p = {.p = *params, .box_rows = MLA_TILE_KEYS};
    while (params->page_size % p.box_rows != 0)
        p.box_rows /= 2;
    const cuuint64_t dims[3] = {(cuuint64_t)columns, (cuuint64_t)params->page_size,
                                (cuuint64_t)(params->num_pages > 0 ? params->num_pages : 1)},
                     strides[2] = {(cuuint64_t)params->cache_row, (cuuint64_t)params->cache_page};
    const cuuint32_t box[3] = {64, (cuuint32_t)p.box_rows, 1}, ones[3] = {1, 1, 1};
    /* 128-byte swizzle, zeros outside, and no L2 promotion: it fetches neighbours that nobody asked for */
    CUresult r = ((encode_tiled_t)encode_tiled)(
        &p.keys,
        params->dtype == MLA_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
        (void *)(uintptr_t)params->cache, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS) return (int)cudaErrorInvalidValue;
    return params->dtype == MLA_BF16 ? mla_decode_sm90_bf16(&p, ctas, parts, stream)
                                     : mla_decode_sm90_f16(&p, ctas, parts, stream);
}
