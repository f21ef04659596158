/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 pairs for e4m3 caches, by look-ups of bytes (AVX512_VBMI): the part of cpu_rowdot_dots.h
 * that knows the format, and is included by it. */

#if CPU_X86 >= 3
/* O[row][c .. c + 64) += P[row][0..n) * V; O in the order of rd_tiles_order(). tail: columns that there are
 * of these, 0 for all. */
SI void rd_e4m3_pv_(const struct rd_tile *x, const int16_t *p, float *o, int ldo, int c, const int tail,
                    struct e4m3_top *most, const int rows) {
    struct e4m3_top top = *most;
    vf acc[4][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < 4; j++) acc[r][j] =
        v_load(o + r * ldo + c + j * VW);
    for (int t = 0; t < x->n_used; t += 2) {
        const char *v0 = x->v[t] + x->v_off + c, *v1 = x->v[t + 1] + x->v_off + c;
        const vi a = tail ? v_bytes_tail(v0, tail) : v_bytes(v0),
                 b = tail ? v_bytes_tail(v1, tail) : v_bytes(v1);
        vi w[4];
        if (x->v_next) {
            rd_fetch_v(x, t, c);
            rd_fetch_v(x, t + 1, c);
            if (c == 0) {
                rd_fetch_v_tail(x, t);
                rd_fetch_v_tail(x, t + 1);
            }
        }
        e4m3_track(&top, a);
        e4m3_track(&top, b);
        v_e4m3_halves(_mm512_unpacklo_epi8(a, b), w);
        v_e4m3_halves(_mm512_unpackhi_epi8(a, b), w + 2);
        UNROLL for (int r = 0; r < rows; r++) {
            const vf y = rd_dots_p(p + r * RD_TB, t);
            UNROLL for (int j = 0; j < 4; j++) acc[r][j] = v_dot_bf16(vi_as_f(w[j]), y, acc[r][j]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < 4; j++)
        v_store(o + r * ldo + c + j * VW, acc[r][j]);
    *most = top;
}

#define RD_E4M3(R)                                                                                           \
    static __attribute__((noinline)) void rd_e4m3_qk##R(const struct rd_tile *x, const int16_t *q, int ldq,  \
                                                        int D, float *s, struct e4m3_top *top) {             \
        struct e4m3_top most = *top;                                                                         \
        rd_look_qk_(x, (const char *)q, ldq, D, s, &most, R, 1);                                             \
        *top = most;                                                                                         \
    }                                                                                                        \
    static __attribute__((noinline)) void rd_e4m3_pv##R(const struct rd_tile *x, const int16_t *p, float *o, \
                                                        int ldo, int D, struct e4m3_top *top) {              \
        int c = 0;                                                                                           \
        for (; c + 64 <= D; c += 64)                                                                         \
            rd_e4m3_pv_(x, p, o, ldo, c, 0, top, R);                                                         \
        if (c < D) rd_e4m3_pv_(x, p, o, ldo, c, D - c, top, R);                                              \
    }
RD_E4M3(1)
RD_E4M3(2)
RD_E4M3(4)

/* Four rows of 128 with all prefetches, no scales behind the values (with scales it is 2 % slower). */
static __attribute__((noinline)) void rd_e4m3_qk4_all(const struct rd_tile *x, const int16_t *q, int ldq,
                                                      int D, float *s, struct e4m3_top *top) {
    const struct rd_tile y = rd_fetches_all(x, 0);
    struct e4m3_top most = *top;
    (void)ldq, (void)D;
    rd_look_qk_(&y, (const char *)q, 128, 128, s, &most, 4, 1);
    *top = most;
}
static __attribute__((noinline)) void rd_e4m3_pv4_all(const struct rd_tile *x, const int16_t *p, float *o,
                                                      int ldo, int D, struct e4m3_top *top) {
    const struct rd_tile y = rd_fetches_all(x, 0);
    (void)ldo, (void)D;
    for (int c = 0; c < 128; c += 64)
        rd_e4m3_pv_(&y, p, o, 128, c, 0, top, 4);
}

/* NaN, which the look-ups do not know, into the scores of the tokens whose K has one, and into the columns of
 * O where V has one: rare. */
static __attribute__((noinline)) void rd_e4m3_nan_k(const struct rd_state *st, const struct rd_tile *x,
                                                    int D) {
    for (int t = 0; t < x->n; t++)
        for (int d = 0; d < D; d++)
            for (int r = 0; (x->k[t][x->k_off + d] & 0x7f) == 0x7f && r < st->rows; r++)
                st->s[r * RD_TB + t] = NAN;
}
static __attribute__((noinline)) void rd_e4m3_nan_v(const struct rd_state *st, const struct rd_tile *x,
                                                    float *o, int D) {
    for (int t = 0; t < x->n_used; t++)
        for (int d = 0; d < D; d++)
            for (int r = 0; (x->v[t][x->v_off + d] & 0x7f) == 0x7f && r < st->rows; r++)
                o[r * st->ldo + d / 64 * 64 + d % 16 / 4 * 16 + d % 64 / 16 * 4 + d % 4] = NAN;
}

/* Rows in groups of 4, 2 and 1; only the first group prefetches. */
static void rd_e4m3_qk(const struct rd_state *st, const struct rd_tile *x, int D, const int16_t *q) {
    struct rd_tile y = *x;
    struct e4m3_top top = {vi_set1(0), vi_set1(0)};
    for (int r = 0, g; r < st->rows; r += g, y.k_next = NULL) {
        g = st->rows - r >= 4 ? 4 : st->rows - r >= 2 ? 2 : 1;
        (g == 4   ? D == 128 && rd_has_all(&y, 0) ? rd_e4m3_qk4_all : rd_e4m3_qk4
         : g == 2 ? rd_e4m3_qk2
                  : rd_e4m3_qk1)(&y, q + r * st->ldq, st->ldq, D, st->s + r * RD_TB, &top);
    }
    if (e4m3_has_nan(&top)) rd_e4m3_nan_k(st, x, D);
}
#endif
