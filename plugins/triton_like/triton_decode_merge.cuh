/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the decode kernel: what its warps have of a CTA's rows becomes one result through the ring's
 * memory; and of the CTAs that share a request, the last to finish puts the segments together. */
#ifndef TRITON_DECODE_MERGE_CUH
#define TRITON_DECODE_MERGE_CUH

#include "triton_decode_layout.cuh"

namespace attn_cuda {
namespace decode {

/* Where a thread is, and what it computes. */
struct place_of_thread {
    int tid, lane, g, q, warp, head, row0, rows, slot;
};

/* item: as the kernel read it; o, m, l, units: of this thread, in the order of the products. */
ATTN_DEV void merge_warps(const triton_params_t &p, const seq_view &sv, int4 item, const place_of_thread &at,
                          uint8_t *smem, const float (&o)[NT][TILES][4], const float (&m)[NT][2],
                          float (&l)[NT][2], const row_units<NT> &units) {
    __shared__ float row_m[WARPS][ROWS], row_l[WARPS][ROWS], row_f[WARPS][ROWS], row_inv[ROWS];
    __shared__ int is_last;
    const int tid = at.tid, lane = at.lane, g = at.g, q = at.q, warp = at.warp, head = at.head,
              row0 = at.row0, rows = at.rows, slot = at.slot;
    /* Merge of the warps through the ring's memory. */
    sum_lanes(l);
    float common[NT][2];
    if constexpr (PACKED) {
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                common[n][e] = o[n][SUM][e] + o[n][SUM][2 + e];
        sum_lanes(common);
    }
    __syncthreads();
    float *so = (float *)smem;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        if (g == 0)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                row_m[warp][n * 8 + 2 * q + e] = m[n][e];
                row_l[warp][n * 8 + 2 * q + e] = l[n][e];
                if (TL_TOKEN_HEAD)
                    so[(warp * ROWS + n * 8 + 2 * q + e) * ORS + DVP] = unit_inverse(units.unit[n][e]);
            }
        float *r0 = so + (warp * ROWS + n * 8 + 2 * q) * ORS, *r1 = r0 + ORS;
#pragma unroll
        for (int j = 0; j < MT; j++) {
#if TL_PACKED
            {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int d = packed::value_column(j, e, g);
                    const float f = packed::value_factor(j, e);
                    r0[d] = fmaf(o[n][j][2 * e], f, common[n][0]);
                    r1[d] = fmaf(o[n][j][2 * e + 1], f, common[n][1]);
                }
            }
#else
            int d0 = TL_FP4     ? 32 * (j >> 1) + 4 * g + 2 * (j & 1)
                     : TL_JOINT ? 32 * (j >> 1) + 4 * g + 2 * (j & 1)
                     : V_CODES  ? 32 * (j >> 1) + 2 * g + (j & 1)
                                : 16 * j + g;
            int d1 = d0 + (TL_JOINT || TL_FP4 ? 1 : V_CODES ? 16 : 8);
            auto value = [&](int i) {
                return V_BIASED ? (o[n][j][i] - o[n][SUM][i & 1]) * 16777216.f : o[n][j][i];
            };
            r0[d0] = value(0);
            r1[d0] = value(1);
            r0[d1] = value(2);
            r1[d1] = value(3);
#endif
        }
    }
    __syncthreads();
    const int nrows = min(ROWS, rows - row0);
    const int64_t part0 = (int64_t)slot * p.max_rows, num_heads = p.num_kv_heads * TL_GROUP;
    if (tid < nrows) {
        int r = tid, row = row0 + r, t = row / TL_GROUP, h = head * TL_GROUP + row % TL_GROUP;
        float mm = NO_MAX, sum = 0.f;
        for (int w = 0; w < WARPS; w++)
            mm = fmaxf(mm, row_m[w][r]);
        float sink = TL_SINKS && slot < 0 ? __ldg(p.sinks + h) * LOG2E : -INFINITY;
        mm = fmaxf(mm, sink); /* the sink only enters the denominator (semantics 2.10) */
        for (int w = 0; w < WARPS; w++) {
            float f = ex2(row_m[w][r] - mm);
            row_f[w][r] = f;
            sum += f * row_l[w][r];
        }
        if (TL_SINKS) sum += ex2(sink - mm);
        float inverse = sum != 0.f ? 1.f / sum : 0.f;
        if constexpr (TL_TOKEN_HEAD) { /* each warp's sums have a unit of their own */
            for (int w = 0; w < WARPS; w++)
                row_f[w][r] *= inverse * so[(w * ROWS + r) * ORS + DVP];
            inverse = 1.f;
        }
        row_inv[r] = inverse;
        if (slot >= 0)
            p.part_lse[part0 + t * num_heads + h] = sum != 0.f ? mm + lg2(sum) : -INFINITY;
        else if (p.lse)
            p.lse[(int64_t)(sv.q0 + t) * p.lse_token + (int64_t)h * p.lse_head] =
                sum != 0.f ? (mm + lg2(sum)) * LN2 : -INFINITY;
    }
    __syncthreads();
    float factor = !K_SCALED && p.v_scale ? __ldg(p.v_scale + head * p.kv_scale_stride) : 1.f;
    factor *= VALUE_UNIT;
    if (TL_OUT == DT_E4M3 && p.out_scale && slot < 0) factor /= __ldg(p.out_scale);
    auto give = [&](int r, int d, float x) {
        const int row = row0 + r, t = row / TL_GROUP, h = head * TL_GROUP + row % TL_GROUP;
        if (slot >= 0)
            p.part_out[(part0 + t * num_heads + h) * TL_DV + d] = x;
        else
            store_float<TL_OUT>(p.out, (int64_t)(sv.q0 + t) * p.out_token + (int64_t)h * p.out_head + d, x);
    };
    for (int i = tid; i < nrows * TL_DV; i += WARPS * 32) {
        int r = i / TL_DV, d = i % TL_DV;
        float x = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            x = fmaf(row_f[w][r], so[(w * ROWS + r) * ORS + d], x);
        x *= row_inv[r] * factor;
        if (TL_V_CHANNELS) x *= channel_scale(p, head, d);
        if (packed::IS_INT4)
            so[r * ORS + d] = x; /* read by this thread alone */
        else
            give(r, d, x);
    }
#if TL_PACKED
    if constexpr (packed::IS_INT4) {
        constexpr int E = TL_DV / 32;
        __syncthreads();
        for (int r = warp; r < nrows; r += WARPS) {
            float x[E];
#pragma unroll
            for (int j = 0; j < E; j++)
                x[j] = so[r * ORS + lane * E + j];
            packed::rotate_back(x, lane);
#pragma unroll
            for (int j = 0; j < E; j++)
                give(r, lane * E + j, x[j]);
        }
    }
#endif
    if (slot < 0) return;
    __threadfence(); /* the partial results before the ticket that says so */
    __syncthreads();
    if (tid == 0) {
        int *ticket = p.tickets + (int64_t)(slot - item.y) * gridDim.x + blockIdx.x;
        is_last = atomicAdd(ticket, 1) == item.z - 1;
        if (is_last) *ticket = 0; /* for the next forward */
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    constexpr int AT_ONCE = ROWS > WARPS ? 2 : 1;
    for (int r = warp; r < nrows; r += AT_ONCE * WARPS) {
        int merged[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int row = row0 + r + i * WARPS;
            merged[i] = r + i * WARPS < nrows
                            ? row / TL_GROUP * (int)num_heads + head * TL_GROUP + row % TL_GROUP
                            : -1;
        }
        merge_rows(p, sv.q0, slot - item.y, item.z, merged, (float *)smem + warp * AT_ONCE * TL_MAX_PIECES);
    }
}

} /* namespace decode */
} /* namespace attn_cuda */
#endif
