/* SPDX-License-Identifier: Apache-2.0 */
/* case_families.c: inputs that are not normal. Sums that lose small addends, weights that vanish in a narrow
 * format and factors that are off by a constant do not show in normal values, whose errors cancel. */
#include "case_families.h"

#include "attn_case.h"
#include <attn/attn_plugin_util.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[KIT_NUM_FAMILIES] = {
    "usual",       "normal",  "constant",   "large_mean", "uniform", "needle", "geometric",
    "alternating", "channel", "equal_keys", "ends",       "large",   "small",
};

const char *kit_family_name(uint32_t family) {
    return family < KIT_NUM_FAMILIES ? names[family] : "unknown";
}

uint32_t kit_family_of_name(const char *name) {
    uint32_t family = 0;
    while (family < KIT_NUM_FAMILIES && strcmp(names[family], name) != 0)
        family++;
    return family;
}

double kit_value_size(const kit_case_t *c) {
    const int is_half = c->problem.dtype == ATTN_DTYPE_FLOAT16;
    if (c->family == KIT_LARGE) return is_half ? 0x1p13 : 0x1p93;
    if (c->family == KIT_SMALL) return is_half ? 0x1p-10 : 0x1p-93;
    return 1;
}

/* All of them are e4m3 numbers, so that every format of 8 bits with a scale of 1, and every wider one, holds
 * them exactly. */
static float e4m3(double x) {
    return (float)attn_from_e4m3(attn_to_e4m3(x < -448 ? -448 : x > 448 ? 448 : x));
}

enum { TABLE = 1 << 14 };
typedef struct {
    uint64_t state, bits;
    int left;
    float normal[TABLE], twentieth[TABLE], around_one[TABLE]; /* N(0, 1); N(0, 1) / 20; 1 + N(0, 1) / 2 */
} source_t;

static float pick(source_t *s, const float *table) {
    if (s->left-- == 0) s->bits = kit_random(&s->state), s->left = 3;
    float x = table[s->bits & (TABLE - 1)];
    s->bits >>= 16;
    return x;
}

/* Row `row` of n: channel d of `size`. What a family does not say is normal. */
static float query_of(source_t *s, uint32_t family, int64_t head, int64_t heads, int64_t d,
                      const kit_family_t *f) {
    switch (family) {
    case KIT_UNIFORM:
        return pick(s, s->twentieth);
    case KIT_NEEDLE: /* 16 times this times the scale: half of the weight */
        return d == 0 ? e4m3(log((double)f->num_keys) / (16 * f->scale)) : pick(s, s->normal);
    case KIT_GEOMETRIC: /* see key_of; from weights that fall by 1 % a key to 30 % */
        return d < 3 ? e4m3(ldexp(d == 1 ? 16 : 1, 5 - (int)(head % (heads < 6 ? heads : 6)))) : 0;
    case KIT_ENDS:
        return (pick(s, s->normal) < 0 ? -1.f : 1.f) * 0x1p-8f;
    default:
        return pick(s, s->normal);
    }
}

static float key_of(source_t *s, uint32_t family, int64_t row, int64_t d, const kit_family_t *f) {
    const int64_t back = f->num_keys - 1 - row;
    switch (family) {
    case KIT_UNIFORM:
        return pick(s, s->twentieth);
    case KIT_NEEDLE:
        if (row == f->needle) return d == 0 ? 16.f : 0.f;
        return d == 0 ? 0.f : pick(s, s->normal);
    case KIT_GEOMETRIC: /* -back / 16 in three numbers of 4 bits; from 4096 keys back on it stays */
        if (d > 2) return 0;
        if (back >= 4096) return d == 1 ? -16.f : 0.f;
        const int64_t digits[3] = {back / 16 % 16, back / 256, back % 16};
        return (float)-digits[d] / (d == 2 ? 16.f : 1.f);
    case KIT_CHANNEL:
        return pick(s, s->normal) * (d == 5 ? 64.f : 1.f);
    case KIT_EQUAL_KEYS:
        return s->normal[d * 37 % TABLE];
    case KIT_ENDS:
        return pick(s, s->normal) < 0 ? -448.f : 448.f;
    default:
        return pick(s, s->normal);
    }
}

static float value_of(source_t *s, uint32_t family, int64_t row, int64_t d, const kit_family_t *f) {
    switch (family) {
    case KIT_NORMAL:
        return pick(s, s->normal);
    case KIT_LARGE:
    case KIT_SMALL:
        return pick(s, s->normal) * (float)f->magnitude;
    case KIT_CONSTANT:
        return 1.375f;
    case KIT_LARGE_MEAN:
        return e4m3(8 + pick(s, s->normal));
    case KIT_NEEDLE:
        return row == f->needle ? -2.f : pick(s, s->around_one);
    case KIT_ALTERNATING:
        return row & 1 ? -1.f : 1.f;
    case KIT_CHANNEL:
        return pick(s, s->around_one) * (d == 3 ? 128.f : 1.f);
    case KIT_ENDS:
        switch (d & 3) {
        case 0:
            return 448.f;
        case 1:
            return row & 1 ? 0x1p-9f : 0x7p-9f; /* the smallest and the largest subnormal */
        case 2:
            return pick(s, s->normal) < -0.5f ? -448.f : 448.f;
        default:
            return pick(s, s->normal) < 0 ? 0.f : 0x1p-6f;
        }
    default:
        return pick(s, s->around_one);
    }
}

int kit_family_fill(uint32_t family, uint64_t seed, const kit_family_t *f) {
    source_t *s = malloc(sizeof *s);
    if (s == NULL) return -1;
    s->state = seed, s->left = 0;
    for (int i = 0; i < TABLE; i++) {
        double x = kit_random_normal(&s->state);
        s->normal[i] = e4m3(x), s->twentieth[i] = e4m3(x / 20), s->around_one[i] = e4m3(1 + x / 2);
    }
    const int64_t nope = f->nope_size != 0 ? f->nope_size : f->key_size;
    int64_t q = 0, k = 0, v = 0;
    for (int64_t t = 0; t < f->num_tokens; t++)
        for (int64_t h = 0; h < f->heads; h++)
            for (int64_t d = 0; d < f->query_size; d++)
                f->query[q++] = d < nope ? query_of(s, family, h, f->heads, d, f) : 0;
    for (int64_t row = 0; row < f->num_keys; row++)
        for (int64_t h = 0; h < f->kv_heads; h++) {
            for (int64_t d = 0; d < f->key_size; d++)
                f->key[k++] = d < nope ? key_of(s, family, row, d, f) : value_of(s, family, row, d - nope, f);
            for (int64_t d = 0; d < f->value_size; d++)
                f->value[v++] = f->nope_size != 0 ? 0 : value_of(s, family, row, d, f);
        }
    free(s);
    return 0;
}

void kit_family_projection(float *kv_b_proj, int64_t heads, int64_t nope, int64_t value, int64_t latent) {
    const int64_t blocks = latent >= 2 * value ? latent / value - 1 : 1;
    for (int64_t h = 0, at = 0; h < heads; h++)
        for (int64_t r = 0; r < nope + value; r++)
            for (int64_t l = 0; l < latent; l++)
                kv_b_proj[at++] = l == (r < nope ? r : r - nope + value * (1 + h % blocks));
}
