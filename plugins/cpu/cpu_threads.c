/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that knows OpenMP. Iterations are handed out one by one: the plan has put the longest first. */
#include "cpu_threads.h"

#ifdef _OPENMP
#include <omp.h>

int cpu_max_threads(void) {
    return omp_get_max_threads();
}
#else
int cpu_max_threads(void) {
    return 1;
}
#endif

void cpu_run_loops(int threads, const struct cpu_loop *loops, int num_loops, void *arg) {
#ifdef _OPENMP
    if (threads > 1) {
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
