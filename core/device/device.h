/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a device, for what the core adds around layers: by the operations of its kind. */
#ifndef ATTNI_DEVICE_H
#define ATTNI_DEVICE_H

#include "device/device_kind.h"

#include <attn/attn.h>

/*
 * Copies bytes from device memory to the host, after the work that the stream has now, and waits.
 * ATTN_E_DEVICE also for an unknown kind of device. [any thread]
 */
int attni_device_read(const attn_device_t *device, void *host, const void *from, size_t bytes, void *stream,
                      attn_error_t *error);
/* The other way, without waiting: the bytes are taken before it returns. [any thread] */
int attni_device_write(const attn_device_t *device, void *to, const void *host, size_t bytes, void *stream,
                       attn_error_t *error);

/* Whether the stream records what is enqueued instead of running it, so that nothing may be read back; 0
 * where the kind of device cannot say, or fails to. [any thread] */
int attni_device_is_capturing(const attn_device_t *device, void *stream);

/* Whether the processor can follow pointers of that DLDeviceType: its own memory, and what drivers share
 * with it. */
static inline int attni_is_host_memory(int32_t type) {
    return type == kDLCPU || type == kDLCUDAHost || type == kDLCUDAManaged || type == kDLROCMHost;
}

#endif
