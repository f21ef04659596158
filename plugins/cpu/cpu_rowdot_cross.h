/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of 16 query rows at once against bf16 keys: lanes are rows, a pair of a key's values enters as a
 * broadcast. As many products as with lanes of head elements, but nothing is added across lanes, which costs
 * those 45 instructions for 16 scores; so it is for rows that fill most of a vector. Included by
 * cpu_rowdot_dots.h. */

#if CPU_X86 >= 3
enum { RD_CROSS_LEAST = 14, RD_CROSS_SIZE = 256 };

/* How many of a head's rows, from the first on: whole vectors, and one not quite full where products are not
 * yet most of the work. */
SI int rd_cross_rows(int rows, int D) {
    const int whole = rows / VW * VW, left = rows - whole;
    return whole + (left >= RD_CROSS_LEAST && D <= RD_CROSS_SIZE ? left : 0);
}

/* Pairs of values of up to VW rows of q: panel[pair][row], zeros for rows that there are not. */
static void rd_cross_panel(const int16_t *q, int ldq, int rows, float *panel) {
    for (int w = 0; w < ldq / 2; w += VW) {
        vf v[VW];
        for (int r = 0; r < VW; r++)
            v[r] = r < rows ? rd_bf16_at(q + r * ldq + 2 * w) : v_zero();
        v_transpose(v);
        UNROLL for (int i = 0; i < VW; i++) v_store(panel + (w + i) * VW, v[i]);
    }
}

/* One pair, at byte b of eight keys. */
SI void rd_cross_pair(const char *const k[8], int64_t b, const float *panel, vf acc[8]) {
    const vf q = v_load(panel);
    UNROLL for (int i = 0; i < 8; i++) {
        int32_t word;
        memcpy(&word, k[i] + b, sizeof word);
        acc[i] = v_dot_bf16(v_word(word), q, acc[i]);
    }
}

/* Scores of rows [0, rows), at most VW, against n tokens. */
static __attribute__((noinline)) void rd_cross_qk(const struct rd_tile *x, const float *panel, int rows,
                                                  int D, float *s) {
    for (int t = 0; t < x->n; t += VW) {
        vf sum[VW];
        for (int half = 0; half < VW; half += 8) {
            const char *k[8];
            vf acc[2][8];
            UNROLL for (int i = 0; i < 8; i++) {
                k[i] = x->k[t + half + i] + x->k_off;
                acc[0][i] = acc[1][i] = v_zero();
            }
            int c = 0;
            for (; c + CHUNK <= D; c += CHUNK) {
                if (x->k_next) rd_fetch_k(x, t + half, 8, c * 2);
                for (int d = c; d < c + CHUNK; d += 4) {
                    rd_cross_pair(k, 2 * d, panel + d / 2 * VW, acc[0]);
                    rd_cross_pair(k, 2 * d + 4, panel + (d / 2 + 1) * VW, acc[1]);
                }
            }
            if (x->k_next && c < D) rd_fetch_k_rest(x, t + half, 8, c * 2, D * 2);
            for (; c < D; c += 2)
                rd_cross_pair(k, 2 * c, panel + c / 2 * VW, acc[0]);
            UNROLL for (int i = 0; i < 8; i++) sum[half + i] = v_add(acc[0][i], acc[1][i]);
        }
        v_transpose(sum);
        for (int r = 0; r < rows; r++)
            v_store(s + r * RD_TB + t, sum[r]);
    }
}
#endif
