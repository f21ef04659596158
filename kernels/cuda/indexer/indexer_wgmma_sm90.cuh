/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma m64nNk32 of e4m3 by e4m3 into f32, both operands in shared memory and K-major (the only form that
 * 8-bit types have). Sums over the 128 bytes of a swizzled row: four steps, of which the first overwrites
 * D. */
#ifndef INDEXER_WGMMA_SM90_CUH
#define INDEXER_WGMMA_SM90_CUH

#include "../ptx/ptx_sm90.cuh"

namespace attn_cuda {

#define INDEXER_OUT4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define INDEXER_OUT16(c, i)                                                                                  \
    INDEXER_OUT4(c, i), INDEXER_OUT4(c, i + 4), INDEXER_OUT4(c, i + 8), INDEXER_OUT4(c, i + 12)
#define INDEXER_OUT32(c, i) INDEXER_OUT16(c, i), INDEXER_OUT16(c, i + 16)
#define INDEXER_LIST16(a, b, e, f, g, h, i, j, k, l, m, n, o, p, q, r)                                       \
    "%" #a ",%" #b ",%" #e ",%" #f ",%" #g ",%" #h ",%" #i ",%" #j ",%" #k ",%" #l ",%" #m ",%" #n ",%" #o   \
    ",%" #p ",%" #q ",%" #r
#define INDEXER_LIST32                                                                                       \
    INDEXER_LIST16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)                                     \
    "," INDEXER_LIST16(16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31)
#define INDEXER_LIST64                                                                                       \
    INDEXER_LIST32 "," INDEXER_LIST16(32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46,            \
                                      47) "," INDEXER_LIST16(48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, \
                                                             60, 61, 62, 63)
#define INDEXER_LIST128                                                                                      \
    INDEXER_LIST64 "," INDEXER_LIST16(                                                                       \
        64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78,                                          \
        79) "," INDEXER_LIST16(80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91, 92, 93, 94,                   \
                               95) "," INDEXER_LIST16(96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 106,     \
                                                      107, 108, 109, 110,                                    \
                                                      111) "," INDEXER_LIST16(112, 113, 114, 115, 116, 117,  \
                                                                              118, 119, 120, 121, 122, 123,  \
                                                                              124, 125, 126, 127)

/* N columns, N / 2 accumulators a thread. first: D = A B^T; add: D += A B^T. */
template <int N>
struct wgmma_e4m3;
template <>
struct wgmma_e4m3<64> {
    static ATTN_DEV void first(float (&d)[32], uint64_t a, uint64_t b) {
        asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; "
                     "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" INDEXER_LIST32
                     "}, %32, %33, p, 1, 1;}"
                     : INDEXER_OUT32("=f", 0)
                     : "l"(a), "l"(b));
    }
    static ATTN_DEV void add(float (&d)[32], uint64_t a, uint64_t b) {
        asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0; "
                     "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" INDEXER_LIST32
                     "}, %32, %33, p, 1, 1;}"
                     : INDEXER_OUT32("+f", 0)
                     : "l"(a), "l"(b));
    }
};
template <>
struct wgmma_e4m3<128> {
    static ATTN_DEV void first(float (&d)[64], uint64_t a, uint64_t b) {
        asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; "
                     "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" INDEXER_LIST64
                     "}, %64, %65, p, 1, 1;}"
                     : INDEXER_OUT32("=f", 0), INDEXER_OUT32("=f", 32)
                     : "l"(a), "l"(b));
    }
    static ATTN_DEV void add(float (&d)[64], uint64_t a, uint64_t b) {
        asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0; "
                     "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" INDEXER_LIST64
                     "}, %64, %65, p, 1, 1;}"
                     : INDEXER_OUT32("+f", 0), INDEXER_OUT32("+f", 32)
                     : "l"(a), "l"(b));
    }
};
template <>
struct wgmma_e4m3<256> {
    static ATTN_DEV void first(float (&d)[128], uint64_t a, uint64_t b) {
        asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; "
                     "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" INDEXER_LIST128
                     "}, %128, %129, p, 1, 1;}"
                     : INDEXER_OUT32("=f", 0), INDEXER_OUT32("=f", 32), INDEXER_OUT32("=f", 64),
                       INDEXER_OUT32("=f", 96)
                     : "l"(a), "l"(b));
    }
    static ATTN_DEV void add(float (&d)[128], uint64_t a, uint64_t b) {
        asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0; "
                     "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" INDEXER_LIST128
                     "}, %128, %129, p, 1, 1;}"
                     : INDEXER_OUT32("+f", 0), INDEXER_OUT32("+f", 32), INDEXER_OUT32("+f", 64),
                       INDEXER_OUT32("+f", 96)
                     : "l"(a), "l"(b));
    }
};

/* D = A B^T over 128 bytes; a, b: descriptors of the first 32. */
template <int N>
ATTN_DEV void wgmma_e4m3_row(float (&d)[N / 2], uint64_t a, uint64_t b) {
    wgmma_e4m3<N>::first(d, a, b);
    wgmma_e4m3<N>::add(d, a + 2, b + 2);
    wgmma_e4m3<N>::add(d, a + 4, b + 4);
    wgmma_e4m3<N>::add(d, a + 6, b + 6);
    wgmma_commit();
}

} /* namespace attn_cuda */
#endif
