/* SPDX-License-Identifier: Apache-2.0 */
/* D += A * B by wgmma with A from shared memory, MN-major (values read across keys), and B K-major: the form
 * that only transposed attention needs, in the two widths that it has. */
#ifndef MLA_DECODE_SM90_WGMMA_CUH
#define MLA_DECODE_SM90_WGMMA_CUH

#include "../ptx/ptx_sm90.cuh"

namespace attn_cuda {

template <int N, int DT>
struct wgmma_tss;

#define WGMMA_TSS_16(DT, TYPE)                                                                               \
    template <>                                                                                              \
    struct wgmma_tss<16, DT> {                                                                               \
        static ATTN_DEV void run(float (&d)[8], uint64_t a, uint64_t b) {                                    \
            asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE " "                     \
                         "{%0, %1, %2, %3, %4, %5, %6, %7}, "                                                \
                         "%8, %9, 1, 1, 1, 1, 0;"                                                            \
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),           \
                           "+f"(d[6]), "+f"(d[7])                                                            \
                         : "l"(a), "l"(b));                                                                  \
        }                                                                                                    \
    };
WGMMA_TSS_16(DT_F16, "f16")
WGMMA_TSS_16(DT_BF16, "bf16")
#undef WGMMA_TSS_16

#define WGMMA_TSS_32(DT, TYPE)                                                                               \
    template <>                                                                                              \
    struct wgmma_tss<32, DT> {                                                                               \
        static ATTN_DEV void run(float (&d)[16], uint64_t a, uint64_t b) {                                   \
            asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE " "                     \
                         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "          \
                         "%16, %17, 1, 1, 1, 1, 0;"                                                          \
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),           \
                           "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),         \
                           "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])                                \
                         : "l"(a), "l"(b));                                                                  \
        }                                                                                                    \
    };
WGMMA_TSS_32(DT_F16, "f16")
WGMMA_TSS_32(DT_BF16, "bf16")
#undef WGMMA_TSS_32

} /* namespace attn_cuda */
#endif
