/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill on Hopper with e4m3 queries over an e4m3 cache: both products on bytes, at twice the rate of 16-bit ones.
 *
 * The loop of prefill_sm90.cuh with three changes. (1) wgmma wants bytes K-major, so V has to be transposed: three warps
 * beside the producer turn a raw tile [key][128 bytes] into [column][key] by ldmatrix.trans and byte permutes. What a
 * thread then holds, keys 2q, 2q+1, 8+2q, 8+2q+1, is the order in which the accumulator of S packs into fragments of P, so
 * keys are permuted alike on both sides and nothing is shuffled; even columns go to rows 0-7 and odd ones to rows 8-15 of
 * 16, which leaves four neighbours of a row of O in one thread. Keys that are not the request's become zeros here.
 * (2) Q is held in registers: a fragment of 128 columns takes 16. (3) P is scaled by 2^6 and its maximum lags by 2^2 at
 * most, so that bytes are used from 2^-9 to 2^8 (e4m3 ends at 448). Accuracy is that of 3-bit mantissas: README.md. */
#ifndef PREFILL_E4M3_SM90_CUH
#define PREFILL_E4M3_SM90_CUH

#include "prefill_producer_sm90.cuh"
#include "flash/wgmma_e4m3_sm90.cuh"

namespace attn_cuda {

ATTN_DEV void st_shared_v2(uint32_t a, uint32_t x, uint32_t y) {
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(a), "r"(x), "r"(y) : "memory");
}

template <int BN_>
struct prefill_e4m3_traits {
    static constexpr int D = 128, NWG = 2, BM = 64 * NWG, BN = BN_, NQ = 2, ST = 2, TURNERS = 3;
    static constexpr int THREADS = 128 * (NWG + 1);
    /* V transposed: chunks of 128 keys, each [column][128 bytes] */
    static constexpr int VCHUNK = D * 128;
    static constexpr int QB = BM * D, KB = BN * D, VB = (BN + 127) / 128 * VCHUNK, OB = BM * D * 2;
    /* what the producer brings: rows of one chunk of 128 bytes */
    static constexpr int INFOS = NQ, QC = 1, LKC = 1, LVC = 1, LKB = KB, LVB = KB, LST = ST, KHF = 0, VHF = 0;
    static constexpr bool KMERGED = false, VMERGED = false, CLEANED = false, SHORT = false;
    static constexpr int SMEM = NQ * QB + ST * (2 * KB + VB) + OB + 1024;
    static constexpr int CONSUMER_REGS = 216, PRODUCER_REGS = 72;
};

template <class T, bool FEATURE>
__global__ void __launch_bounds__(T::THREADS, 1)
    prefill_e4m3_kernel(const __grid_constant__ flash_sm90_params P) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int BM = T::BM, BN = T::BN, NWG = T::NWG, NQ = T::NQ, ST = T::ST, D = T::D;
    constexpr float P_SHIFT = 6.f, LAG = 2.f; /* log2 */
    const bool overlap = P.overlap;
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    __shared__ __align__(8) uint64_t bars[2 * NQ + 8 * ST];
    __shared__ tile_info infos[NQ];
    const flash_params &p = P.p;
    const uint32_t base = (smem_addr(smem_raw) + 1023) & ~1023u;
    const uint32_t bar = smem_addr(bars);
    const tile_ring ring_q = {base, bar, bar + 8 * NQ};
    const tile_ring ring_k = {base + NQ * T::QB, ring_q.empty + 8 * NQ, ring_q.empty + 8 * (NQ + ST)};
    const tile_ring raw_v = {ring_k.data + ST * T::KB, ring_k.empty + 8 * ST, ring_k.empty + 16 * ST};
    const tile_ring ring_v = {raw_v.data + ST * T::KB, raw_v.empty + 8 * ST, raw_v.empty + 16 * ST};
    const uint32_t sO = ring_v.data + ST * T::VB;
    const int wg = threadIdx.x >> 7, tid = threadIdx.x & 127, lane = threadIdx.x & 31;
    const int warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < NQ; i++)
            mbar_init(ring_q.full + 8 * i, 1), mbar_init(ring_q.empty + 8 * i, NWG + T::TURNERS);
        for (int i = 0; i < ST; i++) {
            mbar_init(ring_k.full + 8 * i, 1), mbar_init(ring_k.empty + 8 * i, NWG);
            mbar_init(raw_v.full + 8 * i, 1), mbar_init(raw_v.empty + 8 * i, T::TURNERS);
            mbar_init(ring_v.full + 8 * i, T::TURNERS), mbar_init(ring_v.empty + 8 * i, NWG);
        }
        mbar_init_fence();
    }
    __syncthreads();

    if (wg == 0) setmaxnreg_dec<T::PRODUCER_REGS>();
    if (warp == 0) {
        produce_tiles<T, true, 2>(P, infos, ring_q, ring_k, raw_v, tile_cleaning{}, lane);
        return;
    }
    if (wg == 0) { /* the transposers */
        const int q2 = 2 * (lane & 3);
        const uint32_t from = lane * 128, flip = (lane & 7) << 4;
        const int row = ((lane >> 3) & 1) * 8 + (lane & 7), half = lane >> 4;
        int it = 0;
#pragma unroll 1
        for (int wk = 0;; wk++) {
            const int qs = wk % NQ;
            mbar_wait(ring_q.full + 8 * qs, (wk / NQ) & 1);
            const tile_info &ti = infos[qs];
            if (ti.block < 0) return;
            const int last = ti.last, count = ti.count, lo = ti.skipped, hi = ti.kv_len;
            __syncwarp();
            if (lane == 0)
                mbar_arrive(ring_q.empty +
                            8 * qs); /* read; the consumers keep the buffer as long as they need */
#pragma unroll 1
            for (int j = last; j > last - count; j--, it++) {
                const int s = it % ST, ph = (it / ST) & 1;
                mbar_wait(raw_v.full + 8 * s, ph);
                mbar_wait(ring_v.empty + 8 * s, ph ^ 1);
                const bool whole = j * BN >= lo && (j + 1) * BN <= hi;
                const uint32_t raw = raw_v.data + s * T::KB + from, out = ring_v.data + s * T::VB;
#pragma unroll 2
                for (int u = warp - 1; u < BN / 4; u += T::TURNERS) { /* 32 keys of 16 columns */
                    const int i = u & 7, kb = u >> 3;
                    uint32_t r[4];
                    ldmatrix_x4_trans(r, raw + kb * 4096 + ((i << 4) ^ flip));
                    if (!whole) {
#pragma unroll
                        for (int t = 0; t < 4; t++) {
                            const int key = j * BN + kb * 32 + 8 * t + q2;
                            if (key < lo || key >= hi) r[t] &= 0xffff0000u;
                            if (key + 1 < lo || key + 1 >= hi) r[t] &= 0xffffu;
                        }
                    }
                    const int n = i * 16 + row;
                    stmatrix_x4(out + (kb >> 2) * T::VCHUNK + n * 128 +
                                    ((((kb & 3) * 2 + half) ^ (n & 7)) << 4),
                                prmt(r[0], r[1], 0x6420), prmt(r[0], r[1], 0x7531), prmt(r[2], r[3], 0x6420),
                                prmt(r[2], r[3], 0x7531));
                }
                fence_proxy_async();
                __syncwarp();
                if (lane == 0) {
                    mbar_arrive(raw_v.empty + 8 * s);
                    mbar_arrive(ring_v.full + 8 * s);
                }
            }
        }
    }

    setmaxnreg_inc<T::CONSUMER_REGS>();
    const int w = wg - 1, wr = tid >> 5, g = lane >> 2, q = lane & 3;
    float c = 1.f; /* scores to base-2 units, of the tile's head */
    int it = 0, qs = 0;
    float o[D / 2], m0 = -INFINITY, m1 = -INFINITY, l0 = 0.f, l1 = 0.f, f0, f1, slope = 0.f;
    uint32_t pr[BN / 8], qr[D / 8];
    const tile_info *ti = infos;
    int last = 0, stop = 0, all_lo = 0, all_hi = 0;
    auto view = [&]() { return view_of(*ti); };
    auto my_row = [&]() { return ti->block * BM + w * 64 + wr * 16 + g; };
    auto enter_tile = [&](int wk) {
        qs = wk % NQ;
        mbar_wait(ring_q.full + 8 * qs, (wk / NQ) & 1);
        ti = infos + qs;
        if (ti->block < 0) return false;
        int unused;
        last = ti->last, stop = ti->last - ti->count;
        visible_keys(p, view(), ti->block * BM + w * 64, unused, all_hi);
        visible_keys(p, view(), ti->block * BM + w * 64 + 63, all_lo, unused);
        const uint32_t rows = ring_q.data + qs * T::QB + (w * 64 + wr * 16 + (lane & 15)) * 128;
#pragma unroll
        for (int k = 0; k < D / 32; k++)
            ldmatrix_x4(reinterpret_cast<uint32_t(&)[4]>(qr[4 * k]),
                        rows + (((2 * k + (lane >> 4)) ^ (lane & 7)) << 4));
        slope = FEATURE && p.alibi ? __ldg(p.alibi + ti->head) * LOG2E : 0.f;
        if (!FEATURE) c = p.scale * LOG2E * qk_scale(p, ti->head / p.group);
        return true;
    };
    auto softmax = [&](float(&sc)[BN / 2], int j) {
        const int k0 = j * BN + 2 * q;
        if constexpr (FEATURE) {
            score_features(p, qk_scale(p, ti->head / p.group)).apply(sc);
            if (p.alibi) add_alibi(sc, slope, k0 - (ti->kv_len - ti->q_len + my_row()));
        }
        if ((j + 1) * BN > all_hi) mask_above(sc, p, view(), my_row(), k0);
        if (j * BN < all_lo) mask_below(sc, p, view(), my_row(), k0);
        softmax_block(sc, c, P_SHIFT, LAG, m0, m1, l0, l1, f0, f1);
    };
    auto pack = [&](float(&sc)[BN / 2]) {
#pragma unroll
        for (int i = 0; i < BN / 8;
             i++) { /* register i of chunk i / 4: row half i & 1, keys 16 (i & 2) / 2 on */
            const int at = 16 * (i >> 2) + 8 * ((i >> 1) & 1) + 2 * (i & 1);
            pr[i] = f32x2_to_e4m3x2(sc[at], sc[at + 1]) | f32x2_to_e4m3x2(sc[at + 4], sc[at + 5]) << 16;
        }
    };
    auto qk = [&](float(&sc)[BN / 2], int s) {
        const uint64_t kd = wgmma_desc(ring_k.data + s * T::KB, 16, 1024);
        wgmma_fence();
        wgmma_rsz8<BN>::run(sc, qr, kd);
#pragma unroll
        for (int k = 1; k < D / 32; k++)
            wgmma_rs8<BN>::run(sc, qr + 4 * k, kd + 2 * k);
        wgmma_commit();
    };
    auto pv = [&](int s) {
        const uint64_t vd = wgmma_desc(ring_v.data + s * T::VB, 16, 1024);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BN / 32; k++)
            wgmma_rs8<D>::run(o, pr + 4 * k, vd + ((k >> 2) * T::VCHUNK >> 4) + 2 * (k & 3));
        wgmma_commit();
    };
    auto release = [&](uint32_t bar) {
        if (tid == 0) mbar_arrive(bar);
    };
    auto write_tile = [&](const tile_info &t, int slot, float em0, float em1, float el0, float el1,
                          float ec) {
        el0 += __shfl_xor_sync(~0u, el0, 1);
        el1 += __shfl_xor_sync(~0u, el1, 1);
        el0 += __shfl_xor_sync(~0u, el0, 2);
        el1 += __shfl_xor_sync(~0u, el1, 2);
        const int row = t.block * BM + w * 64 + wr * 16 + g, first_row = row - g, q0 = t.q0, q_len = t.q_len,
                  head = t.head, piece = t.piece;
        named_barrier(2 + w, 128); /* all have read it */
        release(ring_q.empty + 8 * slot);
        float b0 = em0 == -INFINITY ? NO_MAX : em0 * ec - P_SHIFT,
              b1 = em1 == -INFINITY ? NO_MAX : em1 * ec - P_SHIFT, r0, r1;
        finish_rows(p, head, b0, b1, el0, el1, r0, r1);
        const int kvh = head / p.group;
        const float vscale = p.v_scale ? __ldg(p.v_scale + kvh * p.scale_stride) : 1.f;
        r0 = el0 > 0.f ? r0 * vscale / el0 : 0.f;
        r1 = el1 > 0.f ? r1 * vscale / el1 : 0.f;
        if (p.lse && q == 0) write_lse(p, q0, q_len, head, piece, row, b0, b1, el0, el1);
        /* columns 16 i + 4 q to + 3 are in registers 8 i + {0, 4, 1, 5}; rows through this warp's own 4 KB */
        const uint32_t so = sO + (w * 64 + wr * 16) * D * 2;
        const int flip = (g & 3) << 1;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            const uint32_t at = so + g * D * 2 + (((2 * i + (q >> 1)) ^ flip) << 4) + (q & 1) * 8;
            st_shared_v2(at, pack2_as(p.out_dtype, o[8 * i] * r0, o[8 * i + 4] * r0),
                         pack2_as(p.out_dtype, o[8 * i + 1] * r0, o[8 * i + 5] * r0));
            st_shared_v2(at + 8 * D * 2, pack2_as(p.out_dtype, o[8 * i + 2] * r1, o[8 * i + 6] * r1),
                         pack2_as(p.out_dtype, o[8 * i + 3] * r1, o[8 * i + 7] * r1));
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int rw = 2 * i + (lane >> 4), ch = lane & 15, r = first_row + rw;
            const uint4 x = ld_shared_v4(so + rw * D * 2 + ((ch ^ ((rw & 3) << 1)) << 4));
            if (r < q_len && ch * 8 < p.head_size_v)
                *(uint4 *)((uint16_t *)p.out + piece * p.out_piece + (int64_t)(q0 + r) * p.out_token +
                           (int64_t)head * p.out_head + ch * 8) = x;
        }
        __syncwarp(); /* before the next tile's rows */
    };
    /* The first block of a tile, with nothing to run beside it. */
    auto start_tile = [&]() {
        float sc[BN / 2];
        const int s = it % ST;
        mbar_wait(ring_k.full + 8 * s, (it / ST) & 1);
        qk(sc, s);
        wgmma_wait<0>();
        wgmma_pin(sc);
        release(ring_k.empty + 8 * s);
        softmax(sc, last);
        pack(sc);
    };

    if (!enter_tile(0)) return;
    start_tile();
#pragma unroll 1
    for (int wk = 0;; wk++) {
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i] = 0.f;
#pragma unroll 1
        for (int j = last - 1; j > stop; j--) {
            float sc[BN / 2];
            const int s1 = (it + 1) % ST, s = it % ST;
            mbar_wait(ring_k.full + 8 * s1, ((it + 1) / ST) & 1);
            qk(sc, s1);
            mbar_wait(ring_v.full + 8 * s, (it / ST) & 1);
            wgmma_pin(o);
            pv(s);
            wgmma_wait<1>();
            wgmma_pin(sc);
            release(ring_k.empty + 8 * s1);
            softmax(sc, j);
            wgmma_wait<0>();
            wgmma_pin(o);
            release(ring_v.empty + 8 * s);
            pack(sc);
            if (__any_sync(~0u, f0 != 1.f || f1 != 1.f)) {
#pragma unroll
                for (int i = 0; i < D / 8; i++) {
                    o[4 * i] *= f0;
                    o[4 * i + 1] *= f0;
                    o[4 * i + 2] *= f1;
                    o[4 * i + 3] *= f1;
                }
            }
            it++;
        }
        const int s = it % ST, slot = qs;
        const tile_info &done = *ti;
        const float dc = c;
        mbar_wait(ring_v.full + 8 * s, (it / ST) & 1);
        if (overlap && enter_tile(wk + 1)) {
            /* the last PV of this tile runs under the first QK and softmax of the next, whose Q is there already */
            float sc[BN / 2];
            const int s1 = (it + 1) % ST;
            mbar_wait(ring_k.full + 8 * s1, ((it + 1) / ST) & 1);
            qk(sc, s1);
            wgmma_pin(o);
            pv(s);
            wgmma_wait<1>();
            wgmma_pin(sc);
            release(ring_k.empty + 8 * s1);
            const float dm0 = m0, dm1 = m1, dl0 = l0, dl1 = l1;
            m0 = m1 = -INFINITY;
            l0 = l1 = 0.f;
            softmax(sc, last);
            wgmma_wait<0>();
            wgmma_pin(o);
            release(ring_v.empty + 8 * s);
            it++;
            pack(sc);
            write_tile(done, slot, dm0, dm1, dl0, dl1, dc);
            continue;
        }
        wgmma_pin(o);
        pv(s);
        wgmma_wait<0>();
        wgmma_pin(o);
        release(ring_v.empty + 8 * s);
        it++;
        write_tile(done, slot, m0, m1, l0, l1, dc);
        if (overlap || !enter_tile(wk + 1)) break;
        m0 = m1 = -INFINITY;
        l0 = l1 = 0.f;
        start_tile();
    }
#endif
}

template <class T, bool FEATURE>
int launch_prefill_e4m3(const flash_sm90_params *P, int ctas, void *stream) {
    auto kernel = prefill_e4m3_kernel<T, FEATURE>;
    if (!P) return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::SMEM);
    kernel<<<(unsigned)ctas, T::THREADS, T::SMEM, (cudaStream_t)stream>>>(*P);
    return (int)cudaGetLastError();
}

} /* namespace attn_cuda */
#endif
