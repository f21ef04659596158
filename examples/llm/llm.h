/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llm.h: the parts of the example engine. checkpoint.c reads weights and config.c sizes, attention.c is
 * everything that concerns libattn, llama.c is the rest of the model, pages.c shares the pages of the cache;
 * serve.c puts them together.
 */
#ifndef LLM_H
#define LLM_H

#include <stdint.h>

#include "checkpoint.h"

/* ------------------------------------------------------------------ config.c: sizes of the model */

typedef struct config {
    int64_t hidden, inner, layers, heads, kv_heads, head_size, vocabulary, max_len;
    double norm_eps, rope_theta;
    double rope_factor, rope_low, rope_high, rope_old_len; /* of rope_type linear and llama3 */
    int is_rope_llama3, is_tied;
    int num_ends;
    int32_t ends[8]; /* tokens that end a text */
} config_t;

/* Of config.json in that folder. */
void config_read(const char *folder, config_t *config);

/* ---------------------------------------------------------- one step, as serve.c composes it */

enum { BLOCK = 16 }; /* tokens of a page */

/* Requests in batch order: those with one new token first. */
typedef struct step {
    int num_reqs, num_tokens;
    int32_t *starts;   /* [num_reqs + 1] first row of each request */
    int32_t *lens;     /* [num_reqs] tokens after this step */
    int32_t *table;    /* [num_reqs, table_width] pages */
    int32_t *tokens;   /* [num_tokens] */
    int32_t *position; /* [num_tokens] */
    int32_t table_width;
    int num_logits;
    int32_t *logit_rows; /* [num_logits] rows whose next token is wanted */
    int32_t *next;       /* [num_logits] receives it */
} step_t;

typedef struct limits {
    int max_reqs, max_tokens, num_pages; /* of a step, of a step, of the cache */
    int64_t max_len;                     /* of a request */
} limits_t;

/* ------------------------------------------------------------ attention.c: what libattn does for us */

typedef struct attention attention_t;
/* device: "cpu", "cuda:0"; backend NULL: libattn's choice. */
attention_t *attention_open(const char *folder, const config_t *config, const limits_t *limits,
                            const char *device, const char *backend);
const char *attention_backend(const attention_t *attention);
/* Once per step, before the layers. */
void attention_begin(attention_t *attention, const step_t *step);
/* One layer: writes K and V into its pages, then attends. query, output [tokens, heads, head_size]; key,
 * value [tokens, kv_heads, head_size]; on the host. */
void attention_layer(attention_t *attention, int64_t layer, float *query, float *key, float *value,
                     float *output);
void attention_close(attention_t *attention);

/* ----------------------------------------------------------------- llama.c: the model around it */

typedef struct llama llama_t;
llama_t *llama_open(checkpoint_t *checkpoint, const config_t *config, const limits_t *limits);
/* Runs a step and writes the most likely next token of every row that wants one. */
void llama_step(llama_t *llama, attention_t *attention, const step_t *step);
void llama_close(llama_t *llama);

/* ----------------------------- pages.c: pages of the cache, shared where texts begin alike */

typedef struct pages pages_t;
pages_t *pages_open(int num_pages);
int pages_free_count(const pages_t *pages);
/* A page for one request; -1: none is left. What it held is forgotten. */
int32_t pages_take(pages_t *pages);
/* Gives a page back. If it was published it can be found until it is taken again. */
void pages_release(pages_t *pages, int32_t page);
/* The hash of a text that ends with a page of tokens, from the hash of what stands before (0 at the
 * start). */
uint64_t pages_hash(uint64_t before, const int32_t *tokens);
/* A page that holds these tokens behind that text, for one more request to use; -1: there is none. */
int32_t pages_find(pages_t *pages, uint64_t hash, const int32_t *tokens);
/* Says that a page is full and computed. */
void pages_publish(pages_t *pages, int32_t page, uint64_t hash, const int32_t *tokens);
void pages_close(pages_t *pages);

#endif
