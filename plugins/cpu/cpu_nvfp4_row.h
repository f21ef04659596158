/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of nvfp4 (semantics 3.6): e2m1 codes, and apart from them an e4m3 scale for each 16 values: the
 * encoder, and rows as floats that are still to be multiplied with the tensor's scale. Included by
 * cpu_level.c. */

enum { NVFP4_GROUP = 16, NVFP4_GROUPS = ROTATION_MAX_SIZE / NVFP4_GROUP };

/* What the two codes of each byte stand for, and each scale. */
static void nvfp4_begin(float pair[256][2], float scale[256]) {
    for (int i = 0; i < 256; i += CHUNK) {
        char codes[CHUNK];
        vf a, b;
        for (int j = 0; j < CHUNK; j++)
            codes[j] = (char)(i + j);
        v_pair(CPU_E4M3, codes, &a, &b);
        v_store_pair(CPU_E4M3, scale + i, v_mul(a, v_set1(256.0f)), v_mul(b, v_set1(256.0f)));
    }
    static const float magnitude[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int i = 0; i < 512; i++) {
        const int code = i % 2 ? i / 2 >> 4 : i / 2 & 15;
        pair[i / 2][i % 2] = code & 8 ? -magnitude[code & 7] : magnitude[code & 7];
    }
}

/* out has room for n floats, n a multiple of 16. */
static __attribute__((noinline)) void nvfp4_to_f32(const float pair[256][2], const float scale[256],
                                                   const char *row, const char *scales, int n, float *out) {
#if CPU_CODES
    float one[16];
    vf table[16 / VW];
    for (int i = 0; i < 16; i++)
        one[i] = pair[i][0];
    v_table(one, table);
    for (int g = 0; g < n / NVFP4_GROUP; g++)
        UNROLL for (int i = g * NVFP4_GROUP; i < (g + 1) * NVFP4_GROUP; i += VW)
            v_store(out + i,
                    v_mul(v_lookup(table, v_codes(row + i / 2, 4)), v_set1(scale[(unsigned char)scales[g]])));
#else
    const unsigned char *p = (const unsigned char *)row;
    for (int g = 0; g < n / NVFP4_GROUP; g++, p += NVFP4_GROUP / 2, out += NVFP4_GROUP) {
        const float f = scale[(unsigned char)scales[g]];
        UNROLL for (int i = 0; i < NVFP4_GROUP / 2; i++) memcpy(out + 2 * i, pair[p[i]], 8);
        UNROLL for (int i = 0; i < NVFP4_GROUP; i++) out[i] *= f;
    }
#endif
}

/* The nearest code, ties to the even one, 6 beyond. */
SI unsigned f32_to_e2m1(float x) {
    const float a = fabsf(x);
    const int code =
        (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return (unsigned)code | (float_bits(x) >> 31) << 3;
}

/* x: n floats; scale: of the tensor. dst gets the codes, scales those of the groups. A group with a value
 * that is not finite gets a NaN for its scale, and codes of 0. */
static void nvfp4_write(const float *x, int n, float scale, char *dst, char *scales) {
    float unit[NVFP4_GROUPS + 2 * CHUNK];
    for (int g = 0; g < n / NVFP4_GROUP; g++) {
        float top = 0, nan = 0;
        for (int i = 0; i < NVFP4_GROUP; i++) {
            const float v = x[g * NVFP4_GROUP + i];
            top = fabsf(v) > top ? fabsf(v) : top;
            nan += v - v; /* NaN unless v is finite */
        }
        scales[g] = (char)f32_to_e4m3(nan == 0.0f ? top / 6.0f / scale : NAN);
    }
    row_to_f32(CPU_E4M3, scales, n / NVFP4_GROUP, unit);
    memset(dst, 0, (size_t)n / 2);
    for (int g = 0; g < n / NVFP4_GROUP; g++) {
        const float u = unit[g] * dtype_gain(CPU_E4M3) * scale;
        for (int i = g * NVFP4_GROUP; u > 0.0f && i < (g + 1) * NVFP4_GROUP; i += 2)
            dst[i / 2] = (char)(f32_to_e2m1(x[i] / u) | f32_to_e2m1(x[i + 1] / u) << 4);
    }
}
