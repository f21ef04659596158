/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill on Hopper: TMA, wgmma, one producer warp and NWG consumer warpgroups of 64 query rows each.
 *
 * S = Q K^T by wgmma from shared memory, P from registers, O += P V with V MN-major as TMA left it. QK of the
 * next block is issued before PV of this one, so that the softmax runs under a product (FlashAttention-3's
 * order, arXiv
 * 2407.08608). After a row's first block its maximum is trusted until the sums of P say otherwise
 * (softmax_trusted). O leaves through Q's shared memory in 16-byte rows.
 * Work: a list of (tile, head), persistent CTAs that draw from it or have it dealt out, blocks of keys from
 * the end, so that the masked ones come first. Rows of a tile are tokens of one head, or, where heads share
 * their keys (T::PACKS), 64, 32 or 16 tokens of each of 2, 4 or 8 heads: a warp's 16 rows are one head's, or,
 * of 8 tokens of 16 heads, two heads'.
 *
 * K and V tiles are [64-column chunk][BN rows][128 bytes], 128-byte swizzle; paged with head sizes of whole
 * chunks they are [8 rows][chunk][8][128 bytes] instead, so that one box brings all columns of a page (stride
 * and leading offsets of the wgmma descriptor are free). Head sizes that end within a chunk are filled with
 * zeros by the copy engine. */
#ifndef PREFILL_SM90_CUH
#define PREFILL_SM90_CUH

#include "../ptx/launch.cuh"
#include "prefill_sm90_store.cuh"
#include "prefill_sm90_widen.cuh"
#include "kernels/cuda/ptx/wgmma_sm90.cuh"

namespace attn_cuda {

/* WIDENED: the cache is e4m3. Seven warps beside the producer turn each tile of bytes into f16, exactly, in
 * the layout that TMA gives 16-bit keys, and Q becomes f16 too; rows of V that are no keys of the request
 * become zeros on the way. */
template <int DK_, int DV_, int NWG_, int BN_, int NQ_, bool PAGED, bool FEATURE_, bool WIDENED_ = false,
          bool SHORT_ = false>
struct prefill90_traits {
    static constexpr bool WIDENED = WIDENED_, FEATURE = FEATURE_;
    static constexpr bool PARTS = PAGED; /* results of pieces may be float (flash_cut.c) */
    static constexpr int BYTE_STAGES = PREFILL_SM90_BYTE_STAGES(NQ_);
    static constexpr int FIRST = WIDENED ? 2 : 1, WIDENERS = 4 * FIRST - 1,
                         BYTE_BLOCK = WIDENED ? BN_ * 128 : 0; /* rows of 128 bytes */
    static_assert(!WIDENED || (PAGED && DK_ <= 128 && DV_ <= 128), "one row of bytes is one line");
    static constexpr int DK = DK_, DV = DV_, NWG = NWG_, BN = BN_, QSTEPS = (DK + 15) / 16;
    /* Q held in registers: the result then leaves from there too, so that Q's buffer is free for a later tile
     * at once. */
    static constexpr bool HOLDS_Q = !WIDENED && !FEATURE && PREFILL_SM90_HOLDS_Q(DK, DV, NWG, BN);
    static constexpr int NQ = PREFILL_SM90_Q_BUFFERS(HOLDS_Q, NWG, NQ_),
                         ST = PREFILL_SM90_STAGES(HOLDS_Q, NWG);
    /* Who zeroes rows of V that are no keys: warps beside the producer, or the consumers (two warpgroups lose
     * by the former: dense-notes.md). */
    static constexpr bool CLEANED = NWG == 3;
    /* 192/128: the result leaves from registers, so that one Q buffer is free for the next tile as soon as
     * the last scores are there; it can also be merged with an earlier result on the way (flash_launch.h). */
    static constexpr bool DIRECT = NQ == 1 && DV == 128;
    static constexpr int INFOS = DIRECT ? 2 : HOLDS_Q ? 4 : NQ; /* what describes a tile outlives its Q */
    /* A warpgroup without rows of a tile passes it by; two of them take turns, which needs both. */
    static constexpr bool PASSES = NWG == 3;
    static constexpr int BM = 64 * NWG, THREADS = 128 * (NWG + FIRST);
    static constexpr int KC = (DK + 63) / 64, VC = (DV + 63) / 64; /* chunks */
    static constexpr bool KMERGED = PAGED && !WIDENED && DK % 64 == 0,
                          VMERGED = PAGED && !WIDENED && DV % 64 == 0;
    static constexpr int KEY_GROUP_STRIDE = KMERGED ? KC * 1024 : 1024,
                         KEY_CHUNK_STRIDE = KMERGED ? 1024 : BN * 128;
    static constexpr int VALUE_GROUP_STRIDE = VMERGED ? VC * 1024 : 1024,
                         VALUE_CHUNK_STRIDE = VMERGED ? 1024 : BN * 128;
    static constexpr int QB = BM * KC * 128, KB = BN * KC * 128, VB = BN * VC * 128;
    /* what the producer brings: chunks of a row, bytes and stages of a block of keys */
    static constexpr int LOADED_Q_CHUNKS = KC, LOADED_KEY_CHUNKS = WIDENED ? 1 : KC,
                         LOADED_VALUE_CHUNKS = WIDENED ? 1 : VC, LOADED_KEY_BYTES = WIDENED ? BYTE_BLOCK : KB,
                         LOADED_VALUE_BYTES = WIDENED ? BYTE_BLOCK : VB,
                         LOADED_STAGES = WIDENED ? BYTE_STAGES : ST;
    /* Short tiles have a kernel of their own where two warpgroups hold Q in registers: a tile of few blocks
     * that ends before the middle of its last one computes, and loads, half of it; and the result of whole
     * rows leaves by the copy engine from memory of its own. Long tiles lose 2 % by the former, and run the
     * end of a tile under the next one's start instead. */
    static constexpr bool PACKS = PREFILL_SM90_PACKS(DK, DV, NWG); /* a tile may have several heads, ... */
    static constexpr bool BANDS = PREFILL_SM90_BANDS(DK, DV, NWG); /* ... so may each warpgroup's rows */
    static constexpr bool UNIFORM_WG = !FEATURE && (!HOLDS_Q || NWG == 2); /* features: a register too many */
    static constexpr bool HAS_SHORT = HOLDS_Q && PREFILL_SM90_HAS_SHORT(DK, DV, NWG, BN), SHORT = SHORT_;
    static_assert(!SHORT || HAS_SHORT, "");
    static constexpr bool SHIFTS = !WIDENED && !SHORT; /* blocks of keys may begin anywhere */
    static constexpr int OB = SHORT ? PREFILL_SM90_RESULT(DV, NWG) : 0;
    static constexpr int SMEM = WIDENED ? PREFILL_SM90_WIDENED_SMEM(DK, DV, NWG, BN, NQ_)
                                        : PREFILL_SM90_SMEM(DK, DV, NWG, BN, NQ_, HOLDS_Q, SHORT);
    static_assert(SMEM == NQ * QB + ST * (KB + VB) + 2 * BYTE_STAGES * BYTE_BLOCK + OB + 1024 + 512,
                  "what the kernel uses");
    static constexpr int CONSUMER_REGS = WIDENED ? 208 : NWG == 2 ? (DIRECT && !PAGED ? 240 : 232) : 160;
    static constexpr int PRODUCER_REGS = WIDENED ? 48 : NWG == 2 ? (DIRECT && !PAGED ? 24 : 40) : 32;
};

template <int DT, class T, bool PAGED, bool FEATURE>
__global__ void __launch_bounds__(T::THREADS, 1)
    prefill90_kernel(const __grid_constant__ flash_sm90_params P) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) /* empty where only other architectures were asked for */
    constexpr int BM = T::BM, BN = T::BN, NWG = T::NWG, NQ = T::NQ, ST = T::ST, DV = T::DV,
                  BYTE_STAGES = T::BYTE_STAGES;
    constexpr int QSTEPS = T::QSTEPS;
    constexpr bool HOLDS_Q = T::HOLDS_Q;
    /* Two warpgroups issue their products in turn, so that one has its softmax under the other's products. */
    constexpr bool TURNS = T::DIRECT || (HOLDS_Q && NWG == 2);
    /* A tile's last product may run under the next one's first where the next Q can be there; three
     * warpgroups with features have no registers left for it, and causal tiles of a few blocks are slower
     * that way (dense-notes.md). */
    constexpr bool CAN_OVERLAP = (HOLDS_Q || NQ == 2) && !(FEATURE && NWG == 3);
    const bool overlap = CAN_OVERLAP && (T::HAS_SHORT ? !T::SHORT : P.overlap);
    if (P.more.ctas > 0) pdl_launch(); /* decode, on the SMs that this launch leaves */
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    constexpr bool WIDENED = T::WIDENED;
    __shared__ __align__(8) uint64_t bars[3 * NQ + 5 * ST + 4 * BYTE_STAGES];
    __shared__ tile_info infos[T::INFOS];
    __shared__ int2 keys_of[ST];
    const flash_params &p = P.p;
    const uint32_t base = (smem_addr(smem_raw) + 1023) & ~1023u;
    const uint32_t bar = smem_addr(bars);
    const tile_ring ring_q = {base, bar, bar + 8 * NQ};
    const tile_ring ring_k = {base + NQ * T::QB, ring_q.empty + 8 * NQ, ring_q.empty + 8 * (NQ + ST)};
    const tile_ring ring_v = {ring_k.data + ST * T::KB, ring_k.empty + 8 * ST, ring_k.empty + 16 * ST};
    /* with fp8 converted to 16 bits: Q converted; bytes of K and of V */
    const uint32_t qready = ring_v.empty + 8 * ST;
    const tile_ring raw_k = {ring_v.data + ST * T::VB, qready + 8 * NQ, qready + 8 * (NQ + BYTE_STAGES)};
    const tile_ring raw_v = {raw_k.data + BYTE_STAGES * T::BYTE_BLOCK, raw_k.empty + 8 * BYTE_STAGES,
                             raw_k.empty + 16 * BYTE_STAGES};
    const tile_cleaning cleaning = {keys_of, raw_v.empty + 8 * BYTE_STAGES};
    /* Descriptors that depend on it stay in uniform registers if the assembler sees that warps agree on
     * it. */
    const int wg = T::UNIFORM_WG ? __shfl_sync(~0u, (int)threadIdx.x >> 7, 0) : (int)threadIdx.x >> 7;
    const int tid = threadIdx.x & 127, lane = threadIdx.x & 31;
    const int warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < NQ; i++)
            mbar_init(ring_q.full + 8 * i, 1),
                mbar_init(ring_q.empty + 8 * i, HOLDS_Q ? 4 * NWG : NWG + (WIDENED ? T::WIDENERS : 0));
        for (int i = 0; i < ST; i++) {
            if constexpr (T::CLEANED) mbar_init(cleaning.copied + 8 * i, 1);
            mbar_init(ring_k.full + 8 * i, WIDENED ? T::WIDENERS : 1), mbar_init(ring_k.empty + 8 * i, NWG);
            mbar_init(ring_v.full + 8 * i, WIDENED ? T::WIDENERS : 1), mbar_init(ring_v.empty + 8 * i, NWG);
        }
        if constexpr (WIDENED) {
            for (int i = 0; i < NQ; i++)
                mbar_init(qready + 8 * i, T::WIDENERS);
            for (int i = 0; i < T::BYTE_STAGES; i++) {
                mbar_init(raw_k.full + 8 * i, 1), mbar_init(raw_k.empty + 8 * i, T::WIDENERS);
                mbar_init(raw_v.full + 8 * i, 1), mbar_init(raw_v.empty + 8 * i, T::WIDENERS);
            }
        }
        mbar_init_fence();
    }
    __syncthreads();

    if (wg < T::FIRST) {
        setmaxnreg_dec<T::PRODUCER_REGS>();
        if constexpr (WIDENED) {
            if (warp != 0) {
                widen_tiles<T>(p, infos, ring_q, qready, ring_k, ring_v, raw_k, raw_v, warp - 1, lane);
                return;
            }
        }
        constexpr int AHEAD = HOLDS_Q ? 1 : NQ == 2 ? 2 : 0;
        if (warp == 0)
            produce_tiles<T, PAGED, AHEAD>(P, infos, ring_q, WIDENED ? raw_k : ring_k,
                                           WIDENED ? raw_v : ring_v, cleaning, lane);
        else if (T::CLEANED && warp <= ST)
            clean_tiles<T>(cleaning, ring_v, warp - 1, lane);
        return;
    }

    setmaxnreg_inc<T::CONSUMER_REGS>();
    const int w = wg - T::FIRST, wr = tid >> 5, g = lane >> 2, q = lane & 3;
    float c = FEATURE ? 1.f : p.scale * LOG2E; /* with fp8 converted to 16 bits: of the tile's head */
    int it = 0, qs = 0;
    float o[DV / 2], m0 = -INFINITY, m1 = -INFINITY, l0 = 0.f, l1 = 0.f, f0, f1, slope = 0.f;
    uint32_t pr[BN / 4];
    /* The tile at work. Registers are the scarce thing: what is rarely used stays in shared memory. */
    const tile_info *ti = infos;
    int last = 0, stop = 0, all_lo = 0,
        all_hi = 0; /* key blocks last .. stop + 1; keys that all rows here see */
    uint64_t qd = 0;
    bool half = false; /* the first block at work is half of one */
    uint32_t qr[HOLDS_Q ? 4 * QSTEPS : 1];
    auto view = [&]() { return view_of(*ti); };
    auto wg_row = [&]() { return ti->row0 + token_of_row<T>(P, w * 64); };
    /* and the second one (second_of) */
    auto my_row = [&]() { return ti->row0 + token_of_row<T>(P, w * 64 + wr * 16) + g; };
    auto enter_tile = [&](int wk) {
        qs = wk % NQ;
        mbar_wait((WIDENED ? qready : ring_q.full) + 8 * qs, (wk / NQ) & 1);
        ti = infos + wk % T::INFOS;
        if (ti->block < 0) return false;
        last = ti->last, stop = ti->last - ti->count;
        if constexpr (T::SHORT) {
            half = ti->half;
            all_lo = ti->lows[w], all_hi = min(wg_row() + ti->ahead, ti->kv_len);
        } else {
            int unused;
            visible_keys(p, view(), wg_row(), unused, all_hi);
            visible_keys(p, view(), wg_row() + 63, all_lo, unused);
        }
        if (T::SHIFTS) all_lo -= ti->shift, all_hi -= ti->shift;
        qd = wgmma_desc(ring_q.data + qs * T::QB + w * 8192, 16, 1024);
        if constexpr (HOLDS_Q) {
            const uint32_t rows = ring_q.data + qs * T::QB + (w * 64 + wr * 16 + (lane & 15)) * 128;
#pragma unroll
            for (int k = 0; k < QSTEPS; k++)
                ldmatrix_x4(reinterpret_cast<uint32_t(&)[4]>(qr[4 * k]),
                            rows + (k >> 2) * (BM * 128) + (((2 * (k & 3) + (lane >> 4)) ^ (lane & 7)) << 4));
            __syncwarp();
            if (lane == 0) mbar_arrive(ring_q.empty + 8 * qs);
        }
        slope = FEATURE && p.alibi ? __ldg(p.alibi + rows_of_warp<T>(P, *ti, w, wr).head) * LOG2E : 0.f;
        if constexpr (WIDENED && !FEATURE) c = p.scale * LOG2E * qk_scale(p, ti->head / p.group);
        return true;
    };
    auto mask = [&](auto &sc, int j) {
        const int second = second_of<T>(P).token;
        constexpr int W = sizeof sc / 2; /* columns */
        const int k0 = j * BN + 2 * q + (T::SHIFTS ? ti->shift : 0);
        if constexpr (FEATURE) {
            score_features(p, WIDENED ? qk_scale(p, ti->head / p.group) : 1.f).apply(sc);
            if (p.alibi) add_alibi(sc, slope, k0 - (ti->kv_len - ti->q_len + my_row()));
        }
        if constexpr (T::SHORT) {
            if (j * BN + W / 2 > all_hi) mask_above<0, W / 4>(sc, *ti, my_row(), second, k0);
            if (j * BN + W > all_hi) mask_above<W / 4, W / 2>(sc, *ti, my_row(), second, k0);
        } else if (j * BN + W > all_hi)
            mask_above(sc, p, view(), my_row(), second, k0);
        if (j * BN < all_lo) mask_below(sc, p, view(), my_row(), second, k0);
    };
    auto softmax = [&](auto &sc) { softmax_block(sc, c, true, true, m0, m1, l0, l1, f0, f1); };
    auto pack = [&](auto &sc) {
#pragma unroll
        for (int i = 0; i < (int)(sizeof sc / 8); i++)
            pr[i] = pack2<DT>(sc[2 * i], sc[2 * i + 1]);
    };
    auto qk = [&](auto &sc, int s) {
        constexpr int W = sizeof sc / 2;
        const uint64_t kd = wgmma_desc(ring_k.data + s * T::KB, 16, T::KEY_GROUP_STRIDE);
        wgmma_fence();
        if constexpr (HOLDS_Q)
            wgmma_rkz<W, DT>::run(sc, qr, kd);
        else
            wgmma_ssz<W, DT>::run(sc, qd, kd);
#pragma unroll
        for (int k = 1; k < QSTEPS; k++) {
            const uint64_t kk = kd + ((k >> 2) * T::KEY_CHUNK_STRIDE >> 4) + (k & 3) * 2;
            if constexpr (HOLDS_Q)
                wgmma_rk<W, DT>::run(sc, qr + 4 * k, kk);
            else
                wgmma_ss<W, DT>::run(sc, qd + ((k >> 2) * (BM * 128) >> 4) + (k & 3) * 2, kk);
        }
        wgmma_commit();
    };
    int started = 0; /* short: o holds something; elsewhere it is cleared */
    auto pv_steps = [&](int s, auto steps) {
        const uint64_t vd = wgmma_desc(ring_v.data + s * T::VB, T::VALUE_CHUNK_STRIDE, T::VALUE_GROUP_STRIDE);
        wgmma_fence();
        if constexpr (T::SHORT)
            wgmma_rsp<DV, DT>::run(o, pr, vd, started);
        else
            wgmma_rs<DV, DT>::run(o, pr, vd);
#pragma unroll
        for (int k = 1; k < steps.value; k++)
            wgmma_rs<DV, DT>::run(o, pr + 4 * k, vd + ((uint64_t)(k * 2 * T::VALUE_GROUP_STRIDE) >> 4));
        wgmma_commit();
    };
    /* The branch is by a vote, here and where a tile starts: by a plain one the assembler no longer takes the
     * stage for uniform, and moves descriptors between register files all through the loop (6 %). */
    auto pv = [&](int s, bool half) {
        if (T::SHORT && __any_sync(~0u, half))
            pv_steps(s, std::integral_constant<int, BN / 32>());
        else
            pv_steps(s, std::integral_constant<int, BN / 16>());
        started = 1;
    };
    /* Where no warps do it: all consumers work on the same block, and none multiplies before all have
     * written. */
    auto clean = [&](int s, int j) {
        if constexpr (!WIDENED && !T::CLEANED) {
            const int k0 = j * BN + (T::SHIFTS ? ti->shift : 0), x = ti->skipped - k0, y = ti->kv_len - k0;
            if (x <= 0 && y >= BN) return;
            zero_rows<T>(ring_v.data + s * T::VB, x, y, threadIdx.x - 128, NWG * 128);
            fence_proxy_async();
            named_barrier(1, NWG * 128);
        }
    };
    auto release = [&](uint32_t bar) {
        if (tid == 0) mbar_arrive(bar);
    };

    auto clear_output = [&]() {
        started = 0;
        if constexpr (!T::SHORT) {
#pragma unroll
            for (int i = 0; i < DV / 2; i++)
                o[i] = 0.f;
        }
    };
    auto write = [&](const tile_info &t, int slot, float em0, float em1, float el0, float el1, float ec) {
        const uint32_t rows = T::OB ? ring_v.data + ST * T::VB : ring_q.data + slot * T::QB;
        write_tile<DT, T, T::DIRECT || HOLDS_Q>(P, t, o, rows + w * 8192, ring_q.empty + 8 * slot, w, tid,
                                                em0, em1, el0, el1, ec);
    };
    /* The first block of a tile, with nothing to run beside it. */
    auto start_tile = [&]() {
        const int s = it % ST;
        mbar_wait(ring_k.full + 8 * s, (it / ST) & 1);
        if constexpr (T::SHORT) {
            if (__any_sync(~0u, half)) {
                float sc[BN / 4];
                qk(sc, s);
                wgmma_wait<0>();
                wgmma_pin(sc);
                release(ring_k.empty + 8 * s);
                mask(sc, last);
                softmax(sc);
                pack(sc);
                return;
            }
        }
        float sc[BN / 2];
        qk(sc, s);
        wgmma_wait<0>();
        wgmma_pin(sc);
        release(ring_k.empty + 8 * s);
        if (T::DIRECT && last == stop + 1) {
            named_barrier(
                2 + w, 128); /* all have left the tile before, whose description comes to be written over */
            release(ring_q.empty);
        }
        mask(sc, last);
        softmax(sc);
        pack(sc);
    };
    auto clean_first = [&]() {
        if (!T::CLEANED && (last + 1) * BN + (T::SHIFTS ? ti->shift : 0) > ti->kv_len) {
            mbar_wait(ring_v.full + 8 * (it % ST), (it / ST) & 1);
            clean(it % ST, last);
        }
    };

    /* Rows of a request's last tile, or of its first (first_row_of), that are nobody's. */
    auto is_passed = [&]() {
        if constexpr (!T::PASSES) return false;
        const int row = rows_of_warp<T>(P, *ti, w, 0).row;
        return (bool)__any_sync(~0u, row >= ti->q_len || row + 64 <= 0);
    };
    /* Its keys go by. One warp waits for them: another that came late would take a later use of a buffer for
     * the one that it waits for. */
    auto pass_tile = [&]() {
        if (wr == 0) {
#pragma unroll 1
            for (int i = it; i < it + last - stop; i++) {
                mbar_wait(ring_k.full + 8 * (i % ST), (i / ST) & 1);
                release(ring_k.empty + 8 * (i % ST));
                mbar_wait(ring_v.full + 8 * (i % ST), (i / ST) & 1);
                release(ring_v.empty + 8 * (i % ST));
            }
        }
        it += last - stop;
        named_barrier(2 + w, 128);
        if (!HOLDS_Q) release(ring_q.empty + 8 * qs);
    };
    int wk = 0;
    bool entered = enter_tile(0);
    auto pass_tiles = [&](int next) {
#pragma unroll 1
        for (; entered && is_passed(); next++) {
            pass_tile();
            entered = enter_tile(next + 1);
        }
        wk = next;
        return entered;
    };

    if (!pass_tiles(0)) return;
    if (TURNS && w == 1) named_arrive(5, 256); /* the first turn is warpgroup 0's */
    start_tile();
    clean_first();
#pragma unroll 1
    for (;;) {
        clear_output();
#pragma unroll 1
        for (int j = last - 1; j > stop; j--) {
            float sc[BN / 2];
            const int s1 = (it + 1) % ST, s = it % ST;
            mbar_wait(ring_k.full + 8 * s1, ((it + 1) / ST) & 1);
            if (TURNS) named_barrier(5 + w, 256);
            qk(sc, s1);
            mbar_wait(ring_v.full + 8 * s, (it / ST) & 1);
            wgmma_pin(o);
            pv(s, half);
            half = false;
            if (TURNS) named_arrive(5 + (w ^ 1), 256);
            wgmma_wait<1>();
            wgmma_pin(sc);
            release(ring_k.empty + 8 * s1);
            if (T::DIRECT && j == stop + 1) release(ring_q.empty);
            mask(sc, j);
            wgmma_wait<0>();
            wgmma_pin(o);
            release(ring_v.empty + 8 * s);
            bool far0, far1;
            if (!softmax_trusted<DT>(sc, c, m0, m1, l0, l1, pr, far0, far1)) {
                softmax_block(sc, c, far0, far1, m0, m1, l0, l1, f0, f1);
                pack(sc);
#pragma unroll
                for (int i = 0; i < DV / 8; i++) {
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
        if (PAGED && ti->skipped > (stop + 1) * BN + (T::SHIFTS ? ti->shift : 0)) clean(s, stop + 1);
        entered = CAN_OVERLAP && overlap && enter_tile(wk + 1);
        if (entered && !is_passed()) {
            wk++;
            /* the last PV of this tile runs under the first QK and softmax of the next, whose Q is there
             * already */
            float sc[BN / 2];
            const int s1 = (it + 1) % ST;
            mbar_wait(ring_k.full + 8 * s1, ((it + 1) / ST) & 1);
            qk(sc, s1);
            wgmma_pin(o);
            pv(s, false); /* short tiles do not overlap */
            wgmma_wait<1>();
            wgmma_pin(sc);
            release(ring_k.empty + 8 * s1);
            const float dm0 = m0, dm1 = m1, dl0 = l0, dl1 = l1;
            m0 = m1 = -INFINITY;
            l0 = l1 = 0.f;
            mask(sc, last);
            softmax(sc);
            wgmma_wait<0>();
            wgmma_pin(o);
            release(ring_v.empty + 8 * s);
            it++;
            pack(sc);
            write(done, slot, dm0, dm1, dl0, dl1, dc);
            clean_first();
            continue;
        }
        wgmma_pin(o);
        pv(s, half);
        wgmma_wait<0>();
        wgmma_pin(o);
        release(ring_v.empty + 8 * s);
        it++;
        write(done, slot, m0, m1, l0, l1, dc);
        if (!overlap) entered = enter_tile(wk + 1);
        if (!pass_tiles(wk + 1)) break;
        m0 = m1 = -INFINITY;
        l0 = l1 = 0.f;
        start_tile();
        clean_first();
    }
    if (TURNS && w == 0) named_barrier(5, 256); /* the turn that nobody took */
    if (T::OB && lane == 0) bulk_store_wait();
#endif
}

template <int DT, class T, bool PAGED, bool FEATURE>
int launch_prefill90(const flash_sm90_params *P, int ctas, void *stream) {
    auto kernel = prefill90_kernel<DT, T, PAGED, FEATURE>;
    if (!P) return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::SMEM);
    return attn_cuda::launch_kernel(kernel, (unsigned)ctas, T::THREADS, T::SMEM, stream, *P);
}

/* Without features: short tiles have another kernel, where there is one. */
template <int DT, bool PAGED, int DK, int DV, int NWG, int BN, int NQ>
int launch_prefill90_plain(const flash_sm90_params *P, int ctas, void *stream) {
    using T = prefill90_traits<DK, DV, NWG, BN, NQ, PAGED, false>;
    if constexpr (T::HAS_SHORT) {
        using S = prefill90_traits<DK, DV, NWG, BN, NQ, PAGED, false, false, true>;
        if (!P || !P->overlap) { /* without parameters: both are prepared */
            const int e = launch_prefill90<DT, S, PAGED, false>(P, ctas, stream);
            if (P || e) return e;
        }
    }
    return launch_prefill90<DT, T, PAGED, false>(P, ctas, stream);
}

/* KEYS: rows or pages. */
#define INSTANCE(TYPE, CLASS, KEYS)                                                                          \
    extern "C" int flash_prefill_sm90_##TYPE##_##CLASS##_##KEYS(const flash_sm90_params *p, int feature,     \
                                                                int ctas, void *stream) {                    \
        using namespace attn_cuda;                                                                           \
        [[maybe_unused]] constexpr flash_sm90_class k = flash_sm90_class_##CLASS;                            \
        constexpr bool paged = FLASH_KEYS_##KEYS;                                                            \
        using F =                                                                                            \
            prefill90_traits<k.dim.dk, k.dim.dv, k.warpgroups, k.feature_keys, k.q_buffers, paged, true>;    \
        return feature ? launch_prefill90<FLASH_TYPE_##TYPE, F, paged, true>(p, ctas, stream)                \
                       : launch_prefill90_plain<FLASH_TYPE_##TYPE, paged, k.dim.dk, k.dim.dv, k.warpgroups,  \
                                                k.block_keys, k.q_buffers>(p, ctas, stream);                 \
    }

} /* namespace attn_cuda */
#endif
