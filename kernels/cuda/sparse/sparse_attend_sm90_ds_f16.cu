/* SPDX-License-Identifier: Apache-2.0 */
/* One instance of sparse attention on Hopper: 656-byte rows, float16. */
#include "sparse_attend_sm90.cuh"

extern "C" int sparse_attend_sm90_ds_f16(const mla_attend_params *params, int num_items, int ctas,
                                         void *stream) {
    return attn_cuda::sparse90_run<attn_cuda::DT_F16, true>(params, num_items, ctas, stream);
}
