/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper decode in float16. */
#include "mla_decode_sm90_launch.cuh"
#include "mla_decode_sm90.cuh"

using namespace attn_cuda;

extern "C" int mla_decode_sm90_f16(const mla_decode_sm90_params *p, int ctas, int parts, void *s) {
    return ctas == 1 ? mla_decode90_start(mla_decode90_kernel<DT_F16, 1>, p, 1, 1, parts, MLA90_THREADS,
                                          MLA90_SMEM, s)
                     : mla_decode90_start(mla_decode90_kernel<DT_F16, 2>, p, 2, 2, parts, MLA90_THREADS,
                                          MLA90_SMEM, s);
}
