/* SPDX-License-Identifier: Apache-2.0 */
/* ref_turbo_row.c: encoder and decoder of TurboQuant rows (semantics 3.7). What decides bits is float32, in
 * the order that the law has; what reads them is double. */
#include "ref_turbo_row.h"

#include "../common/turboquant_levels.h"
#include "ref_rows.h"

#include <math.h>

enum { PIECE = 256 }; /* elements converted at a time, a multiple of 8 */

static double half_at(const char *p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return attn_from_f16(bits);
}

/* As float16, to nearest even; beyond its range its largest. */
static void put_half(char *p, float x) {
    const uint16_t bits = attn_to_f16(isnan(x) ? (double)NAN : fmax(-65504.0, fmin(65504.0, (double)x)));
    memcpy(p, &bits, sizeof bits);
}

static void put_code(char *row, int bits, int64_t i, unsigned code) {
    const int64_t at = i * bits;
    unsigned char *p = (unsigned char *)row + at / 8;
    p[0] = (unsigned char)(p[0] | code << at % 8);
    if (at % 8 + bits > 8) p[1] = (unsigned char)(p[1] | code >> (8 - at % 8));
}

static void load_key(const char *row, int64_t size, int bits, double *out) {
    float centroids[16];
    double squares = 0;
    turboquant_centroids(size, bits, centroids);
    for (int64_t i = 0; i < size; i++) {
        out[i] = centroids[turboquant_code((const unsigned char *)row, bits, i)];
        squares += out[i] * out[i];
    }
    for (int64_t half = 1; half < size; half *= 2)
        for (int64_t i = 0; i < size; i++)
            if ((i & half) == 0) {
                const double a = out[i], b = out[i + half];
                out[i] = a + b;
                out[i + half] = a - b;
            }
    const double factor = half_at(row + size * bits / 8) / sqrt((squares + 1e-16) * (double)size);
    for (int64_t i = 0; i < size; i++)
        out[i] *= factor;
}

void ref_turbo_load(const char *row, int64_t size, int bits, int is_value, double *out) {
    if (bits == 8) {
        ref_load_row(row, ATTN_DTYPE_FP8_E4M3, size, out);
    } else if (!is_value) {
        load_key(row, size, bits, out);
    } else {
        const char *beside = row + size * bits / 8;
        const double step = half_at(beside), low = half_at(beside + 2);
        for (int64_t i = 0; i < size; i++)
            out[i] = turboquant_code((const unsigned char *)row, bits, i) * step + low;
    }
}

static void store_key(char *row, int64_t size, int bits, const void *x, uint32_t dtype) {
    double wide[1024], squares = 0;
    float y[1024], centroids[16];
    ref_load_row(x, dtype, size, wide);
    for (int64_t i = 0; i < size; i++)
        squares += wide[i] * wide[i];
    const float norm = (float)sqrt(squares), divisor = norm + 1e-8f, root = (float)(1 / sqrt((double)size));
    memset(row, 0, (size_t)(size * bits / 8));
    put_half(row + size * bits / 8, isfinite(norm) ? norm : NAN);
    if (!isfinite(norm)) return;
    for (int64_t i = 0; i < size; i++)
        y[i] = (float)wide[i] / divisor;
    for (int64_t half = 1; half < size; half *= 2)
        for (int64_t i = 0; i < size; i++)
            if ((i & half) == 0) {
                const float a = y[i], b = y[i + half];
                y[i] = a + b;
                y[i + half] = a - b;
            }
    turboquant_centroids(size, bits, centroids);
    for (int64_t i = 0; i < size; i++) {
        unsigned code = 0;
        for (int j = 0; j + 1 < 1 << bits; j++)
            code += y[i] * root >= (centroids[j] + centroids[j + 1]) * 0.5f;
        put_code(row, bits, i, code);
    }
}

static void store_value(char *row, int64_t size, int bits, const void *x, uint32_t dtype) {
    const int64_t step_bytes = (int64_t)attn_dtype_size(dtype);
    const float top = (float)((1 << bits) - 1);
    float low = INFINITY, high = -INFINITY, step = NAN;
    double piece[PIECE];
    int is_finite = 1;
    for (int64_t at = 0; at < size; at += PIECE) {
        const int64_t n = size - at < PIECE ? size - at : PIECE;
        ref_load_row((const char *)x + at * step_bytes, dtype, n, piece);
        for (int64_t i = 0; i < n; i++) {
            const float v = (float)piece[i];
            if (!isfinite(v)) is_finite = 0;
            low = v < low ? v : low;
            high = v > high ? v : high;
        }
    }
    memset(row, 0, (size_t)(size * bits / 8));
    is_finite = is_finite && isfinite(high - low);
    if (is_finite) step = fmaxf((high - low) / top, 1e-8f);
    put_half(row + size * bits / 8, step);
    put_half(row + size * bits / 8 + 2, is_finite ? low : NAN);
    for (int64_t at = 0; is_finite && at < size; at += PIECE) {
        const int64_t n = size - at < PIECE ? size - at : PIECE;
        ref_load_row((const char *)x + at * step_bytes, dtype, n, piece);
        for (int64_t i = 0; i < n; i++)
            put_code(row, bits, at + i, (unsigned)fminf(top, truncf(((float)piece[i] - low) / step + 0.5f)));
    }
}

void ref_turbo_store(char *row, int64_t size, int bits, int is_value, const void *x, uint32_t dtype) {
    if (bits == 8) {
        double piece[PIECE];
        for (int64_t at = 0; at < size; at += PIECE) {
            const int64_t n = size - at < PIECE ? size - at : PIECE;
            ref_load_row((const char *)x + at * (int64_t)attn_dtype_size(dtype), dtype, n, piece);
            ref_store_row(row + at, ATTN_DTYPE_FP8_E4M3, n, piece);
        }
    } else if (is_value) {
        store_value(row, size, bits, x, dtype);
    } else {
        store_key(row, size, bits, x, dtype);
    }
}
