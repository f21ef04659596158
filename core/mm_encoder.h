/* SPDX-License-Identifier: Apache-2.0 */
/* [mm_encoder] of the configuration: fp8 attention for the encoders of images and sound, and its scales (semantics 7.6). */
#ifndef ATTNI_MM_ENCODER_H
#define ATTNI_MM_ENCODER_H

#include "layer.h"
#include "mm_scale_file.h"

struct attni_mm_encoder {
    int is_fp8;                         /* every mm_encoder problem gets ATTN_F_FP8_ATTENTION */
    const char *scale_path, *save_path; /* NULL: none; owned by the configuration */
    double margin;
    struct attni_mm_table table; /* of scale_path */
    atomic_int is_saved;
};

/* Reads and checks the section, and the file of scales that it names. */
int attni_mm_encoder_open(attn_context_t *context, attn_error_t *err);
void attni_mm_encoder_free(struct attni_mm_encoder *mm);

/* What the configuration makes of a problem. */
void attni_mm_encoder_apply(const attn_context_t *context, attn_problem_t *problem);

/* The scales of a layer that the engine gives none: from the file. *found 0: there is no file, scales are dynamic. */
int attni_mm_encoder_scales(const attn_layer_t *layer, double *scale, int *found, attn_error_t *err);

/* Counts a call of a layer with dynamic scales; the first history that is full saves those of all layers, once for a
 * context. Nothing that goes wrong with the file fails the call: it is a line in the log. */
void attni_mm_encoder_count(attn_layer_t *layer, void *stream);

#endif
