/* SPDX-License-Identifier: Apache-2.0 */
/* The copiers of triton_prefill_split_sm90.cuh for nvfp4: rows of codes, and their scales, which lie
 * apart. Codes lie as fp4::pairs has them, each beside the one four further on. */
#ifndef TRITON_SPLIT_FP4_CUH
#define TRITON_SPLIT_FP4_CUH

#include "triton_split_rows.cuh"

namespace attn_cuda {
namespace prefill {

/* A stage: rows of K, of V, scales of K, of V. */
struct raw_copier : row_quarters {
    static constexpr int ROW = TL_D / 2, SCALES = TL_D / 16, V_RAW = BN * ROW, S_RAW = 2 * V_RAW;
    /* 16-byte units of a row, words of its scales; threads for 16 tokens of K; groups of K and V at a time */
    static constexpr int UNITS = ROW / 16, WORDS = SCALES / 4, GROUPS = THREADS / (32 * UNITS),
                         WORD_GROUPS = THREADS / (32 * WORDS);
    const key_walk &walk;
    const uint8_t *rows, *words; /* this thread's 16 bytes, its word of scales */
    int64_t page_bytes, token_bytes, words_page, words_token;
    uint32_t rows_to, words_to, from, from_scales;

    ATTN_DEV raw_copier(const triton_params_t &p, const block_view &b, uint32_t base, float *, float)
        : row_quarters(base), walk(b.walk) {
        const int t = threadIdx.x, row_of_16 = t / UNITS % 16, word_of_16 = t / WORDS % 16;
        const key_source keys(p, b);
        const bool v_rows = t / (16 * UNITS) & 1, v_words = t / (16 * WORDS) & 1;
        page_bytes = v_rows ? p.v_page : p.k_page, token_bytes = v_rows ? p.v_token : p.k_token;
        rows = (v_rows ? keys.v : keys.k) + row_of_16 * token_bytes + t % UNITS * 16;
        rows_to = base + RAW_AT + v_rows * V_RAW + (t / (32 * UNITS) * 16 + row_of_16) * ROW + t % UNITS * 16;
        words_page = v_words ? p.vs_page : p.ks_page, words_token = v_words ? p.vs_token : p.ks_token;
        words = (v_words ? keys.vs : keys.ks) + word_of_16 * words_token + t % WORDS * 4;
        words_to = base + RAW_AT + S_RAW + v_words * BN * SCALES +
                   (t / (32 * WORDS) * 16 + word_of_16) * SCALES + t % WORDS * 4;
        from = base + RAW_AT + row * ROW + quarter * 16;
        from_scales = base + RAW_AT + S_RAW + row * SCALES + quarter * 2;
    }
    /* Rows that nobody sees are copied as they are; their scales, which need not be numbers, become zeros. */
    ATTN_DEV void ask(int stage, int k0, int page) {
        const uint32_t into = stage * RAW_BYTES / 2;
#pragma unroll
        for (int u = 0; u < BN / 16; u += GROUPS) {
            const int group = u + (GROUPS == 1 ? 0 : (int)threadIdx.x / (32 * UNITS));
            const uint32_t in = TL_PAGE == 16 ? 0 : (uint32_t)in_page(k0 + 16 * group);
            const uint8_t *const at =
                rows + (uint32_t)__shfl_sync(~0u, page, group) * page_bytes + in * token_bytes;
            if (u + GROUPS <= BN / 16 || group < BN / 16) cp_async<16>(rows_to + into + u * 16 * ROW, at);
        }
#pragma unroll
        for (int u = 0; u < BN / 16; u += WORD_GROUPS) {
            const int group = u + (int)threadIdx.x / (32 * WORDS),
                      token = 16 * group + (int)threadIdx.x / WORDS % 16;
            const uint32_t in = TL_PAGE == 16 ? 0 : (uint32_t)in_page(k0 + 16 * group);
            const uint8_t *const at =
                words + (uint32_t)__shfl_sync(~0u, page, group) * words_page + in * words_token;
            if (u + WORD_GROUPS <= BN / 16 || group < BN / 16)
                cp_async_zfill<4>(words_to + into + u * 16 * SCALES, at, walk.wanted(k0 + token));
        }
        cp_async_commit();
    }
    ATTN_DEV void widen_quarter(uint32_t at, uint32_t scales_at, uint32_t offset) {
        const uint4 x = ld_shared_v4(at);
        const uint32_t scales = e4m3x2_to_f16x2<0>(ld_shared_u16(scales_at)), words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int c = 0; c < 4; c++) {
            uint32_t r[4];
            fp4::pairs(words[c], c < 2 ? fp4::twice<0>(scales) : fp4::twice<1>(scales), 2, r);
            put(c, offset, make_uint4(r[0], r[2], r[1], r[3]));
        }
    }
    ATTN_DEV void widen(int from_stage, int stage, int) {
        const uint32_t at = from + from_stage * RAW_BYTES / 2,
                       scales_at = from_scales + from_stage * RAW_BYTES / 2;
        each(
            stage,
            [&](int r, uint32_t offset) { widen_quarter(at + r * ROW, scales_at + r * SCALES, offset); },
            [&](int r, uint32_t offset) {
                widen_quarter(at + V_RAW + r * ROW, scales_at + (BN + r) * SCALES, offset);
            });
    }
};

} /* namespace prefill */
} /* namespace attn_cuda */
#endif
