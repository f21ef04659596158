/* SPDX-License-Identifier: Apache-2.0 */
/* One element of a tensor as a double, and runs of them. */
#ifndef ATTNI_ELEMENT_H
#define ATTNI_ELEMENT_H

#include "device/device.h"

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

/* Merging and copying read with the processor. */
static inline int attni_host_check(const DLTensor *t, const char *name, attn_error_t *error) {
    const int32_t type = (int32_t)t->device.device_type;
    if (attni_is_host_memory(type)) return ATTN_OK;
    return attn_fail(
        error, ATTN_E_UNSUPPORTED, name,
        "%s lies on a device of DLPack type %d; merging and copying of rows work on host memory: "
        "copy it there",
        name, (int)type);
}

#endif
