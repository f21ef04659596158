/* SPDX-License-Identifier: Apache-2.0 */
/* ref_nvfp4_row.c: encoder and decoder of nvfp4 rows (semantics 3.6). What decides bits is float32, in the
 * order that the law has; what reads them is double. */
#include "ref_nvfp4_row.h"

#include "ref_rows.h"

#include <math.h>

void ref_nvfp4_load(const char *codes, const char *scales, int64_t size, double scale, double *out) {
    for (int64_t i = 0; i < size; i++)
        out[i] = attn_from_e2m1((uint8_t)((uint8_t)codes[i / 2] >> i % 2 * 4 & 15)) *
                 attn_from_e4m3((uint8_t)scales[i / REF_NVFP4_GROUP]) * scale;
}

void ref_nvfp4_store(char *codes, char *scales, int64_t size, float scale, const void *x, uint32_t dtype) {
    const int64_t step = REF_NVFP4_GROUP * (int64_t)attn_dtype_size(dtype);
    for (int64_t g = 0; g < size / REF_NVFP4_GROUP; g++, codes += REF_NVFP4_GROUP / 2) {
        double values[REF_NVFP4_GROUP];
        float most = 0.0f;
        int is_finite = 1;
        ref_load_row((const char *)x + g * step, dtype, REF_NVFP4_GROUP, values);
        for (int i = 0; i < REF_NVFP4_GROUP; i++) {
            is_finite = is_finite && isfinite(values[i]);
            most = fmaxf(most, fabsf((float)values[i]));
        }
        const uint8_t stored = attn_to_e4m3(is_finite ? (double)(most / 6.0f / scale) : (double)NAN);
        const float unit = (float)attn_from_e4m3(stored) * scale;
        scales[g] = (char)stored;
        memset(codes, 0, REF_NVFP4_GROUP / 2);
        for (int i = 0; unit > 0.0f && i < REF_NVFP4_GROUP; i++) {
            const unsigned code = attn_to_e2m1((double)((float)values[i] / unit));
            codes[i / 2] = (char)((uint8_t)codes[i / 2] | code << i % 2 * 4);
        }
    }
}
