/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a group's device in host memory, for the hooks that look at them: copied by the operations of
 * the device's kind, behind what the engine's stream has, and waited for. */
#ifndef ATTNI_HOST_COPY_H
#define ATTNI_HOST_COPY_H

#include "hook/hook.h"

enum { ATTNI_HOST_COPY_DIMS = 8 };

/* Points into itself: never copied. {.memory = NULL} before its first use. */
struct attni_host_copy {
    DLTensor t;
    int64_t shape[ATTNI_HOST_COPY_DIMS], strides[ATTNI_HOST_COPY_DIMS];
    void *memory;
};

/* What is read: the first `most` of dimension dim (-1: all), behind what the stream has. */
struct attni_host_read {
    const attn_group_t *group;
    void *stream;
    int dim;
    int64_t most;
};

/*
 * *seen is t where the processor may read it as it is, else the copy, which keeps the strides of t; NULL
 * where t is absent or of a kind of device that is neither the group's nor the processor. What the copy held
 * before is freed, in any case. ATTN_E_INVALID: t has no data, shape or strides; ATTN_E_NO_MEMORY;
 * ATTN_E_DEVICE: the device's own words, with the name.
 */
int attni_host_copy(const struct attni_host_read *read, const DLTensor *t, const char *name,
                    struct attni_host_copy *copy, const DLTensor **seen, attn_error_t *error);

/* The blocks map[0 .. count-1] of a cache whose dimension `axis` counts blocks, in that order, as a cache of
 * count blocks with the strides of t within each. Always a copy, of host memory too. */
int attni_host_copy_blocks(const attn_group_t *group, const DLTensor *t, const char *name, int axis,
                           const int32_t *map, int64_t count, void *stream, struct attni_host_copy *copy,
                           attn_error_t *error);

void attni_host_copy_free(struct attni_host_copy *copy);

/* Whether nothing of the group's device can be read on this stream, because it is being captured. The first
 * time the log says so, with the names of the hook and of the layer (NULL: a batch is being planned). */
int attni_hook_must_not_read(struct attni_hook *hook, const char *name, const char *layer,
                             uint32_t batch_flags, void *stream);

#endif
