/* SPDX-License-Identifier: Apache-2.0 */
/* Merge of results of the same rows over different keys (semantics 6.5): out = sum_i w_i o_i with w_i =
 * e^(lse_i - m) / sum and the sink, which none has added, in the sum. Up to a warp for a row of a head: 16
 * bytes a lane. */
#include "../ptx/launch.cuh"
#include "flash_launch.h"
#include "flash_rows.cuh"

using namespace attn_cuda;

/* A part's LSE; +inf is how some callers write an empty one. */
static __device__ __forceinline__ float lse_of(const float *lse, int64_t step, int i) {
    const float x = lse[i * step];
    return x == INFINITY ? -INFINITY : x;
}

/* Eight values of a part. */
template <int DT, bool F32>
static __device__ __forceinline__ void load_part(const void *part, int64_t at, float (&x)[8]) {
    if constexpr (F32) {
        const float4 a = *(const float4 *)((const float *)part + at),
                     b = *(const float4 *)((const float *)part + at + 4);
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
        const uint4 v = *(const uint4 *)((const uint16_t *)part + at);
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float2 f = unpack2<DT>(w[k]);
            x[2 * k] = f.x, x[2 * k + 1] = f.y;
        }
    }
}

template <int DT, bool F32>
__global__ void __launch_bounds__(128) merge_kernel(const __grid_constant__ flash_merge_params p, int lanes) {
    const flash_span span = p.num_spans > 0 ? p.spans[blockIdx.y] : p.all;
    const int64_t unit = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
    const int lane = threadIdx.x % lanes;
    if (unit >= (int64_t)span.q_len * p.num_q_heads) return;
    const int row = span.q0 + (int)(unit / p.num_q_heads), head = (int)(unit % p.num_q_heads),
              at = row - p.first_row;
    const int64_t lse_step = (int64_t)p.num_q_heads * p.num_rows, step = lse_step * p.head_size_v;
    const float *lse = p.part_lse + (int64_t)head * p.num_rows + at;
    const float sink = p.sinks ? __ldg(p.sinks + head) : -INFINITY;
    float m = fmaxf(NO_MAX, sink), sum = 0.f;
#pragma unroll 4
    for (int i = 0; i < span.pieces; i++)
        m = fmaxf(m, lse_of(lse, lse_step, i));
#pragma unroll 4
    for (int i = 0; i < span.pieces; i++)
        sum += ex2((lse_of(lse, lse_step, i) - m) * LOG2E);
    sum += ex2((sink - m) * LOG2E);
    const float inv = sum > 0.f ? 1.f / sum : 0.f;
    uint16_t *out = (uint16_t *)p.out + row * p.out_token + head * p.out_head;
    const int64_t part = ((int64_t)at * p.num_q_heads + head) * p.head_size_v;
    for (int d = lane * 8; d < p.head_size_v; d += lanes * 8) {
        float x[8] = {};
#pragma unroll 4
        for (int i = 0; i < span.pieces; i++) {
            const float weight = ex2((lse_of(lse, lse_step, i) - m) * LOG2E);
            float y[8];
            load_part<DT, F32>(p.part, part + i * step + d, y);
#pragma unroll
            for (int k = 0; k < 8; k++)
                x[k] = fmaf(weight, y[k], x[k]);
        }
        *(uint4 *)(out + d) =
            make_uint4(pack2<DT>(x[0] * inv, x[1] * inv), pack2<DT>(x[2] * inv, x[3] * inv),
                       pack2<DT>(x[4] * inv, x[5] * inv), pack2<DT>(x[6] * inv, x[7] * inv));
    }
    if (p.lse && lane == 0)
        p.lse[row * p.lse_token + head * p.lse_head] = sum > 0.f ? m + lg2(sum) * LN2 : -INFINITY;
}

template <int DT>
static int merge_as(const flash_merge_params *p, dim3 grid, int lanes, void *stream) {
    if (p) {
        auto kernel = p->parts_are_f32 ? merge_kernel<DT, true> : merge_kernel<DT, false>;
        return attn_cuda::launch_kernel(kernel, grid, 128, 0, stream, *p, lanes);
    }
    cudaFuncAttributes a;
    cudaError_t e = cudaFuncGetAttributes(&a, merge_kernel<DT, true>);
    return (int)(e == cudaSuccess ? cudaFuncGetAttributes(&a, merge_kernel<DT, false>) : e);
}

extern "C" int flash_merge(const flash_merge_params *p, void *stream) {
    if (!p) {
        const int e = merge_as<DT_F16>(p, dim3(), 0, stream);
        return e ? e : merge_as<DT_BF16>(p, dim3(), 0, stream);
    }
    int lanes = 4;
    while (lanes < 32 && lanes * 8 < p->head_size_v)
        lanes *= 2;
    const int64_t blocks = ((int64_t)p->all.q_len * p->num_q_heads * lanes + 127) / 128;
    const dim3 grid((unsigned)blocks, p->num_spans > 0 ? (unsigned)p->num_spans : 1);
    return p->dtype == FLASH_BF16 ? merge_as<DT_BF16>(p, grid, lanes, stream)
                                  : merge_as<DT_F16>(p, grid, lanes, stream);
}
