/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of int4_per_token_head from the definitions of semantics 3.4, sharing nothing with the library: the
 * generator for the signs, the Hadamard transform by halves and as a matrix, the packing by arithmetic. */
#ifndef TESTS_INT4_ROW_H
#define TESTS_INT4_ROW_H

#include <attn/attn_types.h>

#include <math.h>
#include <string.h>

/* MT19937 of Matsumoto and Nishimura, 1998: its first n outputs. */
static inline void int4_row_random(uint32_t seed, int n, uint32_t *out) {
    uint32_t state[624];
    state[0] = seed;
    for (uint32_t i = 1; i < 624; i++)
        state[i] = 1812433253u * (state[i - 1] ^ state[i - 1] >> 30) + i;
    for (int i = 0; i < n; i++) {
        for (int j = 0; i % 624 == 0 && j < 624; j++) {
            uint32_t y = (state[j] & 0x80000000u) | (state[(j + 1) % 624] & 0x7fffffffu);
            state[j] = state[(j + 397) % 624] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        uint32_t y = state[i % 624];
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c5680u;
        y ^= y << 15 & 0xefc60000u;
        out[i] = y ^ y >> 18;
    }
}

static inline void int4_row_signs(int n, double *sign) {
    uint32_t random[1024];
    int4_row_random(0x9e3779b9u, n, random);
    for (int i = 0; i < n; i++)
        sign[i] = (random[i] & 0xffffff) * 0x1p-24 < 0.5 ? 1 : -1;
}

/* Element i of the Hadamard transform of n values, by its definition over halves, each sum in float32. */
static inline float int4_row_hadamard(const float *x, int n, int i) {
    if (n == 1) return x[0];
    const float a = int4_row_hadamard(x, n / 2, i % (n / 2)),
                b = int4_row_hadamard(x + n / 2, n / 2, i % (n / 2));
    return i < n / 2 ? a + b : a - b;
}

/* x as a float with `bits` significant bits and units of 2^least or more. */
static inline double int4_row_round(double x, int bits, int least) {
    int e;
    frexp(x, &e);
    const double unit = ldexp(1, e - bits > least ? e - bits : least);
    return nearbyint(x / unit) * unit;
}

static inline float int4_row_code(float x) {
    return (float)fmin(15, fmax(0, x < 0 ? ceilf(x - 0.5f) : floorf(x + 0.5f)));
}

/* Values of dtype (ATTN_DTYPE_*), all finite, to n / 2 + 4 bytes. */
static inline void int4_row_encode(uint32_t dtype, const float *x, int n, unsigned char *row) {
    double sign[1024];
    float turned[1024], y[1024], low = INFINITY, high = -INFINITY;
    int4_row_signs(n, sign);
    for (int i = 0; i < n; i++)
        turned[i] = (float)(sign[i] * x[i]);
    for (int i = 0; i < n; i++) {
        y[i] = int4_row_hadamard(turned, n, i);
        if (dtype == ATTN_DTYPE_FLOAT16)
            y[i] = (float)fmin(65504, fmax(-65504, int4_row_round(y[i], 11, -24)));
        if (dtype == ATTN_DTYPE_BFLOAT16) y[i] = (float)int4_row_round(y[i], 8, -133);
        low = fminf(low, y[i]);
        high = fmaxf(high, y[i]);
    }
    const float scale = fmaxf((high - low) / 15.0f, 1e-6f), zero = int4_row_code(-low / scale);
    for (int i = 0; i < n; i += 2) {
        const int even = (int)int4_row_code(y[i] / scale + zero);
        row[i / 2] = (unsigned char)(even + 16 * (int)int4_row_code(y[i + 1] / scale + zero));
    }
    memcpy(row + n / 2, &scale, sizeof scale); /* little endian: the lowest bits are in the first byte */
    row[n / 2] = (unsigned char)(row[n / 2] / 16 * 16 + (int)zero);
}

static inline void int4_row_decode(const unsigned char *row, int n, double *out) {
    unsigned char bytes[4];
    double sign[1024], y[1024];
    float scale;
    memcpy(bytes, row + n / 2, sizeof bytes);
    const int zero = bytes[0] % 16;
    bytes[0] = (unsigned char)(bytes[0] - zero);
    memcpy(&scale, bytes, sizeof scale);
    int4_row_signs(n, sign);
    for (int i = 0; i < n; i++)
        y[i] = ((i % 2 ? row[i / 2] / 16 : row[i / 2] % 16) - zero) * (double)scale;
    for (int j = 0; j < n; j++) { /* the inverse is the transposed matrix over n */
        out[j] = 0;
        for (int i = 0; i < n; i++)
            out[j] += (__builtin_parity((unsigned)(i & j)) ? -1 : 1) * y[i];
        out[j] *= sign[j] / n;
    }
}

#endif
