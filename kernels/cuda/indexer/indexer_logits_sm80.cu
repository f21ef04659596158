/* SPDX-License-Identifier: Apache-2.0 */
/* Index logits on any GPU from sm_80 on: e4m3 becomes f16, which holds it exactly, and m16n8k16 sums in f32.
 * A CTA takes one query row and 1024 keys, a warp 16 keys at a time; the query waits in shared memory as
 * fragments.
 *
 * Both operands permute the 16 values of a step alike: a lane's four values are four neighbouring bytes. */
#include "../ptx/launch.cuh"
#include "../ptx/ptx_sm80.cuh"
#include "indexer_params.h"

namespace attn_cuda {

enum { PORTABLE_KEYS = 1024, PORTABLE_HEADS = 128, PORTABLE_STEPS = INDEXER_DIM / 16 };

__global__ void __launch_bounds__(128) index_logits_sm80_kernel(const indexer_logits_params p) {
    __shared__ uint2 query[PORTABLE_HEADS / 8 * PORTABLE_STEPS * 32];
    __shared__ float weights[PORTABLE_HEADS];
    const int row = blockIdx.y, warp = (int)threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2,
              q = lane & 3;
    const int lo = p.starts ? max(__ldg(p.starts + row), 0) : 0, hi = min(__ldg(p.ends + row), p.num_keys);
    const int begin = max(lo, (int)blockIdx.x * PORTABLE_KEYS),
              end = min(hi, (int)(blockIdx.x + 1) * PORTABLE_KEYS);
    if (begin >= end) return;
    for (int i = threadIdx.x; i < p.num_heads / 8 * PORTABLE_STEPS * 32; i += 128) {
        const int l = i & 31, step = i >> 5 & (PORTABLE_STEPS - 1),
                  head = (i / (32 * PORTABLE_STEPS)) * 8 + (l >> 2);
        const uint32_t x = __ldg(
            (const uint32_t *)(p.query + row * p.query_row + head * p.query_head + step * 16) + (l & 3));
        query[i] = make_uint2(e4m3x2_to_f16x2<0>(x), e4m3x2_to_f16x2<1>(x));
    }
    for (int i = threadIdx.x; i < p.num_heads; i += 128)
        weights[i] = __ldg(p.weights + row * p.weights_row + i);
    __syncthreads();

    const int32_t *table = p.table ? p.table + row / p.rows_per_request * p.table_row : nullptr;
    float *out = p.logits + row * p.logits_row;
    for (int k0 = begin + warp * 16; k0 < end; k0 += 64) {
        uint32_t a[PORTABLE_STEPS][4] = {};
        float scale[2] = {0.f, 0.f};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int key = k0 + g + 8 * half;
            const uint8_t *at = nullptr;
            if (key < end && table) {
                const int page = __ldg(table + key / p.cache.page_size), token = key % p.cache.page_size;
                if ((uint32_t)page < (uint32_t)p.cache.num_pages) {
                    at = p.cache.data + page * p.cache.page_bytes;
                    scale[half] = __ldg((const float *)(at + p.cache.page_size * INDEXER_DIM) + token);
                    at += token * INDEXER_DIM;
                }
            } else if (key < end) {
                at = p.keys + key * p.key_row;
                scale[half] = __ldg(p.key_scales + key);
            }
#pragma unroll
            for (int step = 0; step < PORTABLE_STEPS; step++)
                if (at) {
                    const uint32_t x = __ldg((const uint32_t *)(at + step * 16) + q);
                    a[step][half] = e4m3x2_to_f16x2<0>(x);
                    a[step][half + 2] = e4m3x2_to_f16x2<1>(x);
                }
        }
        float sum0 = 0.f, sum1 = 0.f;
        for (int n = 0; n < p.num_heads / 8; n++) {
            float d[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
            for (int step = 0; step < PORTABLE_STEPS; step++) {
                const uint2 b = query[(n * PORTABLE_STEPS + step) * 32 + lane];
                mma_16816<DT_F16>(d, a[step], b.x, b.y);
            }
            const float w0 = weights[n * 8 + 2 * q], w1 = weights[n * 8 + 2 * q + 1];
            sum0 += w0 * fmaxf(d[0], 0.f) + w1 * fmaxf(d[1], 0.f);
            sum1 += w0 * fmaxf(d[2], 0.f) + w1 * fmaxf(d[3], 0.f);
        }
        sum0 += __shfl_xor_sync(~0u, sum0, 1), sum1 += __shfl_xor_sync(~0u, sum1, 1);
        sum0 += __shfl_xor_sync(~0u, sum0, 2), sum1 += __shfl_xor_sync(~0u, sum1, 2);
        const int key = k0 + g + 8 * q;
        if (q < 2 && key < end) out[key] = q == 0 ? sum0 * scale[0] : sum1 * scale[1];
    }
}

} /* namespace attn_cuda */

extern "C" int indexer_logits_sm80(const indexer_logits_params *p, void *stream) {
    const unsigned chunks = ((unsigned)p->num_keys + attn_cuda::PORTABLE_KEYS - 1) / attn_cuda::PORTABLE_KEYS;
    for (int32_t first = 0; first < p->num_rows;
         first += 65520) { /* rows of a grid; a multiple of all rows_per_request */
        indexer_logits_params part = *p;
        const int32_t rows = p->num_rows - first < 65520 ? p->num_rows - first : 65520;
        part.num_rows = rows;
        part.query += first * p->query_row, part.weights += first * p->weights_row;
        if (part.starts) part.starts += first;
        part.ends += first, part.logits += first * p->logits_row;
        if (part.table) part.table += first / p->rows_per_request * p->table_row;
        const int e = attn_cuda::launch_kernel(attn_cuda::index_logits_sm80_kernel,
                                               dim3(chunks, (unsigned)rows), 128, 0, stream, part);
        if (e != 0) return e;
    }
    return 0;
}
