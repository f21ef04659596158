/* SPDX-License-Identifier: Apache-2.0 */
/* host_copy.c: one copy for each tensor, from its first byte to its last, whatever lies between its rows; of
 * a cache one for each block, since a batch names few of many. */
#include "hook/host_copy.h"
#include "base/arith.h"
#include "device/device.h"

#include <stdlib.h>

enum { BLOCK_ALIGNMENT = 64 };

static int is_whole(const DLTensor *t) {
    if (t->ndim < 1 || t->ndim > ATTNI_HOST_COPY_DIMS || t->shape == NULL || t->strides == NULL ||
        t->data == NULL)
        return 0;
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0) return 0;
    return t->dtype.bits % 8 == 0;
}

static int malformed(const DLTensor *t, const char *name, attn_error_t *error) {
    return attn_fail(error, ATTN_E_INVALID, name, "%s has %d dimensions or no data, shape or strides", name,
                     (int)t->ndim);
}

/* The processor reads its own memory as it is; what drivers share with it may still be written by kernels,
 * and is copied as the device's is. */
static int is_as_it_is(const attn_group_t *g, const DLTensor *t) {
    return g->device.type == kDLCPU ? attni_is_host_memory((int32_t)t->device.device_type)
                                    : t->device.device_type == kDLCPU;
}

static int is_foreign(const attn_group_t *g, const DLTensor *t) {
    const int32_t type = (int32_t)t->device.device_type;
    return type != g->device.type && !attni_is_host_memory(type);
}

static int read_bytes(const attn_group_t *g, void *to, const void *from, int64_t bytes, const char *name,
                      void *stream, attn_error_t *error) {
    attn_error_t why = {.struct_size = sizeof why};
    const int code = attni_device_read(&g->device, to, from, (size_t)bytes, stream, &why);
    if (code == ATTN_OK) return ATTN_OK;
    return attn_fail(error, code, name, "%s cannot be read back from %s: %s", name, g->device.name, why.text);
}

/* The copy becomes a tensor of the processor over new memory; its sizes and strides are in place. */
static int take_memory(struct attni_host_copy *copy, const DLTensor *t, int64_t bytes, const char *name,
                       attn_error_t *error) {
    attni_host_copy_free(copy);
    copy->memory =
        bytes >= 0 ? aligned_alloc(BLOCK_ALIGNMENT, ((size_t)bytes / BLOCK_ALIGNMENT + 1) * BLOCK_ALIGNMENT)
                   : NULL;
    if (copy->memory == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, name, "no memory for the %lld bytes of %s",
                         (long long)bytes, name);
    copy->t = *t;
    copy->t.data = copy->memory;
    copy->t.byte_offset = 0;
    copy->t.device = (DLDevice){kDLCPU, 0};
    copy->t.shape = copy->shape;
    copy->t.strides = copy->strides;
    return ATTN_OK;
}

int attni_host_copy(const struct attni_host_read *read, const DLTensor *t, const char *name,
                    struct attni_host_copy *copy, const DLTensor **seen, attn_error_t *error) {
    const attn_group_t *g = read->group;
    int64_t low = 0, high = 0; /* bytes of the first and last element from the origin */
    int is_empty = 0;
    *seen = NULL;
    if (t == NULL || is_foreign(g, t)) return ATTN_OK;
    if (is_as_it_is(g, t)) {
        *seen = t;
        return ATTN_OK;
    }
    if (!is_whole(t)) return malformed(t, name, error);
    for (int i = 0; i < t->ndim; i++) {
        copy->shape[i] =
            i == read->dim && read->most >= 0 ? attni_min64(read->most, t->shape[i]) : t->shape[i];
        copy->strides[i] = t->strides[i];
        const int64_t last = (copy->shape[i] - 1) * attn_byte_stride(t, i);
        is_empty |= copy->shape[i] == 0;
        if (last < 0)
            low += last;
        else
            high += last;
    }
    const int64_t bytes = is_empty ? 0 : high - low + t->dtype.bits / 8;
    int code = take_memory(copy, t, bytes, name, error);
    if (code == ATTN_OK)
        code =
            read_bytes(g, copy->memory, (const char *)attn_data(t) + low, bytes, name, read->stream, error);
    if (code != ATTN_OK) return code;
    copy->t.byte_offset = (uint64_t)-low;
    *seen = &copy->t;
    return ATTN_OK;
}

/* -------------------------------------------------------------------- caches */

/* A cache in the making. Dimensions with longer strides than a block's lie outside the blocks (K before V,
 * say): each of their indices has blocks of its own. */
struct blocks {
    const attn_group_t *group;
    const DLTensor *t;
    const char *name;
    struct attni_host_copy *copy;
    const int32_t *map;
    int64_t count, bytes; /* of blocks, and from the first to the last byte of one */
    int axis;
    void *stream;
};

static int is_outside(const DLTensor *t, int axis, int dim) {
    return dim != axis && t->shape[axis] > 1 && attn_byte_stride(t, dim) > attn_byte_stride(t, axis);
}

static int copy_blocks(const struct blocks *b, int dim, const char *from, char *to, attn_error_t *error) {
    const DLTensor *t = b->t;
    int code = ATTN_OK;
    while (dim < t->ndim && !is_outside(t, b->axis, dim))
        dim++;
    if (dim < t->ndim) {
        for (int64_t i = 0; i < t->shape[dim] && code == ATTN_OK; i++)
            code = copy_blocks(b, dim + 1, from + i * attn_byte_stride(t, dim),
                               to + i * attn_byte_stride(&b->copy->t, dim), error);
        return code;
    }
    const int64_t step = attn_byte_stride(t, b->axis), room = attn_byte_stride(&b->copy->t, b->axis);
    for (int64_t i = 0; i < b->count && code == ATTN_OK; i++) {
        if (is_as_it_is(b->group, t))
            memcpy(to + i * room, from + b->map[i] * step, (size_t)b->bytes);
        else
            code = read_bytes(b->group, to + i * room, from + b->map[i] * step, b->bytes, b->name, b->stream,
                              error);
    }
    return code;
}

int attni_host_copy_blocks(const attn_group_t *group, const DLTensor *t, const char *name, int axis,
                           const int32_t *map, int64_t count, void *stream, struct attni_host_copy *copy,
                           attn_error_t *error) {
    struct blocks b = {group, t, name, copy, map, count, t->dtype.bits / 8, axis, stream};
    if (!is_whole(t) || axis < 0 || axis >= t->ndim) return malformed(t, name, error);
    for (int i = 0; i < t->ndim; i++) {
        if (attn_byte_stride(t, i) < 0)
            return attn_fail(error, ATTN_E_UNSUPPORTED, name, "%s has a negative stride in dimension %d",
                             name, i);
        copy->shape[i] = i == axis ? count : t->shape[i];
        copy->strides[i] = t->strides[i];
        if (i != axis && !is_outside(t, axis, i) && t->shape[i] > 0)
            b.bytes += (t->shape[i] - 1) * attn_byte_stride(t, i);
    }
    const int64_t size = t->dtype.bits / 8;
    int64_t stride = (b.bytes + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
    stride = (stride + size - 1) / size * size; /* sizes that are no power of two have none above them */
    copy->strides[axis] = stride / size;
    stride *= attni_max64(count, 1);
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (!is_outside(t, axis, i)) continue;
        copy->strides[i] = stride / size;
        stride *= attni_max64(t->shape[i], 1);
    }
    int code = take_memory(copy, t, stride, name, error);
    return code != ATTN_OK ? code : copy_blocks(&b, 0, attn_data(t), copy->memory, error);
}

void attni_host_copy_free(struct attni_host_copy *copy) {
    free(copy->memory);
    copy->memory = NULL;
}

/* ------------------------------------------------------------------- capturing */

int attni_hook_must_not_read(struct attni_hook *hook, const char *name, const char *layer,
                             uint32_t batch_flags, void *stream) {
    const attn_group_t *g = hook->group;
    if (g->device.type == kDLCPU) return 0;
    const attn_device_kind_t *kind = attn_device_kind(g->device.type);
    const int knows = kind != NULL && kind->is_capturing != NULL;
    if (!(knows ? attni_device_is_capturing(&g->device, stream) : (batch_flags & ATTN_BATCH_CAPTURE) != 0))
        return 0;
    if (!hook->said_capturing)
        attni_log(
            &g->context->log, ATTN_LOG_WARN,
            "[hook %s] %s%s%s of %s: the stream is capturing a graph, from which nothing can be read back; "
            "what is captured is not looked at, nor are its replays",
            name, layer != NULL ? "layer '" : "build_metadata", layer != NULL ? layer : "",
            layer != NULL ? "'" : "", g->backend->shown.name);
    hook->said_capturing = 1;
    return 1;
}
