/* SPDX-License-Identifier: Apache-2.0 */
/* Cache write (semantics 3.2, 3.4, 3.6, 3.8, 3.11): a scatter of the step's rows, quantising where the format
 * asks. Eight lanes a row where one is quantised, with K and V in registers before either is written, else a
 * warp; equal formats are copied in the widest pieces that alignment allows. TL_Q2: element type of K and V
 * of the call (TL_Q may be a quantised query). TL_SVEC: bytes that rows of the call are aligned to. */
#ifndef TRITON_WRITE_CUH
#define TRITON_WRITE_CUH

#include "triton_codes.cuh"
#include "triton_packed_write.cuh"
#include "triton_write_rows.cuh"

namespace attn_cuda {
namespace cache_write {

constexpr int EB = element_bytes(TL_KV), VB = element_bytes(TL_V);

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

/* Four values as codes. PLAIN: numbers that an int8 holds. */
template <int DT, bool PLAIN>
ATTN_DEV uint32_t four_codes(const float *x) {
    if constexpr (DT == DT_I8) {
        uint32_t y[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[i] = PLAIN ? int8_low(x[i]) : int8_bits(x[i]);
        return prmt(prmt(y[0], y[1], 0x0040), prmt(y[2], y[3], 0x0040), 0x5410);
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

/* The values of one row. */
template <int SIZE, int W>
struct row_part {
    static constexpr int N = row_words<SIZE, W>::N;
    float x[N], top;
    ATTN_DEV row_part(const row_words<SIZE, W> &words, int l) {
        words.values(x, l);
        top = words.absmax(x);
    }
    /* The greatest magnitude of the row; NaN if one is in it. All lanes of the warp. */
    ATTN_DEV float absmax() const {
        float low = -top;
#pragma unroll
        for (int d = 1; d < 8; d *= 2)
            low = min_nan(low, __shfl_xor_sync(~0u, low, d));
        return -low;
    }
    /* by(x, i): number i of this lane, divided. */
    template <int DT, bool PLAIN, class F>
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
                codes[j] = four_codes<DT, PLAIN>(y + 4 * j);
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
template <int DT, int SIZE, int W>
ATTN_DEV void write_codes(uint8_t *dst, const row_part<SIZE, W> &row, uint8_t *scale_at, float scale, bool ok,
                          int l) {
    if constexpr (TL_TOKEN_HEAD || (TL_K_APART && DT == DT_I8)) {
        const float s = divided < DT == DT_I8 ? 127 : 448 > (row.absmax());
        scale = s < 1e-6f ? 1e-6f : s;
        if (ok && l == 0) *(float *)scale_at = scale == scale ? scale : __int_as_float(0x7fc00000);
        if (__all_sync(~0u, plain_quotient::fits(scale))) { /* and so all of the row is finite */
            const plain_quotient by(scale);
            row.template write<DT, true>(dst, ok, l, [&](float x, int) { return by.of(x); });
            return;
        }
    }
    const quotient by(scale);
    row.template write<DT, false>(dst, ok, l, [&](float x, int) { return by.of(x); });
}

/* Values by scales of their own. */
template <int DT, int SIZE, int W>
ATTN_DEV void write_channels(uint8_t *dst, const row_part<SIZE, W> &row, const channel_row<SIZE, W> &by,
                             bool ok, int l) {
    float y[row_part<SIZE, W>::N];
    bool plain = true;
#pragma unroll
    for (int k = 0; k < row_part<SIZE, W>::N; k++) {
        y[k] = plain_quotient(by.x[k]).of(row.x[k]);
        plain = plain && plain_quotient::fits(by.x[k]) && y[k] == y[k];
    }
    if (__all_sync(~0u, plain))
        row.template write<DT, true>(dst, ok, l, [&](float, int i) { return int8_clamp(y[i]); });
    else
        row.template write<DT, false>(dst, ok, l, [&](float x, int i) { return quotient(by.x[i]).of(x); });
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
ATTN_DEV void write_fp4(uint8_t *dst, uint8_t *scales, const row_words<SIZE, 16> &row, float scale, bool ok,
                        int l) {
    float all[row_words<SIZE, 16>::N];
    row.values(all, l);
#pragma unroll
    for (int i = 0; i < row_words<SIZE, 16>::N / 16; i++) {
        const int g = l + 8 * i;
        if (!ok || g >= SIZE / 16) continue;
        float x[16];
#pragma unroll
        for (int j = 0; j < 16; j++)
            x[j] = all[16 * i + j];
        uint2 codes;
        scales[g] = fp4::write_group(x, scale, codes);
        *(uint2 *)(dst + g * 8) = codes;
    }
}
#endif

/* TL_EIGHTS: tl_write has eight lanes a row, not 32. Rows that are copied as they are have them there alone:
 * tl_rope, which has a warp a row, copies by all of it. */
constexpr bool COPIED = TL_EIGHTS && !TL_PACKED && !TL_FP4 && TL_KV == TL_Q2 && TL_V == TL_Q2,
               EIGHTS = TL_EIGHTS && !COPIED;
constexpr int value_width(int size) {
    return TL_FP4 ? 16 : TL_PACKED || COPIED || TL_V == TL_Q2 || (size % 8 == 0 && TL_KVEC >= 8) ? 8 : 4;
}
constexpr int KEY_WIDTH = TL_FP4 ? 16 : TL_PACKED || COPIED || (TL_D % 8 == 0 && TL_KVEC >= 8) ? 8 : 4;

/* K and V of one token and head on their way into the token's slot. */
struct new_rows {
    row_words<TL_D, KEY_WIDTH> k;
    row_words<TL_DV, value_width(TL_DV)> v;
    int64_t slot;
    int head;
    /* token < 0: there is none */
    ATTN_DEV void ask(const triton_write_params_t &p, int token, int of, int l) {
        const bool is_token = token >= 0;
        token = max(token, 0), head = of;
        slot = is_token ? __ldg(p.slots + token) : -1;
        k.ask((const uint8_t *)p.key + ((int64_t)token * p.key_token + (int64_t)head * p.key_head) * SB,
              is_token, l);
        v.ask((const uint8_t *)p.value + ((int64_t)token * p.value_token + (int64_t)head * p.value_head) * SB,
              is_token, l);
    }
};

struct cache_rows { /* where they go */
    uint8_t *k, *v, *ks, *vs;
    ATTN_DEV cache_rows(const triton_write_params_t &p, int64_t slot, int head) {
        const int64_t page = slot / TL_PAGE, at = slot % TL_PAGE;
        k = (uint8_t *)p.k_cache + (page * p.k_page + at * p.k_token + (int64_t)head * p.k_head) * EB;
        v = (uint8_t *)p.v_cache + (page * p.v_page + at * p.v_token + (int64_t)head * p.v_head) * VB;
        ks = (uint8_t *)p.k_rows_scales + page * p.ks_page + at * p.ks_token + (int64_t)head * p.ks_head;
        vs = (uint8_t *)p.v_rows_scales + page * p.vs_page + at * p.vs_token + (int64_t)head * p.vs_head;
    }
};

/* A row as it is; where both sides are whole pieces of 16 bytes, from the words that were asked for. */
template <int SIZE, int W>
ATTN_DEV void copy_row(uint8_t *dst, const row_words<SIZE, W> &row, bool ok, int l) {
    constexpr int VEC = TL_KVEC < TL_SVEC ? TL_KVEC : TL_SVEC, PIECES = SIZE * SB / VEC;
    if constexpr (VEC == 16 && W == 8 && row_words<SIZE, W>::AHEAD) {
#pragma unroll
        for (int i = 0; i < (PIECES + 7) / 8; i++)
            if (ok && l + 8 * i < PIECES)
                ((uint4 *)dst)[l + 8 * i] =
                    make_uint4(row.y[4 * i], row.y[4 * i + 1], row.y[4 * i + 2], row.y[4 * i + 3]);
    } else if (ok) {
#pragma unroll 4
        for (int i = l; i < PIECES; i += 8)
            copy_piece<VEC>(dst + i * VEC, row.src + i * VEC);
    }
}

/* By eight lanes a row. */
ATTN_DEV void write_rows(const triton_write_params_t &p, const new_rows &rows, int lane) {
#if TL_EIGHTS
    const bool ok = rows.slot >= 0 && rows.slot < p.num_slots;
    const int l = lane & 7, head = rows.head;
    const cache_rows to(p, ok ? rows.slot : 0, head);
#if TL_PACKED
    packed::write_row<false>(to.k, rows.k, ok, lane);
    packed::write_row<true>(to.v, rows.v, ok, lane);
#elif TL_FP4
    write_fp4<TL_D>(to.k, to.ks, rows.k, p.k_scale ? __ldg(p.k_scale + head * p.scale_stride) : 1.f, ok, l);
    write_fp4<TL_DV>(to.v, to.vs, rows.v, p.v_scale ? __ldg(p.v_scale + head * p.scale_stride) : 1.f, ok, l);
#else
    if constexpr (COPIED) {
        copy_row(to.k, rows.k, ok, l);
        copy_row(to.v, rows.v, ok, l);
        return;
    }
    const row_part a(rows.k, l);
    if constexpr (TL_V_CHANNELS) {
        const channel_row<TL_DV, value_width(TL_DV)> by(p, head, l);
        write_codes<TL_KV>(to.k, a, to.ks, 1.f, ok, l);
        write_channels<TL_V>(to.v, row_part(rows.v, l), by, ok, l);
    } else if constexpr (TL_K_APART) {
        copy_row(to.v, rows.v, ok, l);
        write_codes<TL_KV>(to.k, a, to.ks, 1.f, ok, l);
    } else {
        const float ks = p.k_scale ? __ldg(p.k_scale + head * p.scale_stride) : 1.f,
                    vs = p.v_scale ? __ldg(p.v_scale + head * p.scale_stride) : 1.f;
        write_codes<TL_KV>(to.k, a, to.k + TL_D, ks, ok, l);
        write_codes<TL_KV>(to.v, row_part(rows.v, l), to.v + TL_DV, vs, ok, l);
    }
#endif
#endif
}

/* By a warp: K and V of one token and head into the token's slot; EIGHTS: by its first eight lanes. */
ATTN_DEV void write_token(const triton_write_params_t &p, int token, int head, int lane) {
    if constexpr (EIGHTS) {
        new_rows rows;
        rows.ask(p, lane < 8 ? token : -1, head, lane & 7);
        write_rows(p, rows, lane);
    } else {
        const int64_t slot = __ldg(p.slots + token);
        if (slot < 0 || slot >= p.num_slots) return;
        const cache_rows to(p, slot, head);
        const uint8_t *key =
            (const uint8_t *)p.key + ((int64_t)token * p.key_token + (int64_t)head * p.key_head) * SB;
        const uint8_t *value =
            (const uint8_t *)p.value + ((int64_t)token * p.value_token + (int64_t)head * p.value_head) * SB;
        const float ks = p.k_scale ? __ldg(p.k_scale + head * p.scale_stride) : 1.f;
        const float vs = p.v_scale ? __ldg(p.v_scale + head * p.scale_stride) : 1.f;
        write_row<TL_D, TL_KV>(to.k, key, ks, p.k_scale != nullptr, lane);
        write_row<TL_DV, TL_KV>(to.v, value, vs, p.v_scale != nullptr, lane);
    }
}

} /* namespace cache_write */

/* TL_EIGHTS: a CTA takes 32 rows of K and of V. */
extern "C" __global__ void __launch_bounds__(256, packed::CENTROIDS ? 5 : 1)
    tl_write(const __grid_constant__ triton_write_params_t p) {
#if TL_EIGHTS
    const uint32_t heads = (uint32_t)p.num_kv_heads,
                   row = blockIdx.x % heads * 32 + (threadIdx.x >> 3); /* behind those of whole tokens */
    const int token = (int)(blockIdx.x / heads * 32 + row / heads), lane = threadIdx.x & 31;
    cache_write::new_rows rows;
    rows.ask(p, token < p.num_tokens ? token : -1, (int)(row % heads), lane & 7);
    cache_write::write_rows(p, rows, lane);
#else
    const int64_t unit = (int64_t)blockIdx.x * 8 + (threadIdx.x >> 5);
    if (unit < (int64_t)p.num_tokens * p.num_kv_heads)
        cache_write::write_token(p, (int)(unit / p.num_kv_heads), (int)(unit % p.num_kv_heads),
                                 threadIdx.x & 31);
#endif
}

} /* namespace attn_cuda */
#endif
