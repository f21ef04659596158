/* SPDX-License-Identifier: Apache-2.0 */
/* What a warp of a decode kernel does with a block of 16 keys: transposed products with mma.sync.m16n8k16,
 * S^T = K Q^T and O^T = V^T P^T, where the keys fill the M side and 8 query rows each of NT tiles the N side;
 * and between them the softmax, whose maximum is raised lazily. A thread holds two rows (e = 0, 1) of each
 * tile. */
#ifndef DECODE_SM80_TILE_CUH
#define DECODE_SM80_TILE_CUH

#include "../ptx/ptx_sm80.cuh"

namespace attn_cuda {

/* Scores of keys of 16 bits, STEPS times 16 columns; unit(i): address of this lane's part of column step
 * i. */
template <int MMA, int STEPS, int NT, class UNIT>
ATTN_DEV void add_scores(float (&s)[NT][4], const uint32_t (&q)[NT][2 * STEPS], UNIT unit) {
#pragma unroll
    for (int st = 0; st < STEPS; st++) {
        uint32_t r[4];
        ldmatrix_x4(r, unit(st));
#pragma unroll
        for (int n = 0; n < NT; n++)
            mma_16816<MMA>(s[n], r, q[n][2 * st], q[n][2 * st + 1]);
    }
}

/* The maximum may lag by 2^lazy: weights stay below that, and the result is exact after division. */
template <int NT, int MT>
ATTN_DEV void raise_max(const float (&s)[NT][4], float (&m)[NT][2], float (&l)[NT][2], float (&o)[NT][MT][4],
                        float lazy) {
    bool grow = false;
    float top[NT][2];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        top[n][0] = fmaxf(s[n][0], s[n][2]);
        top[n][1] = fmaxf(s[n][1], s[n][3]);
        grow |= top[n][0] - m[n][0] > lazy || top[n][1] - m[n][1] > lazy;
    }
    if (!__any_sync(~0u, grow)) return;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float x = top[n][e];
#pragma unroll
            for (int d = 4; d < 32; d <<= 1)
                x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
            x = fmaxf(x, m[n][e]);
            float f = ex2(m[n][e] - x);
            m[n][e] = x;
            l[n][e] *= f;
#pragma unroll
            for (int j = 0; j < MT; j++) {
                o[n][j][e] *= f;
                o[n][j][2 + e] *= f;
            }
        }
}

/* Weights of the block: into the rows' sums, and times scale (of keys g and g + 8) as the fragments of
 * P^T. */
template <int MMA, bool SCALED, int NT>
ATTN_DEV void weigh(const float (&s)[NT][4], const float (&m)[NT][2], const float (&scale)[2],
                    float (&l)[NT][2], uint32_t (&p)[NT][2]) {
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float p0 = ex2(__fsub_rn(s[n][0], m[n][0])), p1 = ex2(__fsub_rn(s[n][1], m[n][1]));
        float p2 = ex2(__fsub_rn(s[n][2], m[n][0])), p3 = ex2(__fsub_rn(s[n][3], m[n][1]));
        l[n][0] += p0 + p2;
        l[n][1] += p1 + p3;
        if (SCALED) p0 *= scale[0], p1 *= scale[0], p2 *= scale[1], p3 *= scale[1];
        p[n][0] = movmatrix_trans(pack2<MMA>(p0, p1));
        p[n][1] = movmatrix_trans(pack2<MMA>(p2, p3));
    }
}

/* Weighted sums of values of 16 bits; unit(i): address of this lane's part of columns 16 i to 16 i + 15. */
template <int MMA, int NT, int MT, class UNIT>
ATTN_DEV void add_values(float (&o)[NT][MT][4], const uint32_t (&p)[NT][2], UNIT unit) {
#pragma unroll
    for (int x = 0; x < MT; x++) {
        uint32_t r[4];
        ldmatrix_x4_trans(r, unit(x));
#pragma unroll
        for (int n = 0; n < NT; n++)
            mma_16816<MMA>(o[n][x], r, p[n][0], p[n][1]);
    }
}

/* Sums of weights over the lanes that share rows. */
template <int NT>
ATTN_DEV void sum_lanes(float (&l)[NT][2]) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int d = 4; d < 32; d <<= 1)
                l[n][e] += __shfl_xor_sync(~0u, l[n][e], d);
}

} /* namespace attn_cuda */

#endif
