/* SPDX-License-Identifier: Apache-2.0 */
/* The 2D kernel of Hopper: a block of 64 query rows a warpgroup. S of the next tile is issued before O += P V
 * of this one, so that the softmax runs under a product (FlashAttention-3's order, arXiv 2407.08608). All
 * threads copy: cp.async serves any page, stride and head size, and what is converted on the way. Two stages
 * of K and of V, one barrier a tile: what it waits for was asked for a tile ago. Macros beyond
 * triton_products_sm90.cuh: TL_CTAS, TL_EARLY (copies between the products). */
#ifndef TRITON_PREFILL_SM90_CUH
#define TRITON_PREFILL_SM90_CUH

#include "triton_products_sm90.cuh"

namespace attn_cuda {

extern "C" __global__ void __launch_bounds__(TL_WARPS * 32, TL_CTAS)
    tl_prefill(const __grid_constant__ triton_params_t p) {
    using namespace prefill;
    extern __shared__ __align__(1024) uint8_t unaligned[];
    uint8_t *const smem = unaligned + (1024 - (smem_addr(unaligned) & 1023)) % 1024;
    const uint32_t base = smem_addr(smem);
    float *const scales = (float *)(smem + SCALES_AT); /* [stage][TERMS][BN] */
    float *const q_scales = (float *)(smem + Q_SCALES_AT);
    int2 *const seen = (int2 *)(smem + ROWS_AT);
    block_view b;
    if (!view_block<BM, 16>(p, seen, (int *)(smem + ROWS_AT + BM * 8), b)) return;
    const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0),
              local = warp * 16 + (lane >> 2);
    const key_walk &walk = b.walk;
    const key_source keys(p, b);
    tile_rule rule(p, b.head);
    const row_terms terms(p, b, b.row0 + local);
    float m[2] = {FIRST_MAX, FIRST_MAX}, l[2] = {0.f, 0.f}, o[DVP / 2], f[2], common[2] = {0.f, 0.f};
    const float *const centroids = make_centroids();
    tile_units units;
#pragma unroll
    for (int i = 0; i < DVP / 2; i++)
        o[i] = 0.f;

    auto apart = [&](const uint8_t *base, int page, int tok0, int64_t page_stride, int64_t token) {
        return scale_rows{base, token, TL_FP4 ? keys.group<1>(page, tok0, page_stride, token) : 0};
    };
    auto load_keys = [&](int tok0, int page, int stage) {
        const int64_t group = keys.group<EB>(page, tok0, p.k_page, p.k_token);
        float *const to = scales + stage * TERMS * BN;
        load_tile<TL_D, KP, swizzled_rows<BN>, false>(base + K_AT + stage * K_BYTES, keys.k, keys.k_token,
                                                      group, tok0, walk, centroids, to,
                                                      apart(keys.ks, page, tok0, p.ks_page, p.ks_token));
        if (TL_TOKEN_HEAD) {
            load_terms<false>(to, keys.k, keys.k_token, group, tok0, walk);
            load_terms<true>(to + BN, keys.v, keys.v_token, keys.group<VB>(page, tok0, p.v_page, p.v_token),
                             tok0, walk);
        }
        if (TL_K_APART)
            load_terms<false>(to, keys.ks, p.ks_token, keys.group<1>(page, tok0, p.ks_page, p.ks_token), tok0,
                              walk);
    };
    auto load_values = [&](int tok0, int page, int stage) {
        load_tile<TL_DV, DVP, swizzled_rows<BN>, true>(base + V_AT + stage * V_BYTES, keys.v, keys.v_token,
                                                       keys.group<VB>(page, tok0, p.v_page, p.v_token), tok0,
                                                       walk, centroids, nullptr,
                                                       apart(keys.vs, page, tok0, p.vs_page, p.vs_token));
    };
    /* a register less in loops that have none to spare */
    constexpr bool ASIDE_KEPT = UNITS_ASIDE && (TL_TOKEN_HEAD || TL_FP4);
    volatile uint8_t *const aside = smem + ROWS_AT + BM * 8 + warp;
    auto softmax = [&](float(&s)[BN / 2], int k0, int stage) {
        if (ASIDE_KEPT) rule.is_aside = *aside;
        return softmax_tile(p, b, rule, terms, s, k0, b.row0 + local, seen + local, q_scales + local,
                            scales + stage * TERMS * BN, m, l, f);
    };
    auto pack = [&](uint32_t(&pr)[BN / 4], float(&s)[BN / 2], int stage) {
        const float *const v_scales = scales + stage * TERMS * BN + BN;
#if TL_PACKED
        add_common(common, s, v_scales);
#endif
        if constexpr (TL_TOKEN_HEAD) units.raise(s, v_scales, o);
#pragma unroll
        for (int j = 0; j < BN / 16; j++)
            pack_keys(pr + 4 * j, s, j, v_scales, units.unit);
    };
    auto arrived = [&]() { /* copies are ordinary writes; the products read through the other proxy */
                           cp_async_wait<0>();
                           fence_proxy_async();
                           __syncthreads();
    };
    const uint64_t q_at = wgmma_desc(base + (warp >> 2) * 8192, 16, 1024),
                   k_at = wgmma_desc(base + K_AT, 16, 1024);
    const uint64_t v_at = wgmma_desc(base + V_AT, BN * 128, 1024);

    if (walk.begin < walk.hi) {
        int k0 = walk.begin, k1 = walk.next<BN>(k0), page0 = keys.page(walk, k0), page1 = keys.page(walk, k1),
            stage = 0;
        uint32_t pr[BN / 4];
        load_queries<BM, swizzled_rows<BM>>(p, base, b, rule, q_scales);
        load_keys(k0, page0, 0);
        cp_async_commit();
        arrived();
        if constexpr (UNITS_ASIDE) {
            rule.look(q_scales + local, 16);
            if (ASIDE_KEPT) *aside = rule.is_aside;
            __syncwarp();
        }
        {
            score c[BN / 2];
            start_scores(c, q_at, k_at);
            load_values(k0, page0, 0);
            if (k1 < walk.hi) load_keys(k1, page1, 1);
            cp_async_commit();
            page0 = page1, page1 = keys.page(walk, walk.next<BN>(k1));
            wgmma_wait<0>();
            float s[BN / 2];
            take_scores(s, c);
            softmax(s, k0, 0);
            pack(pr, s, 0);
        }
#pragma unroll 1
        for (; k1 < walk.hi; stage ^= 1) {
            const int k2 = walk.next<BN>(k1);
            arrived();
            score c[BN / 2];
            start_scores(c, q_at, k_at + ((stage ^ 1) * K_BYTES >> 4));
            auto load_next = [&]() {
                load_values(k1, page0, stage ^ 1);
                if (k2 < walk.hi) load_keys(k2, page1, stage);
                cp_async_commit();
            };
            /* issuing a product waits for the one before: copies would start late behind two of them */
            if (TL_EARLY) load_next();
            wgmma_pin(o);
            start_output(o, pr, v_at + (stage * V_BYTES >> 4));
            if (!TL_EARLY) load_next();
            page0 = page1, page1 = keys.page(walk, walk.next<BN>(k2));
            wgmma_wait<1>();
            float s[BN / 2];
            take_scores(s, c);
            const bool grow = softmax(s, k1, stage ^ 1);
            wgmma_wait<0>();
            wgmma_pin(o);
            if (grow) rescale(o, f), rescale2(common, f);
            pack(pr, s, stage ^ 1);
            k1 = k2;
        }
        arrived();
        wgmma_pin(o);
        start_output(o, pr, v_at + (stage * V_BYTES >> 4));
        wgmma_wait<0>();
        wgmma_pin(o);
    }
    const int rows[1] = {rows_to_redo(b, seen + local, m, l, o)};
    const bool is_any = __syncthreads_or(rows[0]); /* the memory of Q and K takes O */
    float down[2] = {units.down(0), units.down(1)};
#if TL_PACKED
    finish_values(o, common, down);
#endif
    store_rows(p, b, smem + warp * 16 * ORS, b.row0 + warp * 16, m, l, o, down);
    if constexpr (REDOES)
        if (is_any) redo_rows<0, BM, ROWS_AT>(p, smem, rows);
    merge_pieces<0, BM, ROWS_AT>(p, smem);
}

} /* namespace attn_cuda */
#endif
