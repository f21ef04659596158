/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of TurboQuant (semantics 3.7): the encoder, and rows as floats. Keys of 3 and 4 bits stay rotated, and
 * the query is rotated instead. Included by cpu_level.c. */
#include "../common/turboquant_levels.h"

SI int is_centroids(enum cpu_dtype t) {
    return t == CPU_C4 || t == CPU_C3;
}
SI int is_steps(enum cpu_dtype t) {
    return t == CPU_V4 || t == CPU_V3;
}

/* What a call keeps: the centroids of its keys, for codes of 4 bits the pair that each byte stands for, and
 * what the scales of nvfp4's groups stand for. */
struct turbo_table {
    float centroid[16], pair[256][2], scale[256];
};
static void turbo_begin(int bits, int n, struct turbo_table *t) {
    turboquant_centroids(n, bits, t->centroid);
    if (bits == 3) memcpy(t->centroid + 8, t->centroid, 8 * sizeof *t->centroid);
    for (int i = 0; bits == 4 && i < 256; i++) {
        t->pair[i][0] = t->centroid[i & 15];
        t->pair[i][1] = t->centroid[i >> 4];
    }
}

/* The query of a call against rotated keys. */
static __attribute__((noinline)) void turbo_query(const struct cpu_attn *a, float *q) {
    if (a->kv_dtype != CPU_PACKED || !is_centroids(a->k_row)) return;
    const float factor = 1.0f / sqrtf((float)a->head_size);
    hadamard(q, a->head_size);
    for (int i = 0; i < a->head_size; i++)
        q[i] *= factor;
}

/* Eight codes of 3 bits from three bytes. */
SI uint32_t three_bytes(const unsigned char *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
}

SI float half_at(const char *p) {
#if CPU_CODES
    return v_half(p);
#else
    float x[2 * CHUNK];
    row_to_f32(CPU_F16, p, 1, x);
    return x[0];
#endif
}

/* As far as whole vectors go, what n codes stand for in a table of 16; returns how many. */
SI int turbo_lookup(const char *row, int bits, const float table[16], int n, float *out) {
    int i = 0;
#if CPU_CODES
    vf t[16 / VW];
    v_table(table, t);
    for (; i + VW <= n; i += VW)
        v_store(out + i, v_lookup(t, v_codes(row + i * bits / 8, bits)));
#else
    (void)row, (void)bits, (void)table, (void)n, (void)out;
#endif
    return i;
}

/* out has room for n floats, n a multiple of 8, and a chunk. */
static __attribute__((noinline)) void turbo_keys(const struct turbo_table *t, enum cpu_dtype type,
                                                 const char *row, int n, float *out) {
    const int bits = type == CPU_C4 ? 4 : 3;
    vf squares = v_zero();
    int i = turbo_lookup(row, bits, t->centroid, n, out);
    for (; bits == 4 && i < n; i += 2)
        memcpy(out + i, t->pair[(unsigned char)row[i / 2]], 8);
    for (; i < n; i += 8) {
        const uint32_t codes = three_bytes((const unsigned char *)row + i / 8 * 3);
        UNROLL for (int j = 0; j < 8; j++) out[i + j] = t->centroid[codes >> 3 * j & 7];
    }
    for (i = 0; i + VW <= n; i += VW)
        squares = v_fma(v_load(out + i), v_load(out + i), squares);
    float sum = v_hsum(squares);
    for (; i < n; i++)
        sum += out[i] * out[i];
    const float factor = half_at(row + cpu_row_bytes(type, n)) / sqrtf(sum + 1e-16f);
    for (i = 0; i < n; i += VW)
        v_store(out + i, v_mul(v_load(out + i), v_set1(factor)));
}
static __attribute__((noinline)) void turbo_values(enum cpu_dtype type, const char *row, int n, float *out) {
    const char *beside = row + cpu_row_bytes(type, n);
    const float step = half_at(beside), low = half_at(beside + 2);
    const int bits = type == CPU_V4 ? 4 : 3, most = (1 << bits) - 1;
    float value[16];
    for (int i = 0; i < 16; i += VW)
        v_store(value + i, v_fma(vi_to_f(vi_load(lane_numbers + i)), v_set1(step), v_set1(low)));
    if (bits == 3) memcpy(value + 8, value, 8 * sizeof *value);
    int i = turbo_lookup(row, bits, value, n, out);
    for (; bits == 4 && i < n; i++)
        out[i] = value[(unsigned char)row[i / 2] >> i % 2 * 4 & most];
    for (; i < n; i += 8) {
        const uint32_t codes = three_bytes((const unsigned char *)row + i / 8 * 3);
        UNROLL for (int j = 0; j < 8; j++) out[i + j] = value[codes >> 3 * j & most];
    }
}

/* As float16, to nearest even, its largest beyond; NaN stays. */
SI void put_half(char *to, float x) {
    float one[2 * CHUNK] = {x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x};
    char out[4 * CHUNK];
    row_from_f32(CPU_F16, one, 1, out);
    memcpy(to, out, 2);
}

SI void put_codes(enum cpu_dtype type, const unsigned char *code, int n, char *dst) {
    if (type == CPU_C4 || type == CPU_V4)
        for (int i = 0; i < n; i += 2)
            dst[i / 2] = (char)(code[i] | code[i + 1] << 4);
    else
        for (int i = 0; i < n; i += 8, dst += 3) {
            uint32_t codes = 0;
            for (int j = 0; j < 8; j++)
                codes |= (uint32_t)code[i + j] << 3 * j;
            dst[0] = (char)codes;
            dst[1] = (char)(codes >> 8);
            dst[2] = (char)(codes >> 16);
        }
}

/* x: n floats, overwritten; n is at most ROTATION_MAX_SIZE. dst gets the codes and what is behind. */
static void turbo_write(enum cpu_dtype type, float *x, int n, char *dst) {
    unsigned char code[ROTATION_MAX_SIZE];
    const int bits = type == CPU_C4 || type == CPU_V4 ? 4 : 3;
    char *beside = dst + cpu_row_bytes(type, n);
    memset(code, 0, sizeof code);
    if (is_centroids(type)) {
        float centroid[16], middle[15];
        double squares = 0;
        for (int i = 0; i < n; i++)
            squares += (double)x[i] * (double)x[i];
        const float norm = (float)sqrt(squares), root = (float)(1 / sqrt((double)n)), divisor = norm + 1e-8f;
        const int is_finite = norm - norm == 0.0f;
        put_half(beside, is_finite ? norm : NAN);
        if (is_finite) {
            turboquant_centroids(n, bits, centroid);
            for (int j = 0; j + 1 < 1 << bits; j++)
                middle[j] = (centroid[j] + centroid[j + 1]) * 0.5f;
            for (int i = 0; i < n; i++)
                x[i] /= divisor;
            hadamard(x, n);
            for (int i = 0; i < n; i++)
                for (int j = 0; j + 1 < 1 << bits; j++)
                    code[i] = (unsigned char)(code[i] + (x[i] * root >= middle[j]));
        }
    } else {
        const float top = (float)((1 << bits) - 1);
        float low = INFINITY, high = -INFINITY, nan = 0;
        for (int i = 0; i < n; i++) {
            low = x[i] < low ? x[i] : low;
            high = x[i] > high ? x[i] : high;
            nan += x[i] - x[i]; /* NaN unless x is finite */
        }
        const int is_finite = nan == 0.0f && high - low < INFINITY;
        float step = (high - low) / top;
        step = step > 1e-8f ? step : 1e-8f;
        put_half(beside, is_finite ? step : NAN);
        put_half(beside + 2, is_finite ? low : NAN);
        for (int i = 0; is_finite && i < n; i++) {
            const float c = (x[i] - low) / step + 0.5f;
            code[i] = (unsigned char)(c < top ? c : top);
        }
    }
    put_codes(type, code, n, dst);
}
