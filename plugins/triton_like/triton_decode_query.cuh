/* SPDX-License-Identifier: Apache-2.0 */
/* The queries of a decode CTA as the fragments Q^T of its products. */
#ifndef TRITON_DECODE_QUERY_CUH
#define TRITON_DECODE_QUERY_CUH

#include "triton_decode_layout.cuh"

namespace attn_cuda {
namespace decode {

/* ROW_UNITS: the largest magnitudes of rows (row_unit). Rotated ones of 256 are 64 times as large at most. */
constexpr int MOST = 14, ROTATED_MOST = 8;

#if TL_PACKED
/* A rotated row's unit, behind its queries. */
ATTN_DEV float *unit_of_row(uint8_t *smem, int r) {
    return (float *)(smem + RINGS + (r * QRS + TL_D) * 2);
}

/* Queries in the base of a packed cache, as f16 in shared memory behind the rings; the table of centroids. */
ATTN_DEV void rotate_queries(const triton_params_t &p, const seq_view &sv, int head, int row0, int rows,
                             uint8_t *smem) {
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    constexpr int E = (TL_D + 31) / 32;
    packed::fill_table(packed::table_at(smem_addr(smem) + TABLE_AT), tid, WARPS * 32);
    for (int r = warp; r < ROWS; r += WARPS) {
        const int row = row0 + r;
        const int64_t from = (int64_t)(sv.q0 + row / TL_GROUP) * p.q_token +
                             (int64_t)(head * TL_GROUP + row % TL_GROUP) * p.q_head + lane * E;
        float x[E];
#pragma unroll
        for (int j = 0; j < E; j++)
            x[j] = row < rows ? load_float<TL_Q>(p.q, from + j) : 0.f;
        const float unit = rotate_row(x, lane, row_unit::of<ROTATED_MOST>);
#pragma unroll
        for (int j = 0; j < E; j++)
            ((uint16_t *)(smem + RINGS))[r * QRS + lane * E + j] =
                (uint16_t)pack2<DT_F16>(x[j] * packed::UP, 0.f);
        if (lane == 0) *unit_of_row(smem, r) = unit;
    }
    __syncthreads();
}

/* int4: sums of the queries as the products have them, for the zero points. */
ATTN_DEV void sum_queries(float (&q_sum)[NT][2], const uint32_t (&qf)[NT][Q_WORDS], int q) {
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float sum = 0.f;
#pragma unroll
        for (int w = 0; w < Q_WORDS; w++) {
            const float2 x = unpack2<DT_F16>(qf[n][w]);
            sum = fmaf(x.x + x.y, w % 2 ? 16.f / 16777216.f : 1.f / 16777216.f, sum);
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
#pragma unroll
        for (int e = 0; e < 2; e++)
            q_sum[n][e] = __shfl_sync(~0u, sum, (2 * q + e) * 4);
    }
}
#endif

/* This lane's words of query row `row` of the request, zeros where it has none; ring_row: its number in the
 * CTA. TL_K_APART: as int8. q_scale: the scales or (ROW_UNITS) units of the two rows whose scores the lane
 * has. */
ATTN_DEV void load_query(uint32_t (&qf)[Q_WORDS], float (&q_scale)[2], const triton_params_t &p,
                         const seq_view &sv, int head, int row, int rows, int ring_row, uint8_t *smem,
                         int q) {
    constexpr int TYPE = TL_K_APART || ROW_UNITS ? TL_Q : MMA; /* of the words at first */
    const uint8_t *qp = (const uint8_t *)p.q + ((int64_t)(sv.q0 + row / TL_GROUP) * p.q_token +
                                                (int64_t)(head * TL_GROUP + row % TL_GROUP) * p.q_head) *
                                                   QB;
#if TL_PACKED
    if constexpr (packed::ROTATED) {
        const uint16_t *const from = (const uint16_t *)(smem + RINGS) + ring_row * QRS;
#pragma unroll
        for (int w = 0; w < Q_WORDS; w++) {
            const uint32_t x =
                from[packed::query_column(w, 0, q)] | (uint32_t)from[packed::query_column(w, 1, q)] << 16;
            qf[w] = packed::IS_INT4 && w % 2 ? fma_f16x2(x, 0x2c002c00u, 0) : x; /* 1/16 */
        }
#pragma unroll
        for (int e = 0; e < 2; e++)
            q_scale[e] = *unit_of_row(smem, (ring_row & ~7) + 2 * q + e);
    } else
#pragma unroll
        for (int w = 0; w < Q_WORDS; w++)
            qf[w] = row < rows ? query_pair<TYPE>(qp, packed::query_column(w, 0, q)) : 0;
#else
    if constexpr (TL_FP4) {
#pragma unroll
        for (int w = 0; w < Q_WORDS; w++) {
            const int d = 32 * (w >> 2) + 8 * q;
            auto at = [&](int h) {
                return row < rows ? load_float<TL_Q>(qp, d + fp4::pair_column(w & 3, h)) : 0.f;
            };
            qf[w] = pack2 < ROW_UNITS ? DT_BF16 : DT_F16 > (at(0), at(1));
        }
    } else
#pragma unroll
        for (int s = 0; s < QSTEP; s++) {
            int d0 = CODES ? 32 * (s >> 1) + 16 * (s & 1) + 4 * q : 16 * s + 2 * q,
                d1 = CODES ? d0 + 2 : d0 + 8;
            qf[2 * s] = row < rows ? query_pair<TYPE>(qp, d0) : 0;
            qf[2 * s + 1] = row < rows ? query_pair<TYPE>(qp, d1) : 0;
        }
    if constexpr (TL_K_APART) { /* to int8, as numbers; four lanes have a row */
        float top = 0.f;
#pragma unroll
        for (int w = 0; w < Q_WORDS; w++) {
            const float2 x = unpack2<TL_Q>(qf[w]);
            top = min_nan(top, min_nan(-fabsf(x.x), -fabsf(x.y)));
        }
        top = min_nan(top, __shfl_xor_sync(~0u, top, 1));
        const float scale = int8_scale(-min_nan(top, __shfl_xor_sync(~0u, top, 2)));
#pragma unroll
        for (int w = 0; w < Q_WORDS; w++) {
            const float2 x = unpack2<TL_Q>(qf[w]);
            qf[w] = ((uint32_t)(int)int8_code(x.x / scale) & 255) |
                    ((uint32_t)(int)int8_code(x.y / scale) & 255) << 8;
        }
#pragma unroll
        for (int s = 0; s < QSTEP; s++) /* four columns a word, as K has them */
            qf[s] = qf[2 * s] | qf[2 * s + 1] << 16;
#pragma unroll
        for (int e = 0; e < 2; e++)
            q_scale[e] = __shfl_sync(~0u, scale, (2 * q + e) * 4);
    }
#endif
    if constexpr (ROW_UNITS && !packed::ROTATED) {
        float top = 0.f;
#pragma unroll
        for (int w = 0; w < Q_WORDS; w++) {
            const float2 x = unpack2<DT_BF16>(qf[w]);
            top = fmaxf(top, fmaxf(fabsf(x.x), fabsf(x.y)));
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        const row_unit r = row_unit::of<MOST>(fmaxf(top, __shfl_xor_sync(~0u, top, 2)));
#pragma unroll
        for (int w = 0; w < Q_WORDS; w++) {
            const float2 x = unpack2<DT_BF16>(qf[w]);
            qf[w] = pack2<DT_F16>(x.x * r.inverse, x.y * r.inverse);
        }
#pragma unroll
        for (int e = 0; e < 2; e++)
            q_scale[e] = __shfl_sync(~0u, r.unit, (2 * q + e) * 4);
    }
}

} /* namespace decode */
} /* namespace attn_cuda */
#endif
