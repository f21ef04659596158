/* SPDX-License-Identifier: Apache-2.0 */
/* What the copiers of triton_prefill_split_sm90.cuh share that take rows of few bits to shared memory as they
 * are, a tile ahead, and widen them from there: which lane has which quarter of which row; rows in which K
 * and V lie side by side; rows of 8 bits. */
#ifndef TRITON_SPLIT_ROWS_CUH
#define TRITON_SPLIT_ROWS_CUH

#include "triton_split_ring.cuh"

namespace attn_cuda {
namespace prefill {

/* A thread widens 32 columns of a row, a warp 16, 8 or 4 rows of 64, 128 or 256. Of lanes that store together
 * four have other low bits of their row's number, and two other halves of a line of 128 bytes, so
 * that their swizzled places differ. */
struct row_quarters {
    static constexpr int PARTS = TL_D / 32, ROWS = 32 / PARTS; /* of a row; at a time */
    int row, quarter;
    uint32_t to[4];
    ATTN_DEV row_quarters(uint32_t base) {
        const int lane = threadIdx.x & 31, low = lane >> 1 & 3, high = lane >> 3;
        quarter = (lane & 1) + 2 * (high & (PARTS / 2 - 1));
        row = (threadIdx.x >> 5) * ROWS + low + 4 * (high / (PARTS / 2));
#pragma unroll
        for (int w = 0; w < 4; w++)
            to[w] = base + K_AT + (quarter >> 1) * (BN * 128) + row * 128 +
                    ((((quarter & 1) * 4 + w) ^ (row & 7)) << 4);
    }
    /* A sum over the lanes of a row. */
    static ATTN_DEV float of_row(float x) {
        x += __shfl_xor_sync(~0u, x, 1);
        if (PARTS >= 4) x += __shfl_xor_sync(~0u, x, 8);
        if (PARTS == 8) x += __shfl_xor_sync(~0u, x, 16);
        return x;
    }
    ATTN_DEV void put(int w, uint32_t offset, uint4 x) const {
        st_shared_v4(to[w] + offset, x);
    }
    /* key(rows, offset), value(rows, offset): of `row` + rows of K, of V; where `to` lies in their tile. */
    template <class K, class V>
    ATTN_DEV void each(int stage, K key, V value) const {
        constexpr int TIMES = BN / ROWS;
        const int warp = threadIdx.x >> 5;
#pragma unroll
        for (int u = 0; u < 2 * TIMES; u += 4) {
            const int k_row = ROWS * u, v_row = ROWS * (u - TIMES);
            if (u + 4 <= TIMES || (u < TIMES && u + warp < TIMES))
                key(k_row, stage * K_BYTES + k_row * 128);
            else if (u + 4 <= 2 * TIMES || u + warp < 2 * TIMES)
                value(v_row, V_AT - K_AT + stage * V_BYTES + v_row * 128);
        }
    }
};

#if TL_JOINT
/* Rows of K and V side by side. Those of 16 tokens are one piece of memory in HND; others come by ALIGN
 * bytes. Rows that nobody sees are copied as they are. */
template <int ALIGN>
struct joint_copier : row_quarters {
    static constexpr int ROW = RAW_ROW;
    const triton_params_t &p;
    const key_walk &walk;
    const uint8_t *rows;
    bool is_piece;
    uint32_t raw, from; /* `row` of the first stage */
    float *scales;
    float factor;

    ATTN_DEV joint_copier(const triton_params_t &of, const block_view &b, uint32_t base, float *terms,
                          float by)
        : row_quarters(base), p(of), walk(b.walk), scales(terms), factor(by) {
        rows = (const uint8_t *)p.k + (int64_t)b.head * p.k_head;
        is_piece = p.k_token == ROW && ((uintptr_t)rows | p.k_page) % 16 == 0;
        raw = base + RAW_AT, from = raw + row * ROW;
    }
    ATTN_DEV void ask(int stage, int k0, int page) {
        const uint32_t into = raw + stage * RAW_BYTES / 2;
#pragma unroll
        for (int u = 0; u < BN / 16; u++) {
            const uint32_t in = TL_PAGE == 16 ? 0 : (uint32_t)in_page(k0 + 16 * u), at = into + u * 16 * ROW;
            const uint8_t *const piece =
                rows + (uint32_t)__shfl_sync(~0u, page, u) * p.k_page + in * p.k_token;
            if (is_piece) {
#pragma unroll
                for (int i = 0; i < ROW; i += THREADS)
                    if (i + THREADS <= ROW || i + (int)threadIdx.x < ROW)
                        cp_async<16>(at + (i + threadIdx.x) * 16, piece + (i + threadIdx.x) * 16);
            } else {
                constexpr int UNITS = ROW / ALIGN;
#pragma unroll 1
                for (int i = threadIdx.x; i < 16 * UNITS; i += THREADS) {
                    const uint8_t *const unit = piece + i / UNITS * p.k_token + i % UNITS * ALIGN;
                    if constexpr (ALIGN >= 4)
                        cp_async<ALIGN>(at + i * ALIGN, unit);
                    else
                        st_shared_u16(at + i * ALIGN, __ldg((const uint16_t *)unit));
                }
            }
        }
        cp_async_commit();
    }
    /* What a row's keys, its values are multiplied by, and what is added: by one of its lanes. */
    ATTN_DEV void set_term(float *to, float x, bool ok) const {
        if (quarter == 0) *to = ok ? x : 0.f;
    }
};
#endif

#if TL_JOINT && !TL_PACKED
/* Codes of 8 bits, a row of K, its scale, a row of V, its scale. */
struct raw_copier : joint_copier<8> {
    using joint_copier<8>::joint_copier;
    template <int DT>
    ATTN_DEV void widen_row(uint32_t at, uint32_t offset, bool is_number) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            uint32_t x = ld_shared_u32(at + quarter * 32 + 8 * c),
                     y = ld_shared_u32(at + quarter * 32 + 8 * c + 4);
            if (!is_number) x = y = 0;
            put(c, offset,
                make_uint4(codes_to_f16x2<DT, 0>(x), codes_to_f16x2<DT, 1>(x), codes_to_f16x2<DT, 0>(y),
                           codes_to_f16x2<DT, 1>(y)));
        }
    }
    ATTN_DEV void widen(int from_stage, int stage, int k0) {
        const bool whole = k0 >= walk.lo && k0 + BN <= walk.hi;
        const uint32_t at = from + from_stage * RAW_BYTES / 2;
        float *const term = scales + stage * TERMS * BN + row;
        each(
            stage,
            [&](int r, uint32_t offset) {
                widen_row<TL_KV>(at + r * ROW, offset, true);
                set_term(term + r, ld_shared_f32(at + r * ROW + TL_D) * factor,
                         whole || walk.wanted(k0 + row + r));
            },
            [&](int r, uint32_t offset) {
                const bool ok = whole || walk.wanted(k0 + row + r);
                widen_row<TL_V>(at + r * ROW + TL_D + 4, offset, TL_V == DT_I8 || ok);
                set_term(term + BN + r, ld_shared_f32(at + r * ROW + TL_D + 4 + TL_DV) * V_SHIFT, ok);
            });
    }
};
#endif

#if !TL_JOINT && !TL_FP4
/* fp8 with scales of a tensor or a head: rows of K, behind them rows of V. Units of 16 bytes are swizzled so
 * that lanes that load together find theirs in different banks. */
struct raw_copier : row_quarters {
    static constexpr int ROW = TL_D, V_RAW = BN * ROW, UNITS = ROW / 16, GROUPS = THREADS / UNITS / 16;
    const triton_params_t &p;
    const key_walk &walk;
    const uint8_t *k, *v; /* this thread's 16 bytes */
    int64_t k_token, v_token;
    uint32_t rows_to, from;

    static ATTN_DEV int turned(int unit, int row) {
        return UNITS == 8 ? unit ^ (row & 1) ^ (row & 2) << 1 : unit ^ (row >> 1 & 1);
    }
    ATTN_DEV raw_copier(const triton_params_t &of, const block_view &b, uint32_t base, float *, float)
        : row_quarters(base), p(of), walk(b.walk) {
        const int r = threadIdx.x / UNITS, unit = threadIdx.x % UNITS;
        const key_source keys(p, b);
        k_token = keys.k_token, v_token = keys.v_token;
        k = keys.k + r % 16 * k_token + unit * 16, v = keys.v + r % 16 * v_token + unit * 16;
        rows_to = base + RAW_AT + r * ROW + turned(unit, r) * 16, from = base + RAW_AT + row * ROW;
    }
    /* Values that nobody sees need not be numbers, and become zeros. */
    template <bool WHOLE>
    ATTN_DEV void ask_rows(uint32_t to, int k0, int page) {
        const int token = threadIdx.x / UNITS % 16, mine = GROUPS == 1 ? 0 : threadIdx.x / UNITS / 16;
#pragma unroll
        for (int u = 0; u < BN / 16; u += GROUPS) { /* groups of 16 tokens */
            const uint32_t in = TL_PAGE == 16 ? 0 : (uint32_t)in_page(k0 + 16 * (u + mine)),
                           id = (uint32_t)__shfl_sync(~0u, page, u + mine);
            if (u + GROUPS > BN / 16 && u + mine >= BN / 16) continue;
            cp_async<16>(to + u * 16 * ROW, k + id * p.k_page + in * k_token);
            cp_async_zfill<16>(to + V_RAW + u * 16 * ROW, v + id * p.v_page + in * v_token,
                               WHOLE || walk.wanted(k0 + 16 * (u + mine) + token));
        }
    }
    ATTN_DEV void ask(int stage, int k0, int page) {
        const uint32_t into = rows_to + stage * RAW_BYTES / 2;
        if (k0 >= walk.lo && k0 + BN <= walk.hi)
            ask_rows<true>(into, k0, page);
        else
            ask_rows<false>(into, k0, page);
        cp_async_commit();
    }
    ATTN_DEV void widen_row(uint32_t at, uint32_t offset) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 x = ld_shared_v4(at + turned(2 * quarter + i, row) * 16);
            put(2 * i, offset,
                make_uint4(codes_to_f16x2<TL_KV, 0>(x.x), codes_to_f16x2<TL_KV, 1>(x.x),
                           codes_to_f16x2<TL_KV, 0>(x.y), codes_to_f16x2<TL_KV, 1>(x.y)));
            put(2 * i + 1, offset,
                make_uint4(codes_to_f16x2<TL_KV, 0>(x.z), codes_to_f16x2<TL_KV, 1>(x.z),
                           codes_to_f16x2<TL_KV, 0>(x.w), codes_to_f16x2<TL_KV, 1>(x.w)));
        }
    }
    ATTN_DEV void widen(int from_stage, int stage, int) {
        const uint32_t at = from + from_stage * RAW_BYTES / 2;
        each(
            stage, [&](int r, uint32_t offset) { widen_row(at + r * ROW, offset); },
            [&](int r, uint32_t offset) { widen_row(at + V_RAW + r * ROW, offset); });
    }
};
#endif

} /* namespace prefill */
} /* namespace attn_cuda */
#endif
