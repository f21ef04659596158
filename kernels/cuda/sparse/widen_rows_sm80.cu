/* SPDX-License-Identifier: Apache-2.0 */
/* The 16-bit copy of 656-byte rows, with the values that sparse_attend_sm90_gather.cuh makes of them: a warp
 * has four rows of a page in flight, 16 latent values a lane, and eight lanes the rope of one. */
#include "../ptx/launch.cuh"
#include "ds_values.cuh"
#include "widen_rows.h"

#include <cuda_runtime.h>

using namespace attn_cuda;

template <int DT>
__global__ void __launch_bounds__(256) widen_rows_kernel(const __grid_constant__ widen_params p) {
    constexpr int ROWS = 4;
    const int lane = threadIdx.x & 31, row = (blockIdx.x * 8 + (threadIdx.x >> 5)) * ROWS,
              request = blockIdx.y, page = row / p.page_size, at = row - page * p.page_size;
    if (blockIdx.x == 0 && request == 0 && threadIdx.x == 0) {
        mla_counts c = *p.counts;
        /* as a number: requests before the first have no row */
        c.block_table =
            (const int32_t *)((uintptr_t)p.table - (uintptr_t)p.first_request * p.longest * sizeof(int32_t));
        c.block_table_stride = c.block_table_width = p.longest;
        *p.made = c;
    }
    if (page >= p.longest) return;
    const int start = __ldg(p.starts + request), pages = __ldg(p.starts + request + 1) - start;
    int block = -1;
    if (page < pages) {
        const mla_counts *c = p.counts;
        block = __ldg(c->block_table + (p.first_request + request) * c->block_table_stride + page);
    }
    const bool there = block >= 0 && block < p.cache_pages;
    if (at == 0 && lane == 0) p.table[(int64_t)request * p.longest + page] = there ? start + page : -1;
    if (!there) return;
    const char *from = (const char *)p.cache + block * p.cache_page + at * p.cache_row;
    char *to = (char *)p.rows + ((int64_t)(start + page) * p.page_size + at) * WIDENED_ROW;
    uint4 x[ROWS];
    float scale[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        x[i] = __ldg((const uint4 *)(from + i * p.cache_row) + lane);
        scale[i] = __ldg((const float *)(from + i * p.cache_row + MLA_DS_SCALES_AT) + (lane >> 3));
    }
    const uint4 rope = __ldg((const uint4 *)(from + (lane >> 3) * p.cache_row + MLA_DS_ROPE_AT) + (lane & 7));
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        uint4 *latents = (uint4 *)(to + i * WIDENED_ROW) + 2 * lane;
        uint32_t v[8];
        ds_latents<DT>(x[i], scale[i], v);
        latents[0] = make_uint4(v[0], v[1], v[2], v[3]), latents[1] = make_uint4(v[4], v[5], v[6], v[7]);
    }
    *((uint4 *)(to + (lane >> 3) * WIDENED_ROW + 1024) + (lane & 7)) = ds_rope<DT>(rope);
}

extern "C" int widen_rows(const widen_params *p, void *stream) {
    const dim3 grid((unsigned)(((int64_t)p->longest * p->page_size + 31) / 32), (unsigned)p->num_reqs);
    return p->dtype == MLA_BF16
               ? attn_cuda::launch_kernel(widen_rows_kernel<DT_BF16>, grid, 256, 0, stream, *p)
               : attn_cuda::launch_kernel(widen_rows_kernel<DT_F16>, grid, 256, 0, stream, *p);
}
