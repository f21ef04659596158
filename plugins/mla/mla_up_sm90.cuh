/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix product by TMA and wgmma, both factors K-major: one producer warp, two warpgroups of 64 x 256 accumulators. The
 * result leaves by TMA too, so that a warpgroup goes on at once; while it packs its result the other one has the tensor
 * cores. Persistent CTAs walk along the shorter side of the result first: what they read meanwhile stays in the L2. */
#ifndef MLA_UP_SM90_CUH
#define MLA_UP_SM90_CUH

#include "../common/ptx_bulk_store_sm90.cuh"
#include "../common/ptx_sm90.cuh"
#include "mla/wgmma_sm90.cuh"
#include "mla_up_sm90.h"

#include <cuda_runtime.h>

namespace attn_cuda {

constexpr int UP_STAGES = 3, UP_A = MLA_UP_ROWS * 128, UP_B = MLA_UP_COLUMNS * 128;
constexpr int UP_OUT = 64 * MLA_UP_COLUMNS * 2; /* of a warpgroup: slabs of 64 columns, 128-byte swizzle */
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
    const int down = (P.rows + MLA_UP_ROWS - 1) / MLA_UP_ROWS, tiles = across * down, steps = P.k / 64;
    auto row_of = [&](int t) { return (down <= across ? t % down : t / across) * MLA_UP_ROWS; };
    auto column_of = [&](int t) { return (down <= across ? t / down : t % across) * MLA_UP_COLUMNS; };
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
            const int row = row_of(t), column = column_of(t);
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
        const int row = row_of(t) + w * 64, column = column_of(t);
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
        const uint32_t out = sC + w * UP_OUT + wr * 16 * 128;
        if (tid == 0) bulk_store_wait_read(); /* the result before has left shared memory */
        named_barrier(1 + w, 128);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int chunk = 2 * i + (lane >> 4), r = lane & 15;
            stmatrix_x4(out + (chunk >> 3) * 8192 + r * 128 + (((chunk & 7) ^ (r & 7)) << 4),
                        pack2<DT>(acc[8 * i], acc[8 * i + 1]), pack2<DT>(acc[8 * i + 2], acc[8 * i + 3]),
                        pack2<DT>(acc[8 * i + 4], acc[8 * i + 5]), pack2<DT>(acc[8 * i + 6], acc[8 * i + 7]));
        }
        fence_proxy_async();
        named_barrier(1 + w, 128);
        if (tid == 0) {
            for (int c = 0; c < MLA_UP_COLUMNS && column + c < P.columns; c += 64)
                tma_store_3d(sC + w * UP_OUT + c * 128, &P.c_map, column + c, row, 0);
            bulk_store_commit();
        }
    }
    if (tid == 0) bulk_store_wait(); /* shared memory must outlive the copies out of it */
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
