/* SPDX-License-Identifier: Apache-2.0 */
/* The few calls of the CUDA driver API that the plugin makes, through dlopen: it loads where there is no
 * driver. Handles are void pointers, so that no CUDA header is needed. */
#ifndef TRITON_DRIVER_H
#define TRITON_DRIVER_H

#include <attn/attn_plugin_util.h>

typedef struct triton_driver {
    void *library;
    void *context; /* the device's primary context, retained */
    int device;
    int cc, num_sms;
    int (*init)(unsigned);
    int (*device_count)(int *);
    int (*device_get)(int *, int);
    int (*device_attribute)(int *, int, int);
    int (*context_retain)(void **, int);
    int (*context_release)(int);
    int (*context_push)(void *);
    int (*context_pop)(void **);
    int (*module_load)(void **, const void *);
    int (*module_unload)(void *);
    int (*module_function)(void **, void *, const char *);
    int (*function_set)(void *, int, int);
    int (*function_get)(int *, int, void *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                  void **, void **);
    int (*launch_config)(const void *, void *, void **, void **); /* NULL: a driver before CUDA 11.8 */
    int (*copy_to_device)(unsigned long long, const void *, size_t, void *);
    int (*fill_2d)(unsigned long long, size_t, unsigned char, size_t, size_t, void *);
    int (*error_text)(int, const char **);
} triton_driver_t;

/* Loads the driver and retains the context of one device, of compute capability `least` or more. */
int triton_driver_open(triton_driver_t *d, const attn_device_t *device, int least, attn_error_t *error);
void triton_driver_close(triton_driver_t *d);
/* Makes the device's context current for the calling thread, and gives the caller's back. */
int triton_driver_enter(const triton_driver_t *d, attn_error_t *error);
void triton_driver_leave(const triton_driver_t *d);
/* Launches a kernel beside the end of the one before it in the stream (programmatic dependent launch), where
 * the device has that; the kernel waits (pdl_wait) before it reads what that one writes. */
int triton_driver_launch_after(const triton_driver_t *d, void *kernel, unsigned x, unsigned y,
                               unsigned threads, unsigned smem, void *stream, void **args);
int triton_driver_fail(const triton_driver_t *d, int code, const char *what, attn_error_t *error);

#endif
