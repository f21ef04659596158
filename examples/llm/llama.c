/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llama.c: what stands around attention in Llama, Mistral, Qwen2 (with biases) and Qwen3 (with norms of
 * queries and keys): in each layer norm, projections, rotary positions, attention, norm, the gated
 * feed-forward; in float32, plain loops, the rows of a matrix spread over threads.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "llm.h"

typedef struct llama_layer {
    const weight_t *norm, *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *q_norm, *k_norm;
    const weight_t *inner_norm, *gate, *up, *down;
} llama_layer_t;

struct llama {
    const config_t *config;
    const weight_t *embedding, *norm, *head;
    llama_layer_t *layers;
    float *frequency;                                       /* [head_size / 2] of the rotary positions */
    float *x, *y, *query, *key, *value, *mixed, *gate, *up; /* rows of a step */
    float *logits;                                          /* [vocabulary] */
};

static float at(const weight_t *w, int64_t i) {
    if (!w->is_bf16) return ((const float *)w->data)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)w->data)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Row `row` of w times x. Sixteen sums, so that the compiler can use vectors. */
static float dot(const weight_t *w, int64_t row, const float *x) {
    enum { LANES = 16 };
    float sums[LANES] = {0}, sum = 0;
    const int64_t n = w->cols, base = row * n, whole = n - n % LANES;
    if (w->is_bf16) {
        for (int64_t i = 0; i < whole; i += LANES)
            for (int j = 0; j < LANES; j++)
                sums[j] += at(w, base + i + j) * x[i + j];
    } else {
        const float *values = (const float *)w->data + base;
        for (int64_t i = 0; i < whole; i += LANES)
            for (int j = 0; j < LANES; j++)
                sums[j] += values[i + j] * x[i + j];
    }
    for (int64_t i = whole; i < n; i++)
        sum += at(w, base + i) * x[i];
    for (int j = 0; j < LANES; j++)
        sum += sums[j];
    return sum;
}

/* y [rows, w->rows] = x [rows, w->cols] times w transposed, plus bias. */
static void multiply(const weight_t *w, const weight_t *bias, const float *x, float *y, int64_t rows) {
#ifdef _OPENMP
#pragma omp parallel for
#endif
    for (int64_t o = 0; o < w->rows; o++)
        for (int64_t r = 0; r < rows; r++)
            y[r * w->rows + o] = dot(w, o, x + r * w->cols) + (bias != NULL ? at(bias, o) : 0);
}

/* y = x / rms(x) * w, for every row of w->cols values; y may be x. */
static void rms_norm(const weight_t *w, double eps, const float *x, float *y, int64_t rows) {
    const int64_t n = w->cols;
    for (int64_t r = 0; r < rows; r++, x += n, y += n) {
        double squares = 0;
        for (int64_t i = 0; i < n; i++)
            squares += (double)x[i] * x[i];
        const float scale = (float)(1 / sqrt(squares / (double)n + eps));
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i] * scale * at(w, i);
    }
}

/* Turns the pairs (i, i + head_size / 2) of every head by position * frequency. */
static void rotate(const llama_t *m, float *x, int64_t heads, const step_t *s) {
    const int64_t size = m->config->head_size, half = size / 2;
    for (int64_t t = 0; t < s->num_tokens; t++)
        for (int64_t i = 0; i < half; i++) {
            const float angle = (float)s->position[t] * m->frequency[i], c = cosf(angle), d = sinf(angle);
            for (int64_t h = 0; h < heads; h++) {
                float *a = x + (t * heads + h) * size + i, *b = a + half, first = *a;
                *a = first * c - *b * d;
                *b = *b * c + first * d;
            }
        }
}

/* rope_type llama3 slows low frequencies down by the factor and leaves high ones alone. */
static float frequency_of(const config_t *c, int64_t i) {
    const double f = pow(c->rope_theta, -2.0 * (double)i / (double)c->head_size);
    if (!c->is_rope_llama3) return (float)(f / c->rope_factor);
    const double turns = c->rope_old_len * f / (2 * 3.14159265358979323846);
    if (turns < c->rope_low) return (float)(f / c->rope_factor);
    if (turns > c->rope_high) return (float)f;
    const double share = (turns - c->rope_low) / (c->rope_high - c->rope_low);
    return (float)((1 - share) * f / c->rope_factor + share * f);
}

static void layer_open(llama_layer_t *l, checkpoint_t *cp, const config_t *c, int i) {
    const int64_t q = c->heads * c->head_size, kv = c->kv_heads * c->head_size;
#define WEIGHT(ROWS, COLS, IS_REQUIRED, NAME)                                                                \
    checkpoint_get(cp, ROWS, COLS, IS_REQUIRED, "model.layers.%d." NAME, i)
    l->norm = WEIGHT(1, c->hidden, 1, "input_layernorm.weight");
    l->q = WEIGHT(q, c->hidden, 1, "self_attn.q_proj.weight");
    l->k = WEIGHT(kv, c->hidden, 1, "self_attn.k_proj.weight");
    l->v = WEIGHT(kv, c->hidden, 1, "self_attn.v_proj.weight");
    l->o = WEIGHT(c->hidden, q, 1, "self_attn.o_proj.weight");
    l->q_bias = WEIGHT(1, q, 0, "self_attn.q_proj.bias");
    l->k_bias = WEIGHT(1, kv, 0, "self_attn.k_proj.bias");
    l->v_bias = WEIGHT(1, kv, 0, "self_attn.v_proj.bias");
    l->q_norm = WEIGHT(1, c->head_size, 0, "self_attn.q_norm.weight");
    l->k_norm = WEIGHT(1, c->head_size, 0, "self_attn.k_norm.weight");
    l->inner_norm = WEIGHT(1, c->hidden, 1, "post_attention_layernorm.weight");
    l->gate = WEIGHT(c->inner, c->hidden, 1, "mlp.gate_proj.weight");
    l->up = WEIGHT(c->inner, c->hidden, 1, "mlp.up_proj.weight");
    l->down = WEIGHT(c->hidden, c->inner, 1, "mlp.down_proj.weight");
#undef WEIGHT
}

llama_t *llama_open(checkpoint_t *cp, const config_t *c, const limits_t *limits) {
    llama_t *m = room(sizeof *m);
    const uint64_t row = (uint64_t)limits->max_tokens * sizeof(float);
    m->config = c;
    m->embedding = checkpoint_get(cp, c->vocabulary, c->hidden, 1, "model.embed_tokens.weight");
    m->norm = checkpoint_get(cp, 1, c->hidden, 1, "model.norm.weight");
    m->head = checkpoint_get(cp, c->vocabulary, c->hidden, !c->is_tied, "lm_head.weight");
    if (m->head == NULL) m->head = m->embedding;
    m->layers = room((uint64_t)c->layers * sizeof *m->layers);
    for (int i = 0; i < (int)c->layers; i++)
        layer_open(&m->layers[i], cp, c, i);
    checkpoint_check_used(cp, (const char *const[]){"rotary_emb.inv_freq", NULL});
    m->frequency = room((uint64_t)c->head_size / 2 * sizeof(float));
    for (int64_t i = 0; i < c->head_size / 2; i++)
        m->frequency[i] = frequency_of(c, i);
    m->x = room(row * (uint64_t)c->hidden);
    m->y = room(row * (uint64_t)c->hidden);
    m->query = room(row * (uint64_t)(c->heads * c->head_size));
    m->key = room(row * (uint64_t)(c->kv_heads * c->head_size));
    m->value = room(row * (uint64_t)(c->kv_heads * c->head_size));
    m->mixed = room(row * (uint64_t)(c->heads * c->head_size));
    m->gate = room(row * (uint64_t)c->inner);
    m->up = room(row * (uint64_t)c->inner);
    m->logits = room((uint64_t)c->vocabulary * sizeof(float));
    return m;
}

static void add(float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

static void layer_step(llama_t *m, const llama_layer_t *l, int64_t number, attention_t *attention,
                       const step_t *s) {
    const config_t *c = m->config;
    const int64_t rows = s->num_tokens;
    rms_norm(l->norm, c->norm_eps, m->x, m->y, rows);
    multiply(l->q, l->q_bias, m->y, m->query, rows);
    multiply(l->k, l->k_bias, m->y, m->key, rows);
    multiply(l->v, l->v_bias, m->y, m->value, rows);
    if (l->q_norm != NULL) rms_norm(l->q_norm, c->norm_eps, m->query, m->query, rows * c->heads);
    if (l->k_norm != NULL) rms_norm(l->k_norm, c->norm_eps, m->key, m->key, rows * c->kv_heads);
    rotate(m, m->query, c->heads, s);
    rotate(m, m->key, c->kv_heads, s);
    attention_layer(attention, number, m->query, m->key, m->value, m->mixed);
    multiply(l->o, NULL, m->mixed, m->y, rows);
    add(m->x, m->y, rows * c->hidden);
    rms_norm(l->inner_norm, c->norm_eps, m->x, m->y, rows);
    multiply(l->gate, NULL, m->y, m->gate, rows);
    multiply(l->up, NULL, m->y, m->up, rows);
    for (int64_t i = 0; i < rows * c->inner; i++)
        m->gate[i] = m->gate[i] / (1 + expf(-m->gate[i])) * m->up[i];
    multiply(l->down, NULL, m->gate, m->y, rows);
    add(m->x, m->y, rows * c->hidden);
}

void llama_step(llama_t *m, attention_t *attention, const step_t *s) {
    const config_t *c = m->config;
    for (int64_t t = 0; t < s->num_tokens; t++)
        for (int64_t i = 0; i < c->hidden; i++)
            m->x[t * c->hidden + i] = at(m->embedding, s->tokens[t] * c->hidden + i);
    attention_begin(attention, s);
    for (int64_t i = 0; i < c->layers; i++)
        layer_step(m, &m->layers[i], i, attention, s);
    for (int r = 0; r < s->num_logits; r++) {
        rms_norm(m->norm, c->norm_eps, m->x + s->logit_rows[r] * c->hidden, m->y, 1);
        multiply(m->head, NULL, m->y, m->logits, 1);
        int32_t best = 0;
        for (int32_t i = 1; i < c->vocabulary; i++)
            if (m->logits[i] > m->logits[best]) best = i;
        s->next[r] = best;
    }
}

void llama_close(llama_t *m) {
    float *const all[] = {m->frequency, m->x,     m->y,    m->query, m->key,
                          m->value,     m->mixed, m->gate, m->up,    m->logits};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    free(m->layers);
    free(m);
}
