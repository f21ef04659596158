/* SPDX-License-Identifier: Apache-2.0 */
/* Latent attention in float16. */
#include "mla_attend_sm80.cuh"
extern "C" int mla_attend_f16(const mla_attend_params *p, int n, void *s) {
    return attn_cuda::mla_run_attend<attn_cuda::DT_F16>(p, n, s);
}
