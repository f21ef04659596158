/* SPDX-License-Identifier: Apache-2.0 */
/* bench_gpu.h: time on a device other than the CPU as `attn bench` measures it, and the limits of that
 * device. */
#ifndef ATTN_TOOLS_BENCH_GPU_H
#define ATTN_TOOLS_BENCH_GPU_H

#include "tensor/device_memory.h"
#include "measure/device_timer.h"

/* Seconds of one call. Sustained: the median of 300 ms after 150 ms of the same load. Burst: the median of 12
 * ms after 120 ms of rest, before the power limit bites. */
typedef struct gpu_times {
    double sustained, burst, least;
    double host; /* seconds of the host for one call that is not replayed */
    int samples;
} gpu_times_t;

/* With is_recorded the work becomes a graph of so many calls that it takes 2 ms; without, and where it cannot
 * be recorded, it is launched as often. 0 on success. */
int bench_gpu_time(device_timer_t *timer, device_work_t *work, void *user, int is_recorded,
                   gpu_times_t *times);

/* Rates in GB/s and GFLOP/s by the sustained times and by those of a burst; 0: could not be measured. */
typedef struct gpu_ceilings {
    double read, read_burst;     /* every byte of 4 GiB, or of a quarter of the free memory, once */
    double copy, copy_burst;     /* the driver's copy, bytes read and written */
    double matmul, matmul_burst; /* cuBLAS, bfloat16, 8192 cubed, normal numbers */
} gpu_ceilings_t;

void bench_gpu_ceilings(const attn_device_t *device, device_memory_t *memory, device_timer_t *timer,
                        gpu_ceilings_t *c);

#endif
