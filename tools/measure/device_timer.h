/* SPDX-License-Identifier: Apache-2.0 */
/* device_timer.h: device time of calls, launched one by one or replayed as a graph. */
#ifndef ATTN_TOOLS_DEVICE_TIMER_H
#define ATTN_TOOLS_DEVICE_TIMER_H

#include <attn/draft/attn_device.h>

typedef struct device_timer device_timer_t;

/* Enqueues work on a stream; 0 on success. */
typedef int device_work_t(void *user, void *stream);

/* NULL after filling *error: the device is not here, or its kind has no streams and events. */
device_timer_t *device_timer_open(const attn_device_t *device, attn_error_t *error);
void device_timer_close(device_timer_t *timer);
void *device_timer_stream(const device_timer_t *timer);
/* A copy of bytes within the device, at the end of the timer's stream; 0 on success. */
int device_timer_copy(device_timer_t *timer, void *to, const void *from, size_t bytes);
/* Enqueues the work `times` times and waits. Seconds of device time for one; negative on failure. */
double device_timer_calls(device_timer_t *timer, device_work_t *work, void *user, int times);
/* The work as a graph; not 0 where it cannot be recorded. One graph at a time. */
int device_timer_record(device_timer_t *timer, device_work_t *work, void *user);
/* As device_timer_calls, for replays of the graph. */
double device_timer_replays(device_timer_t *timer, int times);

#endif
