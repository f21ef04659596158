/* SPDX-License-Identifier: Apache-2.0 */
/* What the 2D kernels share around their products: blocks of query rows, tiles of keys, scores and softmax
 * (triton_tile_rows.cuh, _keys, _scores), and here the rows of the result. */
#ifndef TRITON_TILE_CUH
#define TRITON_TILE_CUH

#include "triton_redo.cuh"
#include "triton_reduce.cuh"
#include "triton_tile_scores.cuh"

namespace attn_cuda {
namespace prefill {

/* Place of a row in the partial results. */
ATTN_DEV int64_t part_at(const triton_params_t &p, int slot, int token, int head) {
    return (int64_t)slot * p.max_rows + (int64_t)token * p.num_kv_heads * TL_GROUP + head;
}

/* 16 rows of a warp, from `row` of the request on: division, LSE, and through shared memory into whole pieces
 * of rows. */
ATTN_DEV void store_rows(const triton_params_t &p, const block_view &b, uint8_t *out, int row0,
                         const float (&m)[2], const float (&l)[2], const float (&o)[DVP / 2],
                         const float (&down)[2]) {
    const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    float factor = !K_SCALED && p.v_scale ? __ldg(p.v_scale + b.head * p.kv_scale_stride) : 1.f, f[2];
    factor *= VALUE_UNIT;
    int slot = -1;
    if constexpr (CUTS) {
        const tile_piece cut(p, tile_of_cta(p).x);
        if (cut.slot >= 0) slot = cut.slot + cut.piece;
    }
    if (TL_OUT == DT_E4M3 && p.out_scale && slot < 0) factor /= __ldg(p.out_scale);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float sum = l[e], mm = m[e], rescale = 1.f;
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        int row = row0 + g + 8 * e, tok = row / TL_GROUP, h = b.head * TL_GROUP + row % TL_GROUP;
        if (TL_SINKS && row < b.rows && slot < 0) { /* denominator only (semantics 2.10) */
            float sink = __ldg(p.sinks + h) * LOG2E, top = fmaxf(mm, sink);
            rescale = ex2(mm - top);
            sum = sum * rescale + ex2(sink - top);
            mm = top;
        }
        f[e] = (sum != 0.f ? rescale * factor / sum : 0.f) * down[e];
        if (slot >= 0) {
            if (q == 0 && row < b.rows)
                p.part_lse[part_at(p, slot, tok, h)] = sum != 0.f ? mm + lg2(sum) : -INFINITY;
        } else if (p.lse && q == 0 && row < b.rows)
            p.lse[(int64_t)(b.sv.q0 + tok) * p.lse_token + (int64_t)h * p.lse_head] =
                sum != 0.f ? (mm + lg2(sum)) * LN2 : -INFINITY;
    }
    uint8_t *so = out + g * ORS + 2 * q * OB;
#pragma unroll
    for (int j = 0; j < DVP / 8; j++) {
        float x[4] = {o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]};
        if constexpr (TL_V_CHANNELS) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float by = channel_scale(p, b.head, min(8 * j + 2 * q + i, TL_DV - 1));
                x[i] *= by, x[2 + i] *= by;
            }
        }
        if (CUTS && slot >= 0) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int row = row0 + g + 8 * e, column = 8 * j + 2 * q;
                float *to = p.part_out +
                            part_at(p, slot, row / TL_GROUP, b.head * TL_GROUP + row % TL_GROUP) * TL_DV +
                            column;
                if (row >= b.rows) continue;
                if (TL_DV % 2 == 0) {
                    if (column < TL_DV) *(float2 *)to = make_float2(x[2 * e] * f[e], x[2 * e + 1] * f[e]);
                } else {
                    if (column < TL_DV) to[0] = x[2 * e] * f[e];
                    if (column + 1 < TL_DV) to[1] = x[2 * e + 1] * f[e];
                }
            }
        } else if constexpr (TL_OUT == DT_E4M3) {
            *(uint16_t *)(so + j * 8) = (uint16_t)f32x2_to_e4m3x2(x[0] * f[0], x[1] * f[0]);
            *(uint16_t *)(so + 8 * ORS + j * 8) = (uint16_t)f32x2_to_e4m3x2(x[2] * f[1], x[3] * f[1]);
        } else {
            *(uint32_t *)(so + j * 16) =
                pack2 < TL_OUT == DT_F32 ? DT_F16 : TL_OUT > (x[0] * f[0], x[1] * f[0]);
            *(uint32_t *)(so + 8 * ORS + j * 16) =
                pack2 < TL_OUT == DT_F32 ? DT_F16 : TL_OUT > (x[2] * f[1], x[3] * f[1]);
        }
    }
    if (CUTS && slot >= 0) return;
    __syncwarp();
    constexpr int PIECES = TL_DV * OB / TL_OVEC;
#pragma unroll 2
    for (int i = lane; i < 16 * PIECES; i += 32) {
        int r = i / PIECES, c = i % PIECES * TL_OVEC, row = row0 + r;
        if (row < b.rows)
            copy_piece<TL_OVEC>((uint8_t *)p.out +
                                    ((int64_t)(b.sv.q0 + row / TL_GROUP) * p.out_token +
                                     (int64_t)(b.head * TL_GROUP + row % TL_GROUP) * p.out_head) *
                                        OB +
                                    c,
                                out + r * ORS + c);
    }
}

/* After a tile of BM rows is stored, by the threads from FIRST on: of the CTAs that share a block, the last
 * to finish puts the pieces together, its warps row by row. Shared memory: ROOM bytes. A function of its own,
 * because inline it takes registers from the loops over keys. */
template <int FIRST, int BM, int ROOM>
__device__ __noinline__ void merge_pieces(const triton_params_t &p, uint8_t *smem) {
    static_assert(!CUTS || TL_WARPS * TL_MAX_PIECES * 4 <= ROOM, "weights of pieces fit");
    using team = exact::team<TL_WARPS * 32, FIRST, 8, true>;
    if constexpr (!CUTS) return;
    const int2 cta = tile_of_cta(p);
    const tile_piece cut(p, cta.x);
    if (cut.slot < 0) return;
    __threadfence(); /* the partial results before the ticket that says so */
    team::sync();
    bool is_last = false;
    if (team::thread() == 0) {
        int *const ticket = p.tickets + cut.ticket * p.num_kv_heads + cta.y;
        is_last = atomicAdd(ticket, 1) == cut.pieces - 1;
        if (is_last) *ticket = 0; /* for the next forward */
    }
    if (!team::any(is_last)) return;
    __threadfence();
    const int2 tile = *(const int2 *)(p.tiles + cta.x);
    const seq_view sv = view_seq(p, tile.x);
    const int row0 = tile.y * BM, rows = min(BM, sv.q_len * TL_GROUP - row0), warp = team::thread() >> 5;
    for (int r = warp; r < rows; r += TL_WARPS) {
        const int row = row0 + r, merged[1] = {row / TL_GROUP * p.num_kv_heads * TL_GROUP + cta.y * TL_GROUP +
                                               row % TL_GROUP};
        merge_rows(p, sv.q0, cut.slot, cut.pieces, merged, (float *)smem + warp * TL_MAX_PIECES);
    }
}

} /* namespace prefill */
} /* namespace attn_cuda */

#if TL_OUT_GROUP
#include "triton_quantize.cuh"
#endif
#endif
