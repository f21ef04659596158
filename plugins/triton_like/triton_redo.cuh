/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that the 2D kernels cannot hold, computed again by FFMA once their tile is done, so that the loops
 * over keys pay nothing: rows whose maximum lies beyond DEEP, where fma(s, factor, -m) leaves too much of
 * m's rounding, and rows all of whose biases are the lowest float, which leaves float32 in base-2 units. */
#ifndef TRITON_REDO_CUH
#define TRITON_REDO_CUH

#include "triton_exact_rows.cuh"
#include "triton_tile_rows.cuh"

namespace attn_cuda {
namespace prefill {

constexpr bool CAN_BE_DEEP = FOLD || (FOLD_CAP && TL_CAP * LOG2E > DEEP), CAN_BE_LOWEST = TL_REL || TL_QQ,
               REDOES = CAN_BE_DEEP || CAN_BE_LOWEST;

/* Bit e: a thread's row e of two is to be computed again. A sum that is no finite number may have been
 * deep at first, and so may an output where weights are float16; or its scores hold NaN. */
ATTN_DEV int rows_to_redo(const block_view &b, const int2 *seen, const float (&m)[2], const float (&l)[2],
                          const float (&o)[DVP / 2]) {
    int rows = 0;
    if constexpr (REDOES)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            bool is_bad = !(fabsf(l[e]) < INFINITY);
            if (CAN_BE_DEEP)
                is_bad = is_bad || is_deep(m[e]) || (V_MMA == DT_F16 && !(fabsf(o[2 * e]) < INFINITY));
            if (CAN_BE_LOWEST && m[e] == NO_MAX)
                is_bad = is_bad || seen[8 * e].x < seen[8 * e].y || (TL_RSWA > 0 && b.walk.prefix > 0);
            if (is_bad) rows |= 1 << e;
        }
    return rows;
}

/* After a tile of BM rows is stored, by the threads from FIRST on. rows: of rows_to_redo, for each of a
 * thread's M pairs of rows. Shared memory: ROOM bytes, and behind them one of each row. Which block it is, is
 * read again, because the loops over keys have no register for it. */
template <int FIRST, int BM, int ROOM, int M>
ATTN_DEV void redo_rows(const triton_params_t &p, uint8_t *smem, const int (&rows)[M]) {
    constexpr int COUNT = TL_WARPS * 32;
    constexpr int KEYS = exact::team<COUNT, FIRST, 32, true>::SMEM <= ROOM   ? 32
                         : exact::team<COUNT, FIRST, 16, true>::SMEM <= ROOM ? 16
                                                                             : 8;
    using team = exact::team<COUNT, FIRST, KEYS, true>;
    static_assert(team::SMEM <= ROOM && BM % team::BM == 0, "blocks of rows fit");
    uint8_t *const flags = smem + ROOM;
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    const int2 cta = tile_of_cta(p), tile = *(const int2 *)(p.tiles + cta.x);
    const int head = cta.y, row0 = tile.y * BM, num_rows = view_seq(p, tile.x).q_len * TL_GROUP;
    int first = 0, end = 1, slot = -1;
    if constexpr (CUTS) {
        const tile_piece cut(p, cta.x);
        if (cut.slot >= 0) first = cut.first(p), end = cut.end(p), slot = cut.slot + cut.piece;
    }
    const int local = (thread - FIRST) / 32 * 16 * M + thread % 32 / 4;
    team::sync();
#pragma unroll
    for (int t = 0; t < M; t++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t all = __ballot_sync(~0u, rows[t] >> e & 1);
            if (thread % 4 == 0) flags[local + 16 * t + 8 * e] = (all >> (thread & 28) & 15) != 0;
        }
    team::sync();
#pragma unroll 1
    for (int base = 0; base < BM; base += team::BM) {
        const int r = base + (thread - FIRST) / 8;
        const bool is_wanted = flags[r] && row0 + r < num_rows;
        if (team::any(is_wanted))
            exact::attend<team>(p, (float *)smem, tile.x, row0 + base, head, first, end, slot, is_wanted);
    }
}

} /* namespace prefill */
} /* namespace attn_cuda */
#endif
