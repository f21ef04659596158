/* SPDX-License-Identifier: Apache-2.0 */
/* Products of a decode warp over int8: sums of integers, and pairs of values as f16. Those over 16-bit
 * elements are in decode_sm80_tile.cuh, over 4-bit ones in triton_fp4.cuh and triton_packed.cuh; codes that
 * become f16 are multiplied in the kernel itself, because as functions of their own they compile to other
 * code. */
#ifndef TRITON_DECODE_PRODUCTS_CUH
#define TRITON_DECODE_PRODUCTS_CUH

#include "triton_decode_ring.cuh"

namespace attn_cuda {
namespace decode {

/* The bytes 0 and 2 (HIGH: 1 and 3) of a word of int8 as f16: (code + 128) * 2^-24. */
template <int HIGH>
ATTN_DEV uint32_t biased_pair(uint32_t x) {
    uint32_t r; /* one LOP3: (x & mask) ^ bias */
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;"
        : "=r"(r)
        : "r"(HIGH ? x >> 8 : x), "r"(0x00ff00ffu), "r"(0x00800080u));
    return r;
}

/* K of int8 and queries of int8: sums of integers, K as it is. k_half: LINES, the lower and the upper half of
 * the lane's row. */
ATTN_DEV void scores_of_integers(float (&s)[NT][4], const uint32_t (&qf)[NT][Q_WORDS], uint32_t sk,
                                 const uint32_t (&k_half)[2], int lr, int lc) {
    int c[NT][4];
#pragma unroll
    for (int n = 0; n < NT; n++)
        c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
#pragma unroll
    for (int st = 0; st < DP / 32; st++) {
        uint32_t r[4];
        ldmatrix_x4(r, sk + (LINES ? k_half[st >> 1 & 1] ^ (st & 1) << 5 : ring_unit<KRS>(lr, 2 * st + lc)));
#pragma unroll
        for (int n = 0; n < NT; n++)
            mma_s8(c[n], r, qf[n][2 * st], qf[n][2 * st + 1]);
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = (float)c[n][i];
}

} /* namespace decode */
} /* namespace attn_cuda */
#endif
