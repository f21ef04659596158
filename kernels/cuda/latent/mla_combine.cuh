/* SPDX-License-Identifier: Apache-2.0 */
/* Merge of the pieces of cut tiles (semantics 6.5): out = sum of 2^(lse_i - max) out_i over sum of 2^(lse_i -
 * max). Pieces are added up as four sums, of every fourth piece. Many rows: a CTA takes one at a time and has
 * all four; few: a CTA has one, and each quarter of its threads a sum. The order is the same either way, and
 * so are the bits.
 *
 * PART says how a piece lies in memory: its values, at which places their columns are, and POWERS marks, each
 * of which has a factor of some of the values, which is part of their weight, and the piece's logarithm. */
#ifndef MLA_COMBINE_CUH
#define MLA_COMBINE_CUH

#include "../ptx/launch_after.cuh"
#include "mla_live.cuh"

#include <cuda_runtime.h>

namespace attn_cuda {

enum { COMBINE_SUMS = 4, COMBINE_CTAS = 2048, COMBINE_CHUNK = 64, COMBINE_MOST_RANK = 512 };

ATTN_DEV float nan_max(float a, float b) { /* NaN wins */
    return a <= b ? b : a;
}

/* Row r of a split, and what its pieces weigh together; all lanes of a warp call for the same row. */
struct combine_row {
    int row, pieces;
    int64_t at, step; /* its first piece, and from one to the next */
    float base, sum, inverse;

    ATTN_DEV combine_row(const mla_attend_params &p, const mla_split &s, int r)
        : row(s.first_row + r), pieces(s.pieces), at((int64_t)s.slot * p.tile_rows + r), step(p.tile_rows) {}
    template <class PART>
    ATTN_DEV void weigh(const PART &part) {
        const int lane = threadIdx.x & 31;
        float top = -INFINITY;
        sum = 0.f;
        for (int i = lane; i < pieces; i += 32)
            top = nan_max(top, part.lse(i * step));
        for (int d = 16; d; d >>= 1)
            top = nan_max(top, __shfl_xor_sync(~0u, top, d));
        base = top == -INFINITY ? 0.f : top;
        for (int i = lane; i < pieces; i += 32)
            sum += exp2f(part.lse(i * step) - base);
        for (int d = 16; d; d >>= 1)
            sum += __shfl_xor_sync(~0u, sum, d);
        inverse = sum == 0.f ? 0.f : 1.f / sum;
    }
    ATTN_DEV float weight(float2 mark) const { return exp2f(mark.y - base) * inverse * mark.x; }
    /* By one thread. */
    ATTN_DEV void store_lse(const mla_attend_params &p) const {
        if (p.lse)
            p.lse[(row % p.num_heads) * p.lse_head + (row / p.num_heads) * p.lse_token] =
                sum == 0.f ? -INFINITY : (base + log2f(sum)) * 0.6931471805599453f;
    }
    ATTN_DEV uint16_t *out(const mla_attend_params &p, int column) const {
        return (uint16_t *)p.latent + (int64_t)(row - p.slice_row0) * p.latent_rank + column;
    }
};

/* Unit u of the slice: rows that few tiles have come last. False: a row that the step lacks. */
ATTN_DEV bool combine_unit(const mla_attend_params &p, int num_splits, int u, mla_split *s, int *r) {
    *r = u / num_splits;
    *s = mla_split_of(p, p.slice->first_split + u - *r * num_splits);
    return *r < s->num_rows;
}

/* A warp has 128 columns, a thread four. */
template <int DT, class PART>
__global__ void __launch_bounds__(128, 8) combine_kernel(const __grid_constant__ mla_attend_params p) {
    constexpr int AHEAD = 4; /* pieces whose loads are in flight before the weights are known */
    const int place = threadIdx.x * 4, num_splits = p.slice->num_splits, units = num_splits * p.tile_rows;
    pdl_launch();
    pdl_wait();
    for (int u = blockIdx.x; u < units; u += gridDim.x) {
        mla_split s;
        int r;
        if (!combine_unit(p, num_splits, u, &s, &r)) continue;
        combine_row row(p, s, r);
        const PART part(p, row.at);
        typename PART::four x[AHEAD];
        float2 mark[AHEAD];
        auto load = [&](int i0) {
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                const int64_t i = (i0 + j) * row.step;
                if (i0 + j >= row.pieces) break;
                x[j] = part.load_four(i, place);
                mark[j] = part.mark(i, PART::mark_of(place));
            }
        };
        load(0);
        row.weigh(part);
        float4 acc[COMBINE_SUMS] = {};
        for (int i0 = 0; i0 < row.pieces; i0 += AHEAD) {
            if (i0 > 0) load(i0);
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                if (i0 + j >= row.pieces) break;
                const float w = row.weight(mark[j]);
                float4 &a = acc[j % COMBINE_SUMS];
                const float4 v = PART::widen(x[j]);
                a.x += w * v.x, a.y += w * v.y, a.z += w * v.z, a.w += w * v.w;
            }
        }
        float4 all = acc[0];
#pragma unroll
        for (int i = 1; i < COMBINE_SUMS; i++)
            all.x += acc[i].x, all.y += acc[i].y, all.z += acc[i].z, all.w += acc[i].w;
        const uint2 y = make_uint2(pack2<DT>(all.x, all.y), pack2<DT>(all.z, all.w));
        if constexpr (PART::REORDERS) {
            const bool reorders = PART::reorders(p);
            *(uint32_t *)row.out(p, PART::column_at(place, reorders)) = y.x;
            *(uint32_t *)row.out(p, PART::column_at(place + 2, reorders)) = y.y;
        } else
            *(uint2 *)row.out(p, place) = y;
        if (threadIdx.x == 0) row.store_lse(p);
    }
}

/* A quarter of the CTA has all columns, a thread eight. What takes the time of a row is the number of
 * instructions, so weights are computed once, for a chunk of pieces. Where a row lies is older than the
 * kernel before this one (mla_decode_sm90.cuh). A CTA has more than half of a multiprocessor's registers, so
 * that no two rows share one while others have none. */
template <int DT, class PART>
__global__ void __launch_bounds__(COMBINE_MOST_RANK / 2, 1)
    combine_few_kernel(const __grid_constant__ mla_attend_params p) {
    constexpr int POWERS = PART::POWERS, AHEAD = PART::AHEAD, GROUP_PIECES = COMBINE_CHUNK / COMBINE_SUMS,
                  EACH = (COMBINE_CHUNK * POWERS + COMBINE_MOST_RANK / 2 - 1) / (COMBINE_MOST_RANK / 2);
    __shared__ float weights[COMBINE_CHUNK][POWERS];
    __shared__ __align__(16) float partial[COMBINE_SUMS][COMBINE_MOST_RANK];
    const int width = p.latent_rank / 8, group = threadIdx.x / width,
              place = (threadIdx.x - group * width) * 8, num_splits = p.slice->num_splits,
              units = num_splits * p.tile_rows;
    pdl_launch();
    mla_split s;
    int r;
    bool is_row = (int)blockIdx.x < units && combine_unit(p, num_splits, blockIdx.x, &s, &r);
    pdl_wait();
    for (int u = blockIdx.x; u < units;) {
        if (is_row) {
            combine_row row(p, s, r);
            const PART part(p, row.at);
            float acc[8] = {};
            for (int c0 = 0; c0 < row.pieces; c0 += COMBINE_CHUNK) {
                typename PART::eight x[AHEAD];
                float2 mark[EACH];
                const int count = min(COMBINE_CHUNK, row.pieces - c0);
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    const int e = threadIdx.x + j * blockDim.x;
                    const int64_t i = (c0 + e / POWERS) * row.step;
                    if (e < count * POWERS) mark[j] = part.mark(i, e % POWERS);
                }
                auto load = [&](int n0) {
#pragma unroll
                    for (int n = 0; n < AHEAD; n++) {
                        const int i = group + (n0 + n) * COMBINE_SUMS;
                        if (i < count) x[n] = part.load_eight((c0 + i) * row.step, place);
                    }
                };
                load(0);
                if (c0 == 0) row.weigh(part);
                if (c0 > 0) __syncthreads(); /* all have used the weights before */
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    const int e = threadIdx.x + j * blockDim.x;
                    if (e < count * POWERS) weights[e / POWERS][e % POWERS] = row.weight(mark[j]);
                }
                __syncthreads();
#pragma unroll
                for (int n0 = 0; n0 < GROUP_PIECES; n0 += AHEAD) {
                    if (n0 > 0) load(n0);
#pragma unroll
                    for (int n = 0; n < AHEAD; n++) {
                        const int i = group + (n0 + n) * COMBINE_SUMS;
                        if (i >= count) break;
                        const float w = weights[i][PART::mark_of(place)];
                        PART::add(acc, w, x[n]);
                    }
                }
            }
            const bool reorders = PART::reorders(p);
#pragma unroll
            for (int k = 0; k < 8; k += 2)
                *(float2 *)(partial[group] + PART::column_at(place + k, reorders)) =
                    make_float2(acc[k], acc[k + 1]);
            __syncthreads();
            const int c = threadIdx.x * 2;
            float2 all = *(const float2 *)(partial[0] + c);
#pragma unroll
            for (int i = 1; i < COMBINE_SUMS; i++) {
                const float2 y = *(const float2 *)(partial[i] + c);
                all.x += y.x, all.y += y.y;
            }
            *(uint32_t *)row.out(p, c) = pack2<DT>(all.x, all.y);
            if (threadIdx.x == 0) row.store_lse(p);
        }
        u += gridDim.x;
        if (u >= units) break;
        __syncthreads();
        is_row = combine_unit(p, num_splits, u, &s, &r);
    }
}

template <int DT, class PART>
int combine(const mla_attend_params *p, int num_splits, bool is_early, cudaStream_t stream) {
    const int64_t units = (int64_t)num_splits * p->tile_rows;
    if (units <= 512)
        return launch_after(combine_few_kernel<DT, PART>, dim3((unsigned)units), p->latent_rank / 2, 0,
                            stream, *p, is_early);
    return launch_after(combine_kernel<DT, PART>,
                        dim3((unsigned)(units < COMBINE_CTAS ? units : COMBINE_CTAS)), p->latent_rank / 4, 0,
                        stream, *p, is_early);
}

} /* namespace attn_cuda */
#endif
