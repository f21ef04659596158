/* SPDX-License-Identifier: Apache-2.0 */
/* Row-dot products by AMX tiles, for bf16 queries and outputs and a cache that bf16 holds exactly: included by cpu_level.c.
 *
 * S^T[16 keys][rows] = K[16][32] Q^T[32][rows] reads K's rows as they lie in the cache, where they have one stride; O[rows][16]
 * += P[rows][32 keys] V[32][16] needs V in pairs of keys, which costs an unpack and a store for each line. P is rounded to
 * bf16 as in the prefill. FMAs need ten cycles for a cache line of four heads, as much as memory; this needs three. */

#if CPU_LEVEL >= 3
enum { RT_ROWS = 16 }; /* query rows that a tile holds */

/* Tiles 0, 1: scores of 16 keys each; 2, 3: K, or V; 4: Q; 5: P; 6, 7: O. Unused rows and columns are left out. */
static void rd_tiles_begin(int rows) {
    struct amx_config c;
    const int r[8] = {16, 16, 16, 16, 16, rows, rows, rows}, w[8] = {rows, rows, 16, 16, rows, 16, 16, 16};
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)r[i];
        c.row_bytes[i] = (uint16_t)(w[i] * 4);
    }
    amx_configure(&c);
}

/* 32 elements from column c of a row of n as bf16, zeros behind n. */
SI vi rd_tiles_line(enum cpu_dtype t, const char *row, int c, int n) {
    if (t == CPU_BF16)
        return _mm512_maskz_loadu_epi16(n - c >= 32 ? ~0u : (1u << (n - c)) - 1, row + 2 * c);
    return c + 32 <= n ? v_load_bf16(t, row + c) : v_load_bf16_tail(t, row + c, n - c);
}

/* The query rows of a head as tiles [step][16 pairs of elements][rows], from floats that are bf16. */
static void rd_tiles_query(const float *q, int ldq, int rows, int D, uint32_t *out) {
    for (int p = 0; p < (D + 31) / 32 * 16; p++)
        for (int r = 0; r < rows; r++) {
            uint32_t even, odd;
            memcpy(&even, q + r * ldq + 2 * p, 4);
            memcpy(&odd, q + r * ldq + 2 * p + 1, 4);
            out[p * rows + r] = even >> 16 | (odd & 0xffff0000u);
        }
}

SI void rd_tiles_ahead(const char *row, int bytes) {
    for (int b = 0; b < bytes; b += 64)
        v_prefetch(row + b);
}

/* Scores of the tile's 32 tokens, [row][token]. K's rows are copied, 32 elements wide and more, where they cannot be
 * read in place. */
static void rd_tiles_qk(const struct rd_state *st, const struct rd_tile *x, const uint32_t *q, enum cpu_dtype t, int D) {
    const int rows = st->rows, steps = (D + 31) / 32, bytes = D * cpu_dtype_size(t);
    const char *k[2] = {x->k[0] + x->k_off, x->k[16] + x->k_off};
    int64_t stride[2] = {x->k[1] - x->k[0], x->k[17] - x->k[16]};
    int even = t == CPU_BF16 && D % 32 == 0;
    for (int i = 2; i < 16 && even; i++)
        even = x->k[i] - x->k[i - 1] == stride[0] && x->k[16 + i] - x->k[15 + i] == stride[1];
    if (!even) {
        for (int i = 0; i < RD_TB; i++) {
            if (x->k_next && i % 2)
                rd_tiles_ahead(x->k_next[i / 2] + x->k_next_off, bytes);
            for (int c = 0; c < D; c += 32)
                _mm512_storeu_si512(st->tile_k + (i * steps * 32 + c), rd_tiles_line(t, x->k[i] + x->k_off, c, D));
        }
        stride[0] = stride[1] = (int64_t)steps * 64;
        k[0] = (const char *)st->tile_k;
        k[1] = k[0] + 16 * stride[0];
    }
    AMX_ZERO(0);
    AMX_ZERO(1);
    for (int i = 0, ahead = even ? 0 : 16; i < steps; i++) {
        AMX_LOAD(4, q + (size_t)i * 16 * rows, rows * 4);
        for (const int to = 32 * (i + 1) / steps; x->k_next && ahead < to; ahead++)
            rd_tiles_ahead(x->k_next[ahead] + x->k_next_off, bytes);
        AMX_LOAD(2, k[0] + i * 64, stride[0]);
        AMX_DOT(0, 2, 4);
        AMX_LOAD(3, k[1] + i * 64, stride[1]);
        AMX_DOT(1, 3, 4);
    }
    float *const sum = st->tile_s;
    AMX_STORE(0, sum, rows * 4);
    AMX_STORE(1, sum + 16 * rows, rows * 4);
    const vi at = _mm512_mullo_epi32(vi_load(lane_numbers), vi_set1(rows));
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < RD_TB; i += 16)
            v_store(st->s + r * RD_TB + i, _mm512_i32gather_ps(at, sum + i * rows + r, 4));
}

/* O[row][0 .. D) += P[row][32 tokens] * V, columns in the order that v_pair_words() leaves. */
static void rd_tiles_pv(const struct rd_state *st, const struct rd_tile *x, float *o, enum cpu_dtype t, int D) {
    const int rows = st->rows, bytes = D * cpu_dtype_size(t);
    for (int r = 0; r < rows; r++) {
        const float *p = st->s + r * RD_TB;
        const vf low = v_load(p), high = x->n > 16 ? v_load(p + 16) : v_zero();
        _mm512_storeu_si512(st->tile_p + r * RD_TB, v_words_bf16(low, high));
    }
    for (int i = 0; i < RD_TB; i += 2) {
        const char *v0 = x->v[i] + x->v_off, *v1 = x->v[i + 1] + x->v_off;
        if (x->v_next) {
            rd_tiles_ahead(x->v_next[i] + x->v_next_off, bytes);
            rd_tiles_ahead(x->v_next[i + 1] + x->v_next_off, bytes);
        }
        for (int c = 0; c < D; c += 32) {
            vi low, high;
            v_pair_words(rd_tiles_line(t, v0, c, D), rd_tiles_line(t, v1, c, D), &low, &high);
            _mm512_storeu_si512(st->tile_v + (c * 16 + i * 8) * 2, low);
            _mm512_storeu_si512(st->tile_v + (c * 16 + 256 + i * 8) * 2, high);
        }
    }
    AMX_LOAD(5, st->tile_p, RD_TB * 2);
    for (int c = 0; c < D; c += 32, o += 32) {
        AMX_LOAD(6, o, st->ldo * 4);
        AMX_LOAD(7, o + 16, st->ldo * 4);
        AMX_LOAD(2, st->tile_v + c * 32, 64);
        AMX_DOT(6, 5, 2);
        AMX_LOAD(3, st->tile_v + c * 32 + 512, 64);
        AMX_DOT(7, 5, 3);
        AMX_STORE(6, o, st->ldo * 4);
        AMX_STORE(7, o + 16, st->ldo * 4);
    }
}
#endif
