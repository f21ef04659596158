/* SPDX-License-Identifier: Apache-2.0 */
/* output_scales.c: what is wrong with the scales of a quantised output, in words, and where they lie. */
#include "output_scales.h"

#include <float.h>

static int check_static(const DLTensor *t, attn_error_t *error) {
    int status = attn_check_tensor(t, "output_scale", ATTN_DTYPE_FLOAT32, t->ndim == 0 ? 0 : 1, NULL, error);
    if (status == ATTN_OK && t->ndim == 1 && t->shape[0] != 1)
        status = attn_fail(error, ATTN_E_INVALID, "output_scale",
                           "output_scale has %lld elements; it scales a whole tensor: give 1",
                           (long long)t->shape[0]);
    if (status != ATTN_OK) return status;
    const float scale = *(const float *)attn_data(t);
    if (scale > 0 && scale <= FLT_MAX) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, "output_scale", "output_scale is %g; expected a positive number",
                     (double)scale);
}

static int is_bytes_of(const DLTensor *t, uint8_t code) {
    return t->dtype.bits == 8 && t->dtype.lanes == 1 &&
           (t->dtype.code == (uint8_t)kDLUInt || t->dtype.code == code);
}
static int is_floats(const DLTensor *t) {
    return t->dtype.code == (uint8_t)kDLFloat && t->dtype.bits == 32 && t->dtype.lanes == 1;
}
static int is_words(const DLTensor *t) {
    return t->dtype.code == (uint8_t)kDLInt && t->dtype.bits == 32 && t->dtype.lanes == 1;
}

static int check_type(const DLTensor *t, uint64_t features, attn_error_t *error) {
    const int is_fp4 = (features & ATTN_F_OUT_NVFP4) != 0,
              is_power = (features & ATTN_F_OUT_SCALE_UE8M0) != 0;
    if (is_fp4 ? is_bytes_of(t, ATTN_DL_FLOAT8_E4M3FN)
               : is_floats(t) || (is_power && (is_words(t) || is_bytes_of(t, ATTN_DL_FLOAT8_E8M0FNU))))
        return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, "output_block_scale",
                     "output_block_scale has %u bits and DLPack type code %u; expected %s", t->dtype.bits,
                     t->dtype.code,
                     is_fp4     ? "fp8_e4m3"
                     : is_power ? "float32, or exponents as uint8, or four of them as int32"
                                : "float32, unless feature out_scale_ue8m0 is requested");
}

/* Sizes of the tensor, which has a type that is served. */
static int has_shape(const DLTensor *t, uint64_t features, int64_t width, int64_t tokens) {
    const int64_t *n = t->shape;
    if ((features & ATTN_F_OUT_NVFP4) != 0 && t->ndim == 5) {
        const int64_t groups = width / OUTPUT_NVFP4_GROUP;
        return n[0] >= (tokens + 127) / 128 && n[1] >= (groups + 3) / 4 && n[2] == 32 && n[3] == 4 &&
               n[4] == 4;
    }
    if (t->ndim != 2 || n[0] < tokens || n[1] <= 0) return 0;
    if ((features & ATTN_F_OUT_NVFP4) != 0) return n[1] == width / OUTPUT_NVFP4_GROUP;
    if (is_words(t)) return width % 128 == 0 && n[1] == (width / 128 + 3) / 4;
    return width % n[1] == 0 && (width / n[1] == 64 || width / n[1] == 128);
}

int output_block_scale_check(const DLTensor *t, uint64_t features, int64_t width, int64_t tokens,
                             attn_error_t *error) {
    if (t == NULL)
        return attn_fail(error, ATTN_E_INVALID, "output_block_scale",
                         "output_block_scale is not given; it is required here");
    if (t->shape == NULL || t->strides == NULL)
        return attn_fail(error, ATTN_E_INVALID, "output_block_scale",
                         "output_block_scale has no shape or no strides; give both");
    const int status = check_type(t, features, error);
    if (status != ATTN_OK) return status;
    if (!has_shape(t, features, width, tokens)) {
        const int64_t groups = width / OUTPUT_NVFP4_GROUP;
        char want[96];
        if ((features & ATTN_F_OUT_NVFP4) != 0)
            snprintf(want, sizeof want, "[%lld, %lld], or tiles [%lld, %lld, 32, 4, 4]", (long long)tokens,
                     (long long)groups, (long long)(tokens + 127) / 128, (long long)(groups + 3) / 4);
        else if (is_words(t))
            snprintf(want, sizeof want, "[%lld, %lld], four groups of 128 in a word", (long long)tokens,
                     (long long)(width / 128 + 3) / 4);
        else
            snprintf(want, sizeof want, "[%lld, %lld / 64 or / 128]", (long long)tokens, (long long)width);
        return attn_fail(error, ATTN_E_INVALID, "output_block_scale",
                         "output_block_scale is [%lld, %lld%s; expected %s",
                         t->ndim > 0 ? (long long)t->shape[0] : 1LL,
                         t->ndim > 1 ? (long long)t->shape[1] : 1LL, t->ndim > 2 ? ", ..]" : "]", want);
    }
    if (t->data == NULL && t->shape[0] > 0)
        return attn_fail(error, ATTN_E_INVALID, "output_block_scale", "output_block_scale has no data");
    if (t->data != NULL && ((uintptr_t)attn_data(t) & (t->dtype.bits / 8u - 1u)) != 0)
        return attn_fail(error, ATTN_E_INVALID, "output_block_scale",
                         "output_block_scale begins at %p, which is not a multiple of its elements' size",
                         attn_data(t));
    return ATTN_OK;
}

int output_scales_given(const attn_forward_t *a, uint64_t features, attn_error_t *error) {
    const int is_fp4 = (features & ATTN_F_OUT_NVFP4) != 0;
    const struct {
        const DLTensor *given;
        const char *name, *feature;
        uint64_t bits;
    } scales[] = {{a->output_scale, "output_scale", is_fp4 ? "out_nvfp4" : "out_fp8_static",
                   ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_NVFP4},
                  {a->output_block_scale, "output_block_scale", is_fp4 ? "out_nvfp4" : "out_fp8_group",
                   ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4}};
    for (int i = 0; i < 2; i++) {
        const int is_wanted = (features & scales[i].bits) != 0;
        if ((scales[i].given != NULL) == is_wanted) continue;
        return attn_fail(error, ATTN_E_INVALID, scales[i].name,
                         is_wanted ? "%s is not given; feature %s needs it"
                                   : "%s was given, but the problem has no feature %s; request it",
                         scales[i].name, scales[i].feature);
    }
    return ATTN_OK;
}

int output_scales_check(const attn_forward_t *a, uint64_t features, int64_t width, int64_t tokens,
                        attn_error_t *error) {
    int status = output_scales_given(a, features, error);
    if (status == ATTN_OK && a->output_scale != NULL) status = check_static(a->output_scale, error);
    if (status == ATTN_OK && a->output_block_scale != NULL)
        status = output_block_scale_check(a->output_block_scale, features, width, tokens, error);
    return status;
}

output_groups output_groups_of(const attn_forward_t *a, uint64_t features, int64_t width) {
    const DLTensor *t = a->output_block_scale;
    output_groups o = {.kind = OUTPUT_STATIC};
    if (t == NULL) return o;
    const int is_fp4 = (features & ATTN_F_OUT_NVFP4) != 0;
    o.kind = is_fp4                                     ? OUTPUT_NVFP4
             : (features & ATTN_F_OUT_SCALE_UE8M0) == 0 ? OUTPUT_FLOATS
             : is_floats(t)                             ? OUTPUT_POWERS
                                                        : OUTPUT_EXPONENTS;
    o.scales = attn_data(t);
    o.size = is_fp4 ? OUTPUT_NVFP4_GROUP : is_words(t) ? 128 : (int32_t)(width / t->shape[1]);
    o.count = width / o.size;
    if (t->ndim == 5) {
        o.tile = attn_byte_stride(t, 0), o.four = attn_byte_stride(t, 1), o.row = attn_byte_stride(t, 2);
        o.part = attn_byte_stride(t, 3), o.one = attn_byte_stride(t, 4);
    } else {
        o.row = attn_byte_stride(t, 0), o.part = 32 * o.row, o.tile = 128 * o.row;
        o.one = is_words(t) ? 1 : attn_byte_stride(t, 1);
        o.four = is_words(t) ? attn_byte_stride(t, 1) : 4 * o.one;
    }
    if (t->ndim == 5 || is_words(t)) o.pads = (int32_t)((4 - o.count % 4) % 4);
    return o;
}

float output_put_scale(const output_groups *o, int64_t token, int64_t group, double most, float tensor) {
    char *at = output_scale_at(o, token, group);
    float scale = (float)((most > 1e-10 ? most : 1e-10) / ATTN_E4M3_MAX);
    uint32_t bits = 0;
    if (o->kind == OUTPUT_NVFP4) {
        const uint8_t code = attn_to_e4m3((double)((float)most / 6.0f / tensor));
        memcpy(at, &code, 1);
        scale = (float)attn_from_e4m3(code) * tensor;
        if (!(scale > 0)) scale = 0;
    }
    if (o->kind == OUTPUT_POWERS || o->kind == OUTPUT_EXPONENTS) { /* up, to 2^127 at most */
        memcpy(&bits, &scale, sizeof bits);
        bits = (bits + 0x7fffff) >> 23;
        bits = bits < 254 ? bits : 254;
        const uint32_t power = bits << 23;
        memcpy(&scale, &power, sizeof scale);
    }
    if (o->kind == OUTPUT_EXPONENTS)
        *(uint8_t *)at = (uint8_t)bits;
    else if (o->kind != OUTPUT_NVFP4)
        memcpy(at, &scale, sizeof scale);
    for (int32_t i = 1; group + 1 == o->count && i <= o->pads; i++)
        *output_scale_at(o, token, group + i) = 0;
    return scale;
}
