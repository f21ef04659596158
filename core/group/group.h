/* SPDX-License-Identifier: Apache-2.0 */
/* One problem opened on one backend: what the files group_*.c, layer_*.c and hook_*.c share. */
#ifndef ATTNI_GROUP_H
#define ATTNI_GROUP_H

#include "load/context.h"

#include <attn/attn_plugin_util.h>

#include <stdatomic.h>

/* Operations with the instance that they work on. A hook is a stage in front of another one. */
struct attni_stage {
    attn_backend_ops_t ops;
    attn_instance_t *instance;
};

/* How the core rewrites batches for a backend that does not know a layer family (semantics 6.8). */
struct attni_wrap {
    int is_cross;        /* seq_lens become the encoder's */
    uint32_t chunk_size; /* requests are cut at chunk borders; 0: no */
    uint32_t sink_len;   /* block tables begin with the sink blocks; 0: no */
    int is_device;       /* the rewritten tables go to the metadata, on the device */
    int32_t max_virtual; /* requests after rewriting, at most */
    int64_t max_columns; /* block table columns after rewriting, at most */
};

struct attn_group {
    attn_context_t *context;
    const struct attni_backend *backend;
    attn_device_t device;
    attn_problem_t problem; /* as the engine asked, defaults filled in */
    attn_problem_t inner;   /* as the backend was opened */
    uint64_t features;      /* attn_problem_features(&problem) */
    struct attni_wrap wrap;
    struct attni_ranks *ranks; /* of dcp_world_size above 1; NULL: one rank */
    struct attni_stage stage;
    attn_space_needed_t inner_needed; /* the backend's share of needed */
    attn_space_needed_t needed;
    attn_kv_cache_shape_t shape; /* for problem.num_blocks; ndim 0: no cache */
    int block_axis;              /* dimension of shape that counts blocks */
    int64_t *sink_slots;         /* [wrap.sink_len], for writing the sink tokens */
    int32_t built_tokens;        /* num_actual_tokens of the last batch */
    uint32_t built_flags;        /* its flags */
    uint64_t options_hash;       /* of the values of the backend's options */
    uint16_t kind;               /* attni_metadata_kind */
    atomic_uint num_layers;
    const char *calling; /* name of the layer whose operation is under way, for hooks */
    int is_plain;        /* one backend and one rank: forward goes straight to the stage */
    int32_t decode_len;  /* the longest query of a decode */
    /* The same problem on the backend of batches that hold prefill, a whole group but for layers, which this
     * one has; NULL: this one serves every batch. `needed` is then of both. */
    attn_group_t *prefill;
    uint64_t prefill_weights_at; /* where its part of a layer's weight_space begins */
};

/* Where the group's tensors lie, as DLPack says it. */
static inline DLDevice attni_device_of(const attn_group_t *group) {
    return (DLDevice){(DLDeviceType)group->device.type, group->device.id};
}

/* ATTN_E_FORKED or ATTN_E_INVALID if the group must not be used here. */
static inline int attni_group_check(const attn_group_t *group, attn_error_t *error) {
    if (group == NULL)
        return attn_fail(error, ATTN_E_INVALID, "group", "group is NULL; open one with attn_group_open");
    return attni_context_check(group->context, error);
}

/* group_open.c: one backend, asked everything; and its end. */
int attni_group_open_one(attn_context_t *context, const attn_problem_t *problem, const attn_device_t *device,
                         const attn_selection_t *selection, attn_group_t **group, attn_error_t *error);
void attni_group_free(attn_group_t *group);

/* group_phases.c: what a selection and the backends that the configuration names for phases give together.
 * *selection becomes the record of the group's backend, with what stood against two in its warning. */
int attni_group_open_phases(attn_context_t *context, const attn_problem_t *problem,
                            const attn_device_t *device, attn_selection_t **selection, attn_group_t **group,
                            attn_error_t *error);
/* The phase of a checked batch. */
uint32_t attni_phase_of(const attn_group_t *group, const attn_batch_t *batch);
/* Notes which of two backends has built `metadata`, that of `group`. [any thread] */
void attni_phase_note(const attn_group_t *group, const void *metadata);
/* Of a group of two the one that built it last; NULL with ATTN_E_STATE if neither did, or if that is no
 * longer known. [any thread] */
attn_group_t *attni_phase_owner(attn_group_t *group, const void *metadata, attn_error_t *error);

/* The backend opened for the inner problem, on the group's device or one that stands for a part of it. */
int attni_group_open_instance(attn_group_t *group, const attn_device_t *device, attn_instance_t **instance,
                              attn_error_t *error);

/* What the backend is opened with and how its batches are rewritten. Refuses what cannot be rewritten. */
int attni_wrap_plan(const struct attni_backend *backend, const attn_device_t *device,
                    const attn_problem_t *problem, struct attni_wrap *wrap, attn_problem_t *inner,
                    attn_error_t *error);
/* Host bytes that one rewritten batch takes, for the limits of the problem, and bytes of the device. */
uint64_t attni_wrap_bytes(const struct attni_wrap *wrap);
uint64_t attni_wrap_device_bytes(const struct attni_wrap *wrap);
/* Where the core's part of the metadata begins, behind the backend's. */
static inline uint64_t attni_wrap_device_offset(const attn_group_t *group) {
    return (group->inner_needed.metadata_bytes + 255) / 256 * 256;
}
/* Rewrites *batch; arrays and tensors of the new one go into room, and what the device reads into the
 * metadata of space. */
int attni_wrap_batch(const attn_group_t *group, attn_batch_t *batch, void *room, const attn_space_t *space,
                     void *stream, attn_error_t *error);

/* Puts the hooks that the configuration requests before the stage of an opened group. */
int attni_hooks_open(attn_group_t *group, attn_error_t *error);

#endif
