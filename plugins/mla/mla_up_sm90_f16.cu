/* SPDX-License-Identifier: Apache-2.0 */
/* Up-projection on Hopper, f16. */
#include "mla_up_sm90.cuh"
extern "C" int mla_up_sm90_f16(const mla_up_params *p, int ctas, void *stream) {
    return attn_cuda::launch_mla_up<attn_cuda::DT_F16>(p, ctas, stream);
}
