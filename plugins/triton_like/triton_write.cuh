/* SPDX-License-Identifier: Apache-2.0 */
/* Cache write (semantics 3.2, 3.4, 3.11): a scatter of the step's rows, quantising where the format asks. One
 * warp a row of one head, K then V; equal formats are copied in the widest pieces that the alignment allows.
 * TL_Q2: element type of K and V of the call (TL_Q may be a quantised query). TL_SVEC: bytes that rows of the
 * call are aligned to. */
#ifndef TRITON_WRITE_CUH
#define TRITON_WRITE_CUH

#include "triton_packed_write.cuh"
#include "triton_rows.cuh"

namespace attn_cuda {
namespace cache_write {

constexpr int EB = element_bytes(TL_KV), SB = element_bytes(TL_Q2);

ATTN_DEV uint8_t
int8_code(float x) { /* nearest, half away from zero; NaN has no code, its scale carries it */
    return x != x ? 0 : (uint8_t)(signed char)fminf(fmaxf(roundf(x), -128.f), 127.f);
}

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

template <int SIZE>
ATTN_DEV void write_row(uint8_t *dst, const uint8_t *src, float scale, bool scaled, int lane) {
    if constexpr (TL_KV == TL_Q2) {
        constexpr int VEC = TL_KVEC < TL_SVEC ? TL_KVEC : TL_SVEC;
#pragma unroll 4
        for (int b = lane * VEC; b < SIZE * EB; b += 32 * VEC)
            copy_piece<VEC>(dst + b, src + b);
    } else {
        if constexpr (TL_TOKEN_HEAD) {
            float top = row_absmax<SIZE>(src, lane);
            scale = top / (TL_KV == DT_I8 ? 127.f : 448.f);
            scale = scale < 1e-6f ? 1e-6f : scale;
            scaled = true;
            uint32_t bits = __float_as_uint(scale);
            if (lane < 4) dst[SIZE + lane] = (uint8_t)(bits >> (8 * lane));
        }
        for (int d = lane; d < SIZE; d += 32) {
            float x = load_float<TL_Q2>(src, d);
            if (scaled) x /= scale;
            if constexpr (TL_KV == DT_I8)
                dst[d] = int8_code(x);
            else
                store_float<TL_KV>(dst, d, x);
        }
    }
}

/* K and V of one token and head into the slot of the token, by a warp; TL_PACKED: by each of its lanes in
 * eights, nothing where token is negative. */
ATTN_DEV void write_token(const triton_write_params_t &p, int token, int head, int lane) {
#if TL_PACKED
    const bool is_mine = token >= 0;
    token = max(token, 0);
#endif
    const int64_t slot = __ldg(p.slots + token);
#if TL_PACKED
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
    uint8_t *v = (uint8_t *)p.v_cache + (page * p.v_page + at * p.v_token + (int64_t)head * p.v_head) * EB;
#if TL_PACKED
    packed::write_row<false>(k, key, ok, lane);
    packed::write_row<true>(v, value, ok, lane);
#else
    float ks = p.k_scale ? __ldg(p.k_scale + head * p.scale_stride) : 1.f;
    float vs = p.v_scale ? __ldg(p.v_scale + head * p.scale_stride) : 1.f;
    write_row<TL_D>(k, key, ks, p.k_scale != nullptr, lane);
    write_row<TL_DV>(v, value, vs, p.v_scale != nullptr, lane);
#endif
}

} /* namespace cache_write */

extern "C" __global__ void __launch_bounds__(256) tl_write(const __grid_constant__ triton_write_params_t p) {
#if TL_PACKED
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
