/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of a layer whose group is over ranks. */
#ifndef ATTNI_RANKS_FORWARD_H
#define ATTNI_RANKS_FORWARD_H

#include "group/ranks.h"
#include "layer/layer.h"

/* Attention over ranks; code: of the checks that this rank made. [collective] */
int attni_ranks_forward(attn_layer_t *layer, const attn_forward_t *args, const attn_space_t *space, int code,
                        void *stream, attn_error_t *error);
/* The projections of all ranks' heads, for the backend's prepare_weights. [collective] */
int attni_ranks_weights(attn_layer_t *layer, const attn_weights_t *weights, int code, void *stream,
                        attn_error_t *error);

#endif
