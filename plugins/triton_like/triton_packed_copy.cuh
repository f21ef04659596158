/* SPDX-License-Identifier: Apache-2.0 */
/* How decode copies packed rows to its ring, and what it knows of where they begin. */
#ifndef TRITON_PACKED_COPY_CUH
#define TRITON_PACKED_COPY_CUH

#include "triton_rows.cuh"

namespace attn_cuda {
namespace packed {

/* The rows of 16 tokens to the ring, as the UNITS of 16 bytes that may hold BYTES; a row keeps its offset in
 * the first of them. EVEN: rows lie multiples of 16 apart, and begin in 16 bytes where `base` does, so that
 * what a lane copies differs from block to block by one address. */
template <bool EVEN, int BYTES, int UNITS, int RS>
ATTN_DEV void load_rows(uint32_t dst, const uint8_t *src, const uint8_t *base, uint32_t stride, bool all,
                        int tok, const key_walk &walk, int lane) {
    constexpr int TOTAL = 16 * UNITS;
    auto copy = [&](int i, bool is_whole) {
        const int r = i / UNITS, c = i % UNITS;
        const bool ok = is_whole || walk.wanted(tok + r);
        const int64_t at = (int64_t)((ok ? r : 0) * stride);
        const uint32_t shift = (uint32_t)(uintptr_t)(EVEN ? base : src + at) & 15;
        const uint32_t to = dst + (RS == UNITS * 16 ? i * 16 : r * RS + c * 16);
        if (EVEN && is_whole) {
            if ((BYTES + 15) / 16 == UNITS || c * 16 < (int)shift + BYTES)
                cp_async<16>(to, src + (at - shift + c * 16));
        } else if (!ok || c * 16 < (int)shift + BYTES)
            cp_async_zfill<16>(to, src + (at - shift + c * 16), ok);
    };
    if (EVEN && all) {
#pragma unroll
        for (int u = 0; u < (TOTAL + 31) / 32; u++)
            if (TOTAL % 32 == 0 || u * 32 + lane < TOTAL) copy(u * 32 + lane, true);
    } else {
#pragma unroll 1
        for (int i = lane; i < TOTAL; i += 32)
            copy(i, all);
    }
}

/* The same where rows of BYTES lie side by side, from a multiple of 16 on: one piece, which the ring has as
 * it is. What is not wanted becomes zeros: eight bytes at a time, or two where rows are no multiples of
 * that. */
template <int BYTES>
ATTN_DEV void load_piece(uint32_t dst, const uint8_t *src, bool all, int tok, const key_walk &walk,
                         int lane) {
    if (all) {
        uint32_t to = dst + lane * 16;
        src += lane * 16;
        asm("" : "+r"(to), "+l"(src)); /* else each address is put together by itself */
#pragma unroll
        for (int u = 0; u < (BYTES + 31) / 32; u++)
            if (u < BYTES / 32 || lane < BYTES % 32) cp_async<16>(to + u * 512, src + u * 512);
    } else if (BYTES % 8 == 0) {
#pragma unroll 1
        for (int i = lane; i < 2 * BYTES; i += 32) {
            const bool ok = walk.wanted(tok + i * 8 / BYTES);
            cp_async_zfill<8>(dst + i * 8, ok ? src + i * 8 : src, ok);
        }
    } else {
#pragma unroll 1
        for (int i = lane; i < 8 * BYTES; i += 32)
            st_shared_u16(dst + i * 2,
                          walk.wanted(tok + i * 2 / BYTES) ? __ldg((const uint16_t *)src + i) : 0);
    }
}

/* What is known of the rows of a CTA. EVEN: all begin at the same offset in 16 bytes; K_WORDS, V_WORDS:
 * those of K, of V begin at a whole word; PIECE: of load_piece, where that depends on whether a row is odd.
 * place: of the words of rows I, I + 2 and so on. */
template <bool EVEN_, bool K_WORDS, bool V_WORDS, bool PIECE_ = false>
struct rows_of {
    static constexpr bool EVEN = EVEN_, PIECE = PIECE_;
    template <int I>
    static constexpr int place(bool is_v) {
        return PIECE                        ? (I * ROW_BYTES + is_v * K_BYTES) % 4 == 0 ? WORD : HALF
               : (is_v ? V_WORDS : K_WORDS) ? WORD
               : EVEN                       ? HALF
                                            : ANY;
    }
};
constexpr bool ALWAYS = ALIGN >= 4;
using any_rows = rows_of<false, ALWAYS, ALWAYS>;

} /* namespace packed */
} /* namespace attn_cuda */
#endif
