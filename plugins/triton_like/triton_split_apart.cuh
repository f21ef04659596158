/* SPDX-License-Identifier: Apache-2.0 */
/* The copiers of triton_prefill_split_sm90.cuh where scales of K lie apart: keys of int8 as they are; values
 * of int8 become f16 on their way, in the copiers' registers, which hold the next tile; keys of two tiles are
 * under way. */
#ifndef TRITON_SPLIT_APART_CUH
#define TRITON_SPLIT_APART_CUH

#include "triton_split_ring.cuh"

namespace attn_cuda {
namespace prefill {

constexpr bool WIDENED = VB == 1; /* else values of 16 bits are copied as they are */

/* A thread's 16 bytes of every 16th row of K or V. Groups of 16 tokens lie in one page: `page` is lane i's of
 * the i-th group. */
struct row_reader {
    const uint8_t *from;
    int64_t page_bytes, token_bytes;
    ATTN_DEV const uint8_t *at(int page, int k0, int u) const {
        const uint32_t in = TL_PAGE == 16 ? 0 : (uint32_t)in_page(k0 + 16 * u); /* k0: a multiple of 16 */
        return from + (uint32_t)__shfl_sync(~0u, page, u) * page_bytes + in * token_bytes;
    }
};

/* Where it stands in the code: the assembler moves read-only loads before fences, which then wait for
 * them. */
ATTN_DEV uint4 load_here(const uint8_t *at) {
    uint4 x;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(at)
                 : "memory");
    return x;
}

/* What a copying thread does of each tile. Eight lanes that store values together have two rows of half a
 * line each, whose swizzles do not meet. Codes are read, too, of rows that are not wanted, of page 0 where
 * the request has none: whatever they are, their weights are 0 and their products numbers. Scales and values
 * of 16 bits might not be numbers, and become zeros. */
struct tile_copier {
    const triton_params_t &p;
    const key_walk &walk;
    const key_source keys;
    row_reader k, v, scale;
    uint32_t k_to, v_to;
    float *scales;
    uint4 codes[WIDENED ? BN / 16 : 1];

    ATTN_DEV tile_copier(const triton_params_t &of, const block_view &b, uint32_t base, float *to)
        : p(of), walk(b.walk), keys(of, b), scales(to) {
        const int lane = threadIdx.x & 31, k_row = threadIdx.x >> 3, k_column = threadIdx.x & 7;
        const int v_row = WIDENED ? (threadIdx.x >> 5) * 4 + (lane >> 2 & 3) : threadIdx.x >> 4,
                  v_column = WIDENED ? (lane >> 4) * 8 + (lane & 3) * 2 : threadIdx.x & 15;
        k = {keys.k + k_row * keys.k_token + k_column * 16, p.k_page * EB, keys.k_token};
        v = {keys.v + v_row * keys.v_token + v_column * 8 * VB, p.v_page * VB, keys.v_token};
        scale = {keys.ks + (threadIdx.x & 15) * p.ks_token, p.ks_page, p.ks_token};
        k_to = base + K_AT + swizzled_rows<BN>::at(k_row, k_column);
        v_to = base + V_AT + swizzled_rows<BN>::at(v_row, v_column); /* codes: and its neighbour */
    }
    /* Keys and their scales, and values that stay as they are. */
    ATTN_DEV void ask(int stage, int k0, int page) {
#pragma unroll
        for (int u = 0; u < BN / 16; u++)
            cp_async<16>(k_to + stage * K_BYTES + u * 2048, k.at(page, k0, u));
        const int row = threadIdx.x;
        const uint8_t *const from = scale.at(page, k0, row >> 4);
        if (row < BN) cp_async_zfill<4>(smem_addr(scale_of(stage)), from, walk.wanted(k0 + row));
        if constexpr (!WIDENED) {
            if (k0 >= walk.lo && k0 + BN <= walk.hi)
                ask_values<true>(stage, k0, page);
            else
                ask_values<false>(stage, k0, page);
        }
    }
    ATTN_DEV float *scale_of(int stage) const { /* this thread's */
        return scales + stage * BN + threadIdx.x;
    }
    /* Rows of 256 bytes, eight at a time. */
    template <bool WHOLE>
    ATTN_DEV void ask_values(int stage, int k0, int page) {
#pragma unroll
        for (int u = 0; u < BN / 8; u++)
            cp_async_zfill<16>(v_to + stage * V_BYTES + u * 1024,
                               v.at(page, k0, u / 2) + u % 2 * 8 * v.token_bytes,
                               WHOLE || walk.wanted(k0 + (int)(threadIdx.x >> 4) + 8 * u));
    }
    ATTN_DEV void ask_codes(int k0, int page) {
        if constexpr (WIDENED)
#pragma unroll
            for (int u = 0; u < BN / 16; u++)
                codes[u] = load_here(v.at(page, k0, u));
    }
    static ATTN_DEV uint4 widened(uint32_t a, uint32_t b) {
        return make_uint4(codes_to_f16x2<TL_V, 0>(a), codes_to_f16x2<TL_V, 1>(a), codes_to_f16x2<TL_V, 0>(b),
                          codes_to_f16x2<TL_V, 1>(b));
    }
    ATTN_DEV void put_codes(int stage) {
        if constexpr (WIDENED) {
            const uint32_t to = v_to + stage * V_BYTES;
#pragma unroll
            for (int u = 0; u < BN / 16; u++) {
                const uint4 x = codes[u];
                st_shared_v4(to + u * 2048, widened(x.x, x.y));
                st_shared_v4((to ^ 16) + u * 2048, widened(x.z, x.w));
            }
        }
    }
};

/* Two tiles are under way: a tile's keys are asked for when the one two before it has been handed over, its
 * codes one later. The fence waits for every load of a thread: it comes before the next ones. */
ATTN_DEV void copy_tiles(const triton_params_t &p, const block_view &b, uint32_t base, float *scales,
                         tile_ring ring) {
    const key_walk &walk = b.walk;
    tile_copier copier(p, b, base, scales);
    ring_place asked, given;
    int k0 = walk.begin, page = copier.keys.page(walk, k0), last = k0, last_page = page;
    auto ask = [&]() {
        last = k0, last_page = page;
        if (k0 < walk.hi) {
            k0 = walk.next<BN>(k0), page = copier.keys.page(walk, k0);
            mbar_wait(ring.empty + 8 * asked.stage, asked.phase ^ 1);
            copier.ask(asked.stage, last, last_page);
            asked.next();
        }
        cp_async_commit();
    };
    copier.ask_codes(k0, page);
    ask();
    ask();
#pragma unroll 1
    for (int now = walk.begin; now < walk.hi; now = walk.next<BN>(now)) {
        cp_async_wait<1>();
        if (FOLD_QUERY && threadIdx.x < BN) *copier.scale_of(given.stage) *= KEY_SCALE;
        copier.put_codes(given.stage);
        fence_proxy_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbar_arrive(ring.full + 8 * given.stage);
        given.next();
        copier.ask_codes(last, last_page);
        ask();
    }
}

} /* namespace prefill */
} /* namespace attn_cuda */
#endif
