/* SPDX-License-Identifier: Apache-2.0 */
/* What the 2D kernels share around their products: blocks of query rows, tiles of keys on their way to shared
 * memory, scores and masks, the running softmax, and the rows of the result.
 *
 * Rows are packed (row = token * group + head), so that the query heads of one KV head share its keys. A
 * thread holds of each 16 rows and 8 keys what an accumulator of mma.m16n8 and of wgmma holds: s[4 * j + 2 *
 * e + i] is row g + 8 * e, key 8 * j + 2 * q + i. 8-bit caches become f16 on their way to shared memory,
 * which is exact; inline scales of K go to the columns of S, those of V to the columns of P. Macros beyond
 * triton_rows.cuh: TL_WARPS, which compute; TL_COPIERS, the warps before them that only copy (0: all copy);
 * TL_BN. */
#ifndef TRITON_TILE_CUH
#define TRITON_TILE_CUH

#include "triton_rows.cuh"

namespace attn_cuda {
namespace prefill {

constexpr int MMA = TL_KV == DT_BF16 ? DT_BF16 : DT_F16, V_MMA = TL_V == DT_BF16 ? DT_BF16 : DT_F16;
constexpr int EB = element_bytes(TL_KV), VB = element_bytes(TL_V), QB = element_bytes(TL_Q);
constexpr int OB = element_bytes(TL_OUT), THREADS = (TL_COPIERS ? TL_COPIERS : TL_WARPS) * 32; /* that copy */
constexpr int BN = TL_BN;
constexpr int DP = (TL_D + 15) / 16 * 16, DVP = (TL_DV + 15) / 16 * 16;
constexpr int ORS = DVP * OB + 16; /* a row of the result in shared memory */
/* A soft cap bounds the scores: where P has the range of float32 (bf16), it needs no maximum. */
constexpr bool FIXED =
    TL_CAP > 0.f && TL_CAP <= 55.f && TL_ALIBI == 0 && !TL_REL && !TL_QQ && V_MMA == DT_BF16;
constexpr float FIRST_MAX = FIXED ? 0.f : NO_MAX;
/* Scale or soft cap join the exponent where nothing else touches the score; growing, so that the maximum
 * stays one. */
constexpr bool UNTOUCHED = TL_SCALE > 0.f && TL_ALIBI == 0 && !TL_REL && !TL_QQ,
               SIMPLE = UNTOUCHED && EB == 2 && TL_Q != DT_E4M3;
constexpr bool FOLD_QUERY = UNTOUCHED && TL_K_APART && TL_CAP == 0.f; /* a rounded query's scale, too */
constexpr bool FOLD = (SIMPLE && TL_CAP == 0.f) || FOLD_QUERY, FOLD_CAP = SIMPLE && TL_CAP > 0.f && !FIXED;
/* The running maximum may lag by 2^LAZY: fewer rescales. With inline scales P is up to 64 times v_scale, so
 * not there. */
constexpr float LAZY = TL_TOKEN_HEAD ? 0.f : 8.f, V_SHIFT = TL_TOKEN_HEAD && !TL_PACKED ? 64.f : 1.f;
/* Terms of a tile's keys: scales of K, of V, and (TL_PACKED) what is added to the values of a row. */
constexpr int TERMS = TL_PACKED ? 3 : TL_TOKEN_HEAD ? 2 : TL_K_APART;
constexpr int Q_SCALES = TL_K_APART ? 4 : 0;             /* bytes of the scale of a rounded query */
constexpr float KEY_SCALE = FOLD_QUERY ? 0x1p-24f : 1.f; /* the largest sum times such a scale is a float */

/* Where 16 bytes of column c of row r lie. Rows PERIOD apart lie PERIOD * STEP bytes apart. */
template <int BYTES>
struct padded_rows {
    static constexpr int PERIOD = 1, STEP = BYTES;
    static ATTN_DEV uint32_t at(int r, int c) { return r * BYTES + c * 16; }
};
template <int ROWS>
struct swizzled_rows { /* chunks of 64 columns, each [ROWS][128 bytes] with the 128-byte swizzle */
    static constexpr int PERIOD = 8, STEP = 128;
    static ATTN_DEV uint32_t at(int r, int c) {
        return (c >> 3) * (ROWS * 128) + r * 128 + (((c & 7) ^ (r & 7)) << 4);
    }
};

/* ---------------------------------------------------------------- the block of rows */

struct block_view {
    seq_view sv;
    int seq, head, row0, rows, context;
    key_walk walk;
    int all_lo, all_hi; /* keys that every row of this warp sees */
};

/* What each row sees, into `seen`; what all of a warp's and what any rows see. Without spans both ends grow
 * with the row. extent: with spans, least lo, greatest hi, greatest lo, least hi. False: nothing to do. */
template <int BM, int WARP_ROWS>
ATTN_DEV bool view_block(const triton_params_t &p, int2 *seen, int *extent, block_view &b) {
    const int entry = blockIdx.x / p.num_kv_heads,
              warp_row = max((int)(threadIdx.x >> 5) - TL_COPIERS, 0) * WARP_ROWS;
    if (entry >= p.counts->num_tiles) return false;
    const int2 tile = *(const int2 *)(p.tiles + entry);
    b.head = blockIdx.x % p.num_kv_heads, b.seq = tile.x, b.row0 = tile.y * BM;
    b.sv = view_seq(p, b.seq);
    b.rows = b.sv.q_len * TL_GROUP, b.context = b.sv.kv_len - b.sv.q_len;
    if (b.row0 >= b.rows) return false;
    if (TL_SPANS && threadIdx.x == 0) extent[0] = extent[3] = 0x7fffffff, extent[1] = extent[2] = 0;
    if (TL_SPANS) __syncthreads();
    for (int r = threadIdx.x; r < BM; r += THREADS) {
        int2 s = row_keys(b.sv, min(b.rows - 1, b.row0 + r) / TL_GROUP);
        seen[r] = s;
        if (TL_SPANS) {
            atomicMin(&extent[0], s.x), atomicMax(&extent[1], s.y);
            atomicMax(&extent[2], s.x), atomicMin(&extent[3], s.y);
        }
    }
    if constexpr (TL_SPANS) {
        __syncthreads();
        b.walk.lo = extent[0], b.walk.hi = extent[1], b.all_lo = extent[2], b.all_hi = extent[3];
    } else {
        b.walk.lo = row_keys(b.sv, b.row0 / TL_GROUP).x;
        b.walk.hi = row_keys(b.sv, min(b.rows - 1, b.row0 + BM - 1) / TL_GROUP).y;
        b.all_lo = row_keys(b.sv, min(b.rows - 1, b.row0 + warp_row + WARP_ROWS - 1) / TL_GROUP).x;
        b.all_hi = row_keys(b.sv, min(b.rows - 1, b.row0 + warp_row) / TL_GROUP).y;
    }
    b.walk.prefix = min(b.sv.prefix, b.walk.hi);
    b.walk.start<BN>();
    return true;
}

ATTN_DEV void st_shared_u16(uint32_t a, uint16_t x) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(a), "h"(x) : "memory");
}

ATTN_DEV void st_shared_v2(uint32_t a, uint2 x) {
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(a), "r"(x.x), "r"(x.y) : "memory");
}

/* By COUNT threads from FIRST on. */
template <int BM, class rows_t, int FIRST = 0, int COUNT = THREADS>
ATTN_DEV void load_queries(const triton_params_t &p, uint32_t sq, const block_view &b, float *scales) {
    const int thread = threadIdx.x - FIRST;
#if TL_PACKED
    if constexpr (packed::ROTATED) { /* a warp a row */
        constexpr int E = (TL_D + 31) / 32;
        const int lane = threadIdx.x & 31;
#pragma unroll 2
        for (int r = thread >> 5; r < BM; r += COUNT / 32) {
            const int row = b.row0 + r;
            const int64_t from = (int64_t)(b.sv.q0 + row / TL_GROUP) * p.q_token +
                                 (int64_t)(b.head * TL_GROUP + row % TL_GROUP) * p.q_head + lane * E;
            float x[E];
#pragma unroll
            for (int j = 0; j < E; j++)
                x[j] = row < b.rows ? load_float<TL_Q>(p.q, from + j) : 0.f;
            packed::rotate_query(x, lane);
#pragma unroll
            for (int j = 0; j < E; j++) {
                const int d = lane * E + j;
                st_shared_u16(sq + rows_t::at(r, d >> 3) + (d & 7) * 2,
                              (uint16_t)pack2<MMA>(packed::in_f16(x[j]), 0.f));
            }
        }
        return;
    }
#endif
    if constexpr (
        TL_K_APART) { /* eight lanes a row; codes as int8, or as numbers that the products have exactly */
        constexpr int E = (TL_S8 ? (TL_D + 31) / 32 * 32 : DP) / 8, CHUNKS = (E + 7) / 8;
        constexpr bool WHOLE = TL_QVEC == 16 && QB == 2; /* chunks of 8 values are loaded as such */
        const int l = threadIdx.x & 7;
        uint32_t w[CHUNKS][4], next[CHUNKS][4];
        /* a row ahead */
        auto ask = [&](int r) {
            const int row = b.row0 + r;
            const bool ok = r < BM && row < b.rows;
            const uint8_t *src =
                (const uint8_t *)p.q + ((int64_t)(b.sv.q0 + row / TL_GROUP) * p.q_token +
                                        (int64_t)(b.head * TL_GROUP + row % TL_GROUP) * p.q_head) *
                                           QB;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                const int d = (l + 8 * i) * 8;
                if constexpr (WHOLE) {
                    const uint4 x =
                        ok && d < TL_D ? __ldg((const uint4 *)(src + d * QB)) : make_uint4(0, 0, 0, 0);
                    next[i][0] = x.x, next[i][1] = x.y, next[i][2] = x.z, next[i][3] = x.w;
                } else
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        next[i][k] = ok ? query_pair<TL_Q>(src, d + 2 * k) : 0;
            }
        };
        ask(thread >> 3);
#pragma unroll 1
        for (int r = thread >> 3; r < BM; r += COUNT / 8) {
            float top = 0.f;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    w[i][k] = next[i][k];
                    const float2 f = unpack2<TL_Q>(w[i][k]);
                    top = min_nan(top, min_nan(-fabsf(f.x), -fabsf(f.y)));
                }
            ask(r + COUNT / 8);
#pragma unroll
            for (int d = 1; d < 8; d <<= 1)
                top = min_nan(top, __shfl_xor_sync(~0u, top, d));
            const float size = divided<127>(-top), scale = size < 1e-6f ? 1e-6f : size;
            const quotient by(scale);
            if (l == 0) scales[r] = scale;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float2 f = unpack2<TL_Q>(w[i][k]);
                    const uint32_t x = int8_bits(by.of(f.x)), y = int8_bits(by.of(f.y));
                    w[i][k] =
                        TL_S8 ? prmt(x, y, 0x0040) : pack2<MMA>((float)(signed char)x, (float)(signed char)y);
                }
                if constexpr (TL_S8) {
                    const uint2 codes =
                        make_uint2(prmt(w[i][0], w[i][1], 0x5410), prmt(w[i][2], w[i][3], 0x5410));
                    if (l + 8 * i < E) st_shared_v2(sq + rows_t::at(r, (l + 8 * i) / 2) + (l & 1) * 8, codes);
                } else if (l + 8 * i < E)
                    st_shared_v4(sq + rows_t::at(r, l + 8 * i),
                                 make_uint4(w[i][0], w[i][1], w[i][2], w[i][3]));
            }
        }
        return;
    }
#pragma unroll 4 /* several loads under way: a converted Q waits for each */
    for (int i = thread; i < BM * (DP / 8); i += COUNT) {
        int r = i / (DP / 8), c = i % (DP / 8), row = b.row0 + r;
        bool ok = row < b.rows;
        const uint8_t *src =
            (const uint8_t *)p.q + ((int64_t)(b.sv.q0 + row / TL_GROUP) * p.q_token +
                                    (int64_t)(b.head * TL_GROUP + row % TL_GROUP) * p.q_head) *
                                       QB;
        if constexpr (TL_Q == MMA && TL_QVEC == 16) {
            ok = ok && c * 8 < TL_D;
            cp_async_zfill<16>(sq + rows_t::at(r, c), ok ? src + c * 16 : (const uint8_t *)p.q, ok);
        } else {
            uint32_t w[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                w[k] = ok ? query_pair<MMA>(src, c * 8 + 2 * k) : 0;
            st_shared_v4(sq + rows_t::at(r, c), make_uint4(w[0], w[1], w[2], w[3]));
        }
    }
}

/* ---------------------------------------------------------------- tiles of keys */

#if TL_PACKED
using tile_unit = packed::value_unit;
#else
struct tile_unit {
    float unit = 1.f;
};
#endif

/* Centroids of a packed cache, for the whole CTA. */
ATTN_DEV const float *make_centroids() {
#if TL_PACKED
    if constexpr (packed::CENTROIDS) {
        __shared__ float table[16];
        packed::fill_centroids(table, threadIdx.x, THREADS);
        __syncthreads();
        return table;
    }
#endif
    return nullptr;
}

/* Eight elements of a row as 16 bytes of the 16-bit type. Columns from `left` on are zeros, and nothing is
 * read of them. */
template <int DT>
ATTN_DEV void load_chunk(uint32_t dst, const uint8_t *src, bool ok, int left) {
    if constexpr (element_bytes(DT) == 2) {
        if constexpr (TL_KVEC == 16)
            cp_async_zfill<16>(dst, src, ok && left > 0);
        else if constexpr (TL_KVEC >= 4) {
#pragma unroll
            for (int b = 0; b < 16; b += TL_KVEC)
                cp_async_zfill<TL_KVEC>(dst + b, src + b, ok && b / 2 < left);
        } else {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t a = ok && 2 * i < left ? ((const uint16_t *)src)[2 * i] : 0;
                uint32_t b = ok && 2 * i + 1 < left ? ((const uint16_t *)src)[2 * i + 1] : 0;
                w[i] = a | b << 16;
            }
            st_shared_v4(dst, make_uint4(w[0], w[1], w[2], w[3]));
        }
    } else {
        uint2 x = make_uint2(0, 0);
        if constexpr (TL_KVEC >= 8) {
            if (ok && left > 0) x = __ldg((const uint2 *)src);
        } else if constexpr (TL_KVEC == 4) {
            if (ok && left > 0) x.x = __ldg((const uint32_t *)src);
            if (ok && left > 4) x.y = __ldg((const uint32_t *)(src + 4));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x.x |= (ok && i < left ? (uint32_t)src[i] : 0) << (8 * i);
                x.y |= (ok && i + 4 < left ? (uint32_t)src[i + 4] : 0) << (8 * i);
            }
        }
        st_shared_v4(dst, make_uint4(codes_to_f16x2<DT, 0>(x.x), codes_to_f16x2<DT, 1>(x.x),
                                     codes_to_f16x2<DT, 0>(x.y), codes_to_f16x2<DT, 1>(x.y)));
    }
}

/* 16 bytes of a row as they are, likewise. */
ATTN_DEV void copy_chunk(uint32_t dst, const uint8_t *src, bool ok, int left) {
    constexpr int BYTES = TL_KVEC < 4 ? 4 : TL_KVEC;
#pragma unroll
    for (int b = 0; b < 16; b += BYTES)
        cp_async_zfill<BYTES>(dst + b, src + b, ok && b < left);
}

ATTN_DEV int64_t shuffle64(int64_t x, int from) {
    uint32_t low = __shfl_sync(~0u, (uint32_t)x, from), high = __shfl_sync(~0u, (uint32_t)(x >> 32), from);
    return (int64_t)((uint64_t)high << 32 | low);
}

/* Keys and values of one request and KV head. A tile is BN / 16 groups of 16 tokens, each within one page;
 * lane i of every warp knows the i-th group: its page, asked for a tile ahead, and then its offset. */
struct key_source {
    const int32_t *table;
    int last_page;
    const uint8_t *k, *v, *ks, *vs; /* ks, vs: scales that lie apart */
    int64_t k_token, v_token;       /* bytes */
    ATTN_DEV key_source(const triton_params_t &p, const block_view &b) {
        const int64_t first = b.sv.k0;
        table = p.counts->block_table + (int64_t)b.seq * p.counts->table_stride;
        last_page = p.last_page;
        k = (const uint8_t *)p.k + (first * p.k_token + (int64_t)b.head * p.k_head) * EB;
        v = (const uint8_t *)p.v + (first * p.v_token + (int64_t)b.head * p.v_head) * VB;
        k_token = p.k_token * EB, v_token = p.v_token * VB;
        ks = (const uint8_t *)p.k_rows_scales + (int64_t)b.head * p.ks_head;
        vs = (const uint8_t *)p.v_rows_scales + (int64_t)b.head * p.vs_head;
    }
    ATTN_DEV int page(const key_walk &walk, int tok0) const {
        const int lane = threadIdx.x & 31, tok = tok0 + 16 * lane;
        return TL_PAGE > 0 && lane < BN / 16 && tok < walk.hi &&
                       (tok + 16 > walk.lo || (TL_RSWA > 0 && tok < walk.prefix))
                   ? page_id(table + page_of(tok), last_page)
                   : 0;
    }
    template <int BYTES>
    static ATTN_DEV int64_t group(int page, int tok0, int64_t page_stride, int64_t token_stride) {
        return (page * page_stride + in_page(tok0 + 16 * (int)(threadIdx.x & 31)) * token_stride) * BYTES;
    }
};

/* Scales of groups that lie apart: their rows as those of the values. */
struct scale_rows {
    const uint8_t *base;
    int64_t token, group; /* bytes; group: lane i's offset of the i-th group of tokens */
};

/* BN rows of keys or values from `base`; `group` is lane i's offset of the i-th group. What is not wanted
 * becomes zeros and is not read: cp.async of size 0 does not touch its address. Each thread stays in its
 * column of 16 bytes. */
template <int D, int DPAD, class rows_t, bool IS_V>
ATTN_DEV void load_tile(uint32_t dst, const uint8_t *base, int64_t token_bytes, int64_t group, int tok0,
                        const key_walk &walk, const float *centroids, float *scales,
                        const scale_rows &apart) {
    constexpr bool RAW = TL_S8 && !IS_V; /* bytes stay bytes */
    constexpr int COLUMNS = RAW ? 16 : 8, CPR = DPAD / COLUMNS, ROWS = THREADS / CPR,
                  PASSES = (BN + ROWS - 1) / ROWS;
    constexpr bool ALIGNED = ROWS <= 16 && 16 % ROWS == 0; /* a pass stays within one group */
    const int c = threadIdx.x % CPR, r0 = threadIdx.x / CPR;
    const bool whole = tok0 >= walk.lo && tok0 + BN <= walk.hi;
    const uint8_t *const src =
        base + (TL_PACKED || TL_FP4 ? 0 : c * COLUMNS * (IS_V ? VB : EB)) + (ALIGNED ? r0 * token_bytes : 0);
    const uint32_t dst0 = dst + rows_t::at(r0, c);
    int64_t at = 0, scales_at = 0;
#pragma unroll
    for (int u = 0; u < PASSES; u++) {
        const int r = r0 + u * ROWS;
        if (!ALIGNED || u * ROWS % 16 == 0) at = shuffle64(group, ALIGNED ? u * ROWS / 16 : (r >> 4) & 31);
        if (TL_FP4 && (!ALIGNED || u * ROWS % 16 == 0))
            scales_at = shuffle64(apart.group, ALIGNED ? u * ROWS / 16 : (r >> 4) & 31);
        if ((THREADS % CPR == 0 || r0 < ROWS) && (BN % ROWS == 0 || r < BN)) {
            const uint32_t to =
                ROWS % rows_t::PERIOD == 0 ? dst0 + u * ROWS * rows_t::STEP : dst + rows_t::at(r, c);
            const uint8_t *const from = src + at + (ALIGNED ? u * ROWS % 16 : r & 15) * token_bytes;
            const bool ok = whole || walk.wanted(tok0 + r);
#if TL_PACKED
            const uint4 w =
                ok && c * 8 < D ? packed::load_chunk<IS_V>(from, c, centroids) : make_uint4(0, 0, 0, 0);
            st_shared_v4(to, w);
            if constexpr (!IS_V && packed::CENTROIDS) { /* the lanes of a row lie side by side */
                float sum = packed::squares(w);
#pragma unroll
                for (int d = 1; d < CPR; d <<= 1)
                    sum += __shfl_xor_sync(~0u, sum, d);
                if (c == 0) scales[r] = ok ? packed::key_norm(from) * rsqrtf(sum) : 0.f;
            }
#else
            if constexpr (TL_FP4)
                st_shared_v4(to,
                             ok && c * 8 < D
                                 ? fp4::load_chunk(from, apart.base + scales_at + (r & 15) * apart.token, c)
                                 : make_uint4(0, 0, 0, 0));
            else if constexpr (RAW)
                copy_chunk(to, from, ok, D - c * COLUMNS);
            else
                load_chunk<IS_V ? TL_V : TL_KV>(to, from, ok, D - c * 8);
#endif
        }
    }
}

/* The terms of BN rows of K or V, whose group offsets are `group`; V has two arrays. Keys of centroids have
 * theirs from load_tile, which sees all of a row. Scales apart are rows of their own. */
template <bool IS_V>
ATTN_DEV void load_terms(float *to, const uint8_t *base, int64_t token_bytes, int64_t group, int tok0,
                         const key_walk &walk) {
    if constexpr (!IS_V && packed::CENTROIDS) return;
    int r = threadIdx.x;
    int64_t at = shuffle64(group, (r >> 4) & 31);
    if (r >= BN) return;
    const bool ok = walk.wanted(tok0 + r);
    const uint8_t *const row = base + at + (r & 15) * token_bytes;
#if TL_PACKED
    if constexpr (IS_V) {
        const float2 x = ok ? packed::value_terms(row) : make_float2(0.f, 0.f);
        to[r] = x.x, to[BN + r] = x.y;
    } else
        to[r] = ok ? packed::key_scale(row, nullptr) : 0.f;
#else
    if constexpr (TL_K_APART)
        cp_async_zfill<4>(smem_addr(to + r), row, ok);
    else
        to[r] = ok ? load_scale(row + (IS_V ? TL_DV : TL_D)) * (IS_V ? V_SHIFT : 1.f) : 0.f;
#endif
}

/* ---------------------------------------------------------------- scores */

/* A thread's two rows for ALiBi and relative bias: position, slope in base-2 units, the head's biases. */
struct row_terms {
    float slope[2];
    const float *rel[2];
    int pos[2];
    ATTN_DEV row_terms(const triton_params_t &p, const block_view &b, int row) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int r = min(b.rows - 1, row + 8 * e);
            pos[e] = b.context + r / TL_GROUP;
            slope[e] = TL_ALIBI ? __ldg(p.alibi + b.head * TL_GROUP + r % TL_GROUP) * LOG2E : 0.f;
            rel[e] = rel_bias_row(p, b.head * TL_GROUP + r % TL_GROUP);
        }
    }
};

/* The soft cap of small scores, scale and base-2 units included: cap * tanh(x) for |x| <= 1/2 as an odd
 * polynomial within
 * 1.1e-5 * cap, which leaves the special-function unit to the exponentials. */
struct cap_polynomial {
    float c0, c1, c2, limit; /* limit: of squares */
    ATTN_DEV cap_polynomial(const score_rule &rule) {
        const float u = rule.cap_factor, u2 = u * u, out = TL_CAP * LOG2E * u;
        c0 = 0.999977239f * out, c1 = -0.331685329f * out * u2, c2 = 0.115185198f * out * u2 * u2,
        limit = .25f / u2;
    }
    ATTN_DEV float slope(float s) const { /* capped score over score */
        const float y = s * s;
        return fmaf(y, fmaf(y, c2, c1), c0);
    }
    ATTN_DEV bool fits(const float (&s)[BN / 2]) const { /* sums of four squares cost less than maxima */
        float top = 0.f;
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const float *x = s + 4 * j;
            top = fmaxf(top, fmaf(x[0], x[0], fmaf(x[1], x[1], fmaf(x[2], x[2], x[3] * x[3]))));
        }
        return __all_sync(~0u, top <= limit);
    }
};

/* s * factor + ALiBi on the distance (semantics 2.9). The root of a far distance is three steps of its Taylor
 * series around the middle of the tile, without the special-function unit, which has the exponentials: with
 * |x| <= dc / 6 the rest is below 3e-5 of the root. */
ATTN_DEV void add_alibi(const row_terms &t, float factor, float (&s)[BN / 2], int k0) {
    const int q = threadIdx.x & 3;
    const bool is_far = TL_ALIBI == 2 && __all_sync(~0u, min(t.pos[0], t.pos[1]) - (k0 + BN) >= 5 * BN / 2);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float rel = (float)(k0 + 2 * q - t.pos[e]);
        if (is_far) {
            const float dc = -rel - BN / 2, inv = __fdividef(1.f, dc);
            const float a0 = -t.slope[e] * dc * rsqrtf(dc), a1 = a0 * inv * -.5f, a2 = a1 * inv * .25f,
                        a3 = a2 * inv * .5f;
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float x = (float)(8 * j + i - BN / 2);
                    float &y = s[4 * j + 2 * e + i];
                    y = fmaf(y, factor, fmaf(fmaf(fmaf(a3, x, a2), x, a1), x, a0));
                }
        } else {
            const float base = t.slope[e] * rel;
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float x = (float)(8 * j + i);
                    float &y = s[4 * j + 2 * e + i];
                    y = fmaf(y, factor,
                             TL_ALIBI == 2 ? alibi_term<false>(t.slope[e], rel + x)
                                           : fmaf(t.slope[e], x, base));
                }
        }
    }
}

/* Most tiles of a long context lie beyond the table for all of a warp's rows: one number a row then. */
ATTN_DEV void add_rel_bias(const triton_params_t &p, const row_terms &t, float (&s)[BN / 2], int k0) {
    const int q = threadIdx.x & 3;
    const bool is_before = __all_sync(~0u, k0 + BN - 1 - min(t.pos[0], t.pos[1]) <= -p.rel_max),
               is_after = __all_sync(~0u, k0 - max(t.pos[0], t.pos[1]) >= p.rel_max);
    if (is_before || is_after) {
        const float end[2] = {rel_bias_term(p, t.rel[0], is_before ? -p.rel_max : p.rel_max),
                              rel_bias_term(p, t.rel[1], is_before ? -p.rel_max : p.rel_max)};
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            s[i] += end[i >> 1 & 1];
        return;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int rel = k0 + 2 * q - t.pos[e];
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                s[4 * j + 2 * e + i] += rel_bias_term(p, t.rel[e], rel + 8 * j + i);
    }
}

ATTN_DEV void add_bias(const triton_params_t &p, const block_view &b, float (&s)[BN / 2], int k0, int row) {
    const int q = threadIdx.x & 3;
    if (!TL_QQ || k0 + BN <= b.context || k0 >= b.context + p.qq_width) return;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float *bias =
            p.qq_bias + (int64_t)(b.sv.q0 + min(b.rows - 1, row + 8 * e) / TL_GROUP) * p.qq_row;
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int rel = k0 + j * 8 + 2 * q + i - b.context;
                if (rel >= 0 && rel < p.qq_width) s[4 * j + 2 * e + i] += __ldg(bias + rel) * LOG2E;
            }
    }
}

/* seen: of this thread's first row, the second one eight further on. */
ATTN_DEV void hide_scores(const block_view &b, float (&s)[BN / 2], int k0, const int2 *seen) {
    const int q = threadIdx.x & 3;
    if (k0 >= b.all_lo && k0 + BN <= b.all_hi) return;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int2 see = seen[8 * e];
        const int first = see.x - k0 - 2 * q, count = max(see.y - see.x, 0);
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const bool is_seen = TL_RSWA > 0 ? is_visible(k0 + 8 * j + 2 * q + i, see, b.walk.prefix)
                                                 : (uint32_t)(8 * j + i - first) < (uint32_t)count;
                if (!is_seen) s[4 * j + 2 * e + i] = -INFINITY;
            }
    }
}

/* s becomes P; true: what was summed before must be multiplied by f. CAPPED: s are products still, and
 * small. by: what a row's scores are still to be multiplied by (FOLD). */
template <bool CAPPED>
ATTN_DEV bool softmax_step(const score_rule &rule, const float (&by)[2], float (&s)[BN / 2], float (&m)[2],
                           float (&l)[2], float (&f)[2]) {
    if constexpr (FIXED) {
#pragma unroll
        for (int i = 0; i < BN / 2; i++) {
            s[i] = ex2(s[i]);
            l[i >> 1 & 1] += s[i];
        }
        return false;
    }
    const cap_polynomial cap(rule);
    float mx[2] = {NO_MAX, NO_MAX};
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        mx[0] = fmaxf(mx[0], fmaxf(s[4 * j], s[4 * j + 1]));
        mx[1] = fmaxf(mx[1], fmaxf(s[4 * j + 2], s[4 * j + 3]));
    }
    if (FOLD || CAPPED) {
        mx[0] *= CAPPED ? cap.slope(mx[0]) : by[0];
        mx[1] *= CAPPED ? cap.slope(mx[1]) : by[1];
    }
    const bool grow = __any_sync(~0u, mx[0] > m[0] + LAZY || mx[1] > m[1] + LAZY);
    if (grow) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            mx[e] = fmaxf(mx[e], __shfl_xor_sync(~0u, mx[e], 1));
            mx[e] = fmaxf(fmaxf(mx[e], __shfl_xor_sync(~0u, mx[e], 2)), m[e]);
            f[e] = ex2(m[e] - mx[e]);
            m[e] = mx[e];
            l[e] *= f[e];
        }
    }
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        const int e = i >> 1 & 1;
        s[i] = ex2(CAPPED ? fmaf(s[i], cap.slope(s[i]), -m[e])
                   : FOLD ? fmaf(s[i], by[e], -m[e])
                          : s[i] - m[e]);
        l[e] += s[i];
    }
    return grow;
}

/* The same for a tile after a row's first, on trust that no score is far above the maximum so far, so without
 * looking for a new one, and with P packed at once. False, and nothing but P changed, where a row's sum tells
 * otherwise: too large, infinite, or no number, as for a row without keys so far. */
ATTN_DEV bool softmax_trusted(const float (&by)[2], const float (&s)[BN / 2], const float (&m)[2],
                              float (&l)[2], uint32_t (&pr)[BN / 4]) {
    constexpr float LIMIT = V_MMA == DT_F16 ? 16384.f : 1e9f;
    float t[2] = {0.f, 0.f}, u[2] = {0.f, 0.f};
#pragma unroll
    for (int j = 0; j < BN / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float *x = s + 4 * j + 2 * e;
            const float a = ex2(FOLD ? fmaf(x[0], by[e], -m[e]) : x[0] - m[e]),
                        b = ex2(FOLD ? fmaf(x[1], by[e], -m[e]) : x[1] - m[e]);
            t[e] += a, u[e] += b;
            pr[2 * j + e] = pack2<V_MMA>(a, b);
        }
    t[0] += u[0], t[1] += u[1];
    if (__any_sync(~0u, !(t[0] <= LIMIT && t[1] <= LIMIT))) return false;
    l[0] += t[0], l[1] += t[1];
    return true;
}

/* FOLD: what the scores of a thread's two rows are still to be multiplied by. */
ATTN_DEV void row_factors(const score_rule &rule, const float *q_scales, float (&by)[2]) {
#pragma unroll
    for (int e = 0; e < 2; e++)
        by[e] = FOLD_QUERY ? q_scales[8 * e] * (rule.factor / KEY_SCALE) : rule.factor;
}

/* FOLD_QUERY: sums of integers times the scales of their keys. */
ATTN_DEV void scale_keys(float (&s)[BN / 2], const float *k_scales) {
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        float2 ks = *(const float2 *)(k_scales + j * 8 + 2 * (threadIdx.x & 3));
        if (!TL_COPIERS) ks.x *= KEY_SCALE, ks.y *= KEY_SCALE; /* the copiers did it */
        s[4 * j] *= ks.x, s[4 * j + 1] *= ks.y, s[4 * j + 2] *= ks.x, s[4 * j + 3] *= ks.y;
    }
}

/* From the products of a tile to P, for a thread's rows `row` and row + 8; seen: of the first of them.
 * last(by): the step that makes P of scores. */
template <class F>
ATTN_DEV bool softmax_tile(const triton_params_t &p, const block_view &b, const score_rule &rule,
                           const row_terms &terms, float (&s)[BN / 2], int k0, int row, const int2 *seen,
                           const float *q_scales, const float *k_scales, float (&m)[2], float (&l)[2],
                           float (&f)[2], F last) {
    constexpr bool IS_SCALED = TL_K_APART && TL_CAP == 0.f; /* the factor went with the scales */
    float rows[2];
    row_factors(rule, q_scales, rows);
    if constexpr (FOLD_QUERY) {
        scale_keys(s, k_scales);
    } else if constexpr (TL_K_APART) {
        const float by = IS_SCALED ? rule.factor : 1.f, q[2] = {q_scales[0] * by, q_scales[8] * by};
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const float2 ks = *(const float2 *)(k_scales + j * 8 + 2 * (threadIdx.x & 3));
            s[4 * j] *= ks.x * q[0], s[4 * j + 1] *= ks.y * q[0];
            s[4 * j + 2] *= ks.x * q[1], s[4 * j + 3] *= ks.y * q[1];
        }
    } else if constexpr (TL_TOKEN_HEAD) {
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const float2 ks = *(const float2 *)(k_scales + j * 8 + 2 * (threadIdx.x & 3));
            s[4 * j] *= ks.x, s[4 * j + 1] *= ks.y, s[4 * j + 2] *= ks.x, s[4 * j + 3] *= ks.y;
        }
    }
    if constexpr (TL_CAP > 0.f) {
        const cap_polynomial cap(rule);
        const bool is_small = cap.fits(s);
        if (FOLD_CAP && is_small && k0 >= b.all_lo && k0 + BN <= b.all_hi)
            return softmax_step<true>(rule, rows, s, m, l, f);
        if (is_small) {
#pragma unroll
            for (int i = 0; i < BN / 2; i++)
                s[i] *= cap.slope(s[i]);
        } else {
#pragma unroll
            for (int i = 0; i < BN / 2; i++)
                s[i] = rule.apply<false>(s[i]);
        }
    } else if constexpr (!FOLD && !IS_SCALED && TL_ALIBI == 0) {
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            s[i] *= rule.factor;
    }
    if constexpr (TL_ALIBI != 0) add_alibi(terms, TL_CAP > 0.f || IS_SCALED ? 1.f : rule.factor, s, k0);
    if constexpr (TL_REL) add_rel_bias(p, terms, s, k0);
    add_bias(p, b, s, k0, row);
    hide_scores(b, s, k0, seen);
    return last(rows);
}
ATTN_DEV bool softmax_tile(const triton_params_t &p, const block_view &b, const score_rule &rule,
                           const row_terms &terms, float (&s)[BN / 2], int k0, int row, const int2 *seen,
                           const float *q_scales, const float *k_scales, float (&m)[2], float (&l)[2],
                           float (&f)[2]) {
    return softmax_tile(p, b, rule, terms, s, k0, row, seen, q_scales, k_scales, m, l, f,
                        [&](const float(&by)[2]) { return softmax_step<false>(rule, by, s, m, l, f); });
}

template <int N>
ATTN_DEV void rescale(float (&o)[N], const float (&f)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        o[i] *= f[i >> 1 & 1];
}

#if TL_PACKED
/* Before P of a tile is packed: its unit follows the scales of V. True: O is to be multiplied by `ratio`. */
ATTN_DEV bool raise_unit(packed::value_unit &unit, const float *v_scales, float &ratio) {
    float top = 0.f;
#pragma unroll
    for (int i = 0; i < BN; i += 32)
        if (BN % 32 == 0 || i + (threadIdx.x & 31) < BN) top = fmaxf(top, v_scales[i + (threadIdx.x & 31)]);
    return unit.raise(top, ratio);
}

/* P times what is added to the values of a row: one number a query row. */
ATTN_DEV void add_common(float (&common)[2], const float (&s)[BN / 2], const float *v_scales) {
    if (packed::IS_INT4) return;
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        const float2 low = *(const float2 *)(v_scales + BN + j * 8 + 2 * (threadIdx.x & 3));
        common[0] = fmaf(s[4 * j], low.x, fmaf(s[4 * j + 1], low.y, common[0]));
        common[1] = fmaf(s[4 * j + 2], low.x, fmaf(s[4 * j + 3], low.y, common[1]));
    }
}

/* O of the codes to O of the values. */
template <int N>
ATTN_DEV void finish_values(float (&o)[N], float (&common)[2], float unit) {
    const float down = 1.f / unit;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        common[e] += __shfl_xor_sync(~0u, common[e], 1);
        common[e] += __shfl_xor_sync(~0u, common[e], 2);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        o[i] = fmaf(o[i], down, common[i >> 1 & 1]);
    if constexpr (packed::IS_INT4) packed::rotate_back_fragment(o, threadIdx.x & 3);
}
#endif

ATTN_DEV void rescale2(float (&x)[2], const float (&f)[2]) {
    x[0] *= f[0], x[1] *= f[1];
}

/* The j-th 16 keys of P as the A operand of a product; unit: of P times the scales of V. */
ATTN_DEV void pack_keys(uint32_t *a, const float (&s)[BN / 2], int j, const float *v_scales, float unit) {
    const int q = threadIdx.x & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float2 v = make_float2(1.f, 1.f);
        if (TL_TOKEN_HEAD) v = *(const float2 *)(v_scales + j * 16 + h * 8 + 2 * q);
        if (TL_PACKED) v.x *= unit, v.y *= unit;
        const float *x = s + 8 * j + 4 * h;
        a[2 * h] = TL_TOKEN_HEAD ? pack2<V_MMA>(x[0] * v.x, x[1] * v.y) : pack2<V_MMA>(x[0], x[1]);
        a[2 * h + 1] = TL_TOKEN_HEAD ? pack2<V_MMA>(x[2] * v.x, x[3] * v.y) : pack2<V_MMA>(x[2], x[3]);
    }
}

/* ---------------------------------------------------------------- the result */

/* 16 rows of a warp, from `row` of the request on: division, LSE, and through shared memory into whole pieces
 * of rows. */
ATTN_DEV void store_rows(const triton_params_t &p, const block_view &b, uint8_t *out, int row0,
                         const float (&m)[2], const float (&l)[2], const float (&o)[DVP / 2]) {
    const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    float factor = !K_SCALED && p.v_scale ? __ldg(p.v_scale + b.head * p.kv_scale_stride) : 1.f / V_SHIFT,
          f[2];
    factor *= VALUE_UNIT;
    if (TL_OUT == DT_E4M3 && p.out_scale) factor /= __ldg(p.out_scale);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float sum = l[e], mm = m[e], rescale = 1.f;
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        int row = row0 + g + 8 * e, tok = row / TL_GROUP, h = b.head * TL_GROUP + row % TL_GROUP;
        if (TL_SINKS && row < b.rows) { /* denominator only (semantics 2.10) */
            float sink = __ldg(p.sinks + h) * LOG2E, top = fmaxf(mm, sink);
            rescale = ex2(mm - top);
            sum = sum * rescale + ex2(sink - top);
            mm = top;
        }
        f[e] = sum != 0.f ? rescale * factor / sum : 0.f;
        if (p.lse && q == 0 && row < b.rows)
            p.lse[(int64_t)(b.sv.q0 + tok) * p.lse_token + (int64_t)h * p.lse_head] =
                sum != 0.f ? (mm + lg2(sum)) * LN2 : -INFINITY;
    }
    uint8_t *so = out + g * ORS + 2 * q * OB;
#pragma unroll
    for (int j = 0; j < DVP / 8; j++) {
        float x[4] = {o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]};
        if constexpr (TL_V_CHANNELS) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float by = channel_scale(p, b.head, min(8 * j + 2 * q + i, TL_DV - 1));
                x[i] *= by, x[2 + i] *= by;
            }
        }
        if constexpr (TL_OUT == DT_E4M3) {
            *(uint16_t *)(so + j * 8) = (uint16_t)f32x2_to_e4m3x2(x[0] * f[0], x[1] * f[0]);
            *(uint16_t *)(so + 8 * ORS + j * 8) = (uint16_t)f32x2_to_e4m3x2(x[2] * f[1], x[3] * f[1]);
        } else {
            *(uint32_t *)(so + j * 16) =
                pack2 < TL_OUT == DT_F32 ? DT_F16 : TL_OUT > (x[0] * f[0], x[1] * f[0]);
            *(uint32_t *)(so + 8 * ORS + j * 16) =
                pack2 < TL_OUT == DT_F32 ? DT_F16 : TL_OUT > (x[2] * f[1], x[3] * f[1]);
        }
    }
    __syncwarp();
    constexpr int PIECES = TL_DV * OB / TL_OVEC;
#pragma unroll 2
    for (int i = lane; i < 16 * PIECES; i += 32) {
        int r = i / PIECES, c = i % PIECES * TL_OVEC, row = row0 + r;
        if (row < b.rows)
            copy_piece<TL_OVEC>((uint8_t *)p.out +
                                    ((int64_t)(b.sv.q0 + row / TL_GROUP) * p.out_token +
                                     (int64_t)(b.head * TL_GROUP + row % TL_GROUP) * p.out_head) *
                                        OB +
                                    c,
                                out + r * ORS + c);
    }
}

} /* namespace prefill */
} /* namespace attn_cuda */

#if TL_OUT_GROUP
#include "triton_quantize.cuh"
#endif
#endif
