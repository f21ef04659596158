/* SPDX-License-Identifier: Apache-2.0 */
/* Rows from one place and order to another, chosen by a list or not, converted on the way where the types
 * differ. A thread moves one unit of the last dimension. */
#include "../ptx/launch_after.cuh"
#include "merge_element_sm80.cuh"

#include <cuda_runtime.h>

using namespace attn_cuda;

enum { MOST_BLOCKS = 65536, ELEMENTS = 8 };

template <class T>
__device__ void move(const char *from, char *to, bool is_there, int fill) {
    T x;
    if (is_there)
        x = *(const T *)from;
    else
        memset(&x, fill, sizeof x);
    *(T *)to = x;
}

template <class INDEX>
__global__ void __launch_bounds__(256) rows_kernel(const __grid_constant__ merge_rows_params p) {
    pdl_wait(); /* first: who starts early behind this one may read what was written before it */
    pdl_launch();
    const double scale = p.scale ? (double)*p.scale : 1;
    const INDEX step = (INDEX)gridDim.x * 256;
    for (INDEX i = (INDEX)blockIdx.x * 256 + threadIdx.x; i < (INDEX)p.count; i += step) {
        INDEX rest = i;
        int64_t from_at = 0, to_at = 0, first = 0;
        for (int d = p.dims - 1; d > 0; d--) {
            const INDEX n = (INDEX)p.shape[d], q = rest / n, x = rest - q * n;
            from_at += (int64_t)x * p.from_stride[d], to_at += (int64_t)x * p.to_stride[d];
            rest = q;
        }
        first = (int64_t)rest;
        int64_t from_row = first, to_row = first;
        bool is_there = true;
        int fill = 0;
        if (p.rows) {
            const int64_t row = p.rows[first];
            if (p.is_scatter) {
                if (row < 0 || row >= p.indexed) continue;
                to_row = row;
            } else {
                is_there = row >= 0 && row < p.indexed;
                fill = row < 0 ? 0 : 255; /* beyond the rows: all bits, which is no number */
                from_row = is_there ? row : 0;
            }
        }
        const char *from = (const char *)p.from + from_at + from_row * p.from_stride[0];
        char *to = (char *)p.to + to_at + to_row * p.to_stride[0];
        if (p.is_plain) {
            switch (p.unit) {
            case 16:
                move<uint4>(from, to, is_there, fill);
                break;
            case 8:
                move<uint2>(from, to, is_there, fill);
                break;
            case 4:
                move<uint32_t>(from, to, is_there, fill);
                break;
            case 2:
                move<uint16_t>(from, to, is_there, fill);
                break;
            default:
                move<uint8_t>(from, to, is_there, fill);
            }
            continue;
        }
#pragma unroll
        for (int e = 0; e < ELEMENTS; e++) {
            if (e >= p.unit) break;
            const double x = is_there ? __dmul_rn(merge_load(p.from_type, from, e), scale)
                             : fill   ? (double)NAN
                                      : 0;
            merge_store(p.to_type, to, e, x);
        }
    }
}

extern "C" int merge_rows_run(const merge_rows_params *p, void *stream) {
    const int64_t blocks = (p->count + 255) / 256;
    if (blocks == 0) return 0;
    const unsigned grid = (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
    return launch_after(p->count < (int64_t)1 << 31 ? rows_kernel<uint32_t> : rows_kernel<int64_t>, grid, 256,
                        0, stream, *p, can_start_early());
}
