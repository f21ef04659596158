/* SPDX-License-Identifier: Apache-2.0 */
/* device_timer.c: streams, events and graphs of a device's kind. */
#include "measure/device_timer.h"

#include <attn/attn_plugin_util.h>
#include <stdlib.h>

#include "tensor/device_memory.h"

struct device_timer {
    const attn_device_kind_t *kind;
    int32_t id;
    void *stream, *first, *last, *graph;
};

static void drop_graph(device_timer_t *timer) {
    if (timer->graph != NULL) timer->kind->graph_destroy(timer->id, timer->graph);
    timer->graph = NULL;
}

void device_timer_close(device_timer_t *timer) {
    if (timer == NULL) return;
    drop_graph(timer);
    if (timer->first != NULL) timer->kind->event_destroy(timer->id, timer->first);
    if (timer->last != NULL) timer->kind->event_destroy(timer->id, timer->last);
    if (timer->stream != NULL) timer->kind->stream_destroy(timer->id, timer->stream);
    free(timer);
}

device_timer_t *device_timer_open(const attn_device_t *device, attn_error_t *error) {
    const attn_device_kind_t *kind = device_kind_of(device, error);
    if (kind == NULL) return NULL;
    if (kind->event_create == NULL) {
        attn_fail(error, ATTN_E_UNSUPPORTED, "device", "device kind %s has no streams and events for timing",
                  kind->name);
        return NULL;
    }
    device_timer_t *timer = calloc(1, sizeof *timer);
    if (timer == NULL) {
        attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory");
        return NULL;
    }
    timer->kind = kind;
    timer->id = device->id;
    if (kind->stream_create(timer->id, &timer->stream, error) == ATTN_OK &&
        kind->event_create(timer->id, &timer->first, error) == ATTN_OK &&
        kind->event_create(timer->id, &timer->last, error) == ATTN_OK)
        return timer;
    device_timer_close(timer);
    return NULL;
}

void *device_timer_stream(const device_timer_t *timer) {
    return timer->stream;
}

int device_timer_copy(device_timer_t *timer, void *to, const void *from, size_t bytes) {
    return timer->kind->copy_within(timer->id, to, from, bytes, timer->stream, NULL);
}

static int replay(void *user, void *stream) {
    const device_timer_t *timer = user;
    return timer->kind->graph_launch(timer->id, timer->graph, stream, NULL);
}

double device_timer_calls(device_timer_t *timer, device_work_t *work, void *user, int times) {
    const attn_device_kind_t *kind = timer->kind;
    double seconds = 0;
    int failed = kind->event_record(timer->id, timer->first, timer->stream, NULL);
    for (int i = 0; i < times && failed == 0; i++)
        failed = work(user, timer->stream);
    if (failed != 0 || kind->event_record(timer->id, timer->last, timer->stream, NULL) != 0 ||
        kind->event_seconds(timer->id, timer->first, timer->last, &seconds, NULL) != 0)
        return -1;
    return seconds / times;
}

int device_timer_record(device_timer_t *timer, device_work_t *work, void *user) {
    const attn_device_kind_t *kind = timer->kind;
    drop_graph(timer);
    if (kind->capture_begin == NULL || kind->capture_begin(timer->id, timer->stream, 0, NULL) != 0) return -1;
    const int failed = work(user, timer->stream);
    if (kind->capture_end(timer->id, timer->stream, &timer->graph, NULL) != 0) return -1;
    return failed;
}

double device_timer_replays(device_timer_t *timer, int times) {
    return timer->graph != NULL ? device_timer_calls(timer, replay, timer, times) : -1;
}
