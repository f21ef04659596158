/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs by byte products, for int4's V and TurboQuant's: P as bytes, and its products. The end of
 * cpu_rowdot_quads.h, which includes it. */

/* P of `rows` rows (1, 2 or 4) from r on and of 16 * vecs keys, times V's scales, as bytes: of each group of
 * four keys (rd_quads_mix()) their high parts, then their low ones; and the rows' factors. Largest ones are
 * found as integers, for which NaN is larger than any number, and for all rows together. Scales of what is
 * too small to count are 0; returns for which rows they are. */
SI unsigned rd_quads_bytes_of_p(const struct rd_state *st, int r, const vf p[4][RD_QUADS_TB / VW],
                                const int vecs, const int rows) {
    vi top[4];
    UNROLL for (int i = 0; i < 4; i++) {
        top[i] = vi_set1(0);
        UNROLL for (int t = 0; t < vecs && i < rows; t++) top[i] =
            _mm512_max_epu32(top[i], _mm512_castps_si512(_mm512_abs_ps(p[i][t])));
    }
    const vf most = rd_most_of_four(top);
    const __mmask16 counts = _mm512_cmp_ps_mask(most, v_set1(1e-30f), _CMP_NLE_UQ);
    const vf by = _mm512_maskz_div_ps(counts, v_set1(RD_QUADS_TOP), most);
    _mm512_mask_storeu_ps(st->pf + r, (__mmask16)((1u << rows) - 1),
                          v_fma(most, v_set1(1.0f / RD_QUADS_TOP), v_sub(most, most)));
    UNROLL for (int i = 0; i < rows; i++) {
        const vf f = i == 0   ? _mm512_permute_ps(by, 0x00)
                     : i == 1 ? _mm512_permute_ps(by, 0x55)
                     : i == 2 ? _mm512_permute_ps(by, 0xaa)
                              : _mm512_permute_ps(by, 0xff);
        UNROLL for (int t = 0; t < vecs; t += 2) {
            const vi w = _mm512_packs_epi32(_mm512_cvtps_epi32(v_mul(p[i][t], f)),
                                            _mm512_cvtps_epi32(v_mul(p[i][t + 1], f)));
            const vi high = _mm512_srai_epi16(_mm512_add_epi16(w, _mm512_set1_epi16(128)), 8),
                     low = _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8);
            _mm512_storeu_si512((char *)st->p16 + (r + i) * RD_QUADS_LDP + 2 * t * VW,
                                _mm512_shuffle_epi32(_mm512_packs_epi16(high, low), 0xd8));
        }
    }
    return ~(unsigned)counts & ((1u << rows) - 1);
}

/* The same for all rows, P being in memory; what they have for each unit of z goes to the rows `at`, ... of
 * lows where there are zero points. */
static void rd_quads_weights(const struct rd_state *st, size_t at, int from, int n, const int32_t *zeros) {
    for (int r = from, g; r < st->rows; r += g) {
        vf p[4][RD_QUADS_TB / VW];
        g = cpu_min(4, st->rows - r);
        for (int i = 0; i < 4; i++)
            for (int t = 0; t < RD_QUADS_TB / VW; t++)
                p[i][t] = i < g && t * VW < n ? v_load(st->s + (r + i) * st->tile + t * VW) : v_zero();
        const unsigned none =
            g == 4   ? n > RD_TB ? rd_quads_bytes_of_p(st, r, p, 4, 4) : rd_quads_bytes_of_p(st, r, p, 2, 4)
              : g == 3 ? rd_quads_bytes_of_p(st, r, p, st->tile / VW, 3)
            : g == 2 ? rd_quads_bytes_of_p(st, r, p, st->tile / VW, 2)
                     : rd_quads_bytes_of_p(st, r, p, st->tile / VW, 1);
        for (int i = 0; zeros && i < g; i++) {
            float *low = st->lows + (at + (size_t)(r + i)) * VW;
            vf sum = v_load(low);
            for (int t = 0; t < n && !(none >> i & 1); t += VW)
                sum = v_fma(p[i][t / VW], vi_to_f(vi_load(zeros + t)), sum);
            v_store(low, sum);
        }
    }
}

/* Rows of P at p, RD_QUADS_LDP bytes apart, times 16 bytes of each 64 of V, in groups of four keys at v:
 * O[row][0..16) of the low codes, O[row][64..80) of the high ones. */
SI void rd_quads_pv_(const struct rd_tile *x, const vi *v, int groups, const char *p, const float *factor,
                     float *o, int ldo, int part, int b, const int rows) {
    vi high[2][4], low[2][4];
    UNROLL for (int r = 0; r < rows; r++) high[0][r] = high[1][r] = low[0][r] = low[1][r] = vi_set1(0);
    for (int g = 0; g < groups; g++) {
        const vi u = v[4 * g + part], c1 = _mm512_and_si512(_mm512_srli_epi16(u, 4), _mm512_set1_epi8(15));
        if (x->v_next && 4 * g + part < x->n_used) {
            rd_fetch_v(x, 4 * g + part, b);
            if (b == 0) rd_fetch_v_tail(x, 4 * g + part);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            int32_t h, l;
            memcpy(&h, p + r * RD_QUADS_LDP + 8 * g, sizeof h);
            memcpy(&l, p + r * RD_QUADS_LDP + 8 * g + 4, sizeof l);
            const vi ph = vi_set1(h), pl = vi_set1(l);
            high[0][r] = rd_quads_dot(high[0][r], u, ph);
            low[0][r] = rd_quads_dot(low[0][r], u, pl);
            high[1][r] = rd_quads_dot(high[1][r], c1, ph);
            low[1][r] = rd_quads_dot(low[1][r], c1, pl);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        float *to = o + r * ldo;
        const vi odd = vi_add(_mm512_slli_epi32(high[1][r], 8), low[1][r]),
                 both = vi_add(_mm512_slli_epi32(high[0][r], 8), low[0][r]),
                 even = vi_sub(both, _mm512_slli_epi32(odd, 4));
        v_store(to, v_fma(vi_to_f(even), v_set1(factor[r]), v_load(to)));
        v_store(to + 64, v_fma(vi_to_f(odd), v_set1(factor[r]), v_load(to + 64)));
    }
}

#define RD_QUADS_PV(R)                                                                                       \
    static __attribute__((noinline)) void rd_quads_pv##R(const struct rd_tile *x, const vi *v, int groups,   \
                                                         const char *p, const float *factor, float *o,       \
                                                         int ldo, int b) {                                   \
        for (int part = 0; part < 4; part++)                                                                 \
            rd_quads_pv_(x, v, groups, p, factor, o + 16 * part, ldo, part, b, R);                           \
    }
RD_QUADS_PV(1)
RD_QUADS_PV(2)
RD_QUADS_PV(4)
static __attribute__((noinline)) void rd_quads_pv4_all(const struct rd_tile *x, const vi *v, int groups,
                                                       const char *p, const float *factor, float *o, int ldo,
                                                       int b) {
    struct rd_tile y = rd_fetches_all(x, 1);
    (void)b;
    y.n_used = RD_QUADS_TB; /* rows behind those used are some that may be read */
    for (int part = 0; part < 4; part++)
        rd_quads_pv_(&y, v, groups, p, factor, o + 16 * part, ldo, part, 0, 4);
}

static void rd_quads_pv(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x,
                        float *o) {
    const int bytes = a->head_size_v / 2, groups = (x->n_used + RD_TB - 1) / RD_TB * (RD_TB / 4),
              whole = rd_quads_is_whole(a, st, x);
    vi *const v = (vi *)(void *)st->mixed;
    struct rd_tile y = *x;
    for (int b = 0; b < bytes; b += 64, y.v_next = x->v_next, o += 128) {
        for (int g = 0; g < groups && !whole; g++)
            rd_quads_mix(x, g, b, bytes, v + 4 * g);
        for (int r = 0, g; r < st->rows; r += g, y.v_next = NULL) {
            g = rd_quads_group(st->rows, r);
            (g == 4   ? b == 0 && rd_has_all(&y, 1) ? rd_quads_pv4_all : rd_quads_pv4
             : g == 2 ? rd_quads_pv2
                      : rd_quads_pv1)(&y, v, groups, (const char *)st->p16 + r * RD_QUADS_LDP, st->pf + r,
                                      o + r * st->ldo, st->ldo, b);
        }
    }
}

/* n outputs back in natural order, less the sum of `lows` (NULL: nothing): of 64 bytes, part a has bytes 4a
 * to 4a + 3 of each 16. */
static void rd_quads_order(float *o, int n, const float *lows) {
    const float low = lows ? v_hsum(v_load(lows)) : 0.0f;
    float x[128];
    for (int c = 0; c < n; c += 128) {
        memcpy(x, o + c, sizeof x);
        for (int i = 0; i < 64; i++) {
            const int from = i % 16 / 4 * 16 + i / 16 * 4 + i % 4;
            o[c + 2 * i] = x[from] - low;
            o[c + 2 * i + 1] = x[64 + from] - low;
        }
    }
}
