/* SPDX-License-Identifier: Apache-2.0 */
/* What all run-time compiled kernels share: element types, conversion, which keys a query row sees, the
 * score.
 *
 * Macros (triton_config.c): TL_Q, TL_OUT, TL_KV (of K), TL_V element types; TL_TOKEN_HEAD inline scales;
 * TL_K_APART scales of K apart and queries rounded to int8, TL_V_CHANNELS scales of V's channels (semantics
 * 3.8), TL_S8: prefill has int8 products for these; TL_FP4 nvfp4; TL_PACKED codes of fewer bits; TL_D, TL_DV,
 * TL_GROUP, TL_PAGE (0: no cache); TL_CAUSAL 0, 1, 2 (per request); TL_WINDOW, TL_CHUNK, TL_LOOKBACK (-1:
 * off), TL_LOOKBACK_CHUNK, TL_RSWA, TL_SPANS, TL_SPAN_CLAMP, TL_ALIBI 0, 1, 2 (square root), TL_QQ, TL_SINKS,
 * TL_REL, TL_SCALE, TL_CAP; TL_DEVICE_LENGTHS: the lengths of decode's items are bounds; TL_QVEC, TL_KVEC,
 * TL_OVEC: bytes that every row of Q, of K and V, of the output is aligned to. */
#ifndef TRITON_ROWS_CUH
#define TRITON_ROWS_CUH

#include "lse_merge.cuh"
#include "triton_fp4.cuh"
#include "triton_packed.cuh"
#include "triton_params.h"

namespace attn_cuda {

/* DT_PACKED: bytes, triton_packed.cuh; DT_E2M1: two in a byte, which is its unit, triton_fp4.cuh */
enum { DT_F32 = 5, DT_I8 = 6, DT_PACKED = 7, DT_E2M1 = 8 };

constexpr int element_bytes(int dt) {
    return dt == DT_F32 ? 4 : dt == DT_F16 || dt == DT_BF16 ? 2 : 1;
}
constexpr bool HAS_KV_SCALE =
    element_bytes(TL_KV) == 1 && !TL_TOKEN_HEAD && !TL_K_APART; /* of a tensor or of a head */
constexpr bool K_SCALED = TL_TOKEN_HEAD || TL_K_APART;          /* a key has a scale of its own */
constexpr float VALUE_UNIT = TL_FP4 ? fp4::UNIT : 1.f; /* of keys and values as the products have them */
/* Queries that become f16 and may not fit it, bf16 beside codes or f16, and rotated ones: a row is divided by
 * a unit of its own, a power of two, which its scores are multiplied by in float32. */
constexpr bool ROW_UNITS =
    !TL_K_APART && TL_Q != DT_F32 && (packed::ROTATED || (TL_Q == DT_BF16 && TL_KV != DT_BF16));

/* ------------------------------------------------------------- conversions */

/* Two neighbours of four 8-bit codes as f16x2, the low or the high pair. Exact: every code is an f16. int8:
 * the byte becomes the mantissa of 1024 + x, and 1024 + 128 is subtracted. */
template <int DT, int HIGH>
ATTN_DEV uint32_t codes_to_f16x2(uint32_t x) {
    if constexpr (DT == DT_E4M3)
        return e4m3x2_to_f16x2<HIGH>(x);
    else if constexpr (DT == DT_E5M2) /* the upper byte of an f16 */
        return HIGH ? prmt(x, 0, 0x3424) : prmt(x, 0, 0x1404);
    else {
        uint32_t y = prmt(x ^ 0x80808080u, 0x64646464u, HIGH ? 0x4342 : 0x4140), r;
        asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(y), "r"(0x64806480u));
        return r;
    }
}

template <int DT>
ATTN_DEV float load_float(const void *p, int64_t i) {
    if constexpr (DT == DT_F32)
        return ((const float *)p)[i];
    else if constexpr (DT == DT_F16 || DT == DT_BF16)
        return unpack2<DT>(((const uint16_t *)p)[i]).x;
    else if constexpr (DT == DT_I8)
        return (float)((const signed char *)p)[i];
    else
        return unpack2<DT_F16>(codes_to_f16x2<DT, 0>(((const uint8_t *)p)[i])).x;
}

/* Nearest even to 5 exponent and 2 mantissa bits, saturating at 57344. */
ATTN_DEV uint32_t float_to_e5m2(float v) {
#if __CUDA_ARCH__ >= 890
    uint16_t r;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.f), "f"(v));
    return r & 0xff;
#else
    float a = fabsf(v);
    uint32_t sign = __float_as_uint(v) >> 31 << 7, code;
    if (!(a <= 57344.f))
        code = a != a ? 0x7f : 0x7b;
    else if (a < 6.103515625e-05f) /* below 2^-14: multiples of 2^-16 */
        code = (uint32_t)__float2int_rn(a * 65536.f);
    else {
        uint32_t u = __float_as_uint(a);
        u += 0xfffff + (u >> 21 & 1);
        code = (u >> 21) - (112 << 2);
        code = code > 0x7b ? 0x7b : code;
    }
    return sign | code;
#endif
}

template <int DT>
ATTN_DEV void store_float(void *p, int64_t i, float x) {
    if constexpr (DT == DT_F32)
        ((float *)p)[i] = x;
    else if constexpr (DT == DT_F16 || DT == DT_BF16)
        ((uint16_t *)p)[i] = (uint16_t)pack2<DT>(x, 0.f);
    else if constexpr (DT == DT_E4M3)
        ((uint8_t *)p)[i] = (uint8_t)f32x2_to_e4m3x2(x, 0.f);
    else
        ((uint8_t *)p)[i] = (uint8_t)float_to_e5m2(x);
}

/* A float at any address: inline scales of odd head sizes are not aligned. */
ATTN_DEV float load_scale(const uint8_t *p) {
    if constexpr (TL_KVEC >= 4)
        return *(const float *)p;
    else
        return __uint_as_float(p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
}

/* int8 of semantics 3.4 and 3.8: what a row whose largest magnitude is `top` is divided by, NaN if that is;
 * and a quotient to its code: nearest, half away from zero, 0 for NaN, whose scale carries it. */
ATTN_DEV float int8_scale(float top) {
    const float scale = top / 127.f;
    return scale < 1e-6f ? 1e-6f : scale;
}
ATTN_DEV float int8_code(float x) {
    return x != x ? 0.f : fminf(fmaxf(roundf(x), -128.f), 127.f);
}

template <int BYTES>
ATTN_DEV void copy_piece(uint8_t *dst, const uint8_t *src) {
    if constexpr (BYTES == 16)
        *(uint4 *)dst = *(const uint4 *)src;
    else if constexpr (BYTES == 8)
        *(uint2 *)dst = *(const uint2 *)src;
    else if constexpr (BYTES == 4)
        *(uint32_t *)dst = *(const uint32_t *)src;
    else if constexpr (BYTES == 2)
        *(uint16_t *)dst = *(const uint16_t *)src;
    else
        *dst = *src;
}

/* Query values d and d + 1 (d even) as one register of a 16-bit type; zero past the head size. The scale
 * stays out of it, so that no bit of Q is lost. */
template <int MMA>
ATTN_DEV uint32_t query_pair(const uint8_t *row, int d) {
    if (d >= TL_D) return 0;
    if constexpr (TL_Q == DT_E4M3) {
        uint32_t x = row[d] | (d + 1 < TL_D ? (uint32_t)row[d + 1] << 8 : 0);
        x = codes_to_f16x2<DT_E4M3, 0>(x);
        float2 f = unpack2<DT_F16>(x);
        return MMA == DT_F16 ? x : pack2<MMA>(f.x, f.y);
    } else {
        uint32_t x;
        if constexpr (TL_QVEC >= 4)
            x = *(const uint32_t *)(row + d * 2);
        else
            x = ((const uint16_t *)row)[d] |
                (d + 1 < TL_D ? (uint32_t)((const uint16_t *)row)[d + 1] << 16 : 0);
        if constexpr (TL_Q == MMA)
            return x;
        else {
            const float2 f = unpack2 < TL_Q == DT_F32 ? DT_F16 : TL_Q > (x);
            return pack2<MMA>(f.x, f.y);
        }
    }
}

/* What a row whose largest magnitude is `top` is divided by: that is in [2^MOST, 2^(MOST + 1)) then, or less
 * where the unit or its inverse would be subnormal. Infinities and NaN stay what they are. */
struct row_unit {
    float unit, inverse;
    template <int MOST>
    static ATTN_DEV row_unit of(float top) {
        const int size = (int)(__float_as_uint(top) >> 23) - MOST, bits = min(max(size, 1), 253) << 23;
        return {__int_as_float(bits), __int_as_float((254 << 23) - bits)};
    }
};

#if TL_PACKED
/* A warp's query row, divided by its unit, in the base of a packed cache; returns the unit. */
template <int E, class F>
ATTN_DEV float rotate_row(float (&x)[E], int lane, F unit_of) {
    float top = 0.f;
#pragma unroll
    for (int j = 0; j < E; j++)
        top = fmaxf(top, fabsf(x[j]));
#pragma unroll
    for (int d = 1; d < 32; d <<= 1)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    const row_unit r = unit_of(top);
#pragma unroll
    for (int j = 0; j < E; j++)
        x[j] *= r.inverse;
    packed::rotate_query(x, lane);
    return r.unit;
}
#endif

/* D += A * B as in ptx_sm80.cuh, four values from d on, and free to move: the scheduler needs room between
 * ldmatrix and its use. */
template <int DT>
ATTN_DEV void mma(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (DT == DT_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The same of int8, 32 columns a step, into int32. */
ATTN_DEV void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* -------------------------------------------------------------------- masks */

struct seq_view {
    int q0;     /* first row of q */
    int k0;     /* first row of contiguous keys */
    int q_len;  /* query tokens */
    int kv_len; /* keys */
    int causal;
    int prefix; /* R-SWA: keys that every query sees */
    int num_spans;
    const int32_t *spans;
};

ATTN_DEV seq_view view_seq(const triton_params_t &p, int seq, int q0, int q_len, int kv_len) {
    seq_view s;
    s.q0 = q0;
    s.k0 = TL_PAGE > 0 ? 0 : p.k_start ? __ldg(p.k_start + seq) : q0;
    s.q_len = q_len;
    s.kv_len = kv_len;
    s.causal = TL_CAUSAL == 2 ? __ldg(p.causal + seq) : TL_CAUSAL;
    s.prefix = TL_RSWA > 0 && p.counts->prefix ? p.counts->prefix[seq] : 0;
    s.num_spans = TL_SPANS ? p.counts->num_spans : 0;
    s.spans = TL_SPANS ? p.counts->spans + seq * p.counts->span_stride : nullptr;
    return s;
}

ATTN_DEV seq_view view_seq(const triton_params_t &p, int seq) {
    const int q0 = __ldg(p.q_start + seq);
    return view_seq(p, seq, q0, __ldg(p.q_start + seq + 1) - q0, __ldg(p.seq_lens + seq));
}

/* The keys lo <= k < hi that query token i sees (semantics 2.2 to 2.8). The query's own position lies in
 * every mask's interval and in every span that concerns it, so their union is an interval again: spans cost
 * nothing in the loop over the keys. Only R-SWA adds a second one: k < prefix (and k < hi), see
 * is_visible. */
ATTN_DEV int2 row_keys(const seq_view &s, int i) {
    int pos = s.kv_len - s.q_len + i, lo = 0, hi = s.causal ? pos + 1 : s.kv_len;
    if constexpr (TL_CHUNK > 0) {
        lo = pos / TL_CHUNK * TL_CHUNK;
        hi = min(hi, pos + 1);
    }
    if constexpr (TL_LOOKBACK >= 0) {
        lo = max(lo, (pos / TL_LOOKBACK_CHUNK - TL_LOOKBACK) * TL_LOOKBACK_CHUNK);
        hi = min(hi, pos + 1);
    } else if constexpr (TL_WINDOW > 0 && TL_RSWA == 0) {
        lo = max(lo, pos - TL_WINDOW + 1);
        hi = min(hi, (int)min((int64_t)s.kv_len, (int64_t)pos + TL_WINDOW));
    }
    if constexpr (TL_RSWA > 0) {
        lo = max(lo, pos - TL_RSWA + 1);
        hi = min(hi, pos + 1);
    }
    if constexpr (TL_SPANS) {
        for (int j = 0; j < s.num_spans; j++) {
            int a = __ldg(s.spans + 2 * j), b = __ldg(s.spans + 2 * j + 1);
            if (a < b && pos >= a && pos <= b) { /* a < b: padding and single tokens are nothing */
                if (TL_SPAN_CLAMP && TL_WINDOW > 0) a = max(a, pos - TL_WINDOW + 1);
                lo = min(lo, a);
                hi = max(hi, b + 1);
            }
        }
    }
    return make_int2(max(lo, 0), max(0, min(hi, s.kv_len)));
}

ATTN_DEV bool is_visible(int k, int2 seen, int prefix) {
    return k < seen.y && (k >= seen.x || (TL_RSWA > 0 && k < prefix));
}

/* A loop over key tiles of N: from `begin` to `hi`, leaving out what R-SWA hides between prefix and
 * window. */
struct key_walk {
    int lo, hi, prefix, begin; /* keys that some row sees: [lo, hi) and [0, prefix) */
    ATTN_DEV bool wanted(int k) const { return k < hi && (k >= lo || (TL_RSWA > 0 && k < prefix)); }
    template <int N>
    ATTN_DEV void start() {
        begin = (TL_RSWA > 0 && prefix > 0 ? 0 : lo) / N * N;
    }
    template <int N>
    ATTN_DEV int next(int k) const {
        k += N;
        if (TL_RSWA > 0 && k >= prefix && k < lo) k = max(k, lo / N * N);
        return k;
    }
};

/* ------------------------------------------------------------------- scores */

/* Scale and soft cap of semantics 2.9, in base-2 units. unit: of keys, unless rows have units, which have it.
 * exact: the library's tanh instead of the fast one. */
struct score_rule {
    float factor, cap_factor;
    ATTN_DEV score_rule(const triton_params_t &p, int head, float unit) {
        factor = TL_SCALE * packed::SCORE * unit;
        if (TL_Q == DT_E4M3 && p.q_scale) factor *= __ldg(p.q_scale + head * p.q_scale_stride);
        if (HAS_KV_SCALE && p.k_scale) factor *= __ldg(p.k_scale + head * p.kv_scale_stride);
        cap_factor = TL_CAP > 0.f ? factor / TL_CAP : 0.f;
        factor *= LOG2E;
    }
    template <bool exact>
    ATTN_DEV float apply(float s) const {
        return TL_CAP > 0.f ? capped<exact>(s * cap_factor) : s * factor;
    }
    template <bool exact>
    static ATTN_DEV float capped(float x) {
        return (TL_CAP * LOG2E) * (exact ? tanhf(x) : tanh_f32(x));
    }
};

/* ALiBi on the distance k - q (semantics 2.9); slope already in base-2 units. */
template <bool exact>
ATTN_DEV float alibi_term(float slope, float rel) {
    if constexpr (TL_ALIBI == 2) {
        float d = fmaxf(-rel, 0.f), root;
        if constexpr (exact)
            root = sqrtf(d);
        else
            asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(d));
        return -slope * root;
    } else
        return slope * rel;
}

/* A bias in base-2 units. That of a mask, the lowest float, stays finite: -INFINITY alone hides a key. */
ATTN_DEV float base2(float bias) {
    return fabsf(bias) < INFINITY ? fminf(fmaxf(bias * LOG2E, LOWEST), -LOWEST) : bias;
}

/* Relative bias of a query head at distance rel = k - q, in base-2 units; row: of distance 0
 * (semantics 2.15). exact: the lowest float stays finite. */
ATTN_DEV const float *rel_bias_row(const triton_params_t &p, int head) {
    return TL_REL ? p.rel_bias + (int64_t)head * p.rel_head + p.rel_max : nullptr;
}
template <bool exact>
ATTN_DEV float rel_bias_term(const triton_params_t &p, const float *row, int rel) {
    const float bias = __ldg(row + min(max(rel, -p.rel_max), p.rel_max));
    return exact ? base2(bias) : bias * LOG2E;
}

/* What V's channel d is multiplied by, where it has a scale. */
ATTN_DEV float channel_scale(const triton_params_t &p, int head, int d) {
    return __ldg(p.v_scale + (int64_t)head * p.v_scale_head + d * p.v_scale_channel);
}

/* ------------------------------------------------------------------ addresses */

ATTN_DEV int page_of(int token) {
    return TL_PAGE > 0 ? token / (TL_PAGE > 0 ? TL_PAGE : 1) : 0;
}
/* A table's entry as a page that exists: a bad one gives that request wrong numbers, and no wild address. */
ATTN_DEV int page_id(const int32_t *entry, int last_page) {
    return max(min(__ldg(entry), last_page), 0);
}
ATTN_DEV int in_page(int token) {
    return TL_PAGE > 0 ? token % (TL_PAGE > 0 ? TL_PAGE : 1) : token;
}

} /* namespace attn_cuda */
#endif
