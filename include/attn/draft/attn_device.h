/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_device.h: a draft extension of backends: a kind of device that libattn does not know, as a table of
 * operations. With it `attn check`, `attn bench`, `attn run` and what the library adds around layers (sink
 * tokens, measured scales) work on that device, and `--device NAME:N` and attn_device_parse know it.
 * libattn's own kinds, cpu and cuda, are tables of the same type. A draft may change in every release; its
 * number is part of the id.
 *
 *     const attn_device_kind_t *kind = ops->get_extension(NULL, ATTN_DEVICE_EXTENSION);
 *
 * The library asks each backend once, when its plugin is loaded, and keeps a copy of the table until the
 * process ends. A kind whose type and name are already known is not used twice: the first stays. One that
 * takes the type of another name, or the name of another type, gets its plugin refused.
 *
 * RULES: every operation may be called by any thread and leaves the calling thread's current device as it
 * found it, none at all included. Devices are numbered from 0. Addresses of the device are plain pointers
 * that the host never follows. A stream is the kind's own handle, NULL its default stream; an operation with
 * a stream is ordered behind what the stream has. Sizes are in bytes; 0 bytes is no error. What is enqueued
 * and fails later is reported by the next operation that waits. Functions that return int return ATTN_OK or
 * ATTN_E_*, and fill *error (which may be NULL) on failure: ATTN_E_DEVICE has the driver's message,
 * ATTN_E_NO_MEMORY means that memory is used up. Outputs are written on success only.
 */
#ifndef ATTN_DRAFT_DEVICE_H
#define ATTN_DRAFT_DEVICE_H

#include <attn/attn_plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_DEVICE_EXTENSION "attn.draft.device/0"

/* Members marked (optional) may be NULL; of a group of them, all or none. */
typedef struct attn_device_kind {
    uint32_t struct_size;
    int32_t type;     /* DLDeviceType of its tensors, 1 to 63: kDLROCM, kDLOneAPI, kDLExtDev, .. */
    const char *name; /* as in --device NAME:0; lower-case letters, digits, '_' */
    /* Prefix of attn_device_t.compute_capability in text, as sm_ in sm_90. NULL: devices of this
     * kind have no such number, and it is 0. */
    const char *capability_prefix;

    /* Device number id, and in *count, which may be NULL, how many there are, also where id is beyond them
     * (ATTN_E_DEVICE). The device has struct_size set. Makes no context and takes no memory of the device.
     * [any thread] */
    int (*describe)(int32_t id, attn_device_t *device, int32_t *count, attn_error_t *error);

    /* Memory, aligned to 256 bytes; its content is undefined. free waits for the work that may use it;
     * NULL is allowed. [any thread] */
    int (*alloc)(int32_t id, size_t bytes, void **address, attn_error_t *error);
    void (*free)(int32_t id, void *address);
    /* Bytes that are free now, and all of them. (optional) [any thread] */
    int (*memory_info)(int32_t id, uint64_t *free_bytes, uint64_t *total_bytes, attn_error_t *error);

    /* From the host: its bytes are taken before the call returns; it need not wait for the copy. To the
     * host: waits until the bytes are there. Within the device, and filling: enqueued. [any thread] [not
     * capture-safe] */
    int (*copy_to)(int32_t id, void *to, const void *from_host, size_t bytes, void *stream,
                   attn_error_t *error);
    int (*copy_from)(int32_t id, void *to_host, const void *from, size_t bytes, void *stream,
                     attn_error_t *error);
    int (*copy_within)(int32_t id, void *to, const void *from, size_t bytes, void *stream,
                       attn_error_t *error);
    int (*fill)(int32_t id, void *to, uint8_t byte, size_t bytes, void *stream, attn_error_t *error);

    /* Waits for everything that the device has, and says if any of it failed. [any thread] [not capture-
     * safe] */
    int (*synchronize)(int32_t id, attn_error_t *error);

    /* Streams that do not wait for the default stream. (optional) [any thread] */
    int (*stream_create)(int32_t id, void **stream, attn_error_t *error);
    void (*stream_destroy)(int32_t id, void *stream);

    /* Points in a stream. event_seconds waits for `last` and gives the seconds of device time from `first`
     * to it. (optional, needs streams) [any thread] [not capture-safe] */
    int (*event_create)(int32_t id, void **event, attn_error_t *error);
    void (*event_destroy)(int32_t id, void *event);
    int (*event_record)(int32_t id, void *event, void *stream, attn_error_t *error);
    int (*event_seconds)(int32_t id, void *first, void *last, double *seconds, attn_error_t *error);

    /* What is enqueued on a stream between capture_begin and capture_end becomes a graph and does not run;
     * graph_launch runs it. is_strict 1: until the end, an allocation or a wait of any thread is an error,
     * 0: of this thread. After a failed capture_end the stream is usable again and *graph is not written.
     * (optional, needs streams) [the thread that began] */
    int (*capture_begin)(int32_t id, void *stream, uint32_t is_strict, attn_error_t *error);
    int (*capture_end)(int32_t id, void *stream, void **graph, attn_error_t *error);
    int (*graph_launch)(int32_t id, void *graph, void *stream, attn_error_t *error);
    void (*graph_destroy)(int32_t id, void *graph);

    /* Makes a device current for libraries that ask for the thread's current one; leave, with what enter
     * gave, puts back what was there, also if that was nothing, and makes no context for it. Pairs nest.
     * (optional: such a kind has no current device) [any thread; leave in the thread of its enter] */
    int (*enter)(int32_t id, void **previous, attn_error_t *error);
    void (*leave)(int32_t id, void *previous);

    /* A function of the driver below by its own name, for a caller that knows it, as `attn bench` does to
     * launch its own kernel; NULL: there is none. (optional) [any thread] */
    void *(*native_function)(const char *name);

    /* *capturing becomes 1 if what is enqueued on this stream is recorded instead of run, by whoever began
     * that, else 0. The hooks ask, because a copy to the host would break a capture; without this operation
     * they take a batch with ATTN_BATCH_CAPTURE for one. (optional) [any thread] [capture-safe] */
    int (*is_capturing)(int32_t id, void *stream, uint32_t *capturing, attn_error_t *error);

    /* What is put on the stream from here on runs after `event`, as it was last recorded. Layers over ranks
     * exchange one part of a prompt beside attention to another with it; without it they do so by turns. A
     * stream that waits for an event of one that is captured is captured with it, event_record included.
     * (optional, needs events) [any thread] [capture-safe] */
    int (*stream_wait)(int32_t id, void *stream, void *event, attn_error_t *error);
    /* As stream_create; of what is ready on several streams, this one's is begun first. NULL: as
     * stream_create. (optional, needs streams) [any thread] */
    int (*stream_create_first)(int32_t id, void **stream, attn_error_t *error);
} attn_device_kind_t;

/* ---------------------------------------------- for engines: functions of libattn */

/*
 * The kind of a DLDeviceType: one of libattn's own, or of a plugin that this process has loaded; NULL:
 * nobody knows it. Valid until the process ends; members that its plugin's header lacked are NULL. [any
 * thread]
 */
const attn_device_kind_t *attn_device_kind(int32_t type);
/* Kind number index: cpu, cuda, then those of plugins in the order in which they were loaded; NULL past
 * the end. [any thread] */
const attn_device_kind_t *attn_device_kind_at(uint32_t index);

#ifdef __cplusplus
}
#endif
#endif
