/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper decode in bfloat16. */
#include "mla_decode_sm90_launch.cuh"
#include "mla_decode_sm90.cuh"

using namespace attn_cuda;

extern "C" int mla_decode_sm90_bf16(const mla_decode_sm90_params *p, int ctas, int parts, void *s) {
    return ctas == 1 ? mla_decode90_start(mla_decode90_kernel<DT_BF16, 1>, p, 1, 1, parts, MLA90_THREADS,
                                          MLA90_SMEM, s)
                     : mla_decode90_start(mla_decode90_kernel<DT_BF16, 2>, p, 2, 2, parts, MLA90_THREADS,
                                          MLA90_SMEM, s);
}
extern "C" int mla_decode_sm90_clusters(int *count) {
    auto kernel = mla_decode90_kernel<DT_BF16, 2>;
    int e = mla_decode_sm90_bf16(NULL, 2, 0, NULL);
    return e ? e
             : mla_decode90_configure(2, 2, 0, MLA90_THREADS, MLA90_SMEM, 0, NULL,
                                      [&](const cudaLaunchConfig_t *c) {
                                          return cudaOccupancyMaxActiveClusters(count, kernel, c);
                                      });
}
