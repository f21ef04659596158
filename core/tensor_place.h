/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_place.h: a group on the CPU reads its tensors with the processor, so one on a GPU would end in a segmentation
 * fault, as would one of another GPU in a kernel. Whether a GPU's group takes tensors of the host is left to the backend,
 * which reads some arguments there. */
#ifndef ATTNI_TENSOR_PLACE_H
#define ATTNI_TENSOR_PLACE_H

#include "group.h"

struct attni_placed {
    const DLTensor *tensor; /* NULL: not given */
    const char *name;
};

static inline int attni_place_check(const attn_group_t *g, const struct attni_placed *list, size_t count,
                                    attn_error_t *error) {
    for (size_t i = 0; i < count; i++) {
        int type = list[i].tensor != NULL ? (int)list[i].tensor->device.device_type : (int)kDLCPU;
        int id = list[i].tensor != NULL ? (int)list[i].tensor->device.device_id : 0;
        if (g->device.type == kDLCUDA && type == kDLCUDA && id != g->device.id)
            return attn_fail(error, ATTN_E_INVALID, list[i].name,
                             "%s lies on cuda:%d, and this group runs on cuda:%d; copy it there",
                             list[i].name, id, (int)g->device.id);
        if (g->device.type == kDLCPU && type != kDLCPU && type != kDLCUDAHost && type != kDLCUDAManaged &&
            type != kDLROCMHost)
            return attn_fail(
                error, ATTN_E_INVALID, list[i].name,
                "%s lies on a device of DLPack type %d, and this group computes on the CPU; copy "
                "it to host memory or open the group on that device",
                list[i].name, type);
    }
    return ATTN_OK;
}

#endif
