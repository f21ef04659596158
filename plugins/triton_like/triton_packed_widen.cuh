/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of packed rows as f16 for tiles of prefill, eight at a time and without a table in shared memory.
 *
 * Codes of four bits that are taken by masks lie beside the one four further on: code j of eight is at place
 * 2 (j % 4) + j / 4, for which keys have the columns of their queries moved, and outputs are put back. Of
 * values without a zero point the masks leave subnormals, and every other pair is 16 times as large
 * (masked_factor). */
#ifndef TRITON_PACKED_WIDEN_CUH
#define TRITON_PACKED_WIDEN_CUH

#include "triton_packed.cuh"

#if TL_PACKED
namespace attn_cuda {
namespace packed {

ATTN_DEV constexpr int masked_place(int j) {
    return (j & 3) * 2 + (j >> 2);
}
/* Where column j of eight of a query is, beside keys as widen_keys has them. */
ATTN_DEV constexpr int query_place(int j) {
    return IS_INT4 ? masked_place(j) : j;
}
/* What pair j of four of widen_values is to be multiplied by. */
ATTN_DEV constexpr float masked_factor(int j) {
    return IS_INT4 ? 1.f : j & 1 ? 1048576.f : 16777216.f;
}

/* Eight codes of three bits in a word, each in four. */
ATTN_DEV uint32_t spread_threes(uint32_t x) {
    x = (x & 0xfffu) | (x << 4 & 0x0fff0000u);
    x = (x & 0x003f003fu) | (x << 2 & 0x3f003f00u);
    return (x & 0x07070707u) | (x << 1 & 0x70707070u);
}

/* Codes less a zero point: 1024 + code, and a sixteenth of 1024 + 16 code. */
struct zero_point {
    uint32_t less, less_high;
    ATTN_DEV zero_point(uint32_t zero) {
        less = zero * 0x10001u | 0x64006400u;
        less_high = zero * 0x100010u | 0xd400d400u;
    }
    ATTN_DEV void widen(uint32_t x, uint32_t (&w)[4]) const {
        const uint32_t y = x >> 8;
        w[0] = sub_f16x2((x & 0x000f000fu) | 0x64006400u, less);
        w[1] = fma_f16x2((x & 0x00f000f0u) | 0x64006400u, 0x2c002c00u, less_high);
        w[2] = sub_f16x2((y & 0x000f000fu) | 0x64006400u, less);
        w[3] = fma_f16x2((y & 0x00f000f0u) | 0x64006400u, 0x2c002c00u, less_high);
    }
};

ATTN_DEV uint32_t sum_bytes(uint32_t bytes, uint32_t to) {
#ifdef __CUDA_ARCH__
    return __dp4a(bytes, 0x01010101u, to);
#else
    return to + (bytes & 255) + (bytes >> 8 & 255) + (bytes >> 16 & 255) + (bytes >> 24);
#endif
}

/* Sixteen bits for each of eight indices, found by PRMT, lower and upper bytes apart. */
struct byte_table {
    uint32_t low[2], high[2];
    ATTN_DEV void set(const uint32_t (&x)[8]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t *const y = x + 4 * i;
            low[i] = (y[0] & 255) | (y[1] & 255) << 8 | (y[2] & 255) << 16 | y[3] << 24;
            high[i] = y[0] >> 8 | (y[1] & 0xff00u) | (y[2] & 0xff00u) << 8 | (y[3] & 0xff00u) << 16;
        }
    }
    /* Of the lower or the upper four of eight indices of four bits. */
    ATTN_DEV uint32_t low_of(uint32_t index, int half) const {
        return prmt(low[0], low[1], half ? index >> 16 : index & 0xffffu);
    }
    ATTN_DEV uint32_t high_of(uint32_t index, int half) const {
        return prmt(high[0], high[1], half ? index >> 16 : index & 0xffffu);
    }
};

/* Centroids: of three bits all eight, of four the magnitudes, negative; the highest bit of a code turns them.
 * Their squares are integers, so that the norm of a row of equal ones, as of a key that had one value before
 * its rotation, is not off by what f16 would round away each time. */
struct centroid_bytes {
    byte_table centroids, squares;
    static constexpr float SQUARE_UNIT = 0x1p-12f; /* 2^16 of them are above 16, the squares below */
    ATTN_DEV centroid_bytes() {
        uint32_t half[8], square[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            half[i] = pack2<DT_F16>(K_BITS == 4 ? -centroid(8 + i) : centroid(i), 0.f) & 0xffffu;
            const float x = unpack2<DT_F16>(half[i]).x;
            square[i] = (uint32_t)(x * x * (1.f / SQUARE_UNIT) + 0.5f);
        }
        centroids.set(half), squares.set(square);
    }
    /* Adds the lower and the upper bytes of the squares to sums. */
    ATTN_DEV void widen(uint32_t x, uint32_t (&w)[4], uint32_t (&sums)[2]) const {
        uint32_t index;
        if constexpr (K_BITS == 4) {
            const uint32_t t = x & 0x88888888u;
            index = ~(x ^ (t - (t >> 3))) & 0x77777777u;
        } else
            index = spread_threes(x);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t l = centroids.low_of(index, i), h = centroids.high_of(index, i);
            w[2 * i] = prmt(l, h, 0x5140), w[2 * i + 1] = prmt(l, h, 0x7362);
            sums[0] = sum_bytes(squares.low_of(index, i), sums[0]);
            sums[1] = sum_bytes(squares.high_of(index, i), sums[1]);
        }
        if constexpr (K_BITS == 4) {
            const uint32_t y = x << 4;
            w[0] ^= prmt(y, x, 0xc080) & 0x80008000u, w[1] ^= prmt(y, x, 0xd090) & 0x80008000u;
            w[2] ^= prmt(y, x, 0xe0a0) & 0x80008000u, w[3] ^= prmt(y, x, 0xf0b0) & 0x80008000u;
        }
    }
    static ATTN_DEV float sum_of(const uint32_t (&sums)[2]) {
        return (float)(sums[0] + 256 * sums[1]) * SQUARE_UNIT;
    }
};

/* Values 8 c to 8 c + 7 of a row, a quarter of whose codes are `words`. */
template <int BITS>
ATTN_DEV uint32_t codes_in(const uint32_t *words, int c) {
    if constexpr (BITS == 4) return words[c];
    return c == 0   ? words[0]
           : c == 3 ? words[2] >> 8
                    : __funnelshift_r(words[c - 1], words[c], c == 1 ? 24 : 16);
}

/* Codes of a value with no zero point, as subnormals. */
template <int BITS>
ATTN_DEV void widen_masked(uint32_t x, uint32_t (&w)[4]) {
    if constexpr (BITS == 3) x = spread_threes(x);
    const uint32_t y = x >> 8;
    w[0] = x & 0x000f000fu, w[1] = x & 0x00f000f0u, w[2] = y & 0x000f000fu, w[3] = y & 0x00f000f0u;
}

} /* namespace packed */
} /* namespace attn_cuda */
#endif
#endif
