/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_place.h: a group on the CPU reads its tensors with the processor, so one on a GPU would end in a segmentation
 * fault, as would one of another GPU in a kernel. Whether a GPU's group takes tensors of the host is left to the backend,
 * which reads some arguments there. */
#ifndef ATTNI_TENSOR_PLACE_H
#define ATTNI_TENSOR_PLACE_H

#include "group.h"

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
    int type = (int)d->device_type;
    if (g->device.type == kDLCUDA) return type != kDLCUDA || d->device_id == g->device.id;
    return g->device.type != kDLCPU || type == kDLCPU || type == kDLCUDAHost || type == kDLCUDAManaged ||
           type == kDLROCMHost;
}

static inline int attni_place_refuse(const attn_group_t *g, const DLTensor *t, const char *name,
                                     attn_error_t *error) {
    if (g->device.type == kDLCUDA)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s lies on cuda:%d, and this group runs on cuda:%d; copy it there", name,
                         (int)t->device.device_id, (int)g->device.id);
    return attn_fail(error, ATTN_E_INVALID, name,
                     "%s lies on a device of DLPack type %d, and this group computes on the CPU; copy it to "
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
