/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill for every GPU from sm_80 on: FlashAttention-2's loop (arXiv 2307.08691) with cp.async and mma.sync,
 * every mask feature, paged or contiguous keys, head sizes up to 256. The oracle's first companion: where a
 * faster kernel lacks a feature this one serves.
 *
 * CTA: 4 warps, each MT * 16 packed rows (row = token * group + head, so that the query heads of one KV head
 * share its keys). K and V have one buffer each; V(j) loads while S = Q K^T runs, K(j+1) while O += P V runs.
 * An e4m3 cache is converted to f16 on its way to shared memory, and then everything runs in f16.
 *
 * Grid: tiles times KV heads, the heads fastest. */
#ifndef PREFILL_SM80_CUH
#define PREFILL_SM80_CUH

#include "../ptx/launch.cuh"
#include "flash_launch.h"
#include "flash_rows.cuh"
#include "page_id.cuh"

namespace attn_cuda {

template <int QT, int KV, int DK, int DV>
struct prefill80_traits {
    static constexpr int MMA = KV == DT_E4M3 ? DT_F16 : QT;
    static constexpr int MT = PREFILL_SM80_WARP_TILES(DK);
    static constexpr int BM = PREFILL_SM80_ROWS(DK), BN = PREFILL_SM80_KEYS(DK);
    static constexpr int KRS = PREFILL_SM80_ROW_BYTES(DK), VRS = PREFILL_SM80_ROW_BYTES(DV);
    static constexpr int SMEM = PREFILL_SM80_SMEM(DK, DV);
};

/* BN rows of keys or values, 8 elements a time. Rows outside [lo, hi) and columns past `cols` become
 * zeros. */
template <int KV, int D, int RS, int BN>
ATTN_DEV void load_tile(uint32_t dst, const uint8_t *base, int64_t page_stride, int64_t token_stride, int ids,
                        int tok0, int cols, int lo, int hi, const pager &pg, bool paged) {
    constexpr int CPR = D / 8, EB = KV == DT_E4M3 ? 1 : 2;
#pragma unroll
    for (int u = 0; u < BN * CPR / 128; u++) {
        int i = u * 128 + threadIdx.x, r = i / CPR, c = i % CPR;
        int tok = tok0 + r, page = __shfl_sync(~0u, ids, r >> 4);
        bool ok = tok >= lo && tok < hi && c * 8 < cols;
        int64_t off =
            (paged ? page * page_stride + pg.offset(tok) * token_stride : tok * token_stride) + c * 8;
        if constexpr (KV == DT_E4M3) {
            uint2 x = ok ? __ldg((const uint2 *)(base + off)) : make_uint2(0, 0);
            st_shared_v4(dst + r * RS + c * 16, make_uint4(e4m3x2_to_f16x2<0>(x.x), e4m3x2_to_f16x2<1>(x.x),
                                                           e4m3x2_to_f16x2<0>(x.y), e4m3x2_to_f16x2<1>(x.y)));
        } else
            cp_async_zfill<16>(dst + r * RS + c * 16, ok ? base + off * EB : base, ok);
    }
}

template <int QT, int KV, int DK, int DV>
__global__ void __launch_bounds__(128) prefill80_kernel(const __grid_constant__ flash_params p) {
    using T = prefill80_traits<QT, KV, DK, DV>;
    constexpr int MMA = T::MMA, MT = T::MT, BM = T::BM, BN = T::BN, EB = KV == DT_E4M3 ? 1 : 2;
    static_assert(BN * (DK / 8) % 128 == 0 && BN * (DV / 8) % 128 == 0 && BM * (DK / 8) % 128 == 0,
                  "whole passes");
    extern __shared__ __align__(128) uint8_t smem[];
    const uint32_t sq = smem_addr(smem), sk = sq + BM * T::KRS, svm = sk + BN * T::KRS;

    const int entry = blockIdx.x / p.num_kv_heads, head = blockIdx.x % p.num_kv_heads;
    if (entry >= __ldg(&p.counts->num_tiles)) return;
    const int4 tile = __ldg((const int4 *)p.tiles + 2 * entry);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
    const int seq = tile.x + p.seq_offset, row0 = tile.y * BM;
    const seq_view sv = view_of(__ldg((const int4 *)p.tiles + 2 * entry + 1), tile.w);
    const int rows = sv.q_len * p.group;
    if (row0 >= rows) return;
    int tile_lo, tile_hi, unused;
    visible_keys(p, sv, row0 / p.group, tile_lo, unused);
    visible_keys(p, sv, min(rows - 1, row0 + BM - 1) / p.group, unused, tile_hi);

    const pager pg(p.page_size > 0 ? p.page_size : 16);
    const bool paged = p.page_size > 0;
    const int32_t *table = p.counts->block_table + (int64_t)seq * p.counts->block_table_stride;
    const int64_t first = tile.z;
    const uint8_t *kbase = (const uint8_t *)p.k + (first * p.k_token + (int64_t)head * p.k_head) * EB;
    const uint8_t *vbase = (const uint8_t *)p.v + (first * p.v_token + (int64_t)head * p.v_head) * EB;
    auto page_ids = [&](int tok0) { /* lane i: page of the tile's i-th group of 16 tokens */
                                    int tok = tok0 + 16 * lane;
                                    return paged && lane < BN / 16 && tok + 16 > tile_lo && tok < tile_hi
                                               ? page_id(p, __ldg(table + pg.page(tok)))
                                               : 0;
    };

    /* Q to shared memory; the scale stays out of it, so that no bit of a 16-bit Q is lost. */
#pragma unroll 4
    for (int i = threadIdx.x; i < BM * (DK / 8); i += 128) {
        int r = i / (DK / 8), c = i % (DK / 8), row = row0 + r;
        bool ok = row < rows && c * 8 < p.head_size;
        const int64_t at = (int64_t)(sv.q0 + row / p.group) * p.q_token +
                           (int64_t)(head * p.group + row % p.group) * p.q_head + c * 8;
        const uint16_t *src = (const uint16_t *)p.q + at;
        if (KV == DT_E4M3 && p.q_dtype == DT_E4M3) {
            const uint2 x = ok ? *(const uint2 *)((const uint8_t *)p.q + at) : make_uint2(0, 0);
            st_shared_v4(sq + r * T::KRS + c * 16,
                         make_uint4(e4m3x2_to_f16x2<0>(x.x), e4m3x2_to_f16x2<1>(x.x), e4m3x2_to_f16x2<0>(x.y),
                                    e4m3x2_to_f16x2<1>(x.y)));
        } else if (KV == DT_E4M3 && p.q_dtype == DT_BF16) {
            uint4 x = ok ? *(const uint4 *)src : make_uint4(0, 0, 0, 0);
            uint32_t *w = &x.x;
            for (int k = 0; k < 4; k++) {
                w[k] = pack2_limited(unpack2<DT_BF16>(w[k]));
            }
            st_shared_v4(sq + r * T::KRS + c * 16, x);
        } else
            cp_async_zfill<16>(sq + r * T::KRS + c * 16, ok ? src : (const uint16_t *)p.q, ok);
    }

    /* Query row number i of this thread: i >> 1 is the m-tile, i & 1 the half. Rows past the end repeat the
     * last one and are not stored. What a row sees is worked out where it is needed: registers are the scarce
     * thing. */
    auto row_of = [&](int i) { return min(rows - 1, row0 + (warp * MT + (i >> 1)) * 16 + g + 8 * (i & 1)); };
    float m[MT][2], l[MT][2];
#pragma unroll
    for (int t = 0; t < MT; t++)
        m[t][0] = m[t][1] = NO_MAX, l[t][0] = l[t][1] = 0.f;
    int warp_lo, warp_hi; /* keys that all rows of this warp see */
    visible_keys(p, sv, min(rows - 1, row0 + warp * MT * 16) / p.group, unused, warp_hi);
    visible_keys(p, sv, min(rows - 1, row0 + warp * MT * 16 + MT * 16 - 1) / p.group, warp_lo, unused);
    const score_features features(p, KV == DT_E4M3 ? qk_scale(p, head) : 1.f);

    float o[MT][DV / 8][4];
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int j = 0; j < DV / 8; j++)
            o[t][j][0] = o[t][j][1] = o[t][j][2] = o[t][j][3] = 0.f;

    const int begin = tile_lo / BN * BN;
    int ids = page_ids(begin);
    if (begin < tile_hi)
        load_tile<KV, DK, T::KRS, BN>(sk, kbase, p.k_page, p.k_token, ids, begin, p.head_size, tile_lo,
                                      tile_hi, pg, paged);
    cp_async_commit();
    const int nr = (lane & 7) + ((lane >> 4) << 3), nc = (lane >> 3) & 1, lr = lane & 15, lc = lane >> 4;
#pragma unroll 1
    for (int k0 = begin; k0 < tile_hi; k0 += BN) {
        cp_async_wait<0>();
        __syncthreads();
        load_tile<KV, DV, T::VRS, BN>(svm, vbase, p.v_page, p.v_token, ids, k0, p.head_size_v, tile_lo,
                                      tile_hi, pg, paged);
        cp_async_commit();
        float s[MT][BN / 8][4];
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
                s[t][j][0] = s[t][j][1] = s[t][j][2] = s[t][j][3] = 0.f;
#pragma unroll
        for (int st = 0; st < DK / 16; st++) {
            uint32_t a[MT][4];
#pragma unroll
            for (int t = 0; t < MT; t++)
                ldmatrix_x4(a[t], sq + ((warp * MT + t) * 16 + lr) * T::KRS + (2 * st + lc) * 16);
#pragma unroll
            for (int j = 0; j < BN / 16; j++) {
                uint32_t b[4];
                ldmatrix_x4(b, sk + (j * 16 + nr) * T::KRS + (2 * st + nc) * 16);
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    mma_16816<MMA>(s[t][2 * j], a[t], b[0], b[1]);
                    mma_16816<MMA>(s[t][2 * j + 1], a[t], b[2], b[3]);
                }
            }
        }
        ids = page_ids(k0 + BN);
        const bool partial = k0 < warp_lo || k0 + BN > warp_hi;
#pragma unroll
        for (int t = 0; t < MT; t++) {
            features.apply(reinterpret_cast<float(&)[BN / 2]>(s[t]));
            if (p.alibi) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int row = row_of(2 * t + e), rel = k0 + 2 * q - (sv.kv_len - sv.q_len + row / p.group);
                    float slope = __ldg(p.alibi + head * p.group + row % p.group) * LOG2E;
#pragma unroll
                    for (int j = 0; j < BN / 8; j++) {
                        s[t][j][2 * e] = fmaf(slope, (float)(rel + j * 8), s[t][j][2 * e]);
                        s[t][j][2 * e + 1] = fmaf(slope, (float)(rel + j * 8 + 1), s[t][j][2 * e + 1]);
                    }
                }
            }
            if (partial) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int lo, hi;
                    visible_keys(p, sv, row_of(2 * t + e) / p.group, lo, hi);
                    lo -= k0 + 2 * q, hi -= k0 + 2 * q;
#pragma unroll
                    for (int j = 0; j < BN / 8; j++)
#pragma unroll
                        for (int i = 0; i < 2; i++)
                            if (j * 8 + i < lo || j * 8 + i >= hi) s[t][j][2 * e + i] = -INFINITY;
                }
            }
            float mx[2] = {NO_MAX, NO_MAX};
#pragma unroll
            for (int j = 0; j < BN / 8; j++) {
                mx[0] = fmaxf(mx[0], fmaxf(s[t][j][0], s[t][j][1]));
                mx[1] = fmaxf(mx[1], fmaxf(s[t][j][2], s[t][j][3]));
            }
            /* lazy rescale: the maximum may lag by 2^8 */
            if (__any_sync(~0u, mx[0] - m[t][0] > 8.f || mx[1] - m[t][1] > 8.f)) {
                float f[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    mx[e] = fmaxf(mx[e], __shfl_xor_sync(~0u, mx[e], 1));
                    mx[e] = fmaxf(fmaxf(mx[e], __shfl_xor_sync(~0u, mx[e], 2)), m[t][e]);
                    f[e] = ex2(m[t][e] - mx[e]);
                    m[t][e] = mx[e];
                    l[t][e] *= f[e];
                }
#pragma unroll
                for (int j = 0; j < DV / 8; j++) {
                    o[t][j][0] *= f[0];
                    o[t][j][1] *= f[0];
                    o[t][j][2] *= f[1];
                    o[t][j][3] *= f[1];
                }
            }
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[t][j][i] = ex2(__fsub_rn(s[t][j][i], m[t][i >> 1]));
                    l[t][i >> 1] += s[t][j][i];
                }
        }
        cp_async_wait<0>();
        __syncthreads();
        if (k0 + BN < tile_hi)
            load_tile<KV, DK, T::KRS, BN>(sk, kbase, p.k_page, p.k_token, ids, k0 + BN, p.head_size, tile_lo,
                                          tile_hi, pg, paged);
        cp_async_commit();
#pragma unroll
        for (int j = 0; j < BN / 16; j++) {
            uint32_t a[MT][4];
#pragma unroll
            for (int t = 0; t < MT; t++) {
                a[t][0] = pack2<MMA>(s[t][2 * j][0], s[t][2 * j][1]);
                a[t][1] = pack2<MMA>(s[t][2 * j][2], s[t][2 * j][3]);
                a[t][2] = pack2<MMA>(s[t][2 * j + 1][0], s[t][2 * j + 1][1]);
                a[t][3] = pack2<MMA>(s[t][2 * j + 1][2], s[t][2 * j + 1][3]);
            }
#pragma unroll
            for (int d = 0; d < DV / 16; d++) {
                uint32_t b[4];
                ldmatrix_x4_trans(b, svm + (j * 16 + lr) * T::VRS + (2 * d + lc) * 16);
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    mma_16816<MMA>(o[t][2 * d], a[t], b[0], b[1]);
                    mma_16816<MMA>(o[t][2 * d + 1], a[t], b[2], b[3]);
                }
            }
        }
    }
    cp_async_wait<0>();
    __syncthreads(); /* Q's memory takes O; the first copies may still be in flight when no key was visible */

    const float vscale = p.v_scale ? __ldg(p.v_scale + head * p.scale_stride) : 1.f;
    const int piece = p.piece_keys ? sv.first / p.piece_keys : 0;
#pragma unroll
    for (int t = 0; t < MT; t++) {
        float f[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float sum = l[t][e];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            int row = row0 + (warp * MT + t) * 16 + g + 8 * e, tok = row / p.group,
                h = head * p.group + row % p.group;
            float mm = m[t][e], rescale = 1.f;
            if (p.sinks && row < rows) { /* denominator only (semantics 2.10) */
                float sink = __ldg(p.sinks + h) * LOG2E, top = fmaxf(mm, sink);
                rescale = ex2(mm - top);
                sum = sum * rescale + ex2(sink - top);
                mm = top;
            }
            f[e] = sum > 0.f ? rescale * vscale / sum : 0.f;
            if (p.lse && q == 0 && row < rows)
                p.lse[piece * p.lse_piece + (int64_t)(sv.q0 + tok) * p.lse_token + (int64_t)h * p.lse_head] =
                    natural_lse(mm, sum);
        }
        if (p.parts_are_f32) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int row = row0 + (warp * MT + t) * 16 + g + 8 * e;
                if (row >= rows) continue;
                float *part =
                    part_row(p, piece, sv.q0 + row / p.group, head * p.group + row % p.group) + 2 * q;
#pragma unroll
                for (int j = 0; j < DV / 8; j++)
                    if (j * 8 < p.head_size_v)
                        *(float2 *)(part + j * 8) =
                            make_float2(o[t][j][2 * e] * f[e], o[t][j][2 * e + 1] * f[e]);
            }
            continue;
        }
        uint8_t *so = smem + ((warp * MT + t) * 16 + g) * T::KRS + 4 * q;
#pragma unroll
        for (int j = 0; j < DV / 8; j++) {
            *(uint32_t *)(so + j * 16) = pack2_as(p.out_dtype, o[t][j][0] * f[0], o[t][j][1] * f[0]);
            *(uint32_t *)(so + 8 * T::KRS + j * 16) =
                pack2_as(p.out_dtype, o[t][j][2] * f[1], o[t][j][3] * f[1]);
        }
    }
    __syncwarp();
    for (int i = lane; i < MT * 16 * (DV / 8) && !p.parts_are_f32; i += 32) {
        int r = warp * MT * 16 + i / (DV / 8), d = i % (DV / 8) * 8, row = row0 + r;
        if (row < rows && d < p.head_size_v)
            *(uint4 *)((uint16_t *)p.out + piece * p.out_piece +
                       (int64_t)(sv.q0 + row / p.group) * p.out_token +
                       (int64_t)(head * p.group + row % p.group) * p.out_head + d) =
                *(const uint4 *)(smem + r * T::KRS + d * 2);
    }
}

template <int QT, int KV, int DK, int DV>
int launch_prefill80(const flash_params *p, const flash_prefill_config *c, int num_tiles, void *stream) {
    (void)c;
    using T = prefill80_traits<QT, KV, DK, DV>;
    auto kernel = prefill80_kernel<QT, KV, DK, DV>;
    if (!p) return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::SMEM);
    return attn_cuda::launch_kernel(kernel, (unsigned)p->num_kv_heads * (unsigned)num_tiles, 128, T::SMEM,
                                    stream, *p);
}

/* Under an e4m3 cache the kernel converts Q. */
#define INSTANCE(TYPE, CLASS)                                                                                \
    extern "C" int flash_prefill_sm80_##TYPE##_##CLASS(const flash_params *p, const flash_prefill_config *c, \
                                                       int num_tiles, void *stream) {                        \
        [[maybe_unused]] constexpr flash_class k = flash_class_##CLASS;                                      \
        [[maybe_unused]] constexpr int keys = FLASH_TYPE_##TYPE,                                             \
                                       queries = keys == FLASH_E4M3 ? FLASH_F16 : keys;                      \
        return attn_cuda::launch_prefill80<queries, keys, k.dk, k.dv>(p, c, num_tiles, stream);              \
    }

} /* namespace attn_cuda */
#endif
