/* SPDX-License-Identifier: Apache-2.0 */
/* The 2D kernel of Hopper in two parts, for caches whose scales of K lie apart (head size 128): a warpgroup
 * that only copies, and three that multiply a block of 64 query rows each, in the order of
 * triton_prefill_sm90.cuh. S is a product of int8 codes. P times V is one of 16 bits, because a P of 8 bits
 * would lose the sum of many small weights: int8 values become f16 on their way, in the copiers' registers,
 * which hold the next tile while this one is converted. Macros beyond triton_products_sm90.cuh: TL_COPIERS,
 * 4. */
#ifndef TRITON_PREFILL_SPLIT_SM90_CUH
#define TRITON_PREFILL_SPLIT_SM90_CUH

#include "triton_products_sm90.cuh"

namespace attn_cuda {
namespace prefill {

constexpr int CONSUMERS = TL_WARPS * 32;
constexpr bool WIDENED = VB == 1; /* values become f16 here, others are copied as they are */
constexpr int COPIER_REGS = 56, CONSUMER_REGS = 152; /* of 65536 */
static_assert(THREADS == 128 && TL_WARPS == 12 && TL_DV == 128, "a copier has 16 columns of every 16th row");

/* Of K or of V: a barrier a stage that says it is full, and one that says it has been read. */
struct tile_ring {
    uint32_t full, empty;
};
struct ring_place {
    int stage = 0, phase = 0;
    ATTN_DEV void next() {
        if (++stage == TL_RING) stage = 0, phase ^= 1;
    }
};

/* The values of a tile as codes, a thread's of every 16th row; lane i knows where the i-th group of 16 tokens
 * lies. Eight lanes that store together have two rows of half a line each, whose swizzles do not meet. Rows
 * that are not wanted are read, too, of page 0 where the request has none, and become zeros: a load under a
 * condition would be waited for at once. */
struct value_codes {
    uint4 x[BN / 16];
    const uint8_t *from;
    int64_t token;
    uint32_t to[2];
    int row;
    ATTN_DEV value_codes(const key_source &keys, uint32_t values) : token(keys.v_token) {
        const int lane = threadIdx.x & 31, column = (lane >> 4) * 8 + (lane & 3) * 2;
        row = (threadIdx.x >> 5) * 4 + (lane >> 2 & 3);
        from = keys.v + row * token + column * 8;
        to[0] = values + swizzled_rows<BN>::at(row, column),
        to[1] = values + swizzled_rows<BN>::at(row, column + 1);
    }
    ATTN_DEV void ask(int64_t group) {
#pragma unroll
        for (int u = 0; u < BN / 16; u++)
            x[u] = __ldg((const uint4 *)(from + shuffle64(group, u)));
    }
    static ATTN_DEV uint4 widened(uint32_t a, uint32_t b) {
        return make_uint4(codes_to_f16x2<TL_V, 0>(a), codes_to_f16x2<TL_V, 1>(a), codes_to_f16x2<TL_V, 0>(b),
                          codes_to_f16x2<TL_V, 1>(b));
    }
    ATTN_DEV void put(int stage, const key_walk &walk, int k0) {
        if (k0 < walk.lo || k0 + BN > walk.hi)
#pragma unroll
            for (int u = 0; u < BN / 16; u++)
                if (!walk.wanted(k0 + row + 16 * u)) x[u] = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int u = 0; u < BN / 16; u++) {
            st_shared_v4(to[0] + stage * V_BYTES + u * 16 * 128, widened(x[u].x, x[u].y));
            st_shared_v4(to[1] + stage * V_BYTES + u * 16 * 128, widened(x[u].z, x[u].w));
        }
    }
};

/* Keys of a tile come with the values of the one before, which is the order in which they are multiplied. The
 * fence waits for every load of a thread: codes are asked for behind it. */
ATTN_DEV void copy_tiles(const triton_params_t &p, const block_view &b, uint32_t base, float *scales,
                         tile_ring k, tile_ring v) {
    const key_source keys(p, b);
    const key_walk &walk = b.walk;
    value_codes codes(keys, base + V_AT);
    ring_place at_k, at_v;
    int k0 = walk.begin, page = keys.page(walk, k0), v0 = 0, v_page = 0;
#pragma unroll 1
    for (bool first = true, more = true; more; first = false) {
        more = k0 < walk.hi;
        if (more) {
            mbar_wait(k.empty + 8 * at_k.stage, at_k.phase ^ 1);
            load_tile<TL_D, KP, swizzled_rows<BN>, false>(
                base + K_AT + at_k.stage * K_BYTES, keys.k, keys.k_token,
                keys.group<EB>(page, k0, p.k_page, p.k_token), k0, walk, nullptr, nullptr, scale_rows{});
            if (TL_K_APART)
                load_terms<false>(scales + at_k.stage * TERMS * BN, keys.ks, p.ks_token,
                                  keys.group<1>(page, k0, p.ks_page, p.ks_token), k0, walk);
        }
        if (!first) {
            mbar_wait(v.empty + 8 * at_v.stage, at_v.phase ^ 1);
            if constexpr (WIDENED)
                codes.put(at_v.stage, walk, v0);
            else
                load_tile<TL_DV, DVP, swizzled_rows<BN>, true>(
                    base + V_AT + at_v.stage * V_BYTES, keys.v, keys.v_token,
                    keys.group<VB>(v_page, v0, p.v_page, p.v_token), v0, walk, nullptr, nullptr,
                    scale_rows{});
        }
        const int next = walk.next<BN>(k0), next_page = keys.page(walk, next);
        cp_async_wait_all();
        if (FOLD_QUERY && more && threadIdx.x < BN)
            scales[at_k.stage * BN + threadIdx.x] *= KEY_SCALE; /* this thread's copy */
        fence_proxy_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            if (more) mbar_arrive(k.full + 8 * at_k.stage);
            if (!first) mbar_arrive(v.full + 8 * at_v.stage);
        }
        if (!first) at_v.next();
        at_k.next();
        if (WIDENED && more) codes.ask(keys.group<VB>(page, k0, p.v_page, p.v_token));
        v0 = k0, v_page = page, k0 = next, page = next_page;
    }
}

} /* namespace prefill */

extern "C" __global__ void __launch_bounds__((TL_COPIERS + TL_WARPS) * 32, 1)
    tl_prefill(const __grid_constant__ triton_params_t p) {
    using namespace prefill;
    extern __shared__ __align__(1024) uint8_t unaligned[];
    __shared__ __align__(8) uint64_t barriers[4 * TL_RING];
    uint8_t *const smem = unaligned + (1024 - (smem_addr(unaligned) & 1023)) % 1024;
    const uint32_t base = smem_addr(smem), bars = smem_addr(barriers);
    const tile_ring k_ring = {bars, bars + 8 * TL_RING}, v_ring = {bars + 16 * TL_RING, bars + 24 * TL_RING};
    float *const scales = (float *)(smem + SCALES_AT); /* [stage][TERMS][BN] */
    float *const q_scales = (float *)(smem + Q_SCALES_AT);
    int2 *const seen = (int2 *)(smem + ROWS_AT);
    block_view b;
    if (!view_block<BM, 16>(p, seen, (int *)(smem + ROWS_AT + BM * 8), b)) return;
    const key_walk &walk = b.walk;
    if (threadIdx.x == 0) {
        for (int i = 0; i < TL_RING; i++) {
            mbar_init(k_ring.full + 8 * i, TL_COPIERS), mbar_init(k_ring.empty + 8 * i, TL_WARPS);
            mbar_init(v_ring.full + 8 * i, TL_COPIERS), mbar_init(v_ring.empty + 8 * i, TL_WARPS);
        }
        mbar_init_fence();
    }
    __syncthreads();
    const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0) - TL_COPIERS;
    if (warp < 0) {
        setmaxnreg_dec<COPIER_REGS>();
        if (walk.begin < walk.hi) copy_tiles(p, b, base, scales, k_ring, v_ring);
        return;
    }
    setmaxnreg_inc<CONSUMER_REGS>();
    const int local = warp * 16 + (lane >> 2);
    const score_rule rule(p, b.head);
    const row_terms terms(p, b, b.row0 + local);
    float m[2] = {FIRST_MAX, FIRST_MAX}, l[2] = {0.f, 0.f}, o[DVP / 2], f[2];
#pragma unroll
    for (int i = 0; i < DVP / 2; i++)
        o[i] = 0.f;
    auto softmax = [&](float(&s)[BN / 2], int k0, int stage) {
        return softmax_tile(p, b, rule, terms, s, k0, b.row0 + local, seen + local, q_scales + local,
                            scales + stage * TERMS * BN, m, l, f);
    };
    auto pack = [&](uint32_t(&pr)[BN / 4], const float(&s)[BN / 2]) {
#pragma unroll
        for (int j = 0; j < BN / 16; j++)
            pack_keys(pr + 4 * j, s, j, nullptr, 1.f);
    };
    auto wait = [&](const tile_ring &ring, const ring_place &at) {
        mbar_wait(ring.full + 8 * at.stage, at.phase);
    };
    auto release = [&](const tile_ring &ring, const ring_place &at) {
        __syncwarp();
        if (lane == 0) mbar_arrive(ring.empty + 8 * at.stage);
    };
    const uint64_t q_at = wgmma_desc(base + (warp >> 2) * 8192, 16, 1024),
                   k_at = wgmma_desc(base + K_AT, 16, 1024), v_at = wgmma_desc(base + V_AT, BN * 128, 1024);
    load_queries<BM, swizzled_rows<BM>, THREADS, CONSUMERS>(p, base, b, q_scales);
    cp_async_wait<0>();
    fence_proxy_async();
    named_barrier(1, CONSUMERS);

    if (walk.begin < walk.hi) {
        int k0 = walk.begin;
        ring_place at_k, at_v;
        uint32_t pr[BN / 4];
        {
            score c[BN / 2];
            wait(k_ring, at_k);
            start_scores(c, q_at, k_at);
            wgmma_wait<0>();
            float s[BN / 2];
            take_scores(s, c);
            softmax(s, k0, 0);
            release(k_ring, at_k);
            pack(pr, s);
        }
#pragma unroll 1
        for (k0 = walk.next<BN>(k0); k0 < walk.hi; k0 = walk.next<BN>(k0)) {
            at_k.next();
            wait(k_ring, at_k);
            wait(v_ring, at_v);
            score c[BN / 2];
            start_scores(c, q_at, k_at + (at_k.stage * K_BYTES >> 4));
            wgmma_pin(o);
            start_output(o, pr, v_at + (at_v.stage * V_BYTES >> 4));
            wgmma_wait<1>();
            float s[BN / 2];
            take_scores(s, c);
            /* the registers of P are free when the product has ended */
            softmax_tile(p, b, rule, terms, s, k0, b.row0 + local, seen + local, q_scales + local,
                         scales + at_k.stage * TERMS * BN, m, l, f, [&](const float(&by)[2]) {
                             release(k_ring, at_k);
                             wgmma_wait<0>();
                             wgmma_pin(o);
                             release(v_ring, at_v);
                             if (softmax_trusted(by, s, m, l, pr)) return false;
                             const bool grow = softmax_step<false>(rule, by, s, m, l, f);
                             if (grow) rescale(o, f);
                             pack(pr, s);
                             return grow;
                         });
            at_v.next();
        }
        wait(v_ring, at_v);
        wgmma_pin(o);
        start_output(o, pr, v_at + (at_v.stage * V_BYTES >> 4));
        wgmma_wait<0>();
        wgmma_pin(o);
    }
    named_barrier(1, CONSUMERS); /* the memory of Q and K takes O */
    store_rows(p, b, smem + warp * 16 * ORS, b.row0 + warp * 16, m, l, o);
}

} /* namespace attn_cuda */
#endif
