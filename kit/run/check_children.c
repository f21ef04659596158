/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_children.c: a pool of child processes; results come in the order of the checks. On the host each
 * check is a process of its own, which costs a millisecond. On a device it would cost a context, a few tenths
 * of a second of the driver's lock, so that checks that leave nothing behind share a process there, a few at
 * a time. One that fails beside others is run again alone: what it says then is what it says.
 */
#include "check_children.h"
#include "device_image.h"

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

enum {
    MAX_SHARED = 24 /* checks of one process */,
    SLOTS_A_JOB = 16,
    MAX_SLOTS = 400 /* each has a descriptor */
};

/* A check that has been entered, and not been told yet. */
typedef struct slot {
    const struct check_entry *entry;
    check_report_t *report; /* shared with the child */
    int printed;            /* a file that takes what the child prints */
    enum { WAITS, RUNS, HAS_ENDED } state;
    int is_alone;      /* it failed beside others, which is */
    char beside[120];  /* the check before it */
    char failure[900]; /* what it said then */
} slot_t;

/* A child and its checks, which it runs one after the other. */
typedef struct worker {
    pid_t child; /* 0: none */
    int count, at;
    int has_failed; /* slots[at - 1], which is the child's last */
    slot_t *slots[MAX_SHARED];
    struct timespec start; /* of slots[at], as seen from here */
} worker_t;

typedef struct pool {
    check_t *c;
    slot_t *slots;
    worker_t *workers;
    const struct check_entry *const *entries;
    int num_slots, jobs, count, next, oldest;
} pool_t;

int check_usual_jobs(void) {
    cpu_set_t set;
    const int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > CHECK_MAX_JOBS ? CHECK_MAX_JOBS : n;
}

static double seconds_since(const struct timespec *start) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) * 1e-9;
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

/* ------------------------------------------------------------------ in the child */

static void enter_check(check_t *c, const slot_t *s) {
    c->report = s->report;
    c->arg = s->entry->arg;
    c->role = s->entry->role;
    c->first_case = (struct timespec){0, 0};
}

/* Its checks in turn, to the first that fails: what that one left is not the next one's. */
static void run_in_child(const pool_t *p, const worker_t *w, const sigset_t *mask) {
    check_t *c = p->c;
    share_processors(p->jobs);
    keep_freed_memory();
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigaction(SIGABRT, &plain, NULL);
    sigaction(SIGSEGV, &plain, NULL);
    sigaction(SIGBUS, &plain, NULL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    check_wait_after_calls(c->memory);
    for (int i = 0; i < w->count; i++) {
        struct timespec start;
        const slot_t *s = w->slots[i];
        clock_gettime(CLOCK_MONOTONIC, &start);
        enter_check(c, s);
        dup2(s->printed, STDOUT_FILENO);
        dup2(s->printed, STDERR_FILENO);
        s->entry->run(c);
        fflush(NULL);
        s->report->seconds = seconds_since(&start);
        const int is_failed = s->report->is_failed;
        __atomic_store_n(&s->report->is_done, 1, __ATOMIC_RELEASE);
        if (is_failed) break;
        if (i + 1 < w->count) image_end();
    }
    _exit(0);
}

/* ------------------------------------------------------------------ in the parent */

/* 1 if the check has nothing to run on, which the report says. */
static int is_skipped(check_t *c, const struct check_entry *e) {
    if (e->needs_device != CHECK_TABLES && !c->is_device_here)
        check_skip(c, "there is no device that %s runs on", c->raw->name);
    else if (e->needs_device == CHECK_RUNS_ON_CPU && c->memory->kind != NULL)
        check_skip(c, "needs host memory");
    return c->report->is_skipped;
}

static void enter_slot(const pool_t *p, slot_t *s, const struct check_entry *e) {
    s->entry = e;
    s->is_alone = 0;
    memset(s->report, 0, sizeof *s->report);
    p->c->report = s->report;
    s->state = is_skipped(p->c, e) ? HAS_ENDED : WAITS;
}

/* An empty report and file; those of a check that runs again are not. */
static int empty_slot(const pool_t *p, slot_t *s) {
    memset(s->report, 0, sizeof *s->report);
    p->c->report = s->report;
    if (ftruncate(s->printed, 0) == 0 && lseek(s->printed, 0, SEEK_SET) == 0) return 1;
    check_fail(p->c, "%s", strerror(errno));
    s->state = HAS_ENDED;
    return 0;
}

static int can_share(const pool_t *p, const slot_t *s) {
    return s->entry->can_share && !s->is_alone && p->c->memory->kind != NULL;
}

/* The first check that waits, and others that may share its process: fewer towards the end, so that all
 * processors have some, and not neighbours, which are slow or quick together. */
static void choose(const pool_t *p, worker_t *w) {
    int waiting = 0, passed = 0;
    w->count = w->at = w->has_failed = 0;
    for (int i = p->oldest; i < p->next; i++)
        waiting += p->slots[i % p->num_slots].state == WAITS && can_share(p, &p->slots[i % p->num_slots]);
    const int fair = (waiting + p->jobs - 1) / p->jobs, most = fair < MAX_SHARED ? fair : MAX_SHARED;
    const int step = most > 0 ? waiting / most : 1;
    for (int i = p->oldest; i < p->next; i++) {
        slot_t *s = &p->slots[i % p->num_slots];
        if (s->state != WAITS || (w->count > 0 && !can_share(p, s))) continue;
        if (w->count > 0 && ++passed % step != 0) continue;
        if (!empty_slot(p, s)) continue;
        s->state = RUNS;
        w->slots[w->count++] = s;
        if (!can_share(p, s) || w->count >= most) return;
    }
}

static int start(const pool_t *p, worker_t *w, const sigset_t *mask) {
    choose(p, w);
    if (w->count == 0) return 0;
    clock_gettime(CLOCK_MONOTONIC, &w->start);
    fflush(NULL);
    w->child = fork();
    if (w->child == 0) run_in_child(p, w, mask);
    if (w->child > 0) return 1;
    for (int i = 0; i < w->count; i++) {
        p->c->report = w->slots[i]->report;
        check_fail(p->c, "no child process: %s", strerror(errno));
        w->slots[i]->state = HAS_ENDED;
    }
    w->child = 0;
    return 1;
}

/* A check has ended, alone or beside others. */
static void conclude(check_t *c, worker_t *w, int is_late) {
    slot_t *s = w->slots[w->at];
    s->state = HAS_ENDED;
    w->has_failed = s->report->is_failed;
    if (s->report->is_failed && w->at > 0 && !is_late) { /* again, alone */
        s->state = WAITS;
        s->is_alone = 1;
        snprintf(s->beside, sizeof s->beside, "%s", w->slots[w->at - 1]->entry->name);
        snprintf(s->failure, sizeof s->failure, "%s", s->report->text);
    } else if (s->is_alone && !s->report->is_failed) {
        check_fail(c, "it fails behind \"%s\" in one process, and passes alone: %s", s->beside, s->failure);
    }
    w->at++;
    clock_gettime(CLOCK_MONOTONIC, &w->start);
}

/* What the child could not say itself is added to its report. */
static void judge(check_t *c, worker_t *w, int status, unsigned late_s) {
    slot_t *s = w->slots[w->at];
    const int is_done = __atomic_load_n(&s->report->is_done, __ATOMIC_ACQUIRE);
    c->report = s->report;
    if (!is_done) s->report->seconds = seconds_since(&w->start);
    if (is_done && !s->report->is_failed && lseek(s->printed, 0, SEEK_END) > 0)
        check_fail(c, "it prints; messages belong to the log function of attn_host_t");
    else if (late_s != 0)
        check_fail(c, "timed out after %u s", late_s);
    else if (!is_done && WIFSIGNALED(status))
        check_fail(c, "the process ended with signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (!is_done)
        check_fail(c, "the process exited with status %d", WEXITSTATUS(status));
    conclude(c, w, late_s != 0);
}

static void end(worker_t *w, int *status) {
    kill(w->child, SIGKILL);
    while (waitpid(w->child, status, 0) < 0 && errno == EINTR) {
    }
}

static int judge_done(check_t *c, worker_t *w) {
    const int before = w->at;
    while (w->at < w->count && __atomic_load_n(&w->slots[w->at]->report->is_done, __ATOMIC_ACQUIRE))
        judge(c, w, 0, 0);
    return w->at - before;
}

/* The child is gone; what it did not begin waits for another one. */
static void retire(check_t *c, worker_t *w, int status, unsigned late_s) {
    w->child = 0;
    judge_done(c, w);
    if (w->at < w->count && !w->has_failed) judge(c, w, status, late_s);
    for (int i = w->at; i < w->count; i++)
        w->slots[i]->state = WAITS;
}

static unsigned limit_of(const check_t *c) {
    ATTN_INIT(attn_device_t, device);
    check_device(c, &device);
    const unsigned usual_s = device.type == kDLCPU ? 60 : 180; /* opening may compile */
    return c->options->timeout_s != 0 ? c->options->timeout_s : usual_s;
}

/* 1 if a check has ended, by itself or for being late. */
static int look(check_t *c, worker_t *w) {
    int status = 0;
    const pid_t got = waitpid(w->child, &status, WNOHANG);
    if (got == w->child || (got < 0 && errno != EINTR)) {
        retire(c, w, status, 0);
        return 1;
    }
    const int ended = judge_done(c, w);
    const unsigned limit_s = limit_of(c);
    if (w->at == w->count || seconds_since(&w->start) < limit_s) return ended > 0;
    end(w, &status);
    retire(c, w, status, limit_s);
    return 1;
}

/* Enters those that there is room for, waits until the oldest has ended, and tells it. */
static void run_all(pool_t *p, int (*told)(void *, const struct check_entry *, int), void *user) {
    const struct timespec pause = {0, 20 * 1000 * 1000};
    sigset_t children, mask;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, &mask);
    for (int is_over = 0; p->oldest < p->count && !is_over;) {
        int is_news = 0;
        for (; p->next < p->count && p->next < p->oldest + p->num_slots; p->next++)
            enter_slot(p, &p->slots[p->next % p->num_slots], p->entries[p->next]);
        for (int i = 0; i < p->jobs; i++)
            is_news |=
                p->workers[i].child == 0 ? start(p, &p->workers[i], &mask) : look(p->c, &p->workers[i]);
        while (p->oldest < p->next && !is_over) {
            const slot_t *s = &p->slots[p->oldest % p->num_slots];
            if (s->state != HAS_ENDED) break;
            p->c->report = s->report;
            p->oldest++;
            is_news = 1;
            is_over = told(user, s->entry, s->printed) != 0;
        }
        if (!is_news) sigtimedwait(&children, NULL, &pause); /* a child that ends, or a check in one */
    }
    sigprocmask(SIG_SETMASK, &mask, NULL);
}

int check_run_children(check_t *c, const struct check_entry *const *entries, int count, int jobs,
                       int (*told)(void *user, const struct check_entry *e, int printed), void *user) {
    /* a long check holds back the results of the next ones, not their runs */
    const int most = SLOTS_A_JOB * jobs < MAX_SLOTS ? SLOTS_A_JOB * jobs : MAX_SLOTS;
    pool_t p = {
        .c = c, .entries = entries, .count = count, .jobs = jobs, .num_slots = jobs > 1 ? most : MAX_SHARED};
    const size_t bytes = (size_t)p.num_slots * sizeof(check_report_t);
    check_report_t *before = c->report;
    p.slots = calloc((size_t)p.num_slots, sizeof *p.slots);
    p.workers = calloc((size_t)jobs, sizeof *p.workers);
    check_report_t *reports = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int is_ready = p.slots != NULL && p.workers != NULL && reports != MAP_FAILED, opened = 0;
    for (; is_ready && opened < p.num_slots; opened++) {
        p.slots[opened].report = &reports[opened];
        p.slots[opened].printed = memfd_create("attn-check", MFD_CLOEXEC);
        if (p.slots[opened].printed < 0) is_ready = 0;
    }
    if (is_ready) run_all(&p, told, user);
    for (int i = 0, status; is_ready && i < jobs; i++)
        if (p.workers[i].child != 0) end(&p.workers[i], &status);
    for (int i = 0; i < opened; i++)
        if (p.slots[i].printed >= 0) close(p.slots[i].printed);
    if (reports != MAP_FAILED) munmap(reports, bytes);
    free(p.workers);
    free(p.slots);
    c->report = before;
    return is_ready ? 0 : -1;
}
