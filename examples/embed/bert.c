/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bert.c: what stands around attention in BERT and MiniLM: embeddings of token, position and type; in
 * each layer projections, attention, norm of the sum, feed-forward with GELU, norm of the sum; in
 * float32. With a BLAS (HAVE_CBLAS) it multiplies, else plain loops, the rows of a matrix spread over
 * threads.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "embed.h"

#ifdef HAVE_CBLAS
#include <cblas.h>
#endif

typedef struct matrix { /* [rows, cols] in float32 */
    const float *data;
    int64_t rows, cols;
    float *converted; /* of bfloat16: ours */
} matrix_t;

typedef struct linear {
    matrix_t weight, bias;
} linear_t;

typedef struct bert_layer {
    linear_t query, key, value, output, norm, inner, outer, last_norm;
} bert_layer_t;

struct bert {
    const sizes_t *sizes;
    matrix_t words, positions, types;
    linear_t norm;
    bert_layer_t *layers;
    float *x, *y, *query, *key, *value, *mixed, *inner; /* rows of a batch */
};

static matrix_t get(checkpoint_t *cp, int64_t rows, int64_t cols, const char *name) {
    const weight_t *w = checkpoint_get(cp, rows, cols, 0, "%s", name);
    if (w == NULL) w = checkpoint_get(cp, rows, cols, 1, "bert.%s", name); /* of models with a head */
    matrix_t m = {.data = w->data, .rows = rows, .cols = cols};
    if (!w->is_bf16) return m;
    m.converted = room((uint64_t)rows * (uint64_t)cols * sizeof(float));
    for (int64_t i = 0; i < rows * cols; i++) {
        const uint32_t bits = (uint32_t)((const uint16_t *)w->data)[i] << 16;
        memcpy(&m.converted[i], &bits, sizeof bits);
    }
    m.data = m.converted;
    return m;
}

/* A weight with its bias; rows 1: a norm. */
static linear_t get_linear(checkpoint_t *cp, int64_t rows, int64_t cols, const char *prefix,
                           const char *name) {
    char text[256];
    linear_t l;
    snprintf(text, sizeof text, "%s%s.weight", prefix, name);
    l.weight = get(cp, rows, cols, text);
    snprintf(text, sizeof text, "%s%s.bias", prefix, name);
    l.bias = get(cp, 1, rows == 1 ? cols : rows, text);
    return l;
}

static void drop(linear_t *l) {
    free(l->weight.converted);
    free(l->bias.converted);
}

/* y [rows, weight.rows] = x [rows, weight.cols] times the weight transposed, plus the bias. */
static void multiply(const linear_t *l, const float *x, float *y, int64_t rows) {
    const int64_t out = l->weight.rows, in = l->weight.cols;
    const float *w = l->weight.data, *bias = l->bias.data;
#ifdef HAVE_CBLAS
    for (int64_t r = 0; r < rows; r++)
        memcpy(y + r * out, bias, (size_t)out * sizeof *y);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)out, (int)in, 1, x, (int)in, w,
                (int)in, 1, y, (int)out);
#else
    enum { LANES = 16 }; /* sums, so that the compiler can use vectors */
    const int64_t whole = in - in % LANES;
#ifdef _OPENMP
#pragma omp parallel for
#endif
    for (int64_t o = 0; o < out; o++)
        for (int64_t r = 0; r < rows; r++) {
            const float *a = w + o * in, *b = x + r * in;
            float sums[LANES] = {0}, sum = bias[o];
            for (int64_t i = 0; i < whole; i += LANES)
                for (int j = 0; j < LANES; j++)
                    sums[j] += a[i + j] * b[i + j];
            for (int64_t i = whole; i < in; i++)
                sum += a[i] * b[i];
            for (int j = 0; j < LANES; j++)
                sum += sums[j];
            y[r * out + o] = sum;
        }
#endif
}

/* x = norm(x + y) for every row; y NULL: norm(x). */
static void layer_norm(const linear_t *l, double eps, float *x, const float *y, int64_t rows) {
    const int64_t n = l->weight.cols;
    for (int64_t r = 0; r < rows; r++, x += n) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < n; i++)
            sum += x[i] += y != NULL ? y[r * n + i] : 0;
        const double mean = sum / (double)n;
        for (int64_t i = 0; i < n; i++)
            squares += (x[i] - mean) * (x[i] - mean);
        const double scale = 1 / sqrt(squares / (double)n + eps);
        for (int64_t i = 0; i < n; i++)
            x[i] = (float)((x[i] - mean) * scale) * l->weight.data[i] + l->bias.data[i];
    }
}

void bert_sizes(const char *folder, sizes_t *s) {
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *root = config_load(path, 1);
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const char *act = json_string_value(json_object_get(root, "hidden_act"));
    const char *where = json_string_value(json_object_get(root, "position_embedding_type"));
    if (type == NULL || strcmp(type, "bert") != 0)
        die("%s: model_type is '%s'; bert is served", path, type != NULL ? type : "");
    if (act != NULL && strcmp(act, "gelu") != 0) die("%s: hidden_act is '%s'; gelu is served", path, act);
    if (where != NULL && strcmp(where, "absolute") != 0)
        die("%s: position_embedding_type is '%s'; absolute is served", path, where);
    s->hidden = config_whole(root, "hidden_size", 0);
    s->inner = config_whole(root, "intermediate_size", 0);
    s->layers = config_whole(root, "num_hidden_layers", 0);
    s->heads = config_whole(root, "num_attention_heads", 0);
    s->vocabulary = config_whole(root, "vocab_size", 0);
    s->positions = config_whole(root, "max_position_embeddings", 512);
    s->types = config_whole(root, "type_vocab_size", 2);
    s->norm_eps = config_number(root, "layer_norm_eps", 1e-12);
    if (s->hidden % s->heads != 0) die("%s: num_attention_heads does not divide hidden_size", path);
    json_decref(root);
}

bert_t *bert_open(checkpoint_t *cp, const sizes_t *s) {
    bert_t *b = room(sizeof *b);
    const int64_t h = s->hidden;
    const uint64_t row = (uint64_t)s->max_tokens * sizeof(float);
    b->sizes = s;
    b->words = get(cp, s->vocabulary, h, "embeddings.word_embeddings.weight");
    b->positions = get(cp, s->positions, h, "embeddings.position_embeddings.weight");
    b->types = get(cp, s->types, h, "embeddings.token_type_embeddings.weight");
    b->norm = get_linear(cp, 1, h, "", "embeddings.LayerNorm");
    b->layers = room((uint64_t)s->layers * sizeof *b->layers);
    for (int64_t i = 0; i < s->layers; i++) {
        bert_layer_t *l = &b->layers[i];
        char prefix[64];
        snprintf(prefix, sizeof prefix, "encoder.layer.%d.", (int)i);
        l->query = get_linear(cp, h, h, prefix, "attention.self.query");
        l->key = get_linear(cp, h, h, prefix, "attention.self.key");
        l->value = get_linear(cp, h, h, prefix, "attention.self.value");
        l->output = get_linear(cp, h, h, prefix, "attention.output.dense");
        l->norm = get_linear(cp, 1, h, prefix, "attention.output.LayerNorm");
        l->inner = get_linear(cp, s->inner, h, prefix, "intermediate.dense");
        l->outer = get_linear(cp, h, s->inner, prefix, "output.dense");
        l->last_norm = get_linear(cp, 1, h, prefix, "output.LayerNorm");
    }
    /* heads on top of the encoder, and the numbers of positions */
    checkpoint_check_used(cp, (const char *const[]){"position_ids", "pooler.", "cls.", NULL});
    float **const rows[] = {&b->x, &b->y, &b->query, &b->key, &b->value, &b->mixed};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        *rows[i] = room(row * (uint64_t)h);
    b->inner = room(row * (uint64_t)s->inner);
    return b;
}

static void run_layer(bert_t *b, int64_t number, attention_t *attention, int64_t rows) {
    const bert_layer_t *l = &b->layers[number];
    multiply(&l->query, b->x, b->query, rows);
    multiply(&l->key, b->x, b->key, rows);
    multiply(&l->value, b->x, b->value, rows);
    attention_layer(attention, number, b->query, b->key, b->value, b->mixed);
    multiply(&l->output, b->mixed, b->y, rows);
    layer_norm(&l->norm, b->sizes->norm_eps, b->x, b->y, rows);
    multiply(&l->inner, b->x, b->inner, rows);
    for (int64_t i = 0; i < rows * b->sizes->inner; i++)
        b->inner[i] *= 0.5f * (1 + erff(b->inner[i] * 0.70710678f));
    multiply(&l->outer, b->inner, b->y, rows);
    layer_norm(&l->last_norm, b->sizes->norm_eps, b->x, b->y, rows);
}

const float *bert_run(bert_t *b, attention_t *attention, const batch_t *batch) {
    const int64_t h = b->sizes->hidden;
    for (int t = 0; t < batch->num_texts; t++)
        for (int32_t i = batch->starts[t]; i < batch->starts[t + 1]; i++) {
            const float *word = b->words.data + batch->tokens[i] * h;
            const float *position = b->positions.data + (i - batch->starts[t]) * h;
            for (int64_t j = 0; j < h; j++)
                b->x[i * h + j] = word[j] + position[j] + b->types.data[j];
        }
    layer_norm(&b->norm, b->sizes->norm_eps, b->x, NULL, batch->num_tokens);
    attention_begin(attention, batch);
    for (int64_t i = 0; i < b->sizes->layers; i++)
        run_layer(b, i, attention, batch->num_tokens);
    return b->x;
}

void bert_close(bert_t *b) {
    for (int64_t i = 0; i < b->sizes->layers; i++) {
        bert_layer_t *l = &b->layers[i];
        linear_t *const all[] = {&l->query, &l->key,   &l->value, &l->output,
                                 &l->norm,  &l->inner, &l->outer, &l->last_norm};
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++)
            drop(all[j]);
    }
    drop(&b->norm);
    void *const all[] = {b->words.converted,
                         b->positions.converted,
                         b->types.converted,
                         b->x,
                         b->y,
                         b->query,
                         b->key,
                         b->value,
                         b->mixed,
                         b->inner,
                         b->layers};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    free(b);
}
