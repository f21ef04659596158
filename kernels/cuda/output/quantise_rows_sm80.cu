/* SPDX-License-Identifier: Apache-2.0 */
/* Quantisation of outputs (semantics 7.7): 8 values a thread; 2, 8 or 16 neighbours share the scale of a
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

/* The nearest e2m1 code, ties to the even one, 6 beyond; no NaN. */
static ATTN_DEV uint32_t e2m1_of(float x) {
    const float a = fabsf(x);
    const uint32_t code =
        (a > .25f) + (a >= .75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.f);
    return code | __float_as_uint(x) >> 31 << 3;
}

/* Of 8 values, of which `lanes` neighbours have a group: what they are divided by, and `stored`, which the
 * group's place holds. A NaN does not count, but among 4-bit values every one that is not finite does. */
template <int KIND>
static ATTN_DEV float scale_of_group(const float (&f)[8], int lanes, float tensor, uint32_t &stored) {
    float top = KIND == QUANTISE_NVFP4 ? 0.f : 1e-10f, sum = 0.f;
#pragma unroll
    for (int k = 0; k < 8; k++)
        top = fmaxf(top, fabsf(f[k])), sum += f[k] - f[k]; /* NaN unless all are finite */
    for (int d = 1; d < lanes; d *= 2) {
        top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
        if (KIND == QUANTISE_NVFP4) sum += __shfl_xor_sync(~0u, sum, d);
    }
    if (KIND == QUANTISE_NVFP4) {
        stored = sum == 0.f ? f32x2_to_e4m3x2(__fdiv_rn(__fdiv_rn(top, 6.f), tensor), 0.f) & 0xff : 0x7f;
        return unpack2<DT_F16>(e4m3x2_to_f16x2<0>(stored)).x * tensor;
    }
    uint32_t bits = __float_as_uint(__fdiv_rn(top, 448.f));
    if (KIND == QUANTISE_FLOATS) {
        stored = bits;
        return __uint_as_float(bits);
    }
    bits = min((bits + 0x7fffff) >> 23, 254u); /* up to a power of two, 2^127 at most */
    stored = KIND == QUANTISE_POWERS ? bits << 23 : bits;
    return __uint_as_float(bits << 23);
}

template <int KIND>
static ATTN_DEV void store_scale(const quantise_params &p, int64_t t, int g, uint32_t stored) {
    char *row = (char *)p.scales + t / 128 * p.tile + t % 32 * p.row + t / 32 % 4 * p.part;
    char *at = row + g / 4 * p.four + g % 4 * p.one;
    if (KIND == QUANTISE_FLOATS || KIND == QUANTISE_POWERS)
        *(uint32_t *)at = stored;
    else {
        *(uint8_t *)at = (uint8_t)stored;
        if (g + 1 != p.num_heads * p.size / p.group) return;
        for (int i = 0; i < p.pads; i++)
            at += p.one, *(uint8_t *)at = 0;
    }
}

template <int DT, int KIND>
__global__ void __launch_bounds__(256) quantise_kernel(const __grid_constant__ quantise_params p) {
    const int units = p.num_heads * p.size / 8, lanes = p.group / 8;
    const float fixed = (KIND == QUANTISE_STATIC || KIND == QUANTISE_NVFP4) && p.scale ? __ldg(p.scale) : 1.f;
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
        if (KIND != QUANTISE_STATIC) {
            uint32_t stored;
            scale = scale_of_group<KIND>(f, lanes, fixed, stored);
            if (inside && p.scales && u % lanes == 0) store_scale<KIND>(p, t, u / lanes, stored);
        }
        if (!inside) continue;
        const int column = u * 8, h = column / p.size, at = column - h * p.size;
        uint8_t *out = (uint8_t *)p.out + t * p.out_token + h * p.out_head;
        if constexpr (KIND == QUANTISE_NVFP4) {
            uint32_t codes = 0;
            if (scale > 0.f) /* neither 0 nor NaN */
#pragma unroll
                for (int k = 0; k < 8; k++)
                    codes |= e2m1_of(__fdiv_rn(f[k], scale)) << 4 * k;
            *(uint32_t *)(out + at / 2) = codes;
        } else {
            uint32_t r[2];
#pragma unroll
            for (int k = 0; k < 2; k++)
                r[k] = f32x2_to_e4m3x2(__fdiv_rn(f[4 * k], scale), __fdiv_rn(f[4 * k + 1], scale)) |
                       f32x2_to_e4m3x2(__fdiv_rn(f[4 * k + 2], scale), __fdiv_rn(f[4 * k + 3], scale)) << 16;
            *(uint2 *)(out + at) = make_uint2(r[0], r[1]);
        }
    }
}

typedef void (*kernel_of_rows)(quantise_params);
#define OF_TYPE(kind)                                                                                        \
    { quantise_kernel<DT_F16, kind>, quantise_kernel<DT_BF16, kind> }
static const kernel_of_rows kernels[5][2] = {OF_TYPE(QUANTISE_STATIC), OF_TYPE(QUANTISE_FLOATS),
                                             OF_TYPE(QUANTISE_POWERS), OF_TYPE(QUANTISE_EXPONENTS),
                                             OF_TYPE(QUANTISE_NVFP4)};

extern "C" int quantise_rows(const quantise_params *p, void *stream) {
    if (!p) {
        cudaFuncAttributes a;
        int e = 0;
        for (int i = 0; i < 10 && !e; i++)
            e = (int)cudaFuncGetAttributes(&a, kernels[i / 2][i % 2]);
        return e;
    }
    const int64_t blocks = (p->tokens * p->num_heads * (p->size / 8) + 255) / 256;
    const unsigned grid = (unsigned)(blocks < 8192 ? blocks : 8192);
    if (grid == 0) return 0;
    return attn_cuda::launch_kernel(kernels[p->kind][p->dtype == DT_BF16], grid, 256, 0, stream, *p);
}
