/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 16 tokens to a warp's ring in shared memory, by cp.async, and where their bytes lie there. */
#ifndef TRITON_DECODE_RING_CUH
#define TRITON_DECODE_RING_CUH

#include "triton_decode_layout.cuh"

namespace attn_cuda {
namespace decode {

/* Where the 16 bytes of column c of ring row r lie. TL_SWIZZLE: a row is K, then V of one token in whole
 * lines of 128 bytes, with the 128-byte swizzle. ldmatrix has no bank conflicts either way, but a line of
 * memory that lands in two lines of shared memory costs a second request to the L2 (measured: 92 instead of
 * 97% of the read rate). */
template <int RS>
ATTN_DEV uint32_t ring_unit(int r, int c) {
    return TL_SWIZZLE ? r * RS + (c >> 3) * 128 + (((c ^ r) & 7) << 4) : r * RS + c * 16;
}
/* TL_JOINT: what the swizzle changes in an address of ring row r, whose offset in a line is that of its
 * address in memory. Eight rows, and every other row of eight, lie in different banks. */
ATTN_DEV uint32_t joint_flip(int r) {
    return ((r ^ (r & 7) >> 2) & 3) << 5 | (r >> 2 & 1) << 4;
}

/* TL_DENSE: 16 rows of SIZE bytes, one piece of memory, to the ring from column C0 on. What a lane copies
 * next lies a constant further in memory, and in the ring but for the swizzle; the instruction adds it. src:
 * this lane's first 16 bytes; place: where they go, behind dst (lane_place of column 0). */
template <int SIZE, int RS>
ATTN_DEV uint32_t lane_place(int lane) {
    constexpr int CPR = SIZE / 16;
    uint32_t place = ring_unit<RS>(lane / CPR, lane % CPR);
    asm volatile("" : "+r"(place)); /* else it is put together anew for each block */
    return place;
}
template <int SIZE, int RS, int C0>
ATTN_DEV void load_pieces(uint32_t dst, uint32_t place, const uint8_t *src, int lane) {
    constexpr int CPR = SIZE / 16, TOTAL = 16 * CPR;
    asm("" : "+l"(src));
    if constexpr (32 % CPR == 0 && (C0 % 8 == 0 || C0 % 8 >= CPR)) {
        constexpr int ROWS = 32 / CPR; /* at a time */
        uint32_t first = dst + (place ^ (C0 & 7) << 4) + C0 / 8 * 128;
        asm("" : "+r"(first)); /* else each address is put together by itself */
#pragma unroll
        for (int u = 0; u < (TOTAL + 31) / 32; u++)
            cp_async<16>((first ^ (u * ROWS & 7) << 4) + u * ROWS * RS, src + u * 512);
    } else
#pragma unroll
        for (int u = 0; u < (TOTAL + 31) / 32; u++) {
            const int i = u * 32 + lane;
            if (TOTAL % 32 == 0 || i < TOTAL)
                cp_async<16>(dst + ring_unit<RS>(i / CPR, C0 + i % CPR), src + u * 512);
        }
}
/* LINES: a block of 16 tokens is one piece of memory, 260 units of 16 bytes: K, V, the scales of K. It begins
 * in the middle of a line for every other head, and stays in the lines it has: they are lines of the ring,
 * with the swizzle. Where unit i lies, counted from the start of the first line. */
constexpr bool LINES =
    TL_DENSE && TL_PAGE == 16 && TL_KV == DT_I8 && TL_V == DT_I8 && TL_D == 128 && TL_DV == 128;
ATTN_DEV uint32_t line_unit(int i) {
    return (i >> 3) * 128 + (((i ^ i >> 3) & 7) << 4);
}

/* before: units of its first line that are another head's; src: this lane's 16 bytes of the lines. */
ATTN_DEV void load_lines(uint32_t dst, const uint8_t *src, int before, int lane) {
    asm("" : "+l"(src));
    uint32_t first = dst + line_unit(lane);
    asm("" : "+r"(first));
#pragma unroll
    for (int u = 0; u < 9; u++)
        if ((u > 0 || lane >= before) && (u < 8 || lane < before + 4))
            cp_async<16>((first ^ (u & 1) << 6) + u * 512, src + u * 512);
}

/* 16 rows of SIZE bytes to the ring, from column C0 on; LINES: from unit `first` on. Rows that are not wanted
 * arrive as zeros: what lies there may be NaN, and 0 * NaN would reach the output. The padding columns were
 * zeroed once and stay so. */
template <int SIZE, int RS, int C0>
ATTN_DEV void load_block(uint32_t dst, const uint8_t *src, int64_t stride, bool all, int tok,
                         const key_walk &walk, int lane, int first) {
    constexpr int UNIT = TL_JOINT ? 16 : TL_KVEC, CPR = (SIZE + UNIT - 1) / UNIT, TOTAL = 16 * CPR;
    auto row = [&](int r) { /* 15 rows of TL_JOINT are less than 4 GB: triton_tensors.c */
                            return TL_JOINT ? (const uint8_t *)(((uintptr_t)src +
                                                                 (uint64_t)(uint32_t)r * (uint32_t)stride) &
                                                                ~(uintptr_t)15)
                                            : src + r * stride;
    };
    auto to = [&](int r, int c) -> uint32_t {
        if constexpr (TL_JOINT)
            return r * RS + ((((uint32_t)(uintptr_t)row(r) & 127) + c * 16) ^ joint_flip(r));
        if constexpr (LINES) return line_unit(first + r * 8 + c);
        return TL_SWIZZLE ? ring_unit<RS>(r, C0 + c) : r * RS + c * UNIT;
    };
    if (all) {
#pragma unroll
        for (int u = 0; u < (TOTAL + 31) / 32; u++) {
            int i = u * 32 + lane, r, c;
            if constexpr (32 % CPR == 0)
                r = u * (32 / CPR) + lane / CPR, c = lane % CPR;
            else
                r = i / CPR, c = i % CPR;
            if (TOTAL % 32 == 0 || i < TOTAL) cp_async<UNIT>(dst + to(r, c), row(r) + c * UNIT);
        }
    } else {
#pragma unroll 2
        for (int i = lane; i < TOTAL; i += 32) {
            int r = i / CPR, c = i % CPR;
            bool ok = walk.wanted(tok + r);
            cp_async_zfill<UNIT>(dst + to(r, c), row(ok ? r : 0) + c * UNIT, ok);
        }
    }
}

} /* namespace decode */
} /* namespace attn_cuda */
#endif
