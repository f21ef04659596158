/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor maps by which the Hopper decode kernels read the cache and the queries, and the launch. Encoded
 * anew for each call (about 0.1 us each) because they hold addresses. Free of the ABI: also linked into
 * bench/mla_decode_bench. */
#include "mla_decode_sm90.h"
#include "../tensor_map.h"

int mla_decode_sm90_load(void **encode_tiled, int dtype, int cache_kind, int ctas) {
    int e = tensor_map_find(encode_tiled);
    if (e) return e;
    if (cache_kind == MLA_CACHE_E4M3) return mla_decode_sm90_e4m3(NULL, dtype, ctas, 0, NULL);
    return dtype == MLA_BF16 ? mla_decode_sm90_bf16(NULL, ctas, 0, NULL)
                             : mla_decode_sm90_f16(NULL, ctas, 0, NULL);
}

int mla_decode_sm90_run(void *encode_tiled, const mla_attend_params *params, int ctas, int parts,
                        void *stream) {
    const tensor_map_encode_t encode = (tensor_map_encode_t)encode_tiled;
    const int is_e4m3 = params->cache_kind == MLA_CACHE_E4M3, columns = params->latent_rank + MLA_ROPE;
    const CUtensorMapDataType type =
        params->dtype == MLA_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    mla_decode_sm90_params p = {.p = *params, .ctas = ctas, .box_rows = MLA_TILE_KEYS};
    while (params->page_size % p.box_rows != 0)
        p.box_rows /= 2;
    const cuuint64_t dims[3] = {(cuuint64_t)columns, (cuuint64_t)params->page_size,
                                (cuuint64_t)(params->num_pages > 0 ? params->num_pages : 1)},
                     strides[2] = {(cuuint64_t)params->cache_row, (cuuint64_t)params->cache_page};
    const cuuint32_t box[3] = {is_e4m3 ? 128 : 64, (cuuint32_t)p.box_rows, 1},
                     rope_box[3] = {64, (cuuint32_t)p.box_rows, 1}, ones[3] = {1, 1, 1};
    /* 128-byte swizzle, zeros outside, and no L2 promotion: it fetches neighbours that nobody asked for */
    CUresult r =
        encode(&p.keys, is_e4m3 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : type, 3, (void *)(uintptr_t)params->cache,
               dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r == CUDA_SUCCESS && is_e4m3)
        r = encode(&p.rope, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, (void *)(uintptr_t)params->cache, dims, strides,
                   rope_box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_64B,
                   CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS) return (int)cudaErrorInvalidValue;
    if (is_e4m3) return mla_decode_sm90_e4m3(&p, params->dtype, ctas, parts, stream);
    const cuuint64_t row = (cuuint64_t)params->absorbed_row * 2, count = (cuuint64_t)params->absorbed_rows;
    const cuuint64_t rows[3] = {(cuuint64_t)params->latent_rank, count, 1},
                     row_strides[2] = {row, row * count};
    const cuuint32_t row_box[3] = {64, MLA_TILE_ROWS, 1};
    r = encode(&p.queries, type, 3, (void *)(uintptr_t)params->absorbed, rows, row_strides, row_box, ones,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS) return (int)cudaErrorInvalidValue;
    return params->dtype == MLA_BF16 ? mla_decode_sm90_bf16(&p, ctas, parts, stream)
                                     : mla_decode_sm90_f16(&p, ctas, parts, stream);
}

const mla_decode_sm90_kernels mla_decode_sm90_all = {.clusters = mla_decode_sm90_clusters,
                                                     .load = mla_decode_sm90_load,
                                                     .run = mla_decode_sm90_run,
                                                     .merge = mla_decode_sm90_merge};
