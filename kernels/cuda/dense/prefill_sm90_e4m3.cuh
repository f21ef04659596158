/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill on Hopper with e4m3 queries over an e4m3 cache: both products on bytes, at twice the rate of
 * 16-bit ones.
 *
 * The loop of prefill_sm90.cuh with four changes. (1) wgmma wants bytes K-major, so V has to be transposed:
 * three warps beside the producer turn a raw tile [key][128 bytes] into [column][key] by ldmatrix.trans and
 * byte permutes. What a thread then holds, keys 2q, 2q+1, 8+2q, 8+2q+1, is the order in which the
 * accumulator of S packs into fragments of P, so keys are permuted alike on both sides and nothing is
 * shuffled; even columns go to rows 0-7 and odd ones to rows 8-15 of 16, which leaves four neighbours of a
 * row of O in one thread. Keys that are not the request's become zeros here. (2) The tensor cores keep
 * about 14 bits of a sum of e4m3 products and cut the rest off, so no such sum is longer than a block: each
 * block begins a new one, which is added to O in f32. (3) P is 2^8 for the largest weight of a row in its
 * block, exactly, whatever larger ones other blocks have, so that 2^-9, the smallest e4m3, is 2^-17 of that
 * and no block of small weights vanishes. (4) A row is divided by the sum of P as it was rounded: 8 columns
 * of ones beside V, so that equal values come out as they are. The LSE has the sum of what was not rounded.
 * Each weight still has an error of 2^-4 at most: dense-notes.md. */
#ifndef PREFILL_SM90_E4M3_CUH
#define PREFILL_SM90_E4M3_CUH

#include "../ptx/launch.cuh"
#include "far_rows.cuh"
#include "prefill_sm90_producer.cuh"
#include "kernels/cuda/ptx/wgmma_sm90_e4m3.cuh"

namespace attn_cuda {

ATTN_DEV void st_shared_v2(uint32_t a, uint32_t x, uint32_t y) {
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(a), "r"(x), "r"(y) : "memory");
}

/* FEATURE: soft cap or ALiBi. */
template <int BN_, bool FEATURE_>
struct prefill_e4m3_traits {
    static constexpr bool FEATURE = FEATURE_;
    static constexpr int D = 128, NWG = 2, BM = 64 * NWG, BN = BN_, NQ = 2, ST = 2, TURNERS = 3;
    static constexpr int THREADS = 128 * (NWG + 1);
    static constexpr bool BANDS = false;
    static_assert(BN == 128, "a row of V transposed is one line of 128 bytes");
    /* V transposed: [column][keys], and 8 rows of ones. The first CUT columns of PV end before a block's
     * softmax begins, the others run under it; they share registers, which are too few for all. */
    static constexpr int ONES = 8, CUT = FEATURE ? 64 : 48;
    static constexpr int QB = BM * D, KB = BN * D, VB = (D + ONES) * BN, OB = BM * D * 2;
    /* what the producer brings: rows of one chunk of 128 bytes */
    static constexpr int INFOS = NQ, LOADED_Q_CHUNKS = 1, LOADED_KEY_CHUNKS = 1, LOADED_VALUE_CHUNKS = 1,
                         LOADED_KEY_BYTES = KB, LOADED_VALUE_BYTES = KB, LOADED_STAGES = ST,
                         KEY_CHUNK_STRIDE = 0, VALUE_CHUNK_STRIDE = 0;
    static constexpr bool KMERGED = false, VMERGED = false, CLEANED = false, SHORT = false, SHIFTS = false;
    static constexpr int SMEM = PREFILL_SM90_E4M3_SMEM(NWG, BN, NQ);
    static_assert(SMEM == NQ * QB + ST * (2 * KB + VB) + OB + 1024, "what the kernel uses");
    static constexpr int CONSUMER_REGS = FEATURE ? 232 : 224, PRODUCER_REGS = FEATURE ? 40 : 56;
};

template <class T, bool LSE>
__global__ void __launch_bounds__(T::THREADS, 1)
    prefill_e4m3_kernel(const __grid_constant__ flash_sm90_params P) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int BN = T::BN, NWG = T::NWG, NQ = T::NQ, ST = T::ST, D = T::D;
    constexpr int CUT = T::CUT;
    constexpr float P_SHIFT = 8.f, RANGE = 64.f; /* log2 */
    constexpr bool FEATURE = T::FEATURE;
    if (P.more.ctas > 0) pdl_launch(); /* decode, on the SMs that this launch leaves */
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
    if (threadIdx.x < ST * T::ONES * BN / 16) {
        constexpr int PER = T::ONES * BN / 16; /* 1.0 in e4m3 */
        st_shared_v4(ring_v.data + threadIdx.x / PER * T::VB + D * BN + threadIdx.x % PER * 16,
                     make_uint4(0x38383838u, 0x38383838u, 0x38383838u, 0x38383838u));
        fence_proxy_async();
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
                    stmatrix_x4(out + n * 128 + (((kb * 2 + half) ^ (n & 7)) << 4), prmt(r[0], r[1], 0x6420),
                                prmt(r[0], r[1], 0x7531), prmt(r[2], r[3], 0x6420), prmt(r[2], r[3], 0x7531));
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
    /* Of two rows. o, l: the result and the sum of P so far, in units of 2^(m c - P_SHIFT), and x: the sum of
     * what P was rounded from; m: a score that others exceed by 2^RANGE at most. top: the largest score of a
     * block, unit: what its P are worth, known: the same of the block whose products are yet to be added. */
    float o[D / 2], m0 = -INFINITY, m1 = -INFINITY, l0 = 0.f, l1 = 0.f, x0 = 0.f, x1 = 0.f;
    float top0, top1, unit0, unit1, known0 = 0.f, known1 = 0.f;
    uint32_t pr[BN / 8];
    const tile_info *ti = infos;
    int last = 0, stop = 0, all_lo = 0, all_hi = 0;
    auto view = [&]() { return view_of(*ti); };
    auto my_row = [&]() { return ti->row0 + w * 64 + wr * 16 + g; };
    auto enter_tile = [&](int wk) {
        qs = wk % NQ;
        mbar_wait(ring_q.full + 8 * qs, (wk / NQ) & 1);
        ti = infos + qs;
        if (ti->block < 0) return false;
        int unused;
        last = ti->last, stop = ti->last - ti->count;
        visible_keys(p, view(), ti->row0 + w * 64, unused, all_hi);
        visible_keys(p, view(), ti->row0 + w * 64 + 63, all_lo, unused);
        if (!FEATURE) c = p.scale * LOG2E * qk_scale(p, ti->head / p.group);
        m0 = m1 = -INFINITY;
        l0 = l1 = x0 = x1 = 0.f;
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i] = 0.f;
        return true;
    };
    /* Masks, and the largest scores. */
    auto mask_and_top = [&](float(&sc)[BN / 2], int j) {
        const int k0 = j * BN + 2 * q;
        if constexpr (FEATURE) {
            score_features(p, qk_scale(p, ti->head / p.group)).apply(sc);
            if (p.alibi)
                add_alibi(sc, __ldg(p.alibi + ti->head) * LOG2E, k0 - (ti->kv_len - ti->q_len + my_row()));
        }
        if ((j + 1) * BN > all_hi) mask_above(sc, p, view(), my_row(), 8, k0);
        if (j * BN < all_lo) mask_below(sc, p, view(), my_row(), 8, k0);
        float t[8] = {sc[0], sc[1], sc[2], sc[3], sc[4], sc[5], sc[6], sc[7]};
#pragma unroll
        for (int i = 8; i < BN / 2; i++)
            t[i % 8] = fmaxf(t[i % 8], sc[i]);
        top0 = fmaxf(fmaxf(t[0], t[1]), fmaxf(t[4], t[5]));
        top1 = fmaxf(fmaxf(t[2], t[3]), fmaxf(t[6], t[7]));
        top0 = fmaxf(top0, __shfl_xor_sync(~0u, top0, 1));
        top1 = fmaxf(top1, __shfl_xor_sync(~0u, top1, 1));
        top0 = fmaxf(top0, __shfl_xor_sync(~0u, top0, 2));
        top1 = fmaxf(top1, __shfl_xor_sync(~0u, top1, 2));
        /* as a rule in a row's first block alone; NaN: a row that has seen no key */
        const bool far0 = !((top0 - m0) * c <= RANGE), far1 = !((top1 - m1) * c <= RANGE);
        if (__any_sync(~0u, far0 || far1)) {
            /* each row for itself: those behind its request are other requests' */
            const float n0 = far0 ? fmaxf(top0, m0) : m0, n1 = far1 ? fmaxf(top1, m1) : m1;
            const float f0 = n0 == m0 ? 1.f : ex2((m0 - n0) * c), f1 = n1 == m1 ? 1.f : ex2((m1 - n1) * c);
            m0 = n0, m1 = n1;
            l0 *= f0, l1 *= f1, x0 *= f0, x1 *= f1, known0 *= f0, known1 *= f1;
#pragma unroll
            for (int i = 0; i < D / 8; i++) {
                o[4 * i] *= f0;
                o[4 * i + 1] *= f0;
                o[4 * i + 2] *= f1;
                o[4 * i + 3] *= f1;
            }
        }
    };
    auto weigh = [&](float(&sc)[BN / 2]) {
        /* a row that sees none of the block: zeros, and no NaN */
        const float b0 = top0 == -INFINITY ? 0.f : fmaf(top0, c, -P_SHIFT),
                    b1 = top1 == -INFINITY ? 0.f : fmaf(top1, c, -P_SHIFT);
        unit0 = top0 == -INFINITY ? 0.f : ex2((top0 - m0) * c);
        unit1 = top1 == -INFINITY ? 0.f : ex2((top1 - m1) * c);
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            sc[i] = ex2(fmaf(sc[i], c, i & 2 ? -b1 : -b0));
        if constexpr (LSE) {
            float t0 = 0.f, t1 = 0.f;
#pragma unroll
            for (int i = 0; i < BN / 2; i += 4)
                t0 += sc[i] + sc[i + 1], t1 += sc[i + 2] + sc[i + 3];
            x0 = fmaf(t0, unit0, x0), x1 = fmaf(t1, unit1, x1);
        }
    };
    auto pack = [&](float(&sc)[BN / 2]) {
        known0 = unit0, known1 = unit1;
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
        const uint64_t qd = wgmma_desc(ring_q.data + qs * T::QB + w * 64 * D, 16, 1024);
        wgmma_ssz8<BN>::run(sc, qd, kd);
#pragma unroll
        for (int k = 1; k < D / 32; k++)
            wgmma_ss8<BN>::run(sc, qd + 2 * k, kd + 2 * k);
        wgmma_commit();
    };
    /* Products of a block with N columns from `column` on. */
    auto pv = [&](auto &t, int s, int column) {
        constexpr int N = sizeof t / 2; /* 64 rows of N in 128 threads */
        const uint64_t vd = wgmma_desc(ring_v.data + s * T::VB + column * BN, 16, 1024);
        wgmma_fence();
        wgmma_rsz8<N>::run(t, pr, vd);
#pragma unroll
        for (int k = 1; k < BN / 32; k++)
            wgmma_rs8<N>::run(t, pr + 4 * k, vd + 2 * k);
        wgmma_commit();
    };
    auto add = [&](const float *t, int from, int count) {
#pragma unroll
        for (int i = 0; i < count; i++)
            o[from + i] = fmaf(t[i], i & 2 ? known1 : known0, o[from + i]);
    };
    auto add_sums = [&](const float *t) {
        l0 = fmaf(t[0], known0, l0);
        l1 = fmaf(t[2], known1, l1);
    };
    auto release = [&](uint32_t bar) {
        if (tid == 0) mbar_arrive(bar);
    };
    auto write_tile = [&]() {
        const tile_info t = *ti; /* it may be written over once Q is given back */
        float el0 = l0, el1 = l1, all0 = l0, all1 = l1;
        const int row = t.row0 + w * 64 + wr * 16 + g, first_row = row - g, q0 = t.q0, q_len = t.q_len,
                  head = t.head, piece = t.piece;
        named_barrier(2 + w, 128); /* all have read it */
        release(ring_q.empty + 8 * qs);
        float e0 = m0 == -INFINITY ? NO_MAX : m0 * c - P_SHIFT,
              e1 = m1 == -INFINITY ? NO_MAX : m1 * c - P_SHIFT, r0, r1;
        if constexpr (LSE) {
            float y0 = x0 + __shfl_xor_sync(~0u, x0, 1), y1 = x1 + __shfl_xor_sync(~0u, x1, 1), z0 = e0,
                  z1 = e1;
            y0 += __shfl_xor_sync(~0u, y0, 2);
            y1 += __shfl_xor_sync(~0u, y1, 2);
            all0 += y0, all1 += y1;
            finish_rows(p, head, head, z0, z1, y0, y1, r0, r1);
            if (q == 0) write_lse(p, q0, q_len, head, piece, row, {8, 0}, z0, z1, y0, y1);
        }
        const bool far0 = is_far(e0, all0, o[0]), far1 = is_far(e1, all1, o[2]);
        finish_rows(p, head, head, e0, e1, el0, el1, r0, r1);
        const int kvh = head / p.group;
        const float vscale = p.v_scale ? __ldg(p.v_scale + kvh * p.scale_stride) : 1.f;
        r0 = el0 > 0.f ? r0 * vscale / el0 : 0.f;
        r1 = el1 > 0.f ? r1 * vscale / el1 : 0.f;
        /* columns 16 i + 4 q to + 3 are in registers 8 i + {0, 4, 1, 5}; rows through this warp's own 4 KB */
        const uint32_t so = sO + (w * 64 + wr * 16) * D * 2;
        const int flip = (g & 3) << 1;
        float *part = part_row(p, piece, q0 + row, head) + 4 * q;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            if (p.parts_are_f32) {
                if (16 * i >= p.head_size_v) break;
                if (is_row(row, q_len))
                    *(float4 *)(part + 16 * i) =
                        make_float4(o[8 * i] * r0, o[8 * i + 4] * r0, o[8 * i + 1] * r0, o[8 * i + 5] * r0);
                if (is_row(row + 8, q_len))
                    *(float4 *)(part + 8 * p.out_token + 16 * i) = make_float4(
                        o[8 * i + 2] * r1, o[8 * i + 6] * r1, o[8 * i + 3] * r1, o[8 * i + 7] * r1);
                continue;
            }
            const uint32_t at = so + g * D * 2 + (((2 * i + (q >> 1)) ^ flip) << 4) + (q & 1) * 8;
            st_shared_v2(at, pack2_as(p.out_dtype, o[8 * i] * r0, o[8 * i + 4] * r0),
                         pack2_as(p.out_dtype, o[8 * i + 1] * r0, o[8 * i + 5] * r0));
            st_shared_v2(at + 8 * D * 2, pack2_as(p.out_dtype, o[8 * i + 2] * r1, o[8 * i + 6] * r1),
                         pack2_as(p.out_dtype, o[8 * i + 3] * r1, o[8 * i + 7] * r1));
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (p.parts_are_f32) break;
            const int rw = 2 * i + (lane >> 4), ch = lane & 15, r = first_row + rw;
            const uint4 x = ld_shared_v4(so + rw * D * 2 + ((ch ^ ((rw & 3) << 1)) << 4));
            if (is_row(r, q_len) && ch * 8 < p.head_size_v)
                *(uint4 *)((uint16_t *)p.out + piece * p.out_piece + (int64_t)(q0 + r) * p.out_token +
                           (int64_t)head * p.out_head + ch * 8) = x;
        }
        if (__any_sync(~0u, far0 || far1)) {
            const uint32_t low = __ballot_sync(~0u, far0 && is_row(row, q_len)),
                           high = __ballot_sync(~0u, far1 && is_row(row + 8, q_len));
            const far_tile far = {view_of(t), t.seq, t.k0, piece, head, {8, 0}, p.out_dtype, nullptr, 0};
            far_rows<DT_E4M3, DT_E4M3, D, FEATURE>(p, far, first_row, low, high, lane);
        }
        __syncwarp(); /* before the next tile's rows */
    };
    auto wait_keys = [&](int n) { mbar_wait(ring_k.full + 8 * (n % ST), (n / ST) & 1); };
    auto wait_values = [&](int n) { mbar_wait(ring_v.full + 8 * (n % ST), (n / ST) & 1); };

#pragma unroll 1
    for (int wk = 0; enter_tile(wk); wk++) {
        { /* the first block, with nothing to run beside it */
            float sc[BN / 2];
            const int s = it % ST;
            wait_keys(it);
            qk(sc, s);
            wgmma_wait<0>();
            wgmma_pin(sc);
            release(ring_k.empty + 8 * s);
            mask_and_top(sc, last);
            weigh(sc);
            pack(sc);
        }
#pragma unroll 1
        for (int j = last - 1; j > stop; j--) {
            float sc[BN / 2];
            const int s1 = (it + 1) % ST, s = it % ST;
            {
                float t[CUT / 2];
                wait_values(it);
                pv(t, s, 0);
                wait_keys(it + 1);
                qk(sc, s1);
                wgmma_wait<1>();
                wgmma_pin(t);
                add(t, 0, CUT / 2);
            }
            float t[(D - CUT + T::ONES) / 2];
            pv(t, s, CUT);
            wgmma_wait<1>();
            wgmma_pin(sc);
            release(ring_k.empty + 8 * s1);
            mask_and_top(sc, j);
            weigh(sc);
            wgmma_wait<0>();
            wgmma_pin(t);
            release(ring_v.empty + 8 * s);
            add(t, CUT / 2, (D - CUT) / 2);
            add_sums(t + (D - CUT) / 2);
            pack(sc);
            it++;
        }
        {
            float t[(D + T::ONES) / 2];
            const int s = it % ST;
            wait_values(it);
            pv(t, s, 0);
            wgmma_wait<0>();
            wgmma_pin(t);
            release(ring_v.empty + 8 * s);
            add(t, 0, D / 2);
            add_sums(t + D / 2);
            it++;
        }
        write_tile();
    }
#endif
}

template <class T, bool LSE>
int launch_prefill_e4m3(const flash_sm90_params *P, int ctas, void *stream) {
    auto kernel = prefill_e4m3_kernel<T, LSE>;
    if (!P) return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::SMEM);
    return attn_cuda::launch_kernel(kernel, (unsigned)ctas, T::THREADS, T::SMEM, stream, *P);
}

/* P NULL: prepares all. */
template <int BN>
int launch_prefill_e4m3(const flash_sm90_params *P, int feature, int ctas, void *stream) {
    using plain = prefill_e4m3_traits<BN, false>;
    if (feature) return launch_prefill_e4m3<prefill_e4m3_traits<BN, true>, true>(P, ctas, stream);
    const int failed = !P || P->p.lse ? launch_prefill_e4m3<plain, true>(P, ctas, stream) : 0;
    return failed || (P && P->p.lse) ? failed : launch_prefill_e4m3<plain, false>(P, ctas, stream);
}

#define INSTANCE(CLASS)                                                                                      \
    extern "C" int flash_prefill_sm90_e4m3_##CLASS(const flash_sm90_params *p, int feature, int ctas,        \
                                                   void *stream) {                                           \
        return attn_cuda::launch_prefill_e4m3<flash_e4m3_class_e4m3_##CLASS.block_keys>(p, feature, ctas,    \
                                                                                        stream);             \
    }

} /* namespace attn_cuda */
#endif
