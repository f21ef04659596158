/* SPDX-License-Identifier: Apache-2.0 */
/* Results of 64 rows x 256 columns from the accumulators of a warpgroup to memory. Lanes of a quad exchange columns first,
 * so that each stores 16 bytes: the number of stores, not their bytes, is what takes time. */
#ifndef MLA_DECODE_STORE_SM90_CUH
#define MLA_DECODE_STORE_SM90_CUH

#include "../common/ptx_sm80.cuh"

namespace attn_cuda {

/* Row e (0: lane / 4, 1: eight more) of this thread times inv; `to`: the row's first column. All lanes call. */
template <int DT>
ATTN_DEV void mla90_store_half(uint16_t *to, const float (&o)[128], int e, float inv, bool valid) {
    const int q = threadIdx.x & 3, odd = q & 1, high = q & 2;
    to += q * 8;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = pack2<DT>(o[16 * j + 4 * i + 2 * e] * inv, o[16 * j + 4 * i + 2 * e + 1] * inv);
        const uint32_t x = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1),
                       y = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
        const uint32_t a0 = odd ? x : w[0], a1 = odd ? w[1] : x, b0 = odd ? y : w[2], b1 = odd ? w[3] : y;
        const uint32_t c0 = __shfl_xor_sync(~0u, high ? a0 : b0, 2),
                       c1 = __shfl_xor_sync(~0u, high ? a1 : b1, 2);
        if (valid) *(uint4 *)(to + j * 32) = high ? make_uint4(c0, c1, b0, b1) : make_uint4(a0, a1, c0, c1);
    }
}

} /* namespace attn_cuda */
#endif
