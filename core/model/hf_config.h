/* SPDX-License-Identifier: Apache-2.0 */
/* hf_config.h: from a Hugging Face config.json to the attention layers of the model, one problem per kind of
 * layer. */
#ifndef ATTNI_HF_CONFIG_H
#define ATTNI_HF_CONFIG_H

#include <attn/attn_types.h>
#include <stddef.h>
#include <stdint.h>

#define HF_MAX_KINDS  12
#define HF_MAX_NOTES  8
#define HF_MAX_UNREAD 64
#define HF_MAX_DEPTH  4096 /* layers of a stack */

/* Layers that differ in nothing but their weights. */
typedef struct hf_kind {
    char name[40];                       /* "self attention, window 4096" */
    char layers[48];                     /* "0-31", "0,2,4,.." */
    uint8_t is_member[HF_MAX_DEPTH / 8]; /* bit i: layer i */
    uint32_t num_layers;                 /* 0: no layer of its own */
    uint32_t indexer_dim;                /* of the keys of an indexer beside each layer; 0: none */
    char unserved[160];                  /* "" or what no problem can say, with the name of its field */
    attn_problem_t problem; /* block size, cache dtype and limits other than max_model_len are left open */
} hf_kind_t;

typedef struct hf_model {
    char model_type[48];
    uint32_t num_kinds;
    uint32_t num_notes;
    hf_kind_t kinds[HF_MAX_KINDS];
    char notes[HF_MAX_NOTES][240];
    uint32_t num_unread;             /* fields that concern attention and were not understood */
    char unread[HF_MAX_UNREAD][120]; /* their paths: "text_config.swa_num_key_value_heads" */
} hf_model_t;

/* ATTN_E_IO or ATTN_E_PARSE with a text that names file and field. */
int attni_hf_config_load(const char *path, hf_model_t *model, attn_error_t *error);
int attni_hf_config_parse(const char *text, size_t size, const char *label, hf_model_t *model,
                          attn_error_t *error);

#endif
