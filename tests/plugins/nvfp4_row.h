/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of nvfp4 from the definitions of semantics 3.6, sharing nothing with the library: codes are found by
 * looking through all of them for the nearest. */
#ifndef TESTS_NVFP4_ROW_H
#define TESTS_NVFP4_ROW_H

#include <math.h>
#include <string.h>

static inline double nvfp4_row_e2m1(int code) {
    const double one[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -one[code & 7] : one[code & 7];
}

/* NaN for 0x7f; the sign is never set in a scale. */
static inline double nvfp4_row_e4m3(int code) {
    const int e = code >> 3 & 15, m = code & 7;
    if (code == 0x7f) return NAN;
    return e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10);
}

/* The code below `count` whose value is nearest to x >= 0; of two the even one. */
static inline int nvfp4_row_nearest(double x, int count, double (*value)(int)) {
    int best = 0;
    for (int code = 1; code < count; code++) {
        const double now = fabs(value(code) - x), least = fabs(value(best) - x);
        if (now < least || (now == least && code % 2 == 0)) best = code;
    }
    return best;
}

static inline void nvfp4_row_encode(const float *x, int n, float scale, unsigned char *codes,
                                    unsigned char *scales) {
    memset(codes, 0, (size_t)n / 2);
    for (int g = 0; g < n / 16; g++) {
        float most = 0;
        int bad = 0;
        for (int i = 16 * g; i < 16 * g + 16; i++) {
            bad |= !isfinite(x[i]);
            most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        }
        const float sixth = most / 6.0f, part = sixth / scale;
        scales[g] = (unsigned char)(bad ? 0x7f : nvfp4_row_nearest((double)part, 0x7f, nvfp4_row_e4m3));
        const float unit = (float)nvfp4_row_e4m3(scales[g]) * scale;
        for (int i = 16 * g; i < 16 * g + 16 && unit > 0; i++) {
            const float q = x[i] / unit;
            const int code = nvfp4_row_nearest((double)fabsf(q), 8, nvfp4_row_e2m1) + (signbit(q) ? 8 : 0);
            codes[i / 2] = (unsigned char)(codes[i / 2] + (i % 2 ? 16 * code : code));
        }
    }
}

static inline void nvfp4_row_decode(const unsigned char *codes, const unsigned char *scales, int n,
                                    double scale, double *out) {
    for (int i = 0; i < n; i++)
        out[i] = nvfp4_row_e2m1(i % 2 ? codes[i / 2] / 16 : codes[i / 2] % 16) *
                 nvfp4_row_e4m3(scales[i / 16]) * scale;
}

#endif
