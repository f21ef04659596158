/* SPDX-License-Identifier: Apache-2.0 */
/* The two products of Hopper's 2D kernels by wgmma, a warpgroup 64 query rows: S = Q K^T with both operands
 * in shared memory, O += P V with P from registers; and where in shared memory all of it lies.
 *
 * Q, K and V are chunks of 64 columns of 16 bits or 128 of 8, each [rows][128 bytes] with the 128-byte
 * swizzle; K-major for S, MN-major for O. Macros beyond triton_tile.cuh: TL_RING, the stages of K and of V;
 * ATTN_WGMMA_S and ATTN_WGMMA_O, the N of both products (gen_wgmma.sh). */
#ifndef TRITON_PRODUCTS_SM90_CUH
#define TRITON_PRODUCTS_SM90_CUH

#include "triton_tile.cuh"

#include "ptx_sm90.cuh"
#include "triton_wgmma.cuh"

namespace attn_cuda {
namespace prefill {

/* TL_S8: S by int8 products, whose rows have half the bytes; a step is 32 bytes either way. */
constexpr int KP = TL_S8 ? (TL_D + 31) / 32 * 32 : DP, K_STEPS = TL_S8 ? KP / 32 : KP / 16;
constexpr int BM = TL_WARPS * 16, KC = (K_STEPS + 3) / 4, VC = (DVP + 63) / 64;
constexpr int Q_BYTES = BM * KC * 128, K_BYTES = BN * KC * 128, V_BYTES = BN * VC * 128;
/* Rows of few bits as they are, of two tiles, where copiers widen them. */
constexpr int RAW_ROW = TL_PACKED                ? packed::ROW_BYTES
                        : TL_FP4                 ? (TL_D + TL_DV) * 9 / 16
                        : TL_JOINT               ? TL_D + TL_DV + 8
                        : VB == 1 && !TL_K_APART ? TL_D + TL_DV
                                                 : 0,
              RAW_BYTES = TL_COPIERS ? 2 * BN * RAW_ROW : 0;
constexpr int K_AT = Q_BYTES, V_AT = K_AT + TL_RING * K_BYTES, RAW_AT = V_AT + TL_RING * V_BYTES,
              SCALES_AT = RAW_AT + RAW_BYTES;
constexpr int ROWS_AT = SCALES_AT + TL_RING * TERMS * BN * 4, Q_SCALES_AT = ROWS_AT + BM * 8 + 16,
              SMEM = 1024 + Q_SCALES_AT + BM * Q_SCALES;
static_assert(SMEM == TL_PREFILL_SMEM, "triton_config.c knows the same size");
static_assert(BM * ORS <= SCALES_AT, "the result leaves through the memory of Q and K");

/* S = Q K^T; s is written, not read, so that it is no input while the last product is under way. */
#if TL_S8
using score = int;
using product_first = wgmma_i8z<BN>;
using product = wgmma_i8<BN>;
ATTN_DEV void pin(int &x) {
    asm volatile("" : "+r"(x)::"memory");
}
#else
using score = float;
using product_first = wgmma_ssz<BN, MMA>;
using product = wgmma_ss<BN, MMA>;
ATTN_DEV void pin(float &x) {
    asm volatile("" : "+f"(x)::"memory");
}
#endif
ATTN_DEV void start_scores(score (&s)[BN / 2], uint64_t q, uint64_t k) {
    wgmma_fence();
    product_first::run(s, q, k);
#pragma unroll
    for (int i = 1; i < K_STEPS; i++)
        product::run(s, q + ((i >> 2) * (BM * 128) >> 4) + (i & 3) * 2,
                     k + ((i >> 2) * (BN * 128) >> 4) + (i & 3) * 2);
    wgmma_commit();
}
/* Scores that have arrived, as numbers. */
ATTN_DEV void take_scores(float (&s)[BN / 2], score (&c)[BN / 2]) {
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        pin(c[i]);
        s[i] = (float)c[i];
    }
}

/* O += P V, 16 tokens a step: two groups of eight rows. */
ATTN_DEV void start_output(float (&o)[DVP / 2], const uint32_t (&pr)[BN / 4], uint64_t v) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < BN / 16; i++)
        wgmma_rs<DVP, V_MMA>::run(o, pr + 4 * i, v + (i * 2048 >> 4));
    wgmma_commit();
}

} /* namespace prefill */
} /* namespace attn_cuda */
#endif
