/* SPDX-License-Identifier: Apache-2.0 */
/* Dense MLA on Hopper for caches of 16 bits (semantics 7.4): TMA and wgmma, two warpgroups that share 64
 * query rows, and one producer warp.
 *
 * O of 64 rows is half the register file, so the warpgroups split its columns: the first ("even") makes the
 * scores of blocks 0, 2, ..., the second those of blocks 1, 3, ..., and each multiplies every P with its half
 * of the values, its own from registers, the other's from shared memory. Products of one run under the
 * softmax of the other:
 *   even: QK(0)  softmax  PV(0)  [P1 ready] PV(1)          QK(2) ...
 *   odd:  QK(1)  [P0 ready] PV(0) under its softmax  PV(1) QK(3) ...
 * Two buffers of 64 keys; the halves of a buffer are refilled as soon as their last reader is through. P of
 * the even block lies on the rope columns of its keys, which nobody needs after QK.
 *
 * More than 64 rows a token: a cluster of two CTAs works on the same keys, each loads every other slab for
 * both. Persistent: CTA (or cluster) i takes the items parts[i] .. parts[i + 1] of the plan. Where no item
 * has more than 16 rows, the same launch runs the code for narrow tiles. */
#ifndef MLA_DECODE_SM90_CUH
#define MLA_DECODE_SM90_CUH

#include "mla_decode_sm90_roles.cuh"
#include "mla_decode_sm90_store.cuh"
#include "mla_part_sm90.cuh"

namespace attn_cuda {

constexpr int MLA90_GROUPS = 4; /* of slabs with a barrier: 0-1, 2-3, 4-5, 6-8 */

struct mla90_shared {
    uint64_t full[2][MLA90_GROUPS], empty[2][2],
        queries; /* of a buffer; empty: left and right half of the values */
    float top[2][MLA90_ROWS], sum[2][MLA90_ROWS];
    int4 moved; /* not 0: the even block moved a top of a row of that warp */
};

ATTN_DEV int mla90_group_of(int slab) {
    return slab < 8 ? slab >> 1 : 3;
}

/* One warp brings the keys of all items of the part, as far ahead as the buffers allow. */
template <int CTAS>
ATTN_DEV void mla90_produce(const mla_decode_sm90_params &P, mla90_shared &sh, uint32_t buffers, int rank,
                            int item0, int item1, const mla_item &first) {
    const mla_attend_params &p = P.p;
    const uint64_t policy = read_once_policy();
    const int lane = threadIdx.x & 31, box = P.box_rows, boxes = MLA90_KEYS / box;
    int n = 0;
    for (int i = item0; i < item1; i++) {
        const mla_item it = i == item0 ? first : mla_item_of(p, i);
        const int32_t *table = p.counts->block_table + it.request * p.counts->block_table_stride;
        mla_boxes at;
        at.locate(P, table, it.k_begin, it.k_end);
        for (int k0 = it.k_begin; k0 < it.k_end; k0 += MLA90_KEYS, n++) {
            const int s = n & 1, phase = (n >> 1 & 1) ^ 1;
            const int count = min(boxes, (it.k_end - k0 + box - 1) / box);
            const uint32_t to = buffers + s * MLA90_TILE;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                mbar_wait(smem_addr(&sh.empty[s][half]), phase);
                if (lane < 2) {
                    const int g = half * 2 + lane;
                    mbar_expect(smem_addr(&sh.full[s][g]), (g == 3 ? 3 : 2) * count * box * 128);
                }
                __syncwarp();
                const int slab = half * 4 + lane;
                const bool mine = lane < (half ? 5 : 4) && (CTAS == 1 || (slab + s) % CTAS == rank);
                for (int j = 0; j < count; j++) {
                    const int page = __shfl_sync(~0u, at.page, j), row = __shfl_sync(~0u, at.row, j);
                    if (!mine) continue;
                    const uint32_t dst = to + slab * MLA90_SLAB + j * box * 128,
                                   bar = smem_addr(&sh.full[s][mla90_group_of(slab)]);
                    if constexpr (CTAS == 1)
                        tma_3d_by(policy, dst, &P.keys, slab * 64, row, page, bar);
                    else
                        tma_3d_multicast_by(policy, dst, &P.keys, slab * 64, row, page, bar, (1 << CTAS) - 1);
                }
            }
            at.locate(P, table, k0 + MLA90_KEYS, it.k_end);
        }
    }
}

/* Queries of an item into their slabs: one thread asks for the absorbed latents (rows behind
 * the item are somebody else's, and nobody stores what comes of them), all bring the rope part of the
 * query. */
ATTN_DEV void mla90_load_queries(const mla_decode_sm90_params &P, int first_row, int num_rows, uint32_t to,
                                 uint32_t bar) {
    const mla_attend_params &p = P.p;
    if (threadIdx.x == 0) {
        mbar_expect(bar, 8 * MLA90_SLAB);
        for (int j = 0; j < 8; j++)
            tma_3d(to + j * MLA90_SLAB, &P.queries, j * 64, first_row - p.slice_row0, 0, bar);
    }
    for (int i = threadIdx.x; i < MLA90_ROWS * 8; i += 256) {
        const int r = i >> 3, c = i & 7;
        const bool inside = r < num_rows;
        const int row = first_row + (inside ? r : 0), token = row / p.num_heads;
        const uint16_t *src = (const uint16_t *)p.query + token * p.q_token +
                              (row - token * p.num_heads) * p.q_head + p.nope + c * 8;
        cp_async_zfill<16>(to + mla90_at(r, 64 + c), src, inside);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async();
}

template <int DT, int CTAS>
__global__ void __launch_bounds__(MLA90_THREADS, 1)
    mla_decode90_kernel(const __grid_constant__ mla_decode_sm90_params P) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) /* empty where only other architectures were asked for */
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    __shared__ __align__(8) union {
        mla90_shared whole;
        mla_narrow<16>::shared n16;
    } all_shared;
    mla90_shared &sh = all_shared.whole;
    const mla_attend_params &p = P.p;
    uint8_t *smem = smem_raw + (-smem_addr(smem_raw) & 1023);
    const uint32_t queries = smem_addr(smem), buffers = queries + MLA90_TILE,
                   odd_p = buffers + 2 * MLA90_TILE;
    const int wg = __shfl_sync(~0u, (int)threadIdx.x >> 7, 0), tid = threadIdx.x & 127,
              lane = threadIdx.x & 31, part = blockIdx.x / CTAS, rank = blockIdx.x % CTAS;
    /* Lists and keys are older than the absorption, whose launch waited for all before it; what it makes are
     * the queries: only who reads them waits for its end. */
    const int item0 = __ldg(p.parts + part), item1 = __ldg(p.parts + part + 1);
    if constexpr (CTAS == 1) {
        const int most = __ldg(&p.slice->most_rows);
        if (most <= 16) return mla_narrow_run<DT, 16>(P, all_shared.n16, smem, wg, item0, item1);
    }
    mla_item first_item = {}; /* a part without items has none, and its place in the list is not written */
    if (item0 < item1) first_item = mla_item_of(p, item0);
    pdl_launch();
    if (threadIdx.x == 0) {
        for (int s = 0; s < 2; s++) {
            for (int g = 0; g < MLA90_GROUPS; g++)
                mbar_init(smem_addr(&sh.full[s][g]), 1);
            for (int h = 0; h < 2; h++)
                mbar_init(smem_addr(&sh.empty[s][h]), CTAS);
        }
        mbar_init(smem_addr(&sh.queries), 1);
        mbar_init_fence();
    }
    __syncthreads();
    if constexpr (CTAS > 1) cluster_sync();

    if (wg == 2) {
        setmaxnreg_dec<40>();
        if (tid < 32) mla90_produce<CTAS>(P, sh, buffers, rank, item0, item1, first_item);
    } else {
        setmaxnreg_inc<232>();
        pdl_wait();
        const int g = lane >> 2, local = (tid >> 5) * 16 + g; /* this thread's rows: local and local + 8 */
        const float scale = p.scale * 1.4426950408889634f;
        int n = 0; /* blocks so far, as the producer counts them */
        auto wait = [&](int block, int group) {
            mbar_wait(smem_addr(&sh.full[block & 1][group]), block >> 1 & 1);
        };
        auto release = [&](int block, int half) {
            const uint32_t bar = smem_addr(&sh.empty[block & 1][half]);
            if constexpr (CTAS == 1) {
                if (tid == 0) mbar_arrive(bar);
            } else if (tid < CTAS)
                mbar_arrive_cluster(cluster_addr(bar, tid));
        };
        for (int i = item0; i < item1; i++) {
            const mla_item it = i == item0 ? first_item : mla_item_of(p, i);
            const int first = it.first_row + rank * MLA90_ROWS,
                      rows = min(MLA90_ROWS, it.num_rows - rank * MLA90_ROWS);
            const int blocks = (it.k_end - it.k_begin + MLA90_KEYS - 1) / MLA90_KEYS;
            const int limit0 = min(it.k_end, it.base + (first + local) / p.num_heads + 1),
                      limit1 = min(it.k_end, it.base + (first + local + 8) / p.num_heads + 1),
                      all = min(it.k_end, it.base + first / p.num_heads + 1); /* keys that every row sees */
            mla90_load_queries(P, first, rows, queries, smem_addr(&sh.queries));
            named_barrier(1, 256);
            mbar_wait(smem_addr(&sh.queries), (i - item0) & 1);

            float o[128], s[32];
            uint32_t pr[16];
            /* rows that do not exist get P = 0: zeros cost the tensor cores less power */
            mla90_state st = {
                {local < rows ? MLA90_NO_MAX : MLA90_NO_ROW, local + 8 < rows ? MLA90_NO_MAX : MLA90_NO_ROW},
                {0.f, 0.f}};
#pragma unroll
            for (int j = 0; j < 128; j++)
                o[j] = 0.f;
            auto score = [&](int block) {
                const uint32_t keys = buffers + (block & 1) * MLA90_TILE;
                wait(block, 0);
                mla90_scores<DT, 0, 2>(s, queries, keys);
                wait(block, 1);
                mla90_scores<DT, 2, 4>(s, queries, keys);
                wait(block, 2);
                mla90_scores<DT, 4, 6>(s, queries, keys);
                wait(block, 3);
                mla90_scores<DT, 6, 9>(s, queries, keys);
            };
            auto mask = [&](int k0) {
                if (k0 + MLA90_KEYS <= all) return;
                const int k = k0 + (lane & 3) * 2;
#pragma unroll
                for (int j = 0; j < 32; j++)
                    if (k + (j >> 2) * 8 + (j & 1) >= ((j & 2) ? limit1 : limit0)) s[j] = -INFINITY;
            };
            /* The end of the list: rows behind it must not reach the value product. */
            auto clean = [&](int block, int k0) {
                if (k0 + MLA90_KEYS > it.k_end)
                    mla90_clean(buffers + (block & 1) * MLA90_TILE, it.k_end - k0);
            };
            auto publish = [&](int which) {
                if ((lane & 3) == 0) sh.top[which][local] = st.top[0], sh.top[which][local + 8] = st.top[1];
            };
            if (wg == 0) {
#pragma unroll 1
                for (int b = 0; b < blocks; b += 2) {
                    const int block = n + b, k0 = it.k_begin + b * MLA90_KEYS;
                    const uint32_t keys = buffers + (block & 1) * MLA90_TILE;
                    score(block);
                    wgmma_wait<0>();
                    wgmma_pin(s);
                    mask(k0);
                    const float2 f = mla90_softmax<DT>(s, st, scale, pr);
                    mla90_store_p(keys + 8 * MLA90_SLAB, pr);
                    publish(0);
                    const bool moved = __any_sync(~0u, f.x != 1.f || f.y != 1.f);
                    if (lane == 0) (&sh.moved.x)[tid >> 5] = moved;
                    clean(block, k0);
                    fence_proxy_async();
                    named_arrive(2, 256);
                    mla90_rescale(o, st, f);
                    if (k0 + MLA90_KEYS > it.k_end) named_barrier(4, 128); /* all have cleaned */
                    wgmma_pin(o);
                    mla90_add_own<DT>(o, pr, keys, 0);
                    wgmma_wait<0>();
                    wgmma_pin(o);
                    release(block, 0);
                    if (b + 1 < blocks) {
                        named_barrier(3, 256);
                        mla90_rescale(o, st, mla90_follow(st, sh.top[1][local], sh.top[1][local + 8]));
                        wgmma_pin(o);
                        mla90_add_other<DT>(o, odd_p, buffers + ((block + 1) & 1) * MLA90_TILE, 0);
                        wgmma_wait<0>();
                        wgmma_pin(o);
                        release(block + 1, 0);
                    }
                }
            } else {
                /* The even block's P. Its tops are those that wg 0 had before, so wg 0 knows which rows have
                 * moved: all warps have to agree on whether they wait for their scores (PTX,
                 * wgmma.wait_group). */
                auto take_even = [&](int block) {
                    const uint32_t keys = buffers + (block & 1) * MLA90_TILE;
                    named_barrier(2, 256);
                    const float2 f = mla90_follow(st, sh.top[0][local], sh.top[0][local + 8]);
                    const int4 moved = sh.moved;
                    if (moved.x | moved.y | moved.z | moved.w) {
                        wgmma_wait<0>();
                        wgmma_pin(s);
                        mla90_rescale(o, st, f);
                    }
                    wgmma_pin(o);
                    mla90_add_other<DT>(o, keys + 8 * MLA90_SLAB, keys, 1);
                };
#pragma unroll 1
                for (int b = 0; b + 1 < blocks; b += 2) {
                    const int block = n + b, k0 = it.k_begin + (b + 1) * MLA90_KEYS;
                    score(block + 1);
                    take_even(block);
                    wgmma_wait<1>();
                    wgmma_pin(s);
                    mask(k0);
                    const float2 f = mla90_softmax<DT>(s, st, scale, pr);
                    mla90_store_p(odd_p, pr);
                    publish(1);
                    clean(block + 1, k0);
                    fence_proxy_async();
                    named_arrive(3, 256);
                    wgmma_wait<0>();
                    wgmma_pin(o);
                    release(block, 1);
                    mla90_rescale(o, st, f);
                    if (k0 + MLA90_KEYS > it.k_end) named_barrier(4, 128);
                    wgmma_pin(o);
                    mla90_add_own<DT>(o, pr, buffers + ((block + 1) & 1) * MLA90_TILE, 1);
                    wgmma_wait<0>();
                    wgmma_pin(o);
                    release(block + 1, 1);
                }
                if (blocks & 1) {
                    take_even(n + blocks - 1);
                    wgmma_wait<0>();
                    wgmma_pin(o);
                    release(n + blocks - 1, 1);
                }
            }
            n += blocks;

            /* Sums of both warpgroups; their tops are the same by now. */
#pragma unroll
            for (int e = 0; e < 2; e++) {
                st.sum[e] += __shfl_xor_sync(~0u, st.sum[e], 1);
                st.sum[e] += __shfl_xor_sync(~0u, st.sum[e], 2);
                if ((lane & 3) == 0) sh.sum[wg][local + 8 * e] = st.sum[e];
            }
            named_barrier(1, 256);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int r = local + 8 * e, row = first + r;
                const bool inside = r < rows;
                const float sum = sh.sum[0][r] + sh.sum[1][r];
                const float inv = sum == 0.f ? 0.f : 1.f / sum; /* NaN stays NaN */
                const float lse = sum == 0.f ? -INFINITY : st.top[e] + log2f(sum);
                const int64_t slot_row = ((int64_t)it.slot * CTAS + rank) * MLA90_ROWS + r;
                if (wg == 0 && (lane & 3) == 0 && inside) mla90_store_lse(p, it, row, lse);
                if (it.slot >= 0) {
                    float most = 0.f;
#pragma unroll
                    for (int j = 0; j < 32; j++)
                        most = fmaxf(most, fmaxf(fabsf(o[4 * j + 2 * e]), fabsf(o[4 * j + 2 * e + 1])));
                    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
                    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
                    const mla_part part(p, slot_row);
                    const uint32_t power = mla_part::power(most);
                    mla90_store_half<DT_F16, true>(part.values + wg * 256, o, e, mla_part::inverse(power),
                                                   inside);
                    if (inside) part.set_mark(wg * 4 + (lane & 3), inv * __uint_as_float(power), lse);
                } else
                    mla90_store_half<DT, false>((uint16_t *)p.latent + (int64_t)(row - p.slice_row0) * 512 +
                                                    wg * 256,
                                                o, e, inv, inside);
            }
        }
    }
    if constexpr (CTAS > 1) cluster_sync(); /* nobody leaves while a copy or an arrival may still reach it */
#endif
}

} /* namespace attn_cuda */
#endif
