/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_children.c: a pool of child processes; results come in the order of the checks. On the host each
 * check is a process of its own, which costs a millisecond. On a device it would cost a context, a few tenths
 * of a second of the driver's lock, so that checks that leave nothing behind share processes there: a child
 * that has ended one is given the next. One that fails behind others is run again alone: what it says then is
 * what it says.
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
    MAX_SHARED = 64 /* checks of one process */,
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

/* What a child has to run, in memory that both share: the parent adds to it. */
typedef struct work {
    int count, is_complete;
    int slots[MAX_SHARED], entries[MAX_SHARED];
} work_t;

/* A child and its checks, which it runs one after the other. */
typedef struct worker {
    pid_t child; /* 0: none */
    int count, at;
    int has_failed; /* slots[at - 1], which is the child's last */
    int is_shared;  /* it may be given more */
    slot_t *slots[MAX_SHARED];
    const struct check_entry *previous; /* the one before slots[at] */
    struct timespec start;              /* of slots[at], as seen from here */
    work_t *work;
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

double check_seconds_since(const struct timespec *start) {
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

static void enter_check(check_t *c, const struct check_entry *e, check_report_t *report) {
    c->report = report;
    c->arg = e->arg;
    c->role = e->role;
    c->first_case = (struct timespec){0, 0};
}

/* 1 once there is a check number i, 0 if there will be none. */
static int wait_for_work(const work_t *w, int i, pid_t parent) {
    const struct timespec pause = {0, 500 * 1000};
    while (__atomic_load_n(&w->count, __ATOMIC_ACQUIRE) <= i) {
        if (__atomic_load_n(&w->is_complete, __ATOMIC_ACQUIRE)) /* told after the last that was added */
            return __atomic_load_n(&w->count, __ATOMIC_ACQUIRE) > i;
        if (getppid() != parent) return 0;
        nanosleep(&pause, NULL);
    }
    return 1;
}

/* Its checks in turn, to the first that fails: what that one left is not the next one's. Of the slots it has
 * what never changes. */
static void run_in_child(const pool_t *p, const work_t *w, pid_t parent, const sigset_t *mask) {
    check_t *c = p->c;
    share_processors(p->jobs);
    keep_freed_memory();
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigaction(SIGABRT, &plain, NULL);
    sigaction(SIGSEGV, &plain, NULL);
    sigaction(SIGBUS, &plain, NULL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    check_wait_after_calls(c->memory);
    for (int i = 0; wait_for_work(w, i, parent); i++) {
        struct timespec start;
        const slot_t *s = &p->slots[w->slots[i]];
        const struct check_entry *e = p->entries[w->entries[i]];
        if (i > 0) image_end();
        clock_gettime(CLOCK_MONOTONIC, &start);
        enter_check(c, e, s->report);
        dup2(s->printed, STDOUT_FILENO);
        dup2(s->printed, STDERR_FILENO);
        e->run(c);
        fflush(NULL);
        s->report->seconds = check_seconds_since(&start);
        const int is_failed = s->report->is_failed;
        __atomic_store_n(&s->report->is_done, 1, __ATOMIC_RELEASE);
        kill(parent, SIGCHLD); /* news */
        if (is_failed) break;
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

/* The number of the first check that waits; is_shared: of those that may share a process. -1: none does. */
static int first_waiting(const pool_t *p, int is_shared) {
    for (int i = p->oldest; i < p->next; i++) {
        const slot_t *s = &p->slots[i % p->num_slots];
        if (s->state == WAITS && (!is_shared || can_share(p, s))) return i;
    }
    return -1;
}

/* Tells the child of one more check. */
static void add_work(const pool_t *p, worker_t *w, int entry) {
    slot_t *s = &p->slots[entry % p->num_slots];
    if (!empty_slot(p, s)) return;
    s->state = RUNS;
    clock_gettime(CLOCK_MONOTONIC, &w->start);
    w->work->slots[w->count] = entry % p->num_slots;
    w->work->entries[w->count] = entry;
    w->slots[w->count++] = s;
    __atomic_store_n(&w->work->count, w->count, __ATOMIC_RELEASE);
}

/* A child that has ended its check gets another one. It ends where there is none, or those that wait need
 * processes of their own. */
static void feed(const pool_t *p, worker_t *w) {
    const int next = first_waiting(p, 1), may_have_more = w->is_shared && w->count < MAX_SHARED;
    if (w->work->is_complete || (w->at < w->count && may_have_more)) return; /* one that was told so ends */
    if (may_have_more && next >= 0)
        add_work(p, w, next);
    else if (!may_have_more || p->next == p->count || first_waiting(p, 0) >= 0)
        __atomic_store_n(&w->work->is_complete, 1, __ATOMIC_RELEASE);
}

static int start(const pool_t *p, worker_t *w, const sigset_t *mask) {
    const pid_t parent = getpid();
    const int first = first_waiting(p, 0);
    if (first < 0) return 0;
    w->count = w->at = w->has_failed = w->work->count = w->work->is_complete = 0;
    w->is_shared = can_share(p, &p->slots[first % p->num_slots]);
    add_work(p, w, first);
    if (w->count == 0) return 1;
    feed(p, w);
    fflush(NULL);
    w->child = fork();
    if (w->child == 0) run_in_child(p, w->work, parent, mask);
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
        snprintf(s->beside, sizeof s->beside, "%s", w->previous->name);
        snprintf(s->failure, sizeof s->failure, "%s", s->report->text);
    } else if (s->is_alone && !s->report->is_failed) {
        check_fail(c, "it fails behind \"%s\" in one process, and passes alone: %s", s->beside, s->failure);
    }
    w->previous = s->entry;
    w->at++;
    clock_gettime(CLOCK_MONOTONIC, &w->start);
}

/* What the child could not say itself is added to its report. */
static void judge(check_t *c, worker_t *w, int status, unsigned late_s) {
    slot_t *s = w->slots[w->at];
    const int is_done = __atomic_load_n(&s->report->is_done, __ATOMIC_ACQUIRE);
    c->report = s->report;
    if (!is_done) s->report->seconds = check_seconds_since(&w->start);
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
static int look(const pool_t *p, worker_t *w) {
    check_t *c = p->c;
    int status = 0;
    const pid_t got = waitpid(w->child, &status, WNOHANG);
    if (got == w->child || (got < 0 && errno != EINTR)) {
        retire(c, w, status, 0);
        return 1;
    }
    const int ended = judge_done(c, w);
    if (!w->has_failed) feed(p, w);
    const unsigned limit_s = limit_of(c);
    if (w->at == w->count || check_seconds_since(&w->start) < limit_s) return ended > 0;
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
            is_news |= p->workers[i].child == 0 ? start(p, &p->workers[i], &mask) : look(p, &p->workers[i]);
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
    const size_t work_at = (size_t)p.num_slots * sizeof(check_report_t),
                 bytes = work_at + (size_t)jobs * sizeof(work_t);
    check_report_t *before = c->report;
    p.slots = calloc((size_t)p.num_slots, sizeof *p.slots);
    p.workers = calloc((size_t)jobs, sizeof *p.workers);
    check_report_t *reports = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int is_ready = p.slots != NULL && p.workers != NULL && reports != MAP_FAILED, opened = 0;
    for (int i = 0; is_ready && i < jobs; i++)
        p.workers[i].work = (work_t *)(void *)((char *)reports + work_at) + i;
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
