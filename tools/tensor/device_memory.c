/* SPDX-License-Identifier: Apache-2.0 */
/* device_memory.c: blocks of one device, freed together. */
#include "tensor/device_memory.h"

#include <attn/attn_plugin_util.h>
#include <stdlib.h>

enum { MAX_BLOCKS = 4096 };

struct device_memory {
    const attn_device_kind_t *kind;
    int32_t id;
    void *blocks[MAX_BLOCKS];
    size_t num_blocks;
};

const attn_device_kind_t *device_kind_of(const attn_device_t *device, attn_error_t *error) {
    const attn_device_kind_t *kind = attn_device_kind(device->type);
    if (device->id < 0)
        attn_fail(error, ATTN_E_DEVICE, "device",
                  "nothing can run on %s; give --device cpu, or cuda:N of this machine", device->name);
    else if (kind == NULL)
        attn_fail(error, ATTN_E_DEVICE, "device",
                  "no loaded plugin brings operations for device type %d (attn_device.h)", (int)device->type);
    return device->id < 0 ? NULL : kind;
}

int device_memory_open(const attn_device_t *device, device_memory_t **memory, attn_error_t *error) {
    const attn_device_kind_t *kind = device_kind_of(device, error);
    if (kind == NULL) return ATTN_E_DEVICE;
    device_memory_t *made = calloc(1, sizeof *made);
    if (made == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory");
    made->kind = kind;
    made->id = device->id;
    *memory = made;
    return ATTN_OK;
}

void device_memory_close(device_memory_t *memory) {
    if (memory == NULL) return;
    for (size_t i = 0; i < memory->num_blocks; i++)
        memory->kind->free(memory->id, memory->blocks[i]);
    free(memory);
}

DLDevice device_memory_device(const device_memory_t *memory) {
    return (DLDevice){(DLDeviceType)memory->kind->type, memory->id};
}

uint64_t device_memory_left(const device_memory_t *memory) {
    uint64_t left = 0, total = 0;
    if (memory->kind->memory_info != NULL) memory->kind->memory_info(memory->id, &left, &total, NULL);
    return left;
}

void *device_memory_new(device_memory_t *memory, size_t bytes) {
    void *block = NULL;
    if (memory->num_blocks == MAX_BLOCKS) return NULL;
    if (memory->kind->alloc(memory->id, bytes, &block, NULL) == ATTN_OK)
        memory->blocks[memory->num_blocks++] = block;
    return block;
}

int device_memory_write(device_memory_t *memory, void *to, const void *from, size_t bytes) {
    return memory->kind->copy_to(memory->id, to, from, bytes, NULL, NULL);
}

int device_memory_read(device_memory_t *memory, void *to, const void *from, size_t bytes) {
    return memory->kind->copy_from(memory->id, to, from, bytes, NULL, NULL);
}

int device_memory_fill(device_memory_t *memory, void *to, int byte, size_t bytes) {
    return memory->kind->fill(memory->id, to, (uint8_t)byte, bytes, NULL, NULL);
}

int device_memory_copy(device_memory_t *memory, void *to, const void *from, size_t bytes) {
    return memory->kind->copy_within(memory->id, to, from, bytes, NULL, NULL);
}

int device_memory_sync(device_memory_t *memory) {
    return memory->kind->synchronize(memory->id, NULL);
}
