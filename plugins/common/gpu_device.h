/* SPDX-License-Identifier: Apache-2.0 */
/* What plugins with CUDA do alike when they open: the checks of a device, and the current device around a
 * call. Compiled into each plugin that uses it. */
#ifndef ATTN_GPU_DEVICE_H
#define ATTN_GPU_DEVICE_H

#include "problem_check.h"

/* The error of a cudaError_t; also takes it off the runtime, so that a failed launch does not fail the next
 * caller. */
int gpu_fail(attn_error_t *error, int code, const char *what);

/* Makes a device current and restores what the caller's thread had, also if that was no context at all. */
typedef struct gpu_device_guard {
    int is_pushed;
} gpu_device_guard;
int gpu_enter(int device_id, gpu_device_guard *guard, attn_error_t *error);
void gpu_leave(const gpu_device_guard *guard);
/* An asynchronous copy on a device. */
int gpu_copy_to_device(int device_id, void *to, const void *from, size_t bytes, void *stream,
                       attn_error_t *error);

/* A device that is present. */
typedef struct gpu_device {
    int id, major, minor, num_sms;
    int smem_optin, smem_per_sm; /* bytes of shared memory: of one block, of a multiprocessor */
    int has_sm90a;               /* it is 9.0, and this build has the kernels of *_sm90*.cu */
} gpu_device;
int gpu_find_device(const attn_device_t *device, const char *backend, gpu_device *found, attn_error_t *error);

#endif
