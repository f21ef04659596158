/* SPDX-License-Identifier: Apache-2.0 */
/* Products with codes of nvfp4 and TurboQuant, by vpermw: the part of cpu_rowdot_codes.h of the levels from
 * avx512, by which it is included. */

/* acc + the two products of each word pair; q: one pair, in memory. */
SI vi rd_codes_dot(vi acc, vi a, const int32_t *q, int vnni) {
    if (!vnni) return vi_add(acc, _mm512_madd_epi16(a, vi_set1(*q)));
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(a), "m"(*q)); /* compiled without its flag */
    return acc;
}

/* A head's query rows as the pairs of each group of rows, [8 values][code of a half][row]. */
static void rd_codes_pairs(const struct cpu_attn *a, const struct rd_state *st, size_t at) {
    const int n = st->ldq;
    const int top = is_centroids(a->k_row) ? RD_CODES_TOP : RD_WORDS_TOP;
    int16_t words[RD_CODES_MAX_SIZE + RD_CODES];
    for (int r = 0, g; r < st->rows; r += g) {
        int16_t *out = st->q16 + (at + (size_t)r) * n;
        g = rd_quads_group(st->rows, r);
        for (int i = 0; i < g; i++) {
            const size_t row = at + (size_t)(r + i);
            const float f = rd_words_to(st->q + row * n, n, top, words);
            st->qf[row] = a->k_row == CPU_E2M1 ? 128.0f * f : f; /* 2 x e2m1, scales / 256 */
            for (int d = 0; d < n / 2; d++) {
                const int from = d / 4 * 8 + d % 4;
                out[(d * g + i) * 2] = words[from];
                out[(d * g + i) * 2 + 1] = words[from + 4];
            }
        }
    }
}

/* Scores of `rows` query rows against 16 keys from t, whose nibbles k (that x does not know) points to;
 * scales: [group][RD_TB] for these keys, or NULL and centroids, whose sum of squares goes to `squares`. */
SI void rd_codes_qk_(const struct rd_tile *x, const char *const *k, int64_t off, int t, int bytes,
                     const int32_t *q, const int16_t *look, const float *scales, float *squares, float *s,
                     const int rows, const int is_e2m1, const int vnni) {
    enum { QUARTER = 4 };
    const vi table = _mm512_loadu_si512(look);
    const int step = is_e2m1 ? 2 : 4; /* words of a lane until sums become floats */
    vf sum[4], square = v_zero();
    UNROLL for (int r = 0; r < rows; r++) sum[r] = v_zero();
    if (x->k_next) rd_fetch_k_tail(x, t, VW);
    for (int b = 0; b < bytes; b += 64, q += VW * QUARTER * rows) {
        const int words = bytes - b < 64 ? (bytes - b) / 4 : VW;
        vi w[VW];
        rd_quads_turn(k + t, off + b, bytes - b, w);
        for (int j = 0; j < words; j += step) {
            const int32_t *const at = q + j * QUARTER * rows;
            vi acc[4][2], own = vi_set1(0);
            UNROLL for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = vi_set1(0);
            if (x->k_next)
                for (int i = j; i < VW; i += words)
                    rd_fetch_k(x, t + i, step, b);
            UNROLL for (int i = 0; i < step; i++) UNROLL for (int c = 0; c < QUARTER; c++) {
                const vi y = _mm512_permutexvar_epi16(
                    c ? _mm512_srli_epi16(w[j + i], 4u * (unsigned)c) : w[j + i], table);
                UNROLL for (int r = 0; r < rows; r++) acc[r][c % 2] =
                    rd_codes_dot(acc[r][c % 2], y, at + (i * QUARTER + c) * rows + r, vnni);
                if (!is_e2m1) own = v_dot_words(own, y, y, vnni);
            }
            if (is_e2m1) {
                const vf scale = v_load(scales + (b / 8 + j / 2) * RD_TB + t);
                UNROLL for (int r = 0; r < rows; r++) sum[r] =
                    v_fma(vi_to_f(vi_add(acc[r][0], acc[r][1])), scale, sum[r]);
            } else {
                square = v_add(square, vi_to_f(own));
                UNROLL for (int r = 0; r < rows; r++) sum[r] =
                    v_add(vi_to_f(vi_add(acc[r][0], acc[r][1])), sum[r]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) v_store(s + r * RD_TB + t, sum[r]);
    if (!is_e2m1) v_store(squares + t, square);
}

/* The scores of four rows against a whole tile of 128 centroids a row, and V's rows mixed on the way, as
 * rd_quads_whole() has it. */
SI void rd_centroids_words(const vi w[4], const int32_t *q, vi table, vf sum[4], vf *square) {
    vi acc[4][2], own = vi_set1(0);
    UNROLL for (int r = 0; r < 4; r++) acc[r][0] = acc[r][1] = vi_set1(0);
    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int c = 0; c < 4; c++) {
        const vi y = _mm512_permutexvar_epi16(c ? _mm512_srli_epi16(w[i], 4u * (unsigned)c) : w[i], table);
        UNROLL for (int r = 0; r < 4; r++) acc[r][c % 2] =
            rd_codes_dot(acc[r][c % 2], y, q + (i * 4 + c) * 4 + r, 1);
        own = v_dot_words(own, y, y, 1);
    }
    *square = v_add(*square, vi_to_f(own));
    UNROLL for (int r = 0; r < 4; r++) sum[r] = v_add(vi_to_f(vi_add(acc[r][0], acc[r][1])), sum[r]);
}
static __attribute__((noinline)) void rd_centroids_whole(const struct rd_tile *x, const char *const *k,
                                                         int64_t off, const int32_t *q, const int16_t *look,
                                                         float *squares, float *s, vi v[RD_TB]) {
    const vi table = _mm512_loadu_si512(look);
    vi w[2][VW];
    rd_quads_turn(k, off, 64, w[0]);
    if (x->k_next) rd_fetch_k_tail(x, 0, RD_TB);
    UNROLL for (int half = 0; half < 2; half++) {
        vf sum[4], square = v_zero();
        UNROLL for (int r = 0; r < 4; r++) sum[r] = v_zero();
        UNROLL for (int j = 0; j < VW; j += 4) {
            if (x->k_next) rd_fetch_k(x, half * VW + j, 4, 0);
            UNROLL for (int i = j / 2; i < j / 2 + 2; i++) {
                if (half)
                    rd_quads_mix(x, i, 0, 64, v + 4 * i);
                else
                    rd_quads_turn_step(k + VW, off, 64, i / 4, i % 4, w[1] + i / 4 * 8);
            }
            rd_centroids_words(w[half] + j, q + j * 16, table, sum, &square);
        }
        UNROLL for (int r = 0; r < 4; r++) v_store(s + r * RD_TB + half * VW, sum[r]);
        v_store(squares + half * VW, square);
    }
}

/* What rd_codes_pv_ takes for a weight: P times the scales of 8 groups, for rows r and r + 1 of the four at
 * pt, as pairs of keys in 16 bits; returns the factors. In a quarter: groups 0, 1 of row r, then of r + 1. */
SI vf rd_codes_weights(const float *scales, const float *pt, int n, int nan, vi out[RD_TB / 2],
                       const int odd) {
    vf w[RD_TB], most = v_zero(), bad = v_zero();
    for (int t = 0; t < n; t++) {
        const vf p = _mm512_broadcast_f32x4(_mm_loadu_ps(pt + t / VW * 4 * VW + t % 4 * VW + t % VW / 4 * 4));
        w[t] = v_mul(odd ? _mm512_permute_ps(p, 0xfa) : _mm512_permute_ps(p, 0x50), v_load(scales + t * VW));
        most = _mm512_range_ps(most, w[t], 0x0b); /* the larger magnitude */
    }
    for (int t = 0; nan && t < n; t++)
        bad = v_add(bad, v_sub(w[t], w[t]));
    const __mmask16 some = _mm512_cmp_ps_mask(most, v_set1(1e-30f), _CMP_GT_OQ);
    const vf by = _mm512_maskz_div_ps(some, v_set1(RD_WORDS_TOP), most);
    for (int t = 0; t < n; t += 2) {
        const vi a = _mm512_cvtps_epi32(v_mul(w[t], by)), b = _mm512_cvtps_epi32(v_mul(w[t + 1], by));
        out[t / 2] = _mm512_mask_blend_epi16(0xaaaaaaaau, a, _mm512_slli_epi32(b, 16));
    }
    /* 2 x e2m1 times a scale / 256 */
    return v_fma(most, v_set1(128.0f / RD_WORDS_TOP), bad);
}

/* Four rows of P as one vector for four keys in turn: of key 4 i + j quarter i of vector j. */
SI void rd_codes_turn(const float *s, int t, const int rows, float *out) {
    vf p[4], h[4];
    UNROLL for (int r = 0; r < 4; r++) p[r] = r < rows ? v_load(s + r * RD_TB + t) : v_zero();
    UNROLL for (int i = 0; i < 2; i++) {
        h[2 * i] = _mm512_unpacklo_ps(p[2 * i], p[2 * i + 1]);
        h[2 * i + 1] = _mm512_unpackhi_ps(p[2 * i], p[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        const __m512d a = _mm512_castps_pd(h[i]), b = _mm512_castps_pd(h[2 + i]);
        v_store(out + 2 * i * VW, _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)));
        v_store(out + (2 * i + 1) * VW, _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
}

/* Word i of each quarter in all its words. */
SI vi rd_codes_quarter(vi x, const int i) {
    return i == 0   ? _mm512_shuffle_epi32(x, 0x00)
           : i == 1 ? _mm512_shuffle_epi32(x, 0x55)
           : i == 2 ? _mm512_shuffle_epi32(x, 0xaa)
                    : _mm512_shuffle_epi32(x, 0xff);
}

/* The columns of one half of 128, at byte b of the rows: O[row] += P[row] * scales * V. */
SI void rd_codes_pv_(const struct rd_tile *x, vi (*p)[RD_TB / 2], const vf *factor, const vi table, float *o,
                     int ldo, int b, int bytes, const int half, const int rows, const int vnni) {
    vi acc[4][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < 4; j++) acc[r][j] = vi_set1(0);
    for (int t = 0; t < x->n_used; t += 2) {
        const char *v0 = x->v[t] + x->v_off + b, *v1 = x->v[t + 1] + x->v_off + b;
        const vi a = bytes - b >= 64 ? v_bytes(v0) : v_bytes_tail(v0, bytes - b),
                 c = bytes - b >= 64 ? v_bytes(v1) : v_bytes_tail(v1, bytes - b);
        const vi raw = half ? _mm512_unpackhi_epi16(a, c) : _mm512_unpacklo_epi16(a, c);
        vi w[4];
        if (x->v_next && half == 0) {
            rd_fetch_v(x, t, b);
            rd_fetch_v(x, t + 1, b);
        }
        UNROLL for (int r = 0; r < rows; r++) w[r] = rd_codes_quarter(p[r / 2][t / 2], r % 2 * 2 + half);
        UNROLL for (int j = 0; j < 4; j++) {
            const vi y = _mm512_permutexvar_epi16(j ? _mm512_srli_epi16(raw, 4u * (unsigned)j) : raw, table);
            UNROLL for (int r = 0; r < rows; r++) acc[r][j] = v_dot_words(acc[r][j], y, w[r], vnni);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        const vf f = (vf)rd_codes_quarter((vi)factor[r / 2], r % 2 * 2 + half);
        UNROLL for (int j = 0; j < 4; j++) {
            float *to = o + r * ldo + 2 * b + j * 2 * VW + half * VW;
            v_store(to, v_fma(vi_to_f(acc[r][j]), f, v_load(to)));
        }
    }
}

#define RD_CODES_ROWS(R, VNNI)                                                                               \
    static __attribute__((noinline)) void rd_e2m1_qk##R##_##VNNI(                                            \
        const struct rd_tile *x, const char *const *k, int64_t off, int t, int bytes, const int32_t *q,      \
        const int16_t *look, const float *scales, float *s) {                                                \
        rd_codes_qk_(x, k, off, t, bytes, q, look, scales, NULL, s, R, 1, VNNI);                             \
    }                                                                                                        \
    static __attribute__((noinline)) void rd_centroids_qk##R##_##VNNI(                                       \
        const struct rd_tile *x, const char *const *k, int64_t off, int t, int bytes, const int32_t *q,      \
        const int16_t *look, const float *squares, float *s) {                                               \
        rd_codes_qk_(x, k, off, t, bytes, q, look, NULL, (float *)squares, s, R, 0, VNNI);                   \
    }                                                                                                        \
    static __attribute__((noinline)) void rd_e2m1_pv##R##_##VNNI(                                            \
        const struct rd_tile *x, const float *scales, int nan, const int16_t *look, const float *s,          \
        float *o, int ldo, int bytes) {                                                                      \
        const vi table = _mm512_loadu_si512(look);                                                           \
        float pt[RD_TB * 4];                                                                                 \
        for (int t = 0; t < x->n; t += VW)                                                                   \
            rd_codes_turn(s, t, R, pt + t / VW * 4 * VW);                                                    \
        for (int b = 0; b < bytes; b += 64, scales += RD_TB * VW) {                                          \
            vi p[2][RD_TB / 2];                                                                              \
            vf f[2];                                                                                         \
            f[0] = rd_codes_weights(scales, pt, x->n, nan, p[0], 0);                                         \
            if (R > 2) f[1] = rd_codes_weights(scales, pt, x->n, nan, p[1], 1);                              \
            rd_codes_pv_(x, p, f, table, o, ldo, b, bytes, 0, R, VNNI);                                      \
            rd_codes_pv_(x, p, f, table, o, ldo, b, bytes, 1, R, VNNI);                                      \
        }                                                                                                    \
    }
RD_CODES_ROWS(1, 0)
RD_CODES_ROWS(2, 0)
RD_CODES_ROWS(4, 0)
RD_CODES_ROWS(1, 1)
RD_CODES_ROWS(2, 1)
RD_CODES_ROWS(4, 1)
typedef void rd_codes_qk_func(const struct rd_tile *, const char *const *k, int64_t off, int t, int bytes,
                              const int32_t *q, const int16_t *look, const float *, float *s);
typedef void rd_codes_pv_func(const struct rd_tile *, const float *scales, int nan, const int16_t *look,
                              const float *s, float *o, int ldo, int bytes);
/* [e2m1][VNNI][log2 of the rows] */
static rd_codes_qk_func *const rd_codes_qks[2][2][3] = {
    {{rd_centroids_qk1_0, rd_centroids_qk2_0, rd_centroids_qk4_0},
     {rd_centroids_qk1_1, rd_centroids_qk2_1, rd_centroids_qk4_1}},
    {{rd_e2m1_qk1_0, rd_e2m1_qk2_0, rd_e2m1_qk4_0}, {rd_e2m1_qk1_1, rd_e2m1_qk2_1, rd_e2m1_qk4_1}}};
static rd_codes_pv_func *const rd_codes_pvs[2][3] = {{rd_e2m1_pv1_0, rd_e2m1_pv2_0, rd_e2m1_pv4_0},
                                                     {rd_e2m1_pv1_1, rd_e2m1_pv2_1, rd_e2m1_pv4_1}};

/* Scores of a tile, whose nibbles k points to. Rows in groups of 4, 2 and 1; only the first group
 * prefetches. */
static void rd_codes_scores(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x,
                            const char *const *k, int64_t off, size_t at) {
    const int is_e2m1 = a->k_row == CPU_E2M1, D = a->head_size;
    struct rd_tile y = *x;
    float squares[RD_TB];
    const int whole = rd_quads_is_whole(a, st, x) ? 4 : 0;
    if (whole && a->v_row == CPU_V3) {
        rd_codes_spread(st, x->v, x->v_off, x->n, a->head_size_v, st->byte_v, st->ldo / 2);
        y.v = st->byte_rows + RD_TB;
        y.v_off = 0;
    }
    if (whole)
        rd_centroids_whole(&y, k, off, (const int32_t *)(const void *)(st->q16 + at * st->ldq), st->look,
                           squares, st->s, (vi *)(void *)st->mixed);
    for (int t = 0; t < x->n; t += VW) {
        y.k_next = whole ? NULL : x->k_next;
        for (int r = whole, g; r < st->rows; r += 1 << g, y.k_next = NULL) {
            g = st->rows - r >= 4 ? 2 : st->rows - r >= 2;
            rd_codes_qks[is_e2m1][st->vnni][g](
                &y, k, off, t, D / 2, (const int32_t *)(const void *)(st->q16 + (at + (size_t)r) * st->ldq),
                st->look, is_e2m1 ? st->group_k : squares, st->s + r * RD_TB);
        }
        if (!is_e2m1) v_store(st->ks + t, v_div(v_load(st->ks + t), v_sqrt(v_load(squares + t))));
    }
}

static void rd_codes_sums(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x,
                          float *o) {
    struct rd_tile y = *x;
    int nan = st->nan;
    for (int r = 0; r < st->rows; r++)
        for (int t = 0; t < x->n; t += VW) {
            const vf p = v_load(st->s + r * RD_TB + t);
            nan |= _mm512_cmp_ps_mask(p, p, _CMP_UNORD_Q) != 0;
        }
    for (int r = 0, g; r < st->rows; r += 1 << g, y.v_next = NULL) {
        g = st->rows - r >= 4 ? 2 : st->rows - r >= 2;
        rd_codes_pvs[st->vnni][g](&y, st->group_v, nan, st->look, st->s + r * RD_TB, o + r * st->ldo, st->ldo,
                                  a->head_size_v / 2);
    }
}
