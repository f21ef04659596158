/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the CPU backend: all of OpenMP behind two functions. */
#ifndef CPU_THREADS_H
#define CPU_THREADS_H

#include <stdint.h>

/* Threads that a parallel region would get now; 1 without OpenMP. */
int cpu_max_threads(void);

/* One loop of a region: fn(arg, i, worker) for i in [0, n), worker in [0, threads). */
struct cpu_loop {
    int64_t n;
    void (*fn)(void *arg, int64_t i, int worker);
};

/* Runs the loops one after the other, each over all threads, in one region; the caller is a worker. One
 * thread runs all of it without a region, which also happens where there can be none: in a child of the
 * process that ran the first region, and while the system refuses to start threads. */
void cpu_run_loops(int threads, const struct cpu_loop *loops, int num_loops, void *arg);

#endif
