/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper decode in float16. */
#include "mla_decode_sm90.cuh"
extern "C" int mla_decode_sm90_f16(const mla_decode_sm90_params *p, int ctas, int parts, void *s) {
    return attn_cuda::mla_decode90_launch<attn_cuda::DT_F16>(p, ctas, parts, s);
}
