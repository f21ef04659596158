/* SPDX-License-Identifier: Apache-2.0 */
/* reference_brute.c: see reference_brute.h. Sections are those of doc/semantics.md. */
#include "reference_brute.h"

#include "../nvfp4_row.h"
#include "../turbo_row.h"

#include <attn/attn_plugin_util.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double fp8_value(int code, int is_e5m2) {
    int man_bits = is_e5m2 ? 2 : 3, bias = is_e5m2 ? 15 : 7;
    int e = (code & 0x7f) >> man_bits, man = code & ((1 << man_bits) - 1);
    double x = e == 0 ? ldexp(man, 1 - bias - man_bits) : ldexp(man + (1 << man_bits), e - bias - man_bits);
    return code & 0x80 ? -x : x;
}

double brute_nearest_fp8(double x, int is_e5m2) {
    int best = 0;
    for (int code = 0; code <= (is_e5m2 ? 0x7b : 0x7e); code++) {
        double now = fabs(fp8_value(code, is_e5m2) - fabs(x)),
               least = fabs(fp8_value(best, is_e5m2) - fabs(x));
        if (now < least || (now == least && code % 2 == 0)) best = code;
    }
    return x < 0 ? -fp8_value(best, is_e5m2) : fp8_value(best, is_e5m2);
}

/* What a value of K or V has become after it went through the cache (3.2, 3.4). */
static void through_cache(const kit_case_t *c, const float *x, int n, float static_scale, int is_value,
                          const float *channels, double *out) {
    uint32_t kv = c->problem.kv_cache_dtype;
    float most = 0;
    if (kv == ATTN_KV_INT4_PER_TOKEN_HEAD) {
        unsigned char row[1024 / 2 + 4];
        int4_row_encode(c->problem.dtype, x, n, row);
        int4_row_decode(row, n, out);
        return;
    }
    if (attn_kv_is_turboquant(kv)) {
        unsigned char row[1024 + 4];
        const uint32_t bits = is_value ? attn_kv_format(kv)->v_bits : attn_kv_format(kv)->k_bits;
        for (int i = 0; i < n && bits == 8; i++)
            out[i] = brute_nearest_fp8((double)x[i], 0);
        if (bits == 8) return;
        turbo_row_encode((int)bits, is_value, x, n, row);
        turbo_row_decode((int)bits, is_value, row, n, out);
        return;
    }
    if (kv == ATTN_KV_INT8_K_ONLY && is_value) {
        for (int i = 0; i < n; i++)
            out[i] = x[i];
        return;
    }
    if (kv == ATTN_KV_NVFP4) {
        unsigned char codes[512], scales[64];
        nvfp4_row_encode(x, n, static_scale, codes, scales);
        nvfp4_row_decode(codes, scales, n, (double)static_scale, out);
        return;
    }
    for (int i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    for (int i = 0; i < n; i++) {
        float scale = static_scale;
        switch (kv) {
        case ATTN_KV_FLOAT16: { /* 11 significant bits, smallest exponent -24 */
            int e;
            frexp(x[i], &e);
            double unit = ldexp(1, e - 11 > -24 ? e - 11 : -24);
            out[i] = nearbyint(x[i] / unit) * unit;
            break;
        }
        case ATTN_KV_BFLOAT16: {
            int e;
            frexp(x[i], &e);
            double unit = ldexp(1, e - 8 > -133 ? e - 8 : -133);
            out[i] = nearbyint(x[i] / unit) * unit;
            break;
        }
        case ATTN_KV_FP8_E4M3:
        case ATTN_KV_FP8_E5M2:
            out[i] = brute_nearest_fp8(x[i] / scale, kv == ATTN_KV_FP8_E5M2) * scale;
            break;
        case ATTN_KV_INT8_STATIC_V:
        case ATTN_KV_INT8_K_ONLY:
        case ATTN_KV_INT8_PER_TOKEN_HEAD: {
            scale = fmaxf(most / 127.0f, 1e-6f);
            if (channels != NULL) scale = channels[i];
            float q = x[i] / scale, whole = floorf(fabsf(q));
            if (fabsf(q) - whole >= 0.5f) whole += 1;
            out[i] = copysign(fmin(whole, q < 0 ? 128 : 127), q) * scale;
            break;
        }
        case ATTN_KV_FP8_PER_TOKEN_HEAD:
            scale = fmaxf(most / 448.0f, 1e-6f);
            out[i] = brute_nearest_fp8(x[i] / scale, 0) * scale;
            break;
        default:
            out[i] = x[i];
            break;
        }
    }
}

/* 3.8: the query as int8 codes by token and head. */
static void round_query(uint32_t kv, const float *x, int n, double *out) {
    float most = 0;
    for (int i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    const float scale = fmaxf(most / 127.0f, 1e-6f);
    for (int i = 0; i < n; i++) {
        const float q = x[i] / scale;
        const double code = copysign(floor((double)fabsf(q) + 0.5), (double)q);
        out[i] =
            kv == ATTN_KV_INT8_STATIC_V || kv == ATTN_KV_INT8_K_ONLY ? code * (double)scale : (double)x[i];
    }
}

static void paint(unsigned char *row, int64_t from, int64_t to, int64_t seq, unsigned char value) {
    for (int64_t k = from < 0 ? 0 : from; k <= to && k < seq; k++)
        row[k] = value;
}

/* 2.2 to 2.8: everything visible, then ranges taken away, then spans put back. */
static void paint_row(const kit_case_t *c, int r, int64_t q, unsigned char *row) {
    const attn_problem_t *p = &c->problem;
    int64_t seq = c->seq_lens[r], w = p->sliding_window, after = seq;
    int causal = p->mask == ATTN_MASK_CAUSAL || (p->mask == ATTN_MASK_PER_REQUEST && c->causal[r]);
    paint(row, 0, after, seq, 1);
    if (causal) paint(row, q + 1, after, seq, 0);
    if (p->chunk_size != 0) {
        paint(row, 0, q - q % p->chunk_size - 1, seq, 0);
        paint(row, q + 1, after, seq, 0);
    }
    if ((p->features & ATTN_F_CHUNK_LOOKBACK) != 0 && w != 0) {
        int64_t size = w / (p->chunk_lookback + 1);
        paint(row, 0, (q / size - p->chunk_lookback) * size - 1, seq, 0);
        paint(row, q + 1, after, seq, 0);
    } else if (w != 0) {
        paint(row, 0, q - w, seq, 0);
        paint(row, q + w, after, seq, 0);
    }
    if (p->rswa_window != 0) {
        paint(row, c->rswa_prefix_lens[r], q - (int64_t)p->rswa_window, seq, 0);
        paint(row, q + 1, after, seq, 0);
    }
    for (int i = 0; i < c->num_spans; i++) {
        int64_t start = c->spans[r][i][0], end = c->spans[r][i][1], from = start;
        if (start >= end || q < start || q > end) continue;
        if ((p->features & ATTN_F_MM_PREFIX_CLAMP) != 0 && w != 0 && q - w + 1 > from) from = q - w + 1;
        paint(row, from, end, seq, 1);
    }
}

/* 2.9, 2.10: one row of scores, the sink in front of them. */
static void softmax_row(double *s, int64_t n, double *lse) {
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, s[i]);
    for (int64_t i = 0; i < n && most > -INFINITY; i++)
        sum += exp(s[i] - most);
    *lse = most > -INFINITY ? most + log(sum) : -INFINITY;
    for (int64_t i = 0; i < n; i++)
        s[i] = most > -INFINITY ? exp(s[i] - *lse) : 0;
}

void brute_attention(const kit_case_t *c, const kit_inputs_t *in, double *out, double *lse) {
    const attn_problem_t *p = &c->problem;
    int heads = (int)p->num_heads, kv_heads = (int)(p->num_kv_heads != 0 ? p->num_kv_heads : p->num_heads);
    int d = (int)p->head_size, dv = (int)(p->head_size_v != 0 ? p->head_size_v : p->head_size);
    int64_t token = 0;
    for (int r = 0; r < c->num_reqs; r++) {
        int64_t seq = c->seq_lens[r], context = seq - c->query_lens[r];
        double *k = malloc((size_t)(seq * d + 1) * sizeof *k),
               *v = malloc((size_t)(seq * dv + 1) * sizeof *v);
        double *s = malloc((size_t)(seq + 1) * sizeof *s);
        unsigned char *row = malloc((size_t)seq + 1);
        for (int h = 0; h < heads; h++) {
            int g = h / (heads / kv_heads), at = in->num_scales > 1 ? g : 0;
            int no_scale = (c->flags & KIT_NO_SCALES) != 0;
            for (int64_t i = 0; i < seq && h % (heads / kv_heads) == 0; i++) { /* once per KV head */
                int64_t from = (in->key_start[r] + i) * kv_heads + g;
                through_cache(c, in->key + from * d, d, no_scale ? 1.0f : in->k_scale[at], 0, NULL,
                              k + i * d);
                through_cache(c, in->value + from * dv, dv, no_scale ? 1.0f : in->v_scale[at], 1,
                              in->channel_scale != NULL ? in->channel_scale + g * dv : NULL, v + i * dv);
            }
            for (int64_t i = 0; i < c->query_lens[r]; i++) {
                int64_t q = context + i;
                const float *x = in->query + ((token + i) * heads + h) * d;
                double rounded[1024];
                round_query(p->kv_cache_dtype, x, d, rounded);
                paint_row(c, r, q, row);
                s[0] = (p->features & ATTN_F_SINK) != 0 ? in->sinks[h] : -INFINITY;
                for (int64_t n = 0; n < seq; n++) {
                    double y = 0;
                    for (int e = 0; e < d; e++)
                        y += rounded[e] * k[n * d + e];
                    y *= p->scale;
                    if (p->query_dtype == ATTN_DTYPE_FP8_E4M3 && p->dtype != ATTN_DTYPE_FP8_E4M3)
                        y *= in->q_scale[at];
                    if (p->logits_soft_cap != 0) y = p->logits_soft_cap * tanh(y / p->logits_soft_cap);
                    if ((p->features & ATTN_F_ALIBI) != 0) y += in->alibi_slopes[h] * (double)(n - q);
                    if ((p->features & ATTN_F_ALIBI_SQRT) != 0 && n < q)
                        y -= in->alibi_slopes[h] * sqrt((double)(q - n));
                    if ((p->features & ATTN_F_REL_BIAS) != 0) {
                        const int64_t most = in->rel_max;
                        int64_t far = n - q;
                        while (far > most)
                            far--;
                        while (far < -most)
                            far++;
                        y += in->rel_bias[h * (most + 1 + most) + most + far];
                    }
                    if ((p->features & ATTN_F_QQ_BIAS) != 0 && n >= context && n - context < in->bias_width)
                        y += in->qq_bias[(token + i) * in->bias_width + (n - context)];
                    s[n + 1] = row[n] ? y : -INFINITY;
                }
                softmax_row(s, seq + 1, &lse[h * in->num_tokens + token + i]);
                double *o = out + ((token + i) * heads + h) * dv;
                for (int e = 0; e < dv; e++) {
                    o[e] = 0;
                    for (int64_t n = 0; n < seq; n++)
                        o[e] += s[n + 1] * v[n * dv + e];
                }
            }
        }
        token += c->query_lens[r];
        free(k);
        free(v);
        free(s);
        free(row);
    }
}
