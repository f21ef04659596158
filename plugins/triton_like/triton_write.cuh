/* SPDX-License-Identifier: Apache-2.0 */
/* Cache write (semantics 3.2, 3.4, 3.6, 3.8, 3.11): a scatter of the step's rows, quantising where the format
 * asks. Eight lanes a row where one is quantised, with K and V in registers before either is written, else a
 * warp; equal formats are copied in the widest pieces that alignment allows. TL_Q2: element type of K and V
 * of the call (TL_Q may be a quantised query). TL_SVEC: bytes that rows of the call are aligned to. */
#ifndef TRITON_WRITE_CUH
#define TRITON_WRITE_CUH

#include "triton_codes.cuh"
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

/* Four values as codes. */
template <int DT>
ATTN_DEV uint32_t four_codes(const float *x) {
    if constexpr (DT == DT_I8) {
        const uint32_t a = prmt(int8_bits(x[0]), int8_bits(x[1]), 0x0040),
                       b = prmt(int8_bits(x[2]), int8_bits(x[3]), 0x0040);
        return prmt(a, b, 0x5410);
    } else if constexpr (DT == DT_E4M3)
        return f32x2_to_e4m3x2(x[0], x[1]) & 0xffff | f32x2_to_e4m3x2(x[2], x[3]) << 16;
    else {
        uint8_t byte[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            store_float<DT>(byte, j, x[j]);
        return byte[0] | byte[1] << 8 | byte[2] << 16 | (uint32_t)byte[3] << 24;
    }
}

/* By eight lanes a row: a lane has the W values from W c on for c = l, l + 8 and so on, so many that eight
 * lanes store one piece. Ordinary loads: tl_rope has just written the row. */
template <int SIZE>
struct row_part {
    static constexpr int W = SIZE % 8 == 0 && TL_KVEC >= 8 ? 8 : 4, N = (SIZE / W + 7) / 8 * W;
    float x[N];
    ATTN_DEV row_part(const uint8_t *src, bool ok, int l) {
#pragma unroll
        for (int i = 0; i < N / W; i++) {
            const int c = l + 8 * i;
            const bool in = ok && c * W < SIZE;
            if constexpr (TL_SVEC >= W * SB || (SB == 4 && TL_SVEC >= 16)) {
                uint32_t y[W * SB / 4];
#pragma unroll
                for (int j = 0; j < W * SB / 4; j += 2 * (W * SB >= 16) + 2) {
                    const uint8_t *const at = src + c * W * SB + 4 * j;
                    if constexpr (W * SB >= 16) {
                        const uint4 w = in ? *(const uint4 *)at : make_uint4(0, 0, 0, 0);
                        y[j] = w.x, y[j + 1] = w.y, y[j + 2] = w.z, y[j + 3] = w.w;
                    } else {
                        const uint2 w = in ? *(const uint2 *)at : make_uint2(0, 0);
                        y[j] = w.x, y[j + 1] = w.y;
                    }
                }
#pragma unroll
                for (int j = 0; j < W; j++)
                    if constexpr (SB == 4)
                        x[W * i + j] = __uint_as_float(y[j]);
                    else if (j % 2 == 0) {
                        const float2 f = unpack2 < TL_Q2 == DT_F32 ? DT_F16 : TL_Q2 > (y[j / 2]);
                        x[W * i + j] = f.x, x[W * i + j + 1] = f.y;
                    }
            } else {
#pragma unroll
                for (int j = 0; j < W; j++)
                    x[W * i + j] = in ? load_float<TL_Q2>(src, W * c + j) : 0.f;
            }
        }
    }
    /* The greatest magnitude of the row; NaN if one is in it. All lanes of the warp. */
    ATTN_DEV float absmax() const {
        float top = 0.f;
#pragma unroll
        for (int k = 0; k < N; k++)
            top = min_nan(top, -fabsf(x[k]));
#pragma unroll
        for (int d = 1; d < 8; d *= 2)
            top = min_nan(top, __shfl_xor_sync(~0u, top, d));
        return -top;
    }
    /* by(x, i): number i of this lane, divided. */
    template <int DT, class F>
    ATTN_DEV void write(uint8_t *dst, bool ok, int l, F by) const {
#pragma unroll
        for (int i = 0; i < N / W; i++) {
            const int c = l + 8 * i;
            if (!ok || c * W >= SIZE) continue;
            float y[W];
            uint32_t codes[W / 4];
#pragma unroll
            for (int j = 0; j < W; j++)
                y[j] = by(x[W * i + j], W * i + j);
#pragma unroll
            for (int j = 0; j < W / 4; j++)
                codes[j] = four_codes<DT>(y + 4 * j);
            if constexpr (W == 8)
                ((uint2 *)dst)[c] = make_uint2(codes[0], codes[W / 4 - 1]);
            else
#pragma unroll
                for (int j = 0; j < W / 4; j++)
                    ((uint32_t *)dst)[W / 4 * c + j] = codes[j];
        }
    }
};

/* Scales of V's channels, those of row_part's values. */
template <int SIZE, int W>
struct channel_row {
    static constexpr int N = (SIZE / W + 7) / 8 * W;
    float x[N];
    ATTN_DEV channel_row(const triton_write_params_t &p, int head, int l) {
        const float *const from = p.v_scale + head * p.v_scale_head;
        const bool dense = p.v_scale_channel == 1 && (uintptr_t)from % 16 == 0;
        if (__all_sync(~0u, dense)) {
#pragma unroll
            for (int i = 0; i < N; i += 4) {
                const int d = (l + i / W * 8) * W + i % W;
                const float4 y =
                    d < SIZE ? __ldg((const float4 *)(from + d)) : make_float4(1.f, 1.f, 1.f, 1.f);
                x[i] = y.x, x[i + 1] = y.y, x[i + 2] = y.z, x[i + 3] = y.w;
            }
        } else
#pragma unroll
            for (int i = 0; i < N; i++) {
                const int d = (l + i / W * 8) * W + i % W;
                x[i] = d < SIZE ? __ldg(from + d * p.v_scale_channel) : 1.f;
            }
    }
};

/* K or V of a format of eight bits. scale_at: where the row's own scale goes, if it has one. */
template <int SIZE, int DT>
ATTN_DEV void write_codes(uint8_t *dst, const row_part<SIZE> &row, uint8_t *scale_at, float scale, bool ok,
                          int l) {
    if constexpr (TL_TOKEN_HEAD || (TL_K_APART && DT == DT_I8)) {
        const float s = divided < DT == DT_I8 ? 127 : 448 > (row.absmax());
        scale = s < 1e-6f ? 1e-6f : s;
        if (ok && l == 0) *(float *)scale_at = scale == scale ? scale : __int_as_float(0x7fc00000);
    }
    const quotient by(scale);
    row.template write<DT>(dst, ok, l, [&](float x, int) { return by.of(x); });
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
constexpr bool EIGHTS = TL_EIGHTS; /* eight lanes a row, not 32 */

/* K and V of one token and head into the slot of the token, by a warp; EIGHTS: by each of its lanes in
 * eights, nothing where token is negative. */
ATTN_DEV void write_token(const triton_write_params_t &p, int token, int head, int lane) {
#if TL_EIGHTS
    const bool is_mine = token >= 0;
    token = max(token, 0);
#endif
    const int64_t slot = __ldg(p.slots + token);
#if TL_EIGHTS
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
#elif TL_EIGHTS
    const int l = lane & 7;
    const row_part<TL_D> a(key, ok, l);
    if constexpr (TL_V_CHANNELS) {
        const row_part<TL_DV> b(value, ok, l);
        const channel_row<TL_DV, decltype(b)::W> by(p, head, l);
        write_codes<TL_D, TL_KV>(
            k, a, (uint8_t *)p.k_rows_scales + page * p.ks_page + at * p.ks_token + (int64_t)head * p.ks_head,
            1.f, ok, l);
        b.template write<TL_V>(v, ok, l, [&](float x, int i) { return quotient(by.x[i]).of(x); });
    } else if constexpr (TL_K_APART) {
        constexpr int VEC = TL_KVEC < TL_SVEC ? TL_KVEC : TL_SVEC, PIECES = TL_DV * SB / VEC;
        if (ok)
#pragma unroll 4
            for (int i = l; i < PIECES; i += 8)
                copy_piece<VEC>(v + i * VEC, value + i * VEC);
        write_codes<TL_D, TL_KV>(
            k, a, (uint8_t *)p.k_rows_scales + page * p.ks_page + at * p.ks_token + (int64_t)head * p.ks_head,
            1.f, ok, l);
    } else {
        const row_part<TL_DV> b(value, ok, l);
        const float ks = p.k_scale ? __ldg(p.k_scale + head * p.scale_stride) : 1.f,
                    vs = p.v_scale ? __ldg(p.v_scale + head * p.scale_stride) : 1.f;
        write_codes<TL_D, TL_KV>(k, a, k + TL_D, ks, ok, l);
        write_codes<TL_DV, TL_KV>(v, b, v + TL_DV, vs, ok, l);
    }
#else
    float ks = p.k_scale ? __ldg(p.k_scale + head * p.scale_stride) : 1.f;
    float vs = p.v_scale ? __ldg(p.v_scale + head * p.scale_stride) : 1.f;
    write_row<TL_D, TL_KV>(k, key, ks, p.k_scale != nullptr, lane);
    write_row<TL_DV, TL_KV>(v, value, vs, p.v_scale != nullptr, lane);
#endif
}

} /* namespace cache_write */

extern "C" __global__ void __launch_bounds__(256) tl_write(const __grid_constant__ triton_write_params_t p) {
#if TL_EIGHTS
    const uint32_t heads = (uint32_t)p.num_kv_heads,
                   row = blockIdx.x % heads * 32 + (threadIdx.x >> 3); /* behind those of whole tokens */
    const int token = (int)(blockIdx.x / heads * 32 + row / heads);
    cache_write::write_token(p, token < p.num_tokens ? token : -1, (int)(row % heads), threadIdx.x & 31);
#else
    const int64_t unit = (int64_t)blockIdx.x * 8 + (threadIdx.x >> 5);
    if (unit < (int64_t)p.num_tokens * p.num_kv_heads)
        cache_write::write_token(p, (int)(unit / p.num_kv_heads), (int)(unit % p.num_kv_heads),
                                 threadIdx.x & 31);
#endif
}

} /* namespace attn_cuda */
#endif
