/* SPDX-License-Identifier: Apache-2.0 */
/* case_families.h: inputs of one request that are not normal, in numbers that e4m3 holds; at the ends of
 * wider types times a power of two. */
#ifndef ATTN_KIT_CASE_FAMILIES_H
#define ATTN_KIT_CASE_FAMILIES_H

#include <stddef.h>
#include <stdint.h>

struct kit_case;

enum {
    KIT_USUAL,       /* not of these: kit_inputs_make's own values, normal with extremes */
    KIT_NORMAL,      /* Q, K, V normal; so are Q and K of what follows where nothing else is said */
    KIT_CONSTANT,    /* V is 1.375 everywhere */
    KIT_LARGE_MEAN,  /* V about 8 + N(0, 1) */
    KIT_UNIFORM,     /* scores near 0; V about 1 + N(0, 1) / 2, as in the families below */
    KIT_NEEDLE,      /* one key has about half of the weight and V -2 */
    KIT_GEOMETRIC,   /* weights fall by a factor from key to key, going back, for 4096 keys, then stay */
    KIT_ALTERNATING, /* V is 1, -1, 1, ... */
    KIT_CHANNEL,     /* one channel of K, and another of V, is 100 times the others */
    KIT_EQUAL_KEYS,  /* all keys are the same */
    KIT_ENDS, /* K of +-448, Q of 2^-8; V: 448, +-448, subnormal, 0 or the smallest normal, by channel */
    KIT_NUM_E4M3_FAMILIES,
    KIT_LARGE = KIT_NUM_E4M3_FAMILIES, /* V normal, at the upper end of the element type */
    KIT_SMALL,                         /* and at the lower */
    KIT_NUM_FAMILIES
};

/* What to fill: query [num_tokens, heads, query_size], key [num_keys, kv_heads, key_size], value [num_keys,
 * kv_heads, value_size], the scale of the scores, the key that is the needle, and the power of two that V of
 * KIT_LARGE and KIT_SMALL is multiplied by. Latent rows (nope_size not 0): the first nope_size channels of
 * `key` are keys, the others values; rope, which is `value` and the last value_size of a query, is 0. */
typedef struct kit_family {
    int64_t num_tokens, num_keys, heads, kv_heads, query_size, key_size, value_size, nope_size;
    int64_t needle;
    double scale, magnitude;
    float *query, *key, *value;
} kit_family_t;

/* The name of a family, as in the text of a case, and back; KIT_NUM_FAMILIES: no such name. */
const char *kit_family_name(uint32_t family);
uint32_t kit_family_of_name(const char *name);
/* The size of the values of a case, a power of two; the absolute tolerance is in units of it. */
double kit_value_size(const struct kit_case *c);
/* The largest ALiBi slope of a case. */
#define KIT_MAX_SLOPE 0.5
/* For latent rows: the up-projection [heads * (nope + value), latent] that leaves keys as they are and gives
 * head h block 1 + h % (latent / value - 1) of `value` channels of a row as its values. */
void kit_family_projection(float *kv_b_proj, int64_t heads, int64_t nope, int64_t value, int64_t latent);
/* Returns 0, or -1 without memory. */
int kit_family_fill(uint32_t family, uint64_t seed, const kit_family_t *to);

#endif
