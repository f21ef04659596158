/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding of queries and keys in place, and the cache write of the rotated keys and of the
 * values (attn.draft.rope_write/0). One warp a row of one head. Macros beyond triton_write.cuh: TL_ROPE, the
 * values of a row that rotate; TL_PAIRS: 1 x = value i, y = value TL_ROPE / 2 + i (NeoX), 2 x = value 2 i, y
 * = value 2 i + 1. */
#ifndef TRITON_ROPE_CUH
#define TRITON_ROPE_CUH

#include "triton_write.cuh"

namespace attn_cuda {
namespace rope {

constexpr int HALF = TL_ROPE / 2, ELEMENT = element_bytes(TL_Q2);
/* Two neighbours as one word, where rows and halves of rows are aligned to that. */
constexpr bool WORDS = ELEMENT == 2 && TL_SVEC >= 4 && (TL_PAIRS == 2 || HALF % 2 == 0);

ATTN_DEV float2 rotate(float x, float y, float c, float s) {
    return make_float2(x * c - y * s, y * c + x * s);
}

ATTN_DEV void rotate_row(uint8_t *row, const triton_rope_params_t &p, int64_t table_row, int lane) {
    auto table = [&](int i) {
        return p.is_table_float ? load_float<DT_F32>(p.cos_sin, table_row + i)
                                : load_float<TL_Q2>(p.cos_sin, table_row + i);
    };
    constexpr int STEP = WORDS && TL_PAIRS == 1 ? 2 : 1;
#pragma unroll 2
    for (int i = lane * STEP; i < HALF; i += 32 * STEP) {
        const float c = table(i), s = table(HALF + i);
        if constexpr (WORDS && TL_PAIRS == 1) {
            uint32_t *a = (uint32_t *)(row + i * ELEMENT), *b = (uint32_t *)(row + (HALF + i) * ELEMENT);
            const float2 x = unpack2<TL_Q2>(*a), y = unpack2<TL_Q2>(*b);
            const float2 first = rotate(x.x, y.x, c, s),
                         second = rotate(x.y, y.y, table(i + 1), table(HALF + i + 1));
            *a = pack2<TL_Q2>(first.x, second.x), *b = pack2<TL_Q2>(first.y, second.y);
        } else if constexpr (WORDS) {
            uint32_t *a = (uint32_t *)(row + 2 * i * ELEMENT);
            const float2 x = unpack2<TL_Q2>(*a), y = rotate(x.x, x.y, c, s);
            *a = pack2<TL_Q2>(y.x, y.y);
        } else {
            const int at = TL_PAIRS == 1 ? i : 2 * i, other = TL_PAIRS == 1 ? HALF + i : 2 * i + 1;
            const float2 y = rotate(load_float<TL_Q2>(row, at), load_float<TL_Q2>(row, other), c, s);
            store_float<TL_Q2>(row, at, y.x), store_float<TL_Q2>(row, other, y.y);
        }
    }
}

} /* namespace rope */

extern "C" __global__ void __launch_bounds__(256) tl_rope(const __grid_constant__ triton_rope_params_t p) {
    const int lane = threadIdx.x & 31,
              rows = p.num_heads + p.write.num_kv_heads; /* of a token: queries, then keys */
    const int64_t unit = (int64_t)blockIdx.x * 8 + (threadIdx.x >> 5);
    if (unit >= (int64_t)p.write.num_tokens * rows) return;
    const int token = (int)(unit / rows), head = (int)(unit % rows) - p.num_heads;
    const int64_t position = __ldg(p.positions + token), last = p.table_rows - 1;
    const int64_t table_row = (position < 0 ? 0 : position > last ? last : position) * p.table_row;
    uint8_t *row =
        head < 0 ? (uint8_t *)p.query +
                       ((int64_t)token * p.query_token + (head + p.num_heads) * p.query_head) * rope::ELEMENT
                 : (uint8_t *)p.key +
                       ((int64_t)token * p.write.key_token + head * p.write.key_head) * rope::ELEMENT;
    rope::rotate_row(row, p, table_row, lane);
    if (head < 0) return;
    __syncwarp(); /* the rotated row, before other lanes read it */
    cache_write::write_token(p.write, token, head, lane);
}

} /* namespace attn_cuda */
#endif
