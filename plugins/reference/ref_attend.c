/* SPDX-License-Identifier: Apache-2.0 */
/* ref_attend.c: scores in the order of semantics 2.9, online softmax, and the merge of two partial results.
 * */
#include "ref_attend.h"

#include "ref_mla.h"

#include <math.h>

/* Everything that turns a dot product into a score, for one query head. */
typedef struct score_rule {
    double factor; /* scale, times q_scale of a quantised query */
    double cap;
    double slope;
    int is_sqrt;
} score_rule_t;

static double score_of(const score_rule_t *rule, double dot, int64_t q, int64_t k, double bias) {
    double s = rule->factor * dot;
    if (rule->cap > 0.0) s = rule->cap * tanh(s / rule->cap);
    /* ALiBi relative to the query, so that sinks and LSE are well defined (semantics 2.9). */
    if (rule->is_sqrt)
        s += k <= q ? -rule->slope * sqrt((double)(q - k)) : 0.0;
    else if (rule->slope != 0.0)
        s += rule->slope * (double)(k - q);
    return s + bias;
}

/* Four partial sums: the adder's latency would otherwise be the running time. */
static double dot_product(const double *a, const double *b, int64_t n) {
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        s0 += a[i] * b[i];
        s1 += a[i + 1] * b[i + 1];
        s2 += a[i + 2] * b[i + 2];
        s3 += a[i + 3] * b[i + 3];
    }
    for (; i < n; i++)
        s0 += a[i] * b[i];
    return (s0 + s1) + (s2 + s3);
}

/* One key with score s into one row. A score of -inf adds nothing; NaN passes through to the row's output. */
static void add_key(double s, const double *value, int64_t dv, double *max, double *sum, double *acc) {
    if (s == -INFINITY) return;
    if (s > *max) {
        double shrink = exp(*max - s);
        *max = s;
        *sum *= shrink;
        for (int64_t i = 0; i < dv; i++)
            acc[i] *= shrink;
    }
    double p = exp(s - *max);
    *sum += p;
    for (int64_t i = 0; i < dv; i++)
        acc[i] += p * value[i];
}

static void load_key_value(const ref_keys_t *keys, int64_t k, int64_t head, int64_t d, int64_t dv,
                           const ref_scratch_t *scratch) {
    if (keys->mla != NULL) {
        ref_mla_load(keys->mla, keys->table[k / keys->block_size], k % keys->block_size, scratch->key);
    } else if (keys->table != NULL) {
        int64_t block = keys->table[k / keys->block_size], token = k % keys->block_size;
        ref_cache_load(&keys->k, ref_cache_row(&keys->k, block, token, head), head, scratch->key);
        ref_cache_load(&keys->v, ref_cache_row(&keys->v, block, token, head), head, scratch->value);
    } else {
        ref_load_row(ref_at2(keys->key, keys->first + k, head), keys->dtype, d, scratch->key);
        ref_load_row(ref_at2(keys->value, keys->first + k, head), keys->dtype, dv, scratch->value);
    }
    if (keys->fp8 != NULL) {
        ref_fp8_row(scratch->key, d, keys->fp8->k);
        ref_fp8_row(scratch->value, dv, keys->fp8->v);
    }
}

static double float_at(const DLTensor *t, int64_t i) {
    return ref_read_float((const char *)attn_data(t) + i * attn_byte_stride(t, 0));
}

/* Query-query bias: only for keys of this step (semantics 2.9). q_rel and k_rel count from the first new
 * token. */
static double bias_of(const attn_forward_t *a, int64_t row, int64_t k_rel) {
    if (a->qq_bias == NULL || k_rel < 0 || k_rel >= a->qq_bias->shape[1]) return 0.0;
    return ref_read_float(ref_at2(a->qq_bias, row, k_rel));
}

/* Relative bias: distances beyond the table take its ends (semantics 2.15). */
static double rel_bias_of(const attn_forward_t *a, int64_t head, int64_t rel) {
    if (a->rel_bias == NULL) return 0.0;
    const int64_t m = a->rel_bias->shape[1] / 2, near = rel < -m ? -m : rel > m ? m : rel;
    return ref_read_float(ref_at2(a->rel_bias, head, near + m));
}

void ref_attend_key(const attn_instance_t *in, const attn_forward_t *a, const ref_tile_t *tile,
                    const ref_keys_t *keys, int64_t head, int64_t k, int64_t key_rel, const uint8_t *visible,
                    const ref_scratch_t *scratch, const ref_state_t *state) {
    int64_t d = in->d, dv = in->dv, group = in->group;
    load_key_value(keys, k, head, d, dv, scratch);
    for (int64_t t = 0; t < tile->tokens; t++) {
        if (!visible[t]) continue;
        double bias = bias_of(a, tile->row0 + t, key_rel);
        for (int64_t g = 0; g < group; g++) {
            int64_t h = head * group + g, row = t * in->heads + h;
            score_rule_t rule = {
                .factor = in->p.scale,
                .cap = in->p.logits_soft_cap,
                .slope = a->alibi_slopes != NULL ? float_at(a->alibi_slopes, h) : 0.0,
                .is_sqrt = (in->features & ATTN_F_ALIBI_SQRT) != 0,
            };
            if (in->query_dtype != in->p.dtype) rule.factor *= ref_scale_of(a->scales.q, head);
            double dot = dot_product(scratch->query + (t * group + g) * d, scratch->key, d);
            add_key(score_of(&rule, dot, tile->q0 + t, k, bias + rel_bias_of(a, h, k - (tile->q0 + t))),
                    scratch->value, dv, &state->max[row], &state->sum[row], state->acc + row * dv);
        }
    }
}

void ref_attend(const attn_instance_t *in, const attn_forward_t *a, const ref_tile_t *tile,
                const ref_mask_t *mask, const ref_keys_t *keys, int64_t begin, int64_t end,
                const ref_scratch_t *scratch, const ref_state_t *state) {
    int64_t d = in->d, group = in->group;
    uint8_t visible[REF_TILE_TOKENS];
    for (int64_t head = 0; head < in->kv_heads; head++) {
        for (int64_t row = 0; keys->mla == NULL && row < tile->tokens * group; row++) {
            ref_load_row(ref_at2(a->query, tile->row0 + row / group, head * group + row % group),
                         in->query_dtype, d, scratch->query + row * d);
            if (attn_kv_rounds_query(in->kv)) ref_round_query(scratch->query + row * d, d);
            if (keys->fp8 != NULL) ref_fp8_row(scratch->query + row * d, d, keys->fp8->q);
        }
        for (int64_t k = begin; k < end; k++) {
            int any = 0;
            for (int t = 0; t < tile->tokens; t++)
                any |= visible[t] = (uint8_t)ref_mask_visible(mask, tile->q0 + t, k);
            if (any) /* rows that nobody sees are not read either */
                ref_attend_key(in, a, tile, keys, head, k, k - mask->context_len, visible, scratch, state);
        }
    }
}

void ref_state_start(const attn_instance_t *in, const ref_state_t *state, int tokens, const float *sinks,
                     int64_t sink_stride) {
    int64_t rows = (int64_t)tokens * in->heads;
    memset(state->acc, 0, (size_t)(rows * in->dv) * sizeof *state->acc);
    for (int64_t row = 0; row < rows; row++) {
        double sink = sinks != NULL ? (double)sinks[row % in->heads * sink_stride] : -INFINITY;
        state->max[row] = sink;
        state->sum[row] = sink == -INFINITY ? 0.0 : 1.0;
    }
}

void ref_state_finish(const attn_instance_t *in, const ref_state_t *state, int tokens) {
    for (int64_t row = 0; row < (int64_t)tokens * in->heads; row++) {
        double sum = state->sum[row], *acc = state->acc + row * in->dv;
        if (sum == 0.0) {
            state->max[row] = -INFINITY;
            continue; /* acc is still 0 */
        }
        state->max[row] += log(sum);
        for (int64_t i = 0; i < in->dv; i++)
            acc[i] /= sum;
    }
}

void ref_state_merge(const attn_instance_t *in, const ref_state_t *a, const ref_state_t *b, int tokens) {
    for (int64_t row = 0; row < (int64_t)tokens * in->heads; row++) {
        double la = a->max[row], lb = b->max[row], m = la > lb ? la : lb;
        if (m == -INFINITY) continue; /* both empty: a holds 0 and -inf already */
        double wa = exp(la - m), wb = exp(lb - m);
        double *oa = a->acc + row * in->dv;
        const double *ob = b->acc + row * in->dv;
        for (int64_t i = 0; i < in->dv; i++)
            oa[i] = oa[i] * (wa / (wa + wb)) + ob[i] * (wb / (wa + wb));
        a->max[row] = m + log(wa + wb);
    }
}
