/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper prefill on e4m3 bytes, head sizes up to 128. */
#include "prefill_e4m3_sm90.cuh"

extern "C" int flash_prefill_e4m3_d128(const flash_sm90_params *p, int paged, int feature, int ctas,
                                       void *stream) {
    using namespace attn_cuda;
    (void)paged; /* an e4m3 cache always is */
    using T = prefill_e4m3_traits<128>;
    return feature ? launch_prefill_e4m3<T, true>(p, ctas, stream)
                   : launch_prefill_e4m3<T, false>(p, ctas, stream);
}
