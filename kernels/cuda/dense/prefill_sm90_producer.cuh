/* SPDX-License-Identifier: Apache-2.0 */
/* The producer warp of the Hopper prefill kernels: draws tiles, describes them to the other warps, and copies
 * Q, K and V into rings of buffers in shared memory. */
#ifndef PREFILL_SM90_PRODUCER_CUH
#define PREFILL_SM90_PRODUCER_CUH

#include "../ptx/ptx_sm90.cuh"
#include "prefill_sm90_parts.cuh"
#include "prefill_sm90.h"

namespace attn_cuda {

/* Buffers one after the other, and for each a barrier that says it is full and one that says it was read. */
struct tile_ring {
    uint32_t data, full, empty;
};

/* Rows of a tile of V outside x <= r < y become zeros, by `threads` threads. LINE: bytes of a row in a
 * chunk. */
template <class T, int LINE = 128>
ATTN_DEV void zero_rows(uint32_t tile, int x, int y, int thread, int threads) {
    constexpr int UNITS = LINE / 16;
    for (int i = thread; i < T::BN * T::VC * UNITS; i += threads) {
        const int r = i / (T::VC * UNITS), u = i % (T::VC * UNITS);
        if (r < x || r >= y)
            st_shared_v4(tile + (r >> 3) * T::VALUE_GROUP_STRIDE + (r & 7) * LINE +
                             (u / UNITS) * T::VALUE_CHUNK_STRIDE + (u % UNITS) * 16,
                         make_uint4(0, 0, 0, 0));
    }
}

/* Blocks of V with rows that hold no key of the request: what lies there may be NaN, and 0 * NaN is NaN. Such
 * a block's copy completes on `copied` instead of the ring's `full`, which a warp of the stage's own
 * completes when it has made the rows zero; consumers would have to wait for one another. */
struct tile_cleaning {
    int2 *keys;      /* [stages] rows x <= r < y of the block are keys; y < 0: no more work */
    uint32_t copied; /* barriers */
};

template <class T>
ATTN_DEV void clean_tiles(tile_cleaning c, tile_ring v, int s, int lane) {
#pragma unroll 1
    for (int n = 0;; n++) {
        mbar_wait(c.copied + 8 * s, n & 1);
        const int2 keys = c.keys[s];
        if (keys.y < 0) return;
        zero_rows<T>(v.data + s * T::VB, keys.x, keys.y, lane, 32);
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) mbar_arrive(v.full + 8 * s);
    }
}

/* One group of keys that lie together in a page, by the lane that they belong to: all chunks of 128 bytes in
 * one box, or one box a chunk, `half` bytes apart. */
template <int CHUNKS, bool MERGED, int HALF>
ATTN_DEV void copy_group(uint32_t dst, const CUtensorMap *map, int group_bytes, int in_page, int at,
                         uint32_t bar) {
    if constexpr (MERGED)
        tma_5d(dst + group_bytes * CHUNKS, map, 0, 0, 0, in_page, at, bar);
    else
        for (int c = 0; c < CHUNKS; c++)
            tma_4d(dst + c * HALF + group_bytes, map, c * 64, 0, in_page, at, bar);
}

/* T says what is copied: LOADED_Q_CHUNKS, KC and VC chunks of 128 bytes a row of Q, K and V, LOADED_KEY_BYTES
 * and LOADED_VALUE_BYTES bytes a block of keys in LOADED_STAGES stages. AHEAD: the next tile's Q may follow
 * so many blocks after a tile's first one; 0: not before the last. */
template <class T, bool PAGED, int AHEAD>
ATTN_DEV void produce_tiles(const flash_sm90_params &P, tile_info *infos, tile_ring q, tile_ring k,
                            tile_ring v, tile_cleaning cleaning, int lane) {
    constexpr int BM = T::BM, BN = T::BN, NQ = T::NQ, ST = T::LOADED_STAGES;
    const flash_params &p = P.p;
    const int num_tiles = __ldg(&p.counts->num_tiles);
    const int total = num_tiles * (p.num_q_heads / P.tile_heads);
    const int box = P.box_rows, boxes = PAGED ? BN / box : 1;
    const pager pg(PAGED ? p.page_size : 16);
    /* Q and the description of a tile; the consumers of the tile before the last must have left the
     * buffer. */
    auto send_q = [&](const tile_job &x, int wk) {
        const seq_view sv = view_of(x.view, x.tile.w);
        const int row0 = first_row_of(p, sv, x.tile.y, P.tile_tokens);
        int lo, hi;
        tile_keys(p, sv, row0, P.tile_tokens, lo, hi);
        const int qs = wk % NQ;
        mbar_wait(q.empty + 8 * qs, ((wk / NQ) & 1) ^ 1);
        if (lane == 0) {
            describe_tile<T>(p, P.tile_tokens, x, sv, row0, lo, hi, PAGED ? box : 0, infos[wk % T::INFOS]);
            mbar_expect(q.full + 8 * qs, T::QB);
        }
        __syncwarp();
        const int bands = T::BANDS && P.band_tokens ? T::NWG : 1;
        if (lane < T::LOADED_Q_CHUNKS * bands) {
            const int chunk = lane % T::LOADED_Q_CHUNKS, band = lane / T::LOADED_Q_CHUNKS;
            tma_3d(q.data + qs * T::QB + chunk * BM * 128 + band * 8192, &P.q_map, chunk * 64,
                   sv.q0 + row0 + (T::BANDS ? band * P.band_tokens : 0), x.head, q.full + 8 * qs);
        }
    };
    /* The first tiles are dealt out, the others drawn: LATE, shortly before the end of the tile before, so
     * that no CTA holds on to a long tile while others are idle; or, where Q can come early, a tile further
     * ahead. All CTAs together draw as often as the caller of draw() says, after which the counter is 0
     * again. */
    constexpr bool LATE = AHEAD == 0;
    const bool draws = P.more.ticket != nullptr;
    auto draw = [&](unsigned of_all) {
        return lane == 0 ? (int)atomicInc((unsigned *)P.more.ticket, of_all - 1) : 0;
    };
    int it = 0, wk = 0, ticket = 0;
    tile_job now, next;
    if ((int)blockIdx.x < total) {
        now = job_of(P, num_tiles, blockIdx.x);
        send_q(now, 0);
    }
#pragma unroll 1
    for (int t = blockIdx.x, after = 0; t < total; t = after, wk++) {
        bool more = false;
        auto take = [&](int number) {
            after = number;
            more = after < total;
            if (more) next = job_of(P, num_tiles, after);
        };
        if (!LATE || !draws) /* its description arrives while this tile's keys are on their way */
            take(draws && wk > 0 ? __shfl_sync(~0u, ticket, 0) + 2 * gridDim.x : t + gridDim.x);
        if (!LATE && draws && more) ticket = draw(total - gridDim.x);
        const tile_info &ti = infos[wk % T::INFOS];
        const int last = ti.last, first = ti.last - ti.count + 1, skipped = ti.skipped, kv_len = now.view.z;
        const int shift = T::SHIFTS ? ti.shift : 0;
        const int kvh = now.head / p.group, row0 = now.tile.z;
        const int32_t *table = PAGED ? p.counts->block_table +
                                           (int64_t)(now.tile.x + p.seq_offset) * p.counts->block_table_stride
                                     : nullptr;
        const bool half = T::SHORT && ti.half;
        const int end = half ? min(kv_len, last * BN + shift + BN / 2) : kv_len;
        /* paged: lane i brings the i-th group of box_rows keys, its page id fetched one block ahead */
        auto page_of = [&](int j) {
            int tok = j * BN + shift + lane * box;
            return PAGED && lane < boxes && tok < end && tok >= skipped && j >= first
                       ? __ldg(table + pg.page(tok))
                       : -1;
        };
        int page = page_of(last);
        bool sent = !more;
#pragma unroll 1
        for (int j = last; j >= first; j--, it++) {
            const int s = it % ST, ph = (it / ST) & 1, next_page = page_of(j - 1);
            if (AHEAD > 0 && !sent && j == last - AHEAD) { /* enough is under way: now the next tile's Q */
                send_q(next, wk + 1);
                sent = true;
            }
            const int k0 = j * BN + shift;
            const int2 keys = {skipped - k0, kv_len - k0};
            const bool dirty = T::CLEANED && (keys.x > 0 || keys.y < BN);
            const uint32_t kbar = k.full + 8 * s, vbar = (dirty ? cleaning.copied : v.full) + 8 * s,
                           kto = k.data + s * T::LOADED_KEY_BYTES, vto = v.data + s * T::LOADED_VALUE_BYTES;
            if constexpr (PAGED) {
                const bool ok = page >= 0;
                const int n = __popc(__ballot_sync(~0u, ok)) * box * 128;
                const int in_page = pg.offset(k0 + lane * box) >> 3;
                mbar_wait(k.empty + 8 * s, ph ^ 1);
                if (lane == 0) mbar_expect(kbar, n * T::LOADED_KEY_CHUNKS);
                __syncwarp();
                if (ok)
                    copy_group<T::LOADED_KEY_CHUNKS, T::KMERGED, T::KEY_CHUNK_STRIDE>(
                        kto, &P.k_map, lane * box * 128, in_page,
                        page * P.k_page_units + kvh * P.k_head_units, kbar);
                mbar_wait(v.empty + 8 * s, ph ^ 1);
                if (dirty && lane == 0) cleaning.keys[s] = keys;
                if (lane == 0) mbar_expect(vbar, n * T::LOADED_VALUE_CHUNKS);
                __syncwarp();
                if (ok)
                    copy_group<T::LOADED_VALUE_CHUNKS, T::VMERGED, T::VALUE_CHUNK_STRIDE>(
                        vto, &P.v_map, lane * box * 128, in_page,
                        page * P.v_page_units + kvh * P.v_head_units, vbar);
                page = next_page;
            } else {
                mbar_wait(k.empty + 8 * s, ph ^ 1);
                constexpr int BOX = T::SHORT ? BN / 2 : BN; /* rows that come together */
                const int parts = half && j == last ? 1 : BN / BOX;
                if (lane == 0) mbar_expect(kbar, T::LOADED_KEY_BYTES / (BN / BOX) * parts);
                __syncwarp();
                if (lane < T::LOADED_KEY_CHUNKS * parts) {
                    const int chunk = lane % T::LOADED_KEY_CHUNKS, part = lane / T::LOADED_KEY_CHUNKS,
                              column = chunk * 64 - P.k_tail_at;
                    const uint32_t to = kto + chunk * T::KEY_CHUNK_STRIDE + part * BOX * 128;
                    if (column < 0)
                        tma_3d(to, &P.k_map, chunk * 64, row0 + k0 + part * BOX, kvh, kbar);
                    else
                        tma_3d(to, &P.k_tail_map, column, row0 + k0 + part * BOX, 0, kbar);
                }
                mbar_wait(v.empty + 8 * s, ph ^ 1);
                if (dirty && lane == 0) cleaning.keys[s] = keys;
                if (lane == 0) mbar_expect(vbar, T::LOADED_VALUE_BYTES / (BN / BOX) * parts);
                __syncwarp();
                if (lane < T::LOADED_VALUE_CHUNKS * parts) {
                    const int chunk = lane % T::LOADED_VALUE_CHUNKS, part = lane / T::LOADED_VALUE_CHUNKS;
                    tma_3d(vto + chunk * T::VALUE_CHUNK_STRIDE + part * BOX * 128, &P.v_map, chunk * 64,
                           row0 + k0 + part * BOX, kvh, vbar);
                }
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
    mbar_wait(q.empty + 8 * (wk % NQ), ((wk / NQ) & 1) ^ 1);
    if (lane == 0) {
        infos[wk % T::INFOS].block = -1;
        mbar_arrive(q.full + 8 * (wk % NQ));
    }
    if constexpr (T::CLEANED)
        for (int i = 0; i < ST; i++, it++) { /* the last blocks are read, so nobody cleans any more */
            mbar_wait(v.empty + 8 * (it % ST), ((it / ST) & 1) ^ 1);
            if (lane == 0) {
                cleaning.keys[it % ST].y = -1;
                mbar_arrive(cleaning.copied + 8 * (it % ST));
            }
        }
}

} /* namespace attn_cuda */
#endif
