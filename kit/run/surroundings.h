/* SPDX-License-Identifier: Apache-2.0 */
/* surroundings.h: what a plugin shares with its process: state of its own file, of the thread, of the
 * process. */
#ifndef ATTN_KIT_SURROUNDINGS_H
#define ATTN_KIT_SURROUNDINGS_H

#include <locale.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/types.h>

enum { SURROUNDINGS_LIMITS = 16, SURROUNDINGS_SETTINGS = 6, SURROUNDINGS_OPENMP = 3 };

typedef struct surroundings {
    int rounding;
    unsigned control; /* MXCSR without its status flags */
    char locale[64], folder[1024];
    mode_t mask;
    struct sigaction signals[32];
    sigset_t blocked; /* of the calling thread, as the next three */
    cpu_set_t processors;
    char thread[32];
    int priority;
    struct rlimit limits[SURROUNDINGS_LIMITS];
    int number;             /* that rand gives next; 0: not looked at */
    unsigned short seed[3]; /* of drand48 and its like */
    struct itimerval timers[3];
    locale_t own_locale; /* of the calling thread, as the next two */
    stack_t stack;
    int cancel;
    ino_t streams[3];                    /* what descriptors 0 to 2 are; 0: closed */
    unsigned short x87;                  /* its control word */
    int settings[SURROUNDINGS_SETTINGS]; /* of prctl and the scheduler; -1: not to be had */
    int openmp[SURROUNDINGS_OPENMP];     /* of the runtime that is loaded; -1: none */
} surroundings_t;

void surroundings_read(surroundings_t *s);
/* Tells the process's OpenMP runtime how many threads a region has (0: leaves it); returns what it was, or 0
 * where there is no such runtime. */
int surroundings_set_threads(int n);
/* Seeds rand, so that surroundings_differ can say whether it was used. */
void surroundings_seed(surroundings_t *s);
/* What differs, in text; 1 if something does. */
int surroundings_differ(const surroundings_t *before, const surroundings_t *now, char *text, size_t size);

int count_entries(const char *folder); /* of /proc/self/fd, /proc/self/task */
/* Name and value of every variable. */
uint64_t environment_print(void);

/* A fingerprint of everything that a loaded file can write besides the heap: its data, and this thread's copy
 * of its thread-local data. 0: it cannot be had. size: how many bytes. */
uint64_t globals_print(const char *path, size_t *size);

/* How loading the file, in a process of its own, and leaving it went; text is "" if nothing was amiss. */
typedef struct load_report {
    int is_done;
    char step[64], text[600];
} load_report_t;
void load_watch(const char *path, load_report_t *report);

/* 1 while the environment is watched: reads of it by code of the file at path are counted
 * (environment_reads). */
void environment_watch(const char *path);
int environment_reads(void);

#endif
