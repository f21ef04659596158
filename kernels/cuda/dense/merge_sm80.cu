/* SPDX-License-Identifier: Apache-2.0 */
/* Merge of a cascade's passes (semantics 6.5, for any number of them): out = sum_i w_i o_i with w_i =
 * e^(lse_i - m) / sum and the sink, which neither pass has added, in the sum. The suffix lies in the output
 * already. Half a warp or less for a row: 16 bytes a lane. */
#include "../ptx/launch.cuh"
#include "flash_launch.h"
#include "flash_rows.cuh"

using namespace attn_cuda;

static constexpr int MAX_PARTS = 9; /* pieces of the prefix, and the suffix */

template <int DT>
__global__ void __launch_bounds__(128) merge_kernel(const __grid_constant__ flash_merge_params p, int lanes) {
    const int64_t unit = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
    const int lane = threadIdx.x % lanes;
    if (unit >= (int64_t)p.num_tokens * p.num_q_heads) return;
    const int tok = (int)(unit / p.num_q_heads), head = (int)(unit % p.num_q_heads);
    float weight[MAX_PARTS], m = NO_MAX, sum = 0.f;
    const float sink = p.sinks ? __ldg(p.sinks + head) : -INFINITY;
#pragma unroll
    for (int i = 0; i < MAX_PARTS; i++) {
        weight[i] = i > p.pieces    ? -INFINITY
                    : i == p.pieces ? p.out_lse[tok * p.out_lse_token + head * p.out_lse_head]
                                    : p.part_lse[((int64_t)i * p.num_q_heads + head) * p.num_tokens + tok];
        if (weight[i] == INFINITY) weight[i] = -INFINITY; /* an empty part, as some callers write it */
        m = fmaxf(m, weight[i]);
    }
    m = fmaxf(m, sink);
#pragma unroll
    for (int i = 0; i < MAX_PARTS; i++) {
        weight[i] = ex2((weight[i] - m) * LOG2E);
        sum += weight[i];
    }
    sum += ex2((sink - m) * LOG2E);
    const float inv = sum > 0.f ? 1.f / sum : 0.f;
    uint16_t *out = (uint16_t *)p.out + tok * p.out_token + head * p.out_head;
    const uint16_t *part = (const uint16_t *)p.part + unit * p.head_size_v;
    const int64_t step = (int64_t)p.num_tokens * p.num_q_heads * p.head_size_v;
    for (int d = lane * 8; d < p.head_size_v; d += lanes * 8) {
        float x[8] = {};
#pragma unroll
        for (int i = 0; i < MAX_PARTS; i++) {
            if (i > p.pieces) break;
            const uint4 v = *(const uint4 *)(i == p.pieces ? out + d : part + i * step + d);
            const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float2 f = unpack2<DT>(w[k]);
                x[2 * k] = fmaf(weight[i], f.x, x[2 * k]);
                x[2 * k + 1] = fmaf(weight[i], f.y, x[2 * k + 1]);
            }
        }
        *(uint4 *)(out + d) =
            make_uint4(pack2<DT>(x[0] * inv, x[1] * inv), pack2<DT>(x[2] * inv, x[3] * inv),
                       pack2<DT>(x[4] * inv, x[5] * inv), pack2<DT>(x[6] * inv, x[7] * inv));
    }
    if (p.lse && lane == 0)
        p.lse[tok * p.lse_token + head * p.lse_head] = sum > 0.f ? m + lg2(sum) * LN2 : -INFINITY;
}

extern "C" int flash_merge(const flash_merge_params *p, void *stream) {
    if (!p) {
        cudaFuncAttributes a;
        cudaError_t e = cudaFuncGetAttributes(&a, merge_kernel<DT_F16>);
        return (int)(e == cudaSuccess ? cudaFuncGetAttributes(&a, merge_kernel<DT_BF16>) : e);
    }
    if (p->pieces >= MAX_PARTS) return (int)cudaErrorInvalidValue;
    int lanes = 4;
    while (lanes < 32 && lanes * 8 < p->head_size_v)
        lanes *= 2;
    int64_t blocks = ((int64_t)p->num_tokens * p->num_q_heads * lanes + 127) / 128;
    if (p->dtype == FLASH_BF16)
        return attn_cuda::launch_kernel(merge_kernel<DT_BF16>, (unsigned)blocks, 128, 0, stream, *p, lanes);
    return attn_cuda::launch_kernel(merge_kernel<DT_F16>, (unsigned)blocks, 128, 0, stream, *p, lanes);
}
