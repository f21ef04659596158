/* SPDX-License-Identifier: Apache-2.0 */
/* case_tensor.c: tensors between canaries, and CPU memory. */
#include "case_tensor.h"

#include <attn/attn_plugin_util.h>

#include <stdlib.h>
#include <string.h>

enum { GUARD = 256 }; /* bytes of canary at each end */

static void *cpu_alloc(void *ctx, size_t bytes, size_t alignment) {
    (void)ctx;
    void *p = NULL;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    return posix_memalign(&p, alignment, bytes != 0 ? bytes : 1) == 0 ? p : NULL;
}
static void cpu_free(void *ctx, void *p, size_t bytes) {
    (void)ctx, (void)bytes;
    free(p);
}
static int cpu_copy(void *ctx, void *dst, const void *src, size_t bytes) {
    (void)ctx;
    memcpy(dst, src, bytes);
    return 0;
}
static int cpu_sync(void *ctx) {
    (void)ctx;
    return 0;
}
const kit_memory_t kit_cpu_memory = {.device_type = kDLCPU,
                                     .alloc = cpu_alloc,
                                     .free = cpu_free,
                                     .to_device = cpu_copy,
                                     .from_device = cpu_copy,
                                     .sync = cpu_sync};

kit_tensor_t *kit_tensor_make(kit_tensors_t *all, const char *name, uint32_t dtype, int ndim,
                              const int64_t *shape, const int64_t *strides, size_t lead) {
    if (all->failed || all->count == KIT_MAX_TENSORS) {
        all->failed = 1;
        return NULL;
    }
    kit_tensor_t *t = &all->list[all->count];
    memset(t, 0, sizeof *t);
    int64_t last = 1, dense = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        t->shape[i] = shape[i];
        t->strides[i] = strides != NULL ? strides[i] : dense;
        dense *= shape[i] > 0 ? shape[i] : 1;
        if (shape[i] > 0) last += (shape[i] - 1) * t->strides[i];
    }
    t->name = name;
    t->dtype = dtype;
    t->bytes = 2 * GUARD + lead + (size_t)last * attn_dtype_size(dtype);
    t->host = malloc(t->bytes);
    t->raw = all->memory->alloc(all->memory->ctx, t->bytes, 256);
    all->count++;
    if (t->host == NULL || t->raw == NULL) {
        all->failed = 1;
        return NULL;
    }
    memset(t->host, KIT_CANARY, t->bytes);
    t->t.data = (char *)t->raw + GUARD;
    t->t.byte_offset = lead;
    t->t.device.device_type = (DLDeviceType)all->memory->device_type;
    t->t.device.device_id = all->memory->device_id;
    t->t.ndim = ndim;
    t->t.dtype = attn_dl_dtype(dtype);
    t->t.shape = t->shape;
    t->t.strides = t->strides;
    return t;
}

unsigned char *kit_tensor_at(kit_tensor_t *t, int64_t i, int64_t j) {
    int64_t at = i * t->strides[0] + (t->t.ndim > 1 ? j * t->strides[1] : 0);
    return t->host + GUARD + t->t.byte_offset + (size_t)at * attn_dtype_size(t->dtype);
}

void kit_store_floats(void *out, uint32_t dtype, const float *in, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        switch (dtype) {
        case ATTN_DTYPE_FLOAT16:
            ((uint16_t *)out)[i] = attn_to_f16(in[i]);
            break;
        case ATTN_DTYPE_BFLOAT16:
            ((uint16_t *)out)[i] = attn_to_bf16(in[i]);
            break;
        case ATTN_DTYPE_FP8_E4M3:
            ((uint8_t *)out)[i] = attn_to_e4m3(in[i]);
            break;
        case ATTN_DTYPE_FP8_E5M2:
            ((uint8_t *)out)[i] = attn_to_e5m2(in[i]);
            break;
        default:
            ((float *)out)[i] = in[i];
            break;
        }
}

void kit_load_doubles(const void *in, uint32_t dtype, double *out, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        switch (dtype) {
        case ATTN_DTYPE_FLOAT64:
            memcpy(&out[i], (const char *)in + 8 * i, 8);
            break;
        case ATTN_DTYPE_FLOAT16:
            out[i] = attn_from_f16(((const uint16_t *)in)[i]);
            break;
        case ATTN_DTYPE_BFLOAT16:
            out[i] = attn_from_bf16(((const uint16_t *)in)[i]);
            break;
        case ATTN_DTYPE_FP8_E4M3:
            out[i] = attn_from_e4m3(((const uint8_t *)in)[i]);
            break;
        case ATTN_DTYPE_FP8_E5M2:
            out[i] = attn_from_e5m2(((const uint8_t *)in)[i]);
            break;
        default:
            out[i] = ((const float *)in)[i];
            break;
        }
}

void kit_tensor_fill(kit_tensor_t *t, const float *values, int64_t n) {
    int64_t heads = t->shape[1], size = t->shape[2];
    for (int64_t i = 0; i < n; i++)
        for (int64_t h = 0; h < heads; h++)
            kit_store_floats(kit_tensor_at(t, i, h), t->dtype, values + (i * heads + h) * size, size);
}

int kit_tensor_send(kit_tensors_t *all, kit_tensor_t *t) {
    if (t == NULL || all->memory->to_device(all->memory->ctx, t->raw, t->host, t->bytes) != 0)
        all->failed = 1;
    return all->failed;
}

int kit_tensor_fetch(kit_tensors_t *all, kit_tensor_t *t) {
    if (t == NULL || all->memory->from_device(all->memory->ctx, t->host, t->raw, t->bytes) != 0)
        all->failed = 1;
    return all->failed;
}

int kit_tensor_poison(kit_tensors_t *all, kit_tensor_t *t) {
    const kit_memory_t *m = all->memory;
    if (t == NULL) return all->failed = 1;
    memset(t->host, KIT_CANARY, t->bytes);
    if (m->kind == NULL) return kit_tensor_send(all, t);
    if (m->kind->fill(m->device_id, t->raw, KIT_CANARY, t->bytes, NULL, NULL) != ATTN_OK) all->failed = 1;
    return all->failed;
}

int64_t kit_tensor_canaries(kit_tensors_t *all, kit_tensor_t *t) {
    const kit_memory_t *m = all->memory;
    const size_t behind = t->bytes - GUARD;
    if (m->from_device(m->ctx, t->host, t->raw, GUARD) != 0 ||
        m->from_device(m->ctx, t->host + behind, (char *)t->raw + behind, GUARD) != 0)
        all->failed = 1;
    for (int i = 0; i < GUARD && !all->failed; i++) {
        if (t->host[GUARD - 1 - i] != KIT_CANARY) return i + 1; /* in front: the distance */
        if (t->host[behind + (size_t)i] != KIT_CANARY) return (int64_t)behind - GUARD + i;
    }
    return -1;
}

/* Marks the bytes of the elements below the limit, row by row, then looks for a change in the others. */
int64_t kit_tensor_damage(const kit_tensor_t *t, int axis, int64_t rows) {
    unsigned char *is_element = calloc(t->bytes, 1);
    if (is_element == NULL) return -1;
    int64_t size[KIT_TENSOR_DIMS] = {1, 1, 1, 1, 1}, stride[KIT_TENSOR_DIMS] = {0}, at[KIT_TENSOR_DIMS] = {0};
    size_t element = attn_dtype_size(t->dtype), run = element;
    int is_empty = 0, last = t->t.ndim - 1;
    for (int i = 0; i < t->t.ndim; i++) {
        size[i] = i == axis ? rows : t->shape[i];
        stride[i] = t->strides[i];
        is_empty |= size[i] == 0;
    }
    if (last >= 0 && stride[last] == 1) { /* a dense last dimension is one run of bytes */
        run *= (size_t)size[last];
        size[last] = 1;
    }
    while (!is_empty) {
        size_t offset = GUARD + t->t.byte_offset;
        for (int i = 0; i < KIT_TENSOR_DIMS; i++)
            offset += (size_t)(at[i] * stride[i]) * element;
        memset(is_element + offset, 1, run);
        int i = KIT_TENSOR_DIMS - 1;
        while (i >= 0 && ++at[i] == size[i])
            at[i--] = 0;
        if (i < 0) break;
    }
    int64_t found = -1;
    for (size_t i = 0; found < 0 && i < t->bytes; i++) {
        if (is_element[i]) { /* to the end of the run, by the library's fast search */
            const unsigned char *end = memchr(is_element + i, 0, t->bytes - i);
            if (end == NULL) break;
            i = (size_t)(end - is_element);
        }
        int64_t from = (int64_t)i - GUARD - (int64_t)t->t.byte_offset;
        if (t->host[i] != KIT_CANARY)
            found = from < 0 ? -from : from; /* in front of the tensor: the distance */
    }
    free(is_element);
    return found;
}

void kit_tensors_free(kit_tensors_t *all) {
    for (int i = 0; i < all->count; i++) {
        free(all->list[i].host);
        if (all->list[i].raw != NULL)
            all->memory->free(all->memory->ctx, all->list[i].raw, all->list[i].bytes);
    }
    all->count = 0;
}
