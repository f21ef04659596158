/* SPDX-License-Identifier: Apache-2.0 */
/* The two products of the row-dot path for one element type, RD_TYPE: included once per type by cpu_level.c.
 *
 * QK: RG rows x TG tokens = VW accumulators of VW lanes (lanes are head elements); one reduction tree turns
 * them into VW finished scores. PV: RG rows x CC vectors of outputs, one broadcast of P per row and token.
 * Both walk the cache rows through pointers and prefetch the rows of the next tile while they compute. O and
 * q keep the element order of v_pair(); the caller undoes it. */

#define RD_CAT_(a, b) a##b
#define RD_CAT(a, b)  RD_CAT_(a, b)
#define RD_(name)     RD_CAT(RD_CAT(name, _), RD_TYPE)

/* Scores of RG rows against n tokens (a multiple of VW) to s[row * CPU_ROWDOT_TILE + token]. */
#define RD_QK(RG)                                                                                            \
    static __attribute__((noinline)) void RD_CAT(RD_(rd_qk), RG)(const struct rd_tile *x, const float *q,    \
                                                                 int ldq, int D, float *s, int prefetch) {   \
        enum { TG = VW / (RG) > 0 ? VW / (RG) : 1, ES = RD_SIZE };                                           \
        for (int t = 0; t < x->n; t += TG) {                                                                 \
            vf acc[VW];                                                                                      \
            const char *k[TG];                                                                               \
            UNROLL for (int i = 0; i < TG; i++) k[i] = x->k[t + i] + x->k_off;                               \
            UNROLL for (int i = 0; i < VW; i++) acc[i] = v_zero();                                           \
            int c = 0;                                                                                       \
            for (; c + CHUNK <= D; c += CHUNK) {                                                             \
                if (prefetch && (CHUNK * ES >= 64 || c * ES % 64 == 0)) {                                    \
                    UNROLL for (int b = 0; b < CHUNK * ES; b += 64) rd_fetch_k(x, t, TG, c *ES + b);         \
                }                                                                                            \
                /* First all first halves, then all second ones: VW + RG + 1 registers. */                   \
                UNROLL for (int half = 0; half < 2; half++) {                                                \
                    vf w[RG];                                                                                \
                    UNROLL for (int r = 0; r < (RG); r++) w[r] = v_load(q + r * ldq + c + half * VW);        \
                    UNROLL for (int i = 0; i < TG; i++) {                                                    \
                        vf a, b;                                                                             \
                        v_pair(RD_ENUM, k[i] + c * ES, &a, &b);                                              \
                        UNROLL for (int r = 0; r < (RG); r++) acc[r * TG + i] =                              \
                            v_fma(half ? b : a, w[r], acc[r * TG + i]);                                      \
                    }                                                                                        \
                }                                                                                            \
            }                                                                                                \
            if (prefetch && c < D) rd_fetch_k_rest(x, t, TG, c *ES, D *ES);                                  \
            if (c < D) UNROLL for (int i = 0; i < TG; i++) {                                                 \
                    vf a, b;                                                                                 \
                    v_pair_tail(RD_ENUM, k[i] + c * ES, D - c, &a, &b);                                      \
                    UNROLL for (int r = 0; r < (RG); r++) acc[r * TG + i] =                                  \
                        v_fma(b, v_load(q + r * ldq + c + VW),                                               \
                              v_fma(a, v_load(q + r * ldq + c), acc[r * TG + i]));                           \
                }                                                                                            \
            float sum[VW];                                                                                   \
            v_store(sum, v_reduce_all(acc));                                                                 \
            UNROLL for (int r = 0; r < (RG); r++)                                                            \
                memcpy(s + r * CPU_ROWDOT_TILE + t, sum + r * TG, TG * sizeof *s);                           \
        }                                                                                                    \
    }

/* O[row][c .. c + NC chunks) += P[row][0..n) * V for RG rows. */
#define RD_PV(RG, NC)                                                                                        \
    SI void RD_CAT(RD_CAT(RD_(rd_pvc), RG), NC)(const struct rd_tile *x, const float *p, float *o, int ldo,  \
                                                int c, int tail, int prefetch) {                             \
        enum { ES = RD_SIZE, NV = 2 * (NC), WIDTH = (NC)*CHUNK * ES };                                       \
        const char *const *rows = x->v, *const *next = x->v_next, *const *far = x->v_far;                    \
        const int64_t at = x->v_off + c * ES, next_at = x->v_next_off + c * ES,                              \
                      far_at = x->v_far_off + c * ES;                                                        \
        const int n = x->n_used, lines = prefetch && (WIDTH >= 64 || c * ES % 64 == 0);                      \
        vf acc[RG][NV];                                                                                      \
        UNROLL for (int r = 0; r < (RG); r++) UNROLL for (int j = 0; j < NV; j++) acc[r][j] =                \
            v_load(o + r * ldo + c + j * VW);                                                                \
        for (int t = 0; t < n; t++) {                                                                        \
            const char *v = rows[t] + at;                                                                    \
            vf w[NV];                                                                                        \
            if (lines) UNROLL for (int b = 0; b < WIDTH; b += 64) rd_near(x, next[t] + next_at + b);         \
            if (lines && far) UNROLL for (int b = 0; b < WIDTH; b += 64) v_prefetch_l2(far[t] + far_at + b); \
            if (tail && prefetch) rd_fetch_v(x, t, (c + tail) * ES - 1);                                     \
            if (tail)                                                                                        \
                v_pair_tail(RD_ENUM, v, tail, &w[0], &w[1]);                                                 \
            else                                                                                             \
                UNROLL for (int j = 0; j < (NC); j++)                                                        \
                    v_pair(RD_ENUM, v + j * CHUNK * ES, &w[2 * j], &w[2 * j + 1]);                           \
            UNROLL for (int r = 0; r < (RG); r++) {                                                          \
                vf m = v_set1(p[r * CPU_ROWDOT_TILE + t]);                                                   \
                UNROLL for (int j = 0; j < NV; j++) acc[r][j] = v_fma(m, w[j], acc[r][j]);                   \
            }                                                                                                \
        }                                                                                                    \
        UNROLL for (int r = 0; r < (RG); r++) UNROLL for (int j = 0; j < NV; j++)                            \
            v_store(o + r * ldo + c + j * VW, acc[r][j]);                                                    \
    }

#define RD_PV_ROWS(RG)                                                                                       \
    static __attribute__((noinline)) void RD_CAT(RD_(rd_pv), RG)(const struct rd_tile *x, const float *p,    \
                                                                 float *o, int ldo, int D, int prefetch) {   \
        int c = 0;                                                                                           \
        for (; c + RD_NC * CHUNK <= D; c += RD_NC * CHUNK)                                                   \
            RD_CAT(RD_CAT(RD_(rd_pvc), RG), RD_NC)(x, p, o, ldo, c, 0, prefetch);                            \
        for (; c + CHUNK <= D; c += CHUNK)                                                                   \
            RD_CAT(RD_CAT(RD_(rd_pvc), RG), 1)(x, p, o, ldo, c, 0, prefetch);                                \
        if (c < D) RD_CAT(RD_CAT(RD_(rd_pvc), RG), 1)(x, p, o, ldo, c, D - c, prefetch);                     \
    }

RD_QK(1)
RD_QK(2)
RD_QK(4)
RD_PV(1, 1)
RD_PV(2, 1)
RD_PV(4, 1)
#if RD_NC > 1
RD_PV(1, RD_NC)
RD_PV(2, RD_NC)
RD_PV(4, RD_NC)
#endif
RD_PV_ROWS(1)
RD_PV_ROWS(2)
RD_PV_ROWS(4)

static void RD_(rd_qk)(const struct rd_tile *x, const float *q, int ldq, int D, int rows, float *s) {
    int r = 0;
    for (; r + 4 <= rows; r += 4)
        RD_CAT(RD_(rd_qk), 4)(x, q + r * ldq, ldq, D, s + r * CPU_ROWDOT_TILE, x->k_next && r == 0);
    if (r + 2 <= rows) {
        RD_CAT(RD_(rd_qk), 2)(x, q + r * ldq, ldq, D, s + r * CPU_ROWDOT_TILE, x->k_next && r == 0);
        r += 2;
    }
    if (r < rows) RD_CAT(RD_(rd_qk), 1)(x, q + r * ldq, ldq, D, s + r * CPU_ROWDOT_TILE, x->k_next && r == 0);
}

static void RD_(rd_pv)(const struct rd_tile *x, const float *p, float *o, int ldo, int D, int rows) {
    int r = 0;
    for (; r + 4 <= rows; r += 4)
        RD_CAT(RD_(rd_pv), 4)(x, p + r * CPU_ROWDOT_TILE, o + r * ldo, ldo, D, x->k_next && r == 0);
    if (r + 2 <= rows) {
        RD_CAT(RD_(rd_pv), 2)(x, p + r * CPU_ROWDOT_TILE, o + r * ldo, ldo, D, x->k_next && r == 0);
        r += 2;
    }
    if (r < rows) RD_CAT(RD_(rd_pv), 1)(x, p + r * CPU_ROWDOT_TILE, o + r * ldo, ldo, D, x->k_next && r == 0);
}

#undef RD_QK
#undef RD_PV
#undef RD_PV_ROWS
#undef RD_CAT
#undef RD_CAT_
#undef RD_
#undef RD_TYPE
#undef RD_ENUM
#undef RD_SIZE
