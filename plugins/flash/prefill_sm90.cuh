/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill on Hopper: TMA, wgmma, one producer warp and NWG consumer warpgroups of 64 query rows each.
 *
 * S = Q K^T by wgmma from shared memory, P from registers, O += P V with V MN-major as TMA left it. QK of the next
 * block is issued before PV of this one, so that the softmax runs under a product (FlashAttention-3's order, arXiv
 * 2407.08608). After a row's first block its maximum is trusted until the sums of P say otherwise (softmax_trusted). O leaves
 * through Q's shared memory in 16-byte rows.
 * Work: a list of (tile, head), persistent CTAs that draw from it or have it dealt out, blocks of keys from the end, so that
 * the masked ones come first.
 *
 * K and V tiles are [64-column chunk][BN rows][128 bytes], 128-byte swizzle; paged with head sizes of whole chunks they
 * are [8 rows][chunk][8][128 bytes] instead, so that one box brings all columns of a page (stride and leading offsets
 * of the wgmma descriptor are free). Head sizes that end within a chunk are filled with zeros by the copy engine. */
#ifndef PREFILL_SM90_CUH
#define PREFILL_SM90_CUH

#include "../common/ptx_sm90.cuh"
#include "prefill_parts_sm90.cuh"
#include "prefill_sm90_launch.h"
#include "flash/wgmma_sm90.cuh"

namespace attn_cuda {

/* WIDE: the cache is e4m3. Seven warps beside the producer turn each tile of bytes into f16, exactly, in the layout that
 * TMA gives 16-bit keys, and Q becomes f16 too; rows of V that are no keys of the request become zeros on the way. */
template <int DK_, int DV_, int NWG_, int BN_, int NQ_, bool PAGED, bool WIDE_ = false, int ST_ = 2>
struct prefill90_traits {
    static constexpr bool WIDE = WIDE_;
    static constexpr int RST = NQ_ == 2 ? 1 : 2; /* stages of bytes, as memory allows */
    static constexpr int FIRST = WIDE ? 2 : 1, WIDENERS = 4 * FIRST - 1,
                         RAW = WIDE ? BN_ * 128 : 0; /* rows of 128 bytes */
    static_assert(!WIDE || (PAGED && DK_ <= 128 && DV_ <= 128), "one row of bytes is one line");
    static constexpr int DK = DK_, DV = DV_, NWG = NWG_, BN = BN_, NQ = NQ_, ST = ST_;
    /* Q is held as fragments in registers where there is room, so that the loop reads keys alone from shared memory. */
    static constexpr bool REGQ = !WIDE && DK == DV && ((DK == 128 && NWG == 2) || (DK == 80 && BN == 96));
    /* 192/128: the result leaves from registers, so that one Q buffer is free for the next tile as soon as the last scores
     * are there; it can also be merged with an earlier result on the way (launch.h). */
    static constexpr bool DIRECT = NQ == 1 && DV == 128;
    static constexpr int INFOS = DIRECT ? 2 : REGQ ? 4 : NQ; /* what describes a tile outlives its Q */
    static constexpr int BM = 64 * NWG, THREADS = 128 * (NWG + FIRST);
    static constexpr int KC = (DK + 63) / 64, VC = (DV + 63) / 64; /* chunks */
    static constexpr bool KMERGED = PAGED && !WIDE && DK % 64 == 0, VMERGED = PAGED && !WIDE && DV % 64 == 0;
    static constexpr int KRG = KMERGED ? KC * 1024 : 1024, KHF = KMERGED ? 1024 : BN * 128;
    static constexpr int VRG = VMERGED ? VC * 1024 : 1024, VHF = VMERGED ? 1024 : BN * 128;
    static constexpr int QB = BM * KC * 128, KB = BN * KC * 128, VB = BN * VC * 128;
    static constexpr int SMEM = NQ * QB + ST * (KB + VB) + 2 * RST * RAW + 1024 + 512;
    static constexpr int CONSUMER_REGS = WIDE ? 208 : NWG == 2 ? (DIRECT && !PAGED ? 240 : 232) : 160;
    static constexpr int PRODUCER_REGS = WIDE ? 48 : NWG == 2 ? (DIRECT && !PAGED ? 24 : 40) : 32;
};

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
            const float2 f = unpack2<DT_BF16>(w[k]);
            w[k] = pack2<DT_F16>(fminf(fmaxf(f.x, -65504.f), 65504.f), fminf(fmaxf(f.y, -65504.f), 65504.f));
        }
        st_shared_v4(q + i * 16, x);
    }
}

template <class T>
ATTN_DEV void widen_tiles(const flash_params &p, const tile_info *infos, uint32_t sQ, uint32_t sK,
                          uint32_t sV, uint32_t sRaw, uint32_t qfull, uint32_t qempty, uint32_t kfull,
                          uint32_t kempty, uint32_t vfull, uint32_t vempty, uint32_t qready, uint32_t kraw,
                          uint32_t kread, uint32_t vraw, uint32_t vread, int warp, int lane) {
    auto arrive = [&](uint32_t bar) { /* what this warp wrote is there for wgmma */
                                      fence_proxy_async();
                                      __syncwarp();
                                      if (lane == 0) mbar_arrive(bar);
    };
    int it = 0;
#pragma unroll 1
    for (int wk = 0;; wk++) {
        const int qs = wk % T::NQ;
        mbar_wait(qfull + 8 * qs, (wk / T::NQ) & 1);
        const tile_info &ti = infos[qs];
        const int last = ti.last, count = ti.count, lo = ti.skipped, hi = ti.kv_len;
        const bool more = ti.block >= 0;
        if (more && p.q_dtype == DT_BF16) narrow_q<T>(sQ + qs * T::QB, warp, lane);
        arrive(qready + 8 * qs);
        if (!more) return;
        if (lane == 0)
            mbar_arrive(qempty + 8 * qs); /* read; the consumers keep the buffer as long as they need */
#pragma unroll 1
        for (int j = last; j > last - count; j--, it++) {
            const int s = it % T::ST, ph = (it / T::ST) & 1, r = it % T::RST, rp = (it / T::RST) & 1;
            mbar_wait(kraw + 8 * r, rp);
            mbar_wait(kempty + 8 * s, ph ^ 1);
            widen_tile<T>(sRaw + r * T::RAW, sK + s * T::KB, 0, T::BN, warp, lane);
            arrive(kfull + 8 * s);
            if (lane == 0) mbar_arrive(kread + 8 * r);
            mbar_wait(vraw + 8 * r, rp);
            mbar_wait(vempty + 8 * s, ph ^ 1);
            widen_tile<T>(sRaw + (T::RST + r) * T::RAW, sV + s * T::VB, lo - j * T::BN, hi - j * T::BN, warp,
                          lane);
            arrive(vfull + 8 * s);
            if (lane == 0) mbar_arrive(vread + 8 * r);
        }
    }
}

template <int DT, class T, bool PAGED, bool FEATURE>
__global__ void __launch_bounds__(T::THREADS, 1)
    prefill90_kernel(const __grid_constant__ flash_sm90_params P) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) /* empty where only other architectures were asked for */
    constexpr int BM = T::BM, BN = T::BN, NWG = T::NWG, NQ = T::NQ, ST = T::ST, DV = T::DV;
    constexpr int QSTEPS = (T::DK + 15) / 16;
    /* EARLY: the buffer of Q in registers is free for a later tile at once, as the result leaves from registers too. */
    constexpr bool REGQ = T::REGQ && !FEATURE, EARLY = REGQ && DV % 32 == 0;
    /* The two warpgroups issue their products in turn, so that one has its softmax under the other's products. */
    constexpr bool TURNS = T::DIRECT || EARLY;
    /* A tile's last product may run under the next one's first where Q has two buffers; three warpgroups with features
     * have no registers left for it, and causal tiles of a few blocks are slower that way (README.md). */
    constexpr bool CAN_OVERLAP = NQ == 2 && !(FEATURE && NWG == 3);
    const bool overlap = CAN_OVERLAP && P.overlap;
    constexpr bool LATE = NQ == 1; /* the next Q waits for this tile's last scores anyway */
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    constexpr bool WIDE = T::WIDE;
    __shared__ __align__(8) uint64_t bars[3 * NQ + 4 * ST + 4 * T::RST];
    __shared__ tile_info infos[T::INFOS];
    const flash_params &p = P.p;
    const uint32_t base = (smem_addr(smem_raw) + 1023) & ~1023u;
    const uint32_t sQ = base, sK = sQ + NQ * T::QB, sV = sK + ST * T::KB, sRaw = sV + ST * T::VB;
    const uint32_t qfull = smem_addr(bars), qempty = qfull + 8 * NQ, kfull = qempty + 8 * NQ,
                   kempty = kfull + 8 * ST, vfull = kempty + 8 * ST, vempty = vfull + 8 * ST;
    /* wide: Q converted; bytes of K and of V there, and read */
    const uint32_t qready = vempty + 8 * ST, kraw = qready + 8 * NQ, kread = kraw + 8 * T::RST,
                   vraw = kread + 8 * T::RST, vread = vraw + 8 * T::RST;
    const int wg = threadIdx.x >> 7, tid = threadIdx.x & 127, lane = threadIdx.x & 31;
    const int warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < NQ; i++)
            mbar_init(qfull + 8 * i, 1),
                mbar_init(qempty + 8 * i, EARLY ? 4 * NWG : NWG + (WIDE ? T::WIDENERS : 0));
        for (int i = 0; i < ST; i++) {
            mbar_init(kfull + 8 * i, WIDE ? T::WIDENERS : 1), mbar_init(kempty + 8 * i, NWG);
            mbar_init(vfull + 8 * i, WIDE ? T::WIDENERS : 1), mbar_init(vempty + 8 * i, NWG);
        }
        if constexpr (WIDE) {
            for (int i = 0; i < NQ; i++)
                mbar_init(qready + 8 * i, T::WIDENERS);
            for (int i = 0; i < T::RST; i++) {
                mbar_init(kraw + 8 * i, 1), mbar_init(kread + 8 * i, T::WIDENERS);
                mbar_init(vraw + 8 * i, 1), mbar_init(vread + 8 * i, T::WIDENERS);
            }
        }
        mbar_init_fence();
    }
    __syncthreads();

    if (wg < T::FIRST) {
        setmaxnreg_dec<T::PRODUCER_REGS>();
        if constexpr (WIDE) {
            if (warp != 0) {
                widen_tiles<T>(p, infos, sQ, sK, sV, sRaw, qfull, qempty, kfull, kempty, vfull, vempty,
                               qready, kraw, kread, vraw, vread, warp - 1, lane);
                return;
            }
        }
        if (warp != 0) return;
        const int num_tiles = __ldg(&p.counts->num_tiles), sect = P.head_section;
        const int total = num_tiles * p.num_q_heads;
        const int box = P.box_rows, boxes = PAGED ? BN / box : 1;
        const pager pg(PAGED ? p.page_size : 16);
        /* Q and the description of a tile; the consumers of the tile before the last must have left the buffer. */
        auto send_q = [&](const tile_job &x, int wk) {
            const seq_view sv = view_of(x.view, x.tile.w);
            int lo, hi;
            tile_keys<BM>(p, x, sv, lo, hi);
            const int qs = wk % NQ;
            mbar_wait(qempty + 8 * qs, ((wk / NQ) & 1) ^ 1);
            if (lane == 0) {
                describe_tile<BN>(p, x, sv, lo, hi, PAGED ? box : 0, infos[wk % T::INFOS]);
                mbar_expect(qfull + 8 * qs, T::QB);
            }
            __syncwarp();
            if (lane < T::KC)
                tma_3d(sQ + qs * T::QB + lane * BM * 128, &P.q_map, lane * 64, sv.q0 + x.tile.y * BM, x.head,
                       qfull + 8 * qs);
        };
        /* The first tiles are dealt out, the others drawn: LATE, shortly before the end of the tile before, so that no CTA holds
         * on to a long tile while others are idle; or, where a second buffer lets Q come early, a tile further ahead. All CTAs
         * together draw as often as the caller of draw() says, after which the counter is 0 again. */
        const bool draws = P.more.ticket != nullptr;
        auto draw = [&](unsigned of_all) {
            return lane == 0 ? (int)atomicInc((unsigned *)P.more.ticket, of_all - 1) : 0;
        };
        int it = 0, wk = 0, ticket = 0;
        tile_job now, next;
        if ((int)blockIdx.x < total) {
            now = job_of(p, num_tiles, sect, blockIdx.x);
            send_q(now, 0);
        }
#pragma unroll 1
        for (int t = blockIdx.x, after = 0; t < total; t = after, wk++) {
            bool more = false;
            auto take = [&](int number) {
                after = number;
                more = after < total;
                if (more) next = job_of(p, num_tiles, sect, after);
            };
            if (!LATE || !draws) /* its description arrives while this tile's keys are on their way */
                take(draws && wk > 0 ? __shfl_sync(~0u, ticket, 0) + 2 * gridDim.x : t + gridDim.x);
            if (!LATE && draws && more) ticket = draw(total - gridDim.x);
            const tile_info &ti = infos[wk % T::INFOS];
            const int last = ti.last, first = ti.last - ti.count + 1, skipped = ti.skipped,
                      kv_len = now.view.z;
            const int kvh = now.head / p.group, row0 = now.tile.z;
            const int32_t *table = PAGED ? p.counts->block_table + (int64_t)(now.tile.x + p.seq_offset) *
                                                                       p.counts->block_table_stride
                                         : nullptr;
            /* paged: lane i brings the i-th group of box_rows keys, its page id fetched one block ahead */
            auto page_of = [&](int j) {
                int tok = j * BN + lane * box;
                return PAGED && lane < boxes && tok < kv_len && tok >= skipped && j >= first
                           ? __ldg(table + pg.page(tok))
                           : -1;
            };
            int page = page_of(last);
            bool sent = !more;
#pragma unroll 1
            for (int j = last; j >= first; j--, it++) {
                const int s = it % ST, ph = (it / ST) & 1, next_page = page_of(j - 1);
                if (NQ == 2 && !sent &&
                    j == last - (EARLY ? 1 : 2)) { /* enough is under way: now the next tile's Q */
                    send_q(next, wk + 1);
                    sent = true;
                }
                if constexpr (WIDE) {
                    const int tok = j * BN + lane * box, in_page = pg.offset(tok) >> 3;
                    const bool ok = page >= 0;
                    const int n = __popc(__ballot_sync(~0u, ok)) * box * 128;
                    const int r = it % T::RST, rp = (it / T::RST) & 1;
                    const uint32_t dst = sRaw + r * T::RAW + lane * box * 128;
                    mbar_wait(kread + 8 * r, rp ^ 1);
                    if (lane == 0) mbar_expect(kraw + 8 * r, n);
                    __syncwarp();
                    if (ok)
                        tma_4d(dst, &P.k_map, 0, 0, in_page, page * P.k_page_units + kvh * P.k_head_units,
                               kraw + 8 * r);
                    mbar_wait(vread + 8 * r, rp ^ 1);
                    if (lane == 0) mbar_expect(vraw + 8 * r, n);
                    __syncwarp();
                    if (ok)
                        tma_4d(dst + T::RST * T::RAW, &P.v_map, 0, 0, in_page,
                               page * P.v_page_units + kvh * P.v_head_units, vraw + 8 * r);
                    page = next_page;
                } else if constexpr (PAGED) {
                    const int tok = j * BN + lane * box;
                    const bool ok = page >= 0;
                    const int n = __popc(__ballot_sync(~0u, ok));
                    const int in_page = pg.offset(tok) >> 3;
                    mbar_wait(kempty + 8 * s, ph ^ 1);
                    if (lane == 0) mbar_expect(kfull + 8 * s, n * box * T::KC * 128);
                    __syncwarp();
                    if (ok) {
                        const int at = page * P.k_page_units + kvh * P.k_head_units;
                        if constexpr (T::KMERGED)
                            tma_5d(sK + s * T::KB + lane * box * T::KC * 128, &P.k_map, 0, 0, 0, in_page, at,
                                   kfull + 8 * s);
                        else
                            for (int c = 0; c < T::KC; c++)
                                tma_4d(sK + s * T::KB + c * T::KHF + lane * box * 128, &P.k_map, c * 64, 0,
                                       in_page, at, kfull + 8 * s);
                    }
                    mbar_wait(vempty + 8 * s, ph ^ 1);
                    if (lane == 0) mbar_expect(vfull + 8 * s, n * box * T::VC * 128);
                    __syncwarp();
                    if (ok) {
                        const int at = page * P.v_page_units + kvh * P.v_head_units;
                        if constexpr (T::VMERGED)
                            tma_5d(sV + s * T::VB + lane * box * T::VC * 128, &P.v_map, 0, 0, 0, in_page, at,
                                   vfull + 8 * s);
                        else
                            for (int c = 0; c < T::VC; c++)
                                tma_4d(sV + s * T::VB + c * T::VHF + lane * box * 128, &P.v_map, c * 64, 0,
                                       in_page, at, vfull + 8 * s);
                    }
                    page = next_page;
                } else {
                    mbar_wait(kempty + 8 * s, ph ^ 1);
                    if (lane == 0) mbar_expect(kfull + 8 * s, T::KB);
                    __syncwarp();
                    if (lane < T::KC) {
                        const int column = lane * 64 - P.k_tail_at;
                        if (column < 0)
                            tma_3d(sK + s * T::KB + lane * T::KHF, &P.k_map, lane * 64, row0 + j * BN, kvh,
                                   kfull + 8 * s);
                        else
                            tma_3d(sK + s * T::KB + lane * T::KHF, &P.k_tail_map, column, row0 + j * BN, 0,
                                   kfull + 8 * s);
                    }
                    mbar_wait(vempty + 8 * s, ph ^ 1);
                    if (lane == 0) mbar_expect(vfull + 8 * s, T::VB);
                    __syncwarp();
                    if (lane < T::VC)
                        tma_3d(sV + s * T::VB + lane * T::VHF, &P.v_map, lane * 64, row0 + j * BN, kvh,
                               vfull + 8 * s);
                }
                if (LATE && draws) {
                    if (j == min(last, first + 3)) ticket = draw(total);
                    if (j == min(last, first + 2)) {
                        take(__shfl_sync(~0u, ticket, 0) + gridDim.x);
                        sent = !more;
                    }
                }
            }
            if (!sent) send_q(next, wk + 1);
            now = next;
        }
        mbar_wait(qempty + 8 * (wk % NQ), ((wk / NQ) & 1) ^ 1);
        if (lane == 0) {
            infos[wk % T::INFOS].block = -1;
            mbar_arrive(qfull + 8 * (wk % NQ));
        }
        return;
    }

    setmaxnreg_inc<T::CONSUMER_REGS>();
    const int w = wg - T::FIRST, wr = tid >> 5, g = lane >> 2, q = lane & 3;
    float c = FEATURE ? 1.f : p.scale * LOG2E; /* wide: of the tile's head */
    int it = 0, qs = 0;
    float o[DV / 2], m0 = -INFINITY, m1 = -INFINITY, l0 = 0.f, l1 = 0.f, f0, f1, slope = 0.f;
    uint32_t pr[BN / 4];
    /* The tile at work. Registers are the scarce thing: what is rarely used stays in shared memory. */
    const tile_info *ti = infos;
    int last = 0, stop = 0, all_lo = 0,
        all_hi = 0; /* key blocks last .. stop + 1; keys that all rows here see */
    uint64_t qd = 0;
    uint32_t qr[REGQ ? 4 * QSTEPS : 1];
    auto view = [&]() { return view_of(*ti); };
    auto my_row = [&]() { return ti->block * BM + w * 64 + wr * 16 + g; }; /* and the one 8 further down */
    auto enter_tile = [&](int wk) {
        qs = wk % NQ;
        mbar_wait((WIDE ? qready : qfull) + 8 * qs, (wk / NQ) & 1);
        ti = infos + wk % T::INFOS;
        if (ti->block < 0) return false;
        int unused;
        last = ti->last, stop = ti->last - ti->count;
        visible_keys(p, view(), ti->block * BM + w * 64, unused, all_hi);
        visible_keys(p, view(), ti->block * BM + w * 64 + 63, all_lo, unused);
        qd = wgmma_desc(sQ + qs * T::QB + w * 8192, 16, 1024);
        if constexpr (REGQ) {
            const uint32_t rows = sQ + qs * T::QB + (w * 64 + wr * 16 + (lane & 15)) * 128;
#pragma unroll
            for (int k = 0; k < QSTEPS; k++)
                ldmatrix_x4(reinterpret_cast<uint32_t(&)[4]>(qr[4 * k]),
                            rows + (k >> 2) * (BM * 128) + (((2 * (k & 3) + (lane >> 4)) ^ (lane & 7)) << 4));
            if constexpr (EARLY) {
                __syncwarp();
                if (lane == 0) mbar_arrive(qempty + 8 * qs);
            }
        }
        slope = FEATURE && p.alibi ? __ldg(p.alibi + ti->head) * LOG2E : 0.f;
        if constexpr (WIDE && !FEATURE) c = p.scale * LOG2E * qk_scale(p, ti->head / p.group);
        return true;
    };
    auto mask = [&](float(&sc)[BN / 2], int j) {
        const int k0 = j * BN + 2 * q;
        if constexpr (FEATURE) {
            score_features(p, WIDE ? qk_scale(p, ti->head / p.group) : 1.f).apply(sc);
            if (p.alibi) add_alibi(sc, slope, k0 - (ti->kv_len - ti->q_len + my_row()));
        }
        if ((j + 1) * BN > all_hi) mask_above(sc, p, view(), my_row(), k0);
        if (j * BN < all_lo) mask_below(sc, p, view(), my_row(), k0);
    };
    auto softmax = [&](float(&sc)[BN / 2]) { softmax_block(sc, c, 0.f, 8.f, m0, m1, l0, l1, f0, f1); };
    auto pack = [&](float(&sc)[BN / 2]) {
#pragma unroll
        for (int i = 0; i < BN / 4; i++)
            pr[i] = pack2<DT>(sc[2 * i], sc[2 * i + 1]);
    };
    auto qk = [&](float(&sc)[BN / 2], int s) {
        const uint64_t kd = wgmma_desc(sK + s * T::KB, 16, T::KRG);
        wgmma_fence();
        if constexpr (REGQ)
            wgmma_rkz<BN, DT>::run(sc, qr, kd);
        else
            wgmma_ssz<BN, DT>::run(sc, qd, kd);
#pragma unroll
        for (int k = 1; k < QSTEPS; k++) {
            const uint64_t kk = kd + ((k >> 2) * T::KHF >> 4) + (k & 3) * 2;
            if constexpr (REGQ)
                wgmma_rk<BN, DT>::run(sc, qr + 4 * k, kk);
            else
                wgmma_ss<BN, DT>::run(sc, qd + ((k >> 2) * (BM * 128) >> 4) + (k & 3) * 2, kk);
        }
        wgmma_commit();
    };
    auto pv = [&](int s) {
        const uint64_t vd = wgmma_desc(sV + s * T::VB, T::VHF, T::VRG);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BN / 16; k++)
            wgmma_rs<DV, DT>::run(o, pr + 4 * k, vd + ((uint64_t)(k * 2 * T::VRG) >> 4));
        wgmma_commit();
    };
    /* Rows of V that hold no key of this request may be NaN, and 0 * NaN is NaN: make them zero. All consumers
             * work on the same block, and none multiplies before all have written. */
    auto clean = [&](int s, int j) {
        if constexpr (!WIDE) {
            const int lo_row = ti->skipped - j * BN, hi_row = ti->kv_len - j * BN;
            if (lo_row <= 0 && hi_row >= BN) return;
            for (int i = threadIdx.x - 128; i < BN * T::VC * 8; i += NWG * 128) {
                const int r = i / (T::VC * 8), x = i % (T::VC * 8);
                if (r < lo_row || r >= hi_row)
                    st_shared_v4(sV + s * T::VB + (r >> 3) * T::VRG + (r & 7) * 128 + (x >> 3) * T::VHF +
                                     (x & 7) * 16,
                                 make_uint4(0, 0, 0, 0));
            }
            fence_proxy_async();
            named_barrier(1, NWG * 128);
        }
    };
    auto release = [&](uint32_t bar) {
        if (tid == 0) mbar_arrive(bar);
    };

    auto clear_output = [&]() {
#pragma unroll
        for (int i = 0; i < DV / 2; i++)
            o[i] = 0.f;
    };
    /* Result rows `row` and row + 8 from the registers of four neighbours, each of which stores 16 bytes of every 64; where
     * an earlier result lies there, the sum of the two by their weights (semantics 6.5). */
    auto write_rows = [&](const tile_info &t, int row, float b0, float b1, float l0, float l1, float r0,
                          float r1) {
        const int rows[2] = {row, row + 8};
        float factor[2] = {r0, r1}, old[2] = {0.f, 0.f};
        if (T::DIRECT && P.more.old_lse) {
            const float part[2] = {natural_lse(b0, l0), natural_lse(b1, l1)};
            merged m[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *lse = P.more.old_lse + t.head * P.more.old_lse_head + t.q0 + rows[i];
                m[i] = merge_weights(rows[i] < t.q_len ? *lse : -INFINITY, part[i]);
                factor[i] *= m[i].part, old[i] = m[i].old;
            }
            __syncwarp(); /* all have read, and p.lse may be old_lse */
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (p.lse && q == 0 && rows[i] < t.q_len)
                    p.lse[(int64_t)(t.q0 + rows[i]) * p.lse_token + (int64_t)t.head * p.lse_head] = m[i].lse;
        } else if (p.lse && q == 0)
            write_lse(p, t.q0, t.q_len, t.head, t.piece, row, b0, b1, l0, l1);
        uint16_t *to = (uint16_t *)p.out + t.piece * p.out_piece + (int64_t)(t.q0 + row) * p.out_token +
                       (int64_t)t.head * p.out_head + q * 8;
#pragma unroll
        for (int c = 0; c < DV; c += 32)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *x = o + c / 2 + 2 * i, f = factor[i];
                uint4 y =
                    transpose_quad(make_uint4(pack2<DT>(x[0] * f, x[1] * f), pack2<DT>(x[4] * f, x[5] * f),
                                              pack2<DT>(x[8] * f, x[9] * f), pack2<DT>(x[12] * f, x[13] * f)),
                                   q);
                if (rows[i] >= t.q_len || c + q * 8 >= p.head_size_v) continue;
                uint4 *at = (uint4 *)(to + 8 * i * p.out_token + c);
                if (old[i] != 0.f) y = add_scaled<DT>(y, *at, old[i]);
                *at = y;
            }
    };
    auto write_tile = [&](const tile_info &t, int slot, float em0, float em1, float el0, float el1,
                          float ec) {
        el0 += __shfl_xor_sync(~0u, el0, 1);
        el1 += __shfl_xor_sync(~0u, el1, 1);
        el0 += __shfl_xor_sync(~0u, el0, 2);
        el1 += __shfl_xor_sync(~0u, el1, 2);
        const int row = t.block * BM + w * 64 + wr * 16 + g, first_row = row - g, q0 = t.q0, q_len = t.q_len,
                  head = t.head, piece = t.piece;
        float b0 = em0 == -INFINITY ? NO_MAX : em0 * ec, b1 = em1 == -INFINITY ? NO_MAX : em1 * ec, r0, r1;
        finish_rows(p, head, b0, b1, el0, el1, r0, r1);
        if constexpr (WIDE) {
            const float vscale = p.v_scale ? __ldg(p.v_scale + head / p.group * p.scale_stride) : 1.f;
            r0 *= vscale, r1 *= vscale;
        }
        r0 = el0 > 0.f ? r0 / el0 : 0.f;
        r1 = el1 > 0.f ? r1 / el1 : 0.f;
        if constexpr (T::DIRECT || EARLY) {
            write_rows(t, row, b0, b1, el0, el1, r0, r1);
            return;
        }
        if (p.lse && q == 0) write_lse(p, q0, q_len, head, piece, row, b0, b1, el0, el1);
        /* O through this warpgroup's own rows of Q: every warp's QK of the tile is behind this barrier */
        named_barrier(2 + w, 128);
        auto pair = [&](float x, float y) { return WIDE ? pack2_as(p.out_dtype, x, y) : pack2<DT>(x, y); };
        const uint32_t so = sQ + slot * T::QB + (w * 64 + wr * 16) * 128;
#pragma unroll
        for (int i = 0; i < DV / 16; i++) {
            const int ch = 2 * i + (lane >> 4), rw = lane & 15;
            stmatrix_x4(so + (ch >> 3) * (BM * 128) + rw * 128 + (((ch & 7) ^ (rw & 7)) << 4),
                        pair(o[8 * i] * r0, o[8 * i + 1] * r0), pair(o[8 * i + 2] * r1, o[8 * i + 3] * r1),
                        pair(o[8 * i + 4] * r0, o[8 * i + 5] * r0),
                        pair(o[8 * i + 6] * r1, o[8 * i + 7] * r1));
        }
        if constexpr (DV % 16 != 0) {
            constexpr int i = DV / 16, ch = 2 * i;
            const int rw = lane & 15;
            stmatrix_x2(so + (ch >> 3) * (BM * 128) + rw * 128 + (((ch & 7) ^ (rw & 7)) << 4),
                        pair(o[8 * i] * r0, o[8 * i + 1] * r0), pair(o[8 * i + 2] * r1, o[8 * i + 3] * r1));
        }
        __syncwarp();
        constexpr int UNITS = 16 * (DV / 8), PASSES = (UNITS + 31) / 32;
        uint4 x[PASSES];
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const int u = i * 32 + lane, rw = u / (DV / 8), ch = u % (DV / 8);
            if (UNITS % 32 == 0 || u < UNITS)
                x[i] = ld_shared_v4(so + (ch >> 3) * (BM * 128) + rw * 128 + (((ch & 7) ^ (rw & 7)) << 4));
        }
        fence_proxy_async();
        named_barrier(2 + w, 128);
        release(qempty + 8 * slot);
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const int u = i * 32 + lane, rw = u / (DV / 8), ch = u % (DV / 8);
            const int r = first_row + rw;
            if ((UNITS % 32 == 0 || u < UNITS) && r < q_len && ch * 8 < p.head_size_v)
                *(uint4 *)((uint16_t *)p.out + piece * p.out_piece + (int64_t)(q0 + r) * p.out_token +
                           (int64_t)head * p.out_head + ch * 8) = x[i];
        }
    };
    /* The first block of a tile, with nothing to run beside it. */
    auto start_tile = [&]() {
        float sc[BN / 2];
        const int s = it % ST;
        mbar_wait(kfull + 8 * s, (it / ST) & 1);
        qk(sc, s);
        wgmma_wait<0>();
        wgmma_pin(sc);
        release(kempty + 8 * s);
        if (T::DIRECT && last == stop + 1) release(qempty);
        mask(sc, last);
        softmax(sc);
        pack(sc);
    };
    auto clean_first = [&]() {
        if ((last + 1) * BN > ti->kv_len) {
            mbar_wait(vfull + 8 * (it % ST), (it / ST) & 1);
            clean(it % ST, last);
        }
    };

    if (!enter_tile(0)) return;
    if (TURNS && w == 1) named_arrive(5, 256); /* the first turn is warpgroup 0's */
    start_tile();
    clean_first();
#pragma unroll 1
    for (int wk = 0;; wk++) {
        clear_output();
#pragma unroll 1
        for (int j = last - 1; j > stop; j--) {
            float sc[BN / 2];
            const int s1 = (it + 1) % ST, s = it % ST;
            mbar_wait(kfull + 8 * s1, ((it + 1) / ST) & 1);
            if (TURNS) named_barrier(5 + w, 256);
            qk(sc, s1);
            mbar_wait(vfull + 8 * s, (it / ST) & 1);
            wgmma_pin(o);
            pv(s);
            if (TURNS) named_arrive(5 + (w ^ 1), 256);
            wgmma_wait<1>();
            wgmma_pin(sc);
            release(kempty + 8 * s1);
            if (T::DIRECT && j == stop + 1) release(qempty);
            mask(sc, j);
            wgmma_wait<0>();
            wgmma_pin(o);
            release(vempty + 8 * s);
            if (!softmax_trusted<DT>(sc, c, m0, m1, l0, l1, pr)) {
                softmax(sc);
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
        mbar_wait(vfull + 8 * s, (it / ST) & 1);
        if (PAGED && ti->skipped > (stop + 1) * BN) clean(s, stop + 1);
        if (CAN_OVERLAP && overlap && enter_tile(wk + 1)) {
            /* the last PV of this tile runs under the first QK and softmax of the next, whose Q is there already */
            float sc[BN / 2];
            const int s1 = (it + 1) % ST;
            mbar_wait(kfull + 8 * s1, ((it + 1) / ST) & 1);
            qk(sc, s1);
            wgmma_pin(o);
            pv(s);
            wgmma_wait<1>();
            wgmma_pin(sc);
            release(kempty + 8 * s1);
            const float dm0 = m0, dm1 = m1, dl0 = l0, dl1 = l1;
            m0 = m1 = -INFINITY;
            l0 = l1 = 0.f;
            mask(sc, last);
            softmax(sc);
            wgmma_wait<0>();
            wgmma_pin(o);
            release(vempty + 8 * s);
            it++;
            pack(sc);
            write_tile(done, slot, dm0, dm1, dl0, dl1, dc);
            clean_first();
            continue;
        }
        wgmma_pin(o);
        pv(s);
        wgmma_wait<0>();
        wgmma_pin(o);
        release(vempty + 8 * s);
        it++;
        write_tile(done, slot, m0, m1, l0, l1, dc);
        if (overlap || !enter_tile(wk + 1)) break;
        m0 = m1 = -INFINITY;
        l0 = l1 = 0.f;
        start_tile();
        clean_first();
    }
    if (TURNS && w == 0) named_barrier(5, 256); /* the turn that nobody took */
#endif
}

template <int DT, class T, bool PAGED, bool FEATURE>
int launch_prefill90(const flash_sm90_params *P, int ctas, void *stream) {
    auto kernel = prefill90_kernel<DT, T, PAGED, FEATURE>;
    if (!P) return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::SMEM);
    kernel<<<(unsigned)ctas, T::THREADS, T::SMEM, (cudaStream_t)stream>>>(*P);
    return (int)cudaGetLastError();
}

/* BN and FBN: block_keys and feature_keys of the class in flash_config.c */
#define FLASH_PREFILL_SM90_INSTANCE(NAME, DT, DK, DV, NWG, BN, NQ, FBN)                                      \
    extern "C" int NAME(const flash_sm90_params *p, int paged, int feature, int ctas, void *stream) {        \
        using namespace attn_cuda;                                                                           \
        using C = prefill90_traits<DK, DV, NWG, BN, NQ, false>;                                              \
        using G = prefill90_traits<DK, DV, NWG, BN, NQ, true>;                                               \
        using CF = prefill90_traits<DK, DV, NWG, FBN, NQ, false>;                                            \
        using GF = prefill90_traits<DK, DV, NWG, FBN, NQ, true>;                                             \
        if (paged)                                                                                           \
            return feature ? launch_prefill90<DT, GF, true, true>(p, ctas, stream)                           \
                           : launch_prefill90<DT, G, true, false>(p, ctas, stream);                          \
        return feature ? launch_prefill90<DT, CF, false, true>(p, ctas, stream)                              \
                       : launch_prefill90<DT, C, false, false>(p, ctas, stream);                             \
    }

/* The same for an e4m3 cache under 16-bit queries. */
#define FLASH_PREFILL_WIDE_SM90_INSTANCE(NAME, DK, DV, NWG, BN, NQ)                                          \
    extern "C" int NAME(const flash_sm90_params *p, int paged, int feature, int ctas, void *stream) {        \
        using namespace attn_cuda;                                                                           \
        using T = prefill90_traits<DK, DV, NWG, BN, NQ, true, true>;                                         \
        (void)paged;                                                                                         \
        return feature ? launch_prefill90<DT_F16, T, true, true>(p, ctas, stream)                            \
                       : launch_prefill90<DT_F16, T, true, false>(p, ctas, stream);                          \
    }

} /* namespace attn_cuda */
#endif
