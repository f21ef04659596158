/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders of short requests on Hopper: all keys and values of a request and a head are in shared memory at
 * once, so that every row of it reads them there, and small CTAs, of which an SM has two and more, load
 * while others multiply. A tile of the persistent CTAs with rings of blocks (prefill_sm90.cuh) costs too much
 * beside so few keys.
 *
 * CTA: one or two warpgroups. Each takes blocks of 64 rows of the tile in turn, has its own Q, and waits for
 * the other only once, where the rows of V behind the last key become zeros. S = Q K^T over a block of BN
 * keys, softmax, O += P V, by wgmma; rows leave from registers (prefill_sm90_store.cuh).
 *
 * Q, K and V blocks are [64-column chunk][rows][128 bytes], one tensor copy a chunk. What a head size has
 * beside (16 or 32 columns) are lines of 32 or 64 bytes of their own, swizzled as such, so that nothing is
 * padded: of V they are a product of their own. */
#ifndef RESIDENT_SM90_CUH
#define RESIDENT_SM90_CUH

#include "../ptx/launch.cuh"
#include "prefill_sm90_producer.cuh"
#include "prefill_sm90_store.cuh"
#include "kernels/cuda/ptx/wgmma_sm90.cuh"

namespace attn_cuda {

template <int D, int BN_>
struct resident_traits {
    static constexpr int DK = D, DV = D, BN = BN_, BM = 64;
    static constexpr int TAIL = RESIDENT_SM90_TAIL(D), VC = D / 64, KEY_CHUNK = BN * 128; /* bytes */
    static constexpr int QB = BM * VC * 128, BLOCK = BN * VC * 128;                       /* without tails */
    static constexpr int TAIL_LINE = TAIL * 2, TAIL_QB = BM * TAIL_LINE, TAIL_BLOCK = BN * TAIL_LINE;
    /* of the code that is shared with prefill_sm90.cuh */
    static constexpr int VALUE_GROUP_STRIDE = 1024, VALUE_CHUNK_STRIDE = KEY_CHUNK, OB = 0;
    static constexpr bool WIDENED = false, FEATURE = false, PARTS = false, DIRECT = false, PACKS = false,
                          BANDS = false;
    static ATTN_DEV uint64_t tail_desc(uint32_t at) { return wgmma_desc(at, 16, 8 * TAIL_LINE, TAIL_LINE); }
    struct tail {
        static constexpr int BN = BN_, VC = 1, VALUE_GROUP_STRIDE = 8 * TAIL_LINE, VALUE_CHUNK_STRIDE = 0;
    };
};

template <int DT, class T>
__global__ void __launch_bounds__(256, 2) resident_kernel(const __grid_constant__ flash_sm90_params P) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) /* empty where only other architectures were asked for */
    constexpr int BN = T::BN, D = T::DV, MOST = RESIDENT_SM90_BLOCKS;
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    __shared__ __align__(8) uint64_t bars[2 * MOST + 3];
    __shared__ tile_info info;
    const flash_params &p = P.p;
    const int entry = blockIdx.x / p.num_q_heads, head = blockIdx.x - entry * p.num_q_heads;
    if (entry >= __ldg(&p.counts->num_tiles)) return;
    const int w = __shfl_sync(~0u, (int)threadIdx.x >> 7, 0), tid = threadIdx.x & 127,
              lane = threadIdx.x & 31;
    const int groups = blockDim.x >> 7, q = lane & 3;
    const int4 tile = __ldg((const int4 *)p.tiles + 2 * entry);
    const seq_view sv = view_of(__ldg((const int4 *)p.tiles + 2 * entry + 1), 0);
    const int row0 = tile.y * P.tile_tokens, rows = min(P.tile_tokens, sv.q_len - row0);
    const int blocks = max(1, (sv.kv_len + BN - 1) / BN), mine = (rows + 63) / 64;
    const uint32_t base = (smem_addr(smem_raw) + 1023) & ~1023u;
    const uint32_t keys = base + groups * T::QB, values = keys + blocks * T::BLOCK, my_q = base + w * T::QB;
    const uint32_t q_tails = values + blocks * T::BLOCK, my_tail = q_tails + w * T::TAIL_QB,
                   key_tails = q_tails + groups * T::TAIL_QB,
                   value_tails = key_tails + blocks * T::TAIL_BLOCK;
    const uint32_t k_full = smem_addr(bars), v_full = k_full + 8 * MOST, clean = v_full + 8 * MOST,
                   q_full = clean + 8 + 8 * w;
    auto copy_q = [&](int block) { /* of one thread of a warpgroup */
                                   mbar_expect(q_full, T::QB + T::TAIL_QB);
                                   for (int c = 0; c < T::VC; c++)
                                       tma_3d(my_q + c * (64 * 128), &P.q_map, c * 64,
                                              sv.q0 + row0 + block * 64, head, q_full);
                                   if constexpr (T::TAIL > 0)
                                       tma_3d(my_tail, &P.q_tail_map, 64 * T::VC, sv.q0 + row0 + block * 64,
                                              head, q_full);
    };
    auto copy = [&](const void *map, const void *tail_map, uint32_t to, uint32_t tails, int block,
                    uint32_t bar) {
        mbar_expect(bar, T::BLOCK + T::TAIL_BLOCK);
        for (int c = 0; c < T::VC; c++)
            tma_3d(to + block * T::BLOCK + c * T::KEY_CHUNK, map, c * 64, tile.z + block * BN, head / p.group,
                   bar);
        if constexpr (T::TAIL > 0)
            tma_3d(tails + block * T::TAIL_BLOCK, tail_map, 64 * T::VC, tile.z + block * BN, head / p.group,
                   bar);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * MOST + 3; i++)
            mbar_init(k_full + 8 * i, 1);
        mbar_init_fence();
        info.q0 = sv.q0, info.q_len = sv.q_len, info.kv_len = sv.kv_len, info.causal = 0;
        info.block = tile.y, info.head = head, info.row0 = row0;
        info.first_key = info.piece = 0, info.seq = tile.x + p.seq_offset, info.k0 = tile.z;
    }
    __syncthreads();
    if (w >= mine) return;
    if (tid == 0) {
        copy_q(w);
        for (int i = 0; i < blocks && w == 0; i++) {
            copy(&P.k_map, &P.k_tail_map, keys, key_tails, i, k_full + 8 * i);
            copy(&P.v_map, &P.v_tail_map, values, value_tails, i, v_full + 8 * i);
        }
    }
    const float c = p.scale * LOG2E;
    const int behind = sv.kv_len - (blocks - 1) * BN; /* keys of the last block */
    bool is_clean = behind == BN;
    float o[D / 2], m0, m1, l0, l1, f0, f1;
    uint32_t pr[BN / 4];
    const uint64_t qd = wgmma_desc(my_q, 16, 1024), qt = T::tail_desc(my_tail);
    int turn = 0;
#pragma unroll 1
    for (int block = w; block < mine; block += groups, turn ^= 1) {
        m0 = m1 = -INFINITY, l0 = l1 = 0.f;
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i] = 0.f;
        mbar_wait(q_full, turn);
#pragma unroll 1
        for (int j = 0; j < blocks; j++) {
            float sc[BN / 2];
            mbar_wait(k_full + 8 * j, 0);
            const uint64_t kd = wgmma_desc(keys + j * T::BLOCK, 16, 1024),
                           kt = T::tail_desc(key_tails + j * T::TAIL_BLOCK);
            wgmma_fence();
            wgmma_ssz<BN, DT>::run(sc, qd, kd);
#pragma unroll
            for (int k = 1; k < T::VC * 4; k++)
                wgmma_ss<BN, DT>::run(sc, qd + ((k >> 2) * (64 * 128) >> 4) + (k & 3) * 2,
                                      kd + ((k >> 2) * T::KEY_CHUNK >> 4) + (k & 3) * 2);
#pragma unroll
            for (int k = 0; k < T::TAIL / 16; k++)
                wgmma_ss<BN, DT>::run(sc, qt + k * 2, kt + k * 2);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_pin(sc);
            const bool is_last = j == blocks - 1;
            if (is_last && block + groups < mine) { /* every warp has its scores: now the next rows */
                named_barrier(2 + w, 128);
                if (tid == 0) copy_q(block + groups);
            }
            if (is_last && behind < BN) mask_from<0, BN / 2>(sc, behind - 2 * q, behind - 2 * q);
            softmax_block(sc, c, true, true, m0, m1, l0, l1, f0, f1);
            if (j > 0) {
#pragma unroll
                for (int i = 0; i < D / 8; i++)
                    o[4 * i] *= f0, o[4 * i + 1] *= f0, o[4 * i + 2] *= f1, o[4 * i + 3] *= f1;
            }
#pragma unroll
            for (int i = 0; i < BN / 4; i++)
                pr[i] = pack2<DT>(sc[2 * i], sc[2 * i + 1]);
            mbar_wait(v_full + 8 * j, 0);
            if (is_last && !is_clean) { /* what lies there may be NaN, and 0 * NaN is NaN */
                is_clean = true;
                if (w == 0) {
                    zero_rows<T>(values + j * T::BLOCK, 0, behind, tid, 128);
                    if constexpr (T::TAIL > 0)
                        zero_rows<typename T::tail, T::TAIL_LINE>(value_tails + j * T::TAIL_BLOCK, 0, behind,
                                                                  tid, 128);
                    fence_proxy_async();
                    named_barrier(2, 128);
                    if (tid == 0) mbar_arrive(clean);
                } else
                    mbar_wait(clean, 0);
            }
            const uint64_t vd = wgmma_desc(values + j * T::BLOCK, T::VALUE_CHUNK_STRIDE, 1024),
                           vt = T::tail_desc(value_tails + j * T::TAIL_BLOCK);
            wgmma_pin(o);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < BN / 16; k++) {
                wgmma_rs<64 * T::VC, DT>::run(*(float(*)[32 * T::VC]) o, pr + 4 * k,
                                              vd + (uint64_t)(k * 2048 >> 4));
                if constexpr (T::TAIL > 0)
                    wgmma_rs<T::TAIL, DT>::run(*(float(*)[T::TAIL / 2])(o + 32 * T::VC), pr + 4 * k,
                                               vt + (uint64_t)(k * T::TAIL_LINE));
            }
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_pin(o);
        }
        write_tile<DT, T, true>(P, info, o, 0, 0, block, tid, m0, m1, l0, l1, c);
    }
#endif
}

template <int DT, int D, int BN>
int launch_resident(const flash_sm90_params *P, int num_tiles, void *stream) {
    using T = resident_traits<D, BN>;
    auto kernel = resident_kernel<DT, T>;
    if (!P)
        return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         RESIDENT_SM90_SMEM(D, 2, RESIDENT_SM90_KEYS(D)));
    const int groups = P->tile_tokens > 64 ? 2 : 1;
    return attn_cuda::launch_kernel(kernel, (unsigned)num_tiles * (unsigned)P->p.num_q_heads, 128 * groups,
                                    RESIDENT_SM90_SMEM(D, groups, P->resident_keys), stream, *P);
}

/* The launch by the block of keys that it is for. Without parameters: all are prepared. */
template <int DT, int D>
int launch_resident_of(const flash_sm90_params *P, int num_tiles, void *stream) {
#define RESIDENT_LAUNCH(BN)                                                                                  \
    if constexpr (RESIDENT_SM90_FITS(D, BN)) {                                                               \
        if (!P || P->box_rows == BN) {                                                                       \
            const int e = launch_resident<DT, D, BN>(P, num_tiles, stream);                                  \
            if (P || e) return e;                                                                            \
        }                                                                                                    \
    }
    RESIDENT_SM90_SIZES(RESIDENT_LAUNCH)
    return P ? (int)cudaErrorInvalidDeviceFunction : 0;
}

#define INSTANCE(TYPE, CLASS)                                                                                \
    extern "C" int flash_resident_sm90_##TYPE##_##CLASS(const flash_sm90_params *p, int feature,             \
                                                        int num_tiles, void *stream) {                       \
        (void)feature;                                                                                       \
        return attn_cuda::launch_resident_of<FLASH_TYPE_##TYPE, flash_resident_class_##CLASS>(p, num_tiles,  \
                                                                                              stream);       \
    }

} /* namespace attn_cuda */
#endif
