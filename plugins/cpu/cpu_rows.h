/* SPDX-License-Identifier: Apache-2.0 */
/* What both paths of a level share: row pointers into any cache layout, score terms, the finished row. */

static const int32_t lane_numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* The lowest score that counts, in log2 units: where maxima start, so that a score of a mask's -FLT_MAX is
 * still above nothing. Scores are -inf only where a key is hidden. */
#define SCORE_MIN (-FLT_MAX)

/* x in log2 units; what leaves float32 downwards is SCORE_MIN, -inf and NaN stay. */
SI vf log2_units(vf x) {
    const vf low = v_max(v_set1(SCORE_MIN), v_mul(x, v_set1(1.442695041f)));
    return v_add(low, v_min(v_zero(), v_add(v_mul(x, v_set1(0x1p-30f)), v_set1(1e30f)))); /* -inf for -inf */
}

/* Maximum (log2 units) and sum of query head hq before its first key: its sink, or nothing. */
SI void start_row(const struct cpu_attn *a, const struct cpu_item *it, int hq, float *m, float *l) {
    const float sink = a->sinks && it->key0 == 0 ? a->sinks[hq] : -INFINITY, scaled = sink * 1.442695041f;
    *m = scaled < SCORE_MIN ? SCORE_MIN : scaled;
    *l = sink == -INFINITY ? 0.0f : 1.0f;
}

/* Address of key k's row, head 0. */
SI const char *row_at(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_rows *r,
                      int32_t k) {
    if (sq->selected) return r->base + sq->selected[k];
    if (!a->block_table) return r->base + (sq->k_start + k) * r->token;
    const int64_t block = a->block_table[sq->table_row * a->block_table_row + k / a->block_size];
    return r->base + block * r->block + (int64_t)(k % a->block_size) * r->token;
}

/* Where the rows of the keys lie that a token selects, kv_len of them; of latent rows, so there are no
 * heads. */
static void select_rows(const struct cpu_attn *a, const struct cpu_seq *sq, int64_t *out) {
    const int32_t *positions = a->topk_indices + sq->q_start * a->topk_row,
                  *table = a->block_table + sq->table_row * a->block_table_row;
    const int size = a->block_size, shift = (size & (size - 1)) == 0 ? __builtin_ctz((unsigned)size) : -1;
    for (int j = 0, n = 0; j < a->topk && n < sq->kv_len; j++) {
        const int32_t x = positions[j], block = shift >= 0 ? x >> shift : x / size;
        if (x < 0 || x >= a->topk_end) continue;
        out[n++] = table[block] * a->k.block + (int64_t)(x - block * size) * a->k.token;
    }
}

/* Pointers to the rows of keys [k0, k0 + n), head 0. Keys that no row of the item sees are redirected to one
 * that some row sees: nothing behind seq_len or in a released block is read, and what is read never meets a
 * nonzero P. */
static void row_pointers(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_rows *r,
                         int32_t k0, int n, const struct cpu_mask_bounds *b, const char **out) {
    const int inside =
        (k0 >= b->lo_min[0] && k0 + n <= b->hi_max[0]) || (k0 >= b->lo_min[1] && k0 + n <= b->hi_max[1]);
    if (!inside) {
        const int32_t some = cpu_bounds_some_key(b);
        for (int i = 0; i < n; i++)
            out[i] = row_at(a, sq, r, cpu_bounds_has(b, k0 + i) ? k0 + i : some);
        return;
    }
    for (int i = 0; sq->selected && i < n; i++)
        out[i] = r->base + sq->selected[k0 + i];
    for (int i = 0; !sq->selected && i < n;) {
        const char *p = row_at(a, sq, r, k0 + i);
        int run = a->block_table ? a->block_size - (k0 + i) % a->block_size : n;
        for (int e = cpu_min(n, i + run); i < e; i++, p += r->token)
            out[i] = p;
    }
}

/* Scales of n tokens behind row pointers p: `at` bytes from where the pointers show. int4 keeps its zero
 * point in the four lowest bits. */
SI void row_scales(enum cpu_dtype t, const char *const *p, int64_t at, int n, float *out) {
    const uint32_t keep = t == CPU_I4 ? ~UINT32_C(15) : ~UINT32_C(0);
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, p[i] + at, sizeof bits);
        bits &= keep;
        memcpy(out + i, &bits, sizeof bits);
    }
}

/* ALiBi from rel = k - q_abs (semantics 2.9, the relative form). */
SI vf alibi_term(int is_sqrt, vf slope, vi rel) {
    vf r = vi_to_f(rel);
    if (!is_sqrt) return v_mul(slope, r);
    return v_sub(v_zero(), v_mul(slope, v_sqrt(v_max(v_zero(), v_sub(v_zero(), r)))));
}

/* Relative bias of query head hq for distance rel = k - q_abs (semantics 2.15). */
SI float rel_bias_at(const struct cpu_attn *a, int hq, int32_t rel) {
    const int32_t near = rel < -a->rel_max ? -a->rel_max : rel > a->rel_max ? a->rel_max : rel;
    return a->rel_bias[hq * a->rel_stride + near];
}

/* The same for VW keys in a row from distance rel on. */
SI vf rel_bias_row(const struct cpu_attn *a, int hq, int32_t rel) {
    if (rel <= -a->rel_max - VW + 1 || rel >= a->rel_max) return v_set1(rel_bias_at(a, hq, rel));
    if (rel >= -a->rel_max && rel <= a->rel_max - VW + 1)
        return v_load(a->rel_bias + hq * a->rel_stride + rel);
    float bias[VW];
    for (int i = 0; i < VW; i++)
        bias[i] = rel_bias_at(a, hq, rel + i);
    return v_load(bias);
}

/* Query-query bias of query token `tok` for key k (semantics 2.9 step 5). */
SI float qq_bias_at(const struct cpu_attn *a, const struct cpu_seq *sq, int tok, int32_t k) {
    const int64_t rel = (int64_t)k - sq->q_offset;
    return rel >= 0 && rel < a->qq_width ? a->qq_bias[(sq->q_start + tok) * a->qq_stride + rel] : 0.0f;
}

/* to = from * f; `to` is a partial slot, which is padded to whole vectors. */
SI void scale_copy(float *to, const float *from, int n, float f) {
    for (int d = 0; d < n; d += VW)
        if (d + VW <= n)
            v_store(to + d, v_mul(v_load(from + d), v_set1(f)));
        else
            for (; d < n; d++)
                to[d] = from[d] * f;
}

/* Writes one output row and its LSE from O (natural order; overwritten to whole vectors), m in log2 units and
 * l; f scales V. A row without keys (l = 0) gives 0 and -inf (semantics 2.14), one whose scores are NaN NaN
 * (10.5). */
static void finish_row(const struct cpu_attn *a, int64_t token, int hq, float *o, float m, float l, float f) {
    const int n = a->head_size_v;
    const float inv = l == 0.0f ? 0.0f : f / l;
    if (l == 0.0f) memset(o, 0, (size_t)n * sizeof *o);
    for (int d = 0; d < n; d += VW)
        v_store(o + d, v_mul(v_load(o + d), v_set1(inv)));
    row_from_f32(a->out_dtype, o, n, a->out + token * a->out_token + hq * a->out_head);
    if (a->lse)
        a->lse[token * a->lse_token + hq * a->lse_head] = l == 0.0f ? -INFINITY
                                                          : m == SCORE_MIN && l == l
                                                              ? SCORE_MIN
                                                              : 0.6931471806f * (m + log2f(l));
}
