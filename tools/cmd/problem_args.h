/* SPDX-License-Identifier: Apache-2.0 */
/* problem_args.h: the model or problem that a command line names, with the changes that its options ask
 * for. */
#ifndef ATTN_TOOLS_PROBLEM_ARGS_H
#define ATTN_TOOLS_PROBLEM_ARGS_H

#include "base/tool.h"
#include "cmd/tool_model.h"

typedef struct problem_args {
    const char *model;          /* --model */
    const char *kv_cache_dtype; /* --kv-cache-dtype */
    const char *dtype;          /* --dtype */
    int64_t block_size;         /* --block-size */
    int64_t tensor_parallel;    /* --tp */
    int64_t context_parallel;   /* --dcp */
} problem_args_t;

/* Of a model; and of a model with one cache dtype. */
#define MODEL_OPTIONS(A)                                                                                     \
    {"model", "FILE", TOOL_TEXT, &(A).model, 0, 0, "a Hugging Face config.json (or its folder)"},            \
        {"block-size",                                                                                       \
         "N",                                                                                                \
         TOOL_INT,                                                                                           \
         &(A).block_size,                                                                                    \
         1,                                                                                                  \
         1 << 20,                                                                                            \
         "tokens per cache page; otherwise the backend chooses"},                                            \
        {"dtype", "NAME", TOOL_TEXT, &(A).dtype, 0, 0, "in place of the model's: float32, float16, .."},     \
        {"tp", "N", TOOL_INT, &(A).tensor_parallel, 1, 1024, "one rank of N under tensor parallelism"}, {    \
        "dcp", "N", TOOL_INT, &(A).context_parallel, 1, 1024,                                                \
            "one rank of N that share the tokens of the cache"                                               \
    }
#define PROBLEM_OPTIONS(A)                                                                                   \
    MODEL_OPTIONS(A), {                                                                                      \
        "kv-cache-dtype", "NAME", TOOL_TEXT, &(A).kv_cache_dtype, 0, 0,                                      \
            "auto, bfloat16, fp8, int8_per_token_head, .."                                                   \
    }

/* What a command works on: the model, or the problem text in the words (mask, dtype and scale may be left
 * out), and a context and its device. Returns TOOL_OK or an exit code after printing why; with TOOL_OK the
 * caller frees the model and destroys the context. */
int problem_args_open(const problem_args_t *args, int num_words, char **words, const tool_common_t *common,
                      const char *device_text, tool_model_t *model, attn_device_t *device,
                      attn_context_t **context);
void tool_model_free(tool_model_t *model);

/* "fp8" and every name of semantics 3.1; 0 if there is none. */
uint32_t kv_dtype_by_name(const char *name);
/* float32, float16 or bfloat16; 0 if there is none of that name. */
uint32_t float_dtype_by_name(const char *name);
/* Sets the cache dtype of every kind that has a cache (fp8 of sparse MLA is fp8_ds_mla). */
void model_set_kv_dtype(tool_model_t *model, uint32_t kv_cache_dtype);
/* A problem from text with the usual values for mask, dtype and scale where they are missing. */
int problem_from_text(const char *text, attn_problem_t *problem, attn_error_t *error);

#endif
