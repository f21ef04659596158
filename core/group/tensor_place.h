/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_place.h: a group on the CPU reads its tensors with the processor, so one on a GPU would end in a
 * segmentation fault, as would one of another GPU in a kernel. Whether a GPU's group takes tensors of the
 * host is left to the backend, which reads some arguments there. */
#ifndef ATTNI_TENSOR_PLACE_H
#define ATTNI_TENSOR_PLACE_H

#include "device/device.h"
#include "group/group.h"

/* A tensor of a call: the member of its struct, and its name. */
struct attni_placed {
    size_t offset;
    const char *name;
};
#define ATTNI_PLACED(TYPE, MEMBER)                                                                           \
    { offsetof(TYPE, MEMBER), #MEMBER }
#define ATTNI_PLACED_AS(TYPE, MEMBER, NAME)                                                                  \
    { offsetof(TYPE, MEMBER), NAME }

static inline int attni_place_is_fine(const attn_group_t *g, const DLDevice *d) {
    if (g->device.type == kDLCPU) return attni_is_host_memory((int32_t)d->device_type);
    return (int32_t)d->device_type != g->device.type || d->device_id == g->device.id;
}

static inline int attni_place_refuse(const attn_group_t *g, const DLTensor *t, const char *name,
                                     attn_error_t *error) {
    char kind[32];
    if (g->device.type != kDLCPU)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s is on %s:%d, but this group runs on %s:%d; copy it there", name,
                         attni_device_text(g->device.type, 0, kind, sizeof kind), (int)t->device.device_id,
                         kind, (int)g->device.id);
    return attn_fail(error, ATTN_E_INVALID, name,
                     "%s is on a device of DLPack type %d, but this group computes on the CPU; copy it to "
                     "host memory or open the group on that device",
                     name, (int)t->device.device_type);
}

/* One tensor, if it is given. */
static inline int attni_place_check_one(const attn_group_t *g, const DLTensor *t, const char *name,
                                        attn_error_t *error) {
    return t == NULL || attni_place_is_fine(g, &t->device) ? ATTN_OK : attni_place_refuse(g, t, name, error);
}

/* The tensors of `args`, those that are given. */
static inline int attni_place_check(const attn_group_t *g, const void *args, const struct attni_placed *list,
                                    size_t count, attn_error_t *error) {
    for (size_t i = 0; i < count; i++) {
        const DLTensor *t;
        memcpy(&t, (const char *)args + list[i].offset, sizeof t);
        if (t != NULL && !attni_place_is_fine(g, &t->device))
            return attni_place_refuse(g, t, list[i].name, error);
    }
    return ATTN_OK;
}

#endif
