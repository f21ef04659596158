/* SPDX-License-Identifier: Apache-2.0 */
/* Decode over e4m3 caches on Hopper, tiles of 33 to 64 rows: how shared memory is laid out, and who brings
 * raw keys. Rope has a ring of its own, because it is free again as soon as there are scores. */
#ifndef MLA_DECODE_SM90_E4M3_TALL_RING_CUH
#define MLA_DECODE_SM90_E4M3_TALL_RING_CUH

#include "mla_decode_sm90_e4m3_ring.cuh"

namespace attn_cuda {

/* Shared memory: queries, P of two blocks, values of four, rope of two. */
struct mla_e4m3_tall {
    static constexpr int QUERY_SLAB = MLA90_SLAB, P_AT = MLA90_SLABS * QUERY_SLAB, P_SLAB = MLA90_SLAB,
                         RING_AT = P_AT + 2 * P_SLAB, STAGES = 4, VALUES = 4 * MLA90_RAW_BOX,
                         ROPE_AT = RING_AT + STAGES * VALUES, ROPES = 2, ROPE = MLA90_KEYS * 64;
    static_assert(ROPE_AT + ROPES * ROPE + 1024 <= MLA90_SMEM, "it must fit");
    struct shared {
        uint64_t full[STAGES], empty[STAGES], rope_full[ROPES], rope_empty[ROPES], read; /* P */
        float top[MLA90_ROWS], factor[MLA90_ROWS];
        int limit[MLA90_ROWS]; /* keys that a row sees */
        int risen;             /* the last pair of blocks that moved a top */
    };
    static ATTN_DEV void start(shared &sh) {
        for (int s = 0; s < STAGES; s++)
            mbar_init(smem_addr(&sh.full[s]), 1), mbar_init(smem_addr(&sh.empty[s]), 8);
        for (int s = 0; s < ROPES; s++)
            mbar_init(smem_addr(&sh.rope_full[s]), 1), mbar_init(smem_addr(&sh.rope_empty[s]), 4);
        mbar_init(smem_addr(&sh.read), 8);
        sh.risen = -1;
        mbar_init_fence();
    }
};

/* One warp brings the values of all items of the part, or their rope. */
template <bool ROPE>
ATTN_DEV void mla_e4m3_tall_produce(const mla_decode_sm90_params &P, uint64_t *full, uint64_t *empty,
                                    uint32_t ring, int rank_row, int item0, int item1) {
    using shape = mla_e4m3_tall;
    constexpr int STAGES = ROPE ? shape::ROPES : shape::STAGES, BYTES = ROPE ? shape::ROPE : shape::VALUES,
                  ROW = BYTES / MLA90_KEYS;
    const mla_attend_params &p = P.p;
    const uint64_t policy = read_once_policy();
    const int lane = threadIdx.x & 31, box = P.box_rows, boxes = MLA90_KEYS / box;
    int stage = 0, phase = 1;
    for (int i = item0; i < item1; i++) {
        const mla_item it = mla_item_of(p, i);
        if (it.num_rows <= rank_row) continue;
        const int32_t *table = p.counts->block_table + it.request * p.counts->block_table_stride;
        mla_boxes at;
        at.locate(P, table, it.k_begin, it.k_end);
        for (int k0 = it.k_begin; k0 < it.k_end; k0 += MLA90_KEYS) {
            const int count = min(boxes, (it.k_end - k0 + box - 1) / box);
            const uint32_t bar = smem_addr(full + stage), to = ring + stage * BYTES;
            mbar_wait(smem_addr(empty + stage), phase);
            if (lane == 0) mbar_expect(bar, count * box * ROW);
            __syncwarp();
            for (int b = 0; b < count; b++) {
                const int page = __shfl_sync(~0u, at.page, b), row = __shfl_sync(~0u, at.row, b);
                if (ROPE && lane == 0) tma_3d_by(policy, to + b * box * 64, &P.rope, 512, row, page, bar);
                if (!ROPE && lane < 4)
                    tma_3d_by(policy, to + lane * MLA90_RAW_BOX + b * box * 128, &P.keys, lane * 128, row,
                              page, bar);
            }
            at.locate(P, table, k0 + MLA90_KEYS, it.k_end);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}

} /* namespace attn_cuda */
#endif
