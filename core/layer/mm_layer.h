/* SPDX-License-Identifier: Apache-2.0 */
/* What [mm_encoder] means for a layer: its scales from the file, or its dynamic scales into one. */
#ifndef ATTNI_MM_LAYER_H
#define ATTNI_MM_LAYER_H

#include "layer/layer.h"
#include "load/mm_scale_file.h"

/* The scales of a layer that the engine gives none: from the file. *found 0: there is no file, scales are
 * dynamic. */
int attni_mm_encoder_scales(const attn_layer_t *layer, double *scale, int *found, attn_error_t *error);

/* Counts a call of a layer with dynamic scales; the first history that is full saves those of all layers,
 * once for a context. Nothing that goes wrong with the file fails the call: it is a line in the log. */
void attni_mm_encoder_count(attn_layer_t *layer, void *stream);

#endif
