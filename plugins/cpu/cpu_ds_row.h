/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of fp8_ds_mla (semantics 3.5): 512 e4m3 values with a float32 scale for each 128, and 64 bf16 values.
 * The latter are written as a row of their own. Included by cpu_level.c. */

enum { DS_LATENT = 512, DS_TILE = 128, DS_ROPE_AT = DS_LATENT + DS_LATENT / DS_TILE * 4 };

/* The first n values, 512 or all 576; out has room for them. */
static void ds_to_f32(const char *row, int n, float *out) {
    for (int at = 0; at < DS_LATENT; at += DS_TILE) {
        const vf scale = v_set1(load_f32(row + DS_LATENT + at / DS_TILE * 4) * dtype_gain(CPU_E4M3));
        UNROLL for (int i = 0; i < DS_TILE; i += CHUNK) {
            vf a, b;
            v_pair(CPU_E4M3, row + at + i, &a, &b);
            v_store(out + at + i, v_mul(a, scale));
            v_store(out + at + i + VW, v_mul(b, scale));
        }
    }
    if (n > DS_LATENT) row_to_f32(CPU_BF16, row + DS_ROPE_AT, n - DS_LATENT, out + DS_LATENT);
}

/* 512 floats to dst, and their scales; a NaN does not count for the scale. */
static void ds_write(const float *x, char *dst, char *scales) {
    for (int at = 0; at < DS_LATENT; at += DS_TILE) {
        float top = 0;
        for (int i = 0; i < DS_TILE; i++)
            top = fabsf(x[at + i]) > top ? fabsf(x[at + i]) : top;
        const float quotient = top / 448.0f, scale = quotient < FLT_MIN ? FLT_MIN : quotient;
        for (int i = 0; i < DS_TILE; i++)
            dst[at + i] = (char)f32_to_e4m3(x[at + i] / scale);
        memcpy(scales + at / DS_TILE * 4, &scale, sizeof scale);
    }
}
