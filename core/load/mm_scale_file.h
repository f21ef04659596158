/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON file of the multimodal encoder's fp8 scales: layer name -> {"q": .., "k": .., "v": ..} (semantics
 * 7.6). */
#ifndef ATTNI_MM_SCALE_FILE_H
#define ATTNI_MM_SCALE_FILE_H

#include <attn/attn_types.h>
#include <stddef.h>

enum { ATTNI_MM_SCALES = 3 }; /* Q, K, V */

struct attni_mm_entry {
    char *layer;
    double scale[ATTNI_MM_SCALES];
};

struct attni_mm_table {
    struct attni_mm_entry *entries;
    size_t count;
};

/* Reads a file: an object of layers, or one whose member "layers" is that object. Members are q, k, v or
 * q_scale, k_scale, v_scale. Entries that are not objects or lack a scale are left out; a scale that is not
 * one positive number fails with file, layer and key. The table is empty on failure. */
int attni_mm_table_read(struct attni_mm_table *table, const char *path, attn_error_t *error);
void attni_mm_table_free(struct attni_mm_table *table);

/* The entry of a layer; an error that lists the layers of the file if there is none. */
const struct attni_mm_entry *attni_mm_table_find(const struct attni_mm_table *table, const char *path,
                                                 const char *layer, attn_error_t *error);

/* Appends a copy; 0, or -1 without memory. */
int attni_mm_table_add(struct attni_mm_table *table, const char *layer, const double *scale);

/* Writes every scale times margin, through a new file that replaces the old one as a whole: readers see the
 * one or the other, and a failure leaves the old one. */
int attni_mm_table_write(const struct attni_mm_table *table, const char *path, double margin,
                         attn_error_t *error);

#endif
