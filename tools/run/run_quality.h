/* SPDX-License-Identifier: Apache-2.0 */
/* run_quality.h: `attn run --quality`: what each cache format costs in accuracy, on the tensors of a file. */
#ifndef ATTN_TOOLS_RUN_QUALITY_H
#define ATTN_TOOLS_RUN_QUALITY_H

#include "run/run_layer.h"

enum { QUALITY_MAX_FORMATS = 32 };

/* One format over the layers of a file. Errors are relative to attention in double over the tensors as
 * they are: the root of the mean square of the difference over that of the exact output, and the largest
 * difference over the largest output; divergence: mean and largest Kullback-Leibler divergence of a row's
 * softmax over the stored keys from the exact one, in nats. */
typedef struct quality_row {
    uint32_t kv;   /* ATTN_KV_* */
    int is_served; /* 0: `why` says why not, and the rest is 0 */
    char why[200], backend[128];
    double bytes; /* of a token and KV head */
    double error, max_error, mean_divergence, max_divergence;
    double seconds;   /* cache writes and attention of all layers, in steps as `attn run` makes them */
    int64_t num_rows; /* of softmax */
} quality_row_t;

/* Every dense format on one layer, added to rows[*count], which start as zeros; options as for run_layer.
 * The layer's tensors become float32. ATTN_E_UNSUPPORTED: the layer has no dense cache, or a mask or score
 * rule that the exact numbers here do not have. */
int quality_layer(attn_context_t *context, run_input_t *input, const run_options_t *options,
                  quality_row_t *rows, int *count, attn_error_t *error);
/* After the last layer. */
void quality_finish(quality_row_t *rows, int count);
/* Error against bytes, as SVG. 0, or -1 with errno. */
int quality_picture(const char *path, const char *title, const quality_row_t *rows, int count);

#endif
