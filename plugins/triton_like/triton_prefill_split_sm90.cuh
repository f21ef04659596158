/* SPDX-License-Identifier: Apache-2.0 */
/* The 2D kernel of Hopper in two parts, for caches of fewer than 16 bits: a warpgroup that only copies, and
 * three (head size 256: two) that multiply a block of 64 query rows each, in the order of
 * triton_prefill_sm90.cuh. Where scales of K lie apart, S is a product of int8 codes; all else becomes f16 on
 * its way. P times V is one of 16 bits, because a P of 8 bits would lose the sum of many small weights.
 * Macros beyond triton_products_sm90.cuh: TL_COPIERS, 4. */
#ifndef TRITON_PREFILL_SPLIT_SM90_CUH
#define TRITON_PREFILL_SPLIT_SM90_CUH

#if TL_K_APART
#include "triton_split_apart.cuh"
#else
#include "triton_split_raw.cuh"
#endif

namespace attn_cuda {

extern "C" __global__ void __launch_bounds__((TL_COPIERS + TL_WARPS) * 32, 1)
    tl_prefill(const __grid_constant__ triton_params_t p) {
    using namespace prefill;
    extern __shared__ __align__(1024) uint8_t unaligned[];
    __shared__ __align__(8) uint64_t barriers[2 * TL_RING];
    uint8_t *const smem = unaligned + (1024 - (smem_addr(unaligned) & 1023)) % 1024;
    const uint32_t base = smem_addr(smem), bars = smem_addr(barriers);
    const tile_ring ring = {bars, bars + 8 * TL_RING};
    float *const scales = (float *)(smem + SCALES_AT); /* [stage][TERMS][BN] */
    float *const q_scales = (float *)(smem + Q_SCALES_AT);
    int2 *const seen = (int2 *)(smem + ROWS_AT);
    block_view b;
    if (!view_block<BM, 16>(p, seen, (int *)(smem + ROWS_AT + BM * 8), b)) return;
    const key_walk &walk = b.walk;
    if (threadIdx.x == 0) {
        for (int i = 0; i < TL_RING; i++)
            mbar_init(ring.full + 8 * i, TL_COPIERS), mbar_init(ring.empty + 8 * i, TL_WARPS);
        mbar_init_fence();
    }
    __syncthreads();
    const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0) - TL_COPIERS;
    if (warp < 0) {
        setmaxnreg_dec<COPIER_REGS>();
        if (walk.begin < walk.hi) copy_tiles(p, b, base, scales, ring);
        return;
    }
    setmaxnreg_inc<CONSUMER_REGS>();
    const int local = warp * 16 + (lane >> 2);
    tile_rule rule(p, b.head);
    const row_terms terms(p, b, b.row0 + local);
    float m[2] = {FIRST_MAX, FIRST_MAX}, l[2] = {0.f, 0.f}, o[DVP / 2], f[2], common[2] = {0.f, 0.f};
    tile_units units;
#pragma unroll
    for (int i = 0; i < DVP / 2; i++)
        o[i] = 0.f;
    auto softmax = [&](float(&s)[BN / 2], int k0, int stage) {
        return softmax_tile(p, b, rule, terms, s, k0, b.row0 + local, seen + local, q_scales + local,
                            scales + stage * TERMS * BN, m, l, f);
    };
    auto values_of = [&](int stage) { return scales + stage * TERMS * BN + BN; }; /* their terms */
    auto pack = [&](uint32_t(&pr)[BN / 4], float(&s)[BN / 2], int stage) {
#if TL_PACKED
        add_common(common, s, values_of(stage));
#endif
        if constexpr (TL_TOKEN_HEAD) units.raise(s, values_of(stage), o);
#pragma unroll
        for (int j = 0; j < BN / 16; j++)
            pack_keys(pr + 4 * j, s, j, values_of(stage), units.unit);
    };
    auto release = [&](int stage) {
        __syncwarp();
        if (lane == 0) mbar_arrive(ring.empty + 8 * stage);
    };
    const uint64_t q_at = wgmma_desc(base + (warp >> 2) * 8192, 16, 1024),
                   k_at = wgmma_desc(base + K_AT, 16, 1024), v_at = wgmma_desc(base + V_AT, BN * 128, 1024);
    load_queries<BM, swizzled_rows<BM>, THREADS, CONSUMERS>(p, base, b, rule, q_scales);
    cp_async_wait_all(); /* queries, which are no group */
    fence_proxy_async();
    named_barrier(1, CONSUMERS);

    if constexpr (UNITS_ASIDE) rule.look(q_scales + local, 16);
    float by[2];
    row_factors(rule, q_scales + local, by);
    if (walk.begin < walk.hi) {
        int k0 = walk.begin;
        ring_place at;
        uint32_t pr[BN / 4];
        {
            score c[BN / 2];
            mbar_wait(ring.full, 0);
            start_scores(c, q_at, k_at);
            wgmma_wait<0>();
            float s[BN / 2];
            take_scores(s, c);
            softmax(s, k0, 0);
            pack(pr, s, 0);
        }
#pragma unroll 1
        for (k0 = walk.next<BN>(k0); k0 < walk.hi; k0 = walk.next<BN>(k0)) {
            const int last = at.stage; /* P is of its values */
            at.next();
            mbar_wait(ring.full + 8 * at.stage, at.phase);
            score c[BN / 2];
            start_scores(c, q_at, k_at + (at.stage * K_BYTES >> 4));
            wgmma_pin(o);
            start_output(o, pr, v_at + (last * V_BYTES >> 4));
            wgmma_wait<1>();
            float s[BN / 2];
            take_scores(s, c);
            if constexpr (TL_PACKED)
                row_factors(rule, q_scales + local, by); /* no registers are left for them */
            /* the registers of P are free when the product has ended */
            softmax_tile(p, b, rule, terms, s, k0, b.row0 + local, seen + local, by, q_scales + local,
                         scales + at.stage * TERMS * BN, m, l, f, [&]() {
                             wgmma_wait<0>();
                             wgmma_pin(o);
                             release(last);
                             if (TRUSTED && softmax_trusted(by, s, m, l, pr)) return false;
                             const bool grow = softmax_step<false>(rule, by, s, m, l, f);
                             if (grow) rescale(o, f), rescale2(common, f);
                             pack(pr, s, at.stage);
                             return grow;
                         });
        }
        wgmma_pin(o);
        start_output(o, pr, v_at + (at.stage * V_BYTES >> 4));
        wgmma_wait<0>();
        wgmma_pin(o);
    }
    const int rows[1] = {rows_to_redo(b, seen + local, m, l, o)};
    /* the memory of Q and K takes O */
    const bool is_any = exact::team<CONSUMERS, THREADS, 8, true>::any(rows[0]);
#if TL_PACKED || TL_FP4
    order_values(o);
#endif
    float down[2] = {units.down(0), units.down(1)};
#if TL_PACKED
    finish_values(o, common, down);
#endif
    store_rows(p, b, smem + warp * 16 * ORS, b.row0 + warp * 16, m, l, o, down);
    if constexpr (REDOES)
        if (is_any) redo_rows<THREADS, BM, ROWS_AT>(p, smem, rows);
    merge_pieces<THREADS, BM, ROWS_AT>(p, smem);
}

} /* namespace attn_cuda */
#endif
