/* SPDX-License-Identifier: Apache-2.0 */
/* Projections of latent attention (semantics 7.4) for one head and a block of tokens: queries times W_UK
 * before the attention, latents times W_UV behind it. Sums are float32. Included by cpu_level.c. */

/* What is read once comes in the order of memory: the hardware follows one walk over whole rows, not two rows
 * in turn nor columns. Where several rows are wanted at a time, prefetches go before them in that order. */
enum {
    PR_TOKENS = 4,      /* at most share what is loaded of the weights */
    PR_AHEAD = 8 * 1024 /* bytes between a prefetch and its use */
};

/* Rows of weights at a time, for T tokens: sums go to memory less often, values are loaded less often. */
SI int pr_rows_at_a_time(const int T) {
    return T == 1 ? 1 : T == 2 ? 2 : RD_NC > 1 ? 4 : 2;
}

/* out[t][0 .. n) = gain * sum over k of x[t][k] * w[k][0 .. n), for T tokens. Rows of w, and of out, are
 * whole chunks. */
SI void pr_sum_block(const int T, const int rows, const enum cpu_dtype type, const float *x, int ldx,
                     const char *w, int64_t w_row, int n, float *out, int64_t ldo) {
    const char *ahead = w + PR_AHEAD;
    for (int at = 0; at < n; at += CHUNK) {
        vf acc[PR_TOKENS][2], a, b;
        UNROLL for (int t = 0; t < T; t++) UNROLL for (int i = 0; i < 2; i++) acc[t][i] =
            v_load(out + t * ldo + at + i * VW);
        UNROLL for (int r = 0; r < rows; r++) {
            v_prefetch_l2(ahead);
            ahead += CHUNK * cpu_dtype_size(type);
            v_pair(type, w + r * w_row + (int64_t)at * cpu_dtype_size(type), &a, &b);
            UNROLL for (int t = 0; t < T; t++) {
                acc[t][0] = v_fma_word(x + (size_t)t * ldx + r, a, acc[t][0]);
                acc[t][1] = v_fma_word(x + (size_t)t * ldx + r, b, acc[t][1]);
            }
        }
        UNROLL for (int t = 0; t < T; t++) UNROLL for (int i = 0; i < 2; i++)
            v_store(out + t * ldo + at + i * VW, acc[t][i]);
    }
}
SI void pr_sum_rows(const int T, const enum cpu_dtype type, const float *x, int ldx, int depth, const char *w,
                    int64_t w_row, int n, float gain, float *out, int64_t ldo) {
    const int rows = pr_rows_at_a_time(T);
    int k = 0;
    for (int t = 0; t < T; t++)
        memset(out + t * ldo, 0, (size_t)n * sizeof *out);
    for (; k + rows <= depth; k += rows)
        pr_sum_block(T, rows, type, x + k, ldx, w + k * w_row, w_row, n, out, ldo);
    for (; k < depth; k++)
        pr_sum_block(T, 1, type, x + k, ldx, w + k * w_row, w_row, n, out, ldo);
    for (int t = 0; t < T; t++)
        for (float *o = out + t * ldo, *end = o + n; o < end; o += CHUNK)
            v_store_pair(type, o, v_mul(v_load(o), v_set1(gain)), v_mul(v_load(o + VW), v_set1(gain)));
}

/* out[t][v] = gain * dot(x[t], w[v]) over n values, whole chunks; x lies as v_pair() gives w. */
SI void pr_dot_rows(const int T, const enum cpu_dtype type, const float *x, int64_t ldx, const char *w,
                    int64_t w_row, int n, int rows, float gain, float *out, int ldo) {
    enum { MOST = 4 };
    const int R = pr_rows_at_a_time(T);
    const char *ahead = w + PR_AHEAD;
    for (int v = 0; v < rows; v += R) {
        const char *row[MOST];
        vf acc[PR_TOKENS][MOST], a[MOST], b[MOST];
        UNROLL for (int r = 0; r < R; r++) row[r] = w + cpu_min(v + r, rows - 1) * w_row;
        UNROLL for (int t = 0; t < T; t++) UNROLL for (int r = 0; r < R; r++) acc[t][r] = v_zero();
        for (int at = 0; at < n; at += CHUNK) {
            UNROLL for (int r = 0; r < R; r++) {
                v_prefetch_l2(ahead);
                ahead += CHUNK * cpu_dtype_size(type);
                v_pair(type, row[r] + (int64_t)at * cpu_dtype_size(type), &a[r], &b[r]);
            }
            UNROLL for (int t = 0; t < T; t++) {
                const vf y0 = v_load(x + t * ldx + at), y1 = v_load(x + t * ldx + at + VW);
                UNROLL for (int r = 0; r < R; r++) acc[t][r] = v_fma(b[r], y1, v_fma(a[r], y0, acc[t][r]));
            }
        }
        UNROLL for (int t = 0; t < T; t++) UNROLL for (int r = 0; r < R; r++) if (v + r < rows)
            out[t * ldo + v + r] = gain * v_hsum(acc[t][r]);
    }
}

/* Calls F with constants for T tokens and the type of the weights. */
#define PR_TYPED(T, F, type, ...)                                                                            \
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

/* How many of `left` tokens go together. */
SI int pr_group(int left) {
    return left >= PR_TOKENS ? PR_TOKENS : left >= 2 ? 2 : 1;
}

/* Calls F with a constant for g tokens. */
#define PR_GROUP(g, F, ...)                                                                                  \
    if (g == PR_TOKENS) {                                                                                    \
        F(PR_TOKENS, __VA_ARGS__);                                                                           \
    } else if (g == 2) {                                                                                     \
        F(2, __VA_ARGS__);                                                                                   \
    } else {                                                                                                 \
        F(1, __VA_ARGS__);                                                                                   \
    }

#include "cpu_project_dots.h"

static void level_absorb(const struct cpu_projection *p, int tokens, const char *w, const char *q,
                         int64_t q_token, float *out, int64_t ldo, float *scratch) {
    const int size = p->nope + p->rope, ldx = (size + CHUNK - 1) / CHUNK * CHUNK;
    const float gain = p->w_scale * dtype_gain(p->w_type);
    for (int t = 0; t < tokens; t++)
        row_to_f32(p->q_type, q + t * q_token, size, scratch + (size_t)t * ldx);
#if CPU_BF16_DOT && CPU_X86 >= 3
    if (p->dots && p->nope % 2 == 0)
        pr_absorb_dots(p, tokens, w, q, q_token, out, ldo);
    else
#endif
        for (int t = 0, g; t < tokens; t += g) {
            g = pr_group(tokens - t);
            PR_GROUP(g, PR_TYPED, pr_sum_rows, p->w_type, scratch + (size_t)t * ldx, ldx, p->nope, w,
                     p->w_row, p->w_columns, gain, out + t * ldo, ldo)
        }
    for (int t = 0; t < tokens; t++) /* over what whole chunks wrote behind the latent values */
        memcpy(out + t * ldo + p->latent, scratch + (size_t)t * ldx + p->nope, (size_t)p->rope * sizeof *out);
}

/* Rows of y as floats that lie as v_pair() gives the weights, zeros behind them. */
static void pr_latents(const struct cpu_projection *p, int tokens, const char *y, int64_t y_token,
                       float *rows) {
    for (int t = 0; t < tokens; t++) {
        float *row = rows + (size_t)t * p->w_columns;
        memset(row + p->latent, 0, (size_t)(p->w_columns - p->latent) * sizeof *row);
        row_to_f32(p->y_type, y + t * y_token, p->latent, row);
        for (int d = 0; p->w_type == CPU_BF16 && d < p->w_columns; d += CHUNK) {
            vf a = v_load(row + d), b = v_load(row + d + VW);
            v_unzip(&a, &b);
            v_store(row + d, a);
            v_store(row + d + VW, b);
        }
    }
}

static void level_values(const struct cpu_projection *p, int tokens, const char *w, const char *y,
                         int64_t y_token, char *out, int64_t out_token, float *scratch) {
    const int ldo = (p->value + CHUNK - 1) / CHUNK * CHUNK, ldy = p->w_columns;
    const float gain = p->w_scale * dtype_gain(p->w_type);
    float *rows = scratch + (size_t)tokens * ldo;
#if CPU_BF16_DOT && CPU_X86 >= 3
    const int dots = p->dots && p->y_type == CPU_BF16 && p->latent % CHUNK == 0;
    if (dots) pr_values_dots(p, tokens, w, y, y_token, scratch, ldo);
#else
    const int dots = 0;
#endif
    if (!dots) pr_latents(p, tokens, y, y_token, rows);
    for (int t = 0, g; !dots && t < tokens; t += g) {
        g = pr_group(tokens - t);
        PR_GROUP(g, PR_TYPED, pr_dot_rows, p->w_type, rows + (size_t)t * ldy, ldy, w, p->w_row, ldy, p->value,
                 gain, scratch + (size_t)t * ldo, ldo)
    }
    for (int t = 0; t < tokens; t++)
        row_from_f32(p->out_type, scratch + (size_t)t * ldo, p->value, out + t * out_token);
}
