/* SPDX-License-Identifier: Apache-2.0 */
/* Results of 64 rows x 256 columns from the accumulators of a warpgroup to memory. */
#ifndef MLA_DECODE_SM90_STORE_CUH
#define MLA_DECODE_SM90_STORE_CUH

#include "../ptx/quad_sm80.cuh"

namespace attn_cuda {

/* Row e (0: lane / 4, 1: eight more) of this thread times inv; `to`: the row's first column. All lanes call.
 * PIECE: columns stay in the order of mla_part. */
template <int DT, bool PIECE>
ATTN_DEV void mla90_store_half(uint16_t *to, const float (&o)[128], int e, float inv, bool valid) {
    to += (threadIdx.x & 3) * 8;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = pack2<DT>(o[16 * j + 4 * i + 2 * e] * inv, o[16 * j + 4 * i + 2 * e + 1] * inv);
        const uint4 columns =
            PIECE ? make_uint4(w[0], w[1], w[2], w[3]) : quad_columns(w[0], w[1], w[2], w[3]);
        if (valid) *(uint4 *)(to + j * 32) = columns;
    }
}

} /* namespace attn_cuda */
#endif
