/* SPDX-License-Identifier: Apache-2.0 */
/* Combine of the pieces of one decode row: out = sum_i w_i o_i with w_i = 2^(lse_i - m) / sum, and the sink, which
 * exactly one place may add (semantics 2.10, 6.5). One CTA per row; only launched when something was split. */
#include "flash_launch.h"
#include "flash_rows.cuh"

using namespace attn_cuda;

static constexpr int MAX_PIECES = 256;

__global__ void __launch_bounds__(128) combine_kernel(const __grid_constant__ flash_params p) {
    __shared__ float weight[MAX_PIECES];
    pdl_wait();
    if ((int)blockIdx.y >= p.counts->num_splits) return;
    const int4 sp = *((const int4 *)p.splits + blockIdx.y);
    const int seq = sp.x + p.seq_offset, first = sp.y, count = sp.z;
    const int q0 = __ldg(p.q_start + seq), q_len = __ldg(p.q_start + seq + 1) - q0;
    const int row = blockIdx.x, t = row / p.num_q_heads, h = row % p.num_q_heads;
    if (t >= q_len) return;
    const float *lse = p.part_lse + (int64_t)first * p.max_rows + row;
    const int lane = threadIdx.x & 31;
    float m = -INFINITY;
    for (int i = lane; i < count; i += 32)
        m = fmaxf(m, lse[(int64_t)i * p.max_rows]);
#pragma unroll
    for (int d = 1; d < 32; d <<= 1)
        m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    const float sink = p.sinks ? p.sinks[h] * LOG2E : -INFINITY;
    m = fmaxf(fmaxf(m, sink), NO_MAX);
    float sum = 0.f;
    for (int i = lane; i < count; i += 32) {
        float w = ex2(lse[(int64_t)i * p.max_rows] - m);
        sum += w;
        if (threadIdx.x < 32) weight[i] = w;
    }
#pragma unroll
    for (int d = 1; d < 32; d <<= 1)
        sum += __shfl_xor_sync(~0u, sum, d);
    sum += ex2(sink - m);
    __syncthreads();
    if (threadIdx.x == 0 && p.lse)
        p.lse[(int64_t)(q0 + t) * p.lse_token + (int64_t)h * p.lse_head] =
            sum > 0.f ? (m + lg2(sum)) * LN2 : -INFINITY;
    const float inv = sum > 0.f ? 1.f / sum : 0.f;
    const int64_t step = (int64_t)p.max_rows * p.head_size_v;
    const float *part = p.part_out + ((int64_t)first * p.max_rows + row) * p.head_size_v;
    for (int d = threadIdx.x * 2; d < p.head_size_v; d += blockDim.x * 2) {
        float x = 0.f, y = 0.f;
#pragma unroll 8
        for (int i = 0; i < count; i++) {
            float2 v = *(const float2 *)(part + i * step + d);
            x = fmaf(weight[i], v.x, x);
            y = fmaf(weight[i], v.y, y);
        }
        *(uint32_t *)((uint16_t *)p.out + (int64_t)(q0 + t) * p.out_token + (int64_t)h * p.out_head + d) =
            pack2_as(p.out_dtype, x * inv, y * inv);
    }
}

extern "C" int flash_combine(const flash_params *p, int num_splits, void *stream) {
    if (!p) {
        cudaFuncAttributes a;
        return (int)cudaFuncGetAttributes(&a, combine_kernel);
    }
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)p->max_rows, (unsigned)num_splits);
    c.blockDim = dim3(p->head_size_v <= 128 ? 64 : 128);
    c.stream = (cudaStream_t)stream;
    cudaLaunchAttribute a[1];
    a[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a[0].val.programmaticStreamSerializationAllowed = 1;
    c.attrs = a;
    c.numAttrs = 1;
    return (int)cudaLaunchKernelEx(&c, combine_kernel, *p);
}
