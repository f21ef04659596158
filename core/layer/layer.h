/* SPDX-License-Identifier: Apache-2.0 */
/* One named attention layer: what the files layer_*.c share. */
#ifndef ATTNI_LAYER_H
#define ATTNI_LAYER_H

#include "group/group.h"

enum { ATTNI_SCALE_Q, ATTNI_SCALE_K, ATTNI_SCALE_V, ATTNI_NUM_SCALES };

/* One scale: a number, and how the backend gets it. */
struct attni_scale {
    float value;           /* as attn_layer_scales says it */
    int is_set;            /* the backend gets it even where it is 1 */
    const DLTensor *given; /* the engine's tensor, or NULL */
    DLTensor own;          /* value as a CPU tensor of one element */
    int64_t shape, stride;
};

struct attn_layer {
    attn_group_t *group;
    char *name;
    uint32_t kind;
    uint64_t hash;
    attn_layer_t *next; /* in the table's chain */
    char *kv_sharing_target;
    struct attni_scale scales[ATTNI_NUM_SCALES];
    int measure_q, measure_kv; /* scales still to be made from the first activations (semantics 3.3) */
    const DLTensor *sinks, *alibi_slopes, *rel_bias, *sink_key, *sink_value;
    const void *sinks_written_to; /* cache whose sink blocks this layer filled */
    DLTensor sink_slots;          /* group->sink_slots as a tensor */
    int64_t sink_slots_shape, sink_slots_stride;
    int is_dynamic; /* ATTN_F_FP8_ATTENTION without scales: weight_space is an attn_fp8_state_t */
    uint32_t dynamic_calls;
    /* As prepare_weights got it; written under the context's lock, since the thread that saves scales reads
     * it. */
    const void *weight_space;
    uint64_t weight_space_bytes;
    attn_fp8_state_t seen; /* on a CPU: the state after the last call, under that lock; see mm_encoder.c */
};

/* The layers of a context by name; all take the context's lock. */
int attni_layers_add(attn_context_t *context, attn_layer_t *layer, attn_error_t *error);
void attni_layers_remove(attn_context_t *context, attn_layer_t *layer);
attn_layer_t *attni_layers_find(attn_context_t *context, const char *name);
/* What another layer may query of one: its owner, perhaps in another thread, may destroy it at any time, so
 * this is a copy. */
struct attni_layer_facts {
    uint32_t role;
    uint64_t fingerprint; /* of its cache */
    int is_sharer;
    char target[128]; /* whose cache it shares, the beginning of the name */
};
int attni_layers_facts(attn_context_t *context, const char *name,
                       struct attni_layer_facts *facts); /* 1: found */
/* Also under the lock, in no order: visit must not call these functions. */
void attni_layers_each(attn_context_t *context, void (*visit)(void *user, const attn_layer_t *layer),
                       void *user);

/* 1 for the first caller of this context that asks about `what` (a small number): a warning that is given
 * once. */
enum { ATTNI_ONCE_KV_UNCALIBRATED, ATTNI_ONCE_Q_UNCALIBRATED, ATTNI_ONCE_SCALES_DROPPED };
int attni_layers_once(attn_context_t *context, unsigned what);

/* The rules of semantics 3.3 and 7.9. */
int attni_layer_set_scales(attn_layer_t *layer, const attn_layer_options_t *options, attn_error_t *error);
int attni_layer_check_sharing(const attn_layer_t *layer, const char *target, attn_error_t *error);

/* Scales that the call does not give, from the layer. */
void attni_layer_fill_scales(const attn_layer_t *layer, attn_scales_t *scales);
/* Scales that are used and can be read here must be finite and above 0: with 0 a quantised row is 0 without
 * an error. */
int attni_layer_check_scales(const attn_layer_t *layer, const attn_scales_t *scales, attn_error_t *error);
/* Makes scales from the first rows seen, where that is still to be done. NULL tensors: not available here. On
 * a device it waits for the stream, allocates for a moment and writes the tensors that the engine gave for
 * the scales. */
int attni_layer_measure(attn_layer_t *layer, const DLTensor *query, const DLTensor *key,
                        const DLTensor *value, int64_t rows, void *stream, attn_error_t *error);

/* Arguments against the group: which must, may and must not be there, and their shapes. */
int attni_layer_check_update(const attn_layer_t *layer, const attn_kv_update_t *args, attn_error_t *error);
int attni_layer_check_forward(const attn_layer_t *layer, const attn_forward_t *args, int profiling,
                              attn_error_t *error);

#endif
