/* SPDX-License-Identifier: Apache-2.0 */
/* One random attention call for the kernels of plugins/cpu: its data in a poisoned cache, and the answer in
 * double. */
#ifndef TESTS_CPU_CASE_H
#define TESTS_CPU_CASE_H

#include "cpu_plan.h"
#include "../../tap.h"
#include "../nvfp4_row.h"
#include "../turbo_row.h"

#include <string.h>

#define CASE_MAX_SEQS 6

struct cpu_case {
    struct cpu_attn a;
    struct cpu_limits lim;
    struct cpu_seq seqs[CASE_MAX_SEQS];
    int num_seqs, tokens, num_blocks;
    int packed, hnd, contiguous;
    int no_extras;   /* without AVX512_VNNI, VBMI and AMX, which this CPU may have beyond its level */
    double *kd, *vd; /* dequantised [seq][token][head][D] */
    int64_t kv_at[CASE_MAX_SEQS];
    char *q, *cache_k, *cache_v, *cache_groups, *out;
    size_t out_bytes;
    float *lse;
    double *qd;
    int32_t *table, spans[CASE_MAX_SEQS][4];
    float k_scale[64], v_scale[64], sinks[512], alibi[512], channels[4 * 256];
    float *bias, *rel;
    double spread; /* of the query: scores grow with it, and their rounding */
    char text[512];
};

static inline float case_round(enum cpu_dtype t, float x, unsigned char *bytes);

/* f16 and the fp8 types by their definition: exponent, then nearest-even on the mantissa, in double. */
static inline double case_small_float(double x, int exp_bits, int man_bits, double largest, unsigned *bits) {
    const int bias = (1 << (exp_bits - 1)) - 1;
    const unsigned sign = signbit(x) ? 1u << (exp_bits + man_bits) : 0;
    double ax = fabs(x);
    int e;
    if (ax > largest) ax = largest;
    if (ax == 0) {
        *bits = sign;
        return signbit(x) ? -0.0 : 0.0;
    }
    frexp(ax, &e);
    e -= 1;
    if (e < 1 - bias) e = 1 - bias;
    const double unit = ldexp(1.0, e - man_bits), r = nearbyint(ax / unit);
    const double v = fmin(r * unit, largest);
    const unsigned m = (unsigned)nearbyint(v / unit);
    *bits = sign | (m < 1u << man_bits ? m : (unsigned)((e + bias) << man_bits) + (m - (1u << man_bits)));
    return signbit(x) ? -v : v;
}

/* The value that storage type t holds for x, and its bytes. */
static inline float case_round(enum cpu_dtype t, float x, unsigned char *bytes) {
    unsigned bits = 0;
    float r = x;
    uint32_t u;
    switch (t) {
    case CPU_F32:
        memcpy(bytes, &x, 4);
        return x;
    case CPU_BF16:
        memcpy(&u, &x, 4);
        u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
        memcpy(&r, &u, 4);
        bits = u >> 16;
        memcpy(bytes, &bits, 2);
        return r;
    case CPU_F16:
        r = (float)case_small_float(x, 5, 10, 65504, &bits);
        memcpy(bytes, &bits, 2);
        return r;
    case CPU_E4M3:
        r = (float)case_small_float(x, 4, 3, 448, &bits);
        break;
    case CPU_E5M2:
        r = (float)case_small_float(x, 5, 2, 57344, &bits);
        break;
    default:
        r = roundf(fminf(127, fmaxf(-128, x)));
        bits = (unsigned)(int)r & 0xff;
        break;
    }
    bytes[0] = (unsigned char)bits;
    return r;
}

static inline double case_read(enum cpu_dtype t, const char *p) {
    uint16_t h;
    uint32_t u;
    float f;
    if (t == CPU_F32) {
        memcpy(&f, p, 4);
        return f;
    }
    memcpy(&h, p, 2);
    if (t == CPU_BF16) {
        u = (uint32_t)h << 16;
        memcpy(&f, &u, 4);
        return f;
    }
    const int e = h >> 10 & 31, m = h & 1023;
    const double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h >> 15 ? -v : v;
}

/* Visible? Word by word from semantics 2.2 to 2.8, nothing shared with the kernels' intervals. */
static inline int case_allowed(const struct cpu_seq *s, int64_t q, int64_t k) {
    const struct cpu_mask *m = &s->mask;
    int ok_ = (!m->causal || k <= q);
    if (m->chunk > 0) ok_ = ok_ && k <= q && q / m->chunk - k / m->chunk <= m->lookback;
    const int window =
        (m->window_left < 0 || q - k <= m->window_left) && (m->window_right < 0 || k - q <= m->window_right);
    ok_ = ok_ && (window || k < m->prefix);
    for (int i = 0; i < m->num_spans; i++) {
        const int32_t a = m->spans[2 * i], b = m->spans[2 * i + 1];
        if (a < b && q >= a && q <= b && k >= a && k <= b && !(m->span_window > 0 && q - k >= m->span_window))
            ok_ = 1;
    }
    return ok_ && k < s->kv_len;
}

/* One output row in double: out[Dv], returns the LSE. */
static inline double case_reference(const struct cpu_case *c, int seq, int tok, int hq, double *out,
                                    double *score) {
    const struct cpu_attn *a = &c->a;
    const struct cpu_seq *s = &c->seqs[seq];
    const int D = a->head_size, Dv = a->head_size_v, H = a->num_kv_heads, h = hq / (a->num_q_heads / H);
    const int64_t q = (int64_t)s->q_offset + tok;
    const double *qr = c->qd + ((s->q_start + tok) * a->num_q_heads + hq) * D;
    double top = a->sinks ? a->sinks[hq] : -INFINITY, l = 0;
    for (int64_t k = 0; k < s->kv_len; k++) {
        const double *kr = c->kd + (c->kv_at[seq] + k) * H * D + h * D;
        double x = 0;
        score[k] = -INFINITY;
        if (!case_allowed(s, q, k)) continue;
        for (int d = 0; d < D; d++)
            x += qr[d] * kr[d];
        x *= a->scale;
        if (a->soft_cap > 0) x = a->soft_cap * tanh(x / a->soft_cap);
        if (a->alibi)
            x += a->alibi_sqrt ? (k <= q ? -a->alibi[hq] * sqrt((double)(q - k)) : 0)
                               : a->alibi[hq] * (double)(k - q);
        if (a->rel_bias) {
            const int64_t m = a->rel_max, d = k - q < -m ? -m : k - q > m ? m : k - q;
            x += a->rel_bias[hq * a->rel_stride + d];
        }
        if (a->qq_bias && k >= s->q_offset && k - s->q_offset < a->qq_width)
            x += a->qq_bias[(s->q_start + tok) * a->qq_stride + (k - s->q_offset)];
        score[k] = x;
        if (x > top) top = x;
    }
    for (int d = 0; d < Dv; d++)
        out[d] = 0;
    if (top == -INFINITY) return -INFINITY;
    if (a->sinks) l = exp(a->sinks[hq] - top);
    for (int64_t k = 0; k < s->kv_len; k++) {
        if (score[k] == -INFINITY) continue;
        const double p = exp(score[k] - top), *vr = c->vd + (c->kv_at[seq] + k) * H * Dv + h * Dv;
        l += p;
        for (int d = 0; d < Dv; d++)
            out[d] += p * vr[d];
    }
    for (int d = 0; d < Dv; d++)
        out[d] /= l;
    return top + log(l);
}

/* A row of int4 and what it means, of the size of a normal one: random codes, zero point and scale. */
static inline void case_int4_row(uint64_t *rng, char *dst, int n, double *val) {
    float scale = (float)((0.15 + 0.1 * tap_rand_unit(rng)) * sqrt(n));
    uint32_t bits;
    memcpy(&bits, &scale, 4);
    bits = (bits & ~15u) | (uint32_t)tap_rand_in(rng, 5, 10);
    memcpy(dst + n / 2, &bits, 4);
    for (int i = 0; i < n / 2; i++)
        dst[i] = (char)tap_rand_in(rng, 0, 255);
    int4_row_decode((const unsigned char *)dst, n, val);
}

/* A row of nvfp4, every code, and scales about 1 / 2 to 1; one of them 0. */
static inline void case_nvfp4_row(uint64_t *rng, char *dst, char *groups, int n, double *val) {
    for (int i = 0; i < n / 2; i++)
        dst[i] = (char)tap_rand_in(rng, 0, 255);
    for (int g = 0; g < n / 16; g++)
        groups[g] = (char)(tap_rand_in(rng, 0, 30) == 0 ? 0 : tap_rand_in(rng, 0x20, 0x2b));
    nvfp4_row_decode((const unsigned char *)dst, (const unsigned char *)groups, n, 1, val);
}

/* A packed row of random codes, normal in size, or of normal values. */
static inline void case_packed_row(uint64_t *rng, enum cpu_dtype t, char *dst, int n, double *val) {
    float x[1024];
    for (int i = 0; i < n; i++)
        x[i] = (float)tap_rand_normal(rng);
    if (t == CPU_E4M3) {
        for (int i = 0; i < n; i++)
            val[i] = (double)case_round(t, x[i], (unsigned char *)dst + i);
        return;
    }
    const int bits = t == CPU_C4 || t == CPU_V4 ? 4 : 3, is_value = t == CPU_V4 || t == CPU_V3;
    turbo_row_encode(bits, is_value, x, n, (unsigned char *)dst);
    for (int i = 0; i < n * bits / 8; i++) /* every code */
        dst[i] = (char)tap_rand_in(rng, 0, 255);
    turbo_row_decode(bits, is_value, (const unsigned char *)dst, n, val);
}

/* Allocates the call's data: values, poison everywhere else. `spread` scales Q: large ones make one-hot
 * rows. */
static inline void case_fill(struct cpu_case *c, uint64_t *rng, double spread, int ties) {
    struct cpu_attn *a = &c->a;
    const int H = a->num_kv_heads, D = a->head_size, Dv = a->head_size_v, es = cpu_dtype_size(a->kv_dtype);
    c->spread = spread;
    const int per_token = (a->kv_dtype == CPU_I8 && !a->rounds_query) || a->kv_dtype == CPU_I4 ||
                          (a->kv_dtype == CPU_E4M3 && a->k_row_scale.block == -1);
    const int inl = per_token ? 4 : 0, packed = a->kv_dtype == CPU_PACKED;
    const int nvfp4 = cpu_has_groups(a), mixed = packed && a->k_row == CPU_I8; /* int8 K, V as it is */
    const int kb = packed ? cpu_row_bytes(a->k_row, D) + (nvfp4 || mixed || a->k_row == CPU_E4M3 ? 0 : 2)
                          : cpu_row_bytes(a->kv_dtype, D) + inl;
    const int vb = packed ? cpu_row_bytes(a->v_row, Dv) + (nvfp4 || mixed ? 0 : 4)
                          : cpu_row_bytes(a->kv_dtype, Dv) + inl;
    const int qs = cpu_dtype_size(a->q_dtype), os = cpu_dtype_size(a->out_dtype);
    int64_t keys = 0, blocks = 0, row = 0;
    for (int i = 0; i < c->num_seqs; i++) {
        const int64_t nb = (c->seqs[i].kv_len + a->block_size - 1) / a->block_size;
        c->kv_at[i] = keys;
        keys += c->seqs[i].kv_len;
        blocks += nb;
        row = nb > row ? nb : row;
    }
    row += 1;
    c->kd = calloc((size_t)(keys * H * D + 1), 8);
    c->vd = calloc((size_t)(keys * H * Dv + 1), 8);
    c->qd = calloc((size_t)(c->tokens * a->num_q_heads * D + 1), 8);
    c->q = malloc((size_t)(c->tokens * a->num_q_heads * D * qs + 64));
    /* Query: [token][head][D] with a gap between tokens. */
    a->q = c->q;
    a->q_head = (int64_t)D * qs;
    a->q_token = a->q_head * a->num_q_heads;
    for (int64_t i = 0; i < (int64_t)c->tokens * a->num_q_heads * D; i++)
        c->qd[i] = (double)case_round(a->q_dtype, (float)(tap_rand_normal(rng) * spread),
                                      (unsigned char *)c->q + i * qs);
    for (int64_t r = 0; a->rounds_query && r < (int64_t)c->tokens * a->num_q_heads; r++) {
        double *q = c->qd + r * D, most = 0;
        for (int d = 0; d < D; d++)
            most = fmax(most, fabs(q[d]));
        const float scale = fmaxf((float)most / 127.0f, 1e-6f);
        for (int d = 0; d < D; d++)
            q[d] = (double)(roundf((float)q[d] / scale) * 1.0f) * (double)scale;
    }
    /* Cache rows: packed [K V] or two tensors; NHD or HND; or contiguous. */
    const int64_t kr = c->packed ? kb + vb : kb, vr = c->packed ? kb + vb : vb,
                  nb = c->contiguous ? keys : blocks + 2;
    const int64_t bs = c->contiguous ? 1 : a->block_size;
    c->cache_k = malloc((size_t)(nb * bs * H * kr + 64));
    c->cache_v = c->packed ? c->cache_k : malloc((size_t)(nb * bs * H * vr + 64));
    memset(c->cache_k, 0xff, (size_t)(nb * bs * H * kr));
    if (!c->packed) memset(c->cache_v, 0xff, (size_t)(nb * bs * H * vr));
    a->k = (struct cpu_rows){c->cache_k, bs * H * kr, c->hnd ? bs * kr : kr, c->hnd ? kr : H * kr};
    a->v = (struct cpu_rows){c->cache_v + (c->packed ? kb : 0), bs * H * vr, c->hnd ? bs * vr : vr,
                             c->hnd ? vr : H * vr};
    a->k_row_scale = a->v_row_scale = (struct cpu_rows){0};
    if (per_token) {
        a->k_row_scale = a->k;
        a->k_row_scale.base += kb - 4;
        a->v_row_scale = a->v;
        a->v_row_scale.base += vb - 4;
    }
    const int gk = a->rounds_query ? 4 : D / 16, gv = Dv / 16;
    c->cache_groups = malloc((size_t)(nb * bs * H * (gk + gv) + 64));
    memset(c->cache_groups, 0x7f, (size_t)(nb * bs * H * (gk + gv)));
    a->k_apart = a->v_apart = (struct cpu_rows){0};
    if (nvfp4 || a->rounds_query)
        a->k_apart =
            (struct cpu_rows){c->cache_groups, bs * H * gk, c->hnd ? bs * gk : gk, c->hnd ? gk : H * gk};
    for (int i = 0; i < 4 * 256; i++)
        c->channels[i] = (float)(0.01 + 0.02 * tap_rand_unit(rng)) * (i % 7 == 3 ? 3 : 1);
    if (a->rounds_query && !mixed) a->v_channel = c->channels;
    if (nvfp4) {
        a->v_apart = (struct cpu_rows){c->cache_groups + nb * bs * H * gk, bs * H * gv, c->hnd ? bs * gv : gv,
                                       c->hnd ? gv : H * gv};
    }
    c->table = malloc((size_t)(row * c->num_seqs + 1) * 4);
    a->block_table = c->contiguous ? NULL : c->table;
    a->block_table_row = row;
    /* A random permutation of the blocks; entries that no token needs point outside the cache. */
    int32_t *perm = malloc((size_t)(blocks + 3) * 4);
    for (int64_t i = 0; i < blocks + 2; i++)
        perm[i] = (int32_t)i;
    for (int64_t i = blocks + 1; i > 0; i--) {
        const int64_t j = tap_rand_in(rng, 0, i);
        const int32_t x = perm[i];
        perm[i] = perm[j];
        perm[j] = x;
    }
    int64_t used = 0;
    for (int i = 0; i < c->num_seqs; i++) {
        struct cpu_seq *s = &c->seqs[i];
        s->table_row = i;
        s->k_start = c->kv_at[i];
        for (int64_t b = 0; b < row; b++)
            c->table[i * row + b] = b * a->block_size < s->kv_len ? perm[used++] : 0x7ffffff0;
        for (int64_t k = 0; k < s->kv_len; k++)
            for (int h = 0; h < H; h++)
                for (int side = 0; side < 2; side++) {
                    const struct cpu_rows *r = side ? &a->v : &a->k;
                    const int n = side ? Dv : D;
                    char *dst = c->contiguous ? (char *)r->base + (s->k_start + k) * r->token
                                              : (char *)r->base + c->table[i * row + k / bs] * r->block +
                                                    k % bs * r->token;
                    double *val = (side ? c->vd : c->kd) + ((c->kv_at[i] + k) * H + h) * n;
                    const uint64_t same = 77 + (uint64_t)side;
                    uint64_t tie = same;
                    float scale = 1;
                    dst += h * r->head;
                    if (a->kv_dtype == CPU_I4) {
                        case_int4_row(ties && !side ? &tie : rng, dst, n, val);
                        continue;
                    }
                    if (a->rounds_query) {
                        const enum cpu_dtype type = !side ? CPU_I8 : mixed ? a->v_row : CPU_I8;
                        const float own = (float)(0.01 + 0.02 * tap_rand_unit(ties ? &tie : rng));
                        const int64_t key = c->contiguous ? (s->k_start + k) * a->k_apart.token
                                                          : c->table[i * row + k / bs] * a->k_apart.block +
                                                                k % bs * a->k_apart.token;
                        if (!side) memcpy((char *)a->k_apart.base + key + h * a->k_apart.head, &own, 4);
                        for (int d = 0; d < n; d++) {
                            const float x = (float)tap_rand_normal(ties && !side ? &tie : rng),
                                        by = !side   ? own
                                             : mixed ? 1.0f
                                                     : c->channels[h * Dv + d];
                            val[d] = (double)case_round(type, x / by,
                                                        (unsigned char *)dst + d * cpu_dtype_size(type)) *
                                     (double)by;
                        }
                        continue;
                    }
                    if (nvfp4) {
                        const struct cpu_rows *g = side ? &a->v_apart : &a->k_apart;
                        char *groups =
                            (char *)g->base + h * g->head +
                            (c->contiguous ? (s->k_start + k) * g->token
                                           : c->table[i * row + k / bs] * g->block + k % bs * g->token);
                        case_nvfp4_row(ties && !side ? &tie : rng, dst, groups, n, val);
                        continue;
                    }
                    if (packed) {
                        case_packed_row(ties && !side ? &tie : rng, side ? a->v_row : a->k_row, dst, n, val);
                        continue;
                    }
                    const float *st = side ? a->v_scale : a->k_scale;
                    if (st) scale = st[a->scale_per_head ? h : 0];
                    if (per_token) {
                        scale =
                            (float)(0.01 + 0.02 * tap_rand_unit(rng)) * (a->kv_dtype == CPU_E4M3 ? 30 : 1);
                        memcpy(dst + n * es, &scale, 4);
                    }
                    for (int d = 0; d < n; d++) {
                        float x = (float)tap_rand_normal(ties && !side ? &tie : rng);
                        val[d] =
                            (double)case_round(a->kv_dtype, x / scale, (unsigned char *)dst + d * es) * scale;
                    }
                }
    }
    free(perm);
    a->out_head = (int64_t)Dv * os + 16; /* canaries between the heads */
    a->out_token = a->out_head * a->num_q_heads;
    c->out_bytes = (size_t)(a->out_token * c->tokens + 16);
    c->out = malloc(c->out_bytes);
    a->out = c->out + 16;
    c->lse = malloc((size_t)(c->tokens * a->num_q_heads + 1) * 4);
    a->lse = c->lse;
    a->lse_token = 1;
    a->lse_head = c->tokens;
}

static inline void case_free(struct cpu_case *c) {
    free(c->kd);
    free(c->vd);
    free(c->qd);
    free(c->q);
    if (!c->packed) free(c->cache_v);
    free(c->cache_k);
    free(c->cache_groups);
    free(c->table);
    free(c->out);
    free(c->lse);
    free(c->bias);
    free(c->rel);
}

/* Runs the case at one level; scratch and metadata are poisoned first. Returns the plan's number of items. */
static inline int case_run(struct cpu_case *c, const struct cpu_kernels *k, int threads, int invariant) {
    struct cpu_tiling t;
    int64_t spans = 2 * CASE_MAX_SEQS;
    c->lim = (struct cpu_limits){CASE_MAX_SEQS, c->tokens + 1, threads, invariant};
    k->tiling(&c->a, 1 << 20, &t);
    t.far = !c->no_extras; /* 1 MiB would leave it out */
    if (c->no_extras) t.vnni = t.vbmi = t.amx = 0;
    const size_t mb = cpu_plan_bytes(&c->a, &t, &c->lim, spans), wb = cpu_plan_workspace(&c->a, &t, &c->lim);
    void *meta = aligned_alloc(64, (mb + 63) & ~(size_t)63),
         *work = aligned_alloc(64, (wb + 63) & ~(size_t)63);
    memset(meta, 0xff, mb);
    memset(work, 0xff, wb);
    memset(c->out, 0xaa, c->out_bytes);
    struct cpu_plan *p = cpu_plan_init(meta, &c->a, &t, &c->lim, spans);
    p->num_seqs = c->num_seqs;
    memcpy(p->seqs, c->seqs, sizeof *p->seqs * (size_t)c->num_seqs);
    cpu_plan_build(p, k, &c->a, &t, &c->lim);
    const int items =
        p->num_items <= p->item_capacity && p->num_merges <= p->merge_capacity ? p->num_items : -1;
    cpu_plan_run(p, k, &c->a, &t, &c->lim, work, 0);
    free(meta);
    free(work);
    return items;
}

#endif
