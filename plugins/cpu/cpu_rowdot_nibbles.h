/* SPDX-License-Identifier: Apache-2.0 */
/* Integer products of the row-dot path straight from int4 rows, for 16-bit outputs: included once per level
 * by cpu_level.c.
 *
 * A 16-bit word of a row holds four codes; a shift and a mask bring code j of every word into 16 bits, which
 * is all that the products of cpu_rowdot_words.h need. The query lies in that order, [chunk][j][word], and O
 * comes out in it. Codes keep their zero point z: K's leaves as z times the sum of the query's words from the
 * finished sum, V's as the sum of P times z from the start of O's sum; all of it integers, so nothing is
 * lost. */

enum { RD_CODES = 8 * VW }; /* of a vector */

#if CPU_WORDS
enum { RD_CODE_PLACES = RD_NC > 1 ? 4 : 2 }; /* places j whose sums fit the registers at once */

SI int rd_nibbles_serve(const struct cpu_attn *a) {
    return a->kv_dtype == CPU_I4 && rd_words_serve(a);
}

/* n words of a query from natural order; returns their sum. */
static int32_t rd_nibbles_query(int16_t *q, int n) {
    int16_t natural[RD_CODES];
    int32_t sum = 0;
    for (int c = 0; c < n; c += RD_CODES) {
        memcpy(natural, q + c, sizeof natural);
        for (int i = 0; i < RD_CODES; i++) {
            q[c + i % 4 * (2 * VW) + i / 4] = natural[i];
            sum += natural[i];
        }
    }
    return sum;
}

/* Scales of n tokens and the zero points in their lowest bits, `at` bytes from where the pointers show. */
SI void rd_nibbles_scales(const char *const *p, int64_t at, int n, float *scales, int32_t *zeros) {
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, p[i] + at, sizeof bits);
        zeros[i] = (int32_t)(bits & 15);
        bits &= ~UINT32_C(15);
        memcpy(scales + i, &bits, sizeof bits);
    }
}

/* Scores of `rows` (1, 2 or 4) query rows against n tokens; `bytes` of codes a row. */
SI void rd_nibbles_qk_(const struct rd_tile *x, const int16_t *q, const int32_t *q_sum, const int32_t *zeros,
                       int ldq, int bytes, float *s, const int rows, const int vnni) {
    const int group = VW / rows, some = group < 4 ? group : 4; /* tokens whose codes stay in registers */
    int32_t sums[VW], zero[VW];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < group; i++) sums[r * group + i] =
        q_sum[r];
    for (int t = 0; t < x->n; t += group) {
        vi acc[VW];
        UNROLL for (int r = 0; r < rows; r++)
            memcpy(zero + r * group, zeros + t, (size_t)group * sizeof *zero);
        UNROLL for (int i = 0; i < VW; i++) acc[i] = vi_set1(0);
        rd_fetch_k_tail(x, t, group);
        for (int b = 0; b < bytes; b += 4 * VW) {
            if (x->k_next && b % 64 == 0) rd_fetch_k(x, t, group, b);
            UNROLL for (int g = 0; g < group; g += some) {
                const char *const *k = x->k + t + g;
                vi raw[4];
                if (b + 4 * VW <= bytes)
                    UNROLL for (int i = 0; i < some; i++) raw[i] =
                        vi_load((const int32_t *)(const void *)(k[i] + x->k_off + b));
                else
                    UNROLL for (int i = 0; i < some; i++) raw[i] = v_raw_tail(k[i] + x->k_off + b, bytes - b);
                UNROLL for (int j = 0; j < 4; j++) {
                    vi w[4];
                    UNROLL for (int r = 0; r < rows; r++) w[r] =
                        vi_load((const int32_t *)(const void *)(q + r * ldq + 2 * b + j * 2 * VW));
                    UNROLL for (int i = 0; i < some; i++) {
                        const vi y = v_nibble_words(raw[i], j);
                        UNROLL for (int r = 0; r < rows; r++) acc[r * group + g + i] =
                            v_dot_words(acc[r * group + g + i], y, w[r], vnni);
                    }
                }
            }
        }
        float sum[VW];
        v_store(sum, vi_to_f(vi_sub(v_reduce_all_int(acc), vi_mul(vi_load(zero), vi_load(sums)))));
        UNROLL for (int r = 0; r < rows; r++)
            memcpy(s + r * RD_TB + t, sum + r * group, (size_t)group * sizeof *s);
    }
}

/* RD_CODE_PLACES places from j0 of one half of a chunk of RD_CODES columns, at byte b of the rows: O[row] +=
 * factor[row] * (P[row][0..n) * V - base[row]); tail: bytes that there are, 0 for all. */
SI void rd_nibbles_pv_(const struct rd_tile *x, const int16_t *p, const float *factor, const int32_t *base,
                       float *o, int ldo, int b, int tail, const int half, const int j0, const int rows,
                       const int vnni) {
    vi acc[4][RD_CODE_PLACES];
    const int fetches = x->v_next && half == 0 && j0 == 0 && b % 64 == 0;
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < RD_CODE_PLACES; j++) acc[r][j] =
        vi_set1(-base[r]);
    for (int t = 0; t < x->n_used; t += 2) {
        const char *v0 = x->v[t] + x->v_off + b, *v1 = x->v[t + 1] + x->v_off + b;
        vi lo, hi;
        if (fetches) {
            rd_fetch_v(x, t, b);
            rd_fetch_v(x, t + 1, b);
            if (b == 0) {
                rd_fetch_v_tail(x, t);
                rd_fetch_v_tail(x, t + 1);
            }
        }
        if (tail)
            v_pair_words(v_raw_tail(v0, tail), v_raw_tail(v1, tail), &lo, &hi);
        else
            v_pair_words(vi_load((const int32_t *)(const void *)v0),
                         vi_load((const int32_t *)(const void *)v1), &lo, &hi);
        vi w[4];
        UNROLL for (int r = 0; r < rows; r++) {
            int32_t both;
            memcpy(&both, p + r * RD_TB + t, sizeof both);
            w[r] = vi_set1(both);
        }
        UNROLL for (int j = 0; j < RD_CODE_PLACES; j++) {
            const vi y = v_nibble_words(half ? hi : lo, j0 + j);
            UNROLL for (int r = 0; r < rows; r++) acc[r][j] = v_dot_words(acc[r][j], y, w[r], vnni);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < RD_CODE_PLACES; j++) {
        float *to = o + r * ldo + 2 * b + (j0 + j) * 2 * VW + half * VW;
        v_store(to, v_fma(vi_to_f(acc[r][j]), v_set1(factor[r]), v_load(to)));
    }
}

#define RD_NIBBLES(R, VNNI)                                                                                  \
    static __attribute__((noinline)) void rd_nibbles_qk##R##_##VNNI(                                         \
        const struct rd_tile *x, const int16_t *q, const int32_t *q_sum, const int32_t *zeros, int ldq,      \
        int bytes, float *s) {                                                                               \
        rd_nibbles_qk_(x, q, q_sum, zeros, ldq, bytes, s, R, VNNI);                                          \
    }                                                                                                        \
    static __attribute__((noinline)) void rd_nibbles_pv##R##_##VNNI(                                         \
        const struct rd_tile *x, const int16_t *p, const float *factor, const int32_t *base, float *o,       \
        int ldo, int bytes) {                                                                                \
        for (int b = 0; b < bytes; b += 4 * VW) {                                                            \
            const int tail = b + 4 * VW <= bytes ? 0 : bytes - b;                                            \
            UNROLL for (int half = 0; half < 2; half++) UNROLL for (int j = 0; j < 4; j += RD_CODE_PLACES)   \
                rd_nibbles_pv_(x, p, factor, base, o, ldo, b, tail, half, j, R, VNNI);                       \
        }                                                                                                    \
    }
RD_NIBBLES(1, 0)
RD_NIBBLES(2, 0)
RD_NIBBLES(4, 0)
RD_NIBBLES(1, 1)
RD_NIBBLES(2, 1)
RD_NIBBLES(4, 1)
typedef void rd_nibbles_qk_func(const struct rd_tile *, const int16_t *q, const int32_t *q_sum,
                                const int32_t *zeros, int ldq, int bytes, float *s);
typedef void rd_nibbles_pv_func(const struct rd_tile *, const int16_t *p, const float *factor,
                                const int32_t *base, float *o, int ldo, int bytes);
/* [VNNI][log2 of the rows] */
static rd_nibbles_qk_func *const rd_nibbles_qks[2][3] = {
    {rd_nibbles_qk1_0, rd_nibbles_qk2_0, rd_nibbles_qk4_0},
    {rd_nibbles_qk1_1, rd_nibbles_qk2_1, rd_nibbles_qk4_1}};
static rd_nibbles_pv_func *const rd_nibbles_pvs[2][3] = {
    {rd_nibbles_pv1_0, rd_nibbles_pv2_0, rd_nibbles_pv4_0},
    {rd_nibbles_pv1_1, rd_nibbles_pv2_1, rd_nibbles_pv4_1}};

/* Rows of 128 with all prefetches: the tests of each are out of the loops. */
static __attribute__((noinline)) void rd_nibbles_qk4_all(const struct rd_tile *x, const int16_t *q,
                                                         const int32_t *q_sum, const int32_t *zeros, int ldq,
                                                         int bytes, float *s) {
    const struct rd_tile y = rd_fetches_all(x, 1);
    (void)ldq, (void)bytes;
    rd_nibbles_qk_(&y, q, q_sum, zeros, 128, 64, s, 4, 0);
}
static __attribute__((noinline)) void rd_nibbles_pv4_all(const struct rd_tile *x, const int16_t *p,
                                                         const float *factor, const int32_t *base, float *o,
                                                         int ldo, int bytes) {
    const struct rd_tile y = rd_fetches_all(x, 1);
    (void)ldo, (void)bytes;
    for (int b = 0; b < 64; b += 4 * VW)
        UNROLL for (int half = 0; half < 2; half++) UNROLL for (int j = 0; j < 4; j += RD_CODE_PLACES)
            rd_nibbles_pv_(&y, p, factor, base, o, 128, b, 0, half, j, 4, 0);
}
SI int rd_nibbles_has_all(const struct rd_state *st, const struct rd_tile *x, int D) {
    return CPU_X86 == 1 && !st->vnni && D == 128 && rd_has_all(x, 1);
}

/* Rows in groups of 4, 2 and 1; only the first group prefetches. */
static void rd_nibbles_qk(const struct rd_state *st, const struct rd_tile *x, size_t at, int D) {
    struct rd_tile y = *x;
    for (int r = 0, g; r < st->rows; r += 1 << g) {
        const size_t row = at + (size_t)r;
        g = st->rows - r >= 4 ? 2 : st->rows - r >= 2;
        (g == 2 && rd_nibbles_has_all(st, &y, D) ? rd_nibbles_qk4_all : rd_nibbles_qks[st->vnni][g])(
            &y, st->q16 + row * st->ldq, st->q_sum + row, st->zk, st->ldq, D / 2, st->s + r * RD_TB);
        y.k_next = NULL;
    }
}
static void rd_nibbles_pv(const struct rd_state *st, const struct rd_tile *x, float *o, int D) {
    struct rd_tile y = *x;
    int32_t base[CPU_ROWDOT_MAX];
    int16_t zeros[RD_TB];
    for (int t = 0; t < RD_TB; t++)
        zeros[t] = (int16_t)st->zv[t];
    for (int t = x->n; t < RD_TB; t++)
        zeros[t] = 0;
    for (int r = 0; r < st->rows; r++) {
        int16_t *p = st->p16 + r * RD_TB;
        vi sum = vi_set1(0);
        st->pf[r] = rd_words_from(st->s + r * RD_TB, x->n, p);
        for (int t = 0; t < RD_TB; t += 2 * VW)
            sum = v_dot_words(sum, vi_load((const int32_t *)(const void *)(p + t)),
                              vi_load((const int32_t *)(const void *)(zeros + t)), 0);
        base[r] = (int32_t)v_hsum(vi_to_f(sum)); /* exact: 32 * 15 * 32767 is below 2^24 */
    }
    for (int r = 0, g; r < st->rows; r += 1 << g) {
        g = st->rows - r >= 4 ? 2 : st->rows - r >= 2;
        (g == 2 && rd_nibbles_has_all(st, &y, D) ? rd_nibbles_pv4_all : rd_nibbles_pvs[st->vnni][g])(
            &y, st->p16 + r * RD_TB, st->pf + r, base + r, o + r * st->ldo, st->ldo, D / 2);
        y.v_next = NULL;
    }
}

/* n outputs back in natural order. */
static void rd_nibbles_order(float *o, int n) {
    float x[RD_CODES];
    for (int c = 0; c < n; c += RD_CODES) {
        for (int j = 0; j < 4; j++)
            v_unpair_words(o + c + j * 2 * VW);
        memcpy(x, o + c, sizeof x);
        for (int i = 0; i < RD_CODES; i++)
            o[c + i] = x[i % 4 * (2 * VW) + i / 4];
    }
}
#else
SI int rd_nibbles_serve(const struct cpu_attn *a) {
    (void)a;
    return 0;
}
SI int32_t rd_nibbles_query(int16_t *q, int n) {
    (void)q, (void)n;
    return 0;
}
SI void rd_nibbles_scales(const char *const *p, int64_t at, int n, float *scales, int32_t *zeros) {
    (void)p, (void)at, (void)n, (void)scales, (void)zeros;
}
SI void rd_nibbles_qk(const struct rd_state *st, const struct rd_tile *x, size_t at, int D) {
    (void)st, (void)x, (void)at, (void)D;
}
SI void rd_nibbles_pv(const struct rd_state *st, const struct rd_tile *x, float *o, int D) {
    (void)st, (void)x, (void)o, (void)D;
}
SI void rd_nibbles_order(float *o, int n) {
    (void)o, (void)n;
}
#endif
