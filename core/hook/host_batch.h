/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on a device as a backend of the processor gets them: tensors in host memory, and of the cache only
 * the blocks that the batch names, numbered anew. */
#ifndef ATTNI_HOST_BATCH_H
#define ATTNI_HOST_BATCH_H

#include "hook/host_copy.h"

enum { ATTNI_BATCH_TENSORS = 9, ATTNI_FORWARD_TENSORS = 13 };

/* A planned batch; zero before its first use. Keeps what its batch points to until the next one. */
struct attni_host_batch {
    attn_batch_t batch;
    struct attni_host_copy copies[ATTNI_BATCH_TENSORS];
    DLTensor table, slots;
    int64_t table_shape[2], table_strides[2];
    int32_t *ids, *map; /* the new table, and the old number of each new block */
    int64_t num_blocks, longest;
    int64_t *no_slots;
};

int attni_host_batch_make(struct attni_host_batch *made, const attn_group_t *group, const attn_batch_t *batch,
                          void *stream, attn_error_t *error);
void attni_host_batch_free(struct attni_host_batch *made);

/* The inputs of a call over that batch; output and lse stay those of args. */
struct attni_host_forward {
    attn_forward_t args;
    struct attni_host_copy copies[ATTNI_FORWARD_TENSORS], kv_cache, v_cache;
};

int attni_host_forward_make(struct attni_host_forward *made, const attn_group_t *group,
                            const attn_forward_t *args, const struct attni_host_batch *batch, void *stream,
                            attn_error_t *error);
void attni_host_forward_free(struct attni_host_forward *made);

#endif
