/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax of int4 rows by byte products, four query rows at a time: P goes from registers into the bytes that
 * the products take (cpu_rowdot_quads.h). Included by cpu_rowdot.h. */

#if CPU_X86 >= 2
/* Rows r to r + 3 of a tile of 16 * vecs plain scores; c in log2 units. */
SI void rd_quads_plain(const struct rd_state *st, size_t at, int r, float c, const int vecs) {
    vf p[4][RD_QUADS_TB / VW], scale[RD_QUADS_TB / VW], f[4], m[4], top = v_set1(-INFINITY);
    const float *s = st->s + r * RD_QUADS_TB;
    const size_t row = at + (size_t)r;
    UNROLL for (int t = 0; t < vecs; t++) scale[t] = v_load(st->ks + t * VW);
    UNROLL for (int i = 0; i < 4; i++) {
        f[i] = v_set1(c * st->qf[row + i]);
        m[i] = v_set1(st->m[row + i]);
        UNROLL for (int t = 0; t < vecs; t++) {
            p[i][t] = v_fms(v_load(s + i * RD_QUADS_TB + t * VW), v_mul(f[i], scale[t]), m[i]);
            top = v_max(p[i][t], top);
        }
    }
    if (__builtin_expect(v_any_gt(top, v_set1(8.0f)), 0)) {
        for (int i = 0; i < 4; i++) {
            vf x[RD_QUADS_TB / VW];
            top = v_set1(-INFINITY);
            UNROLL for (int t = 0; t < vecs; t++) {
                x[t] = v_mul(v_load(s + i * RD_QUADS_TB + t * VW), v_mul(f[i], scale[t]));
                top = v_max(x[t], top);
            }
            if (v_any_gt(top, v_add(m[i], v_set1(8.0f)))) rd_rescale(st, (int)row + i, v_hmax(top));
            UNROLL for (int t = 0; t < vecs; t++) p[i][t] = v_sub(x[t], v_set1(st->m[row + i]));
        }
    }
    UNROLL for (int i = 0; i < 4; i++) {
        vf sum = v_load(st->l + (row + i) * VW);
        UNROLL for (int t = 0; t < vecs; t++) {
            p[i][t] = v_exp2(p[i][t]);
            sum = v_add(sum, p[i][t]);
            p[i][t] = v_mul(p[i][t], v_load(st->vs + t * VW));
        }
        v_store(st->l + (row + i) * VW, sum);
    }
    const unsigned none = rd_quads_bytes_of_p(st, r, p, vecs, 4);
    UNROLL for (int i = 0; i < 4; i++) {
        float *low = st->lows + (row + i) * VW;
        vf sum = v_load(low);
        UNROLL for (int t = 0; t < vecs; t++) sum = v_fma(p[i][t], vi_to_f(vi_load(st->zv + t * VW)), sum);
        if (__builtin_expect(!(none >> i & 1), 1)) v_store(low, sum);
    }
}
static __attribute__((noinline)) void rd_quads_plain32(const struct rd_state *st, size_t at, int r, float c) {
    rd_quads_plain(st, at, r, c, 2);
}
static __attribute__((noinline)) void rd_quads_plain64(const struct rd_state *st, size_t at, int r, float c) {
    rd_quads_plain(st, at, r, c, 4);
}

static void rd_quads_softmax(const struct cpu_attn *a, const struct cpu_seq *sq, const struct rd_state *st,
                             int h, int head, int k0, int n, int partial) {
    const float c = rd_score_factor(a, st, head);
    const size_t at = (size_t)h * (size_t)st->rows;
    int r = 0;
    if (!partial && n % RD_TB == 0 && rd_is_plain(a))
        for (; r + 4 <= st->rows; r += 4)
            (n == RD_TB ? rd_quads_plain32 : rd_quads_plain64)(st, at, r, c * 1.442695041f);
    for (int i = r; i < st->rows; i++)
        rd_softmax_row(a, sq, st, h, head, i, c, k0, n, partial);
    rd_quads_weights(st, at, r, n, st->zv);
}
#else
SI void rd_quads_softmax(const struct cpu_attn *a, const struct cpu_seq *sq, const struct rd_state *st, int h,
                         int head, int k0, int n, int partial) {
    (void)a, (void)sq, (void)st, (void)h, (void)head, (void)k0, (void)n, (void)partial;
}
#endif
