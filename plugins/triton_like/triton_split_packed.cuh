/* SPDX-License-Identifier: Apache-2.0 */
/* The copiers of triton_prefill_split_sm90.cuh for packed rows of K and V, which they widen
 * (triton_packed_widen.cuh) beside what a row shares: the scale of K with the rule's factor, the scale of V,
 * what is added to V. */
#ifndef TRITON_SPLIT_PACKED_CUH
#define TRITON_SPLIT_PACKED_CUH

#include "triton_packed_widen.cuh"
#include "triton_split_rows.cuh"

namespace attn_cuda {
namespace prefill {

struct raw_copier : joint_copier<packed::ALIGN> {
    static constexpr int K_WORDS = packed::K_DATA / (4 * PARTS),
                         V_WORDS = packed::V_DATA / (4 * PARTS); /* of a thread's columns */
    static constexpr bool HALVES = ROW % 4 != 0; /* words of odd rows begin two bytes behind words */
    uint32_t k_shift, v_shift;
    packed::centroid_bytes centroids;

    ATTN_DEV raw_copier(const triton_params_t &of, const block_view &b, uint32_t base, float *terms, float by)
        : joint_copier<packed::ALIGN>(of, b, base, terms, by) {
        k_shift = (from & 2) * 8, v_shift = ((from + packed::K_BYTES) & 2) * 8;
    }
    /* N words from `at` on, which begin `shift` bits in. */
    template <int N>
    static ATTN_DEV void load_words(uint32_t at, uint32_t shift, uint32_t (&w)[N]) {
        if constexpr (HALVES) {
            uint32_t x[N + 1];
#pragma unroll
            for (int i = 0; i <= N; i++)
                x[i] = ld_shared_u32((at & ~3u) + 4 * i);
#pragma unroll
            for (int i = 0; i < N; i++)
                w[i] = __funnelshift_r(x[i], x[i + 1], shift);
        } else
#pragma unroll
            for (int i = 0; i < N; i++)
                w[i] = ld_shared_u32(at + 4 * i);
    }
    /* A row of int4, whose codes end at `end`: returns its scale. */
    ATTN_DEV float widen_int4(const uint32_t *w, uint32_t end, uint32_t offset) {
        const uint32_t word = ld_shared_u32(end);
        const packed::zero_point zero(word & 15);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            uint32_t x[4];
            zero.widen(w[c], x), put(c, offset, make_uint4(x[0], x[1], x[2], x[3]));
        }
        return packed::scale_of(word);
    }
    /* A row of K from `at` on; returns what its scores are multiplied by. */
    ATTN_DEV float widen_key(uint32_t at, uint32_t offset) {
        uint32_t w[K_WORDS], x[4];
        load_words<K_WORDS>(at + quarter * K_WORDS * 4, k_shift, w);
        if constexpr (packed::IS_INT4) {
            return widen_int4(w, at + packed::K_DATA, offset);
        } else if constexpr (packed::K_BITS == 8) {
#pragma unroll
            for (int c = 0; c < 4; c++)
                put(c, offset,
                    make_uint4(e4m3x2_to_f16x2<0>(w[2 * c]), e4m3x2_to_f16x2<1>(w[2 * c]),
                               e4m3x2_to_f16x2<0>(w[2 * c + 1]), e4m3x2_to_f16x2<1>(w[2 * c + 1])));
            return 1.f;
        } else {
            uint32_t squares[2] = {0, 0};
#pragma unroll
            for (int c = 0; c < 4; c++) {
                centroids.widen(packed::codes_in<packed::K_BITS>(w, c), x, squares);
                put(c, offset, make_uint4(x[0], x[1], x[2], x[3]));
            }
            return packed::f16_bits(ld_shared_u16(at + packed::K_DATA)) *
                   rsqrt_approx(of_row(packed::centroid_bytes::sum_of(squares)));
        }
    }
    /* A row of V from `at` on; term: its scale, and BN further on what is added. */
    ATTN_DEV void widen_value(uint32_t at, uint32_t offset, float *term, bool ok) {
        uint32_t w[V_WORDS], x[4];
        load_words<V_WORDS>(at + quarter * V_WORDS * 4, v_shift, w);
        if constexpr (packed::IS_INT4) {
            set_term(term, widen_int4(w, at + packed::V_DATA, offset), ok);
        } else {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                packed::widen_masked<packed::V_BITS>(packed::codes_in<packed::V_BITS>(w, c), x);
                put(c, offset, make_uint4(x[0], x[1], x[2], x[3]));
            }
            set_term(term, packed::f16_bits(ld_shared_u16(at + packed::V_DATA)), ok);
            set_term(term + BN, packed::f16_bits(ld_shared_u16(at + packed::V_DATA + 2)), ok);
        }
    }
    ATTN_DEV void widen(int from_stage, int stage, int k0) {
        const bool whole = k0 >= walk.lo && k0 + BN <= walk.hi;
        const uint32_t at = from + from_stage * RAW_BYTES / 2;
        float *const term = scales + stage * TERMS * BN + row;
        each(
            stage,
            [&](int r, uint32_t offset) {
                set_term(term + r, widen_key(at + r * ROW, offset) * factor,
                         whole || walk.wanted(k0 + row + r));
            },
            [&](int r, uint32_t offset) {
                widen_value(at + r * ROW + packed::K_BYTES, offset, term + BN + r,
                            whole || walk.wanted(k0 + row + r));
            });
    }
};

} /* namespace prefill */
} /* namespace attn_cuda */
#endif
