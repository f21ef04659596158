/* SPDX-License-Identifier: Apache-2.0 */
/* The 2D kernel of every GPU from sm_80 on: one CTA computes a block of query rows of one request against all
 * keys they see. mma.sync m16n8k16 with FlashAttention-2's loop (arXiv 2307.08691): V(j) loads while S = Q
 * K^T runs, K(j+1) while O += P V runs. Macros beyond triton_tile.cuh: TL_MT (m-tiles a warp), TL_CTAS. */
#ifndef TRITON_PREFILL_CUH
#define TRITON_PREFILL_CUH

#include "triton_tile.cuh"

namespace attn_cuda {
namespace prefill {

constexpr int MT = TL_MT, BM = TL_WARPS * 16 * MT;
constexpr int KRS = DP * 2 + 16, VRS = DVP * 2 + 16; /* an odd number of 16-byte units: no bank conflicts */
constexpr int QRS = KRS > ORS ? KRS : ORS;
constexpr int K_AT = BM * QRS, V_AT = K_AT + BN * KRS, SCALES_AT = V_AT + BN * VRS;
constexpr int ROWS_AT = SCALES_AT + TERMS * BN * 4, Q_SCALES_AT = ROWS_AT + BM * 8 + 16;
constexpr int SMEM = Q_SCALES_AT + BM * Q_SCALES;
static_assert(SMEM == TL_PREFILL_SMEM, "triton_config.c knows the same size");

} /* namespace prefill */

extern "C" __global__ void __launch_bounds__(TL_WARPS * 32, TL_CTAS)
    tl_prefill(const __grid_constant__ triton_params_t p) {
    using namespace prefill;
    extern __shared__ __align__(128) uint8_t smem[];
    const uint32_t sq = smem_addr(smem), sk = sq + K_AT, svm = sq + V_AT;
    float *const k_scales = (float *)(smem + SCALES_AT), *const v_scales = k_scales + BN;
    int2 *const seen = (int2 *)(smem + ROWS_AT);
    block_view b;
    if (!view_block<BM, MT * 16>(p, seen, (int *)(smem + ROWS_AT + BM * 8), b)) return;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2;
    const key_walk &walk = b.walk;
    const key_source keys(p, b);
    tile_rule rule(p, b.head);
    float *const q_scales = (float *)(smem + Q_SCALES_AT);
    load_queries<BM, padded_rows<KRS>>(p, sq, b, rule, q_scales);

    if constexpr (UNITS_ASIDE) {
        __syncthreads();
        rule.look(q_scales + warp * MT * 16 + g, MT * 16);
    }
    auto row_of = [&](int t) { return b.row0 + (warp * MT + t) * 16 + g; };
    float m[MT][2], l[MT][2], o[MT][DVP / 2], common[MT][2];
    tile_units units[MT];
#pragma unroll
    for (int t = 0; t < MT; t++) {
        m[t][0] = m[t][1] = FIRST_MAX, l[t][0] = l[t][1] = common[t][0] = common[t][1] = 0.f;
#pragma unroll
        for (int i = 0; i < DVP / 2; i++)
            o[t][i] = 0.f;
    }
    const float *const centroids = make_centroids();
    int64_t k_group, v_group, ks_group = 0, vs_group = 0;
    auto find_groups = [&](int tok0) {
        const int page = keys.page(walk, tok0);
        k_group = keys.group<EB>(page, tok0, p.k_page, p.k_token);
        v_group = keys.group<VB>(page, tok0, p.v_page, p.v_token);
        if (TL_K_APART || TL_FP4) ks_group = keys.group<1>(page, tok0, p.ks_page, p.ks_token);
        if (TL_FP4) vs_group = keys.group<1>(page, tok0, p.vs_page, p.vs_token);
    };
    auto load_keys = [&](int tok0) {
        load_tile<TL_D, DP, padded_rows<KRS>, false>(sk, keys.k, keys.k_token, k_group, tok0, walk, centroids,
                                                     k_scales, {keys.ks, p.ks_token, ks_group});
        if (TL_TOKEN_HEAD) load_terms<false>(k_scales, keys.k, keys.k_token, k_group, tok0, walk);
        if (TL_K_APART) load_terms<false>(k_scales, keys.ks, p.ks_token, ks_group, tok0, walk);
    };
    find_groups(walk.begin);
    if (walk.begin < walk.hi) load_keys(walk.begin);
    cp_async_commit();
    /* ldmatrix: A and V take rows lane & 15, K rows 0-7, 0-7, 8-15, 8-15 */
    const uint32_t q_at = sq + (warp * MT * 16 + (lane & 15)) * KRS + (lane >> 4) * 16;
    const uint32_t k_at = sk + ((lane & 7) + ((lane >> 4) << 3)) * KRS + ((lane >> 3) & 1) * 16;
    const uint32_t v_at = svm + (lane & 15) * VRS + (lane >> 4) * 16;
#pragma unroll 1
    for (int k0 = walk.begin, k1; k0 < walk.hi; k0 = k1) {
        k1 = walk.next<BN>(k0);
        cp_async_wait<0>();
        __syncthreads();
        load_tile<TL_DV, DVP, padded_rows<VRS>, true>(svm, keys.v, keys.v_token, v_group, k0, walk, centroids,
                                                      nullptr, {keys.vs, p.vs_token, vs_group});
        if (TL_TOKEN_HEAD) load_terms<true>(v_scales, keys.v, keys.v_token, v_group, k0, walk);
        cp_async_commit();
        float s[MT][BN / 2];
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int i = 0; i < BN / 2; i++)
                s[t][i] = 0.f;
        /* fragments one step ahead of the products that use them: two warps a scheduler do not hide
         * ldmatrix */
        uint32_t a[2][MT][4], kb[2][4];
        auto load_a = [&](int st) {
#pragma unroll
            for (int t = 0; t < MT; t++)
                ldmatrix_x4(a[st & 1][t], q_at + t * 16 * KRS + st * 32);
        };
        load_a(0);
        ldmatrix_x4(kb[0], k_at);
#pragma unroll
        for (int st = 0; st < DP / 16; st++) {
#pragma unroll
            for (int j = 0; j < BN / 16; j++) {
                constexpr int J = BN / 16;
                const int n = st * J + j;
                if (n + 1 < DP / 16 * J)
                    ldmatrix_x4(kb[(n + 1) & 1], k_at + (n + 1) % J * 16 * KRS + (n + 1) / J * 32);
                if (j == 0 && st + 1 < DP / 16) load_a(st + 1);
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    mma<MMA>(s[t] + 8 * j, a[st & 1][t], kb[n & 1][0], kb[n & 1][1]);
                    mma<MMA>(s[t] + 8 * j + 4, a[st & 1][t], kb[n & 1][2], kb[n & 1][3]);
                }
            }
        }
        find_groups(k1);
#pragma unroll
        for (int t = 0; t < MT; t++) {
            float f[2];
            if (softmax_tile(p, b, rule, row_terms(p, b, row_of(t)), s[t], k0, row_of(t),
                             seen + row_of(t) - b.row0, q_scales + row_of(t) - b.row0, k_scales, m[t], l[t],
                             f)) {
                rescale(o[t], f);
                rescale2(common[t], f);
            }
        }
        cp_async_wait<0>();
        __syncthreads();
        if (k1 < walk.hi) load_keys(k1);
        cp_async_commit();
#pragma unroll
        for (int t = 0; t < MT; t++) {
#if TL_PACKED
            add_common(common[t], s[t], v_scales);
#endif
            if constexpr (TL_TOKEN_HEAD) units[t].raise(s[t], v_scales, o[t]);
        }
        uint32_t vb[2][4];
        ldmatrix_x4_trans(vb[0], v_at);
#pragma unroll
        for (int j = 0; j < BN / 16; j++) {
            uint32_t pa[MT][4];
#pragma unroll
            for (int t = 0; t < MT; t++)
                pack_keys(pa[t], s[t], j, v_scales, units[t].unit);
#pragma unroll
            for (int d = 0; d < DVP / 16; d++) {
                constexpr int W = DVP / 16;
                const int n = j * W + d;
                if (n + 1 < BN / 16 * W)
                    ldmatrix_x4_trans(vb[(n + 1) & 1], v_at + (n + 1) / W * 16 * VRS + (n + 1) % W * 32);
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    mma<V_MMA>(o[t] + 8 * d, pa[t], vb[n & 1][0], vb[n & 1][1]);
                    mma<V_MMA>(o[t] + 8 * d + 4, pa[t], vb[n & 1][2], vb[n & 1][3]);
                }
            }
        }
    }
    cp_async_wait<0>();
    int rows[MT];
    bool is_any = false;
#pragma unroll
    for (int t = 0; t < MT; t++) {
        rows[t] = rows_to_redo(b, seen + row_of(t) - b.row0, m[t], l[t], o[t]);
        is_any = is_any || rows[t] != 0;
    }
    /* Q's memory takes O; the first copies may still be in flight when no key was visible */
    is_any = __syncthreads_or(is_any);
#pragma unroll
    for (int t = 0; t < MT; t++) {
        float down[2] = {units[t].down(0), units[t].down(1)};
#if TL_PACKED
        finish_values(o[t], common[t], down);
#endif
        store_rows(p, b, smem + (warp * MT + t) * 16 * ORS, b.row0 + (warp * MT + t) * 16, m[t], l[t], o[t],
                   down);
    }
    if constexpr (REDOES)
        if (is_any) redo_rows<0, BM, ROWS_AT>(p, smem, rows);
    merge_pieces<0, BM, ROWS_AT>(p, smem);
}

} /* namespace attn_cuda */
#endif
