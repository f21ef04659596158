/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One attention call as entries of a safetensors file, for the record hook. Call number n has texts and
 * tensors named "calls.n.WHAT"; doc/operator.md lists them. The batch is gone when forward is called, so it
 * is copied when it is planned.
 */
#ifndef ATTNI_RECORD_CALL_H
#define ATTNI_RECORD_CALL_H

#include "hook/host_copy.h"
#include "base/tensor_file.h"

/* A copy of what a planned batch says on the host. */
struct attni_seen_batch {
    const void *metadata; /* where the batch was planned into; NULL: nothing here */
    uint32_t flags;
    int32_t num_reqs, num_tokens, common_prefix_len, num_mm_ranges;
    int64_t table_columns;
    int32_t *starts, *lens, *rswa, *ranges, *table; /* table: the entries that are read, 0 behind them */
    int32_t *key_starts;                            /* with keys of lengths of their own, else NULL */
    uint8_t *causal;
    const char *unseen; /* why the tensors of a call cannot be recorded; NULL: they can */
};

/* 0, or -1 without memory (the copy is then empty). What lies on the device alone is read behind the stream
 * where may_read, which else makes the tensors of its calls unseen. */
int attni_seen_batch_copy(struct attni_seen_batch *seen, const attn_group_t *group, const attn_batch_t *batch,
                          int may_read, void *stream);
void attni_seen_batch_free(struct attni_seen_batch *seen);

/* The projection of a latent layer, as prepare_weights got it, for a replay to prepare it again. */
struct attni_seen_weights {
    struct attni_seen_weights *next;
    const void *weight_space; /* the layer's */
    uint64_t bytes;
    struct attni_host_copy kv_b_proj, scale; /* dense or not; scale.memory NULL: none */
};

struct attni_record {
    struct attni_tensor_file *file;
    int number; /* of the call in the file */
    const attn_group_t *group;
    const struct attni_seen_batch *batch;
    const struct attni_seen_weights *weights; /* NULL: not kept, or the layer has none */
    const attn_forward_t *args;
    void *stream;
    int is_capturing; /* nothing can be read */
};

/* Problem, backend, shapes and the host's lists. 0, or -1: no room. */
int attni_record_shapes(const struct attni_record *r);
/* Everything that the call reads, the cache only if with_cache. NULL, or why it was not recorded (nothing is
 * then). */
const char *attni_record_inputs(const struct attni_record *r);
const char *attni_record_cache(const struct attni_record *r);
const char *attni_record_outputs(const struct attni_record *r);
/* Sets "calls.n.KEY". */
int attni_record_text(const struct attni_record *r, const char *key, const char *value);

#endif
