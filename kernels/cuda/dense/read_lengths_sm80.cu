/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of requests into the list of prefill tiles: a thread a tile. */
#include "../ptx/launch.cuh"
#include "read_lengths.h"

#include <cuda_runtime.h>

namespace {

constexpr int THREADS = 128;

__global__ void __launch_bounds__(THREADS)
    read_lengths_kernel(const flash_counts *counts, const int32_t *starts, const int32_t *lens,
                        flash_tile *tiles) {
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i >= counts->num_tiles) return;
    const int seq = tiles[i].seq, q0 = starts[seq];
    tiles[i].q0 = q0;
    tiles[i].q_len = starts[seq + 1] - q0;
    tiles[i].kv_len = lens[seq];
}

} /* namespace */

int flash_read_lengths(const flash_params *p, flash_tile *tiles, int max_tiles, void *stream) {
    cudaFuncAttributes a;
    if (!p) return (int)cudaFuncGetAttributes(&a, (const void *)read_lengths_kernel);
    return attn_cuda::launch_kernel(read_lengths_kernel, (max_tiles + THREADS - 1) / THREADS, THREADS, 0,
                                    stream, p->counts, p->q_start, p->k_start, tiles);
}
