/* SPDX-License-Identifier: Apache-2.0 */
/* Cache write (semantics 3.2, 3.4, 3.6, 3.8, 3.11): a scatter of the step's rows, quantising where the format
 * asks. One warp a row of one head, K then V; equal formats are copied in the widest pieces that alignment
 * allows. TL_Q2: element type of K and V of the call (TL_Q may be a quantised query). TL_SVEC: bytes that
 * rows of the call are aligned to. */
#ifndef TRITON_WRITE_CUH
#define TRITON_WRITE_CUH

#include "triton_packed_write.cuh"
#include "triton_rows.cuh"

namespace attn_cuda {
namespace cache_write {

constexpr int EB = element_bytes(TL_KV), VB = element_bytes(TL_V), SB = element_bytes(TL_Q2);

/* The greatest magnitude of a row; NaN if one is in it. */
template <int SIZE>
ATTN_DEV float row_absmax(const uint8_t *src, int lane) {
    float top = 0.f;
    bool bad = false;
    for (int d = lane; d < SIZE; d += 32) {
        float x = fabsf(load_float<TL_Q2>(src, d));
        bad |= x != x;
        top = fmaxf(top, x);
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    return __any_sync(~0u, bad) ? __int_as_float(0x7fc00000) : top;
}

/* Formats with scales apart: four neighbours a lane, rows are multiples of them. IS_V: by scales of channels
 * at by + step, else by the row's own, which goes to *scale. */
template <int SIZE, bool IS_V>
ATTN_DEV void write_int8(uint8_t *dst, const uint8_t *src, float *scale, const float *by, int64_t step,
                         int lane) {
    constexpr int N = (SIZE / 4 + 31) / 32;
    float x[N][4], top = 0.f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = lane + 32 * i;
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[i][j] = 0.f;
        if (c * 4 >= SIZE) continue;
        if constexpr (SB == 2) {
            const uint2 w = __ldg((const uint2 *)src + c);
            const float2 a = unpack2<TL_Q2>(w.x), b = unpack2<TL_Q2>(w.y);
            x[i][0] = a.x, x[i][1] = a.y, x[i][2] = b.x, x[i][3] = b.y;
        } else {
            const float4 w = __ldg((const float4 *)src + c);
            x[i][0] = w.x, x[i][1] = w.y, x[i][2] = w.z, x[i][3] = w.w;
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            top = min_nan(top, -fabsf(x[i][j]));
    }
    float all = 1.f;
    if constexpr (!IS_V) {
#pragma unroll
        for (int d = 16; d > 0; d >>= 1)
            top = min_nan(top, __shfl_xor_sync(~0u, top, d));
        all = int8_scale(-top);
        if (lane == 0) *scale = -top == -top ? all : __int_as_float(0x7fc00000);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = lane + 32 * i;
        if (c * 4 >= SIZE) continue;
        uint32_t codes = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float y = x[i][j] / (IS_V ? __ldg(by + (4 * c + j) * step) : all);
            codes |= ((uint32_t)(int)int8_code(y) & 255) << 8 * j;
        }
        ((uint32_t *)dst)[c] = codes;
    }
}

template <int SIZE, int DT>
ATTN_DEV void write_row(uint8_t *dst, const uint8_t *src, float scale, bool scaled, int lane) {
    constexpr int EB = element_bytes(DT);
    if constexpr (DT == TL_Q2) {
        constexpr int VEC = TL_KVEC < TL_SVEC ? TL_KVEC : TL_SVEC;
#pragma unroll 4
        for (int b = lane * VEC; b < SIZE * EB; b += 32 * VEC)
            copy_piece<VEC>(dst + b, src + b);
    } else {
        if constexpr (TL_TOKEN_HEAD) {
            float top = row_absmax<SIZE>(src, lane);
            scale = top / (DT == DT_I8 ? 127.f : 448.f);
            scale = scale < 1e-6f ? 1e-6f : scale;
            scaled = true;
            uint32_t bits = __float_as_uint(scale);
            if (lane < 4) dst[SIZE + lane] = (uint8_t)(bits >> (8 * lane));
        }
        for (int d = lane; d < SIZE; d += 32) {
            float x = load_float<TL_Q2>(src, d);
            if (scaled) x /= scale;
            if constexpr (DT == DT_I8)
                dst[d] = (uint8_t)(signed char)int8_code(x);
            else
                store_float<DT>(dst, d, x);
        }
    }
}

#if TL_FP4
/* A row by eight lanes, a group of 16 values at a time. */
template <int SIZE>
ATTN_DEV void write_fp4(uint8_t *dst, uint8_t *scales, const uint8_t *src, float scale, bool ok, int l) {
    if (!ok) return;
    for (int g = l; g < SIZE / 16; g += 8) {
        float x[16];
#pragma unroll
        for (int i = 0; i < 16 * SB / 16; i++) {
            const uint4 w = __ldg((const uint4 *)(src + g * 16 * SB) + i);
            const uint32_t y[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int j = 0; j < 4; j++)
                if constexpr (SB == 2) {
                    const float2 f = unpack2 < TL_Q2 == DT_F32 ? DT_F16 : TL_Q2 > (y[j]);
                    x[8 * i + 2 * j] = f.x, x[8 * i + 2 * j + 1] = f.y;
                } else
                    x[4 * i + j] = __uint_as_float(y[j]);
        }
        uint2 codes;
        scales[g] = fp4::write_group(x, scale, codes);
        *(uint2 *)(dst + g * 8) = codes;
    }
}
#endif
constexpr bool EIGHTS = TL_PACKED || TL_FP4; /* eight lanes a row, not 32 */

/* K and V of one token and head into the slot of the token, by a warp; EIGHTS: by each of its lanes in
 * eights, nothing where token is negative. */
ATTN_DEV void write_token(const triton_write_params_t &p, int token, int head, int lane) {
#if TL_PACKED || TL_FP4
    const bool is_mine = token >= 0;
    token = max(token, 0);
#endif
    const int64_t slot = __ldg(p.slots + token);
#if TL_PACKED || TL_FP4
    const bool ok = is_mine && slot >= 0 && slot < p.num_slots;
#else
    if (slot < 0 || slot >= p.num_slots) return;
#endif
    const int64_t page = slot / TL_PAGE, at = slot % TL_PAGE;
    const uint8_t *key =
        (const uint8_t *)p.key + ((int64_t)token * p.key_token + (int64_t)head * p.key_head) * SB;
    const uint8_t *value =
        (const uint8_t *)p.value + ((int64_t)token * p.value_token + (int64_t)head * p.value_head) * SB;
    uint8_t *k = (uint8_t *)p.k_cache + (page * p.k_page + at * p.k_token + (int64_t)head * p.k_head) * EB;
    uint8_t *v = (uint8_t *)p.v_cache + (page * p.v_page + at * p.v_token + (int64_t)head * p.v_head) * VB;
#if TL_PACKED
    packed::write_row<false>(k, key, ok, lane);
    packed::write_row<true>(v, value, ok, lane);
#elif TL_FP4
    uint8_t *const ks = (uint8_t *)p.k_rows_scales + page * p.ks_page + at * p.ks_token + head * p.ks_head,
                   *const vs =
                       (uint8_t *)p.v_rows_scales + page * p.vs_page + at * p.vs_token + head * p.vs_head;
    write_fp4<TL_D>(k, ks, key, p.k_scale ? __ldg(p.k_scale + head * p.scale_stride) : 1.f, ok, lane & 7);
    write_fp4<TL_DV>(v, vs, value, p.v_scale ? __ldg(p.v_scale + head * p.scale_stride) : 1.f, ok, lane & 7);
#elif TL_K_APART
    float *const scale = (float *)((uint8_t *)p.k_rows_scales + page * p.ks_page + at * p.ks_token +
                                   (int64_t)head * p.ks_head);
    write_int8<TL_D, false>(k, key, scale, nullptr, 0, lane);
    if constexpr (TL_V_CHANNELS)
        write_int8<TL_DV, true>(v, value, nullptr, p.v_scale + head * p.v_scale_head, p.v_scale_channel,
                                lane);
    else
        write_row<TL_DV, TL_V>(v, value, 1.f, false, lane);
#else
    float ks = p.k_scale ? __ldg(p.k_scale + head * p.scale_stride) : 1.f;
    float vs = p.v_scale ? __ldg(p.v_scale + head * p.scale_stride) : 1.f;
    write_row<TL_D, TL_KV>(k, key, ks, p.k_scale != nullptr, lane);
    write_row<TL_DV, TL_KV>(v, value, vs, p.v_scale != nullptr, lane);
#endif
}

} /* namespace cache_write */

extern "C" __global__ void __launch_bounds__(256) tl_write(const __grid_constant__ triton_write_params_t p) {
#if TL_PACKED || TL_FP4
    const int64_t unit = (int64_t)blockIdx.x * 32 + (threadIdx.x >> 3);
    const bool is_one = unit < (int64_t)p.num_tokens * p.num_kv_heads;
    cache_write::write_token(p, is_one ? (int)(unit / p.num_kv_heads) : -1,
                             is_one ? (int)(unit % p.num_kv_heads) : 0, threadIdx.x & 31);
#else
    const int64_t unit = (int64_t)blockIdx.x * 8 + (threadIdx.x >> 5);
    if (unit < (int64_t)p.num_tokens * p.num_kv_heads)
        cache_write::write_token(p, (int)(unit / p.num_kv_heads), (int)(unit % p.num_kv_heads),
                                 threadIdx.x & 31);
#endif
}

} /* namespace attn_cuda */
#endif
