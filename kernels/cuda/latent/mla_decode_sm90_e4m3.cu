/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper decode over caches of e4m3, for queries of both dtypes. */
#include "mla_decode_sm90_launch.cuh"
#include "mla_decode_sm90_e4m3.cuh"

using namespace attn_cuda;

extern "C" int mla_decode_sm90_e4m3(const mla_decode_sm90_params *p, int dtype, int ctas, int parts,
                                    void *s) {
    return mla_decode90_start(dtype == MLA_BF16 ? mla_decode90_e4m3_kernel<DT_BF16>
                                                : mla_decode90_e4m3_kernel<DT_F16>,
                              p, ctas, 1, parts, MLA90_THREADS, MLA90_SMEM, s);
}
