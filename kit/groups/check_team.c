/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_team.c: part of group manners, the threads of an OpenMP runtime. They are the engine's too: what a
 * plugin changes in them, rounding, small numbers taken for 0, the processors they may run on, holds for
 * every region after it.
 */
#include "../run/check_engine.h"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

enum { MOST_THREADS = 64 };
typedef struct team {
    int count;
    struct {
        pid_t id;
        unsigned control; /* MXCSR without its status flags; 0 where there is none */
        cpu_set_t processors;
    } threads[MOST_THREADS];
} team_t;

static void in_each(void *data) {
    team_t *t = data;
    const int i = __atomic_fetch_add(&t->count, 1, __ATOMIC_RELAXED);
    if (i >= MOST_THREADS) return;
    t->threads[i].id = gettid();
    sched_getaffinity(0, sizeof t->threads[i].processors, &t->threads[i].processors);
#if defined(__x86_64__)
    t->threads[i].control = __builtin_ia32_stmxcsr() & ~0x3fu;
#endif
}

/* What a region of the engine would find. */
typedef void region_t(void (*body)(void *data), void *data, unsigned num_threads, unsigned flags);
static void read_team(region_t *region, team_t *t) {
    memset(t, 0, sizeof *t);
    region(in_each, t, 4, 0);
    if (t->count > MOST_THREADS) t->count = MOST_THREADS;
}

static void same_team(check_t *c) {
    static team_t before, after;
    kit_case_t k;
    void *runtime = dlopen("libgomp.so.1", RTLD_NOW | RTLD_NOLOAD);
    region_t *region = NULL;
    if (runtime != NULL) *(void **)&region = dlsym(runtime, "GOMP_parallel");
    if (region == NULL) {
        check_skip(c, "it uses no OpenMP runtime of GNU");
        return;
    }
    if (!check_start(c, &k)) return;
    if (attn_role_has_cache(k.problem.role)) {
        k.problem.max_model_len = 4096;
        kit_case_add(&k, 1, 3000);
        kit_case_add(&k, 60, 200);
    }
    read_team(region, &before);
    check_run(c, c->backend, &k, NULL);
    read_team(region, &after);
    for (int i = 0; i < after.count; i++) {
        int j = 0; /* a thread that is new is like the one that begins the region */
        for (int n = 0; n < before.count; n++)
            if (before.threads[n].id == after.threads[i].id) j = n;
        if (after.threads[i].control != before.threads[j].control)
            check_fail(
                c,
                "a thread of the OpenMP runtime has MXCSR 0x%x after a run, it had 0x%x; set it back in each",
                after.threads[i].control, before.threads[j].control);
        if (!CPU_EQUAL(&after.threads[i].processors, &before.threads[j].processors))
            check_fail(c,
                       "a thread of the OpenMP runtime may run on %d processors after a run, before on %d; "
                       "or others",
                       CPU_COUNT(&after.threads[i].processors), CPU_COUNT(&before.threads[j].processors));
    }
}

void check_team_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "manners", CHECK_RUNS_ON_CPU, same_team, 0, "the OpenMP threads are as before");
}
