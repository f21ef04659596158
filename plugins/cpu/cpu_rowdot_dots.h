/* SPDX-License-Identifier: Apache-2.0 */
/* Row dots of bf16 and e4m3 caches by products of bf16 pairs, for bf16 queries and outputs, where such a
 * product is worth two FMA (cpu_tiling.dots): included by cpu_level.c, levels with bf16 dots.
 *
 * K needs no conversion and q is bf16 already. V comes in pairs of tokens, whose interleaving is one shuffle
 * a vector, and P is rounded to bf16. All of a row's P may be rounded the same way, so what they add up to as
 * bf16 is counted beside their exact sum: O is divided by the former, while the LSE has the latter. e4m3
 * becomes bf16 divided by 2^E4M3_SCALE (cpu_simd_e4m3.h); q and P carry powers of two that bring the products
 * back into range, as in cpu_rowdot_tiles.h. */

#if CPU_BF16_DOT
enum { RD_DOTS_P_SCALE = 90, RD_DOTS_Q_TOP = 100 }; /* e4m3: exponents of P, of the largest query element */

SI int rd_dots_serve(const struct cpu_attn *a, int vbmi) {
    /* int8_k_only: K by rd_words_qk() */
    if (a->kv_dtype == CPU_PACKED && a->k_row == CPU_I8 && a->rounds_query)
        return a->v_row == CPU_BF16 && a->out_dtype == CPU_BF16 && a->head_size <= RD_WORDS_MAX_SIZE &&
               a->head_size_v % CHUNK == 0;
    return cpu_bf16_serves(a) &&
           (a->kv_dtype == CPU_BF16 || (CPU_X86 >= 3 && vbmi && a->kv_dtype == CPU_E4M3));
}

/* A query row (floats that are bf16) as bf16 in the order of the products; returns its factor for the
 * scores. */
#if CPU_X86 >= 3
static float rd_e4m3_query(const float *q, int n, int16_t *out) {
    vf most = v_zero();
    for (int d = 0; d < n; d += VW)
        most = v_max(v_max(v_load(q + d), v_sub(v_zero(), v_load(q + d))), most);
    const float top = v_hmax(most);
    int up = top == 0 ? 120 : top < INFINITY ? RD_DOTS_Q_TOP - ilogbf(top) : 0;
    if (up > 120) up = 120;
    const vf by = v_set1(ldexpf(1, up));
    for (int d = 0; d < n; d += 64) {
        int16_t natural[64];
        UNROLL for (int i = 0; i < 64; i += 32) _mm512_storeu_si512(
            natural + i, v_words_bf16(v_mul(v_load(q + d + i), by), v_mul(v_load(q + d + i + VW), by)));
        for (int i = 0; i < 64; i++)
            out[d + i] = natural[i % 32 / 8 * 16 + i / 32 * 8 + i % 8];
    }
    return ldexpf(1, RD_DOTS_P_SCALE - up);
}
#endif
static float rd_dots_query(const struct cpu_attn *a, const float *q, int n, int16_t *out) {
#if CPU_X86 >= 3
    if (a->kv_dtype == CPU_E4M3) return rd_e4m3_query(q, n, out);
#endif
    (void)a;
    row_from_f32(CPU_BF16, q, n, (char *)out);
    return 1.0f;
}

SI vf rd_bf16_at(const void *p) {
    return v_load((const float *)p);
}
/* A chunk of bf16; the first n < CHUNK of one, zeros behind them. */
SI vi rd_chunk(const char *p, const int is_part, int n) {
    return is_part ? v_raw_tail(p, 2 * n) : vi_load((const int32_t *)(const void *)p);
}

/* Scores of `rows` (1, 2 or 4) query rows against n tokens. */
SI void rd_dots_qk_(const struct rd_tile *x, const int16_t *q, int ldq, int D, float *s, const int rows) {
    const int group = VW / rows;
    for (int t = 0; t < x->n; t += group) {
        vf acc[VW];
        UNROLL for (int i = 0; i < VW; i++) acc[i] = v_zero();
        int c = 0;
        for (; c + CHUNK <= D; c += CHUNK) {
            vf w[4];
            if (x->k_next && c * 2 % 64 == 0) rd_fetch_k(x, t, group, c * 2);
            UNROLL for (int r = 0; r < rows; r++) w[r] = rd_bf16_at(q + r * ldq + c);
            UNROLL for (int i = 0; i < group; i++) {
                const vf k = rd_bf16_at(x->k[t + i] + x->k_off + 2 * c);
                UNROLL for (int r = 0; r < rows; r++) acc[r * group + i] =
                    v_dot_bf16(k, w[r], acc[r * group + i]);
            }
        }
        if (x->k_next && c < D) rd_fetch_k_rest(x, t, group, c * 2, D * 2);
        if (c < D) UNROLL for (int i = 0; i < group; i++) {
                const vf k = vi_as_f(rd_chunk(x->k[t + i] + x->k_off + 2 * c, 1, D - c));
                UNROLL for (int r = 0; r < rows; r++) acc[r * group + i] =
                    v_dot_bf16(k, rd_bf16_at(q + r * ldq + c), acc[r * group + i]);
            }
        float sum[VW];
        v_store(sum, v_reduce_all(acc));
        UNROLL for (int r = 0; r < rows; r++)
            memcpy(s + r * RD_TB + t, sum + r * group, (size_t)group * sizeof *s);
    }
}

/* Tokens t and t + 1 of P, in every word. */
SI vf rd_dots_p(const int16_t *p, int t) {
    int32_t both;
    memcpy(&both, p + t, sizeof both);
    return v_word(both);
}

/* O[row][c .. c + chunks * CHUNK) += P[row][0..n) * V; O in the order that v_pair_words() leaves. Or, of one
 * chunk, the first `left` columns. */
SI void rd_dots_pv_(const struct rd_tile *x, const int16_t *p, float *o, int ldo, int c, const int rows,
                    const int chunks, const int is_part, int left) {
    vf acc[4][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < 2 * chunks; j++) acc[r][j] =
        v_load(o + r * ldo + c + j * VW);
    for (int t = 0; t < x->n_used; t += 2) {
        const char *v0 = x->v[t] + x->v_off + 2 * c, *v1 = x->v[t + 1] + x->v_off + 2 * c;
        vf w[4];
        if (x->v_next) UNROLL for (int b = 0; b < 2 * CHUNK * chunks; b += 64) if ((2 * c + b) % 64 == 0) {
                rd_fetch_v(x, t, 2 * c + b);
                rd_fetch_v(x, t + 1, 2 * c + b);
            }
        if (x->v_next && is_part) {
            rd_fetch_v(x, t, 2 * (c + left) - 1);
            rd_fetch_v(x, t + 1, 2 * (c + left) - 1);
        }
        UNROLL for (int r = 0; r < rows; r++) w[r] = rd_dots_p(p + r * RD_TB, t);
        UNROLL for (int j = 0; j < chunks; j++) {
            vi lo, hi;
            v_pair_words(rd_chunk(v0 + 2 * j * CHUNK, is_part, left),
                         rd_chunk(v1 + 2 * j * CHUNK, is_part, left), &lo, &hi);
            UNROLL for (int r = 0; r < rows; r++) {
                acc[r][2 * j] = v_dot_bf16(vi_as_f(lo), w[r], acc[r][2 * j]);
                acc[r][2 * j + 1] = v_dot_bf16(vi_as_f(hi), w[r], acc[r][2 * j + 1]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < 2 * chunks; j++)
        v_store(o + r * ldo + c + j * VW, acc[r][j]);
}

#define RD_DOTS(R)                                                                                           \
    static __attribute__((noinline)) void rd_dots_qk##R(const struct rd_tile *x, const int16_t *q, int ldq,  \
                                                        int D, float *s) {                                   \
        rd_dots_qk_(x, q, ldq, D, s, R);                                                                     \
    }                                                                                                        \
    static __attribute__((noinline)) void rd_dots_pv##R(const struct rd_tile *x, const int16_t *p, float *o, \
                                                        int ldo, int D) {                                    \
        int c = 0;                                                                                           \
        for (; c + RD_NC * CHUNK <= D; c += RD_NC * CHUNK)                                                   \
            rd_dots_pv_(x, p, o, ldo, c, R, RD_NC, 0, 0);                                                    \
        for (; c + CHUNK <= D; c += CHUNK)                                                                   \
            rd_dots_pv_(x, p, o, ldo, c, R, 1, 0, 0);                                                        \
        if (c < D) rd_dots_pv_(x, p, o, ldo, c, R, 1, 1, D - c);                                             \
    }
RD_DOTS(1)
RD_DOTS(2)
RD_DOTS(4)

#include "cpu_rowdot_cross.h"
#include "cpu_rowdot_e4m3.h"

/* q of head h for the products of 16 rows. */
static void rd_dots_panels(const struct rd_state *st, int h) {
#if CPU_X86 >= 3
    float *panel = st->cross + (size_t)h * rd_panel_words(st);
    for (int r = 0; r < st->crossed; r += VW, panel += (size_t)VW * st->ldq / 2)
        rd_cross_panel(st->q16 + ((size_t)h * st->rows + r) * st->ldq, st->ldq, cpu_min(VW, st->crossed - r),
                       panel);
#else
    (void)st, (void)h;
#endif
}

/* Rows in groups of 4, 2 and 1, behind those that go by 16; only the first group prefetches. */
static void rd_dots_qk(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x,
                       size_t at) {
    const int16_t *q = st->q16 + at * st->ldq;
    struct rd_tile y = *x;
    int r = 0;
#if CPU_X86 >= 3
    if (a->kv_dtype == CPU_E4M3) {
        rd_e4m3_qk(st, x, a->head_size, q);
        return;
    }
    const float *panel = st->cross + at / (size_t)st->rows * rd_panel_words(st);
    for (; r < st->crossed; r += VW, y.k_next = NULL, panel += (size_t)VW * st->ldq / 2)
        rd_cross_qk(&y, panel, cpu_min(VW, st->crossed - r), a->head_size, st->s + r * RD_TB);
    r = st->crossed;
#endif
    for (int g; r < st->rows; r += g, y.k_next = NULL) {
        g = st->rows - r >= 4 ? 4 : st->rows - r >= 2 ? 2 : 1;
        (g == 4   ? rd_dots_qk4
         : g == 2 ? rd_dots_qk2
                  : rd_dots_qk1)(&y, q + r * st->ldq, st->ldq, a->head_size, st->s + r * RD_TB);
    }
}

/* P of n tokens, times V's scales, as bf16; adds what is left of each row's P to its sum. */
static void rd_dots_weights(const struct cpu_attn *a, const struct rd_state *st, size_t at, int n) {
    const int shift = a->kv_dtype == CPU_E4M3 ? RD_DOTS_P_SCALE : 0, scales = a->v_row_scale.base != NULL;
    const vf up = v_set1(ldexpf(1, shift));
    const int32_t one = (127 - shift) << 7; /* 2^-shift as bf16 */
    const vf ones = v_word(one | one << 16);
    float back[RD_TB];
    int exact = scales;
    for (int t = 0; scales && t < n; t++) {
        const float v = fabsf(st->vd[t]);
        exact &= v > 1e-30f && v < 1e30f;
    }
    for (int t = 0; t < n && exact; t += CHUNK) {
        vf x = v_div(v_set1(ldexpf(1, -shift)), v_load(st->vd + t)), y = x;
        if (t + VW < n) y = v_div(v_set1(ldexpf(1, -shift)), v_load(st->vd + t + VW));
        v_unzip(&x, &y);
        v_store(back + t, x);
        v_store(back + t + VW, y);
    }
    for (int r = 0; r < st->rows; r++) {
        const float *s = st->s + r * RD_TB;
        float *sum = st->l_bf16 + (at + (size_t)r) * VW;
        vf l = v_load(sum);
        for (int t = 0; t < n; t += CHUNK) {
            vf x = v_load(s + t), y = t + VW < n ? v_load(s + t + VW) : v_zero();
            if (scales) {
                if (!exact) l = v_add(l, v_add(x, y));
                x = v_mul(x, v_load(st->vd + t));
                if (t + VW < n) y = v_mul(y, v_load(st->vd + t + VW));
            }
            const vi w = v_words_bf16(v_mul(x, up), v_mul(y, up));
            memcpy(st->p16 + r * RD_TB + t, &w, sizeof w);
            if (!scales) l = v_dot_bf16(vi_as_f(w), ones, l);
            if (exact) {
                v_pair(CPU_BF16, (const char *)(st->p16 + r * RD_TB + t), &x, &y);
                l = v_fma(x, v_load(back + t), v_fma(y, v_load(back + t + VW), l));
            }
        }
        v_store(sum, l);
    }
}

static void rd_dots_pv(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x,
                       float *o) {
    const int D = a->head_size_v;
    struct rd_tile y = *x;
#if CPU_X86 >= 3
    struct e4m3_top top = {vi_set1(0), vi_set1(0)};
#endif
    for (int r = 0, g; r < st->rows; r += g, y.v_next = NULL) {
        const int16_t *p = st->p16 + r * RD_TB;
        float *to = o + r * st->ldo;
        g = st->rows - r >= 4 ? 4 : st->rows - r >= 2 ? 2 : 1;
#if CPU_X86 >= 3
        if (a->kv_dtype == CPU_E4M3) {
            (g == 4   ? D == 128 && rd_has_all(&y, 0) ? rd_e4m3_pv4_all : rd_e4m3_pv4
             : g == 2 ? rd_e4m3_pv2
                      : rd_e4m3_pv1)(&y, p, to, st->ldo, D, &top);
            continue;
        }
#endif
        (g == 4 ? rd_dots_pv4 : g == 2 ? rd_dots_pv2 : rd_dots_pv1)(&y, p, to, st->ldo, D);
    }
#if CPU_X86 >= 3
    if (a->kv_dtype == CPU_E4M3 && e4m3_has_nan(&top)) rd_e4m3_nan_v(st, x, o, D);
#endif
}
#endif
