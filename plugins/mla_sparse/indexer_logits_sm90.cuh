/* SPDX-License-Identifier: Apache-2.0 */
/* Index logits on Hopper: TMA, wgmma on e4m3, one producer warp and two warpgroups of 64 keys each.
 *
 * Keys are the rows of the product and heads its columns, so that a thread holds 16 of the 64 heads of each query for its
 * two keys, the weights stay in registers for all keys, and two shuffles finish the sum over heads. The columns of a tile
 * (NQ queries of H heads) come in PARTS products: while the sum of one runs in the vector units, the next one runs in the
 * tensor cores.
 *
 * Work: tile t is NQ query rows against blocks of 128 keys. All blocks of all tiles are numbered, and each CTA takes one
 * contiguous piece of them, equal within one block; it finds where its piece begins by adding up all tiles itself. So
 * causal ranges are balanced and lengths may change between replays of a graph. */
#ifndef INDEXER_LOGITS_SM90_CUH
#define INDEXER_LOGITS_SM90_CUH

#include "indexer_logits_sm90.h"
#include "indexer_wgmma_sm90.cuh"

namespace attn_cuda {

template <int H_, int NQ_, bool PAGED>
struct index_traits {
    static constexpr int H = H_, NQ = NQ_, N = H * NQ, BK = 128, THREADS = 384;
    static constexpr int PARTS = N > 64 ? 2 : 1, PN = N / PARTS, QP = NQ / PARTS; /* columns and queries of a part */
    static constexpr int QBUF = 2, QB = N * 128, KB = BK * 128, SB = BK * 4;
    static constexpr int ST = PAGED ? 11 : 7;
    static constexpr int SMEM = QBUF * QB + ST * (KB + SB) + 1024;
    static_assert(SMEM <= 227 * 1024 - 1024, "stages do not fit");
};

ATTN_DEV void tma_1d(uint32_t dst, const void *map, int a, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];"
                 ::"r"(dst), "l"(map), "r"(a), "r"(bar)
                 : "memory");
}
ATTN_DEV void tma_2d(uint32_t dst, const void *map, int a, int b, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3}], [%4];"
                 ::"r"(dst), "l"(map), "r"(a), "r"(b), "r"(bar)
                 : "memory");
}
ATTN_DEV void bulk_copy(uint32_t dst, const void *src, int bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
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
    ATTN_DEV index_walk(const indexer_logits_params &p_, int tile_, int offset, int left_) : p(p_), tile(tile_), left(left_) {
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
__global__ void __launch_bounds__(T::THREADS, 1) index_logits_kernel(const __grid_constant__ indexer_sm90_params P) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) /* empty where only other architectures were asked for */
    constexpr int ST = T::ST, NQ = T::NQ, QP = T::QP, PN = T::PN, H = T::H, BK = T::BK;
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    __shared__ __align__(8) uint64_t bars[2 * T::QBUF + 2 * ST]; /* the empty ones count the 8 consumer warps */
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
            mbar_init(qfull + 8 * i, 1), mbar_init(qempty + 8 * i, 8);
        for (int i = 0; i < ST; i++)
            mbar_init(full + 8 * i, 1), mbar_init(empty + 8 * i, 8);
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

    if (wg == 0) {
        setmaxnreg_dec<40>();
        if (warp != 0) return;
        const int box = P.box_rows, boxes = BK / box;
        auto send_q = [&](int n) {
            const int s = n % T::QBUF;
            mbar_wait(qempty + 8 * s, ((n / T::QBUF) & 1) ^ 1);
            if (lane == 0) {
                mbar_expect(qfull + 8 * s, T::QB);
                tma_3d(sQ + s * T::QB, &P.q_map, 0, 0, walk.tile * NQ, qfull + 8 * s);
            }
        };
        auto page_of = [&](const index_walk<T> &w) {
            const int key = w.key + lane * box;
            if (w.left <= 0 || lane >= boxes || key >= p.num_keys) return -1;
            const int page =
                __ldg(p.table + (int64_t)(w.tile * NQ / p.rows_per_request) * p.table_row + key / p.cache.page_size);
            return (uint32_t)page < (uint32_t)p.cache.num_pages ? page : -1;
        };
        int n = 0;
        send_q(0);
        int page = PAGED ? page_of(walk) : 0;
#pragma unroll 1
        for (int it = 0;; it++) {
            const int s = it % ST, key = walk.key;
            const bool other = walk.next();
            const int next_page = PAGED ? page_of(walk) : 0;
            mbar_wait(empty + 8 * s, ((it / ST) & 1) ^ 1);
            if (PAGED) {
                const bool ok = page >= 0;
                const int count = __popc(__ballot_sync(~0u, ok));
                if (lane == 0) mbar_expect(full + 8 * s, count * box * INDEXER_ROW_BYTES);
                __syncwarp();
                if (ok) {
                    const int first = (key + lane * box) % p.cache.page_size;
                    tma_3d(sK + s * T::KB + lane * box * 128, &P.k_map, 0, first, page, full + 8 * s);
                    bulk_copy(sS + s * T::SB + lane * box * 4,
                              p.cache.data + page * p.cache.page_bytes + p.cache.page_size * 128 + first * 4, box * 4,
                              full + 8 * s);
                }
            } else if (lane == 0) {
                mbar_expect(full + 8 * s, T::KB + T::SB);
                tma_2d(sK + s * T::KB, &P.k_map, 0, key, full + 8 * s);
                tma_1d(sS + s * T::SB, &P.s_map, key, full + 8 * s);
            }
            if (walk.left == 0) break;
            if (other) send_q(++n);
            page = next_page;
        }
        return;
    }

    setmaxnreg_inc<232>();
    const int w = wg - 1, g = lane >> 2, q = lane & 3;
    const int first_key = w * 64 + (warp & 3) * 16 + g; /* and the one 8 further down, within the block */
    /* What the lane ends up with: key first_key + 8 * (q >> 1), query q & 1 of a part of two. */
    const int my_key = first_key + 8 * (q >> 1);
    constexpr int KEPT = QP == 4 ? 2 : 1;
    struct part_rows { /* weights and rows of a part of a tile */
        float weights[PN / 4];
        int2 range[KEPT];
        float *out[KEPT];
    } part0, part1;
    auto enter = [&](part_rows &part, int row0) {
#pragma unroll
        for (int j = 0; j < PN / 8; j++) {
            const int row = min(row0 + j / (H / 8), p.num_rows - 1); /* beyond the end: the range is empty */
            const float *at = p.weights + (int64_t)row * p.weights_row + j % (H / 8) * 8 + 2 * q;
            part.weights[2 * j] = __ldg(at);
            part.weights[2 * j + 1] = __ldg(at + 1);
        }
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            const int row = row0 + (QP == 1 ? 0 : (q & 1) * KEPT + i);
            part.range[i] = QP == 1 && (q & 1) ? make_int2(0, 0) : index_row_range(p, row);
            part.out[i] = p.logits + (int64_t)row * p.logits_row;
        }
    };
    auto product = [&](float(&d)[PN / 2], int part, int s, int qs) {
        wgmma_fence();
        wgmma_e4m3_row<PN>(d, wgmma_desc(sK + s * T::KB + w * 8192, 16, 1024),
                           wgmma_desc(sQ + qs * T::QB + part * PN * 128, 16, 1024));
    };
    auto finish = [&](float(&d)[PN / 2], const part_rows &part, int key0, float scale) { /* sums over heads, stores */
        float lo[QP], hi[QP];
#pragma unroll
        for (int i = 0; i < QP; i++) {
            float a0 = 0.f, a1 = 0.f, b0 = 0.f, b1 = 0.f;
#pragma unroll
            for (int k = 0; k < H / 8; k++) {
                const int j = i * (H / 8) + k;
                const float w0 = part.weights[2 * j], w1 = part.weights[2 * j + 1];
                a0 = fmaf(w0, fmaxf(d[4 * j], 0.f), a0);
                a1 = fmaf(w1, fmaxf(d[4 * j + 1], 0.f), a1);
                b0 = fmaf(w0, fmaxf(d[4 * j + 2], 0.f), b0);
                b1 = fmaf(w1, fmaxf(d[4 * j + 3], 0.f), b1);
            }
            lo[i] = a0 + a1, hi[i] = b0 + b1;
        }
        /* four lanes share a key: lane bit 1 keeps one of the two keys, bit 0 one half of the queries */
        const bool upper = q & 2, odd = q & 1;
        float sum[QP];
#pragma unroll
        for (int i = 0; i < QP; i++)
            sum[i] = (upper ? hi[i] : lo[i]) + __shfl_xor_sync(~0u, upper ? lo[i] : hi[i], 2);
        const int key = key0 + my_key;
        if constexpr (QP == 1) {
            sum[0] += __shfl_xor_sync(~0u, sum[0], 1);
            if (key >= part.range[0].x && key < part.range[0].y) part.out[0][key] = sum[0] * scale;
        } else {
#pragma unroll
            for (int i = 0; i < KEPT; i++) {
                const float x = (odd ? sum[KEPT + i] : sum[i]) + __shfl_xor_sync(~0u, odd ? sum[i] : sum[KEPT + i], 1);
                if (key >= part.range[i].x && key < part.range[i].y) part.out[i][key] = x * scale;
            }
        }
    };
    auto release = [&](uint32_t bar) { /* this warp reads no more of it */
        if (lane == 0) mbar_arrive(bar);
    };
    auto scale_of = [&](int s) {
        float x;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(sS + s * T::SB + my_key * 4));
        return x;
    };

    int n = 0, qs = 0;
    mbar_wait(qfull, 0);
    enter(part0, walk.tile * NQ);
    if constexpr (T::PARTS == 2) enter(part1, walk.tile * NQ + QP);
#pragma unroll 1
    for (int it = 0;; it++) {
        float d0[PN / 2], d1[PN / 2];
        const int s = it % ST, key0 = walk.key;
        mbar_wait(full + 8 * s, (it / ST) & 1);
        product(d0, 0, s, qs);
        const float scale = scale_of(s);
        if constexpr (T::PARTS == 2) {
            product(d1, 1, s, qs);
            wgmma_wait<1>();
            wgmma_pin(d0);
            finish(d0, part0, key0, scale);
            wgmma_wait<0>();
            wgmma_pin(d1);
            release(empty + 8 * s);
            finish(d1, part1, key0, scale);
        } else {
            wgmma_wait<0>();
            wgmma_pin(d0);
            release(empty + 8 * s);
            finish(d0, part0, key0, scale);
        }
        const bool other = walk.next();
        if (walk.left == 0) break;
        if (other) {
            release(qempty + 8 * qs);
            n++, qs = n % T::QBUF;
            mbar_wait(qfull + 8 * qs, (n / T::QBUF) & 1);
            enter(part0, walk.tile * NQ);
            if constexpr (T::PARTS == 2) enter(part1, walk.tile * NQ + QP);
        }
    }
#endif
}

template <class T, bool PAGED>
int launch_index_logits(const indexer_sm90_params *P, int ctas, void *stream) {
    auto kernel = index_logits_kernel<T, PAGED>;
    if (!P) return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::SMEM);
    kernel<<<(unsigned)ctas, T::THREADS, T::SMEM, (cudaStream_t)stream>>>(*P);
    return (int)cudaGetLastError();
}

#define INDEXER_LOGITS_SM90_INSTANCE(NAME, H, NQ, PAGED)                                                               \
    extern "C" int NAME(const indexer_sm90_params *p, int ctas, void *stream) {                                        \
        using namespace attn_cuda;                                                                                     \
        return launch_index_logits<index_traits<H, NQ, PAGED>, PAGED>(p, ctas, stream);                                \
    }

} /* namespace attn_cuda */
#endif
