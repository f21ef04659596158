/* SPDX-License-Identifier: Apache-2.0 */
/* [mm_encoder] of the configuration: fp8 attention for the encoders of images and sound, and its scales
 * (semantics 7.6). */
#ifndef ATTNI_MM_ENCODER_H
#define ATTNI_MM_ENCODER_H

#include "load/context.h"
#include "load/mm_scale_file.h"

struct attni_mm_encoder {
    int is_fp8;                         /* every mm_encoder problem gets ATTN_F_FP8_ATTENTION */
    const char *scale_path, *save_path; /* NULL: none; owned by the configuration */
    double margin;
    struct attni_mm_table table; /* of scale_path */
    atomic_int is_saved;
};

/* Reads and checks the section, and the file of scales that it names. */
int attni_mm_encoder_open(attn_context_t *context, attn_error_t *error);
void attni_mm_encoder_free(struct attni_mm_encoder *mm);

/* What the configuration makes of a problem. */
void attni_mm_encoder_apply(const attn_context_t *context, attn_problem_t *problem);

#endif
