/* SPDX-License-Identifier: Apache-2.0 */
/*
 * embed.c: sentences to vectors. Each line of a file is a sentence; as many as fit go through the
 * encoder at once, one behind the other and without padding. The vector of a sentence is the mean of its
 * tokens' last states, of length 1: the cosine of two sentences is the sum of products.
 */
#include "embed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const program = "embed";

typedef struct embedder {
    wordpiece_t *words;
    bert_t *bert;
    attention_t *attention;
    sizes_t sizes;
    batch_t batch;
    int64_t num_texts, num_tokens, num_batches;
} embedder_t;

/* Tokens of a sentence: what sentence-transformers was told, or as many as there are positions. And how it
 * pools. */
static void read_limits(embedder_t *e, const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/sentence_bert_config.json", folder);
    json_t *root = config_load(path, 0);
    e->sizes.max_len = (int)config_whole(root, "max_seq_length", e->sizes.positions);
    if (e->sizes.max_len < 3 || e->sizes.max_len > e->sizes.positions)
        die("%s: max_seq_length is %d; expected 3 to the %d positions of config.json", path, e->sizes.max_len,
            (int)e->sizes.positions);
    json_decref(root);
    snprintf(path, sizeof path, "%s/1_Pooling/config.json", folder);
    root = config_load(path, 0);
    if (root != NULL && !json_is_true(json_object_get(root, "pooling_mode_mean_tokens")))
        die("%s: pooling_mode_mean_tokens is not true; this example pools by the mean", path);
    json_decref(root);
}

static void print_vector(const float *states, int64_t rows, int64_t n, double *mean) {
    double squares = 0;
    memset(mean, 0, (size_t)n * sizeof *mean);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            mean[i] += states[r * n + i];
    for (int64_t i = 0; i < n; i++)
        squares += mean[i] * mean[i];
    const double length = squares > 0 ? sqrt(squares) : 1;
    for (int64_t i = 0; i < n; i++)
        printf("%.9g%c", mean[i] / length, i + 1 < n ? ' ' : '\n');
}

/* Runs the sentences that wait and prints their vectors. */
static void run(embedder_t *e) {
    batch_t *b = &e->batch;
    if (b->num_texts == 0) return;
    const int64_t n = e->sizes.hidden;
    const float *states = bert_run(e->bert, e->attention, b);
    double *mean = room((uint64_t)n * sizeof *mean);
    for (int t = 0; t < b->num_texts; t++)
        print_vector(states + b->starts[t] * n, b->lens[t], n, mean);
    free(mean);
    e->num_texts += b->num_texts;
    e->num_tokens += b->num_tokens;
    e->num_batches++;
    b->num_texts = b->num_tokens = 0;
}

static void add(embedder_t *e, const int32_t *tokens, int count) {
    batch_t *b = &e->batch;
    if (b->num_texts == e->sizes.max_texts || b->num_tokens + count > e->sizes.max_tokens) run(e);
    memcpy(b->tokens + b->num_tokens, tokens, (size_t)count * sizeof *tokens);
    b->lens[b->num_texts++] = count;
    b->starts[b->num_texts] = b->num_tokens += count;
}

static void read_sentences(embedder_t *e, const char *path, int is_ids) {
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    if (f == NULL) die("%s: cannot be read", path);
    int32_t *tokens = room((uint64_t)e->sizes.max_len * sizeof *tokens);
    char *line = NULL, name[4200];
    size_t room_of_line = 0;
    for (int64_t number = 1;; number++) {
        ssize_t size = getline(&line, &room_of_line, f);
        if (size < 0) break;
        if (size > 0 && line[size - 1] == '\n') size--;
        snprintf(name, sizeof name, "%s:%lld", path, (long long)number);
        const int count = wordpiece_encode(e->words, line, (size_t)size, name, tokens, e->sizes.max_len);
        for (int i = 0; i < count && is_ids; i++)
            printf("%d%c", (int)tokens[i], i + 1 < count ? ' ' : '\n');
        if (!is_ids) add(e, tokens, count);
    }
    if (ferror(f)) die("%s: cannot be read", path);
    if (f != stdin) fclose(f);
    free(line);
    free(tokens);
}

int main(int argc, char **argv) {
    embedder_t e = {.sizes = {.max_texts = 64, .max_tokens = 2048}};
    const char *backend = NULL;
    int is_ids = 0;
    if (argc < 3) die("usage: embed FOLDER SENTENCES|- [--backend B] [--tokens N] [--ids]");
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--ids") == 0)
            is_ids = 1;
        else if (strcmp(argv[i], "--backend") == 0 && i + 1 < argc)
            backend = argv[++i];
        else if (strcmp(argv[i], "--tokens") == 0 && i + 1 < argc) {
            e.sizes.max_tokens = atoi(argv[++i]);
            if (e.sizes.max_tokens < 1 || e.sizes.max_tokens > 1 << 20)
                die("--tokens is %s; expected tokens of a batch, 1 to %d", argv[i], 1 << 20);
        } else
            die("%s: no such option, or no value", argv[i]);
    }
    bert_sizes(argv[1], &e.sizes);
    read_limits(&e, argv[1]);
    if (e.sizes.max_tokens < e.sizes.max_len) e.sizes.max_tokens = e.sizes.max_len;
    e.words = wordpiece_open(argv[1]);
    if (wordpiece_size(e.words) > e.sizes.vocabulary)
        die("vocab.txt has %lld tokens, config.json says %lld", (long long)wordpiece_size(e.words),
            (long long)e.sizes.vocabulary);
    e.batch.starts = room(((uint64_t)e.sizes.max_texts + 1) * sizeof(int32_t));
    e.batch.lens = room((uint64_t)e.sizes.max_texts * sizeof(int32_t));
    e.batch.tokens = room((uint64_t)e.sizes.max_tokens * sizeof(int32_t));
    if (is_ids) {
        read_sentences(&e, argv[2], 1);
    } else {
        checkpoint_t *checkpoint = checkpoint_open(argv[1]);
        e.bert = bert_open(checkpoint, &e.sizes);
        e.attention = attention_open(argv[1], &e.sizes, backend);
        read_sentences(&e, argv[2], 0);
        run(&e);
        fprintf(stderr, "%s: %lld sentences, %lld tokens, %lld batches\n", attention_backend(e.attention),
                (long long)e.num_texts, (long long)e.num_tokens, (long long)e.num_batches);
        attention_close(e.attention);
        bert_close(e.bert);
        checkpoint_close(checkpoint);
    }
    free(e.batch.starts);
    free(e.batch.lens);
    free(e.batch.tokens);
    wordpiece_close(e.words);
    return 0;
}
