/* SPDX-License-Identifier: Apache-2.0 */
/* One element as a double, and a double rounded once to an element, as the host's attn_to_f16 and its
 * neighbours do it. */
#ifndef MERGE_ELEMENT_SM80_CUH
#define MERGE_ELEMENT_SM80_CUH

#include "merge_params.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace attn_cuda {

__device__ __forceinline__ int merge_size(int type) {
    return type == MERGE_F64 ? 8 : type == MERGE_F32 ? 4 : type >= MERGE_E4M3 ? 1 : 2;
}

/* Element i of an array. */
__device__ __forceinline__ double merge_load(int type, const void *at, int64_t i) {
    switch (type) {
    case MERGE_F32: return ((const float *)at)[i];
    case MERGE_F16: return __half2float(((const __half *)at)[i]);
    case MERGE_BF16: return __bfloat162float(((const __nv_bfloat16 *)at)[i]);
    case MERGE_E4M3:
        return __half2float(__half(__nv_cvt_fp8_to_halfraw(((const uint8_t *)at)[i], __NV_E4M3)));
    case MERGE_E5M2:
        return __half2float(__half(__nv_cvt_fp8_to_halfraw(((const uint8_t *)at)[i], __NV_E5M2)));
    default: return ((const double *)at)[i];
    }
}

__device__ __forceinline__ void merge_store(int type, void *at, int64_t i, double x) {
    switch (type) {
    case MERGE_F32: ((float *)at)[i] = (float)x; return;
    case MERGE_F16: ((__half *)at)[i] = __double2half(x); return;
    case MERGE_BF16: ((__nv_bfloat16 *)at)[i] = __double2bfloat16(x); return;
    default: ((double *)at)[i] = x;
    }
}

/* Four neighbours from i on, aligned to four. */
__device__ __forceinline__ void merge_load4(int type, const void *at, int64_t i, double (&x)[4]) {
    if (type == MERGE_F32) {
        const float4 v = *(const float4 *)((const float *)at + i);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else if (type == MERGE_F16 || type == MERGE_BF16) {
        const uint2 v = *(const uint2 *)((const uint16_t *)at + i);
        const uint32_t w[2] = {v.x, v.y};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint16_t bits = (uint16_t)(w[k >> 1] >> (k & 1) * 16);
            x[k] = merge_load(type, &bits, 0);
        }
    } else
#pragma unroll
        for (int k = 0; k < 4; k++)
            x[k] = merge_load(type, at, i + k);
}

__device__ __forceinline__ void merge_store4(int type, void *at, int64_t i, const double (&x)[4]) {
    if (type == MERGE_F32)
        *(float4 *)((float *)at + i) = make_float4((float)x[0], (float)x[1], (float)x[2], (float)x[3]);
    else if (type == MERGE_F16 || type == MERGE_BF16) {
        uint32_t w[2] = {0, 0};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint16_t bits;
            merge_store(type, &bits, 0, x[k]);
            w[k >> 1] |= (uint32_t)bits << (k & 1) * 16;
        }
        *(uint2 *)((uint16_t *)at + i) = make_uint2(w[0], w[1]);
    } else
#pragma unroll
        for (int k = 0; k < 4; k++)
            merge_store(type, at, i + k, x[k]);
}

} /* namespace attn_cuda */
#endif
