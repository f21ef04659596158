/* SPDX-License-Identifier: Apache-2.0 */
/* Integer products of the row-dot path for int8 and int4 caches, for 16-bit outputs: included once per level
 * by cpu_level.c.
 *
 * The query row and the tile's P become 16-bit integers with one factor each (their largest value is 32767),
 * so that K and V need no conversion to float: one instruction multiplies and adds 2 * VW pairs (vpdpwssd, or
 * vpmaddwd and an addition), twice as many as an FMA. Sums of integers are exact; what is rounded is q and P,
 * at 2^-16 of their largest value, finer than P in bf16. K's scale goes onto the finished scores, V's onto P
 * before it is rounded. */

/* 512 products of 2^15 * 2^7 still fit 32 bits. */
enum { RD_WORDS_MAX_SIZE = 512, RD_WORDS_TOP = 32767 };

#if CPU_WORDS
SI int rd_words_serve(const struct cpu_attn *a) {
    return (a->kv_dtype == CPU_I8 || a->kv_dtype == CPU_I4) && a->out_dtype != CPU_F32 &&
           a->head_size <= RD_WORDS_MAX_SIZE;
}

/* int8 K and a V of bf16 pairs: the scores of the former, the sums of cpu_rowdot_dots.h. */
SI int rd_words_keys(const struct cpu_attn *a, int dots) {
    return dots && a->kv_dtype == CPU_PACKED && a->k_row == CPU_I8;
}

/* n floats (a multiple of VW) as integers of which `most_word` is the largest; returns their factor: NaN if
 * one of them is not finite. */
SI float rd_words_to(const float *x, int n, int most_word, int16_t *out) {
    vf top = v_zero(), sum = v_zero();
    for (int i = 0; i < n; i += VW) {
        const vf v = v_load(x + i);
        top = v_max(v_max(v, v_sub(v_zero(), v)), top);
        sum = v_add(sum, v_sub(v, v));
    }
    const float most = v_hmax(top), zero = v_hsum(sum);
    const vf inverse = v_set1(most > 1e-30f ? (float)most_word / most : 0.0f);
    for (int i = 0; i < n; i += VW)
        v_store_words(out + i, v_mul(v_load(x + i), inverse));
    return most * (1.0f / (float)most_word) + zero; /* x - x is NaN unless x is finite */
}
SI float rd_words_from(const float *x, int n, int16_t *out) {
    return rd_words_to(x, n, RD_WORDS_TOP, out);
}

/* Scores of `rows` (1, 2 or 4) query rows against n tokens; q has ldq words per row, zero behind D. */
SI void rd_words_qk_(const struct rd_tile *x, const int16_t *q, int ldq, int D, float *s, const int rows,
                     const int vnni) {
    const int group = VW / rows;
    for (int t = 0; t < x->n; t += group) {
        vi acc[VW];
        const char *k[VW];
        UNROLL for (int i = 0; i < group; i++) k[i] = x->k[t + i] + x->k_off;
        UNROLL for (int i = 0; i < VW; i++) acc[i] = vi_set1(0);
        rd_fetch_k_tail(x, t, group);
        for (int c = 0; c < D; c += CHUNK) {
            vi w[4];
            UNROLL for (int r = 0; r < rows; r++) w[r] =
                vi_load((const int32_t *)(const void *)(q + r * ldq + c));
            if (x->k_next && c % 64 == 0) rd_fetch_k(x, t, group, c);
            UNROLL for (int i = 0; i < group; i++) {
                const vi y = c + CHUNK <= D ? v_words(k[i] + c) : v_words_tail(k[i] + c, D - c);
                UNROLL for (int r = 0; r < rows; r++) acc[r * group + i] =
                    v_dot_words(acc[r * group + i], y, w[r], vnni);
            }
        }
        float sum[VW];
        v_store(sum, vi_to_f(v_reduce_all_int(acc)));
        UNROLL for (int r = 0; r < rows; r++)
            memcpy(s + r * RD_TB + t, sum + r * group, (size_t)group * sizeof *s);
    }
}

/* O[row][c .. c + chunks * CHUNK) += factor[row] * (P[row][0..n) * V); O in the order that v_pair_words()
 * leaves. */
SI void rd_words_pv_(const struct rd_tile *x, const int16_t *p, const float *factor, float *o, int ldo, int c,
                     int tail, const int rows, const int chunks, const int vnni) {
    vi acc[4][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < 2 * chunks; j++) acc[r][j] = vi_set1(0);
    for (int t = 0; t < x->n_used; t += 2) {
        const char *v0 = x->v[t] + x->v_off + c, *v1 = x->v[t + 1] + x->v_off + c;
        if (x->v_next && (CHUNK * chunks >= 64 || c % 64 == 0)) {
            rd_fetch_v(x, t, c);
            rd_fetch_v(x, t + 1, c);
            if (c == 0) {
                rd_fetch_v_tail(x, t);
                rd_fetch_v_tail(x, t + 1);
            }
        }
        UNROLL for (int j = 0; j < chunks; j++) {
            vi a, b;
            if (tail)
                v_pair_words(v_words_tail(v0, tail), v_words_tail(v1, tail), &a, &b);
            else
                v_pair_words(v_words(v0 + j * CHUNK), v_words(v1 + j * CHUNK), &a, &b);
            UNROLL for (int r = 0; r < rows; r++) {
                int32_t both;
                memcpy(&both, p + r * RD_TB + t, sizeof both);
                const vi w = vi_set1(both);
                acc[r][2 * j] = v_dot_words(acc[r][2 * j], a, w, vnni);
                acc[r][2 * j + 1] = v_dot_words(acc[r][2 * j + 1], b, w, vnni);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < 2 * chunks; j++) {
        float *to = o + r * ldo + c + j * VW;
        v_store(to, v_fma(vi_to_f(acc[r][j]), v_set1(factor[r]), v_load(to)));
    }
}

#define RD_WORDS(R, VNNI)                                                                                    \
    static __attribute__((noinline)) void rd_words_qk##R##_##VNNI(const struct rd_tile *x, const int16_t *q, \
                                                                  int ldq, int D, float *s) {                \
        rd_words_qk_(x, q, ldq, D, s, R, VNNI);                                                              \
    }                                                                                                        \
    static __attribute__((noinline)) void rd_words_pv##R##_##VNNI(                                           \
        const struct rd_tile *x, const int16_t *p, const float *factor, float *o, int ldo, int D) {          \
        int c = 0;                                                                                           \
        for (; c + RD_NC * CHUNK <= D; c += RD_NC * CHUNK)                                                   \
            rd_words_pv_(x, p, factor, o, ldo, c, 0, R, RD_NC, VNNI);                                        \
        for (; c < D; c += CHUNK)                                                                            \
            rd_words_pv_(x, p, factor, o, ldo, c, c + CHUNK <= D ? 0 : D - c, R, 1, VNNI);                   \
    }
RD_WORDS(1, 0)
RD_WORDS(2, 0)
RD_WORDS(4, 0)
RD_WORDS(1, 1)
RD_WORDS(2, 1)
RD_WORDS(4, 1)
typedef void rd_words_qk_func(const struct rd_tile *, const int16_t *q, int ldq, int D, float *s);
typedef void rd_words_pv_func(const struct rd_tile *, const int16_t *p, const float *factor, float *o,
                              int ldo, int D);
/* [VNNI][log2 of the rows] */
static rd_words_qk_func *const rd_words_qks[2][3] = {{rd_words_qk1_0, rd_words_qk2_0, rd_words_qk4_0},
                                                     {rd_words_qk1_1, rd_words_qk2_1, rd_words_qk4_1}};
static rd_words_pv_func *const rd_words_pvs[2][3] = {{rd_words_pv1_0, rd_words_pv2_0, rd_words_pv4_0},
                                                     {rd_words_pv1_1, rd_words_pv2_1, rd_words_pv4_1}};

#if CPU_X86 >= 2
/* The largest of each of four vectors of bits of floats without sign, in turn in every quarter: NaN is larger
 * than any number. */
SI vf rd_most_of_four(const vi x[4]) {
    const vi a = _mm512_max_epu32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1])),
             b = _mm512_max_epu32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    vi both = _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    both = _mm512_max_epu32(both, _mm512_shuffle_i32x4(both, both, 0x4e));
    return _mm512_castsi512_ps(_mm512_max_epu32(both, _mm512_shuffle_i32x4(both, both, 0xb1)));
}

/* rd_words_from() of rows r to r + 3 of P, 32 keys. */
static void rd_words_four(const struct rd_state *st, int r) {
    vf p[4][2];
    vi top[4];
    float by[VW];
    UNROLL for (int i = 0; i < 4; i++) {
        UNROLL for (int t = 0; t < 2; t++) p[i][t] = v_load(st->s + (r + i) * RD_TB + t * VW);
        top[i] = _mm512_max_epu32(_mm512_castps_si512(_mm512_abs_ps(p[i][0])),
                                  _mm512_castps_si512(_mm512_abs_ps(p[i][1])));
    }
    const vf most = rd_most_of_four(top);
    const __mmask16 counts = _mm512_cmp_ps_mask(most, v_set1(1e-30f), _CMP_GT_OQ);
    v_store(by, _mm512_maskz_div_ps(counts, v_set1(RD_WORDS_TOP), most));
    _mm512_mask_storeu_ps(st->pf + r, 15, v_add(v_mul(most, v_set1(1.0f / RD_WORDS_TOP)), v_sub(most, most)));
    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int t = 0; t < 2; t++)
        v_store_words(st->p16 + (r + i) * RD_TB + t * VW, v_mul(p[i][t], v_set1(by[i])));
}
#endif

/* Rows of 128 by vpdpwssd with all prefetches: the tests of each are out of the loops. */
static __attribute__((noinline)) void rd_words_qk4_all(const struct rd_tile *x, const int16_t *q, int ldq,
                                                       int D, float *s) {
    const struct rd_tile y = rd_fetches_all(x, 1);
    (void)ldq, (void)D;
    rd_words_qk_(&y, q, 128, 128, s, 4, 1);
}
static __attribute__((noinline)) void rd_words_pv4_all(const struct rd_tile *x, const int16_t *p,
                                                       const float *factor, float *o, int ldo, int D) {
    const struct rd_tile y = rd_fetches_all(x, 1);
    (void)ldo, (void)D;
    for (int c = 0; c < 128; c += RD_NC * CHUNK)
        rd_words_pv_(&y, p, factor, o, 128, c, 0, 4, RD_NC, 1);
}
SI int rd_words_has_all(const struct rd_state *st, const struct rd_tile *x, int D) {
    return CPU_X86 >= 2 && st->vnni && D == 128 && rd_has_all(x, 1);
}

/* Rows in groups of 4, 2 and 1; only the first group prefetches. */
static void rd_words_qk(const struct rd_state *st, const struct rd_tile *x, const int16_t *q, int D) {
    struct rd_tile y = *x;
    for (int r = 0, g; r < st->rows; r += 1 << g) {
        g = st->rows - r >= 4 ? 2 : st->rows - r >= 2;
        (g == 2 && rd_words_has_all(st, &y, D) ? rd_words_qk4_all : rd_words_qks[st->vnni][g])(
            &y, q + r * st->ldq, st->ldq, D, st->s + r * RD_TB);
        y.k_next = NULL;
    }
}
static void rd_words_pv(const struct rd_state *st, const struct rd_tile *x, float *o, int D) {
    struct rd_tile y = *x;
    int first = 0;
#if CPU_X86 >= 2
    for (; x->n == RD_TB && first + 4 <= st->rows; first += 4)
        rd_words_four(st, first);
#endif
    for (int r = first; r < st->rows; r++)
        st->pf[r] = rd_words_from(st->s + r * RD_TB, x->n, st->p16 + r * RD_TB);
    for (int r = 0, g; r < st->rows; r += 1 << g) {
        g = st->rows - r >= 4 ? 2 : st->rows - r >= 2;
        (g == 2 && rd_words_has_all(st, &y, D) ? rd_words_pv4_all : rd_words_pvs[st->vnni][g])(
            &y, st->p16 + r * RD_TB, st->pf + r, o + r * st->ldo, st->ldo, D);
        y.v_next = NULL;
    }
}

/* n outputs back in natural order. */
SI void rd_words_order(float *o, int n) {
    for (int d = 0; d < n; d += CHUNK)
        v_unpair_words(o + d);
}
#else
SI int rd_words_serve(const struct cpu_attn *a) {
    (void)a;
    return 0;
}
SI int rd_words_keys(const struct cpu_attn *a, int dots) {
    (void)a, (void)dots;
    return 0;
}
SI float rd_words_from(const float *x, int n, int16_t *out) {
    (void)x, (void)n, (void)out;
    return 1.0f;
}
SI void rd_words_qk(const struct rd_state *st, const struct rd_tile *x, const int16_t *q, int D) {
    (void)st, (void)x, (void)q, (void)D;
}
SI void rd_words_pv(const struct rd_state *st, const struct rd_tile *x, float *o, int D) {
    (void)st, (void)x, (void)o, (void)D;
}
SI void rd_words_order(float *o, int n) {
    (void)o, (void)n;
}
#endif
