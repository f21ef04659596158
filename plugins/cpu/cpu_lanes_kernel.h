/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes-are-queries path, included once per arithmetic: LN_BF16 0 (f32 FMA) or 1 (products of bf16 pairs).
 *
 * S^T = K Q^T and O^T += V^T P^T: a vector register holds VW query rows, K and V enter as broadcasts. Both products are
 * one micro kernel, C[M][L] += A[M][k] * B[k][L] with M x NR accumulators; softmax is vertical, so no horizontal
 * reduction anywhere, and head sizes are loop counts. A tile of LN_BK keys is prepared once (converted to f32, or V
 * interleaved in pairs) and serves num_sub sub-blocks of L = LN_NR * VW rows. m is in log2 units from the start. */

#define LN_CAT_(a, b) a##b
#define LN_CAT(a, b) LN_CAT_(a, b)
#if LN_BF16
#define LN_(name) LN_CAT(name, _bf16)
#define LN_STEP 2 /* keys per row of P and V; elements per step of QK */
#else
#define LN_(name) LN_CAT(name, _f32)
#define LN_STEP 1
#endif
enum { LN_(ln_L) = LN_NR * VW };
#define LN_L LN_(ln_L)

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

/* Row i of the accumulators: += word at A times b. With f32 on AVX-512 every third row leaves the broadcast to its FMAs: a
 * quarter of the instructions would only broadcast, and a core whose other hyperthread is busy issues two per cycle;
 * all rows would need more loads than there are. */
#if CPU_LEVEL >= 2 && !LN_BF16
#define LN_WITHIN(i) ((i) % 3 == 0)
#else
#define LN_WITHIN(i) 0
#endif
#define LN_ROW(i, A)                                                                                                   \
    if (LN_WITHIN(i)) {                                                                                                \
        UNROLL for (int j = 0; j < LN_NR; j++) c[i][j] = v_fma_word(A, b[j], c[i][j]);                                 \
    } else {                                                                                                           \
        const vf x = LN_(ln_word)(A);                                                                                  \
        UNROLL for (int j = 0; j < LN_NR; j++) c[i][j] = LN_(ln_mac)(x, b[j], c[i][j]);                                \
    }

/* S[M keys][L] and running maxima of the raw scores. f32 reads a packed panel, [step][LN_MR keys], whose next panel
 * the hardware prefetches; bf16 reads the cache rows themselves and prefetches the rows of the following call. */
#if LN_BF16
#define LN_QK_INIT(M)                                                                                                  \
    const float *a[M];                                                                                                 \
    UNROLL for (int i = 0; i < (M); i++) a[i] = ka[i];
#define LN_QK_AHEAD(M)                                                                                                 \
    if (p % 16 == 0)                                                                                                   \
        for (int i = 0; i < (M); i++) v_prefetch((const char *)(next[i] + p));
#define LN_QK_A(i) (a[i] + p)
#define LN_QK_ARGS const float *const *ka, const float *const *next
#define LN_QK_CALL(k) st->ka + (k), st->ka + ((k) + 2 * LN_MR <= n ? (k) + LN_MR : (k))
#else
#define LN_QK_INIT(M)
#define LN_QK_AHEAD(M)
#define LN_QK_A(i) (panel + p * LN_MR + (i))
#define LN_QK_ARGS const float *panel
#define LN_QK_CALL(k) st->kt + (long)(k)*steps
#endif
#define LN_QK(M)                                                                                                       \
    static __attribute__((noinline)) void LN_CAT(LN_(ln_qk), M)(LN_QK_ARGS, const float *B, long steps, float *S,      \
                                                                float *top) {                                          \
        vf c[M][LN_NR];                                                                                                \
        LN_QK_INIT(M)                                                                                                  \
        UNROLL for (int i = 0; i < (M); i++)                                                                           \
            UNROLL for (int j = 0; j < LN_NR; j++) c[i][j] = v_zero();                                                 \
        for (long p = 0; p < steps; p++) {                                                                             \
            vf b[LN_NR];                                                                                               \
            LN_QK_AHEAD(M)                                                                                             \
            UNROLL for (int j = 0; j < LN_NR; j++) b[j] = v_load(B + p * LN_L + j * VW);                               \
            UNROLL for (int i = 0; i < (M); i++) {                                                                     \
                LN_ROW(i, LN_QK_A(i))                                                                                  \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int j = 0; j < LN_NR; j++) {                                                                       \
            vf w = v_load(top + j * VW);                                                                               \
            UNROLL for (int i = 0; i < (M); i++) {                                                                     \
                w = v_max(c[i][j], w);                                                                                 \
                v_store(S + i * LN_L + j * VW, c[i][j]);                                                               \
            }                                                                                                          \
            v_store(top + j * VW, w);                                                                                  \
        }                                                                                                              \
    }

/* O[M columns][L] = O * alpha + V[keys][M] * P[keys][L]; A is a panel of M columns. */
#define LN_PV(M)                                                                                                       \
    static __attribute__((noinline)) void LN_CAT(LN_(ln_pv), M)(const float *A, const float *B, float *O,              \
                                                                const float *alpha, long steps) {                      \
        vf c[M][LN_NR];                                                                                                \
        UNROLL for (int j = 0; j < LN_NR; j++) {                                                                       \
            vf w = v_load(alpha + j * VW);                                                                             \
            UNROLL for (int i = 0; i < (M); i++) c[i][j] = v_mul(w, v_load(O + i * LN_L + j * VW));                    \
        }                                                                                                              \
        for (long p = 0; p < steps; p++) {                                                                             \
            vf b[LN_NR];                                                                                               \
            UNROLL for (int j = 0; j < LN_NR; j++) b[j] = v_load(B + p * LN_L + j * VW);                               \
            UNROLL for (int i = 0; i < (M); i++) {                                                                     \
                LN_ROW(i, A + p * (M) + i)                                                                             \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int j = 0; j < LN_NR; j++)                                                                         \
            UNROLL for (int i = 0; i < (M); i++) v_store(O + i * LN_L + j * VW, c[i][j]);                              \
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
#define LN_VROWS (LN_BK / LN_STEP)

/* What a thread keeps for one item. Sub-block b's arrays start at b * L. */
struct LN_(ln_state) {
    int ns, steps, Dp, ldk; /* sub-blocks, QK steps, padded columns of O, words per row of the K tile */
    float *o, *q;                /* [ns][Dp][L], [ns][steps][L] */
    float *s, *p;                /* [BK][L]; P stands in S's place for f32 */
    float *kt, *vt;              /* prepared K (if converted) and V */
    float *m, *l, *alpha, *top;  /* [ns][L], [ns][L], [L], [L] */
    int32_t *lo0, *hi0, *lo1, *hi1, *pos, *hq; /* [ns][L] */
    struct cpu_mask_bounds *bounds; /* [ns] */
    const char **kp, **vp, **kn, **vn; /* [BK] row pointers into the cache, of this tile and the next */
    const float **ka;               /* [BK] rows that QK reads */
    float *ks, *vs;                 /* [BK] */
    float *row;                     /* [VW][widest row] for packing and output */
    /* Where prefetching of the next tile stands: row, its end, K or V, byte in the row; lines for each call. */
    int pf_row, pf_end, pf_side, pf_at, pf_lines, pf_bytes[2];
    int64_t pf_off[2];
};

/* The number of keys that the blocks below make of n. */
SI int LN_(ln_round)(int n) {
    return LN_BF16 ? (n < 4 ? 4 : (n + 1) & ~1) : (n + LN_MR - 1) / LN_MR * LN_MR;
}

/* A few lines of the next tile into L2: its conversion would wait for each page, and a burst for all of it would fill
 * the line buffers. */
SI void LN_(ln_prefetch)(struct LN_(ln_state) *st) {
    for (int i = 0; i < st->pf_lines && st->pf_row < st->pf_end; i++) {
        v_prefetch_l2((st->pf_side ? st->vn : st->kn)[st->pf_row] + st->pf_off[st->pf_side] + st->pf_at);
        st->pf_at += 64;
        if (st->pf_at >= st->pf_bytes[st->pf_side]) {
            st->pf_at = 0;
            st->pf_row += st->pf_side;
            st->pf_side ^= 1;
        }
    }
}

/* Whole tile of scores: n = ln_round() keys. Blocks of 6 with a rest of 2 end in two blocks of 4 where keys are rows;
 * panels are always LN_MR wide. */
static void LN_(ln_qk)(struct LN_(ln_state) *st, const float *B, int n) {
    float *const S = st->s, *const top = st->top;
    const long steps = st->steps;
    int k = 0;
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
    if (LN_MR == 12)
        return D - d >= 12 ? 12 : D - d >= 8 ? 8 : 4;
    if (LN_MR == 6)
        return (D - d) % 6 == 2 && D - d <= 8 ? 4 : D - d >= 6 ? 6 : 4;
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

static size_t LN_(ln_carve)(struct LN_(ln_state) *st, const struct cpu_attn *a, int ns, char *mem) {
    size_t at = 0;
    const int wide = (cpu_max(a->head_size, a->head_size_v) + 2 * CHUNK - 1) / CHUNK * CHUNK;
    st->ns = ns;
    st->steps = (a->head_size + LN_STEP - 1) / LN_STEP;
    st->Dp = (a->head_size_v + 3) / 4 * 4;
    st->ldk = (a->head_size + CHUNK - 1) / CHUNK * CHUNK / LN_STEP;
#define CARVE(member, type, count)                                                                                     \
    st->member = mem ? (type *)(void *)(mem + at) : NULL;                                                              \
    at += ((size_t)(count) * sizeof(type) + 63) & ~(size_t)63
    CARVE(o, float, (size_t)ns * st->Dp * LN_L);
    CARVE(q, float, (size_t)ns * st->steps * LN_L);
    CARVE(s, float, LN_BK * LN_L);
#if LN_BF16
    CARVE(p, float, (LN_BK + 1) / 2 * LN_L);
#else
    st->p = st->s;
#endif
    CARVE(kt, float, LN_BK * st->ldk + VW);
    CARVE(vt, float, LN_VROWS * st->Dp + VW);
    CARVE(m, float, ns * LN_L);
    CARVE(l, float, ns * LN_L);
    CARVE(alpha, float, LN_L);
    CARVE(top, float, LN_L);
    CARVE(lo0, int32_t, ns * LN_L);
    CARVE(hi0, int32_t, ns * LN_L);
    CARVE(lo1, int32_t, ns * LN_L);
    CARVE(hi1, int32_t, ns * LN_L);
    CARVE(pos, int32_t, ns * LN_L);
    CARVE(hq, int32_t, ns * LN_L);
    CARVE(bounds, struct cpu_mask_bounds, ns);
    CARVE(kp, const char *, LN_BK);
    CARVE(vp, const char *, LN_BK);
    CARVE(kn, const char *, LN_BK);
    CARVE(vn, const char *, LN_BK);
    CARVE(ka, const float *, LN_BK);
    CARVE(ks, float, LN_BK);
    CARVE(vs, float, LN_BK);
    CARVE(row, float, (VW > LN_MR ? VW : LN_MR) * wide);
#undef CARVE
    return at;
}

/* Q panel [step][L] of sub-block b and the per-lane vectors; lanes past the last row repeat it and are not stored. */
static void LN_(ln_begin)(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_item *it,
                          struct LN_(ln_state) *st, int b) {
    const int G = a->num_q_heads / a->num_kv_heads, ld = (int)((a->head_size + CHUNK - 1) / CHUNK * CHUNK);
    float *Q = st->q + (size_t)b * st->steps * LN_L;
    cpu_bounds_init(&st->bounds[b]);
    for (int l0 = 0; l0 < LN_L; l0 += VW) {
        for (int i = 0; i < VW; i++) {
            const int at = b * LN_L + l0 + i, row = cpu_min(it->row0 + at, it->row1 - 1);
            const int tok = row / G, hq = it->head0 * G + row % G;
            const char *src = a->q + (sq->q_start + tok) * a->q_token + hq * a->q_head;
#if LN_BF16
            memset((char *)(st->row + i * ld) + a->head_size * 2, 0, 4);
            memcpy(st->row + i * ld, src, (size_t)a->head_size * 2);
#else
            row_to_f32(a->q_dtype, src, a->head_size, st->row + i * ld);
            if (a->q_dtype == CPU_E4M3)
                for (int d = 0; d < a->head_size; d++)
                    st->row[i * ld + d] *= 256.0f;
#endif
            const struct cpu_interval2 iv = cpu_mask_token(sq, tok, it->key0, it->key1);
            cpu_bounds_add(&st->bounds[b], &iv);
            st->lo0[at] = iv.lo0;
            st->hi0[at] = iv.hi0;
            st->lo1[at] = iv.lo1;
            st->hi1[at] = iv.hi1;
            st->pos[at] = sq->q_offset + tok;
            st->hq[at] = hq;
            const int sink = a->sinks && it->key0 == 0;
            st->m[at] = sink ? a->sinks[hq] * 1.442695041f : -1e30f;
            st->l[at] = sink ? 1.0f : 0.0f;
        }
        for (int p = 0; p < st->steps; p += VW) {
            vf v[VW];
            UNROLL for (int i = 0; i < VW; i++) v[i] = v_load(st->row + i * ld + p);
            v_transpose(v);
            for (int i = 0; i < VW && p + i < st->steps; i++)
                v_store(Q + (size_t)(p + i) * LN_L + l0, v[i]);
        }
    }
    memset(st->o + (size_t)b * st->Dp * LN_L, 0, (size_t)st->Dp * LN_L * sizeof(float));
}

/* Row k of every panel of V from st->row. Whole vectors are stored: what runs over a panel's row is overwritten by the
 * next row, which comes later; a panel's last row is copied exactly. */
static void LN_(ln_pack_v)(const struct LN_(ln_state) *st, int k) {
    for (int d = 0, w; d < st->Dp; d += w) {
        w = LN_(ln_panel)(d, st->Dp);
        float *to = st->vt + (long)d * LN_VROWS + (long)k * w;
        if (k + 4 < LN_VROWS)
            for (int i = 0; i < w; i += VW)
                v_store(to + i, v_load(st->row + d + i));
        else
            memcpy(to, st->row + d, (size_t)w * sizeof *to);
    }
}

#if !LN_BF16
/* A panel [step][LN_MR] from LN_MR rows of floats in st->row, by register transposes whose surplus lanes are overwritten
 * by the next step. */
static void LN_(ln_pack_k)(const struct LN_(ln_state) *st, int ld, float *to) {
    for (int p = 0; p < st->steps; p += VW) {
        for (int r = 0; r < LN_MR; r += VW) {
            vf v[VW];
            UNROLL for (int i = 0; i < VW; i++) v[i] = r + i < LN_MR ? v_load(st->row + (r + i) * ld + p) : v_zero();
            v_transpose(v);
            for (int i = 0; i < VW && p + i < st->steps; i++)
                v_store(to + (long)(p + i) * LN_MR + r, v[i]);
        }
    }
}
#endif

/* The tile's rows in the form that the micro kernels read. */
static void LN_(ln_prepare)(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_item *it,
                            struct LN_(ln_state) *st, const struct cpu_mask_bounds *all, int k0, int n) {
    const int64_t ko = (int64_t)it->head0 * a->k.head, vo = (int64_t)it->head0 * a->v.head;
    const int nr = LN_(ln_round)(n);
    row_pointers(a, sq, &a->k, k0, nr, all, st->kp);
    row_pointers(a, sq, &a->v, k0, nr, all, st->vp);
    if (a->k_row_scale.base) {
        row_scales(st->kp, ko + (a->k_row_scale.base - a->k.base), n, st->ks);
        row_scales(st->vp, vo + (a->v_row_scale.base - a->v.base), n, st->vs);
    }
#if LN_BF16
    for (int k = 0; k < nr; k++) {
        if (a->kv_dtype == CPU_BF16) {
            st->ka[k] = (const float *)(const void *)(st->kp[k] + ko);
        } else {
            row_to_bf16(a->kv_dtype, st->kp[k] + ko, a->head_size, (char *)(st->kt + (size_t)k * st->ldk));
            st->ka[k] = st->kt + (size_t)k * st->ldk;
        }
    }
    for (int k = 0; k < n; k += 2) {
        rows_to_pairs(a->kv_dtype, st->vp[k] + vo, st->vp[k + 1] + vo, a->head_size_v, st->row);
        LN_(ln_pack_v)(st, k / 2);
    }
#else
    for (int k = 0; k < nr; k += LN_MR) {
        const int ld = (a->head_size + CHUNK - 1) / CHUNK * CHUNK;
        for (int i = 0; i < LN_MR; i++)
            row_to_f32(a->kv_dtype, st->kp[k + i] + ko, a->head_size, st->row + i * ld);
        LN_(ln_pack_k)(st, ld, st->kt + (size_t)k * st->steps);
    }
    for (int k = 0; k < n; k++) {
        row_to_f32(a->kv_dtype, st->vp[k] + vo, a->head_size_v, st->row);
        LN_(ln_pack_v)(st, k);
    }
#endif
}

/* Scores that are more than scaled dot products: per-token scale, soft cap, bias, mask; to log2 units, with maxima. */
static void LN_(ln_scores)(const struct cpu_attn *a, const struct cpu_seq *sq, const struct LN_(ln_state) *st, int b,
                           int k0, int n, float c, int partial) {
    const float log2e = 1.442695041f;
    const int plain = !(a->soft_cap > 0) && !a->alibi && !a->qq_bias, G = a->num_q_heads / a->num_kv_heads;
    (void)G;
    for (int j = 0; j < LN_L; j += VW) {
        const int at = b * LN_L + j;
        const vi lo0 = vi_load(st->lo0 + at), hi0 = vi_load(st->hi0 + at), lo1 = vi_load(st->lo1 + at),
                 hi1 = vi_load(st->hi1 + at), pos = vi_load(st->pos + at);
        vf top = v_load(st->m + at), slope = v_zero();
        if (a->alibi) {
            float sl[VW];
            for (int i = 0; i < VW; i++)
                sl[i] = a->alibi[st->hq[at + i]];
            slope = v_load(sl);
        }
        for (int k = 0; k < n; k++) {
            float *s = st->s + k * LN_L + j;
            const vi key = vi_set1(k0 + k);
            vf x = v_mul(v_load(s), v_set1((a->k_row_scale.base ? st->ks[k] : 1.0f) * (plain ? c * log2e : c)));
            if (!plain) {
                if (a->soft_cap > 0)
                    x = v_mul(v_set1(a->soft_cap), v_tanh(v_mul(x, v_set1(1.0f / a->soft_cap))));
                if (a->alibi)
                    x = v_add(x, alibi_term(a->alibi_sqrt, slope, vi_sub(key, pos)));
                if (a->qq_bias && k0 + k >= sq->q_offset) {
                    float bias[VW];
                    for (int i = 0; i < VW; i++)
                        bias[i] = qq_bias_at(a, sq, st->pos[at + i] - sq->q_offset, k0 + k);
                    x = v_add(x, v_load(bias));
                }
                x = v_mul(x, v_set1(log2e));
            }
            if (partial)
                x = v_mask2(x, key, lo0, hi0, lo1, hi1);
            v_store(s, x);
            top = v_max(x, top);
        }
        v_store(st->top + j, top);
    }
}

/* Row pair k, k + 1 of P (the second zero if it does not exist), stored as the next product reads it. */
SI void LN_(ln_store_p)(const struct LN_(ln_state) *st, int k, int j, vf p0, vf p1, int scaled, int pair) {
    if (scaled) {
        p0 = v_mul(p0, v_set1(st->vs[k]));
        if (pair)
            p1 = v_mul(p1, v_set1(st->vs[k + 1]));
    }
#if LN_BF16
    v_store(st->p + k / 2 * LN_L + j, v_pair_bf16(p0, p1));
#else
    v_store(st->p + k * LN_L + j, p0);
    if (pair)
        v_store(st->p + (k + 1) * LN_L + j, p1);
#endif
}

/* P = 2^(S * c - m), its sums, alpha. Sums are of the unrounded, unscaled P. */
SI void LN_(ln_softmax_)(const struct LN_(ln_state) *st, int b, int n, float c, int scaled) {
    for (int j = 0; j < LN_L; j += VW) {
        float *m = st->m + b * LN_L + j, *l = st->l + b * LN_L + j;
        const float *s = st->s + j;
        const vf top = v_load(st->top + j), vc = v_set1(c), al = v_exp2(v_sub(v_load(m), top));
        vf l0 = v_mul(v_load(l), al), l1 = v_zero();
        int k = 0;
        v_store(st->alpha + j, al);
        v_store(m, top);
        for (; k + 2 <= n; k += 2) {
            const vf p0 = LN_(ln_exp2)(v_fms(v_load(s + k * LN_L), vc, top));
            const vf p1 = LN_(ln_exp2)(v_fms(v_load(s + (k + 1) * LN_L), vc, top));
            l0 = v_add(l0, p0);
            l1 = v_add(l1, p1);
            LN_(ln_store_p)(st, k, j, p0, p1, scaled, 1);
        }
        if (k < n) {
            const vf p0 = LN_(ln_exp2)(v_fms(v_load(s + k * LN_L), vc, top));
            l0 = v_add(l0, p0);
            LN_(ln_store_p)(st, k, j, p0, v_zero(), scaled, 0);
        }
        v_store(l, v_add(l0, l1));
    }
}
static void LN_(ln_softmax)(const struct cpu_attn *a, const struct LN_(ln_state) *st, int b, int n, float c) {
    if (a->v_row_scale.base)
        LN_(ln_softmax_)(st, b, n, c, 1);
    else
        LN_(ln_softmax_)(st, b, n, c, 0);
}

/* Sub-block b's rows to the output or to partial slots. */
static void LN_(ln_end)(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_item *it,
                        const struct LN_(ln_state) *st, int b, float *parts) {
    const int G = a->num_q_heads / a->num_kv_heads, Dv = a->head_size_v, ld = (Dv + VW - 1) / VW * VW;
    const int64_t pf = cpu_part_floats(Dv);
    const float *O = st->o + (size_t)b * st->Dp * LN_L;
    const float f = (LN_BF16 ? 1.0f : dtype_gain(a->kv_dtype)) *
                    (a->v_scale ? a->v_scale[a->scale_per_head ? it->head0 : 0] : 1.0f);
    for (int l0 = 0; l0 < LN_L && it->row0 + b * LN_L + l0 < it->row1; l0 += VW) {
        for (int d = 0; d < Dv; d += VW) {
            vf v[VW];
            for (int i = 0; i < VW; i++)
                v[i] = d + i < st->Dp ? v_load(O + (size_t)(d + i) * LN_L + l0) : v_zero();
            v_transpose(v);
            UNROLL for (int i = 0; i < VW; i++) v_store(st->row + i * ld + d, v[i]);
        }
        for (int i = 0; i < VW; i++) {
            const int at = b * LN_L + l0 + i, row = it->row0 + at;
            float *o = st->row + i * ld;
            if (row >= it->row1)
                break;
            if (it->part >= 0) {
                float *p = parts + (it->part + at) * pf;
                scale_copy(p, o, Dv, f);
                p[Dv] = st->m[at];
                p[Dv + 1] = st->l[at];
            } else {
                finish_row(a, sq->q_start + row / G, it->head0 * G + row % G, o, st->m[at], st->l[at], f);
            }
        }
    }
}

static void LN_(ln_item)(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_item *it, char *scratch,
                         float *parts) {
    struct LN_(ln_state) st;
    struct cpu_mask_bounds all;
    const int64_t ko = (int64_t)it->head0 * a->k.head, vo = (int64_t)it->head0 * a->v.head;
    const int ns = (it->row1 - it->row0 + LN_L - 1) / LN_L, kh = a->scale_per_head ? it->head0 : 0;
    const float c = a->scale * a->q_scale * (a->k_scale ? a->k_scale[kh] : 1.0f) *
                    (LN_BF16 ? 1.0f : dtype_gain(a->kv_dtype));
    const int modified = a->soft_cap > 0 || a->alibi || a->qq_bias || a->k_row_scale.base || c <= 0;
    LN_(ln_carve)(&st, a, ns, scratch);
    st.pf_off[0] = ko;
    st.pf_off[1] = vo;
    st.pf_bytes[0] = a->head_size * cpu_dtype_size(a->kv_dtype);
    st.pf_bytes[1] = a->head_size_v * cpu_dtype_size(a->kv_dtype);
    st.pf_lines = 1 + (LN_BK / ns + 1) * (st.pf_bytes[0] + st.pf_bytes[1]) / 64 / (LN_BK / LN_MR);
    cpu_bounds_init(&all);
    for (int b = 0; b < ns; b++) {
        LN_(ln_begin)(a, sq, it, &st, b);
        cpu_bounds_join(&all, &st.bounds[b]);
    }
    const int end = cpu_bounds_end(&all);
    for (int k0 = cpu_bounds_first(&all) / LN_BK * LN_BK; k0 < end; k0 += LN_BK) {
        const int n = cpu_min(end - k0, LN_BK);
        if (cpu_bounds_cover(&all, k0, k0 + n) == CPU_COVER_NONE) {
            if (all.lo_min[0] >= k0 + LN_BK && all.hi_max[1] <= k0)
                k0 = all.lo_min[0] / LN_BK * LN_BK - LN_BK;
            continue;
        }
        LN_(ln_prepare)(a, sq, it, &st, &all, k0, n);
        const int ahead = k0 + LN_BK < end;
        st.pf_row = st.pf_end = st.pf_side = st.pf_at = 0;
        if (ahead) {
            row_pointers(a, sq, &a->k, k0 + LN_BK, LN_BK, &all, st.kn);
            row_pointers(a, sq, &a->v, k0 + LN_BK, LN_BK, &all, st.vn);
        }
        for (int b = 0; b < ns; b++) {
            if (ahead)
                st.pf_end = LN_BK * (b + 1) / ns;
            const int nb = cpu_min(n, cpu_bounds_end(&st.bounds[b]) - k0);
            const enum cpu_cover cover = nb > 0 ? cpu_bounds_cover(&st.bounds[b], k0, k0 + nb) : CPU_COVER_NONE;
            if (cover == CPU_COVER_NONE)
                continue;
            const int nr = LN_(ln_round)(nb), slow = modified || nr > nb || cover != CPU_COVER_FULL;
            for (int j = 0; j < LN_L; j += VW)
                v_store(st.top + j, v_set1(-INFINITY));
            LN_(ln_qk)(&st, st.q + (size_t)b * st.steps * LN_L, nr);
            float unit = 1.0f;
            if (slow) {
                LN_(ln_scores)(a, sq, &st, b, k0, nb, c, cover != CPU_COVER_FULL);
            } else {
                unit = c * 1.442695041f;
                for (int j = 0; j < LN_L; j += VW)
                    v_store(st.top + j, v_max(v_mul(v_load(st.top + j), v_set1(unit)), v_load(st.m + b * LN_L + j)));
            }
            LN_(ln_softmax)(a, &st, b, nb, unit);
            LN_(ln_pv)(st.vt, st.p, st.o + (size_t)b * st.Dp * LN_L, st.alpha, (nb + LN_STEP - 1) / LN_STEP,
                       st.Dp);
        }
    }
    for (int b = 0; b < ns; b++)
        LN_(ln_end)(a, sq, it, &st, b, parts);
}

#undef LN_CAT_
#undef LN_CAT
#undef LN_
#undef LN_STEP
#undef LN_L
#undef LN_QK
#undef LN_QK_INIT
#undef LN_QK_AHEAD
#undef LN_QK_A
#undef LN_QK_ARGS
#undef LN_QK_CALL
#undef LN_ROW
#undef LN_WITHIN
#undef LN_VROWS
#undef LN_PV
#undef LN_BF16
#undef LN_MR
#undef LN_NR
#undef LN_BK
