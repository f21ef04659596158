/* SPDX-License-Identifier: Apache-2.0 */
/* The projections of cpu_project.h by products of bf16 pairs (cpu_projection.dots): weights, queries and
 * latents are bf16, so that products are exact, as there, and sums are float32. Walks over the weights and
 * how many tokens share them are those of cpu_project.h. Included by it. */

#if CPU_BF16_DOT && CPU_X86 >= 3
/* Adds rows [0, 2 * pairs) of w, times those values of x, to out, whose columns are in the order that
 * v_pair_words() leaves. ldx: bytes. */
SI void pr_dots_block(const int T, const int pairs, const char *x, int64_t ldx, const char *w, int64_t w_row,
                      int n, float *out, int64_t ldo) {
    enum { MOST = 4 };
    const char *ahead = w + PR_AHEAD;
    vf both[PR_TOKENS][MOST];
    UNROLL for (int t = 0; t < T; t++) UNROLL for (int i = 0; i < pairs; i++) {
        int32_t word;
        memcpy(&word, x + t * ldx + 4 * i, sizeof word);
        both[t][i] = v_word(word);
    }
    for (int at = 0; at < n; at += CHUNK) {
        vf low[PR_TOKENS], high[PR_TOKENS];
        UNROLL for (int t = 0; t < T; t++) {
            low[t] = v_load(out + t * ldo + at);
            high[t] = v_load(out + t * ldo + at + VW);
        }
        UNROLL for (int i = 0; i < pairs; i++) {
            const char *row = w + 2 * i * w_row + 2 * at;
            vi a, b;
            v_prefetch_l2(ahead);
            v_prefetch_l2(ahead + 64);
            ahead += 128;
            v_pair_words(v_bytes(row), v_bytes(row + w_row), &a, &b);
            UNROLL for (int t = 0; t < T; t++) {
                low[t] = v_dot_bf16(vi_as_f(a), both[t][i], low[t]);
                high[t] = v_dot_bf16(vi_as_f(b), both[t][i], high[t]);
            }
        }
        UNROLL for (int t = 0; t < T; t++) {
            v_store(out + t * ldo + at, low[t]);
            v_store(out + t * ldo + at + VW, high[t]);
        }
    }
}

/* out[t][0 .. n) = gain * sum over k of x[t][k] * w[k][0 .. n), for T tokens; depth is even. */
SI void pr_dots_sum(const int T, const char *x, int64_t ldx, int depth, const char *w, int64_t w_row, int n,
                    float gain, float *out, int64_t ldo) {
    const int pairs = T > 2 ? 4 : 1;
    int k = 0;
    for (int t = 0; t < T; t++)
        memset(out + t * ldo, 0, (size_t)n * sizeof *out);
    for (; k + 2 * pairs <= depth; k += 2 * pairs)
        pr_dots_block(T, pairs, x + 2 * k, ldx, w + k * w_row, w_row, n, out, ldo);
    for (; k < depth; k += 2)
        pr_dots_block(T, 1, x + 2 * k, ldx, w + k * w_row, w_row, n, out, ldo);
    for (int t = 0; t < T; t++)
        for (float *o = out + t * ldo, *end = o + n; o < end; o += CHUNK) {
            v_unpair_words(o);
            v_store(o, v_mul(v_load(o), v_set1(gain)));
            v_store(o + VW, v_mul(v_load(o + VW), v_set1(gain)));
        }
}

/* out[t][v] = gain * dot(x[t], w[v]) over n values, whole chunks. A vector has the sums of VW rows of weights
 * and tokens, for any T, so that they are added in one order. */
SI void pr_dots_rows(const int T, const char *x, int64_t ldx, const char *w, int64_t w_row, int n, int rows,
                     float gain, float *out, int ldo) {
    const int R = pr_rows_at_a_time(T), all = VW / T;
    const char *ahead = w + PR_AHEAD;
    for (int v = 0; v < rows; v += all) {
        vf acc[VW];
        UNROLL for (int first = 0; first < all; first += R) {
            const char *row[4];
            UNROLL for (int r = 0; r < R; r++) {
                row[r] = w + cpu_min(v + first + r, rows - 1) * w_row;
                UNROLL for (int t = 0; t < T; t++) acc[t * all + first + r] = v_zero();
            }
            for (int64_t byte = 0; byte < 2 * n; byte += 64) {
                vf a[4];
                UNROLL for (int r = 0; r < R; r++) {
                    v_prefetch_l2(ahead);
                    ahead += 64;
                    a[r] = vi_as_f(v_bytes(row[r] + byte));
                }
                UNROLL for (int t = 0; t < T; t++) {
                    const vf y = vi_as_f(v_bytes(x + t * ldx + byte));
                    UNROLL for (int r = 0; r < R; r++) acc[t * all + first + r] =
                        v_dot_bf16(a[r], y, acc[t * all + first + r]);
                }
            }
        }
        float sum[VW];
        v_store(sum, v_mul(v_reduce_all(acc), v_set1(gain)));
        for (int t = 0; t < T; t++)
            memcpy(out + t * ldo + v, sum + t * all, (size_t)cpu_min(all, rows - v) * sizeof *out);
    }
}

static void pr_absorb_dots(const struct cpu_projection *p, int tokens, const char *w, const char *q,
                           int64_t q_token, float *out, int64_t ldo) {
    for (int t = 0, g; t < tokens; t += g) {
        const char *x = q + t * q_token;
        float *to = out + t * ldo;
        g = pr_group(tokens - t);
        PR_GROUP(g, pr_dots_sum, x, q_token, p->nope, w, p->w_row, p->w_columns, p->w_scale, to, ldo)
    }
}

static void pr_values_dots(const struct cpu_projection *p, int tokens, const char *w, const char *y,
                           int64_t y_token, float *out, int ldo) {
    for (int t = 0, g; t < tokens; t += g) {
        const char *x = y + t * y_token;
        float *to = out + t * ldo;
        g = pr_group(tokens - t);
        PR_GROUP(g, pr_dots_rows, x, y_token, w, p->w_row, p->latent, p->value, p->w_scale, to, ldo)
    }
}
#endif
