/* SPDX-License-Identifier: Apache-2.0 */
/* check_children.c: a pool of child processes, one a check; results come in the order of the checks. */
#include "check_children.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct slot {
    const struct check_entry *entry; /* NULL: free */
    check_report_t *report;          /* shared with the child */
    int printed;                     /* a file that takes what the child prints */
    pid_t child;                     /* 0: has ended, or there is none */
    struct timespec start;
} slot_t;

int check_usual_jobs(void) {
    cpu_set_t set;
    const int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > CHECK_MAX_JOBS ? CHECK_MAX_JOBS : n;
}

/* Where others run beside it, an OpenMP runtime gets its share of the processors: as many pools of threads as
 * checks, each of all processors and spinning, would take many times as long. */
static void share_processors(int jobs) {
    void (*set)(int) = NULL;
    void *found = jobs > 1 ? dlsym(RTLD_DEFAULT, "omp_set_num_threads") : NULL;
    const int share = check_usual_jobs() / jobs;
    if (found == NULL) return;
    memcpy(&set, &found, sizeof set);
    set(share > 1 ? share : 1);
}

/* What a case frees the next one takes again, instead of the kernel taking it back and clearing it once more:
 * that was half of a check's time. */
static void keep_freed_memory(void) {
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

static void run_in_child(check_t *c, const slot_t *s, int jobs) {
    share_processors(jobs);
    keep_freed_memory();
    dup2(s->printed, STDOUT_FILENO);
    dup2(s->printed, STDERR_FILENO);
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigaction(SIGABRT, &plain, NULL);
    sigaction(SIGSEGV, &plain, NULL);
    sigaction(SIGBUS, &plain, NULL);
    check_wait_after_calls(c->memory);
    s->entry->run(c);
    fflush(NULL);
    s->report->is_done = 1;
    _exit(0);
}

/* 1 if the check has nothing to run on, which the report says. */
static int is_skipped(check_t *c, const struct check_entry *e) {
    if (e->needs_device != CHECK_TABLES && !c->is_device_here)
        check_skip(c, "there is no device that %s runs on", c->raw->name);
    else if (e->needs_device == CHECK_RUNS_ON_CPU && c->memory->kind != NULL)
        check_skip(c, "needs host memory");
    return c->report->is_skipped;
}

static void start(check_t *c, slot_t *s, const struct check_entry *e, int jobs) {
    s->entry = e;
    c->report = s->report;
    c->arg = e->arg;
    c->role = e->role;
    memset(s->report, 0, sizeof *s->report);
    if (ftruncate(s->printed, 0) != 0 || lseek(s->printed, 0, SEEK_SET) != 0)
        check_fail(c, "%s", strerror(errno));
    if (is_skipped(c, e)) return;
    clock_gettime(CLOCK_MONOTONIC, &s->start);
    fflush(NULL);
    s->child = fork();
    if (s->child == 0) run_in_child(c, s, jobs);
    if (s->child > 0) return;
    check_fail(c, "no child process: %s", strerror(errno));
    s->child = 0;
}

/* What the child could not say itself is added to its report. */
static void judge(check_t *c, slot_t *s, int status, unsigned late_s) {
    struct timespec now;
    s->child = 0;
    c->report = s->report;
    clock_gettime(CLOCK_MONOTONIC, &now);
    c->report->seconds =
        (double)(now.tv_sec - s->start.tv_sec) + (double)(now.tv_nsec - s->start.tv_nsec) * 1e-9;
    if (!c->report->is_failed && lseek(s->printed, 0, SEEK_END) > 0 && late_s == 0 && !WIFSIGNALED(status) &&
        c->report->is_done)
        check_fail(c, "it prints; messages belong to the log function of attn_host_t");
    if (late_s != 0)
        check_fail(c, "timed out after %u s", late_s);
    else if (WIFSIGNALED(status))
        check_fail(c, "the process ended with signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (!c->report->is_done)
        check_fail(c, "the process exited with status %d", WEXITSTATUS(status));
}

static void end(slot_t *s, int *status) {
    kill(s->child, SIGKILL);
    while (waitpid(s->child, status, 0) < 0 && errno == EINTR) {
    }
}

/* 1 if a child has ended, by itself or for being late. */
static int look(check_t *c, slot_t *s) {
    ATTN_INIT(attn_device_t, device);
    struct timespec now;
    int status = 0;
    const pid_t got = waitpid(s->child, &status, WNOHANG);
    if (got == s->child || (got < 0 && errno != EINTR)) {
        judge(c, s, status, 0);
        return 1;
    }
    check_device(c, &device);
    const unsigned usual_s = device.type == kDLCPU ? 60 : 180; /* opening may compile */
    const unsigned limit_s = c->options->timeout_s != 0 ? c->options->timeout_s : usual_s;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if ((unsigned)(now.tv_sec - s->start.tv_sec) < limit_s) return 0;
    end(s, &status);
    judge(c, s, status, limit_s);
    return 1;
}

/* Enters those that there is room for, waits until the oldest has ended, and tells it. */
static void run_all(check_t *c, slot_t *slots, int num_slots, const struct check_entry *const *entries,
                    int count, int jobs, int (*told)(void *, const struct check_entry *, int), void *user) {
    int next = 0, running = 0;
    struct timespec pause = {0, 1000 * 1000};
    for (int oldest = 0; oldest < count;) {
        while (next < count && next < oldest + num_slots && running < jobs) {
            slot_t *s = &slots[next % num_slots];
            start(c, s, entries[next++], jobs);
            running += s->child != 0;
        }
        int has_ended = 0;
        for (int i = oldest; i < next; i++)
            if (slots[i % num_slots].child != 0 && look(c, &slots[i % num_slots])) has_ended++;
        running -= has_ended;
        slot_t *s = &slots[oldest % num_slots];
        if (s->child == 0) {
            c->report = s->report;
            oldest++;
            if (told(user, s->entry, s->printed) != 0) return;
            pause.tv_nsec = 1000 * 1000;
        } else if (has_ended == 0) { /* in steps that grow from a millisecond to twenty */
            nanosleep(&pause, NULL);
            if (pause.tv_nsec < 20 * 1000 * 1000) pause.tv_nsec += 1000 * 1000;
        }
    }
}

int check_run_children(check_t *c, const struct check_entry *const *entries, int count, int jobs,
                       int (*told)(void *user, const struct check_entry *e, int printed), void *user) {
    enum { AHEAD = 4 }; /* a long check holds back the results of the next ones, not their runs */
    const int num_slots = jobs > 1 ? AHEAD * jobs : 1;
    const size_t bytes = (size_t)num_slots * sizeof(check_report_t);
    check_report_t *before = c->report;
    slot_t *slots = calloc((size_t)num_slots, sizeof *slots);
    check_report_t *reports = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int is_ready = slots != NULL && reports != MAP_FAILED, opened = 0;
    for (; is_ready && opened < num_slots; opened++) {
        slots[opened].report = &reports[opened];
        slots[opened].printed = memfd_create("attn-check", MFD_CLOEXEC);
        if (slots[opened].printed < 0) is_ready = 0;
    }
    if (is_ready) run_all(c, slots, num_slots, entries, count, jobs, told, user);
    for (int i = 0; i < opened; i++) {
        int status;
        if (slots[i].child != 0) end(&slots[i], &status);
        if (slots[i].printed >= 0) close(slots[i].printed);
    }
    if (reports != MAP_FAILED) munmap(reports, bytes);
    free(slots);
    c->report = before;
    return is_ready ? 0 : -1;
}
