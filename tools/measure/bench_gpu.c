/* SPDX-License-Identifier: Apache-2.0 */
/* bench_gpu.c: sustained and burst times from graph replays. */
#include "measure/bench_gpu.h"

#include <stdlib.h>
#include <time.h>

#include "base/tool.h"

enum { MAX_SAMPLES = 4096, MAX_CALLS = 512 };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* So many calls at once. */
typedef struct repeated {
    device_work_t *work;
    void *user;
    int calls;
} repeated_t;

static int repeat(void *user, void *stream) {
    const repeated_t *r = user;
    int failed = 0;
    for (int i = 0; i < r->calls && failed == 0; i++)
        failed = r->work(r->user, stream);
    return failed;
}

static double sample(device_timer_t *timer, repeated_t *r, int is_graph) {
    double t = is_graph ? device_timer_replays(timer, 1) : device_timer_calls(timer, repeat, r, 1);
    return t < 0 ? t : t / r->calls;
}

/* The median of the samples of that many seconds, at least three; negative on failure. */
static double median_of(device_timer_t *timer, repeated_t *r, int is_graph, double seconds, double *least,
                        int *count) {
    static double values[MAX_SAMPLES];
    int n = 0;
    for (double end = tool_seconds() + seconds; n < MAX_SAMPLES && (n < 3 || tool_seconds() < end); n++)
        if ((values[n] = sample(timer, r, is_graph)) < 0) return -1;
    qsort(values, (size_t)n, sizeof values[0], by_value);
    if (least != NULL) *least = values[0];
    if (count != NULL) *count = n;
    return n % 2 != 0 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

int bench_gpu_time(device_timer_t *timer, device_work_t *work, void *user, int is_recorded,
                   gpu_times_t *times) {
    repeated_t r = {work, user, 1};
    double once = sample(timer, &r, 0); /* loads what is loaded lazily */
    if (once >= 0) once = sample(timer, &r, 0);
    if (once < 0) return -1;
    r.calls = once > 0 && once < 0.002 ? (int)(0.002 / once) + 1 : 1;
    if (r.calls > MAX_CALLS) r.calls = MAX_CALLS;
    double started = tool_seconds();
    if (repeat(&r, device_timer_stream(timer)) != 0) return -1;
    times->host = (tool_seconds() - started) / r.calls;
    int is_graph = is_recorded && device_timer_record(timer, repeat, &r) == 0;
    for (double end = tool_seconds() + 0.15; tool_seconds() < end;)
        if (sample(timer, &r, is_graph) < 0) return -1;
    times->sustained = median_of(timer, &r, is_graph, 0.3, &times->least, &times->samples);
    nanosleep(&(struct timespec){0, 120 * 1000 * 1000}, NULL);
    times->burst = median_of(timer, &r, is_graph, 0.012, NULL, NULL);
    return times->sustained < 0 || times->burst < 0 ? -1 : 0;
}
