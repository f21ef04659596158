/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax of the row-dot path, row by row over a tile's tokens, with lazy rescaling. Included by
 * cpu_rowdot.h. */

/* What scores are multiplied by; whether they need nothing else. */
SI float rd_score_factor(const struct cpu_attn *a, const struct rd_state *st, int head) {
    return a->scale * a->q_scale * (a->k_scale ? a->k_scale[a->scale_per_head ? head : 0] : 1.0f) * st->gain;
}
SI int rd_is_plain(const struct cpu_attn *a) {
    return !(a->soft_cap > 0) && !a->alibi && !a->rel_bias && !a->qq_bias;
}

/* Scaling, cap, mask and bias of one row's scores; leaves log2 units and returns the lanes' maxima. */
SI vf rd_scores(const struct cpu_attn *a, const struct cpu_seq *sq, const struct rd_state *st, int row,
                int hq, int k0, int n, float c, int partial) {
    float *s = st->s + row * st->tile;
    const int tok = (st->row0 + row) / (a->num_q_heads / a->num_kv_heads);
    const struct cpu_interval2 *iv = &st->mask[row];
    const float log2e = 1.442695041f;
    const int plain = rd_is_plain(a);
    vf top = v_set1(-INFINITY);
    for (int t = 0; t < n; t += VW) {
        vf x = v_load(s + t);
        vi k = vi_add(vi_set1(k0 + t), vi_load(lane_numbers));
        if (st->key_scales) x = v_mul(x, v_load(st->ks + t));
        if (plain) {
            x = v_mul(x, v_set1(c * log2e));
        } else {
            x = v_mul(x, v_set1(c));
            if (a->soft_cap > 0) x = v_mul(v_set1(a->soft_cap), v_tanh(v_mul(x, v_set1(1.0f / a->soft_cap))));
            if (a->alibi)
                x = v_add(x, alibi_term(a->alibi_sqrt, v_set1(a->alibi[hq]),
                                        vi_sub(k, vi_set1(sq->q_offset + tok))));
            if (a->rel_bias) x = v_add(x, rel_bias_row(a, hq, k0 + t - (sq->q_offset + tok)));
            if (a->qq_bias) {
                float b[VW];
                for (int i = 0; i < VW; i++)
                    b[i] = qq_bias_at(a, sq, tok, k0 + t + i);
                x = v_add(x, v_load(b));
            }
            x = log2_units(x);
        }
        if (partial)
            x = v_mask2(x, k, vi_set1(iv->lo0), vi_set1(iv->hi0), vi_set1(iv->lo1), vi_set1(iv->hi1));
        v_store(s + t, x);
        top = v_max(x, top);
    }
    return top;
}

/* Row r of head h moves to a new maximum: rare, because m may lag behind by 2^8. */
static __attribute__((noinline)) void rd_rescale(const struct rd_state *st, int at, float new_m) {
    float *o = st->o + (size_t)at * st->ldo, *l = st->l + (size_t)at * VW;
    const vf al = v_exp2(v_set1(st->m[at] - new_m));
    st->m[at] = new_m;
    v_store(l, v_mul(v_load(l), al));
    if (st->dots) v_store(st->l_bf16 + (size_t)at * VW, v_mul(v_load(st->l_bf16 + (size_t)at * VW), al));
    if (st->codes || st->quads)
        v_store(st->lows + (size_t)at * VW, v_mul(v_load(st->lows + (size_t)at * VW), al));
    for (int d = 0; d < st->ldo; d += VW)
        v_store(o + d, v_mul(v_load(o + d), al));
}

/* Whole tiles of plain scores: scale, look at the maximum, exponential, all in registers. */
SI void rd_softmax_plain(const struct rd_state *st, int h, float c, int scaled) {
    for (int r = 0; r < st->rows; r++) {
        const int at = h * st->rows + r;
        float *s = st->s + r * RD_TB, *l = st->l + (size_t)at * VW;
        vf x[RD_TB / VW], top = v_set1(-INFINITY), m = v_set1(st->m[at]), f = v_set1(c * st->qf[at]);
        UNROLL for (int t = 0; t < RD_TB / VW; t++) {
            x[t] = v_mul(v_load(s + t * VW), scaled ? v_mul(f, v_load(st->ks + t * VW)) : f);
            top = v_max(x[t], top);
        }
        if (__builtin_expect(v_any_gt(top, v_add(m, v_set1(8.0f))), 0)) {
            rd_rescale(st, at, v_hmax(top));
            m = v_set1(st->m[at]);
        }
        vf sum = v_load(l);
        UNROLL for (int t = 0; t < RD_TB / VW; t++) {
            const vf p = v_exp2(v_sub(x[t], m));
            sum = v_add(sum, p);
            v_store(s + t * VW, scaled ? v_mul(p, v_load(st->vs + t * VW)) : p);
        }
        v_store(l, sum);
    }
}

/* Row r, in every case. */
static void rd_softmax_row(const struct cpu_attn *a, const struct cpu_seq *sq, const struct rd_state *st,
                           int h, int head, int r, float c, int k0, int n, int partial) {
    const int at = h * st->rows + r, G = a->num_q_heads / a->num_kv_heads;
    float *s = st->s + r * st->tile, *l = st->l + (size_t)at * VW;
    const vf top = rd_scores(a, sq, st, r, head * G + (st->row0 + r) % G, k0, n, c * st->qf[at], partial);
    if (v_any_gt(top, v_set1(st->m[at] + 8.0f))) rd_rescale(st, at, v_hmax(top));
    vf sum = v_load(l);
    const vf m = v_set1(st->m[at]);
    for (int t = 0; t < n; t += VW) {
        vf p = v_exp2(v_sub(v_load(s + t), m));
        sum = v_add(sum, p);
        if (a->v_row_scale.base && !st->dots) p = v_mul(p, v_load(st->vs + t));
        v_store(s + t, p);
    }
    v_store(l, sum);
}

static void rd_softmax(const struct cpu_attn *a, const struct cpu_seq *sq, const struct rd_state *st, int h,
                       int head, int k0, int n, int partial) {
    const float c = rd_score_factor(a, st, head);
    if (!partial && n == RD_TB && rd_is_plain(a)) {
        if (st->key_scales)
            rd_softmax_plain(st, h, c * 1.442695041f, 1);
        else
            rd_softmax_plain(st, h, c * 1.442695041f, 0);
        return;
    }
    for (int r = 0; r < st->rows; r++)
        rd_softmax_row(a, sq, st, h, head, r, c, k0, n, partial);
}
