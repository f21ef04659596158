/* SPDX-License-Identifier: Apache-2.0 */
/* Values of 656-byte rows (semantics 3.5) as 16-bit numbers. */
#ifndef DS_VALUES_CUH
#define DS_VALUES_CUH

#include "../ptx/ptx_sm80.cuh"

namespace attn_cuda {

/* 16 e4m3 bytes times their tile's scale, rounded once. */
template <int DT>
ATTN_DEV void ds_latents(uint4 data, float scale, uint32_t (&v)[8]) {
    const uint32_t w[4] = {data.x, data.y, data.z, data.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 a = unpack2<DT_F16>(e4m3x2_to_f16x2<0>(w[i])), b = unpack2<DT_F16>(e4m3x2_to_f16x2<1>(w[i]));
        v[2 * i] = pack2<DT>(a.x * scale, a.y * scale);
        v[2 * i + 1] = pack2<DT>(b.x * scale, b.y * scale);
    }
}

/* Eight rope values, which are bfloat16 in the cache. */
template <int DT>
ATTN_DEV uint4 ds_rope(uint4 data) {
    if constexpr (DT == DT_BF16) return data;
    uint32_t *w = &data.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 f = unpack2<DT_BF16>(w[i]);
        w[i] = pack2<DT>(f.x, f.y);
    }
    return data;
}

} /* namespace attn_cuda */
#endif
