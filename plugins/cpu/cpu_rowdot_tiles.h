/* SPDX-License-Identifier: Apache-2.0 */
/* Row dots of e4m3 caches by AMX tiles, for bf16 queries and outputs: included by cpu_level.c.
 *
 * S[16 tokens][rows] = K[16][D] Q^T[D][rows] and O[rows][16] += P[rows][32 tokens] V[32][16], V in pairs of
 * tokens and P in bf16, as in the prefill: the products leave the vector ports, which then convert K and V
 * and do the softmax. Q and P carry powers of two that bring the products of v_e4m3_halves()'s values back
 * into range.
 *
 * Tile instructions wait long for each other, and after 0.4 us without work the unit sleeps and takes 0.2 us
 * to wake (measured). So a head's scores are taken while its V is converted, and its O while the next head's
 * K is. */

#if CPU_X86 >= 3
enum { RT_TOKENS = 16 };
enum { RT_P_SCALE = 90, RT_Q_TOP = 100 }; /* exponents: of P, of the largest query element */

SI int rd_tiles_serve(const struct cpu_attn *a, int rows) {
    return a->kv_dtype == CPU_E4M3 && cpu_bf16_serves(a) && rows <= RD_TILE_ROWS && a->head_size % 64 == 0 &&
           a->head_size_v % 64 == 0;
}

/* Tiles 0, 1: scores of 16 tokens each; 2, 3: K, or V; 4: Q; 5: P; 6, 7: O. */
static void rd_tiles_begin(int rows) {
    struct amx_config c = {.palette = 1};
    const int num[8] = {16, 16, 16, 16, 16, rows, rows, rows},
              words[8] = {rows, rows, 16, 16, rows, 16, 16, 16};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)num[i];
        c.row_bytes[i] = (uint16_t)(words[i] * 4);
    }
    amx_configure(&c);
}

/* A head's query rows (floats that are bf16) as tiles [step][16 pairs of elements][row], a step being one
 * half of what v_e4m3_halves() gives. Rows are brought to one largest exponent; their factors for the scores
 * go to `factor`. */
static void rd_tiles_query(const struct rd_state *st, const float *q, float *factor, uint32_t *out) {
    const int rows = st->rows;
    for (int r = 0; r < rows; r++, q += st->ldq) {
        vf most = v_zero();
        for (int d = 0; d < st->ldq; d += VW)
            most = v_max(v_max(v_load(q + d), v_sub(v_zero(), v_load(q + d))), most);
        const float top = v_hmax(most);
        int up = top == 0 ? 120 : top < INFINITY ? RT_Q_TOP - ilogbf(top) : 0;
        if (up > 120) up = 120;
        const vf by = v_set1(ldexpf(1, up));
        factor[r] = ldexpf(1, RT_P_SCALE - up);
        for (int d = 0; d < st->ldq; d += 64) {
            uint32_t pairs[32], *to = out + (size_t)d / 2 * rows + r;
            UNROLL for (int i = 0; i < 64; i += 32) _mm512_storeu_si512(
                pairs + i / 2, v_words_bf16(v_mul(v_load(q + d + i), by), v_mul(v_load(q + d + i + VW), by)));
            UNROLL for (int step = 0; step < 2; step++) UNROLL for (int i = 0; i < 16; i++)
                to[(step * 16 + i) * rows] = pairs[i / 4 * 8 + step * 4 + i % 4];
        }
    }
}

/* Puts NaN into the tiles that rd_tiles_keys() or rd_tiles_values() made of rows with some: rare. */
static __attribute__((noinline)) void rd_tiles_nan(char *tiles, int is_v, const char *const *rows,
                                                   int64_t off, int D) {
    const uint16_t nan = 0x7fc0;
    for (int i = 0; i < RD_TB; i++)
        for (int d = 0; d < D; d++) {
            const int in = d % 16, part = d % 64 / 16;
            const int k = ((d / 64 * 2 + in / 8) * RD_TB + i) * 64 + (part * 8 + in % 8) * 2;
            const int v = ((d / 64 * 4 + in / 4) * 16 + i / 2) * 64 + (part * 4 + in % 4) * 4 + i % 2 * 2;
            if ((rows[i][off + d] & 0x7f) == 0x7f) memcpy(tiles + (is_v ? v : k), &nan, sizeof nan);
        }
}

/* n bytes of a row into L1 and, where there is such a list, of row i two tiles ahead into L2. */
SI void rd_tiles_fetch(const char *row, const char *const *far, int64_t far_off, int i, int n) {
    for (int b = 0; b < n; b += 64)
        v_prefetch(row + b);
    for (int b = 0; far && b < n; b += 64)
        v_prefetch_l2(far[i] + far_off + b);
}

/* One step of the scores: 32 elements against the two halves of the tile's tokens. */
SI void rd_tiles_score(const struct rd_state *st, const uint32_t *q, int i) {
    AMX_LOAD(4, q + (size_t)i * 16 * st->rows, st->rows * 4);
    AMX_LOAD(2, st->tile_k + (size_t)i * 2048, 64);
    AMX_DOT(0, 2, 4);
    AMX_LOAD(3, st->tile_k + (size_t)i * 2048 + 1024, 64);
    AMX_DOT(1, 3, 4);
}

/* Scores of tile_k against q to tile_s, while V's rows become tiles [16 columns][16 pairs of tokens][64
 * bytes]. */
static void rd_tiles_values(const struct rd_state *st, const struct rd_tile *x, const uint32_t *q) {
    const int steps = st->ldq / 32, D = st->ldo;
    struct e4m3_top top = {vi_set1(0), vi_set1(0)};
    AMX_ZERO(0);
    AMX_ZERO(1);
    for (int i = 0, step = 0; i < RD_TB; i += 2) {
        const char *v0 = x->v[i] + x->v_off, *v1 = x->v[i + 1] + x->v_off;
        for (int t = i; x->k_rows && t < i + 2; t++)
            rd_tiles_fetch(x->k_rows[t] + x->k_next_off, x->k_far, x->k_far_off, t, st->ldq);
        for (int c = 0; c < D; c += 64) {
            const vi a = v_bytes(v0 + c), b = v_bytes(v1 + c);
            char *to = st->tile_v + (size_t)(c / 16 * 16 + i / 2) * 64;
            vi w[4];
            e4m3_track(&top, a);
            e4m3_track(&top, b);
            v_e4m3_halves(_mm512_unpacklo_epi8(a, b), w);
            v_e4m3_halves(_mm512_unpackhi_epi8(a, b), w + 2);
            UNROLL for (int j = 0; j < 4; j++) _mm512_store_si512(to + (size_t)j * 1024, w[j]);
        }
        /* Done by two thirds of the way, so that they are in memory at its end. */
        for (; step < steps && step * 20 <= i * steps; step++)
            rd_tiles_score(st, q, step);
        if (step == steps) {
            AMX_STORE(0, st->tile_s, 64);
            AMX_STORE(1, st->tile_s + 1024, 64);
            step++;
        }
    }
    if (e4m3_has_nan(&top)) rd_tiles_nan(st->tile_v, 1, x->v, x->v_off, D);
}

/* Four rows, from `at`, of the scores of 16 tokens as four vectors of tokens. */
SI void rd_tiles_turn(const char *at, vf out[4]) {
    vi w[4], t[4];
    UNROLL for (int i = 0; i < 4; i++) {
        w[i] = _mm512_castsi128_si512(_mm_load_si128((const void *)(at + i * 64)));
        UNROLL for (int j = 1; j < 4; j++) w[i] = _mm512_mask_broadcast_i32x4(
            w[i], (__mmask16)(0xf << 4 * j), _mm_load_si128((const void *)(at + (4 * j + i) * 64)));
    }
    UNROLL for (int i = 0; i < 4; i += 2) {
        t[i] = _mm512_unpacklo_epi32(w[i], w[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(w[i], w[i + 1]);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        out[2 * i] = (vf)_mm512_unpacklo_epi64(t[i], t[2 + i]);
        out[2 * i + 1] = (vf)_mm512_unpackhi_epi64(t[i], t[2 + i]);
    }
}

/* tile_s [token][16] as rows of scores. */
static void rd_tiles_scores(const struct rd_state *st) {
    for (int r = 0; r < st->rows; r += 4)
        for (int t = 0; t < RD_TB; t += RT_TOKENS) {
            vf x[4];
            rd_tiles_turn(st->tile_s + t * 64 + r * 4, x);
            for (int i = 0; i < 4 && r + i < st->rows; i++)
                v_store(st->s + (r + i) * RD_TB + t, x[i]);
        }
}

/* 32 columns, from c, of O += P V; in the order of tile_v. */
SI void rd_tiles_sum(const struct rd_state *st, float *o, int c) {
    AMX_LOAD(6, o + c, st->ldo * 4);
    AMX_LOAD(2, st->tile_v + (size_t)c * 64, 64);
    AMX_DOT(6, 5, 2);
    AMX_LOAD(7, o + c + 16, st->ldo * 4);
    AMX_LOAD(3, st->tile_v + (size_t)(c + 16) * 64, 64);
    AMX_DOT(7, 5, 3);
    AMX_STORE(6, o + c, st->ldo * 4);
    AMX_STORE(7, o + c + 16, st->ldo * 4);
}

/* P of n tokens, in the place of the scores, as a tile of bf16. */
SI void rd_tiles_weights(const struct rd_state *st, int n) {
    const vf up = v_set1(0x1p90f); /* RT_P_SCALE */
    for (int r = 0; r < st->rows; r++) {
        const float *p = st->s + r * RD_TB;
        _mm512_store_si512(st->tile_p + r * 64,
                           v_words_bf16(v_mul(v_load(p), up), n > VW ? v_mul(v_load(p + VW), up) : v_zero()));
    }
    AMX_LOAD(5, st->tile_p, 64);
}

/* O += P V (o NULL: nothing yet), while the rows k (NULL: none) become tile_k, [step][32 tokens][64
 * bytes]. */
static void rd_tiles_keys(const struct rd_state *st, const struct rd_tile *x, const char *const *k,
                          int64_t off, float *o) {
    const int D = st->ldq, groups = o ? st->ldo / 32 : 0;
    struct e4m3_top top = {vi_set1(0), vi_set1(0)};
    for (int i = 0, g = 0; i < RD_TB; i++) {
        for (int c = 0; k && c < D; c += 64) {
            const vi a = v_bytes(k[i] + off + c);
            vi w[2];
            e4m3_track(&top, a);
            v_e4m3_halves(a, w);
            _mm512_store_si512(st->tile_k + (size_t)(c / 32 * RD_TB + i) * 64, w[0]);
            _mm512_store_si512(st->tile_k + (size_t)((c / 32 + 1) * RD_TB + i) * 64, w[1]);
        }
        if (o && x->v_rows) rd_tiles_fetch(x->v_rows[i] + x->v_next_off, x->v_far, x->v_far_off, i, st->ldo);
        for (; g < groups && g * 28 <= i * groups; g++)
            rd_tiles_sum(st, o, 32 * g);
    }
    if (e4m3_has_nan(&top)) rd_tiles_nan(st->tile_k, 0, k, off, D);
}

/* O back in natural order: in 64 columns, tile a holds columns 4a to 4a + 3 of each 16. */
static void rd_tiles_order(float *o, int D) {
    for (int c = 0; c < D; c += 64) {
        float x[64];
        memcpy(x, o + c, sizeof x);
        for (int i = 0; i < 16; i++)
            memcpy(o + c + i % 4 * 16 + i / 4 * 4, x + 4 * i, 16);
    }
}
#endif
