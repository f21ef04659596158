/* SPDX-License-Identifier: Apache-2.0 */
/* What a thread of the lanes path keeps for one item, and how many keys its blocks take. Included by
 * cpu_lanes_kernel.h once per arithmetic. */

#define LN_VROWS (LN_BK / LN_STEP)

/* What a thread keeps for one item. Sub-block b's arrays start at b * L. */
struct LN_(ln_state) {
    int ns, steps, Dp, ldk;     /* sub-blocks, QK steps, padded columns of O, words per row of the K tile */
    float *o, *q;               /* [ns][Dp][L], [ns][steps][L] */
    float *s, *p;               /* [BK][L]; for f32, P replaces S */
    float *kt, *vt;             /* prepared K (if converted) and V */
    float *m, *l, *alpha, *top; /* [ns][L], [ns][L], [L], [L] */
    int32_t *lo0, *hi0, *lo1, *hi1, *pos, *hq; /* [ns][L] */
    struct cpu_mask_bounds *bounds;            /* [ns] */
    const char **kp, **vp, **kn, **vn; /* [BK] row pointers into the cache, of this tile and the next */
    const char **kg, **vg;             /* [BK] rows of groups that lie apart */
    const float **ka;                  /* [BK] rows that QK reads */
    float *ks, *vs;                    /* [BK] */
    float *qf;                         /* [ns][L] scale of the rounded query */
    float *row;                        /* [VW][widest row] for packing and output */
    /* How far prefetching of the next tile is: row, its end, K or V, byte in the row; lines for each
     * call. */
    int pf_row, pf_end, pf_side, pf_at, pf_lines, pf_bytes[2];
    int64_t pf_off[2];
    struct turbo_table turbo;
};

/* The number of keys that the blocks below make of n. */
SI int LN_(ln_round)(int n) {
#if LN_AMX
    return (n + 15) & ~15;
#else
    return LN_BF16 ? (n < 4 ? 4 : (n + 1) & ~1) : (n + LN_MR - 1) / LN_MR * LN_MR;
#endif
}

/* A few lines of the next tile into L2: its conversion would wait for each page, and a burst for all of it
 * would fill the line buffers. */
SI void LN_(ln_prefetch)(struct LN_(ln_state) * st) {
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

/* A row's lines into L2. */
SI void LN_(ln_fetch)(const char *row, int bytes) {
    for (int b = 0; b < bytes; b += 64)
        v_prefetch_l2(row + b);
}

/* The first tile, which no other one fetches; more of a short request than of a long one. */
static void LN_(ln_fetch_first)(const struct cpu_attn *a, const struct cpu_seq *sq, struct LN_(ln_state) * st,
                                const struct cpu_mask_bounds *all, int end) {
    const int k0 = cpu_bounds_first(all) / LN_BK * LN_BK, n = cpu_min(end - k0, LN_BK);
    if (n <= 0) return;
    row_pointers(a, sq, &a->k, k0, LN_BK, all, st->kn);
    row_pointers(a, sq, &a->v, k0, LN_BK, all, st->vn);
    for (int i = 0; i < n; i++) {
        LN_(ln_fetch)(st->kn[i] + st->pf_off[0], st->pf_bytes[0]);
        if (!cpu_is_shared(a)) LN_(ln_fetch)(st->vn[i] + st->pf_off[1], st->pf_bytes[1]);
    }
}

static size_t LN_(ln_carve)(struct LN_(ln_state) * st, const struct cpu_attn *a, int ns, char *mem) {
    size_t at = 0;
    const int row_values = (cpu_max(a->head_size, a->head_size_v) + 2 * CHUNK - 1) / CHUNK * CHUNK;
    st->ns = ns;
    st->ldk = (a->head_size + CHUNK - 1) / CHUNK * CHUNK / LN_STEP;
#if LN_AMX /* whole tiles */
    st->steps = st->ldk;
    st->Dp = (a->head_size_v + 15) / 16 * 16;
#else
    st->steps = (a->head_size + LN_STEP - 1) / LN_STEP;
    st->Dp = (a->head_size_v + 3) / 4 * 4;
#endif
#define CARVE(member, type, count)                                                                           \
    st->member = mem ? (type *)(void *)(mem + at) : NULL;                                                    \
    at += ((size_t)(count) * sizeof(type) + 63) & ~(size_t)63
    CARVE(o, float, (size_t)ns * st->Dp * LN_L);
    CARVE(q, float, (size_t)ns * st->steps * LN_L);
    CARVE(s, float, LN_BK *LN_L);
#if LN_BF16
    CARVE(p, float, (LN_BK + 1) / 2 * LN_L);
#else
    st->p = st->s;
#endif
    CARVE(kt, float, LN_BK * st->ldk + VW);
    CARVE(vt, float, LN_VROWS * st->Dp + VW);
    CARVE(m, float, ns *LN_L);
    CARVE(l, float, ns *LN_L);
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
    CARVE(kg, const char *, cpu_has_groups(a) || a->rounds_query ? LN_BK : 0);
    CARVE(vg, const char *, cpu_has_groups(a) ? LN_BK : 0);
    CARVE(ka, const float *, LN_BK);
    CARVE(qf, float, a->rounds_query ? ns *LN_L : 0);
    CARVE(ks, float, LN_BK);
    CARVE(vs, float, LN_BK);
    CARVE(row, float, (VW > LN_MR ? VW : LN_MR) * row_values);
#undef CARVE
    return at;
}

#if LN_BF16
/* V of key k of the tile, as lanes_row() gives it; where it is a part of K, from there, made already. */
SI const char *LN_(ln_value_row)(const struct cpu_attn *a, const struct LN_(ln_state) * st, int k,
                                 int64_t off, char *buf, enum cpu_dtype *type) {
    if (!cpu_is_shared(a)) return lanes_row(a, &st->turbo, 1, st->vp[k] + off, NULL, buf, type);
    *type = CPU_BF16;
    return (const char *)(st->kt + (size_t)k * st->ldk);
}
#endif
