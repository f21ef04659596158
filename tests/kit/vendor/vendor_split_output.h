/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_split_output.h: what vendor_split.c makes of a token's row of floats where the output has scales of
 * groups (semantics 7.7), with faults of its own. A part of that file, which includes it. */
#ifndef VENDOR_SPLIT_OUTPUT_H
#define VENDOR_SPLIT_OUTPUT_H

static int has_groups(uint64_t features) {
    return (features & (ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4)) != 0;
}

static int64_t group_width(const attn_forward_t *a, uint64_t features, int64_t width) {
    const DLTensor *s = a->output_block_scale;
    if (features & ATTN_F_OUT_NVFP4) return 16;
    return s->dtype.code == kDLInt ? 128 : width / s->shape[1];
}

static int check_groups(const attn_forward_t *a, int64_t tokens, attn_error_t *error) {
    const DLTensor *s = a->output_block_scale;
    if (s == NULL || s->shape == NULL || s->strides == NULL)
        return attn_fail(error, ATTN_E_INVALID, "output_block_scale", "output_block_scale is not given");
    if (s->shape[0] * (s->ndim == 5 ? 128 : 1) < tokens)
        return attn_fail(error, ATTN_E_INVALID, "output_block_scale", "output_block_scale has too few rows");
    return ATTN_OK;
}

/* Where the scale of token t and group g is. */
static char *scale_place(const attn_forward_t *a, int64_t t, int64_t g) {
    const DLTensor *s = a->output_block_scale;
    char *at = attn_data(s);
    if (IS(tiles_as_rows) && s->ndim == 5) return at + t * 4 * s->shape[1] + g;
    if (s->ndim == 5)
        return at + t / 128 * s->strides[0] + g / 4 * s->strides[1] + t % 32 * s->strides[2] +
               t / 32 % 4 * s->strides[3] + g % 4 * s->strides[4];
    if (s->dtype.code == kDLInt)
        return at + t * attn_byte_stride(s, 0) + g / 4 * attn_byte_stride(s, 1) +
               (IS(exponents_high_first) ? 3 - g % 4 : g % 4);
    if (IS(scales_by_rows_alone)) return at + t * attn_byte_stride(s, 0) + g * (s->dtype.bits / 8);
    return at + t * attn_byte_stride(s, 0) + g * attn_byte_stride(s, 1);
}

static float group_scale(const attn_forward_t *a, uint64_t f, int64_t t, int64_t g, float most,
                         int is_finite) {
    char *at = scale_place(a, t, g);
    float scale = (float)(fmax((double)most, 1e-10) / 448);
    if (f & ATTN_F_OUT_NVFP4) {
        const float tensor = IS(nvfp4_without_tensor_scale) ? 1 : *(const float *)attn_data(a->output_scale);
        const uint8_t code = attn_to_e4m3(is_finite ? (double)(most / 6 / tensor) : NAN);
        *(uint8_t *)at = code;
        scale = (IS(nvfp4_by_unrounded_scale) ? most / 6 / tensor : (float)attn_from_e4m3(code)) * tensor;
        return scale;
    }
    if (!(f & ATTN_F_OUT_SCALE_UE8M0) || IS(ue8m0_not_rounded)) {
        memcpy(at, &scale, IS(ue8m0_not_rounded) && a->output_block_scale->dtype.code != kDLFloat ? 1 : 4);
        return scale;
    }
    int e;
    const float half = frexpf(scale, &e); /* scale = half * 2^e, half from 1/2 to 1 */
    if (half == 0.5f || IS(ue8m0_down)) e--;
    scale = ldexpf(1, e);
    if (a->output_block_scale->dtype.code == kDLFloat)
        memcpy(at, &scale, 4);
    else
        *(uint8_t *)at = (uint8_t)(e + 127);
    return scale;
}

static void write_groups(const attn_forward_t *a, uint64_t f, int64_t t, int64_t heads, int64_t size,
                         const float *row) {
    const DLTensor *s = a->output_block_scale;
    const int64_t width = heads * size, n = group_width(a, f, width), groups = width / n;
    for (int64_t g = 0; g < groups; g++) {
        float most = 0;
        int is_finite = 1;
        for (int64_t i = g * n; i < (g + 1) * n; i++)
            most = fmaxf(most, fabsf(row[i])), is_finite = is_finite && isfinite(row[i]);
        const float scale = group_scale(a, f, t, g, most, is_finite);
        for (int64_t i = g * n; i < (g + 1) * n; i++) {
            uint8_t *out = (uint8_t *)attn_data(a->output) + t * attn_byte_stride(a->output, 0) +
                           i / size * attn_byte_stride(a->output, 1);
            const float x = row[i] / scale;
            if (!(f & ATTN_F_OUT_NVFP4)) {
                out[i % size] = attn_to_e4m3((double)x);
                continue;
            }
            const unsigned code = scale > 0 ? attn_to_e2m1((double)x) : 0, at = i % size / 2;
            const int is_high = IS(nvfp4_high_first) ? i % 2 == 0 : i % 2 != 0;
            if (i % 2 == 0) out[at] = 0;
            out[at] = (uint8_t)(out[at] | (is_high ? code << 4 : code));
        }
    }
    if (IS(pads_left) || (s->ndim != 5 && s->dtype.code != kDLInt)) return;
    for (int64_t g = groups; g % 4 != 0; g++)
        *scale_place(a, t, g) = 0;
}

#endif
