/* SPDX-License-Identifier: Apache-2.0 */
/* Products with codes of TurboQuant by vpshufb: the part of cpu_rowdot_codes.h of level avx2, by which it is
 * included. Lanes are elements. A byte holds two codes; a look-up of their low bytes and one of their high
 * bytes, interleaved, make words of them. Of 64 codes these are, of each half of the 32 bytes, the low codes
 * of 8 bytes, of the next 8, and their high codes in the same way; the query lies in that order. */

/* A head's query rows as words, [64 values][in that order]. */
static void rd_codes_pairs(const struct cpu_attn *a, const struct rd_state *st, size_t at) {
    const int n = st->ldq;
    int16_t words[RD_CODES_MAX_SIZE];
    (void)a;
    for (size_t row = at; row < at + (size_t)st->rows; row++) {
        int16_t *out = st->q16 + row * n;
        st->qf[row] = rd_words_to(st->q + row * n, n, RD_CODES_TOP, words);
        for (int d = 0; d < n; d++)
            out[d] = words[d / 64 * 64 + (d % 16 / 8 * 16 + d % 32 / 16 * 8 + d % 8) * 2 + d % 64 / 32];
    }
}

/* `size` codes (a multiple of 64) of 3 bits of n rows as nibbles: bits are moved apart by halves. */
static __attribute__((noinline)) void rd_codes_spread(const struct rd_state *st, const char *const *rows,
                                                      int64_t off, int n, int size, char *out, int ld) {
    const vi threes =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1));
    const __m128i three_words = _mm_setr_epi32(-1, -1, -1, 0);
    const vi odd = _mm256_set1_epi16((short)0xff00), high = _mm256_set1_epi8(0x70),
             low = _mm256_set1_epi8(0x07);
    (void)st;
    for (int t = 0; t < n; t++)
        for (int d = 0; d < size; d += 64) {
            const int *p = (const int *)(const void *)(rows[t] + off + d / 8 * 3);
            vi x = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_maskload_epi32(p, three_words)),
                                           _mm_maskload_epi32(p + 3, three_words), 1);
            x = _mm256_shuffle_epi8(x, threes);
            x = _mm256_blend_epi16(x, _mm256_slli_epi32(x, 4), 0xaa);
            x = _mm256_blendv_epi8(x, _mm256_slli_epi32(x, 2), odd);
            x = _mm256_or_si256(_mm256_and_si256(x, low), _mm256_and_si256(_mm256_slli_epi32(x, 1), high));
            _mm256_storeu_si256((void *)(out + t * ld + d / 2), x);
        }
}

/* Two float16 of n keys' rows, `at` bytes from where the pointers show; b NULL: one. */
SI void rd_codes_halves(const char *const *p, int64_t at, int n, float *a, float *b) {
    for (int t = 0; t < n; t += VW) {
        uint16_t raw[2][VW];
        UNROLL for (int i = 0; i < VW; i++) {
            memcpy(&raw[0][i], p[t + i] + at, 2);
            if (b) memcpy(&raw[1][i], p[t + i] + at + 2, 2);
        }
        v_store(a + t, _mm256_cvtph_ps(_mm_loadu_si128((const void *)raw[0])));
        if (b) v_store(b + t, _mm256_cvtph_ps(_mm_loadu_si128((const void *)raw[1])));
    }
}

/* Scores of `rows` query rows against n tokens, whose nibbles k (that x does not know) points to, and the
 * sums of their squares. */
SI void rd_centroids_qk_(const struct rd_tile *x, const char *const *k, int64_t off, int bytes,
                         const int16_t *q, int ldq, const int16_t *look, float *squares, float *s,
                         const int rows, const int vnni) {
    const int group = VW / rows;
    const vi codes = _mm256_set1_epi8(15);
    char parts[2][16];
    for (int i = 0; i < 16; i++) {
        parts[0][i] = (char)look[i];
        parts[1][i] = (char)(look[i] >> 8);
    }
    const vi first = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)parts[0])),
             last = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)parts[1]));
    for (int t = 0; t < x->n; t += group) {
        vi acc[VW], own[VW];
        vf sum[VW], square[VW];
        UNROLL for (int i = 0; i < VW; i++) acc[i] = own[i] = vi_set1(0);
        rd_fetch_k_tail(x, t, group);
        for (int b = 0; b < bytes; b += 32) {
            if (x->k_next && b % 64 == 0) rd_fetch_k(x, t, group, b);
            UNROLL for (int i = 0; i < group; i++) {
                const vi raw = vi_load((const int32_t *)(const void *)(k[t + i] + off + b));
                const vi at[2] = {_mm256_and_si256(raw, codes),
                                  _mm256_and_si256(_mm256_srli_epi16(raw, 4), codes)};
                UNROLL for (int j = 0; j < 4; j++) {
                    const vi lo = _mm256_shuffle_epi8(first, at[j / 2]),
                             hi = _mm256_shuffle_epi8(last, at[j / 2]);
                    const vi y = j % 2 ? _mm256_unpackhi_epi8(lo, hi) : _mm256_unpacklo_epi8(lo, hi);
                    own[i] = v_dot_words(own[i], y, y, vnni);
                    UNROLL for (int r = 0; r < rows; r++) acc[r * group + i] = v_dot_words(
                        acc[r * group + i], y,
                        vi_load((const int32_t *)(const void *)(q + r * ldq + 2 * b + j * 16)), vnni);
                }
            }
        }
        UNROLL for (int i = 0; i < VW; i++) {
            sum[i] = vi_to_f(acc[i]);
            square[i] = vi_to_f(own[i]);
        }
        float done[VW];
        v_store(done, v_reduce_all(sum));
        UNROLL for (int r = 0; r < rows; r++)
            memcpy(s + r * RD_TB + t, done + r * group, (size_t)group * sizeof *s);
        v_store(done, v_reduce_all(square));
        memcpy(squares + t, done, (size_t)group * sizeof *squares);
    }
}

#define RD_CENTROIDS(R, VNNI)                                                                                \
    static __attribute__((noinline)) void rd_centroids_qk##R##_##VNNI(                                       \
        const struct rd_tile *x, const char *const *k, int64_t off, int bytes, const int16_t *q, int ldq,    \
        const int16_t *look, float *squares, float *s) {                                                     \
        rd_centroids_qk_(x, k, off, bytes, q, ldq, look, squares, s, R, VNNI);                               \
    }
RD_CENTROIDS(1, 0)
RD_CENTROIDS(2, 0)
RD_CENTROIDS(4, 0)
RD_CENTROIDS(1, 1)
RD_CENTROIDS(2, 1)
RD_CENTROIDS(4, 1)
typedef void rd_centroids_func(const struct rd_tile *, const char *const *k, int64_t off, int bytes,
                               const int16_t *q, int ldq, const int16_t *look, float *squares, float *s);
/* [VNNI][log2 of the rows] */
static rd_centroids_func *const rd_centroids_qks[2][3] = {
    {rd_centroids_qk1_0, rd_centroids_qk2_0, rd_centroids_qk4_0},
    {rd_centroids_qk1_1, rd_centroids_qk2_1, rd_centroids_qk4_1}};

/* Scores of a tile, whose nibbles k points to. Rows in groups of 4, 2 and 1; only the first group
 * prefetches. */
static void rd_codes_scores(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x,
                            const char *const *k, int64_t off, size_t at) {
    struct rd_tile y = *x;
    float squares[RD_TB];
    for (int r = 0, g; r < st->rows; r += 1 << g, y.k_next = NULL) {
        g = st->rows - r >= 4 ? 2 : st->rows - r >= 2;
        rd_centroids_qks[st->vnni][g](&y, k, off, a->head_size / 2, st->q16 + (at + (size_t)r) * st->ldq,
                                      st->ldq, st->look, squares, st->s + r * RD_TB);
    }
    for (int t = 0; t < x->n; t += VW)
        v_store(st->ks + t, v_div(v_load(st->ks + t), v_sqrt(v_load(squares + t))));
}
