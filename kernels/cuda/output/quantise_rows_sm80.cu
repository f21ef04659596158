/* SPDX-License-Identifier: Apache-2.0 */
/* Quantisation of outputs (semantics 7.7): 8 values a thread; 8 or 16 neighbours share the scale of a
 * group. */
#include "../ptx/launch.cuh"
#include "../ptx/ptx_sm80.cuh"
#include "quantise_rows.h"

#include <cuda_runtime.h>

using namespace attn_cuda;

static ATTN_DEV int64_t tokens_of_step(const quantise_params &p) {
    if (!p.num_tokens) return p.tokens;
    const int planned = __ldg(p.num_tokens); /* both on their way at once */
    const int32_t *starts = (const int32_t *)__ldg((const unsigned long long *)p.starts);
    const int64_t n = starts ? __ldg(starts + __ldg(p.num_reqs)) : planned;
    return n < p.tokens ? n : p.tokens;
}

template <int DT>
__global__ void __launch_bounds__(256) quantise_kernel(const __grid_constant__ quantise_params p) {
    const int units = p.num_heads * p.size / 8, lanes = p.group / 8;
    const float fixed = p.group == 0 && p.scale ? __ldg(p.scale) : 1.f;
    const int64_t n = tokens_of_step(p) * units, step = (int64_t)gridDim.x * 256;
    /* whole warps go round, so that the neighbours of every group meet */
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i - threadIdx.x % 32 < n; i += step) {
        const bool inside = i < n;
        const int64_t t = inside ? i / units : 0;
        const int u = inside ? (int)(i - t * units) : 0;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (inside && p.in) x = __ldcs((const uint4 *)p.in + i);
        const uint32_t *w = &x.x;
        float f[8], scale = fixed;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float2 pair = unpack2<DT>(w[k]);
            f[2 * k] = pair.x, f[2 * k + 1] = pair.y;
        }
        if (p.group != 0) {
            float top = 1e-10f;
#pragma unroll
            for (int k = 0; k < 8; k++)
                top = fmaxf(top, fabsf(f[k])); /* a NaN does not count */
            for (int d = 1; d < lanes; d *= 2)
                top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
            scale = __fdiv_rn(top, 448.f);
            if (inside && u % lanes == 0)
                p.block_scale[t * p.block_token + u / lanes * p.block_group] = scale;
        }
        if (!inside) continue;
        uint32_t r[2];
#pragma unroll
        for (int k = 0; k < 2; k++)
            r[k] = f32x2_to_e4m3x2(__fdiv_rn(f[4 * k], scale), __fdiv_rn(f[4 * k + 1], scale)) |
                   f32x2_to_e4m3x2(__fdiv_rn(f[4 * k + 2], scale), __fdiv_rn(f[4 * k + 3], scale)) << 16;
        const int column = u * 8, h = column / p.size;
        *(uint2 *)((uint8_t *)p.out + t * p.out_token + h * p.out_head + column - h * p.size) =
            make_uint2(r[0], r[1]);
    }
}

extern "C" int quantise_rows(const quantise_params *p, void *stream) {
    if (!p) {
        cudaFuncAttributes a;
        const int e = (int)cudaFuncGetAttributes(&a, quantise_kernel<DT_BF16>);
        return e ? e : (int)cudaFuncGetAttributes(&a, quantise_kernel<DT_F16>);
    }
    const int64_t blocks = (p->tokens * p->num_heads * (p->size / 8) + 255) / 256;
    const unsigned grid = (unsigned)(blocks < 8192 ? blocks : 8192);
    if (grid == 0) return 0;
    if (p->dtype == DT_BF16)
        return attn_cuda::launch_kernel(quantise_kernel<DT_BF16>, grid, 256, 0, stream, *p);
    return attn_cuda::launch_kernel(quantise_kernel<DT_F16>, grid, 256, 0, stream, *p);
}
