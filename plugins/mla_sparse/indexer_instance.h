/* SPDX-License-Identifier: Apache-2.0 */
/* The indexer of mla_sparse: what an open one holds. indexer_open.c makes it, indexer_calls.c checks
 * arguments and launches. */
#ifndef INDEXER_INSTANCE_H
#define INDEXER_INSTANCE_H

#include "../common/gpu_device.h"
#include "../common/indexer_check.h"
#include "kernels/cuda/indexer/indexer_params.h"

struct attn_indexer {
    indexer_rules r;
    int device_id, num_sms;
    int has_sm90;        /* the Hopper kernels run here, for these heads */
    int max_clusters[2]; /* clusters of 16 and of 8 CTAs that run at once, of the top-k kernel */
    void *encode_tiled;  /* cuTensorMapEncodeTiled */
};

const void *indexer_get_extension(attn_instance_t *instance, const char *id);

int indexer_write(attn_indexer_t *x, const attn_indexer_write_t *args, void *stream, attn_error_t *error);
int indexer_gather(attn_indexer_t *x, const attn_indexer_gather_t *args, void *stream, attn_error_t *error);
int indexer_quantize(attn_indexer_t *x, const attn_indexer_quantize_t *args, void *stream,
                     attn_error_t *error);
int indexer_logits(attn_indexer_t *x, const attn_indexer_logits_t *args, void *stream, attn_error_t *error);
int indexer_logits_paged(attn_indexer_t *x, const attn_indexer_paged_t *args, void *stream,
                         attn_error_t *error);
int indexer_select(attn_indexer_t *x, const attn_indexer_select_t *args, void *stream, attn_error_t *error);

#endif
