/* SPDX-License-Identifier: Apache-2.0 */
/* The two products of the lanes path in registers: M x NR accumulators, K or V as broadcasts, and the loops
 * over a tile's keys and columns. Included by cpu_lanes_kernel.h once per arithmetic. */

/* acc + a * b in this arithmetic; a and b are vectors of words. */
SI vf LN_(ln_mac)(vf a, vf b, vf c) {
#if LN_BF16
    return v_dot_bf16(a, b, c);
#else
    return v_fma(a, b, c);
#endif
}

/* A word that may lie at any address (a pair of bf16 in a cache row). */
SI vf LN_(ln_word)(const float *p) {
#if LN_BF16
    int32_t w;
    memcpy(&w, p, sizeof w);
    return v_word(w);
#else
    return v_set1(*p);
#endif
}

/* Row i of the accumulators: += word at A times b. With f32 on AVX-512 every third row leaves the broadcast
 * to its FMAs: a quarter of the instructions would only broadcast, and a core whose other hyperthread is busy
 * issues two per cycle; all rows would need more loads than there are. */
#if CPU_X86 >= 2 && !LN_BF16
#define LN_WITHIN(i) ((i) % 3 == 0)
#else
#define LN_WITHIN(i) 0
#endif
#define LN_ROW(i, A)                                                                                         \
    if (LN_WITHIN(i)) {                                                                                      \
        UNROLL for (int j = 0; j < LN_NR; j++) c[i][j] = v_fma_word(A, b[j], c[i][j]);                       \
    } else {                                                                                                 \
        const vf x = LN_(ln_word)(A);                                                                        \
        UNROLL for (int j = 0; j < LN_NR; j++) c[i][j] = LN_(ln_mac)(x, b[j], c[i][j]);                      \
    }

/* S[M keys][L] and running maxima of the raw scores. f32 reads a packed panel, [step][LN_MR keys], whose next
 * panel the hardware prefetches; bf16 reads the cache rows themselves and prefetches the rows of the
 * following call. */
#if LN_BF16
#define LN_QK_INIT(M)                                                                                        \
    const float *a[M];                                                                                       \
    UNROLL for (int i = 0; i < (M); i++) a[i] = ka[i];
#define LN_QK_AHEAD(M)                                                                                       \
    if (p % 16 == 0)                                                                                         \
        for (int i = 0; i < (M); i++)                                                                        \
            v_prefetch((const char *)(next[i] + p));
#define LN_QK_A(i)    (a[i] + p)
#define LN_QK_ARGS    const float *const *ka, const float *const *next
#define LN_QK_CALL(k) st->ka + (k), st->ka + ((k) + 2 * LN_MR <= n ? (k) + LN_MR : (k))
#else
#define LN_QK_INIT(M)
#define LN_QK_AHEAD(M)
#define LN_QK_A(i)    (panel + p * LN_MR + (i))
#define LN_QK_ARGS    const float *panel
#define LN_QK_CALL(k) st->kt + (long)(k)*steps
#endif
#define LN_QK(M)                                                                                             \
    static __attribute__((noinline)) void LN_CAT(LN_(ln_qk), M)(LN_QK_ARGS, const float *B, long steps,      \
                                                                float *S, float *top) {                      \
        vf c[M][LN_NR];                                                                                      \
        LN_QK_INIT(M)                                                                                        \
        UNROLL for (int i = 0; i < (M); i++) UNROLL for (int j = 0; j < LN_NR; j++) c[i][j] = v_zero();      \
        for (long p = 0; p < steps; p++) {                                                                   \
            vf b[LN_NR];                                                                                     \
            LN_QK_AHEAD(M)                                                                                   \
            UNROLL for (int j = 0; j < LN_NR; j++) b[j] = v_load(B + p * LN_L + j * VW);                     \
            UNROLL for (int i = 0; i < (M); i++) {                                                           \
                LN_ROW(i, LN_QK_A(i))                                                                        \
            }                                                                                                \
        }                                                                                                    \
        UNROLL for (int j = 0; j < LN_NR; j++) {                                                             \
            vf w = v_load(top + j * VW);                                                                     \
            UNROLL for (int i = 0; i < (M); i++) {                                                           \
                w = v_max(c[i][j], w);                                                                       \
                v_store(S + i * LN_L + j * VW, c[i][j]);                                                     \
            }                                                                                                \
            v_store(top + j * VW, w);                                                                        \
        }                                                                                                    \
    }

/* O[M columns][L] = O * alpha + V[keys][M] * P[keys][L]; A is a panel of M columns. */
#define LN_PV(M)                                                                                             \
    static __attribute__((noinline)) void LN_CAT(LN_(ln_pv), M)(const float *A, const float *B, float *O,    \
                                                                const float *alpha, long steps) {            \
        vf c[M][LN_NR];                                                                                      \
        UNROLL for (int j = 0; j < LN_NR; j++) {                                                             \
            vf w = v_load(alpha + j * VW);                                                                   \
            UNROLL for (int i = 0; i < (M); i++) c[i][j] = v_mul(w, v_load(O + i * LN_L + j * VW));          \
        }                                                                                                    \
        for (long p = 0; p < steps; p++) {                                                                   \
            vf b[LN_NR];                                                                                     \
            UNROLL for (int j = 0; j < LN_NR; j++) b[j] = v_load(B + p * LN_L + j * VW);                     \
            UNROLL for (int i = 0; i < (M); i++) {                                                           \
                LN_ROW(i, A + p * (M) + i)                                                                   \
            }                                                                                                \
        }                                                                                                    \
        UNROLL for (int j = 0; j < LN_NR; j++) UNROLL for (int i = 0; i < (M); i++)                          \
            v_store(O + i * LN_L + j * VW, c[i][j]);                                                         \
    }

LN_PV(4)
#if LN_BF16 || LN_MR == 4
LN_QK(4)
#endif
#if LN_MR == 6
LN_QK(6)
LN_PV(6)
#elif LN_MR == 12
LN_PV(8)
LN_QK(12)
LN_PV(12)
#endif

/* Whole tile of scores: n = ln_round() keys. Blocks of 6 with a rest of 2 end in two blocks of 4 where keys
 * are rows; panels are always LN_MR wide. */
static void LN_(ln_qk)(struct LN_(ln_state) * st, const float *B, int n, int used) {
    float *const S = st->s, *const top = st->top;
    const long steps = st->steps;
    int k = 0;
    (void)used;
#if LN_BF16
    for (const int end = n % 6 == 2 ? n - 8 : n % 6 == 4 ? n - 4 : n; k + 6 <= end; k += 6) {
        LN_(ln_prefetch)(st);
        LN_CAT(LN_(ln_qk), 6)(LN_QK_CALL(k), B, steps, S + k * LN_L, top);
    }
    for (; k < n; k += 4)
        LN_CAT(LN_(ln_qk), 4)(LN_QK_CALL(k), B, steps, S + k * LN_L, top);
#else
    for (; k < n; k += LN_MR) {
        LN_(ln_prefetch)(st);
        LN_CAT(LN_(ln_qk), LN_MR)(LN_QK_CALL(k), B, steps, S + k * LN_L, top);
    }
#endif
}

/* Width of the panel of V that starts at column d of D (a multiple of 4). */
SI int LN_(ln_panel)(int d, int D) {
    if (LN_MR == 12) return D - d >= 12 ? 12 : D - d >= 8 ? 8 : 4;
    if (LN_MR == 6) return (D - d) % 6 == 2 && D - d <= 8 ? 4 : D - d >= 6 ? 6 : 4;
    return 4;
}

/* All columns of O; the panels of V lie one behind the other, LN_VROWS rows each. */
static void LN_(ln_pv)(const float *V, const float *P, float *O, const float *alpha, long steps, int D) {
    for (int d = 0, w; d < D; d += w) {
        w = LN_(ln_panel)(d, D);
        const float *A = V + (long)d * LN_VROWS;
        float *o = O + (long)d * LN_L;
#if LN_MR == 12
        if (w == 12)
            LN_CAT(LN_(ln_pv), 12)(A, P, o, alpha, steps);
        else if (w == 8)
            LN_CAT(LN_(ln_pv), 8)(A, P, o, alpha, steps);
        else
#elif LN_MR == 6
        if (w == 6)
            LN_CAT(LN_(ln_pv), 6)(A, P, o, alpha, steps);
        else
#endif
            LN_CAT(LN_(ln_pv), 4)(A, P, o, alpha, steps);
    }
}
