/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simple_rules.h: attention as plain rules, one function each: which key a query sees, what its score is,
 * where a cache row lies, how numbers are stored. simple_attn.c puts them together and is the only file that
 * knows the plugin ABI.
 */
#ifndef SIMPLE_RULES_H
#define SIMPLE_RULES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { SIMPLE_F32, SIMPLE_BF16, SIMPLE_E4M3 }; /* how a number is stored */

/* One layer. */
typedef struct simple_layer {
    int64_t num_heads, num_kv_heads; /* Hq, Hkv */
    int64_t head_size, head_size_v;  /* D, Dv */
    int64_t block_size;              /* tokens of a cache block */
    int64_t window;                  /* tokens, the query's own included; 0: none */
    double scale, soft_cap;          /* soft_cap 0: off */
    int is_causal, has_sink;
    int dtype, storage; /* SIMPLE_*: of Q, K, V and of the cache */
} simple_layer_t;

/* A cache [block][head][token][K then V], strides in bytes. */
typedef struct simple_cache {
    char *base;
    int64_t block_stride, head_stride, token_stride;
    const float *k_scale, *v_scale; /* one number, or one per KV head */
    int64_t num_k_scales, num_v_scales;
} simple_cache_t;

static inline int simple_size(int storage) {
    return storage == SIMPLE_F32 ? 4 : storage == SIMPLE_BF16 ? 2 : 1;
}

/* Query at position q (0 is the first token of the request) and key at position k of seq_len. */
static inline int simple_is_visible(const simple_layer_t *l, int64_t q, int64_t k, int64_t seq_len) {
    if (k >= seq_len || (l->is_causal && k > q)) return 0;
    if (l->window == 0) return 1;
    return q - k < l->window && (l->is_causal || k - q < l->window);
}

/* Keys past this one are invisible to query q and need not be visited. The tail of the last page may hold
 * NaN. */
static inline int64_t simple_key_end(const simple_layer_t *l, int64_t q, int64_t seq_len) {
    return l->is_causal && q + 1 < seq_len ? q + 1 : seq_len;
}

/* Position of row i of a request: its queries are the last tokens of the sequence (bottom-right
 * alignment). */
static inline int64_t simple_query_position(int64_t i, int64_t query_len, int64_t seq_len) {
    return seq_len - query_len + i;
}

/* The KV head that serves query head h. */
static inline int64_t simple_kv_head(const simple_layer_t *l, int64_t h) {
    return h / (l->num_heads / l->num_kv_heads);
}

static inline double simple_score(const simple_layer_t *l, double dot) {
    double s = l->scale * dot;
    return l->soft_cap > 0 ? l->soft_cap * tanh(s / l->soft_cap) : s;
}

/* The log-sum-exp of a row from its running maximum and sum; natural logarithm. A sum of 0 is that of no
 * key; one that is no number, because a score is none, stays so. */
static inline double simple_lse(double max, double sum) {
    return sum == 0 ? -INFINITY : max + log(sum);
}

/* The softmax state before the first key. The sink is a score without a value. */
static inline void simple_start(double sink, int has_sink, double *max, double *sum) {
    *max = has_sink ? sink : -INFINITY;
    *sum = has_sink ? 1 : 0;
}

static inline char *simple_cache_row(const simple_cache_t *c, int64_t block, int64_t head, int64_t token) {
    return c->base + block * c->block_stride + head * c->head_stride + token * c->token_stride;
}

/* Tokens of a padded batch have a negative slot and are not written. */
static inline int simple_is_padding(int64_t slot) {
    return slot < 0;
}

static inline double simple_scale_of(const float *scales, int64_t count, int64_t head) {
    return scales == NULL ? 1 : scales[count > 1 ? head : 0];
}

/* bfloat16 is the upper half of a float32, rounded to nearest even. */
static inline uint16_t simple_to_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if (isnan(x)) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* e4m3: 4 bits of exponent with bias 7, 3 of mantissa, no infinity, largest 448; larger values saturate. */
static inline uint8_t simple_to_e4m3(double x) {
    uint8_t sign = signbit(x) ? 0x80 : 0;
    double a = fabs(x);
    if (isnan(a)) return sign | 0x7f;
    if (a >= 448) return sign | 0x7e;
    int e = a < 0x1p-6 ? -6 : ilogb(a);
    int n = (int)nearbyint(ldexp(a, 3 - e)); /* in units of the last place: 8..16 if normal */
    if (n == 16) {
        n = 8;
        e++;
    }
    return (uint8_t)(sign | (n < 8 ? n : (e + 7) << 3 | (n - 8)));
}

static inline double simple_from_e4m3(uint8_t v) {
    int e = v >> 3 & 15, n = v & 7;
    double a = (v & 0x7f) == 0x7f ? (double)NAN : e == 0 ? ldexp(n, -9) : ldexp(8 + n, e - 10);
    return v & 0x80 ? -a : a;
}

/* Number i of a row. Rows may be unaligned. */
static inline double simple_load(const char *row, int storage, int64_t i) {
    if (storage == SIMPLE_E4M3) return simple_from_e4m3((uint8_t)row[i]);
    uint32_t u = 0;
    float x;
    if (storage == SIMPLE_F32) {
        memcpy(&u, row + 4 * i, 4);
    } else {
        uint16_t half;
        memcpy(&half, row + 2 * i, 2);
        u = (uint32_t)half << 16;
    }
    memcpy(&x, &u, 4);
    return x;
}

static inline void simple_store(char *row, int storage, int64_t i, double value) {
    float x = (float)value;
    uint16_t half = simple_to_bf16(x);
    if (storage == SIMPLE_F32)
        memcpy(row + 4 * i, &x, 4);
    else if (storage == SIMPLE_BF16)
        memcpy(row + 2 * i, &half, 2);
    else
        row[i] = (char)simple_to_e4m3(value);
}

#endif
