/* SPDX-License-Identifier: Apache-2.0 */
/* thread_stops.c: thread_stops.h by a signal whose handler sleeps. */
#include "thread_stops.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct {
    pthread_t thread;
    struct sigaction before;
    DIR *tasks; /* /proc/self/task */
    int64_t stop_us;
    uint64_t random;
    volatile int is_over;
    int num_stops; /* by handlers */
} env;

static int stop_signal(void) {
    return SIGRTMIN + 1;
}

static void sleep_us(int64_t us) {
    const struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

static void on_stop(int signal) {
    const int kept = errno;
    (void)signal;
    __atomic_fetch_add(&env.num_stops, 1, __ATOMIC_RELAXED);
    sleep_us(env.stop_us);
    errno = kept;
}

static int64_t below(int64_t n) { /* xorshift64 */
    env.random ^= env.random << 13;
    env.random ^= env.random >> 7;
    env.random ^= env.random << 17;
    return (int64_t)(env.random % (uint64_t)n);
}

/* Does the thread run, or want to? One that waits is not in the middle of its work. */
static int is_running(const char *tid) {
    char path[64], stat[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%.16s/stat", tid);
    FILE *f = fopen(path, "r");
    if (f == NULL) return 0;
    const char *state = fgets(stat, sizeof stat, f) != NULL ? strrchr(stat, ')') : NULL;
    fclose(f);
    return state != NULL && state[1] == ' ' && state[2] == 'R';
}

/* A running thread of the process other than this one, or 0. */
static pid_t any_thread(void) {
    const pid_t self = (pid_t)syscall(SYS_gettid);
    pid_t chosen = 0;
    int64_t count = 0;
    rewinddir(env.tasks);
    for (struct dirent *e; (e = readdir(env.tasks)) != NULL;) {
        const pid_t tid = (pid_t)atoi(e->d_name);
        if (tid > 0 && tid != self && is_running(e->d_name) && below(++count) == 0) chosen = tid;
    }
    return chosen;
}

static void *stop_threads(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&env.is_over, __ATOMIC_ACQUIRE)) {
        const pid_t tid = any_thread();
        if (tid != 0) syscall(SYS_tgkill, getpid(), tid, stop_signal());
        sleep_us((tid != 0 ? env.stop_us : 0) + 1 + below(env.stop_us + 1));
    }
    return NULL;
}

int thread_stops_begin(int64_t stop_us, uint64_t seed) {
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    sigset_t all, was;
    env.stop_us = stop_us;
    env.random = seed | 1;
    env.num_stops = env.is_over = 0;
    if ((env.tasks = opendir("/proc/self/task")) == NULL) return -1;
    sigaction(stop_signal(), &stop, &env.before);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    const int rc = pthread_create(&env.thread, NULL, stop_threads, NULL);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    if (rc == 0) return 0;
    sigaction(stop_signal(), &env.before, NULL);
    closedir(env.tasks);
    return -1;
}

int thread_stops_end(void) {
    __atomic_store_n(&env.is_over, 1, __ATOMIC_RELEASE);
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    pthread_join(env.thread, NULL);
    sigaction(stop_signal(), &ignore, NULL); /* which drops what is on its way */
    sigaction(stop_signal(), &env.before, NULL);
    closedir(env.tasks);
    return env.num_stops;
}
