/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the segments of one request together (semantics 6.6): weights 2^(lse_i - max), the sink once, 0 where
 * no segment saw a key. In the order of the segments, so that the same call gives the same bits. */
#ifndef TRITON_REDUCE_CUH
#define TRITON_REDUCE_CUH

#include "triton_rows.cuh"

namespace attn_cuda {

/* R rows by one warp, all of them asked for before any is waited for; row = token * heads + head, negative:
 * nobody's; q0: the request's first token. weights: [R][TL_MAX_PIECES] of this warp. What other CTAs of this
 * launch wrote is read past the first-level cache. */
template <int R>
ATTN_DEV void merge_rows(const triton_params_t &p, int q0, int first, int count, const int (&rows)[R],
                         float *weights) {
    constexpr int VECTOR = TL_DV % 4 == 0 ? 4 : 1,
                  FEW = 4; /* so many segments are asked for beside their weights */
    const int lane = threadIdx.x & 31, num_heads = p.num_kv_heads * TL_GROUP;
    const bool is_early = VECTOR == 4 && count <= FEW && lane * VECTOR < TL_DV;
    auto part_of = [&](int r, int i) { return (int64_t)(first + i) * p.max_rows + max(rows[r], 0); };
    float4 early[R][FEW];
    float top[R], sum[R], factor[R];
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int i = 0; i < FEW; i++)
            early[r][i] = is_early && i < count
                              ? __ldcg((const float4 *)(p.part_out + part_of(r, i) * TL_DV + lane * VECTOR))
                              : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int r = 0; r < R; r++)
        sum[r] = 0.f,
        top[r] = fmaxf(NO_MAX, TL_SINKS ? __ldg(p.sinks + max(rows[r], 0) % num_heads) * LOG2E : -INFINITY);
    for (int i = lane; i < count; i += 32) {
        float x[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            x[r] = __ldcg(p.part_lse + part_of(r, i));
#pragma unroll
        for (int r = 0; r < R; r++)
            weights[r * TL_MAX_PIECES + i] = x[r], top[r] = fmaxf(top[r], x[r]);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int t = max(rows[r], 0) / num_heads, h = max(rows[r], 0) % num_heads;
#pragma unroll
        for (int d = 16; d > 0; d >>= 1)
            top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], d));
        for (int i = lane; i < count; i += 32) {
            const float w = exp2f(weights[r * TL_MAX_PIECES + i] - top[r]);
            weights[r * TL_MAX_PIECES + i] = w;
            sum[r] += w;
        }
#pragma unroll
        for (int d = 16; d > 0; d >>= 1)
            sum[r] += __shfl_xor_sync(~0u, sum[r], d);
        if (TL_SINKS) /* denominator only (semantics 2.10) */
            sum[r] += exp2f(__ldg(p.sinks + h) * LOG2E - top[r]);
        if (p.lse && lane == 0 && rows[r] >= 0)
            p.lse[(int64_t)(q0 + t) * p.lse_token + (int64_t)h * p.lse_head] =
                sum[r] != 0.f ? (top[r] + log2f(sum[r])) * LN2 : -INFINITY;
        factor[r] = sum[r] != 0.f ? 1.f / sum[r] : 0.f;
        if (TL_OUT == DT_E4M3 && p.out_scale) factor[r] /= __ldg(p.out_scale);
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (rows[r] < 0) continue;
        const int64_t out =
            (int64_t)(q0 + rows[r] / num_heads) * p.out_token + (int64_t)(rows[r] % num_heads) * p.out_head;
        const float *const w = weights + r * TL_MAX_PIECES;
        for (int d = lane * VECTOR; d < TL_DV; d += 32 * VECTOR) {
            float x[VECTOR];
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                x[j] = 0.f;
            auto add = [&](float f, float4 y) {
                x[0] = fmaf(f, y.x, x[0]), x[1 % VECTOR] = fmaf(f, y.y, x[1 % VECTOR]);
                x[2 % VECTOR] = fmaf(f, y.z, x[2 % VECTOR]), x[3 % VECTOR] = fmaf(f, y.w, x[3 % VECTOR]);
            };
            if (is_early && d == lane * VECTOR) {
#pragma unroll
                for (int i = 0; i < FEW; i++)
                    if (i < count) add(w[i], early[r][i]);
            } else {
#pragma unroll 8
                for (int i = 0; i < count; i++) {
                    const float *from = p.part_out + part_of(r, i) * TL_DV + d;
                    if constexpr (VECTOR == 4)
                        add(w[i], __ldcg((const float4 *)from));
                    else
                        x[0] = fmaf(w[i], __ldcg(from), x[0]);
                }
            }
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                store_float<TL_OUT>(p.out, out + d + j, x[j] * factor[r]);
        }
    }
    __syncwarp();
}

} /* namespace attn_cuda */
#endif
