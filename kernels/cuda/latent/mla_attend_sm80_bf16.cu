/* SPDX-License-Identifier: Apache-2.0 */
/* Latent attention in bfloat16. */
#include "mla_attend_sm80.cuh"
extern "C" int mla_attend_bf16(const mla_attend_params *p, int n, void *s) {
    return attn_cuda::mla_run_attend<attn_cuda::DT_BF16>(p, n, s);
}
