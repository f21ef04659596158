/* SPDX-License-Identifier: Apache-2.0 */
/* Up-projection on Hopper, bf16. */
#include "mla_up_sm90.cuh"
extern "C" int mla_up_sm90_bf16(const mla_up_params *p, int ctas, void *stream) {
    return attn_cuda::launch_mla_up<attn_cuda::DT_BF16>(p, ctas, stream);
}
