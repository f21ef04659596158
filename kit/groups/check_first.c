/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_first.c: group threads, the first calls of a process. What a plugin makes once for all instances,
 * tables and pools, two threads may want at the same time. So processes begin, in each of which one thread
 * is stopped in the middle of the first open, update_kv_cache, build_metadata or forward that there ever
 * was, while another does all of it.
 */
#include "../run/check_children.h"
#include "../run/check_engine.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum { IN_OPEN, IN_UPDATE, IN_BUILD, IN_FORWARD, NUM_PHASES };
static const char *const phase_names[NUM_PHASES] = {"open", "update_kv_cache", "build_metadata", "forward"};
enum {
    NUM_ROUNDS = 400,
    LEAST_ROUNDS = 24,
    MOST_MS = 1500,
    CHILD_S = 20,
    AHEAD_US = 100,
    EARLY_US = 10,
    LATE_US = 60,
    LEAST_STOP_US = 2000,
    MOST_STOP_US = 50000
};

/* Of a process, written by it and read by the one that began it. */
typedef struct first_round {
    int phase, is_stopping; /* not in the first, which takes the times */
    double delay_s;         /* from the start of that call until it is stopped */
    double phase_s[NUM_PHASES], all_s;
    int is_done;
    char wrong[400];
} first_round_t;

static struct {
    first_round_t *round;
    const check_t *check;
    const kit_case_t *k[2]; /* of the first thread, which is stopped, and of the second */
    const kit_inputs_t *in[2];
    int has_begun; /* that call, in the first thread */
    int can_stop;  /* 0: the signal is tried */
    volatile double came_s;
    int is_stopped;        /* or through with all of its calls */
    int is_second_through; /* with all of its calls */
    int64_t stop_us;
    kit_result_t got[2];
} env;

static double now(void) {
    const struct timespec zero = {0, 0};
    return check_seconds_since(&zero);
}

static int stop_signal(void) {
    return SIGRTMIN + 1;
}

/* The calls of the first thread, which has itself stopped: a timer of its own is exact on a busy
 * machine, where another thread comes too late to stop it. Its signal is late, by about as much each
 * time; the call begins by that much later. */
static timer_t stop_timer;
static double stop_in(double seconds) {
    const struct itimerspec when = {.it_value = {0, (long)(1e9 * seconds) + 1}};
    const double start = now();
    if (timer_settime(stop_timer, 0, &when, NULL) != 0) abort();
    return start + seconds;
}
static double begin(int phase) {
    struct sigevent to_this = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = stop_signal()};
    double late = 1;
    if (phase != env.round->phase || !env.round->is_stopping || env.has_begun) return now();
    env.has_begun = 1;
    to_this.sigev_notify_thread_id = gettid();
    if (timer_create(CLOCK_MONOTONIC, &to_this, &stop_timer) != 0) abort();
    for (int i = 0; i < 3; i++) {
        env.came_s = 0;
        const double due = stop_in(1e-6 * AHEAD_US);
        while (env.came_s == 0) /* on_stop */
            now();
        late = fmin(late, env.came_s - due);
    }
    env.can_stop = 1;
    for (const double due = stop_in(1e-6 * AHEAD_US + env.round->delay_s) - env.round->delay_s + late;
         now() < due;) {
    }
    return now();
}
static int open_seen(const attn_problem_t *problem, const attn_device_t *device,
                     const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                     attn_instance_t **instance, attn_error_t *error) {
    const double start = begin(IN_OPEN);
    const int status = shim_target()->ops->open(problem, device, options, num_options, host, instance, error);
    env.round->phase_s[IN_OPEN] = now() - start;
    return status;
}
static int update_seen(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                       attn_error_t *error) {
    const double start = begin(IN_UPDATE);
    const int status = shim_target()->ops->update_kv_cache(instance, args, stream, error);
    env.round->phase_s[IN_UPDATE] = now() - start; /* of the last one */
    return status;
}
static int build_seen(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                      void *stream, attn_error_t *error) {
    const double start = begin(IN_BUILD);
    const int status = shim_target()->ops->build_metadata(instance, batch, space, stream, error);
    env.round->phase_s[IN_BUILD] = now() - start;
    return status;
}
static int forward_seen(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                        void *stream, attn_error_t *error) {
    const double start = begin(IN_FORWARD);
    const int status = shim_target()->ops->forward(instance, args, space, stream, error);
    env.round->phase_s[IN_FORWARD] = now() - start;
    return status;
}
static const attn_backend_ops_t seen_ops = {
    .open = open_seen, .update_kv_cache = update_seen, .build_metadata = build_seen, .forward = forward_seen};

/* Until the other is through, or for as long as that should take, since it may wait for this one. */
static void on_stop(int signal) {
    const int kept = errno;
    const struct timespec t = {0, 100000};
    (void)signal;
    if (!env.can_stop) {
        env.came_s = now();
        return;
    }
    __atomic_store_n(&env.is_stopped, 1, __ATOMIC_RELEASE);
    for (const double start = now(); !__atomic_load_n(&env.is_second_through, __ATOMIC_ACQUIRE) &&
                                     now() - start < 1e-6 * (double)env.stop_us;)
        nanosleep(&t, NULL);
    errno = kept;
}

static void *run_first(void *backend) {
    kit_run(backend, env.k[0], env.in[0], env.check->memory, &env.got[0]);
    __atomic_store_n(&env.is_stopped, 1, __ATOMIC_RELEASE); /* also where a call before that one failed */
    return NULL;
}

/* What is wrong with the result of one of the two, into the round's text; 0 without an answer of the
 * oracle. */
static int compare(const char *whose, int i) {
    first_round_t *r = env.round;
    const kit_result_t *got = &env.got[i];
    kit_result_t want;
    if (got->status != ATTN_OK) {
        snprintf(r->wrong, sizeof r->wrong, "%s: %s: %.300s", whose, got->operation, got->error.text);
        return 1;
    }
    if (kit_run_oracle(&kit_oracle, env.k[i], env.in[i], &want) != ATTN_OK) return 0;
    const kit_difference_t d = kit_compare(env.k[i], got, &want);
    if (!d.is_close) snprintf(r->wrong, sizeof r->wrong, "%s: %.300s", whose, d.text);
    return 1;
}

/* The process of one round. */
static void live(void) {
    first_round_t *r = env.round;
    const struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    pthread_t first;
    sigaction(stop_signal(), &stop, NULL);
    const double start = now();
    if (pthread_create(&first, NULL, run_first, (void *)shim_make(env.check->backend, &seen_ops)) != 0)
        _exit(2);
    if (r->is_stopping) {
        while (!__atomic_load_n(&env.is_stopped, __ATOMIC_ACQUIRE))
            sched_yield();
        kit_run(env.check->backend, env.k[1], env.in[1], env.check->memory, &env.got[1]);
        __atomic_store_n(&env.is_second_through, 1, __ATOMIC_RELEASE);
    }
    pthread_join(first, NULL);
    r->all_s = now() - start;
    if (r->is_stopping && !compare("the thread that came second", 1)) _exit(2);
    if (r->wrong[0] == '\0' && !compare(r->is_stopping ? "the thread that was stopped" : "alone", 0))
        _exit(2);
    r->is_done = 1;
    _exit(0);
}

/* Begins a process and waits for it; 0 if the check failed by it. */
static int live_in_child(check_t *c) {
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_S);
        live();
    }
    if (child < 0) return check_fail(c, "fork: %s", strerror(errno));
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    const first_round_t *r = env.round;
    char where[160] = "";
    if (r->is_stopping)
        snprintf(where, sizeof where,
                 "two threads begin at once, one is stopped %.0f us after the start of %s: ",
                 1e6 * r->delay_s, phase_names[r->phase]);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        return check_fail(c, "%sno end after %d s", where, CHILD_S);
    if (WIFSIGNALED(status)) return check_fail(c, "%ssignal %d", where, WTERMSIG(status));
    if (!r->is_done) return check_fail(c, "%sthe process ended with status %d", where, WEXITSTATUS(status));
    if (r->wrong[0] != '\0') return check_fail(c, "%s%s", where, r->wrong);
    c->report->num_cases++;
    return 1;
}

static void first_calls(check_t *c) {
    static kit_case_t k[2];
#if defined(__SANITIZE_THREAD__)
    check_skip(c, "under ThreadSanitizer a signal comes when that wants it to");
    return;
#endif
    if (!check_start_without(c, &k[0])) return;
    if (c->arg != 0) { /* a cache that a table may be made for */
        k[0].problem.kv_cache_dtype = c->arg;
        check_fit_size(c, &k[0]);
        if (!check_is_served(c, &k[0])) {
            check_skip(c, "supports_combination refuses the plain case with it");
            return;
        }
    }
    const int has_cache = attn_role_has_cache(k[0].problem.role);
    k[1] = k[0];
    k[1].seed++;
    kit_case_add(&k[0], 1, has_cache ? 40 : 1);
    kit_case_add(&k[0], 3, has_cache ? 20 : 3);
    kit_case_add(&k[1], 2, has_cache ? 25 : 2);
    kit_case_add(&k[1], 1, has_cache ? 43 : 1);
    kit_case_add(&k[1], 1, has_cache ? 11 : 1);
    check_running(c, &k[0]);
    first_round_t *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    kit_inputs_t *in[2] = {kit_inputs_make(&k[0]), kit_inputs_make(&k[1])};
    if (in[0] == NULL || in[1] == NULL || shared == MAP_FAILED) {
        check_fail(c, "no memory");
        return;
    }
    env.round = shared;
    env.check = c;
    for (int i = 0; i < 2; i++)
        env.k[i] = &k[i], env.in[i] = in[i];
    int is_good = live_in_child(c);
    const first_round_t times = *shared;
    env.stop_us = (int64_t)(3e6 * times.all_s);
    if (env.stop_us < LEAST_STOP_US) env.stop_us = LEAST_STOP_US;
    if (env.stop_us > MOST_STOP_US) env.stop_us = MOST_STOP_US;
    const double from = now();
    for (int i = 0; i < NUM_ROUNDS && is_good &&
                    (i < (c->role == 0 ? LEAST_ROUNDS : LEAST_ROUNDS / 3) ||
                     1e3 * (now() - from) < (c->role == 0 ? MOST_MS : MOST_MS / 3));
         i++) {
        const int phase = i % NUM_PHASES, n = i / NUM_PHASES, most = NUM_ROUNDS / NUM_PHASES;
        memset(shared, 0, sizeof *shared);
        shared->phase = phase;
        shared->is_stopping = 1;
        /* 7 and most have no common factor; how late the signal is varies by some microseconds */
        shared->delay_s =
            (times.phase_s[phase] + 1e-6 * (EARLY_US + LATE_US)) * (n * 7 % most) / most - 1e-6 * EARLY_US;
        is_good = live_in_child(c);
    }
    munmap(shared, sizeof *shared);
    kit_inputs_free(in[0]);
    kit_inputs_free(in[1]);
}

void check_first_list(check_list_t *list, const check_t *c) {
    const uint32_t fp8 = check_fp8_cache(c);
    check_add(list, "threads", CHECK_RUNS_ON_CPU, first_calls, 0,
              "the first calls of a process, in two threads");
    if (list->role == 0 && (c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER)) && fp8 != 0)
        check_add(list, "threads", CHECK_RUNS_ON_CPU, first_calls, fp8,
                  "the first calls of a process over a cache of %s, in two threads", attn_kv_name(fp8));
}
