/* SPDX-License-Identifier: Apache-2.0 */
/* Latent attention as MQA by mma.sync (semantics 7.4, 9.2): 64 rows of one request against tiles of 64 latent
 * keys. Eight warps: warp w takes rows 16 (w % 4) and, with its partner w + 4, halves first the keys of the
 * score product and then the columns of the value product; P goes between the two through shared memory. A
 * key row (L + 64 values) is read once and serves both products, its first L values being the value. Keys
 * that are not there are zero-filled, so that what lies behind a sequence can hold anything. */
#ifndef MLA_ATTEND_SM80_CUH
#define MLA_ATTEND_SM80_CUH

#include "../ptx/launch.cuh"
#include "../ptx/ptx_sm80.cuh"
#include "mla_launch.h"
#include "mla_live.cuh"

#include <cuda_runtime.h>

namespace attn_cuda {

constexpr float MLA_LOG2E = 1.4426950408889634f, MLA_LN2 = 0.6931471805599453f;
constexpr float MLA_NO_MAX = LOWEST; /* finite, so that no inf - inf appears */

/* Byte offset of 16-byte chunk `chunk` of row `row`: the low three bits are swizzled by the row. */
template <int PITCH>
ATTN_DEV uint32_t mla_at(int row, int chunk) {
    return (uint32_t)(row * PITCH + ((chunk ^ (row & 7)) << 4));
}

/* 16 e4m3 bytes as 16 values of DT, times `scale` where SCALED, into two neighbouring chunks. */
template <int DT, bool SCALED>
ATTN_DEV void mla_widen(uint4 x, float scale, uint4 (&out)[2]) {
    const uint32_t *w = &x.x;
    uint32_t *o = &out[0].x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t lo = e4m3x2_to_f16x2<0>(w[i]), hi = e4m3x2_to_f16x2<1>(w[i]);
        if constexpr (DT == DT_BF16 || SCALED) {
            float2 a = unpack2<DT_F16>(lo), b = unpack2<DT_F16>(hi);
            if constexpr (SCALED) a.x *= scale, a.y *= scale, b.x *= scale, b.y *= scale;
            lo = pack2<DT>(a.x, a.y), hi = pack2<DT>(b.x, b.y);
        }
        o[2 * i] = lo, o[2 * i + 1] = hi;
    }
}

template <int DT, int L>
struct mla_loader {
    static constexpr int PITCH = (L + MLA_ROPE) * 2, CHUNKS = PITCH / 16;
    const mla_attend_params &p;
    const mla_item &it;
    const int32_t *table;
    int64_t table_width;
    const int32_t *topk;

    /* Address of key k of the list, NULL if there is none. */
    ATTN_DEV const char *row(int k) const {
        if (k >= it.k_end) return nullptr;
        int token = topk ? __ldg(topk + k) : k;
        if (token < 0) return nullptr;
        int page = token / p.page_size;
        if (page >= table_width) return nullptr;
        int64_t id = __ldg(table + page);
        if (id < 0 || id >= p.num_pages) return nullptr;
        return (const char *)p.cache + id * p.cache_page +
               (int64_t)(token - page * p.page_size) * p.cache_row;
    }

    /* Eight threads a row, two rows a thread. */
    ATTN_DEV void load(uint32_t dst, int *valid, int k0) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int r = (threadIdx.x >> 3) + 32 * i, c0 = threadIdx.x & 7;
            const char *src = row(k0 + r);
            if (c0 == 0) valid[r] = src != nullptr;
            if (p.cache_kind == MLA_CACHE_16) {
#pragma unroll
                for (int c = c0; c < CHUNKS; c += 8)
                    cp_async_zfill<16>(dst + mla_at<PITCH>(r, c), src ? src + c * 16 : (const char *)p.cache,
                                       src);
                continue;
            }
            bool ds = p.cache_kind == MLA_CACHE_DS;
            uint4 out[2];
            for (int c = c0; c < (ds ? L : L + MLA_ROPE) / 16; c += 8) {
                uint4 x = src ? __ldg((const uint4 *)(src + c * 16)) : make_uint4(0, 0, 0, 0);
                if (ds)
                    mla_widen<DT, true>(x, src ? __ldg((const float *)(src + MLA_DS_SCALES_AT) + c / 8) : 0.f,
                                        out);
                else
                    mla_widen<DT, false>(x, 1.f, out);
                st_shared_v4(dst + mla_at<PITCH>(r, 2 * c), out[0]);
                st_shared_v4(dst + mla_at<PITCH>(r, 2 * c + 1), out[1]);
            }
            if (ds) { /* 64 bfloat16 rope values as they are */
                uint4 x =
                    src ? __ldg((const uint4 *)(src + MLA_DS_ROPE_AT + c0 * 16)) : make_uint4(0, 0, 0, 0);
                if constexpr (DT == DT_F16) {
                    uint32_t *w = &x.x;
                    for (int j = 0; j < 4; j++) {
                        float2 f = unpack2<DT_BF16>(w[j]);
                        w[j] = pack2<DT_F16>(f.x, f.y);
                    }
                }
                st_shared_v4(dst + mla_at<PITCH>(r, L / 8 + c0), x);
            }
        }
    }
};

ATTN_DEV void mla_pair_sync(int pair) {
    asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory");
}

template <int DT, int L>
__global__ void __launch_bounds__(MLA_THREADS, 1)
    mla_attend_kernel(const __grid_constant__ mla_attend_params p) {
    constexpr int D = L + MLA_ROPE, PITCH = D * 2, COLS = L / 2; /* of a warp in the value product */
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ float s_max[2][MLA_TILE_ROWS], s_sum[2][MLA_TILE_ROWS];
    __shared__ int s_valid[2][MLA_TILE_KEYS];
    if (blockIdx.x >= p.slice->num_items) return;
    const mla_item it = mla_item_of(p, p.slice->first_item + blockIdx.x);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, pair = warp & 3, half = warp >> 2;
    const uint32_t qs = smem_addr(smem), ps = qs + MLA_TILE_ROWS * PITCH, ks = ps + MLA_TILE_ROWS * 128;

    mla_loader<DT, L> loader{p, it, p.counts->block_table + it.request * p.counts->block_table_stride,
                             p.counts->block_table_width,
                             p.topk ? p.topk + (int64_t)(it.first_row / p.num_heads) * p.topk_row : nullptr};
    for (int i = threadIdx.x; i < MLA_TILE_ROWS * (D / 8); i += MLA_THREADS) {
        int r = i / (D / 8), c = i % (D / 8);
        bool inside = r < it.num_rows;
        int row = it.first_row + (inside ? r : 0);
        const uint16_t *src = (const uint16_t *)p.absorbed + (row - p.slice_row0) * p.absorbed_row + c * 8;
        if (c >= L / 8)
            src = (const uint16_t *)p.query + (row / p.num_heads) * p.q_token +
                  (row % p.num_heads) * p.q_head + p.nope + (c - L / 8) * 8;
        cp_async_zfill<16>(qs + mla_at<PITCH>(r, c), src, inside);
    }
    const int tiles = (it.k_end - it.k_begin + MLA_TILE_KEYS - 1) / MLA_TILE_KEYS;
    if (tiles > 0) loader.load(ks, s_valid[0], it.k_begin);
    cp_async_commit();

    float kscale = p.cache_kind == MLA_CACHE_E4M3 && p.k_scale ? __ldg(p.k_scale) : 1.f;
    const float scale = p.scale * kscale * (p.q_scale ? __ldg(p.q_scale) : 1.f) * MLA_LOG2E;
    int limit[2];
    float m[2] = {MLA_NO_MAX, MLA_NO_MAX}, l[2] = {0.f, 0.f};
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int row = it.first_row + pair * 16 + (lane >> 2) + 8 * e;
        limit[e] = p.topk ? it.k_end : min(it.k_end, it.base + row / p.num_heads + 1);
    }
    float o[COLS / 8][4];
#pragma unroll
    for (int j = 0; j < COLS / 8; j++)
        o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.f;
    const bool works = pair * 16 < it.num_rows;

    for (int t = 0; t < tiles; t++) {
        const int k0 = it.k_begin + t * MLA_TILE_KEYS, buf = p.stages == 2 ? t & 1 : 0;
        const uint32_t kt = ks + buf * MLA_TILE_KEYS * PITCH;
        if (p.stages == 2 && t + 1 < tiles) {
            loader.load(ks + (buf ^ 1) * MLA_TILE_KEYS * PITCH, s_valid[buf ^ 1], k0 + MLA_TILE_KEYS);
            cp_async_commit();
            cp_async_wait<1>();
        } else
            cp_async_wait<0>();
        __syncthreads();
        if (works) {
            float s[4][4] = {};
#pragma unroll 4
            for (int kk = 0; kk < D / 16; kk++) {
                uint32_t a[4], b[4];
                ldmatrix_x4(a, qs + mla_at<PITCH>(pair * 16 + (lane & 15), kk * 2 + (lane >> 4)));
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    ldmatrix_x4(b, kt + mla_at<PITCH>(half * 32 + n * 16 + (lane & 7) + ((lane >> 4) << 3),
                                                      kk * 2 + ((lane >> 3) & 1)));
                    mma_16816<DT>(s[2 * n], a, b[0], b[1]);
                    mma_16816<DT>(s[2 * n + 1], a, b[2], b[3]);
                }
            }
            float top[2] = {MLA_NO_MAX, MLA_NO_MAX};
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int key = half * 32 + j * 8 + (lane & 3) * 2 + (e & 1);
                    bool seen = k0 + key < limit[e >> 1] && s_valid[buf][key];
                    s[j][e] = seen ? s[j][e] * scale : -INFINITY;
                    top[e >> 1] = fmaxf(top[e >> 1], s[j][e]);
                }
            const int g = pair * 16 + (lane >> 2);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], 1));
                top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], 2));
                if ((lane & 3) == 0) s_max[half][g + 8 * e] = top[e];
            }
            mla_pair_sync(pair);
            float alpha[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float now = fmaxf(m[e], fmaxf(top[e], s_max[half ^ 1][g + 8 * e]));
                alpha[e] = ex2(m[e] - now);
                m[e] = now;
                l[e] *= alpha[e];
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[j][e] = ex2(__fsub_rn(s[j][e], m[e >> 1]));
                    l[e >> 1] += s[j][e];
                }
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    uint32_t at = ps + mla_at<128>(g + 8 * e, half * 4 + j) + (lane & 3) * 4;
                    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at),
                                 "r"(pack2<DT>(s[j][2 * e], s[j][2 * e + 1]))
                                 : "memory");
                }
            }
            if (__any_sync(~0u, alpha[0] != 1.f || alpha[1] != 1.f)) {
#pragma unroll
                for (int j = 0; j < COLS / 8; j++)
                    o[j][0] *= alpha[0], o[j][1] *= alpha[0], o[j][2] *= alpha[1], o[j][3] *= alpha[1];
            }
            mla_pair_sync(pair);
#pragma unroll
            for (int kk = 0; kk < MLA_TILE_KEYS / 16; kk++) {
                uint32_t a[4], b[4];
                ldmatrix_x4(a, ps + mla_at<128>(pair * 16 + (lane & 15), kk * 2 + (lane >> 4)));
#pragma unroll
                for (int n = 0; n < COLS / 16; n++) {
                    ldmatrix_x4_trans(b, kt + mla_at<PITCH>(kk * 16 + (lane & 15),
                                                            half * (COLS / 8) + n * 2 + (lane >> 4)));
                    mma_16816<DT>(o[2 * n], a, b[0], b[1]);
                    mma_16816<DT>(o[2 * n + 1], a, b[2], b[3]);
                }
            }
        }
        __syncthreads();
        if (p.stages == 1 && t + 1 < tiles) {
            loader.load(ks, s_valid[0], k0 + MLA_TILE_KEYS);
            cp_async_commit();
        }
    }
    cp_async_wait<0>();
    __syncthreads(); /* without keys the queries may still be on their way */
    if (!works) return;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        l[e] += __shfl_xor_sync(~0u, l[e], 1);
        l[e] += __shfl_xor_sync(~0u, l[e], 2);
        if ((lane & 3) == 0) s_sum[half][pair * 16 + (lane >> 2) + 8 * e] = l[e];
    }
    mla_pair_sync(pair);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int r = pair * 16 + (lane >> 2) + 8 * e, row = it.first_row + r;
        if (r >= it.num_rows) continue;
        float sum = s_sum[0][r] + s_sum[1][r], inv = sum > 0.f ? kscale / sum : 0.f;
        if (!(sum <= 3e38f)) inv = kscale / sum; /* NaN stays NaN */
        float lse = sum == 0.f ? -INFINITY : m[e] + log2f(sum);
        if (half == 0 && (lane & 3) == 0) {
            if (it.slot >= 0)
                p.part_lse[it.slot * MLA_TILE_ROWS + r] = lse;
            else if (p.lse)
                p.lse[(row % p.num_heads) * p.lse_head + (row / p.num_heads) * p.lse_token] = lse * MLA_LN2;
        }
        const int col = half * COLS + (lane & 3) * 2;
        if (it.slot >= 0) {
            float *dst = p.part_out + ((int64_t)it.slot * MLA_TILE_ROWS + r) * L + col;
#pragma unroll
            for (int j = 0; j < COLS / 8; j++)
                *(float2 *)(dst + j * 8) = make_float2(o[j][2 * e] * inv, o[j][2 * e + 1] * inv);
        } else {
            uint16_t *dst = (uint16_t *)p.latent + (int64_t)(row - p.slice_row0) * L + col;
#pragma unroll
            for (int j = 0; j < COLS / 8; j++)
                *(uint32_t *)(dst + j * 8) = pack2<DT>(o[j][2 * e] * inv, o[j][2 * e + 1] * inv);
        }
    }
}

template <int DT, int L>
int mla_run_attend(const mla_attend_params *p, int num_items, cudaStream_t stream) {
    size_t bytes = mla_attend_smem(L, p->stages);
    if (num_items == 0)
        return (int)cudaFuncSetAttribute(mla_attend_kernel<DT, L>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return attn_cuda::launch_kernel(mla_attend_kernel<DT, L>, num_items, MLA_THREADS, bytes, stream, *p);
}

template <int DT>
int mla_run_attend(const mla_attend_params *p, int num_items, void *stream) {
    return p->latent_rank == 512 ? mla_run_attend<DT, 512>(p, num_items, (cudaStream_t)stream)
                                 : mla_run_attend<DT, 256>(p, num_items, (cudaStream_t)stream);
}

} /* namespace attn_cuda */
#endif
