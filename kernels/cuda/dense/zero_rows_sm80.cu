/* SPDX-License-Identifier: Apache-2.0 */
/* Zeroes the rows of a strided output: the profiling run (semantics 7.10). head_size is a multiple of 8. */
#include "../ptx/launch.cuh"
#include "flash_launch.h"

#include <cuda_runtime.h>

__global__ void __launch_bounds__(128)
    zero_rows_kernel(uint16_t *out, int64_t units, int heads, int per_head, int64_t token, int64_t head) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= units) return;
    int64_t row = i / per_head;
    *(uint4 *)(out + row / heads * token + row % heads * head + i % per_head * 8) = make_uint4(0, 0, 0, 0);
}

extern "C" int flash_zero_rows(void *out, int64_t rows, int heads, int head_size, int64_t token, int64_t head,
                               void *stream) {
    if (!out) {
        cudaFuncAttributes a;
        return (int)cudaFuncGetAttributes(&a, zero_rows_kernel);
    }
    int64_t units = rows * heads * (head_size / 8);
    return attn_cuda::launch_kernel(zero_rows_kernel, (unsigned)((units + 127) / 128), 128, 0, stream,
                                    (uint16_t *)out, units, heads, head_size / 8, token, head);
}
