/* SPDX-License-Identifier: Apache-2.0 */
/* One instance of sparse attention on Hopper: bfloat16 cache. */
#include "sparse_attend_sm90.cuh"

extern "C" int sparse_attend_sm90_bf16(const mla_attend_params *params, int num_items, int ctas,
                                       void *stream) {
    return attn_cuda::sparse90_run<attn_cuda::DT_BF16, false>(params, num_items, ctas, stream);
}

extern "C" int sparse_attend_sm90_smem(void) {
    return attn_cuda::SPARSE_SMEM;
}
