/* SPDX-License-Identifier: Apache-2.0 */
/* surroundings.c: floating point, signals, locale, folder, limits, environment and the calling thread, before
 * and after. */
#include "surroundings.h"

#include <attn/attn_plugin_util.h>

#include <dirent.h>
#include <dlfcn.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;

/* A flag that libc sets of its own accord whenever a handler is put in place; also when it is put back. */
enum { RESTORER = 0x04000000 };

enum { SEED = 20240607 };

/* Of the process and of the calling thread, by prctl; the scheduler's class; where memory is taken. */
static const char *const setting_names[SURROUNDINGS_SETTINGS] = {
    "whether huge pages are used (PR_SET_THP_DISABLE)",
    "the timer slack (PR_SET_TIMERSLACK)",
    "whether it leaves a core file (PR_SET_DUMPABLE)",
    "the signal at the end of its parent (PR_SET_PDEATHSIG)",
    "the scheduler's class (sched_setscheduler)",
    "from which nodes memory comes (set_mempolicy)"};
static void read_settings(int to[SURROUNDINGS_SETTINGS]) {
    to[0] = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);
    to[1] = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    to[2] = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
    if (prctl(PR_GET_PDEATHSIG, &to[3], 0, 0, 0) != 0) to[3] = -1;
    to[4] = sched_getscheduler(0);
    if (syscall(SYS_get_mempolicy, &to[5], NULL, 0, NULL, 0) != 0) to[5] = -1;
}

/* What the calling thread has told an OpenMP runtime, which it shares with the program. */
static const char *const openmp_names[SURROUNDINGS_OPENMP] = {"omp_get_max_threads", "omp_get_dynamic",
                                                              "omp_get_max_active_levels"};
static void read_openmp(int to[SURROUNDINGS_OPENMP]) {
    for (int i = 0; i < SURROUNDINGS_OPENMP; i++) {
        void *found = dlsym(RTLD_DEFAULT, openmp_names[i]);
        int (*get)(void) = NULL;
        memcpy(&get, &found, sizeof get);
        to[i] = get != NULL ? get() : -1;
    }
}

void surroundings_read(surroundings_t *s) {
    memset(s, 0, sizeof *s);
    s->rounding = fegetround();
#if defined(__x86_64__)
    s->control = __builtin_ia32_stmxcsr() & ~0x3fu;
    __asm__ volatile("fnstcw %0" : "=m"(s->x87));
#endif
    snprintf(s->locale, sizeof s->locale, "%s", setlocale(LC_ALL, NULL));
    if (getcwd(s->folder, sizeof s->folder) == NULL) s->folder[0] = '\0';
    s->mask = umask(0);
    umask(s->mask);
    for (int i = 1; i < 32; i++)
        sigaction(i, NULL, &s->signals[i]);
    pthread_sigmask(SIG_SETMASK, NULL, &s->blocked);
    sched_getaffinity(0, sizeof s->processors, &s->processors);
    pthread_getname_np(pthread_self(), s->thread, sizeof s->thread);
    s->priority = getpriority(PRIO_PROCESS, 0);
    unsigned short zeros[3] = {0, 0, 0};
    memcpy(s->seed, seed48(zeros), sizeof s->seed); /* says what it was, and has to be told again */
    seed48(s->seed);
    for (int i = 0; i < 3; i++) {
        struct stat file;
        getitimer((__itimer_which_t)i, &s->timers[i]);
        s->streams[i] = fstat(i, &file) == 0 ? file.st_ino : 0;
    }
    s->own_locale = uselocale((locale_t)0);
    sigaltstack(NULL, &s->stack);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &s->cancel);
    pthread_setcancelstate(s->cancel, NULL);
    read_settings(s->settings);
    read_openmp(s->openmp);
    for (int i = 0; i < SURROUNDINGS_LIMITS; i++)
        getrlimit((__rlimit_resource_t)i, &s->limits[i]);
}

int surroundings_set_threads(int n) {
    void *found[2] = {dlsym(RTLD_DEFAULT, "omp_get_max_threads"), dlsym(RTLD_DEFAULT, "omp_set_num_threads")};
    int (*get)(void) = NULL;
    void (*set)(int) = NULL;
    memcpy(&get, &found[0], sizeof get);
    memcpy(&set, &found[1], sizeof set);
    if (get == NULL || set == NULL) return 0;
    const int before = get();
    if (n > 0) set(n);
    return before;
}

/* The generator of rand is the process's own; its next number says whether it was seeded or used. */
void surroundings_seed(surroundings_t *s) {
    srand(SEED);
    s->number = rand();
    srand(SEED);
}

int surroundings_differ(const surroundings_t *before, const surroundings_t *now, char *text, size_t size) {
    text[0] = '\0';
    if (now->rounding != before->rounding) snprintf(text, size, "changed the rounding mode");
    if (now->control != before->control)
        snprintf(text, size, "changed MXCSR from 0x%x to 0x%x", before->control, now->control);
    if (now->x87 != before->x87)
        snprintf(text, size, "changed the control word of the x87 unit from 0x%x to 0x%x", before->x87,
                 now->x87);
    for (int i = 0; i < SURROUNDINGS_SETTINGS; i++)
        if (now->settings[i] != before->settings[i]) snprintf(text, size, "changed %s", setting_names[i]);
    for (int i = 0; i < SURROUNDINGS_OPENMP; i++)
        if (now->openmp[i] != before->openmp[i] && before->openmp[i] != -1)
            snprintf(text, size,
                     "changed what %s says from %d to %d; a num_threads clause concerns one region",
                     openmp_names[i], before->openmp[i], now->openmp[i]);
    if (strcmp(now->locale, before->locale) != 0) snprintf(text, size, "changed the locale");
    if (strcmp(now->folder, before->folder) != 0) snprintf(text, size, "changed the working directory");
    if (!CPU_EQUAL(&now->processors, &before->processors))
        snprintf(text, size, "changed the processors that the calling thread may use");
    if (strcmp(now->thread, before->thread) != 0) snprintf(text, size, "changed the calling thread's name");
    if (now->priority != before->priority) snprintf(text, size, "changed the priority");
    if (memcmp(now->limits, before->limits, sizeof now->limits) != 0)
        snprintf(text, size, "changed a resource limit (setrlimit)");
    for (int i = 1; i < 32; i++)
        if (sigismember(&now->blocked, i) != sigismember(&before->blocked, i))
            snprintf(text, size, "changed which signals are blocked (%s)", strsignal(i));
    if (before->number != 0) {
        if (rand() != before->number)
            snprintf(text, size, "seeded or used rand, which belongs to the program");
        srand(SEED);
    }
    if (memcmp(now->seed, before->seed, sizeof now->seed) != 0)
        snprintf(text, size, "seeded or used drand48 or its like, which belong to the program");
    for (int i = 0; i < 3; i++) {
        if ((now->timers[i].it_value.tv_sec | now->timers[i].it_value.tv_usec) != 0 &&
            (before->timers[i].it_value.tv_sec | before->timers[i].it_value.tv_usec) == 0)
            snprintf(text, size, "started a timer (setitimer)");
        if (now->streams[i] != before->streams[i])
            snprintf(text, size, "closed or replaced descriptor %d, which is the program's", i);
    }
    if (now->own_locale != before->own_locale) snprintf(text, size, "changed the calling thread's locale");
    if (now->stack.ss_sp != before->stack.ss_sp || now->stack.ss_flags != before->stack.ss_flags)
        snprintf(text, size, "changed the calling thread's stack for signals");
    if (now->cancel != before->cancel)
        snprintf(text, size, "changed whether the calling thread can be cancelled");
    if (now->mask != before->mask) snprintf(text, size, "changed the umask");
    for (int i = 1; i < 32; i++)
        if (now->signals[i].sa_handler != before->signals[i].sa_handler ||
            (now->signals[i].sa_flags & ~RESTORER) != (before->signals[i].sa_flags & ~RESTORER))
            snprintf(text, size, "changed the handler of signal %d (%s)", i, strsignal(i));
    return text[0] != '\0';
}

int count_entries(const char *folder) {
    DIR *d = opendir(folder);
    int count = 0;
    while (d != NULL && readdir(d) != NULL)
        count++;
    if (d != NULL) closedir(d);
    return count;
}

uint64_t environment_print(void) {
    uint64_t h = 1;
    for (char **e = environ; e != NULL && *e != NULL; e++)
        h = attn_fingerprint64(h, *e, strlen(*e) + 1);
    return h;
}
