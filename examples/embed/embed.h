/* SPDX-License-Identifier: Apache-2.0 */
/*
 * embed.h: the parts of the example that turns sentences into vectors. unicode.c knows characters,
 * wordpiece.c makes tokens of a text, encoder_attention.c is everything that concerns libattn, bert.c is
 * the rest of the model; embed.c puts them together. Weights are read by ../llm/checkpoint.c.
 */
#ifndef EMBED_H
#define EMBED_H

#include <stddef.h>
#include <stdint.h>

#include "../llm/checkpoint.h"

/* -------------------------------------------------------------- unicode.c: what a tokeniser asks */

int unicode_is_space(uint32_t c);
int unicode_is_punctuation(uint32_t c); /* ASCII's symbols, and Unicode's categories P */
int unicode_is_control(uint32_t c);     /* categories Cc, Cf, Co */
uint32_t unicode_lower(uint32_t c);
/* Decomposes a text (NFD) and drops the marks (Mn). Returns the new text, of *n characters, to be freed. */
uint32_t *unicode_strip_accents(const uint32_t *text, size_t *n);

/* --------------------------------------------------------- wordpiece.c: text to numbers of tokens */

typedef struct wordpiece wordpiece_t;
/* vocab.txt of the folder, a token a line, and what its tokenizer_config.json says. */
wordpiece_t *wordpiece_open(const char *folder);
int64_t wordpiece_size(const wordpiece_t *w);
/* [CLS] text [SEP] of a text in UTF-8: at most max tokens, the last one [SEP]. Returns how many. name is
 * named if the text is not UTF-8. */
int wordpiece_encode(const wordpiece_t *w, const char *text, size_t size, const char *name, int32_t *tokens,
                     int max);
void wordpiece_close(wordpiece_t *w);

/* --------------------------------------------------------------------------- one batch of sentences */

/* Sentences one behind the other, without padding. */
typedef struct batch {
    int num_texts, num_tokens;
    int32_t *starts; /* [num_texts + 1] first token of each */
    int32_t *lens;   /* [num_texts] */
    int32_t *tokens; /* [num_tokens] */
} batch_t;

typedef struct sizes {
    int64_t hidden, inner, layers, heads, vocabulary, positions, types;
    double norm_eps;
    int max_len;               /* tokens of a sentence */
    int max_texts, max_tokens; /* of a batch */
} sizes_t;

/* --------------------------------------------------- encoder_attention.c: what libattn does for us */

typedef struct attention attention_t;
/* backend NULL: libattn's choice. */
attention_t *attention_open(const char *folder, const sizes_t *sizes, const char *backend);
const char *attention_backend(const attention_t *attention);
/* Once per batch, before the layers. */
void attention_begin(attention_t *attention, const batch_t *batch);
/* One layer: query, key, value and output [tokens, heads, head_size]. */
void attention_layer(attention_t *attention, int64_t layer, float *query, float *key, float *value,
                     float *output);
void attention_close(attention_t *attention);

/* --------------------------------------------------------------------- bert.c: the model around it */

typedef struct bert bert_t;
/* Reads config.json; the limits of a batch are the caller's. */
void bert_sizes(const char *folder, sizes_t *sizes);
bert_t *bert_open(checkpoint_t *checkpoint, const sizes_t *sizes);
/* The last hidden states [tokens, hidden] of a batch; they lie in the model until the next call. */
const float *bert_run(bert_t *bert, attention_t *attention, const batch_t *batch);
void bert_close(bert_t *bert);

#endif
