/* SPDX-License-Identifier: Apache-2.0 */
/* Cache writers of MLA (semantics 3.5, 3.11): a warp takes four neighbouring tokens, or two where rows of 656
 * bytes are made, and has all their loads in flight at once. Neighbouring rows share lines, so one CTA writes
 * them. */
#include "../ptx/launch.cuh"
#include "../ptx/ptx_sm80.cuh"
#include "mla_launch.h"

#include <cuda_runtime.h>
#include <float.h>

using namespace attn_cuda;

/* Address of a slot's row, NULL where nothing is to be written. */
ATTN_DEV char *slot_row(const mla_write_params &p, int64_t slot) {
    if (slot < 0 || slot >= p.num_slots_total) return nullptr;
    int64_t page = slot / p.page_size;
    return (char *)p.cache + page * p.cache_page + (slot - page * p.page_size) * p.cache_row;
}

template <int DT>
ATTN_DEV uint32_t quantized4(uint32_t lo, uint32_t hi, float scale) {
    float2 a = unpack2<DT>(lo), b = unpack2<DT>(hi);
    return f32x2_to_e4m3x2(__fdiv_rn(a.x, scale), __fdiv_rn(a.y, scale)) |
           f32x2_to_e4m3x2(__fdiv_rn(b.x, scale), __fdiv_rn(b.y, scale)) << 16;
}

/* Rows of L + 64 values of 16 bits, or e4m3 by one scale. 16 bytes a lane. */
template <int DT, int L, bool E4M3>
__global__ void __launch_bounds__(256) write_rows_kernel(const __grid_constant__ mla_write_params p) {
    constexpr int TOKENS = 4, CHUNKS = (L + MLA_ROPE) / 8, LOADS = TOKENS * CHUNKS / 32;
    static_assert(TOKENS * CHUNKS % 32 == 0, "every lane has the same number of chunks");
    const int lane = threadIdx.x & 31;
    const int64_t first = ((int64_t)blockIdx.x * 8 + (threadIdx.x >> 5)) * TOKENS;
    const int64_t mine = first + lane;
    const char *row = lane < TOKENS && mine < p.num_tokens ? slot_row(p, __ldg(p.slots + mine)) : nullptr;
    uint4 x[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const int token = (lane + 32 * i) / CHUNKS, c = (lane + 32 * i) % CHUNKS * 8;
        const uint16_t *src = c < L ? (const uint16_t *)p.kv_c + (first + token) * p.kv_c_row + c
                                    : (const uint16_t *)p.k_pe + (first + token) * p.k_pe_row + c - L;
        if (first + token < p.num_tokens) x[i] = __ldcs((const uint4 *)src);
    }
    const float scale = E4M3 && p.k_scale ? __ldg(p.k_scale) : 1.f;
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const int token = (lane + 32 * i) / CHUNKS, c = (lane + 32 * i) % CHUNKS * 8;
        char *dst = (char *)__shfl_sync(~0u, (unsigned long long)row, token);
        if (dst == nullptr) continue;
        if constexpr (E4M3)
            *(uint2 *)(dst + c) =
                make_uint2(quantized4<DT>(x[i].x, x[i].y, scale), quantized4<DT>(x[i].z, x[i].w, scale));
        else
            *(uint4 *)(dst + c * 2) = x[i];
    }
}

/* 656-byte rows: a lane has 16 neighbouring latent values, eight lanes share a scale; eight lanes of each
 * half take the rope of one of the two tokens. */
template <int DT>
__global__ void __launch_bounds__(256) write_ds_kernel(const __grid_constant__ mla_write_params p) {
    const int lane = threadIdx.x & 31;
    const int64_t first = ((int64_t)blockIdx.x * 8 + (threadIdx.x >> 5)) * 2, mine = first + (lane & 1);
    const char *row = mine < p.num_tokens ? slot_row(p, __ldg(p.slots + mine)) : nullptr;
    uint4 x[2][2] = {}, rope = {};
#pragma unroll
    for (int t = 0; t < 2; t++) {
        if (first + t >= p.num_tokens) continue;
        const uint4 *src = (const uint4 *)((const uint16_t *)p.kv_c + (first + t) * p.kv_c_row) + 2 * lane;
        x[t][0] = __ldcs(src), x[t][1] = __ldcs(src + 1);
    }
    const int rope_token = lane >> 4, rope_chunk = lane & 15;
    if (rope_chunk < 8 && first + rope_token < p.num_tokens)
        rope = __ldcs((const uint4 *)((const uint16_t *)p.k_pe + (first + rope_token) * p.k_pe_row) +
                      rope_chunk);
#pragma unroll
    for (int t = 0; t < 2; t++) {
        const uint32_t w[8] = {x[t][0].x, x[t][0].y, x[t][0].z, x[t][0].w,
                               x[t][1].x, x[t][1].y, x[t][1].z, x[t][1].w};
        float top = 0.f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float2 f = unpack2<DT>(w[i]);
            f.x = fabsf(f.x), f.y = fabsf(f.y);
            top = f.x <= top ? top : f.x; /* NaN wins */
            top = f.y <= top ? top : f.y;
        }
#pragma unroll
        for (int d = 4; d; d >>= 1) {
            float other = __shfl_xor_sync(~0u, top, d);
            top = other <= top ? top : other;
        }
        float scale = __fdiv_rn(top, 448.f);
        scale = scale < FLT_MIN ? FLT_MIN : scale;
        float4 scales;
        scales.x = __shfl_sync(~0u, scale, 0), scales.y = __shfl_sync(~0u, scale, 8);
        scales.z = __shfl_sync(~0u, scale, 16), scales.w = __shfl_sync(~0u, scale, 24);
        char *dst = (char *)__shfl_sync(~0u, (unsigned long long)row, t);
        uint4 v = rope;
        if constexpr (DT != DT_BF16) { /* the rope of these rows is bfloat16 whatever the model's type */
            uint32_t *r = &v.x;
            for (int i = 0; i < 4; i++) {
                float2 f = unpack2<DT>(r[i]);
                r[i] = pack2<DT_BF16>(f.x, f.y);
            }
        }
        if (dst == nullptr) continue;
        ((uint4 *)dst)[lane] =
            make_uint4(quantized4<DT>(w[0], w[1], scale), quantized4<DT>(w[2], w[3], scale),
                       quantized4<DT>(w[4], w[5], scale), quantized4<DT>(w[6], w[7], scale));
        if (rope_token == t && rope_chunk < 8) *((uint4 *)(dst + MLA_DS_ROPE_AT) + rope_chunk) = v;
        if (rope_token == t && rope_chunk == 8) *(float4 *)(dst + MLA_DS_SCALES_AT) = scales;
    }
}

template <int DT, int L>
static int write_rows(const mla_write_params *p, cudaStream_t stream) {
    const unsigned grid = (unsigned)((p->num_tokens + 31) / 32);
    if (p->cache_kind == MLA_CACHE_16)
        return attn_cuda::launch_kernel(write_rows_kernel<DT_BF16, L, false>, grid, 256, 0, stream, *p);
    return attn_cuda::launch_kernel(write_rows_kernel<DT, L, true>, grid, 256, 0, stream, *p);
}

template <int DT>
static int write_cache(const mla_write_params *p, cudaStream_t stream) {
    if (p->cache_kind == MLA_CACHE_DS)
        return attn_cuda::launch_kernel(write_ds_kernel<DT>, (unsigned)((p->num_tokens + 15) / 16), 256, 0,
                                        stream, *p);
    return p->latent_rank == 512 ? write_rows<DT, 512>(p, stream) : write_rows<DT, 256>(p, stream);
}

extern "C" int mla_write_cache(const mla_write_params *p, void *stream) {
    return p->dtype == DT_BF16 ? write_cache<DT_BF16>(p, (cudaStream_t)stream)
                               : write_cache<DT_F16>(p, (cudaStream_t)stream);
}
