/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that knows OpenMP. Iterations are handed out one by one: the plan has put the longest first.
 *
 * Two things about GNU's run-time library are dealt with here. Its pool of threads does not survive fork(): a
 * region in the child waits for threads that stayed in the parent. And it ends the process when a thread
 * cannot start. */
#include "cpu_threads.h"

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

int cpu_max_threads(void) {
    return omp_get_max_threads();
}

/* Whether this process may run regions: it is the one that ran the first. */
static int is_home(void) {
    static _Atomic pid_t home;
    pid_t self = getpid(), none = 0;
    return atomic_load_explicit(&home, memory_order_relaxed) == self ||
           atomic_compare_exchange_strong(&home, &none, self);
}

enum { MAX_TRIED = 2048, RETRY_SECONDS = 1 };

static void *wait_for_end(void *end) {
    while (sem_wait(end) != 0) {
    }
    return NULL;
}

/* Whether `count` more threads can live at once. */
static int can_start(int count) {
    pthread_t threads[MAX_TRIED];
    sem_t end;
    int started = 0;
    if (count > MAX_TRIED) count = MAX_TRIED;
    if (sem_init(&end, 0, 0) != 0) return 0;
    while (started < count && pthread_create(&threads[started], NULL, wait_for_end, &end) == 0)
        started++;
    for (int i = 0; i < started; i++)
        sem_post(&end);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    sem_destroy(&end);
    return started == count;
}

/* OpenMP keeps a pool for each thread that runs regions. Before one grows, twice its threads are started for
 * a moment: so many, as the kernel counts those that have just ended for a while. A refusal holds for a
 * second. */
static int can_have_team(int threads) {
    static _Thread_local int proven = 1;
    static _Thread_local time_t refused;
    struct timespec now;
    if (threads <= proven) return 1;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (refused != 0 && now.tv_sec - refused <= RETRY_SECONDS) return 0;
    if (can_start(2 * (threads - 1))) {
        proven = threads;
        return 1;
    }
    refused = now.tv_sec > 0 ? now.tv_sec : 1;
    return 0;
}
#else
int cpu_max_threads(void) {
    return 1;
}
#endif

void cpu_run_loops(int threads, const struct cpu_loop *loops, int num_loops, void *arg) {
#ifdef _OPENMP
    if (threads > 1 && is_home() && can_have_team(threads)) {
#pragma omp parallel num_threads(threads)
        for (int l = 0; l < num_loops; l++) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < loops[l].n; i++)
                loops[l].fn(arg, i, omp_get_thread_num());
        }
        return;
    }
#endif
    (void)threads;
    for (int l = 0; l < num_loops; l++)
        for (int64_t i = 0; i < loops[l].n; i++)
            loops[l].fn(arg, i, 0);
}
