/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for what the tensor cores do not serve: float32 queries or caches (an error of 2e-5 is asked
 * for, which neither tf32 nor bf16 has) and head sizes above 256; tl_prefill and tl_decode with the interface
 * of the fast kernels. A CTA has 128 threads, 16 packed query rows. */
#ifndef TRITON_EXACT_CUH
#define TRITON_EXACT_CUH

#include "triton_exact_rows.cuh"
#include "triton_reduce.cuh"

namespace attn_cuda {
namespace exact {

using cta = team<128, 0, (TL_D > 256 || TL_DV > 256 ? 16 : 32), false>;
static_assert(cta::SMEM == TL_PREFILL_SMEM, "triton_config.c knows the same size");
extern __shared__ __align__(16) float shared[];

} /* namespace exact */

extern "C" __global__ void __launch_bounds__(128) tl_prefill(const __grid_constant__ triton_params_t p) {
    const int entry = blockIdx.x / p.num_kv_heads;
    if (entry >= p.counts->num_tiles) return;
    const int2 tile = *(const int2 *)(p.tiles + entry);
    exact::attend<exact::cta>(p, exact::shared, tile.x, tile.y * exact::cta::BM, blockIdx.x % p.num_kv_heads,
                              0, 1, -1, true);
}

extern "C" __global__ void __launch_bounds__(128) tl_decode(const __grid_constant__ triton_params_t p) {
    if ((int)blockIdx.y >= p.counts->num_items) return;
    const int4 item = *(const int4 *)(p.items + blockIdx.y);
    exact::attend<exact::cta>(p, exact::shared, item.x, blockIdx.x / p.num_kv_heads * exact::cta::BM,
                              blockIdx.x % p.num_kv_heads, item.y, item.z, item.w, true);
}

/* Puts the segments of tl_decode together. Grid: x = splits, y = rows in fours. */
extern "C" __global__ void __launch_bounds__(128) tl_reduce(const __grid_constant__ triton_params_t p) {
    __shared__ float weights[4][TL_MAX_PIECES];
    if ((int)blockIdx.x >= p.counts->num_splits) return;
    const int4 split = *(const int4 *)(p.splits + blockIdx.x);
    const int warp = threadIdx.x >> 5, row = blockIdx.y * 4 + warp, q0 = __ldg(p.q_start + split.x);
    const int rows[1] = {row};
    if (row < (__ldg(p.q_start + split.x + 1) - q0) * p.num_kv_heads * TL_GROUP)
        merge_rows(p, q0, split.y, split.z, rows, weights[warp]);
}

} /* namespace attn_cuda */

#if TL_OUT_GROUP
#include "triton_quantize.cuh"
#endif
#endif
