/* SPDX-License-Identifier: Apache-2.0 */
/* Row dots of nvfp4 and TurboQuant caches straight from their codes, for 16-bit outputs: included by
 * cpu_level.c, levels from avx2 (nvfp4: from avx512, in whose words this is told).
 *
 * Scores: words of 16 keys' rows are transposed as in cpu_rowdot_quads.h. Lanes are keys; a shift brings one
 * code of each 16-bit half of a lane to its end, and vpermw, which looks at five bits only, makes two 16-bit
 * values of them: twice an e2m1 value, or a centroid as a fraction of the largest. Products are integers, of
 * a pair of q's words from memory; after the 16 keys' groups of nvfp4, or as long as 32 bits last, the sums
 * become floats. What a row of centroids has for a norm is one more row of such products.
 *
 * Outputs: steps are int4's codes, with P times the step for P times the scale, and the minimum leaves as one
 * sum of each row. nvfp4 has a weight for each key and group: P times that group's scale, in 16 bits with a
 * factor of each group; a vector of 16 columns has 4 groups, whose weights one shuffle spreads. */

/* 32 products of such values fit 32 bits. */
enum { RD_CODES_MAX_SIZE = CPU_X86 >= 2 ? 512 : 256, RD_CODES_TOP = 8191 };

#if CPU_X86 >= 1
SI int rd_codes_serve(const struct cpu_attn *a) {
    const int is_e2m1 = CPU_X86 >= 2 && a->k_row == CPU_E2M1 && a->v_row == CPU_E2M1;
    const int is_turbo =
        (is_centroids(a->k_row) || (a->k_row == CPU_E4M3 && !a->rounds_query)) && is_steps(a->v_row);
    return a->kv_dtype == CPU_PACKED && (is_e2m1 || is_turbo) && a->out_dtype != CPU_F32 &&
           (a->head_size | a->head_size_v) % 64 == 0 && a->head_size <= RD_CODES_MAX_SIZE &&
           a->head_size_v <= RD_CODES_MAX_SIZE;
}

/* The words that K's codes stand for, and V's of nvfp4: entry i of 16, twice. */
static void rd_codes_begin(const struct cpu_attn *a, const struct rd_state *st) {
    static const int16_t e2m1[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    const float *c = st->turbo.centroid;
    float top = 0;
    for (int i = 0; is_centroids(a->k_row) && i < 16; i++)
        top = fabsf(c[i]) > top ? fabsf(c[i]) : top;
    for (int i = 0; i < 32; i++)
        st->look[i] = (int16_t)(a->k_row == CPU_E2M1     ? (i & 8 ? -e2m1[i & 7] : e2m1[i & 7])
                                : is_centroids(a->k_row) ? lrintf(c[i & 15] * (RD_CODES_TOP / top))
                                                         : 0);
    memset(st->zv, 0, RD_TB * sizeof *st->zv);
    memset(st->lows, 0, (size_t)st->heads * st->rows * VW * sizeof *st->lows);
}

#if CPU_X86 >= 2
#include "cpu_rowdot_beside.h"
#include "cpu_rowdot_codes_avx512.h"
#else
#include "cpu_rowdot_codes_avx2.h"
#endif

/* A head's query rows, as these products take them or those of e4m3. */
static void rd_codes_query(const struct cpu_attn *a, const struct rd_state *st, size_t at) {
    const int n = st->ldq;
    if (a->k_row == CPU_E4M3) {
        for (size_t row = at; row < at + (size_t)st->rows; row++) {
            float *q = st->q + row * n;
            st->qf[row] = st->vbmi ? 1.0f : dtype_gain(CPU_E4M3);
#if CPU_X86 >= 3
            if (st->pairs) { /* of E4M3_SCALE P would have 90 */
                st->qf[row] = rd_e4m3_query(q, n, st->q16 + row * n) * 0x1p27f;
                continue;
            }
#endif
            for (int d = 0; st->vbmi && d < n; d += CHUNK) { /* the order of bf16 rows */
                vf x = v_load(q + d), y = v_load(q + d + VW);
                v_unzip(&x, &y);
                v_store(q + d, x);
                v_store(q + d + VW, y);
            }
        }
        return;
    }
    rd_codes_pairs(a, st, at);
}

/* What lies beside the tile's codes; groups: pointers as rd_pointers has them. */
static void rd_codes_scales(const struct cpu_attn *a, struct rd_state *st, const struct rd_tile *x,
                            const char *const *groups, int head) {
    const int kb = cpu_row_bytes(a->k_row, a->head_size), vb = cpu_row_bytes(a->v_row, a->head_size_v);
#if CPU_X86 >= 2
    if (a->k_row == CPU_E2M1) {
        const int64_t step = a->k_apart.token > 0 && a->k_apart.token < 32 ? 32 / a->k_apart.token
                                                                           : 1; /* keys in half a line */
        for (int64_t t = 0; x->groups_next && t < x->n; t += step) {
            v_prefetch(x->groups_next[t] + x->k_groups_next);
            v_prefetch(x->groups_next[RD_TB + t] + x->v_groups_next);
        }
        rd_codes_k_groups(st, groups, head * a->k_apart.head, x->n, a->head_size / 16);
        st->nan = rd_codes_v_groups(st, groups + RD_TB, head * a->v_apart.head, x->n, a->head_size_v / 16);
        return;
    }
#else
    (void)groups, (void)head;
#endif
    if (is_centroids(a->k_row)) rd_codes_halves(x->k, x->k_off + kb, x->n, st->ks, NULL);
    rd_codes_halves(x->v, x->v_off + vb, x->n, st->step, st->low);
}

static void rd_codes_qk(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x,
                        size_t at) {
    const int D = a->head_size;
    const char *const *k = x->k;
    int64_t off = x->k_off;
    if (a->k_row == CPU_E4M3) {
#if CPU_X86 >= 3
        if (st->pairs) {
            rd_e4m3_qk(st, x, D, st->q16 + at * st->ldq);
            return;
        }
#endif
#if CPU_X86 >= 2
        if (st->vbmi) {
            rd_table_qk(x, st->q + at * st->ldq, st->ldq, D, st->rows, st->s);
            return;
        }
#endif
        rd_qk[CPU_E4M3](x, st->q + at * st->ldq, st->ldq, D, st->rows, st->s);
        return;
    }
    if (a->k_row == CPU_C3) {
        rd_codes_spread(st, k, off, x->n, D, st->byte_k, st->ldq / 2);
        k = st->byte_rows;
        off = 0;
    }
    rd_codes_scores(a, st, x, k, off, at);
}

static void rd_codes_pv(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x,
                        size_t at) {
    const int D = a->head_size_v;
    struct rd_tile y = *x;
    float *o = st->o + at * st->ldo;
#if CPU_X86 >= 2
    if (a->v_row == CPU_E2M1) {
        rd_codes_sums(a, st, x, o);
        return;
    }
#endif
    for (int r = 0; r < st->rows; r++) {
        float *s = st->s + r * RD_TB, *low = st->lows + (at + (size_t)r) * VW;
        vf sum = v_load(low);
        for (int t = 0; t < x->n; t += VW) {
            const vf p = v_load(s + t);
            sum = v_fma(p, v_load(st->low + t), sum);
            v_store(s + t, v_mul(p, v_load(st->step + t)));
        }
        v_store(low, sum);
    }
    if (a->v_row == CPU_V3) {
        if (!rd_quads_is_whole(a, st, x)) /* else with the scores */
            rd_codes_spread(st, x->v, x->v_off, x->n, D, st->byte_v, st->ldo / 2);
        y.v = st->byte_rows + RD_TB;
        y.v_off = 0;
    }
    if (CPU_X86 >= 2 && st->vnni) {
        rd_quads_weights(st, at, 0, x->n, NULL);
        rd_quads_pv(a, st, &y, o);
    } else
        rd_nibbles_pv(st, &y, o, D);
}

/* n outputs back in natural order. */
static void rd_codes_order(const struct cpu_attn *a, const struct rd_state *st, float *o, size_t row) {
    if (CPU_X86 >= 2 && a->v_row != CPU_E2M1 && st->vnni)
        rd_quads_order(o, st->ldo, NULL);
    else
        rd_nibbles_order(o, st->ldo);
    if (a->v_row == CPU_E2M1) return;
    const vf low = v_set1(v_hsum(v_load(st->lows + row * VW)));
    for (int d = 0; d < st->ldo; d += VW)
        v_store(o + d, v_add(v_load(o + d), low));
}
#else
SI int rd_codes_serve(const struct cpu_attn *a) {
    (void)a;
    return 0;
}
SI void rd_codes_begin(const struct cpu_attn *a, const struct rd_state *st) {
    (void)a, (void)st;
}
SI void rd_codes_query(const struct cpu_attn *a, const struct rd_state *st, size_t at) {
    (void)a, (void)st, (void)at;
}
SI void rd_codes_scales(const struct cpu_attn *a, struct rd_state *st, const struct rd_tile *x,
                        const char *const *groups, int head) {
    (void)a, (void)st, (void)x, (void)groups, (void)head;
}
SI void rd_codes_qk(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x, size_t at) {
    (void)a, (void)st, (void)x, (void)at;
}
SI void rd_codes_pv(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x, size_t at) {
    (void)a, (void)st, (void)x, (void)at;
}
SI void rd_codes_order(const struct cpu_attn *a, const struct rd_state *st, float *o, size_t row) {
    (void)a, (void)st, (void)o, (void)row;
}
#endif
