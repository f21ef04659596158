/* SPDX-License-Identifier: Apache-2.0 */
/* What both parts of triton_prefill_split_sm90.cuh know: how many registers they have, and the ring between
 * them. */
#ifndef TRITON_SPLIT_RING_CUH
#define TRITON_SPLIT_RING_CUH

#include "triton_products_sm90.cuh"

namespace attn_cuda {
namespace prefill {

constexpr int CONSUMERS = TL_WARPS * 32;
/* Where registers hold P beside scores. */
constexpr bool TRUSTED = TL_K_APART || (BYTES_APART && !TL_FP4 && FOLD);
constexpr int COPIER_REGS = 56, CONSUMER_REGS = TL_WARPS == 12 ? 152 : 224; /* of 65536 */
static_assert(THREADS == 128 && TL_WARPS == (TL_D == 256 ? 8 : 12) && TL_D == TL_DV, "rows of K and V alike");
static_assert(TL_D == 128 || (TL_D == 64 && !TL_K_APART) || (TL_D == 256 && TL_JOINT), "what copiers know");

/* A stage has the keys and the values of a tile: a barrier says that it is full, and one that both have been
 * read. */
struct tile_ring {
    uint32_t full, empty;
};
struct ring_place {
    int stage = 0, phase = 0;
    ATTN_DEV void next() {
        if (++stage == TL_RING) stage = 0, phase ^= 1;
    }
};

} /* namespace prefill */
} /* namespace attn_cuda */
#endif
