/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_model.h: the attention layers of a model, from its Hugging Face config.json. Layers that differ in
 * nothing but their weights are one kind, with one problem: an engine opens a group for each kind and makes a
 * layer for each of its numbers.
 *
 *     for (uint32_t i = 0; attn_model_kind(model, i, &kind, &problem, NULL) == ATTN_OK; i++) {
 *         problem.max_num_seqs = 64;                 what the file does not know: limits, block size
 *         if (kind.unserved[0] == '\0') attn_group_open(context, &problem, ...);
 *     }
 *
 * What cannot be read is an error that names the field; what was read and not understood is listed
 * (attn_model_not_understood), since what it means is missing from the problems. No context is needed and no
 * plugin is asked: whether a backend serves a problem is what attn_select answers.
 *
 * OWNERSHIP: a model belongs to the caller until attn_model_free; every string and list that these functions
 * return lives as long as the model. THREADS: a model never changes and may be used from every thread.
 */
#ifndef ATTN_MODEL_H
#define ATTN_MODEL_H

#include <attn/attn_types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attn_model attn_model_t;

/* Reads a config.json of at most 4 MiB; path may be the folder that has it. ATTN_E_IO or ATTN_E_PARSE with a
 * text that names the file and the line or field. Free with attn_model_free. [any thread] */
int attn_model_load(const char *path, attn_model_t **model, attn_error_t *error);
/* The same from memory: size bytes of JSON, not necessarily terminated. label is named in errors where the
 * path would. [any thread] */
int attn_model_parse(const char *text, size_t size, const char *label, attn_model_t **model,
                     attn_error_t *error);
/* Frees a model. NULL is allowed. [any thread] */
void attn_model_free(attn_model_t *model);

/* model_type of the file, "llama"; "unknown" if it has none. [any thread] */
const char *attn_model_type(const attn_model_t *model);

/* One kind of layers. */
typedef struct attn_model_kind {
    uint32_t struct_size;
    uint32_t num_layers;
    /* [num_layers] numbers of the layers in their stack, from 0, ascending. Decoder, encoder and vision tower
     * are stacks of their own */
    const uint32_t *layers;
    const char *layers_text; /* the same in short: "0-31", "0,2,..,30" */
    const char *name;        /* "self attention, window 4096" */
    /* "", or why no backend can serve these layers: what no problem can say, with the name of its field.
     * problem is then without it */
    const char *unserved;
    uint32_t indexer_dim; /* sparse MLA: size of a key of the indexer beside each layer; 0: none */
    uint32_t reserved0;
} attn_model_kind_t;

/* Kind number index; ATTN_E_NOT_FOUND past the end. problem (may be NULL) receives a problem that
 * attn_problem_check accepts: role, mask, dtype, heads, sizes, window or chunk, scale, features;
 * max_model_len and kv_cache_dtype where the file says them. block_size and the other limits are 0. The
 * struct_size of both is the caller's. [any thread] */
int attn_model_kind(const attn_model_t *model, uint32_t index, attn_model_kind_t *kind,
                    attn_problem_t *problem, attn_error_t *error);

/* Remark number index for a person: layers left out because they have no softmax attention, an unknown
 * model_type read by the usual names, and the like. NULL past the end. [any thread] */
const char *attn_model_note(const attn_model_t *model, uint32_t index);
/* Path number index of a field that concerns attention, is not switched off and was not understood, such as
 * "text_config.swa_num_key_value_heads". An engine should refuse the model or know better. NULL past the end.
 * [any thread] */
const char *attn_model_not_understood(const attn_model_t *model, uint32_t index);

/* Makes a problem that of one of world ranks under tensor parallelism: query heads are divided, KV heads too
 * down to one for each rank. ATTN_E_INVALID where they cannot be divided; the problem is then unchanged.
 * [any thread] [pure] */
int attn_model_split(attn_problem_t *problem, uint32_t world, attn_error_t *error);

#ifdef __cplusplus
}
#endif
#endif
