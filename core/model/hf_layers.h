/* SPDX-License-Identifier: Apache-2.0 */
/* hf_layers.h: which layers of a stack have which window or chunk. */
#ifndef ATTNI_HF_LAYERS_H
#define ATTNI_HF_LAYERS_H

#include "model/hf_config.h"
#include "model/hf_families.h"
#include "model/hf_fields.h"

/* Layers of one window and chunk. */
typedef struct hf_layer_set {
    uint32_t window, chunk;
    uint32_t num_layers;
    char layers[48]; /* "0-4,6-10,.." or "0,2,..,40" */
    uint8_t is_member[HF_MAX_DEPTH / 8];
    int64_t last, step; /* step 0: not at regular distances */
} hf_layer_set_t;

/* Groups layers 0 .. depth-1, by layer_types where the config has them, else by the family's pattern. Returns
 * the number of sets; errors are left in the reader. */
int attni_hf_layer_sets(const hf_reader_t *reader, const hf_family_t *family, int64_t depth,
                        hf_layer_set_t *sets, int capacity);

/* Whether the config names layers without softmax attention. */
int attni_hf_layer_sets_skipped(const hf_reader_t *reader);

/* Undoes the reads of windows, chunks and their patterns that had no effect, because neither layer_types nor
 * the family says which layers have them. What the config switches off was understood. */
void attni_hf_layer_sets_forget(const hf_reader_t *reader, const hf_family_t *family);

/* The next name in layer_types of layers of which nobody knows what they are, each once; *at starts at 0.
 * NULL: there are no more. */
const char *attni_hf_layer_sets_unknown(const hf_reader_t *reader, size_t *at);

#endif
