/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper decode in bfloat16. */
#include "mla_decode_sm90.cuh"
extern "C" int mla_decode_sm90_bf16(const mla_decode_sm90_params *p, int ctas, int parts, void *s) {
    return attn_cuda::mla_decode90_launch<attn_cuda::DT_BF16>(p, ctas, parts, s);
}
extern "C" int mla_decode_sm90_clusters(int *count) {
    return attn_cuda::mla_decode90_clusters<attn_cuda::DT_BF16>(count);
}
