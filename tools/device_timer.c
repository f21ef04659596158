/* SPDX-License-Identifier: Apache-2.0 */
/* device_timer.c: streams, events and graphs through the CUDA driver's own entry points. */
#include "device_timer.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

/* The driver calls that are used, with the driver's signatures. */
typedef struct timer_driver {
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    int (*event_time)(float *milliseconds, void *first, void *last);
    int (*begin_capture)(void *stream, int mode);
    int (*end_capture)(void *stream, void **graph);
    int (*instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*graph_destroy)(void *graph);
    int (*exec_destroy)(void *exec);
    int (*launch)(void *exec, void *stream);
} timer_driver_t;
static const char *const driver_names[] = {
    "cuStreamCreate",     "cuStreamDestroy_v2",          "cuEventCreate",      "cuEventDestroy_v2",
    "cuEventRecord",      "cuEventSynchronize",          "cuEventElapsedTime", "cuStreamBeginCapture_v2",
    "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphDestroy",     "cuGraphExecDestroy",
    "cuGraphLaunch"};
enum { NON_BLOCKING = 1, CAPTURE_THREAD_LOCAL = 1 };

struct device_timer {
    timer_driver_t cuda;
    void *stream, *first, *last, *exec;
};

device_timer_t *device_timer_open(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    device_timer_t *timer = library != NULL ? calloc(1, sizeof *timer) : NULL;
    if (timer == NULL) return NULL;
    void **slots = (void **)&timer->cuda; /* POSIX: a function pointer fits and is had from dlsym this way */
    int failed = 0;
    for (size_t i = 0; i < sizeof driver_names / sizeof driver_names[0]; i++)
        failed |= (slots[i] = dlsym(library, driver_names[i])) == NULL;
    if (!failed && timer->cuda.stream_create(&timer->stream, NON_BLOCKING) == 0 &&
        timer->cuda.event_create(&timer->first, 0) == 0 && timer->cuda.event_create(&timer->last, 0) == 0)
        return timer;
    free(timer);
    return NULL;
}

static void drop_graph(device_timer_t *timer) {
    if (timer->exec != NULL) timer->cuda.exec_destroy(timer->exec);
    timer->exec = NULL;
}

void device_timer_close(device_timer_t *timer) {
    if (timer == NULL) return;
    drop_graph(timer);
    timer->cuda.event_destroy(timer->first);
    timer->cuda.event_destroy(timer->last);
    timer->cuda.stream_destroy(timer->stream);
    free(timer);
}

void *device_timer_stream(const device_timer_t *timer) {
    return timer->stream;
}

static int replay(void *user, void *stream) {
    device_timer_t *timer = user;
    return timer->cuda.launch(timer->exec, stream);
}

double device_timer_calls(device_timer_t *timer, device_work_t *work, void *user, int times) {
    float milliseconds = 0;
    int failed = timer->cuda.event_record(timer->first, timer->stream);
    for (int i = 0; i < times && failed == 0; i++)
        failed = work(user, timer->stream);
    if (failed != 0 || timer->cuda.event_record(timer->last, timer->stream) != 0 ||
        timer->cuda.event_wait(timer->last) != 0 ||
        timer->cuda.event_time(&milliseconds, timer->first, timer->last) != 0)
        return -1;
    return (double)milliseconds * 1e-3 / times;
}

int device_timer_record(device_timer_t *timer, device_work_t *work, void *user) {
    void *graph = NULL;
    drop_graph(timer);
    if (timer->cuda.begin_capture(timer->stream, CAPTURE_THREAD_LOCAL) != 0) return -1;
    int failed = work(user, timer->stream);
    if (timer->cuda.end_capture(timer->stream, &graph) != 0 || graph == NULL) return -1;
    if (failed == 0) failed = timer->cuda.instantiate(&timer->exec, graph, 0);
    timer->cuda.graph_destroy(graph);
    return failed;
}

double device_timer_replays(device_timer_t *timer, int times) {
    return timer->exec != NULL ? device_timer_calls(timer, replay, timer, times) : -1;
}
