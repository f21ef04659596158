/* SPDX-License-Identifier: Apache-2.0 */
/* Merge of two partial attention results by their log-sum-exp (semantics 6.5). One warp per (token, head), 16-byte
 * accesses where head size allows (a multiple of 8). +inf is read as -inf; two empty sides give 0 and -inf. */
#include "flash_launch.h"
#include "flash_rows.cuh"

using namespace attn_cuda;

template <int DT>
__global__ void __launch_bounds__(256) merge_kernel(const __grid_constant__ flash_merge_params p) {
    int64_t i = (int64_t)blockIdx.x * 8 + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31;
    if (i >= (int64_t)p.tokens * p.heads) return;
    int64_t t = i / p.heads, h = i % p.heads;
    float a = p.prefix_lse[t * p.prefix_lse_token + h * p.prefix_lse_head];
    float b = p.suffix_lse[t * p.suffix_lse_token + h * p.suffix_lse_head];
    a = a == INFINITY ? -INFINITY : a;
    b = b == INFINITY ? -INFINITY : b;
    float m = fmaxf(a, b), safe = m == -INFINITY ? 0.f : m;
    float wa = ex2((a - safe) * LOG2E), wb = ex2((b - safe) * LOG2E), sum = wa + wb;
    float inv = sum > 0.f ? 1.f / sum : 0.f;
    wa *= inv;
    wb *= inv;
    const uint16_t *x = (const uint16_t *)p.prefix + t * p.prefix_token + h * p.prefix_head;
    const uint16_t *y = (const uint16_t *)p.suffix + t * p.suffix_token + h * p.suffix_head;
    uint16_t *o = (uint16_t *)p.out + t * p.out_token + h * p.out_head;
    for (int d = lane * 8; d < p.head_size; d += 256) {
        uint4 u = *(const uint4 *)(x + d), v = *(const uint4 *)(y + d), r;
        const uint32_t *up = &u.x, *vp = &v.x;
        uint32_t *rp = &r.x;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float2 f = unpack2<DT>(up[k]), s = unpack2<DT>(vp[k]);
            /* a side of weight 0 may hold anything */
            rp[k] = pack2<DT>((wa > 0.f ? f.x * wa : 0.f) + (wb > 0.f ? s.x * wb : 0.f),
                              (wa > 0.f ? f.y * wa : 0.f) + (wb > 0.f ? s.y * wb : 0.f));
        }
        *(uint4 *)(o + d) = r;
    }
    if (lane == 0 && p.lse)
        p.lse[t * p.lse_token + h * p.lse_head] = sum > 0.f ? m + lg2(sum) * LN2 : -INFINITY;
}

extern "C" int flash_merge(const flash_merge_params *p, void *stream) {
    auto kernel = p && p->dtype == FLASH_F16 ? merge_kernel<DT_F16> : merge_kernel<DT_BF16>;
    if (!p) {
        cudaFuncAttributes a;
        int e = (int)cudaFuncGetAttributes(&a, merge_kernel<DT_F16>);
        return e ? e : (int)cudaFuncGetAttributes(&a, kernel);
    }
    int64_t n = ((int64_t)p->tokens * p->heads + 7) / 8;
    if (n > 0) kernel<<<(unsigned)n, 256, 0, (cudaStream_t)stream>>>(*p);
    return (int)cudaGetLastError();
}
