/* SPDX-License-Identifier: Apache-2.0 */
/* One element of a tensor as a double, and runs of them. */
#ifndef ATTNI_ELEMENT_H
#define ATTNI_ELEMENT_H

#include "device/device.h"
#include "device/merge_kind.h"

#include <attn/attn_plugin_util.h>

/* n neighbours of `type` at `at`, as doubles. */
static inline void attni_elements_load(uint32_t type, const void *at, int64_t n, double *to) {
    const unsigned char *bytes = at;
    const uint16_t *half = at;
    switch (type) {
    case ATTN_DTYPE_FLOAT32:
        for (int64_t i = 0; i < n; i++)
            to[i] = ((const float *)at)[i];
        return;
    case ATTN_DTYPE_FLOAT16:
        for (int64_t i = 0; i < n; i++)
            to[i] = attn_from_f16(half[i]);
        return;
    case ATTN_DTYPE_BFLOAT16:
        for (int64_t i = 0; i < n; i++)
            to[i] = attn_from_bf16(half[i]);
        return;
    case ATTN_DTYPE_FP8_E4M3:
        for (int64_t i = 0; i < n; i++)
            to[i] = attn_from_e4m3(bytes[i]);
        return;
    case ATTN_DTYPE_FP8_E5M2:
        for (int64_t i = 0; i < n; i++)
            to[i] = attn_from_e5m2(bytes[i]);
        return;
    default: /* float64 */
        memcpy(to, at, (size_t)n * sizeof *to);
    }
}

static inline void attni_elements_store(uint32_t type, const double *from, int64_t n, void *at) {
    uint16_t *half = at;
    switch (type) {
    case ATTN_DTYPE_FLOAT32:
        for (int64_t i = 0; i < n; i++)
            ((float *)at)[i] = (float)from[i];
        return;
    case ATTN_DTYPE_FLOAT16:
        for (int64_t i = 0; i < n; i++)
            half[i] = attn_to_f16(from[i]);
        return;
    case ATTN_DTYPE_BFLOAT16:
        for (int64_t i = 0; i < n; i++)
            half[i] = attn_to_bf16(from[i]);
        return;
    default:
        memcpy(at, from, (size_t)n * sizeof *from);
    }
}

static inline int attni_element_is_float(uint32_t type) {
    return type == ATTN_DTYPE_FLOAT32 || type == ATTN_DTYPE_FLOAT16 || type == ATTN_DTYPE_BFLOAT16 ||
           type == ATTN_DTYPE_FLOAT64;
}

/* Where the tensors of a call lie: none so far, the host, or one device. */
struct attni_place {
    const char *first; /* the parameter that said so; NULL: none did */
    int32_t type, id;  /* of a device; kDLCPU for everything that the processor reads */
};

/* Adds a tensor. */
static inline int attni_place_add(struct attni_place *p, const DLTensor *t, const char *name,
                                  attn_error_t *error) {
    const int is_host = attni_is_host_memory((int32_t)t->device.device_type);
    const int32_t type = is_host ? kDLCPU : (int32_t)t->device.device_type,
                  id = is_host ? 0 : t->device.device_id;
    if (p->first == NULL) {
        *p = (struct attni_place){name, type, id};
        return ATTN_OK;
    }
    if (p->type == type && p->id == id) return ATTN_OK;
    char here[64], there[64];
    return attn_fail(error, ATTN_E_UNSUPPORTED, name,
                     "%s lies on %s:%d and %s on %s:%d; the tensors of a call lie in one place: copy one",
                     name, attni_device_text(type, 0, here, sizeof here), (int)id, p->first,
                     attni_device_text(p->type, 0, there, sizeof there), (int)p->id);
}

/* The functions of a device; NULL and ATTN_OK for host memory. */
static inline int attni_place_table(const struct attni_place *p, const attn_merge_table_t **table,
                                    attn_error_t *error) {
    char text[64];
    *table = NULL;
    if (p->type == kDLCPU) return ATTN_OK;
    *table = attni_merge_kind(p->type);
    if (*table != NULL) return ATTN_OK;
    return attn_fail(
        error, ATTN_E_UNSUPPORTED, p->first,
        "%s lies on %s:%d, where no loaded plugin merges and copies rows (extension %s; for cuda "
        "load flash or mla): load one, or copy it to host memory",
        p->first, attni_device_text(p->type, 0, text, sizeof text), (int)p->id, ATTN_MERGE_EXTENSION);
}

#endif
