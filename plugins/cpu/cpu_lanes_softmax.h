/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax of the lanes path, vertical: scores to log2 units, maxima, P and its sums. Included by
 * cpu_lanes_kernel.h once per arithmetic. */

/* Scores that are more than scaled dot products: per-token scale, soft cap, bias, mask; to log2 units, with
 * maxima. */
static void LN_(ln_scores)(const struct cpu_attn *a, const struct cpu_seq *sq,
                           const struct LN_(ln_state) * st, int b, int k0, int n, float c, int partial) {
    const float log2e = 1.442695041f;
    const int plain = !(a->soft_cap > 0) && !a->alibi && !a->rel_bias && !a->qq_bias;
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
        int32_t low = 0,
                high = 0; /* keys before low are as far as the table goes for every lane; after high too */
        vf far[2] = {v_zero(), v_zero()};
        if (a->rel_bias) {
            float ends[2][VW];
            int32_t first = INT32_MAX, last = INT32_MIN;
            for (int i = 0; i < VW; i++) {
                first = st->pos[at + i] < first ? st->pos[at + i] : first;
                last = st->pos[at + i] > last ? st->pos[at + i] : last;
                for (int side = 0; side < 2; side++)
                    ends[side][i] = rel_bias_at(a, st->hq[at + i], side ? a->rel_max : -a->rel_max);
            }
            low = first - a->rel_max;
            high = last + a->rel_max;
            far[0] = v_load(ends[0]);
            far[1] = v_load(ends[1]);
        }
        for (int k = 0; k < n; k++) {
            float *s = st->s + k * LN_L + j;
            const vi key = vi_set1(k0 + k);
            vf x =
                v_mul(v_load(s), v_set1((cpu_scales_keys(a) ? st->ks[k] : 1.0f) * (plain ? c * log2e : c)));
            if (a->rounds_query) x = v_mul(x, v_load(st->qf + at));
            if (!plain) {
                if (a->soft_cap > 0)
                    x = v_mul(v_set1(a->soft_cap), v_tanh(v_mul(x, v_set1(1.0f / a->soft_cap))));
                if (a->alibi) x = v_add(x, alibi_term(a->alibi_sqrt, slope, vi_sub(key, pos)));
                if (a->rel_bias && (k0 + k <= low || k0 + k >= high)) {
                    x = v_add(x, far[k0 + k > low]);
                } else if (a->rel_bias) {
                    float bias[VW];
                    for (int i = 0; i < VW; i++)
                        bias[i] = rel_bias_at(a, st->hq[at + i], k0 + k - st->pos[at + i]);
                    x = v_add(x, v_load(bias));
                }
                if (a->qq_bias && k0 + k >= sq->q_offset) {
                    float bias[VW];
                    for (int i = 0; i < VW; i++)
                        bias[i] = qq_bias_at(a, sq, st->pos[at + i] - sq->q_offset, k0 + k);
                    x = v_add(x, v_load(bias));
                }
                x = log2_units(x);
            }
            if (partial) x = v_mask2(x, key, lo0, hi0, lo1, hi1);
            v_store(s, x);
            top = v_max(x, top);
        }
        v_store(st->top + j, top);
    }
}

/* Row pair k, k + 1 of P (the second zero if it does not exist), stored as the next product reads it. */
SI void LN_(ln_store_p)(const struct LN_(ln_state) * st, int k, int j, vf p0, vf p1, int scaled, int pair) {
    if (scaled) {
        p0 = v_mul(p0, v_set1(st->vs[k]));
        if (pair) p1 = v_mul(p1, v_set1(st->vs[k + 1]));
    }
#if LN_BF16
    v_store(st->p + k / 2 * LN_L + j, v_pair_bf16(p0, p1));
#else
    v_store(st->p + k * LN_L + j, p0);
    if (pair) v_store(st->p + (k + 1) * LN_L + j, p1);
#endif
}

/* Of rows beyond it, what v_fms leaves of the rounding of m is no small factor any more, and from 1e8 on it
 * leaves the exponent's range. */
#define LN_DEEP 16777216.0f

/* S * c - m of lanes some of which are such rows; the others have the bits that v_fms gives. */
static vf LN_(ln_far_exponent)(vf s, vf c, vf m) {
    float fused[VW], apart[VW], of[VW];
    v_store(fused, v_fms(s, c, m));
    v_store(apart, v_sub(v_mul(s, c), m));
    v_store(of, m);
    for (int i = 0; i < VW; i++)
        if (of[i] > LN_DEEP || of[i] < -LN_DEEP) fused[i] = apart[i];
    return v_load(fused);
}

/* P = 2^(S * c - m), its sums, alpha. Sums are of the unrounded, unscaled P. */
SI void LN_(ln_softmax_)(const struct LN_(ln_state) * st, int b, int n, float c, int scaled) {
    for (int j = 0; j < LN_L; j += VW) {
        float *m = st->m + b * LN_L + j, *l = st->l + b * LN_L + j;
        const float *s = st->s + j;
        vf top = v_load(st->top + j);
#if LN_AMX
        /* Tiles do not scale O on their way, so m moves only when a score exceeds it by more than 2^8. */
        const int moves = v_any_gt(top, v_add(v_load(m), v_set1(8.0f)));
        if (!moves) top = v_load(m);
#endif
        const vf al = v_exp2(v_sub(v_load(m), top)), size = v_max(top, v_sub(v_zero(), top));
        vf vc = v_set1(c);
        vf l0 = v_mul(v_load(l), al), l1 = v_zero();
        int k = 0;
        v_store(st->alpha + j, al);
        v_store(m, top);
        if (v_any_gt(v_min(size, v_sub(v_set1(-SCORE_MIN), size)), v_set1(LN_DEEP))) { /* not without keys */
            for (int i = 0; i < n; i++) {
                float *at = st->s + i * LN_L + j;
                v_store(at, LN_(ln_far_exponent)(v_load(at), vc, top));
            }
            vc = v_set1(1.0f), top = v_zero();
        }
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
#if LN_AMX
        for (k = (n + 1) / 2; k % TILE_WORDS; k++)
            v_store(st->p + k * LN_L + j, v_zero());
        float *O = st->o + (size_t)b * st->Dp * LN_L + j;
        for (int d = 0; moves && d < st->Dp; d++, O += LN_L)
            v_store(O, v_mul(v_load(O), al));
#endif
    }
}
static void LN_(ln_softmax)(const struct cpu_attn *a, const struct LN_(ln_state) * st, int b, int n,
                            float c) {
    if (a->v_row_scale.base)
        LN_(ln_softmax_)(st, b, n, c, 1);
    else
        LN_(ln_softmax_)(st, b, n, c, 0);
}
