/* SPDX-License-Identifier: Apache-2.0 */
/* What TurboQuant rows (semantics 3.7) share between the backends: the centroids of N(0, 1 / D) as float32.
 * They are the result of the iteration that semantics 3.7 has, which a test runs; from D to 4 D they halve
 * exactly. */
#ifndef ATTN_TURBOQUANT_LEVELS_H
#define ATTN_TURBOQUANT_LEVELS_H

#include <stdint.h>

/* The positive centroids for D = 64 and 128, times 8. */
static const float turboquant_3[2][4] = {{0x1.f5b9f6p-3f, 0x1.82e3f8p-1f, 0x1.57daa6p+0f, 0x1.133ea8p+1f},
                                         {0x1.62c62ep-3f, 0x1.1192aap-1f, 0x1.e6487ap-1f, 0x1.85413ep+0f}};
static const float turboquant_4[2][8] = {{0x1.070514p-3f, 0x1.8d73fep-2f, 0x1.505290p-1f, 0x1.e28894p-1f,
                                          0x1.419a18p+0f, 0x1.9e2d80p+0f, 0x1.08c2e0p+1f, 0x1.5d8edcp+1f},
                                         {0x1.73f75cp-4f, 0x1.190ab2p-2f, 0x1.dba1c2p-2f, 0x1.5533e4p-1f,
                                          0x1.c6d056p-1f, 0x1.24de2ep+0f, 0x1.766dcep+0f, 0x1.ee5988p+0f}};

/* The 2^bits centroids (bits 3 or 4), rising, for rows of n values, a power of two from 8. */
static inline void turboquant_centroids(int64_t n, int bits, float *c) {
    int log = 0;
    float unit = 1.0f; /* 2^-(log / 2) */
    while (INT64_C(1) << log < n)
        log++;
    for (int i = 1; i < log; i += 2)
        unit *= 0.5f;
    const float *half = bits == 3 ? turboquant_3[log & 1] : turboquant_4[log & 1];
    const int count = 1 << (bits - 1);
    for (int i = 0; i < count; i++) {
        c[count + i] = half[i] * unit;
        c[count - 1 - i] = -c[count + i];
    }
}

/* Values of one packed row in bits: 4, two in a byte, or 3, eight in three bytes, little-endian. */
static inline unsigned turboquant_code(const unsigned char *row, int bits, int64_t i) {
    if (bits == 4) return row[i / 2] >> i % 2 * 4 & 15u;
    const unsigned char *p = row + i / 8 * 3;
    return (p[0] | (unsigned)p[1] << 8 | (unsigned)p[2] << 16) >> i % 8 * 3 & 7u;
}

#endif
