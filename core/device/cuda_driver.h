/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the CUDA driver that libattn calls, with the driver's signatures (CUDA Driver API):
 * CUdevice is int, CUdeviceptr 64 bits, handles are pointers. libcuda.so.1 is opened by name, so that no
 * toolkit is needed to build.
 */
#ifndef ATTNI_CUDA_DRIVER_H
#define ATTNI_CUDA_DRIVER_H

#include <attn/attn_plugin_util.h>

typedef unsigned long long attni_cuda_address_t;

struct attni_cuda_driver {
    int (*init)(unsigned flags);
    int (*device_count)(int *count);
    int (*device_get)(int *device, int ordinal);
    int (*device_attribute)(int *value, int attribute, int device);
    int (*device_memory)(size_t *bytes, int device);
    int (*device_name)(char *name, int size, int device);
    int (*context_retain)(void **context, int device); /* the primary one, which the CUDA runtime uses too */
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*context_wait)(void);
    int (*memory_info)(size_t *free_bytes, size_t *total_bytes);
    int (*alloc)(attni_cuda_address_t *address, size_t bytes);
    int (*free)(attni_cuda_address_t address);
    int (*copy_to)(attni_cuda_address_t to, const void *from, size_t bytes, void *stream);
    int (*copy_from)(void *to, attni_cuda_address_t from, size_t bytes, void *stream);
    int (*copy_within)(attni_cuda_address_t to, attni_cuda_address_t from, size_t bytes, void *stream);
    int (*fill)(attni_cuda_address_t to, unsigned char byte, size_t bytes, void *stream);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_wait)(void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    int (*event_time)(float *milliseconds, void *first, void *last);
    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*graph_destroy)(void *graph);
    int (*exec_launch)(void *exec, void *stream);
    int (*exec_destroy)(void *exec);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*stream_create_ranked)(void **stream, unsigned flags, int priority);
    int (*priority_range)(int *least, int *greatest);
};

/*
 * The driver, opened once and never closed, because it does not survive that. NULL and ATTN_E_DEVICE: there
 * is none, or it lacks a function. [any thread]
 */
const struct attni_cuda_driver *attni_cuda_driver(attn_error_t *error);

/* A function of it by name; NULL: none. [any thread] */
void *attni_cuda_function(const char *name);

#endif
