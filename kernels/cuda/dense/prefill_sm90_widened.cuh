/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper prefill of 16-bit queries over an e4m3 cache: the kernel of prefill_sm90.cuh behind warps that widen
 * bytes to f16. */
#ifndef PREFILL_SM90_WIDENED_CUH
#define PREFILL_SM90_WIDENED_CUH

#include "prefill_sm90.cuh"

#undef INSTANCE
#define INSTANCE(CLASS)                                                                                      \
    extern "C" int flash_prefill_sm90_widened_##CLASS(const flash_sm90_params *p, int feature, int ctas,     \
                                                      void *stream) {                                        \
        using namespace attn_cuda;                                                                           \
        [[maybe_unused]] constexpr flash_sm90_class k = flash_e4m3_class_widened_##CLASS;                    \
        using T =                                                                                            \
            prefill90_traits<k.dim.dk, k.dim.dv, k.warpgroups, k.block_keys, k.q_buffers, true, true, true>; \
        return feature ? launch_prefill90<DT_F16, T, true, true>(p, ctas, stream)                            \
                       : launch_prefill90<DT_F16, T, true, false>(p, ctas, stream);                          \
    }

#endif
