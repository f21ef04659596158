/* SPDX-License-Identifier: Apache-2.0 */
/* One row of the cache write: conversion and quantisation (semantics 3.2, 3.4, 3.6). Included by
 * cpu_level.c. */

static void level_write_channels(enum cpu_dtype from, const char *src, int n, const float *scale, char *dst,
                                 float *scratch) {
    row_to_f32(from, src, n, scratch);
    for (int i = 0; i < n; i++)
        dst[i] = f32_to_i8(scratch[i] / scale[i]);
}

static void level_write_row(enum cpu_dtype from, const char *src, int n, enum cpu_dtype to, float scale,
                            char *dst, char *row_scale, float *scratch) {
    if (from == to) { /* also values that are quantised already (semantics 3.2) */
        memcpy(dst, src, (size_t)n * (size_t)cpu_dtype_size(to));
        return;
    }
    row_to_f32(from, src, n, scratch);
    if (to == CPU_DS) {
        ds_write(scratch, dst, row_scale);
        return;
    }
    if (is_centroids(to) || is_steps(to)) {
        for (int i = 0; dtype_gain(from) != 1.0f && i < n; i++)
            scratch[i] *= dtype_gain(from);
        turbo_write(to, scratch, n, dst);
        return;
    }
    if (to == CPU_I4) {
        int4_write(from, scratch, n, dst, row_scale);
        return;
    }
    if (to == CPU_E2M1) {
        nvfp4_write(scratch, n, scale, dst, row_scale);
        return;
    }
    if (row_scale) {
        float top = 0, nan = 0;
        for (int i = 0; i < n; i++) {
            top = fabsf(scratch[i]) > top ? fabsf(scratch[i]) : top;
            nan += scratch[i] == scratch[i] ? 0.0f : scratch[i];
        }
        scale = top / (to == CPU_I8 ? 127.0f : 448.0f);
        scale = nan + (scale > 1e-6f ? scale : 1e-6f); /* a NaN anywhere makes the whole row NaN */
        memcpy(row_scale, &scale, sizeof scale);
    }
    switch (to) {
    case CPU_F32:
        memcpy(dst, scratch, (size_t)n * 4);
        break;
    case CPU_F16:
    case CPU_BF16:
        row_from_f32(to, scratch, n, dst);
        break;
    case CPU_E4M3:
        for (int i = 0; i < n; i++)
            dst[i] = (char)f32_to_e4m3(scratch[i] / scale);
        break;
    case CPU_E5M2:
        for (int i = 0; i < n; i++)
            dst[i] = (char)f32_to_e5m2(scratch[i] / scale);
        break;
    default: /* int8: half away from zero */
        for (int i = 0; i < n; i++)
            dst[i] = f32_to_i8(scratch[i] / scale);
        break;
    }
}
