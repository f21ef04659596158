/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix product by TMA and wgmma, both factors K-major: one producer warp, two warpgroups of 64 x 256 accumulators,
 * persistent CTAs that walk over column tiles first, so that rows of latents stay in the L2 and so do the weights. */
#ifndef MLA_UP_SM90_CUH
#define MLA_UP_SM90_CUH

#include "../common/ptx_sm90.cuh"
#include "mla/wgmma_sm90.cuh"
#include "mla_up_sm90.h"

#include <cuda_runtime.h>

namespace attn_cuda {

constexpr int UP_STAGES = 4, UP_A = MLA_UP_ROWS * 128, UP_B = MLA_UP_COLUMNS * 128;
constexpr int UP_OUT = 64 * (MLA_UP_COLUMNS / 2) * 2; /* half of a warpgroup's columns at a time */
constexpr int UP_SMEM = UP_STAGES * (UP_A + UP_B) + 2 * UP_OUT + 1024;

template <int DT>
__global__ void __launch_bounds__(384, 1) mla_up_kernel(const __grid_constant__ mla_up_params P) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) /* empty where only other architectures were asked for */
    extern __shared__ __align__(1024) uint8_t smem_raw[];
    __shared__ __align__(8) uint64_t bars[2 * UP_STAGES];
    const uint32_t base = (smem_addr(smem_raw) + 1023) & ~1023u, sA = base, sB = sA + UP_STAGES * UP_A,
                   sC = sB + UP_STAGES * UP_B;
    const uint32_t full = smem_addr(bars), empty = full + 8 * UP_STAGES;
    const int wg = threadIdx.x >> 7, lane = threadIdx.x & 31;
    const int warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0);
    const int across = (P.columns + MLA_UP_COLUMNS - 1) / MLA_UP_COLUMNS;
    const int tiles = across * ((P.rows + MLA_UP_ROWS - 1) / MLA_UP_ROWS), steps = P.k / 64;
    if (threadIdx.x == 0) {
        for (int i = 0; i < UP_STAGES; i++)
            mbar_init(full + 8 * i, 1), mbar_init(empty + 8 * i, 2);
        mbar_init_fence();
    }
    __syncthreads();

    if (wg == 0) {
        setmaxnreg_dec<40>();
        if (warp != 0 || lane != 0) return;
        int it = 0;
        for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
            const int row = t / across * MLA_UP_ROWS, column = t % across * MLA_UP_COLUMNS;
            for (int k = 0; k < steps; k++, it++) {
                const int s = it % UP_STAGES;
                mbar_wait(empty + 8 * s, ((it / UP_STAGES) & 1) ^ 1);
                mbar_expect(full + 8 * s, UP_A + UP_B);
                tma_3d(sA + s * UP_A, &P.a_map, k * 64, row, 0, full + 8 * s);
                tma_3d(sB + s * UP_B, &P.b_map, k * 64, column, 0, full + 8 * s);
            }
        }
        return;
    }

    setmaxnreg_inc<232>();
    const int w = wg - 1, wr = (threadIdx.x >> 5) & 3, tid = threadIdx.x & 127;
    int it = 0;
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
        const int row0 = t / across * MLA_UP_ROWS + w * 64 + wr * 16, column0 = t % across * MLA_UP_COLUMNS;
        float acc[128];
        for (int k = 0; k < steps; k++, it++) {
            const int s = it % UP_STAGES;
            const uint64_t a = wgmma_desc(sA + s * UP_A + w * 8192, 16, 1024),
                           b = wgmma_desc(sB + s * UP_B, 16, 1024);
            mbar_wait(full + 8 * s, (it / UP_STAGES) & 1);
            wgmma_fence();
            if (k == 0)
                wgmma_ssz<256, DT>::run(acc, a, b);
            else
                wgmma_ss<256, DT>::run(acc, a, b);
#pragma unroll
            for (int i = 1; i < 4; i++)
                wgmma_ss<256, DT>::run(acc, a + i * 2, b + i * 2);
            wgmma_commit();
            if (k > 0) { /* the step before has been read */
                wgmma_wait<1>();
                if (tid == 0) mbar_arrive(empty + 8 * ((it - 1) % UP_STAGES));
            }
        }
        wgmma_wait<0>();
        wgmma_pin(acc);
        if (tid == 0) mbar_arrive(empty + 8 * ((it - 1) % UP_STAGES));
        /* through this warp's own 16 rows of shared memory: two slabs of 64 columns, 128-byte swizzle, twice. While one
         * warpgroup is here the other has the tensor cores; the stages let them drift apart. */
        const uint32_t out = sC + w * UP_OUT + wr * 16 * 128;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int chunk = 2 * i + (lane >> 4), r = lane & 15, x = half * 64 + 8 * i;
                stmatrix_x4(out + (chunk >> 3) * 8192 + r * 128 + (((chunk & 7) ^ (r & 7)) << 4),
                            pack2<DT>(acc[x], acc[x + 1]), pack2<DT>(acc[x + 2], acc[x + 3]),
                            pack2<DT>(acc[x + 4], acc[x + 5]), pack2<DT>(acc[x + 6], acc[x + 7]));
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int r = 2 * i + (lane >> 4), chunk = lane & 15,
                          column = column0 + half * 128 + chunk * 8;
                const uint4 x =
                    ld_shared_v4(out + (chunk >> 3) * 8192 + r * 128 + (((chunk & 7) ^ (r & 7)) << 4));
                if (row0 + r < P.rows && column < P.columns)
                    *(uint4 *)((uint16_t *)P.c + (int64_t)(row0 + r) * P.c_row + column) = x;
            }
        }
    }
#endif
}

template <int DT>
int launch_mla_up(const mla_up_params *p, int ctas, void *stream) {
    if (!p)
        return (int)cudaFuncSetAttribute(mla_up_kernel<DT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         UP_SMEM);
    mla_up_kernel<DT><<<(unsigned)ctas, 384, UP_SMEM, (cudaStream_t)stream>>>(*p);
    return (int)cudaGetLastError();
}

} /* namespace attn_cuda */
#endif
