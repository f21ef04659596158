/* SPDX-License-Identifier: Apache-2.0 */
/* The product of fragments on every GPU from sm_75 on, and e4m3 keys as 16-bit numbers. Turing multiplies
 * depths of 8, in float16 alone: the halves of a 16 x 16 fragment are its fragments. */
#ifndef LATENT_MMA_CUH
#define LATENT_MMA_CUH

#include "ptx_sm80.cuh"

namespace attn_cuda {

/* pack2; Turing converts one number at a time. */
template <int DT>
ATTN_DEV uint32_t pack_pair(float lo, float hi) {
#if __CUDA_ARCH__ >= 800
    return pack2<DT>(lo, hi);
#else
    static_assert(DT == DT_F16, "sm_75 has no bfloat16");
    uint32_t r;
    asm("{.reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h};}"
        : "=r"(r)
        : "f"(lo), "f"(hi));
    return r;
#endif
}

template <int DT>
ATTN_DEV void mma_any(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    mma_16816<DT>(d, a, b0, b1);
#else
    static_assert(DT == DT_F16, "tensor cores of sm_75 have no bfloat16");
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

/* 16 e4m3 bytes; every e4m3 number is exact in both types. */
template <int DT>
ATTN_DEV void widen_e4m3(const uint4 &x, uint4 (&out)[2]) {
    const uint32_t w[4] = {x.x, x.y, x.z, x.w};
    uint32_t o[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        o[2 * i] = e4m3x2_to_f16x2<0>(w[i]), o[2 * i + 1] = e4m3x2_to_f16x2<1>(w[i]);
        if constexpr (DT == DT_BF16) {
            const float2 a = unpack2<DT_F16>(o[2 * i]), b = unpack2<DT_F16>(o[2 * i + 1]);
            o[2 * i] = pack_pair<DT>(a.x, a.y), o[2 * i + 1] = pack_pair<DT>(b.x, b.y);
        }
    }
    out[0] = make_uint4(o[0], o[1], o[2], o[3]), out[1] = make_uint4(o[4], o[5], o[6], o[7]);
}

} /* namespace attn_cuda */
#endif
