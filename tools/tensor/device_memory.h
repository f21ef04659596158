/* SPDX-License-Identifier: Apache-2.0 */
/* device_memory.h: memory of the device that a command runs on, by the operations of its kind. */
#ifndef ATTN_TOOLS_DEVICE_MEMORY_H
#define ATTN_TOOLS_DEVICE_MEMORY_H

#include <attn/draft/attn_device.h>

typedef struct device_memory device_memory_t;

/* The kind of a device that is here; NULL after filling *error. */
const attn_device_kind_t *device_kind_of(const attn_device_t *device, attn_error_t *error);

int device_memory_open(const attn_device_t *device, device_memory_t **memory, attn_error_t *error);
void device_memory_close(device_memory_t *memory); /* frees everything that was allocated from it */
DLDevice device_memory_device(const device_memory_t *memory);
/* Bytes that are still free, 0 where the kind cannot tell. */
uint64_t device_memory_left(const device_memory_t *memory);

/* 256-byte aligned; NULL without memory. Lives until close. bytes 0 gives a small block. */
void *device_memory_new(device_memory_t *memory, size_t bytes);
/* All return 0 on success. */
int device_memory_write(device_memory_t *memory, void *to, const void *from, size_t bytes);
int device_memory_read(device_memory_t *memory, void *to, const void *from, size_t bytes);
int device_memory_fill(device_memory_t *memory, void *to, int byte, size_t bytes);
int device_memory_copy(device_memory_t *memory, void *to, const void *from, size_t bytes); /* on the device */
int device_memory_sync(device_memory_t *memory); /* waits for the device */

#endif
