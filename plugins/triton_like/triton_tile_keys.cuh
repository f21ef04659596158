/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of keys and values on their way to shared memory, and the terms that their rows carry. */
#ifndef TRITON_TILE_KEYS_CUH
#define TRITON_TILE_KEYS_CUH

#include "triton_tile_rows.cuh"

namespace attn_cuda {
namespace prefill {

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
        table = p.counts->block_table + (int64_t)b.seq * p.counts->table_stride + page_of(b.first);
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

} /* namespace prefill */
} /* namespace attn_cuda */

#endif
