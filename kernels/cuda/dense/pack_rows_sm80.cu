/* SPDX-License-Identifier: Apache-2.0 */
/* Packing rows, rounding them to e4m3 and measuring their magnitudes. Bandwidth is all there is to it: a
 * thread moves 8 elements, grids are a few CTAs per SM and walk over the rows that the batch really has. */
#include "../ptx/launch.cuh"
#include "pack_rows.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <float.h>

namespace {

constexpr int THREADS = 256, CTAS_PER_SM = 8;

__device__ __forceinline__ float to_float(uint16_t x, int is_bf16) {
    return is_bf16 ? __uint_as_float((uint32_t)x << 16) : __half2float(__ushort_as_half(x));
}
__device__ __forceinline__ uint16_t from_float(float x, int is_bf16) {
    if (!is_bf16) return __half_as_ushort(__float2half_rn(x));
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
/* e4m3(x / scale), as every quantising writer has it: division in float32, to nearest even, saturating */
__device__ __forceinline__ float through_e4m3(float x, float scale) {
    const __nv_fp8_storage_t q = __nv_cvt_float_to_fp8(__fdiv_rn(x, scale), __NV_SATFINITE, __NV_E4M3);
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(q, __NV_E4M3)));
}
__device__ __forceinline__ float scale_of(const mm_pack_params_t &p, int i) {
    return p.state ? p.state->scale[i] : p.scale_at[i] ? *p.scale_at[i] : p.scale[i];
}

/* A thread keeps its column of 8 elements and walks over rows (token * heads + head): no division in the loop
 * but the one by the number of heads, of 32 bits wherever the rows can be counted so. */
struct walk {
    int64_t row, step, rows;
    int column;
    __device__ __forceinline__ walk(int64_t tokens, int heads, int per_row) {
        const int at_once = THREADS / per_row, r = (int)threadIdx.x / per_row;
        column = ((int)threadIdx.x - r * per_row) * 8;
        rows = r < at_once ? tokens * heads : 0;
        row = (int64_t)blockIdx.x * at_once + r;
        step = (int64_t)gridDim.x * at_once;
    }
    __device__ __forceinline__ int64_t token_of(int heads) const {
        return row <= UINT32_MAX ? (int64_t)((uint32_t)row / (uint32_t)heads) : row / heads;
    }
};

/* 8 elements; what lies behind d is zero. */
__device__ __forceinline__ void load_unit(const mm_rows_t &r, const walk &at, int d, uint16_t (&x)[8]) {
    const int64_t token = at.token_of(r.heads);
    const uint16_t *from =
        (const uint16_t *)r.data + token * r.token + (at.row - token * r.heads) * r.head + at.column;
    if (r.is_aligned && at.column + 8 <= d) {
        *(uint4 *)x = *(const uint4 *)from;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = at.column + i < d ? from[i] : (uint16_t)0;
}

/* blockIdx.y: 0 for Q, 1 for K, 2 for V. K and V become the codes as float16, which holds them exactly. Q
 * carries its scale and K's, rounded to float16's 11 bits; V's scale is applied to the output. */
__global__ void __launch_bounds__(THREADS) pack_kernel(const mm_pack_params_t p) {
    const int which = blockIdx.y;
    const mm_rows_t &r = p.from[which];
    uint16_t *to = (uint16_t *)p.to[which];
    const float scale = p.is_fp8 ? scale_of(p, which) : 1.f,
                factor = p.is_fp8 && which == 0 ? scale * scale_of(p, 1) : 1.f;
    for (walk at(p.rows[which > 0], r.heads, p.padded / 8); at.row < at.rows; at.row += at.step) {
        alignas(16) uint16_t x[8];
        load_unit(r, at, p.d, x);
        if (p.is_fp8) {
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const float y = through_e4m3(to_float(x[k], p.is_bf16), scale) * factor;
                x[k] = from_float(fabsf(y) > 65504.f ? copysignf(65504.f, y) : y, 0);
            }
        }
        *(uint4 *)(to + at.row * p.padded + at.column) = *(const uint4 *)x;
    }
}

/* The entry of this call starts at zero; one thread, so that the counter needs no copy on the host. */
__global__ void begin_kernel(pack_fp8_state *state) {
    const unsigned slot = state->calls % PACK_FP8_HISTORY;
    for (int i = 0; i < 3; i++)
        state->amax[i][slot] = 0.f;
}

/* Largest finite magnitudes: magnitudes order as their bits do. */
__global__ void __launch_bounds__(THREADS) amax_kernel(const mm_pack_params_t p) {
    const int which = blockIdx.y;
    const mm_rows_t &r = p.from[which];
    float largest = 0.f;
    for (walk at(p.rows[which > 0], r.heads, (p.d + 7) / 8); at.row < at.rows; at.row += at.step) {
        alignas(16) uint16_t x[8];
        load_unit(r, at, p.d, x);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const float a = fabsf(to_float(x[k], p.is_bf16));
            largest = a <= FLT_MAX ? fmaxf(largest, a) : largest;
        }
    }
    const unsigned m = __reduce_max_sync(~0u, __float_as_uint(largest));
    if ((threadIdx.x & 31) == 0 && m)
        atomicMax((unsigned *)&p.state->amax[which][p.state->calls % PACK_FP8_HISTORY], m);
}

__global__ void end_kernel(pack_fp8_state *state) {
    for (int i = 0; i < 3; i++) {
        float largest = FLT_MIN;
        for (int k = 0; k < PACK_FP8_HISTORY; k++)
            largest = fmaxf(largest, state->amax[i][k]);
        state->scale[i] = __fdiv_rn(largest, 448.f);
    }
    state->calls++;
}

__global__ void __launch_bounds__(THREADS)
    unpack_kernel(const uint16_t *from, const mm_rows_t to, const mm_pack_params_t p, int64_t max_tokens) {
    const float vs = p.is_fp8 && from ? scale_of(p, 2) : 1.f;
    for (walk at(p.rows ? *p.rows : max_tokens, to.heads, (p.d + 7) / 8); at.row < at.rows;
         at.row += at.step) {
        const int64_t token = at.token_of(to.heads);
        uint16_t *out =
            (uint16_t *)to.data + token * to.token + (at.row - token * to.heads) * to.head + at.column;
        alignas(16) uint16_t x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (from) *(uint4 *)x = *(const uint4 *)(from + at.row * p.padded + at.column);
        if (p.is_fp8) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                x[k] = from_float(to_float(x[k], 0) * vs, p.is_bf16);
        }
        if (to.is_aligned && at.column + 8 <= p.d) {
            *(uint4 *)out = *(const uint4 *)x;
            continue;
        }
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (at.column + k < p.d) out[k] = x[k];
    }
}

} /* namespace */

int mm_measure(const mm_pack_params_t *p, int num_sms, void *stream) {
    int e = attn_cuda::launch_kernel(begin_kernel, 1, 1, 0, stream, p->state);
    if (e == 0)
        e = attn_cuda::launch_kernel(amax_kernel, dim3(num_sms * CTAS_PER_SM, 3), THREADS, 0, stream, *p);
    if (e == 0) e = attn_cuda::launch_kernel(end_kernel, 1, 1, 0, stream, p->state);
    return e;
}

int mm_pack(const mm_pack_params_t *p, int num_sms, void *stream) {
    return attn_cuda::launch_kernel(pack_kernel, dim3(num_sms * CTAS_PER_SM, 3), THREADS, 0, stream, *p);
}

int mm_unpack(const mm_pack_params_t *p, const void *from, const mm_rows_t *to, int64_t max_tokens,
              int num_sms, void *stream) {
    return attn_cuda::launch_kernel(unpack_kernel, num_sms * CTAS_PER_SM, THREADS, 0, stream,
                                    (const uint16_t *)from, *to, *p, max_tokens);
}

int mm_pack_prepare(void) {
    cudaFuncAttributes a;
    const void *const kernels[] = {(const void *)pack_kernel, (const void *)begin_kernel,
                                   (const void *)amax_kernel, (const void *)end_kernel,
                                   (const void *)unpack_kernel};
    for (const void *k : kernels) {
        const cudaError_t e = cudaFuncGetAttributes(&a, k);
        if (e != cudaSuccess) return (int)e;
    }
    return 0;
}
