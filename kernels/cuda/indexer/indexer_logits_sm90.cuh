/* SPDX-License-Identifier: Apache-2.0 */
/* Index logits on Hopper: TMA, wgmma on e4m3, four producer warps that take turns, and warpgroups of 64 keys
 * each: two with many registers where keys lie in one piece, four where they are cached and the reads are
 * what takes the time.
 *
 * Keys are the rows of the product and heads its columns, so that a thread holds 16 of the 64 heads of each
 * query for its two keys, the weights stay in registers for all keys, and two shuffles finish the sum over
 * heads. A block is one product of a warpgroup; while it sums, the others have the tensor cores.
 *
 * Work: tile t is NQ query rows against blocks of BK keys. All blocks of all tiles are numbered, and each CTA
 * takes one contiguous piece of them, equal within one block; it finds where its piece begins by adding up
 * all tiles itself. So causal ranges are balanced and lengths may change between replays of a graph. */
#ifndef INDEXER_LOGITS_SM90_CUH
#define INDEXER_LOGITS_SM90_CUH

#include "../ptx/launch.cuh"
#include "indexer_logits_sm90.h"
#include "indexer_wgmma_sm90.cuh"

namespace attn_cuda {

template <int H_, int NQ_, bool PAGED>
struct index_traits {
    static constexpr int H = H_, NQ = NQ_, N = H * NQ, NWG = PAGED ? 4 : 2, BK = 64 * NWG,
                         THREADS = 128 * (NWG + 1);
    static constexpr int QBUF = 2, QB = N * 128, KB = BK * 128, SB = BK * 4;
    static constexpr int ST = PAGED ? (NQ == 1 ? 6 : 5) : 7;
    static constexpr int PRODUCER_REGISTERS = PAGED ? 32 : 40,
                         REGISTERS = PAGED ? 112 : 232; /* as many as at the start */
    static constexpr int SMEM = QBUF * QB + ST * (KB + SB) + 1024;
    static_assert(SMEM <= 227 * 1024 - 1024, "stages do not fit");
};

ATTN_DEV void tma_1d(uint32_t dst, const void *map, int a, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
                 "{%2}], [%3];" ::"r"(dst),
                 "l"(map), "r"(a), "r"(bar)
                 : "memory");
}
ATTN_DEV void tma_2d(uint32_t dst, const void *map, int a, int b, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
                 "{%2,%3}], [%4];" ::"r"(dst),
                 "l"(map), "r"(a), "r"(b), "r"(bar)
                 : "memory");
}
ATTN_DEV void bulk_copy(uint32_t dst, const void *src, int bytes, uint32_t bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
        "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}

/* Keys that a row sees. */
ATTN_DEV int2 index_row_range(const indexer_logits_params &p, int row) {
    if (row >= p.num_rows) return make_int2(0, 0);
    const int lo = p.starts ? max(__ldg(p.starts + row), 0) : 0, hi = min(__ldg(p.ends + row), p.num_keys);
    return lo < hi ? make_int2(lo, hi) : make_int2(0, 0);
}
/* First key (a multiple of 8, so that rows of logits are written in whole sectors) and blocks of a tile. */
template <class T>
ATTN_DEV int2 index_tile(const indexer_logits_params &p, int tile) {
    int lo = INT32_MAX, hi = 0;
    for (int i = 0; i < T::NQ; i++) {
        const int2 r = index_row_range(p, tile * T::NQ + i);
        if (r.x < r.y) lo = min(lo, r.x), hi = max(hi, r.y);
    }
    if (lo >= hi) return make_int2(0, 0);
    lo &= ~7;
    return make_int2(lo, (hi - lo + T::BK - 1) / T::BK);
}

/* The blocks of one CTA in order: tile, first key of the block. */
template <class T>
struct index_walk {
    const indexer_logits_params &p;
    int tile, left, key, blocks; /* blocks: of this tile, still to come with the current one */
    ATTN_DEV index_walk(const indexer_logits_params &p_, int tile_, int offset, int left_)
        : p(p_), tile(tile_), left(left_) {
        const int2 t = index_tile<T>(p, tile);
        key = t.x + offset * T::BK;
        blocks = t.y - offset;
    }
    /* Returns true where the next block belongs to another tile. left > 0 promises that there is one. */
    ATTN_DEV bool next() {
        left--;
        if (--blocks > 0 || left == 0) {
            key += T::BK;
            return false;
        }
        int2 t;
        do
            t = index_tile<T>(p, ++tile);
        while (t.y == 0);
        key = t.x, blocks = t.y;
        return true;
    }
};

template <class T, bool PAGED>
__global__ void __launch_bounds__(T::THREADS, 1)
    index_logits_kernel(const __grid_constant__ indexer_sm90_params P) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) /* empty where only other architectures were asked for */
    constexpr int ST = T::ST, NQ = T::NQ, N = T::N, H = T::H, BK = T::BK;
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    __shared__ __align__(8) uint64_t bars[2 * T::QBUF + 2 * ST]; /* the empty ones count consumer warps */
    __shared__ int warp_sums[T::THREADS / 32], found[3];
    const indexer_logits_params &p = P.p;
    const uint32_t base = (smem_addr(smem_raw) + 1023) & ~1023u;
    const uint32_t sQ = base, sK = sQ + T::QBUF * T::QB, sS = sK + ST * T::KB;
    const uint32_t qfull = smem_addr(bars), qempty = qfull + 8 * T::QBUF, full = qempty + 8 * T::QBUF,
                   empty = full + 8 * ST;
    const int wg = threadIdx.x >> 7, lane = threadIdx.x & 31;
    const int warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < T::QBUF; i++)
            mbar_init(qfull + 8 * i, 1), mbar_init(qempty + 8 * i, 4 * T::NWG);
        for (int i = 0; i < ST; i++)
            mbar_init(full + 8 * i, 1), mbar_init(empty + 8 * i, 4 * T::NWG);
        mbar_init_fence();
        found[2] = 0;
    }

    /* where this CTA's piece begins: every thread adds up a stretch of tiles */
    const int tiles = (p.num_rows + NQ - 1) / NQ, per = (tiles + T::THREADS - 1) / T::THREADS;
    const int t0 = min(tiles, (int)threadIdx.x * per), t1 = min(tiles, t0 + per);
    int mine = 0;
    for (int t = t0; t < t1; t++)
        mine += index_tile<T>(p, t).y;
    int before = mine; /* inclusive sum over the warp, then over the CTA */
    for (int i = 1; i < 32; i *= 2) {
        const int x = __shfl_up_sync(~0u, before, i);
        if (lane >= i) before += x;
    }
    if (lane == 31) warp_sums[warp] = before;
    __syncthreads();
    int total = 0;
    before -= mine;
    for (int i = 0; i < T::THREADS / 32; i++) {
        if (i < warp) before += warp_sums[i];
        total += warp_sums[i];
    }
    const int u0 = (int)((int64_t)total * blockIdx.x / gridDim.x),
              u1 = (int)((int64_t)total * (blockIdx.x + 1) / gridDim.x);
    if (u0 < u1 && u0 >= before && u0 < before + mine) {
        int at = before;
        for (int t = t0; t < t1; t++) {
            const int n = index_tile<T>(p, t).y;
            if (u0 < at + n) {
                found[0] = t, found[1] = u0 - at, found[2] = u1 - u0;
                break;
            }
            at += n;
        }
    }
    __syncthreads();
    if (found[2] == 0) return;
    index_walk<T> walk(p, found[0], found[1], found[2]);

    if (wg == 0) { /* warp w brings blocks w, w + 4, ..; the first one the queries too */
        setmaxnreg_dec<T::PRODUCER_REGISTERS>();
        const int box = P.box_rows, box_shift = PAGED ? __ffs(box) - 1 : 0, boxes = BK / (PAGED ? box : BK);
        const int page_boxes = PAGED ? p.cache.page_size / box : 1;
        auto send_q = [&](int n) {
            const int s = n % T::QBUF;
            mbar_wait(qempty + 8 * s, ((n / T::QBUF) & 1) ^ 1);
            if (lane == 0) {
                mbar_expect(qfull + 8 * s, T::QB);
                tma_3d(sQ + s * T::QB, &P.q_map, 0, 0, walk.tile * NQ, qfull + 8 * s);
            }
        };
        int n = 0;
        if (warp == 0) send_q(n++);
        auto advance = [&](int blocks) {
            for (int i = 0; i < blocks && walk.left > 0; i++)
                if (walk.next() && warp == 0) send_q(n++);
            return walk.left > 0;
        };
        /* paged: lane i brings box i of the block; its page is looked up one block ahead */
        int first = 0;
        auto page_of = [&](int *in_page) {
            const int at = (walk.key >> box_shift) + lane, entry = page_boxes == 1 ? at : at / page_boxes;
            *in_page = (at - entry * page_boxes) << box_shift;
            if (lane >= boxes || at << box_shift >= p.num_keys) return -1;
            const int page =
                __ldg(p.table + (int64_t)(walk.tile * NQ / p.rows_per_request) * p.table_row + entry);
            return (uint32_t)page < (uint32_t)p.cache.num_pages ? page : -1;
        };
        bool more = advance(warp);
        int page = PAGED && more ? page_of(&first) : -1;
#pragma unroll 1
        for (int it = warp; more; it += 4) {
            const int s = it % ST;
            mbar_wait(empty + 8 * s, ((it / ST) & 1) ^ 1);
            if (PAGED) {
                const bool ok = page >= 0;
                const int count = __popc(__ballot_sync(~0u, ok));
                if (lane == 0) mbar_expect(full + 8 * s, count * box * INDEXER_ROW_BYTES);
                __syncwarp();
                if (ok) {
                    tma_3d(sK + s * T::KB + lane * box * 128, &P.k_map, 0, first, page, full + 8 * s);
                    bulk_copy(sS + s * T::SB + lane * box * 4,
                              p.cache.data + page * p.cache.page_bytes + p.cache.page_size * 128 + first * 4,
                              box * 4, full + 8 * s);
                }
            } else if (lane == 0) {
                mbar_expect(full + 8 * s, T::KB + T::SB);
                tma_2d(sK + s * T::KB, &P.k_map, 0, walk.key, full + 8 * s);
                tma_1d(sS + s * T::SB, &P.s_map, walk.key, full + 8 * s);
            }
            /* behind this block, which those that use the queries two tiles before may be waiting for */
            more = advance(4);
            if (PAGED) page = more ? page_of(&first) : -1;
        }
        return;
    }

    setmaxnreg_inc<T::REGISTERS>();
    const int w = wg - 1, g = lane >> 2, q = lane & 3;
    const int first_key = w * 64 + (warp & 3) * 16 + g; /* and the one 8 further down, within the block */
    /* What the lane ends up with: this key, and of the queries KEPT neighbouring ones. */
    const int my_key = first_key + 8 * (q >> 1);
    constexpr int KEPT = NQ > 1 ? NQ / 2 : 1;
    float weights[N / 4];
    int2 range[KEPT];
    float *out[KEPT];
    auto enter = [&](int tile) {
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const int row =
                min(tile * NQ + j / (H / 8), p.num_rows - 1); /* beyond the end: the range is empty */
            const float *at = p.weights + (int64_t)row * p.weights_row + j % (H / 8) * 8 + 2 * q;
            weights[2 * j] = __ldg(at);
            weights[2 * j + 1] = __ldg(at + 1);
        }
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            const int row = tile * NQ + (NQ > 1 ? (q & 1) * KEPT + i : 0);
            range[i] = NQ == 1 && (q & 1) ? make_int2(0, 0) : index_row_range(p, row);
            out[i] = p.logits + (int64_t)row * p.logits_row;
        }
    };
    auto finish =
        [&](float(&d)[N / 2], int key,
            float scale) { /* sums over heads, stores */
                           const bool upper = q & 2, odd = q & 1;
                           float lo[NQ], hi[NQ], sum[NQ];
#pragma unroll
                           for (int i = 0; i < NQ; i++) {
                               float a0 = 0.f, a1 = 0.f, b0 = 0.f, b1 = 0.f;
#pragma unroll
                               for (int k = 0; k < H / 8; k++) {
                                   const int j = i * (H / 8) + k;
                                   const float w0 = weights[2 * j], w1 = weights[2 * j + 1];
                                   a0 = fmaf(w0, fmaxf(d[4 * j], 0.f), a0);
                                   a1 = fmaf(w1, fmaxf(d[4 * j + 1], 0.f), a1);
                                   b0 = fmaf(w0, fmaxf(d[4 * j + 2], 0.f), b0);
                                   b1 = fmaf(w1, fmaxf(d[4 * j + 3], 0.f), b1);
                               }
                               lo[i] = a0 + a1, hi[i] = b0 + b1;
                           }
        /* four lanes share two keys: bit 1 of the lane keeps one of them, bit 0 one half of the queries */
#pragma unroll
                           for (int i = 0; i < NQ; i++)
                               sum[i] =
                                   (upper ? hi[i] : lo[i]) + __shfl_xor_sync(~0u, upper ? lo[i] : hi[i], 2);
#pragma unroll
                           for (int i = 0; i < KEPT; i++) {
                               const float x =
                                   NQ == 1 ? sum[0] + __shfl_xor_sync(~0u, sum[0], 1)
                                           : (odd ? sum[(KEPT + i) % NQ] : sum[i]) +
                                                 __shfl_xor_sync(~0u, odd ? sum[i] : sum[(KEPT + i) % NQ], 1);
                               if (key >= range[i].x && key < range[i].y) out[i][key] = x * scale;
                           }
        };
    auto release = [&](uint32_t bar) { /* this warp reads no more of it */
                                       __syncwarp();
                                       if (lane == 0) mbar_arrive(bar);
    };

    int n = 0;
    mbar_wait(qfull, 0);
    enter(walk.tile);
#pragma unroll 1
    for (int it = 0;; it++) {
        float d[N / 2], scale;
        const int s = it % ST, qs = n % T::QBUF, key = walk.key + my_key;
        mbar_wait(full + 8 * s, (it / ST) & 1);
        wgmma_fence();
        wgmma_e4m3_row<N>(d, wgmma_desc(sK + s * T::KB + w * 8192, 16, 1024),
                          wgmma_desc(sQ + qs * T::QB, 16, 1024));
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale) : "r"(sS + s * T::SB + my_key * 4));
        wgmma_wait<0>();
        wgmma_pin(d);
        release(empty + 8 * s);
        finish(d, key, scale);
        const bool other = walk.next();
        if (walk.left == 0) break;
        if (other) {
            release(qempty + 8 * qs);
            n++;
            mbar_wait(qfull + 8 * (n % T::QBUF), (n / T::QBUF) & 1);
            enter(walk.tile);
        }
    }
#endif
}

template <class T, bool PAGED>
int launch_index_logits(const indexer_sm90_params *P, int ctas, void *stream) {
    auto kernel = index_logits_kernel<T, PAGED>;
    if (!P) return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::SMEM);
    return attn_cuda::launch_kernel(kernel, (unsigned)ctas, T::THREADS, T::SMEM, stream, *P);
}

#define INDEXER_LOGITS_SM90_INSTANCE(NAME, H, NQ, PAGED)                                                     \
    extern "C" int NAME(const indexer_sm90_params *p, int ctas, void *stream) {                              \
        using namespace attn_cuda;                                                                           \
        return launch_index_logits<index_traits<H, NQ, PAGED>, PAGED>(p, ctas, stream);                      \
    }

} /* namespace attn_cuda */
#endif
