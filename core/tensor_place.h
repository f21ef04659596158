/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_place.h: a group on the CPU reads its tensors with the processor, so one on a GPU would end in a segmentation
 * fault. Groups on other devices leave the question to the backend, which takes some arguments from the host. */
#ifndef ATTNI_TENSOR_PLACE_H
#define ATTNI_TENSOR_PLACE_H

#include "group.h"

struct attni_placed {
    const DLTensor *tensor; /* NULL: not given */
    const char *name;
};

static inline int attni_place_check(const attn_group_t *g, const struct attni_placed *list, size_t count,
                                    attn_error_t *error) {
    if (g->device.type != kDLCPU) return ATTN_OK;
    for (size_t i = 0; i < count; i++) {
        int type = list[i].tensor != NULL ? (int)list[i].tensor->device.device_type : (int)kDLCPU;
        if (type != kDLCPU && type != kDLCUDAHost && type != kDLCUDAManaged && type != kDLROCMHost)
            return attn_fail(
                error, ATTN_E_INVALID, list[i].name,
                "%s lies on a device of DLPack type %d, and this group computes on the CPU; copy "
                "it to host memory or open the group on that device",
                list[i].name, type);
    }
    return ATTN_OK;
}

#endif
