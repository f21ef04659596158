/* SPDX-License-Identifier: Apache-2.0 */
/* Packing rows, rounding them to e4m3 and measuring their magnitudes. Bandwidth is all there is to it: a thread moves 8
 * elements, grids are a few CTAs per SM and walk over the rows that the batch really has. */
#include "mm_pack.h"

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

struct unit {
    int which;
    int64_t row; /* token * heads + head */
    int column;
};

/* Unit number i of Q's units, then K's, then V's. */
__device__ __forceinline__ unit unit_of(const mm_pack_params_t &p, int64_t tokens, int per_row, int64_t i) {
    unit u = {0, 0, 0};
    for (; u.which < 2; u.which++) {
        const int64_t n = tokens * p.from[u.which].heads * per_row;
        if (i < n) break;
        i -= n;
    }
    u.row = i / per_row;
    u.column = (int)(i - u.row * per_row) * 8;
    return u;
}

__device__ __forceinline__ int64_t units_of(const mm_pack_params_t &p, int64_t tokens, int per_row) {
    return tokens * per_row * (p.from[0].heads + p.from[1].heads + p.from[2].heads);
}

/* 8 elements; what lies behind d is zero. */
__device__ __forceinline__ void load_unit(const mm_pack_params_t &p, const unit &u, uint16_t (&x)[8]) {
    const mm_rows_t &r = p.from[u.which];
    const int64_t token = u.row / r.heads;
    const uint16_t *at =
        (const uint16_t *)r.data + token * r.token + (u.row - token * r.heads) * r.head + u.column;
    if (r.is_wide && u.column + 8 <= p.d) {
        *(uint4 *)x = *(const uint4 *)at;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = u.column + i < p.d ? at[i] : (uint16_t)0;
}

__global__ void __launch_bounds__(THREADS) pack_kernel(const mm_pack_params_t p) {
    const int64_t tokens = *p.tokens;
    const int per_row = p.padded / 8;
    const int64_t n = units_of(p, tokens, per_row);
    /* K and V are the codes as float16, which holds them exactly. Q carries its scale and K's, rounded to float16's 11
     * bits; V's scale is applied to the output. */
    const float qs = scale_of(p, 0), ks = scale_of(p, 1), vs = scale_of(p, 2), q_factor = qs * ks;
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS) {
        const unit u = unit_of(p, tokens, per_row, i);
        alignas(16) uint16_t x[8];
        load_unit(p, u, x);
        if (p.is_fp8) {
            const float s = u.which == 0   ? qs
                            : u.which == 1 ? ks
                                           : vs,
                        factor = u.which == 0 ? q_factor : 1.f;
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const float y = through_e4m3(to_float(x[k], p.is_bf16), s) * factor;
                x[k] = from_float(fabsf(y) > 65504.f ? copysignf(65504.f, y) : y, 0);
            }
        }
        uint16_t *to = (uint16_t *)(u.which == 0 ? p.to[0] : u.which == 1 ? p.to[1] : p.to[2]);
        *(uint4 *)(to + u.row * p.padded + u.column) = *(const uint4 *)x;
    }
}

/* The entry of this call starts at zero; one thread, so that the counter needs no copy on the host. */
__global__ void begin_kernel(attn_fp8_state_t *state) {
    const unsigned slot = state->calls % ATTN_FP8_HISTORY;
    for (int i = 0; i < 3; i++)
        state->amax[i][slot] = 0.f;
}

/* Largest finite magnitudes: magnitudes order as their bits do. */
__global__ void __launch_bounds__(THREADS) amax_kernel(const mm_pack_params_t p) {
    const int64_t tokens = *p.tokens;
    const int per_row = (p.d + 7) / 8;
    const int64_t n = units_of(p, tokens, per_row);
    float largest[3] = {0.f, 0.f, 0.f};
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS) {
        const unit u = unit_of(p, tokens, per_row, i);
        alignas(16) uint16_t x[8];
        load_unit(p, u, x);
        float m = 0.f;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const float a = fabsf(to_float(x[k], p.is_bf16));
            m = a <= FLT_MAX ? fmaxf(m, a) : m;
        }
#pragma unroll
        for (int k = 0; k < 3; k++)
            largest[k] = u.which == k ? fmaxf(largest[k], m) : largest[k];
    }
    const unsigned slot = p.state->calls % ATTN_FP8_HISTORY;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const unsigned m = __reduce_max_sync(~0u, __float_as_uint(largest[k]));
        if ((threadIdx.x & 31) == 0 && m) atomicMax((unsigned *)&p.state->amax[k][slot], m);
    }
}

__global__ void end_kernel(attn_fp8_state_t *state) {
    for (int i = 0; i < 3; i++) {
        float largest = FLT_MIN;
        for (int k = 0; k < ATTN_FP8_HISTORY; k++)
            largest = fmaxf(largest, state->amax[i][k]);
        state->scale[i] = __fdiv_rn(largest, 448.f);
    }
    state->calls++;
}

__global__ void __launch_bounds__(THREADS)
    unpack_kernel(const uint16_t *from, const mm_rows_t to, const mm_pack_params_t p, int64_t max_tokens) {
    const int64_t tokens = p.tokens ? *p.tokens : max_tokens;
    const int d = p.d, per_row = (d + 7) / 8;
    const float vs = p.is_fp8 && from ? scale_of(p, 2) : 1.f;
    const int64_t n = tokens * to.heads * per_row;
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS) {
        const int64_t row = i / per_row, token = row / to.heads;
        const int column = (int)(i - row * per_row) * 8;
        uint16_t *at = (uint16_t *)to.data + token * to.token + (row - token * to.heads) * to.head + column;
        alignas(16) uint16_t x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (from) *(uint4 *)x = *(const uint4 *)(from + row * p.padded + column);
        if (p.is_fp8) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                x[k] = from_float(to_float(x[k], 0) * vs, p.is_bf16);
        }
        if (to.is_wide && column + 8 <= d) {
            *(uint4 *)at = *(const uint4 *)x;
            continue;
        }
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (column + k < d) at[k] = x[k];
    }
}

} /* namespace */

int mm_measure(const mm_pack_params_t *p, int num_sms, void *stream) {
    cudaStream_t s = (cudaStream_t)stream;
    begin_kernel<<<1, 1, 0, s>>>(p->state);
    amax_kernel<<<num_sms * CTAS_PER_SM, THREADS, 0, s>>>(*p);
    end_kernel<<<1, 1, 0, s>>>(p->state);
    return (int)cudaGetLastError();
}

int mm_pack(const mm_pack_params_t *p, int num_sms, void *stream) {
    pack_kernel<<<num_sms * CTAS_PER_SM, THREADS, 0, (cudaStream_t)stream>>>(*p);
    return (int)cudaGetLastError();
}

int mm_unpack(const mm_pack_params_t *p, const void *from, const mm_rows_t *to, int64_t max_tokens,
              int num_sms, void *stream) {
    unpack_kernel<<<num_sms * CTAS_PER_SM, THREADS, 0, (cudaStream_t)stream>>>((const uint16_t *)from, *to,
                                                                               *p, max_tokens);
    return (int)cudaGetLastError();
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
