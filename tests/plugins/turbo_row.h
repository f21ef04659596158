/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of TurboQuant from the definitions of semantics 3.7, sharing nothing with the library: the iteration
 * for the centroids, the Hadamard transform by halves and as a matrix, packing by arithmetic. */
#ifndef TESTS_TURBO_ROW_H
#define TESTS_TURBO_ROW_H

#include "int4_row.h"

/* Lloyd's iteration for N(0, 1 / n): 2^bits centroids as float32. */
static inline void turbo_row_solve(int n, int bits, float *out) {
    const int levels = 1 << bits;
    const double sigma = 1 / sqrt((double)n), height = 1 / sqrt(2 * 3.14159265358979323846 / n);
    double c[16], next[16], edge[17];
    for (int i = 0; i < levels; i++)
        c[i] = -3.5 * sigma + 7 * sigma * (i + 0.5) / levels;
    for (int round = 0; round < 200; round++) {
        double most = 0;
        edge[0] = -10.5 * sigma;
        edge[levels] = 10.5 * sigma;
        for (int i = 1; i < levels; i++)
            edge[i] = (c[i - 1] + c[i]) / 2;
        for (int i = 0; i < levels; i++) {
            const double step = (edge[i + 1] - edge[i]) / 200;
            double mass = 0, moment = 0;
            for (int j = 0; j <= 200; j++) {
                const double x = edge[i] + j * step;
                const double p = height * exp(-x * x * n / 2) * (j % 200 ? 1 : 0.5);
                mass += p;
                moment += x * p;
            }
            next[i] = moment / mass;
            most = fmax(most, fabs(next[i] - c[i]));
        }
        if (most < 1e-10) break;
        memcpy(c, next, sizeof c);
    }
    for (int i = 0; i < levels; i++)
        out[i] = (float)c[i];
}

static inline const float *turbo_row_centroids(int n, int bits) {
    static float kept[2][11][16];
    float *c = kept[bits - 3][__builtin_ctz((unsigned)n)];
    if (c[0] == 0) turbo_row_solve(n, bits, c);
    return c;
}

static inline int turbo_row_bytes(int bits, int is_value, int n) {
    return n * bits / 8 + (is_value ? 4 : bits == 8 ? 0 : 2);
}

/* A finite x as float16: its value, and its bits. */
static inline double turbo_row_half(double x, unsigned *bits) {
    const double v = fmin(65504, int4_row_round(fabs(x), 11, -24));
    int e;
    frexp(v, &e);
    *bits = v == 0     ? 0
            : e <= -14 ? (unsigned)ldexp(v, 24)
                       : (unsigned)((e + 14) * 1024) + (unsigned)(ldexp(v, 11 - e) - 1024);
    if (signbit(x)) *bits += 0x8000;
    return x < 0 ? -v : v;
}

static inline void turbo_row_put(unsigned char *row, int at, unsigned half) {
    row[at] = (unsigned char)(half % 256);
    row[at + 1] = (unsigned char)(half / 256);
}

static inline int turbo_row_get(const unsigned char *row, int bits, int i) {
    int code = 0;
    for (int b = 0; b < bits; b++)
        code += (row[(i * bits + b) / 8] >> (i * bits + b) % 8 & 1) << b;
    return code;
}

static inline void turbo_row_set(unsigned char *row, int bits, int i, int code) {
    for (int b = 0; b < bits; b++)
        if (code >> b & 1)
            row[(i * bits + b) / 8] = (unsigned char)(row[(i * bits + b) / 8] + (1 << (i * bits + b) % 8));
}

/* n finite values to turbo_row_bytes() bytes; bits 3 or 4. */
static inline void turbo_row_encode(int bits, int is_value, const float *x, int n, unsigned char *row) {
    const int at = n * bits / 8, top = (1 << bits) - 1;
    float unit[1024], low = INFINITY, high = -INFINITY;
    double squares = 0;
    unsigned half;
    for (int i = 0; i < at; i++)
        row[i] = 0;
    for (int i = 0; i < n; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
        squares += (double)x[i] * (double)x[i];
    }
    if (is_value) {
        const float step = fmaxf((high - low) / (float)top, 1e-8f);
        for (int i = 0; i < n; i++)
            turbo_row_set(row, bits, i, (int)fminf((float)top, floorf((x[i] - low) / step + 0.5f)));
        turbo_row_half((double)step, &half);
        turbo_row_put(row, at, half);
        turbo_row_half((double)low, &half);
        turbo_row_put(row, at + 2, half);
        return;
    }
    const float norm = (float)sqrt(squares), by = norm + 1e-8f, root = (float)(1 / sqrt((double)n));
    const float *c = turbo_row_centroids(n, bits);
    for (int i = 0; i < n; i++)
        unit[i] = x[i] / by;
    for (int i = 0; i < n; i++) {
        const float y = int4_row_hadamard(unit, n, i) * root;
        int code = 0;
        while (code < top && (c[code] + c[code + 1]) / 2 <= y)
            code++;
        turbo_row_set(row, bits, i, code);
    }
    turbo_row_half((double)norm, &half);
    turbo_row_put(row, at, half);
}

static inline double turbo_row_half_at(const unsigned char *p) {
    const int bits = p[0] + 256 * p[1], e = bits / 1024 % 32, m = bits % 1024;
    const double v = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
    return bits >= 0x8000 ? -v : v;
}

static inline void turbo_row_decode(int bits, int is_value, const unsigned char *row, int n, double *out) {
    const unsigned char *beside = row + n * bits / 8;
    double c[1024], squares = 0;
    if (is_value) {
        for (int i = 0; i < n; i++)
            out[i] = turbo_row_get(row, bits, i) * turbo_row_half_at(beside) + turbo_row_half_at(beside + 2);
        return;
    }
    for (int i = 0; i < n; i++) {
        c[i] = (double)turbo_row_centroids(n, bits)[turbo_row_get(row, bits, i)];
        squares += c[i] * c[i];
    }
    for (int j = 0; j < n; j++) { /* its own inverse: H H = n */
        out[j] = 0;
        for (int i = 0; i < n; i++)
            out[j] += (__builtin_parity((unsigned)(i & j)) ? -1 : 1) * c[i];
        out[j] *= turbo_row_half_at(beside) / sqrt(squares + 1e-16) / sqrt((double)n);
    }
}

#endif
