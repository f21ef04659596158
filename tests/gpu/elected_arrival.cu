/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elected_arrival.cu: the smallest kernels with the order of the Hopper prefill kernels: one thread writes a
 * line of shared memory, others read it, and the writer writes the next one when an mbarrier says that all
 * have read. They show what racecheck makes of it (`make check-sanitizer`): where every reader arrives it
 * reports nothing; where one arrives for its warp behind __syncwarp, for its warpgroup behind bar.sync, or a
 * third warp does that waited for the readers, the same order is reported as a race. PTX orders all four: a
 * barrier or an mbarrier synchronises those that arrive with those that wait, and that order is transitive.
 */
#include "kernels/cuda/ptx/ptx_sm90.cuh"
#include "../tap.h"

#include <cuda_runtime.h>

using namespace attn_cuda;

enum { READERS = 4, LINES = 2, STEPS = 64, THREADS = 32 * (READERS + 2) };

/* Who says that a line was read. */
enum arrival { EVERY_THREAD, ELECTED_LANE, ELECTED_OF_FOUR, THIRD_WARP };

/* Warp 0 writes, warps 1 to READERS read, and the last one hands on what THIRD_WARP says; sums[] gets each
 * reader's. */
template <arrival HOW>
__device__ void exchange(long long *sums) {
    __shared__ __align__(8) uint64_t bars[3 * LINES];
    __shared__ int lines[LINES];
    const uint32_t full = smem_addr(bars), empty = full + 8 * LINES, seen = empty + 8 * LINES;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        for (int i = 0; i < LINES; i++) {
            mbar_init(full + 8 * i, 1);
            mbar_init(empty + 8 * i, HOW == EVERY_THREAD ? 32 * READERS : HOW == ELECTED_LANE ? READERS : 1);
            mbar_init(seen + 8 * i, READERS);
        }
        mbar_init_fence();
    }
    __syncthreads();
    long long sum = 0;
#pragma unroll 1
    for (int n = 0; n < STEPS; n++) {
        const int s = n % LINES, phase = n / LINES & 1;
        if (warp == 0) {
            mbar_wait(empty + 8 * s, phase ^ 1);
            if (lane == 0) {
                lines[s] = 3 * n + 1;
                mbar_arrive(full + 8 * s);
            }
            __syncwarp();
        } else if (warp <= READERS) {
            mbar_wait(full + 8 * s, phase);
            sum += ((volatile int *)lines)[s];
            if (HOW == EVERY_THREAD)
                mbar_arrive(empty + 8 * s);
            else if (HOW == ELECTED_OF_FOUR)
                named_barrier(1, 32 * READERS);
            else
                __syncwarp();
            if (HOW == ELECTED_LANE && lane == 0) mbar_arrive(empty + 8 * s);
            if (HOW == ELECTED_OF_FOUR && threadIdx.x == 32) mbar_arrive(empty + 8 * s);
            if (HOW == THIRD_WARP && lane == 0) mbar_arrive(seen + 8 * s);
        } else if (HOW == THIRD_WARP) {
            mbar_wait(seen + 8 * s, phase);
            if (lane == 0) mbar_arrive(empty + 8 * s);
        }
    }
    if (warp > 0 && warp <= READERS) sums[threadIdx.x - 32] = sum;
}

__global__ void every_thread(long long *sums) {
    exchange<EVERY_THREAD>(sums);
}
__global__ void elected_lane(long long *sums) {
    exchange<ELECTED_LANE>(sums);
}
__global__ void elected_of_four(long long *sums) {
    exchange<ELECTED_OF_FOUR>(sums);
}
__global__ void third_warp(long long *sums) {
    exchange<THIRD_WARP>(sums);
}

int main() {
    static const struct {
        const char *name;
        void (*kernel)(long long *);
    } kernels[] = {{"every thread", every_thread},
                   {"one lane of each warp", elected_lane},
                   {"one thread of the warpgroup", elected_of_four},
                   {"a third warp", third_warp}};
    static long long sums[32 * READERS];
    long long *there = NULL, wanted = 0;
    int count = 0, major = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) skip_all("no CUDA device");
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (major != 9) skip_all("the kernels are for Hopper");
    if (cudaMalloc((void **)&there, sizeof sums) != cudaSuccess) bail_out("no memory");
    for (int n = 0; n < STEPS; n++)
        wanted += 3 * n + 1;
    for (const auto &k : kernels) {
        cudaMemset(there, 0, sizeof sums);
        k.kernel<<<1, THREADS>>>(there);
        const cudaError_t e = cudaMemcpy(sums, there, sizeof sums, cudaMemcpyDeviceToHost);
        int num_wrong = 0;
        for (long long sum : sums)
            num_wrong += sum != wanted;
        ok(e == cudaSuccess && num_wrong == 0,
           "every reader gets every line where %s says that it was read (%s, %d wrong)", k.name,
           cudaGetErrorString(e), num_wrong);
    }
    cudaFree(there);
    return tap_done();
}
