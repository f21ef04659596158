/* SPDX-License-Identifier: Apache-2.0 */
/* device_timer.h: device time of calls on a GPU, launched one by one or replayed as a graph. */
#ifndef ATTN_TOOLS_DEVICE_TIMER_H
#define ATTN_TOOLS_DEVICE_TIMER_H

typedef struct device_timer device_timer_t;

/* Enqueues work on a stream; 0 on success. */
typedef int device_work_t(void *user, void *stream);

/* For the device of the current context, that is after device_memory_open. NULL: no such driver. */
device_timer_t *device_timer_open(void);
void device_timer_close(device_timer_t *timer);
void *device_timer_stream(const device_timer_t *timer);
/* Enqueues the work `times` times and waits. Seconds of device time for one; negative on failure. */
double device_timer_calls(device_timer_t *timer, device_work_t *work, void *user, int times);
/* The work as a graph, or NULL where it cannot be recorded. One graph at a time. */
int device_timer_record(device_timer_t *timer, device_work_t *work, void *user);
/* The same for replays of the graph. */
double device_timer_replays(device_timer_t *timer, int times);

#endif
