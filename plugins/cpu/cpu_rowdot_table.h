/* SPDX-License-Identifier: Apache-2.0 */
/* Row-dot products for e4m3 caches where the CPU looks bytes up in tables (AVX512_VBMI, asked at open):
 * included by cpu_level.c, levels from avx512.
 *
 * 64 values become bf16 with two table look-ups (v_e4m3_table), exactly, subnormals and NaN included, and a
 * bf16 is a float after a shift or an AND: 10 instructions for a cache line instead of 22 by way of f16. q
 * and O keep the order of bf16 rows, even elements before odd ones in each CHUNK. */

#if CPU_X86 >= 2
/* Vector `part` (0 to 3) of 64 values. */
SI vf rd_table_part(const vi w[2], int part) {
    const vi x = w[part / 2];
    return _mm512_castsi512_ps(part % 2 ? _mm512_and_si512(x, vi_set1((int32_t)0xffff0000u))
                                        : _mm512_slli_epi32(x, 16));
}

/* What differs between the products of floats and, pairs, those of bf16 pairs (cpu_rowdot_e4m3.h). */
struct e4m3_top;
SI void rd_look_up(vi raw, vi out[2], struct e4m3_top *top, const int pairs) {
#if CPU_X86 >= 3
    if (pairs) {
        e4m3_track(top, raw);
        v_e4m3_halves(raw, out);
        return;
    }
#endif
    (void)top, (void)pairs;
    v_e4m3_table(raw, out);
}
SI vf rd_look_multiply(const vi w[2], int part, vf q, vf sum, const int pairs) {
#if CPU_X86 >= 3
    if (pairs) return v_dot_bf16(vi_as_f(w[part]), q, sum);
#endif
    (void)pairs;
    return v_fma(rd_table_part(w, part), q, sum);
}

/* Scores of `rows` (1, 2 or 4) query rows, of floats or bf16, against n tokens. */
SI void rd_look_qk_(const struct rd_tile *x, const char *q, int ldq, int D, float *s, struct e4m3_top *top,
                    const int rows, const int pairs) {
    const int group = VW / rows, some = group < 4 ? group : 4; /* tokens whose values stay in registers */
    const int size = pairs ? 2 : 4;
    for (int t = 0; t < x->n; t += group) {
        vf acc[VW];
        UNROLL for (int i = 0; i < VW; i++) acc[i] = v_zero();
        rd_fetch_k_tail(x, t, group);
        for (int c = 0; c < D; c += 64) {
            if (x->k_next) rd_fetch_k(x, t, group, c);
            UNROLL for (int g = 0; g < group; g += some) {
                vi raw[4], w[4][2];
                if (c + 64 <= D)
                    UNROLL for (int i = 0; i < some; i++) raw[i] = v_bytes(x->k[t + g + i] + x->k_off + c);
                else
                    UNROLL for (int i = 0; i < some; i++) raw[i] =
                        v_bytes_tail(x->k[t + g + i] + x->k_off + c, D - c);
                UNROLL for (int i = 0; i < some; i++) rd_look_up(raw[i], w[i], top, pairs);
                UNROLL for (int part = 0; part < size; part++) UNROLL for (int r = 0; r < rows; r++) {
                    const vf y = v_load((const float *)(const void *)(q + (r * ldq + c) * size + part * 64));
                    UNROLL for (int i = 0; i < some; i++) acc[r * group + g + i] =
                        rd_look_multiply(w[i], part, y, acc[r * group + g + i], pairs);
                }
            }
        }
        float sum[VW];
        v_store(sum, v_reduce_all(acc));
        UNROLL for (int r = 0; r < rows; r++)
            memcpy(s + r * RD_TB + t, sum + r * group, (size_t)group * sizeof *s);
    }
}

/* O[row][c .. c + 64) += P[row][0..n) * V; tail: columns that there are of these, 0 for all. */
SI void rd_table_pv_(const struct rd_tile *x, const float *p, float *o, int ldo, int c, const int tail,
                     const int rows) {
    vf acc[4][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < 4; j++) acc[r][j] =
        v_load(o + r * ldo + c + j * VW);
    for (int t = 0; t < x->n_used; t++) {
        const char *v = x->v[t] + x->v_off + c;
        vi w[2];
        vf y[4];
        if (x->v_next) rd_fetch_v(x, t, c);
        if (c == 0) rd_fetch_v_tail(x, t);
        v_e4m3_table(tail ? v_bytes_tail(v, tail) : v_bytes(v), w);
        UNROLL for (int j = 0; j < 4; j++) y[j] = rd_table_part(w, j);
        UNROLL for (int r = 0; r < rows; r++) {
            const vf m = v_set1(p[r * RD_TB + t]);
            UNROLL for (int j = 0; j < 4; j++) acc[r][j] = v_fma(m, y[j], acc[r][j]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < 4; j++)
        v_store(o + r * ldo + c + j * VW, acc[r][j]);
}

#define RD_TABLE(R)                                                                                          \
    static __attribute__((noinline)) void rd_table_qk##R(const struct rd_tile *x, const float *q, int ldq,   \
                                                         int D, float *s) {                                  \
        rd_look_qk_(x, (const char *)q, ldq, D, s, NULL, R, 0);                                              \
    }                                                                                                        \
    static __attribute__((noinline)) void rd_table_pv##R(const struct rd_tile *x, const float *p, float *o,  \
                                                         int ldo, int D) {                                   \
        int c = 0;                                                                                           \
        for (; c + 64 <= D; c += 64)                                                                         \
            rd_table_pv_(x, p, o, ldo, c, 0, R);                                                             \
        if (c < D) rd_table_pv_(x, p, o, ldo, c, D - c, R);                                                  \
    }
RD_TABLE(1)
RD_TABLE(2)
RD_TABLE(4)

static void rd_table_qk(const struct rd_tile *x, const float *q, int ldq, int D, int rows, float *s) {
    struct rd_tile y = *x;
    for (int r = 0, g; r < rows; r += g, y.k_next = NULL) {
        g = rows - r >= 4 ? 4 : rows - r >= 2 ? 2 : 1;
        (g == 4   ? rd_table_qk4
         : g == 2 ? rd_table_qk2
                  : rd_table_qk1)(&y, q + r * ldq, ldq, D, s + r * RD_TB);
    }
}
static void rd_table_pv(const struct rd_tile *x, const float *p, float *o, int ldo, int D, int rows) {
    struct rd_tile y = *x;
    for (int r = 0, g; r < rows; r += g, y.v_next = NULL) {
        g = rows - r >= 4 ? 4 : rows - r >= 2 ? 2 : 1;
        (g == 4   ? rd_table_pv4
         : g == 2 ? rd_table_pv2
                  : rd_table_pv1)(&y, p + r * RD_TB, o + r * ldo, ldo, D);
    }
}
#endif
