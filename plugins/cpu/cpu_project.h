/* SPDX-License-Identifier: Apache-2.0 */
/* Projections of latent attention (semantics 7.4) for one head and a block of tokens: queries times W_UK
 * before the attention, latents times W_UV behind it. Sums are float32. Included by cpu_level.c. */

enum { PR_TOKENS = 4 }; /* rows that share what is loaded of the weights */

/* out[t][0 .. n) = gain * sum over k of x[t][k] * w[k][0 .. n), for T tokens. Rows of w, and of out, are
 * whole chunks. */
SI void pr_sum_rows(int T, enum cpu_dtype type, const float *x, int ldx, int depth, const char *w,
                    int64_t w_row, int n, float gain, float *out, int64_t ldo) {
    for (int at = 0; at < n; at += CHUNK) {
        vf acc[PR_TOKENS][2], a, b;
        UNROLL for (int t = 0; t < T; t++) acc[t][0] = acc[t][1] = v_zero();
        const char *row = w + (int64_t)at * cpu_dtype_size(type);
        for (int k = 0; k < depth; k++, row += w_row) {
            v_pair(type, row, &a, &b);
            UNROLL for (int t = 0; t < T; t++) {
                acc[t][0] = v_fma_word(x + (size_t)t * ldx + k, a, acc[t][0]);
                acc[t][1] = v_fma_word(x + (size_t)t * ldx + k, b, acc[t][1]);
            }
        }
        UNROLL for (int t = 0; t < T; t++) v_store_pair(
            type, out + t * ldo + at, v_mul(acc[t][0], v_set1(gain)), v_mul(acc[t][1], v_set1(gain)));
    }
}

/* out[t][v] = gain * dot(x[t], w[v]) over n values, whole chunks; x lies as v_pair() gives w. */
SI void pr_dot_rows(int T, enum cpu_dtype type, const float *x, int64_t ldx, const char *w, int64_t w_row,
                    int n, int rows, float gain, float *out, int ldo) {
    for (int v = 0; v < rows; v += 2) {
        const char *first = w + v * w_row, *second = v + 1 < rows ? first + w_row : first;
        vf acc[PR_TOKENS][2], a0, b0, a1, b1;
        UNROLL for (int t = 0; t < T; t++) acc[t][0] = acc[t][1] = v_zero();
        for (int at = 0; at < n; at += CHUNK) {
            const int64_t byte = (int64_t)at * cpu_dtype_size(type);
            v_pair(type, first + byte, &a0, &b0);
            v_pair(type, second + byte, &a1, &b1);
            UNROLL for (int t = 0; t < T; t++) {
                const vf y0 = v_load(x + t * ldx + at), y1 = v_load(x + t * ldx + at + VW);
                acc[t][0] = v_fma(b0, y1, v_fma(a0, y0, acc[t][0]));
                acc[t][1] = v_fma(b1, y1, v_fma(a1, y0, acc[t][1]));
            }
        }
        for (int t = 0; t < T; t++) {
            out[t * ldo + v] = gain * v_hsum(acc[t][0]);
            if (v + 1 < rows) out[t * ldo + v + 1] = gain * v_hsum(acc[t][1]);
        }
    }
}

/* Calls F with constants for the number of tokens and the type of the weights. */
#define PR_TYPED(F, T, type, ...)                                                                            \
    switch (type) {                                                                                          \
    case CPU_F32:                                                                                            \
        F(T, CPU_F32, __VA_ARGS__);                                                                          \
        break;                                                                                               \
    case CPU_F16:                                                                                            \
        F(T, CPU_F16, __VA_ARGS__);                                                                          \
        break;                                                                                               \
    case CPU_BF16:                                                                                           \
        F(T, CPU_BF16, __VA_ARGS__);                                                                         \
        break;                                                                                               \
    default:                                                                                                 \
        F(T, CPU_E4M3, __VA_ARGS__);                                                                         \
        break;                                                                                               \
    }

static void level_absorb(const struct cpu_projection *p, int tokens, const char *w, const char *q,
                         int64_t q_token, float *out, int64_t ldo, float *scratch) {
    const int size = p->nope + p->rope, ldx = (size + CHUNK - 1) / CHUNK * CHUNK;
    const float gain = p->w_scale * dtype_gain(p->w_type);
    for (int t = 0; t < tokens; t++)
        row_to_f32(p->q_type, q + t * q_token, size, scratch + (size_t)t * ldx);
    int t = 0;
    for (; t + PR_TOKENS <= tokens; t += PR_TOKENS)
        PR_TYPED(pr_sum_rows, PR_TOKENS, p->w_type, scratch + (size_t)t * ldx, ldx, p->nope, w, p->w_row,
                 p->w_columns, gain, out + t * ldo, ldo)
    for (; t < tokens; t++)
        PR_TYPED(pr_sum_rows, 1, p->w_type, scratch + (size_t)t * ldx, ldx, p->nope, w, p->w_row,
                 p->w_columns, gain, out + t * ldo, ldo)
    for (t = 0; t < tokens; t++) /* over what whole chunks wrote behind the latent values */
        memcpy(out + t * ldo + p->latent, scratch + (size_t)t * ldx + p->nope, (size_t)p->rope * sizeof *out);
}

static void level_values(const struct cpu_projection *p, int tokens, const char *w, const char *y,
                         int64_t y_token, char *out, int64_t out_token, float *scratch) {
    const int ldo = (p->value + CHUNK - 1) / CHUNK * CHUNK, ldy = p->w_columns;
    const float gain = p->w_scale * dtype_gain(p->w_type);
    float *rows = scratch + (size_t)tokens * ldo;
    for (int t = 0; t < tokens; t++) {
        float *row = rows + (size_t)t * ldy;
        memset(row + p->latent, 0, (size_t)(ldy - p->latent) * sizeof *row);
        row_to_f32(p->y_type, y + t * y_token, p->latent, row);
        for (int d = 0; p->w_type == CPU_BF16 && d < ldy; d += CHUNK) {
            vf a = v_load(row + d), b = v_load(row + d + VW);
            v_unzip(&a, &b);
            v_store(row + d, a);
            v_store(row + d + VW, b);
        }
    }
    int t = 0;
    for (; t + PR_TOKENS <= tokens; t += PR_TOKENS)
        PR_TYPED(pr_dot_rows, PR_TOKENS, p->w_type, rows + (size_t)t * ldy, ldy, w, p->w_row, ldy, p->value,
                 gain, scratch + (size_t)t * ldo, ldo)
    for (; t < tokens; t++)
        PR_TYPED(pr_dot_rows, 1, p->w_type, rows + (size_t)t * ldy, ldy, w, p->w_row, ldy, p->value, gain,
                 scratch + (size_t)t * ldo, ldo)
    for (t = 0; t < tokens; t++)
        row_from_f32(p->out_type, scratch + (size_t)t * ldo, p->value, out + t * out_token);
}
