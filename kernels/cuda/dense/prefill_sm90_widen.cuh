/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper prefill over an e4m3 cache under 16-bit queries: the warps that turn bytes into f16, exactly, in the
 * layout that TMA gives 16-bit keys. */
#ifndef PREFILL_SM90_WIDEN_CUH
#define PREFILL_SM90_WIDEN_CUH

#include "prefill_sm90_producer.cuh"

namespace attn_cuda {

/* Bytes to f16: 16 of them a lane, four rows a warp at a time. `lo` and `hi`: rows outside become zeros. */
template <class T>
ATTN_DEV void widen_tile(uint32_t raw, uint32_t out, int lo, int hi, int warp, int lane) {
    const int unit = lane & 7, second = unit >> 2; /* the two 64-column chunks */
#pragma unroll 4
    for (int r = 4 * warp + (lane >> 3); r < T::BN; r += 4 * T::WIDENERS) {
        uint4 x = ld_shared_v4(raw + r * 128 + ((unit ^ (r & 7)) << 4));
        if (r < lo || r >= hi) x = make_uint4(0, 0, 0, 0);
        const uint4 a = make_uint4(e4m3x2_to_f16x2<0>(x.x), e4m3x2_to_f16x2<1>(x.x), e4m3x2_to_f16x2<0>(x.y),
                                   e4m3x2_to_f16x2<1>(x.y));
        const uint4 b = make_uint4(e4m3x2_to_f16x2<0>(x.z), e4m3x2_to_f16x2<1>(x.z), e4m3x2_to_f16x2<0>(x.w),
                                   e4m3x2_to_f16x2<1>(x.w));
        /* even units from one chunk and odd ones from the other at a time: no bank twice */
        const uint32_t row = out + second * (T::BN * 128) + r * 128;
        const int u = 2 * (unit & 3), f = r & 7;
        st_shared_v4(row + (((u + second) ^ f) << 4), second ? b : a);
        st_shared_v4(row + (((u + 1 - second) ^ f) << 4), second ? a : b);
    }
}

/* Q of one tile from bf16 to f16 in place; as everywhere with an e4m3 cache it ends at 65504. */
template <class T>
ATTN_DEV void narrow_q(uint32_t q, int warp, int lane) {
#pragma unroll 2
    for (int i = warp * 32 + lane; i < T::QB / 16; i += 32 * T::WIDENERS) {
        uint4 x = ld_shared_v4(q + i * 16);
        uint32_t *w = &x.x;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            w[k] = pack2_limited(unpack2<DT_BF16>(w[k]));
        }
        st_shared_v4(q + i * 16, x);
    }
}

/* The warps beside the producer: bytes of `kraw` and `vraw` become tiles of `k` and `v`; Q is converted in
 * place, and `qready` tells. */
template <class T>
ATTN_DEV void widen_tiles(const flash_params &p, const tile_info *infos, tile_ring q, uint32_t qready,
                          tile_ring k, tile_ring v, tile_ring kraw, tile_ring vraw, int warp, int lane) {
    auto arrive = [&](uint32_t bar) { /* what this warp wrote is there for wgmma */
                                      fence_proxy_async();
                                      __syncwarp();
                                      if (lane == 0) mbar_arrive(bar);
    };
    int it = 0;
#pragma unroll 1
    for (int wk = 0;; wk++) {
        const int qs = wk % T::NQ;
        mbar_wait(q.full + 8 * qs, (wk / T::NQ) & 1);
        const tile_info &ti = infos[qs];
        const int last = ti.last, count = ti.count, lo = ti.skipped, hi = ti.kv_len;
        const bool more = ti.block >= 0;
        if (more && p.q_dtype == DT_BF16) narrow_q<T>(q.data + qs * T::QB, warp, lane);
        arrive(qready + 8 * qs);
        if (!more) return;
        if (lane == 0)
            mbar_arrive(q.empty + 8 * qs); /* read; the consumers keep the buffer as long as they need */
#pragma unroll 1
        for (int j = last; j > last - count; j--, it++) {
            const int s = it % T::ST, ph = (it / T::ST) & 1, r = it % T::LOADED_STAGES,
                      rp = (it / T::LOADED_STAGES) & 1;
            mbar_wait(kraw.full + 8 * r, rp);
            mbar_wait(k.empty + 8 * s, ph ^ 1);
            widen_tile<T>(kraw.data + r * T::LOADED_KEY_BYTES, k.data + s * T::KB, 0, T::BN, warp, lane);
            arrive(k.full + 8 * s);
            if (lane == 0) mbar_arrive(kraw.empty + 8 * r);
            mbar_wait(vraw.full + 8 * r, rp);
            mbar_wait(v.empty + 8 * s, ph ^ 1);
            widen_tile<T>(vraw.data + r * T::LOADED_VALUE_BYTES, v.data + s * T::VB, lo - j * T::BN,
                          hi - j * T::BN, warp, lane);
            arrive(v.full + 8 * s);
            if (lane == 0) mbar_arrive(vraw.empty + 8 * r);
        }
    }
}

} /* namespace attn_cuda */
#endif
