/* SPDX-License-Identifier: Apache-2.0 */
/* Results of mma and wgmma on their way to memory: the four lanes of a quad exchange columns, so that each
 * stores 16 bytes. The number of stores, not their bytes, is what takes time. */
#ifndef QUAD_SM80_CUH
#define QUAD_SM80_CUH

#include "ptx_sm80.cuh"

namespace attn_cuda {

/* w0 .. w3: columns 2q and 2q + 1 (q: lane % 4) of four neighbouring groups of eight; returned: the eight of
 * group q. All lanes call. */
ATTN_DEV uint4 quad_columns(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
    const int odd = threadIdx.x & 1, high = threadIdx.x & 2;
    const uint32_t x = __shfl_xor_sync(~0u, odd ? w0 : w1, 1), y = __shfl_xor_sync(~0u, odd ? w2 : w3, 1);
    const uint32_t a0 = odd ? x : w0, a1 = odd ? w1 : x, b0 = odd ? y : w2, b1 = odd ? w3 : y;
    const uint32_t c0 = __shfl_xor_sync(~0u, high ? a0 : b0, 2), c1 = __shfl_xor_sync(~0u, high ? a1 : b1, 2);
    return high ? make_uint4(c0, c1, b0, b1) : make_uint4(a0, a1, c0, c1);
}

} /* namespace attn_cuda */
#endif
