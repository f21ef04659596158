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
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { IN_OPEN, IN_UPDATE, IN_BUILD, IN_FORWARD, NUM_PHASES };
static const char *const phase_names[NUM_PHASES] = {"open", "update_kv_cache", "build_metadata", "forward"};
enum {
    NUM_ROUNDS = 120,
    LEAST_ROUNDS = 24,
    MOST_MS = 2400,
    CHILD_S = 20,
    LEAST_STOP_US = 2000,
    MOST_STOP_US = 50000
};

/* Of a process, written by it and read by the one that began it. */
typedef struct first_round {
    int phase, is_stopping;            /* not in the first, which takes the times */
    double delay_s;                    /* of its own time, from the start of that call until it is stopped */
    double phase_s[NUM_PHASES], all_s; /* a thread's own, and by the clock */
    int is_done;
    char wrong[400];
} first_round_t;

static struct {
    first_round_t *round;
    const check_t *check;
    const kit_case_t *k;
    const kit_inputs_t *in;
    int has_begun;                           /* that call, in the first thread */
    double began_s;                          /* its own time then */
    int is_first_through, is_second_through; /* all of its calls */
    int64_t stop_us;
    kit_result_t got[2]; /* of the first thread, which is stopped, and of the second */
} env;

static double now(void) {
    const struct timespec zero = {0, 0};
    return check_seconds_since(&zero);
}

/* Seconds that a thread ran, so that it does not count how busy the machine is. */
static double ran(clockid_t clock) {
    struct timespec t = {0, 0};
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The calls of the first thread. */
static double begin(int phase) {
    const double start = ran(CLOCK_THREAD_CPUTIME_ID);
    if (phase == env.round->phase && !env.has_begun) {
        env.began_s = start;
        __atomic_store_n(&env.has_begun, 1, __ATOMIC_RELEASE);
    }
    return start;
}
static int open_seen(const attn_problem_t *problem, const attn_device_t *device,
                     const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                     attn_instance_t **instance, attn_error_t *error) {
    const double start = begin(IN_OPEN);
    const int status = shim_target()->ops->open(problem, device, options, num_options, host, instance, error);
    env.round->phase_s[IN_OPEN] = ran(CLOCK_THREAD_CPUTIME_ID) - start;
    return status;
}
static int update_seen(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                       attn_error_t *error) {
    const double start = begin(IN_UPDATE);
    const int status = shim_target()->ops->update_kv_cache(instance, args, stream, error);
    env.round->phase_s[IN_UPDATE] = ran(CLOCK_THREAD_CPUTIME_ID) - start; /* of the last one */
    return status;
}
static int build_seen(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                      void *stream, attn_error_t *error) {
    const double start = begin(IN_BUILD);
    const int status = shim_target()->ops->build_metadata(instance, batch, space, stream, error);
    env.round->phase_s[IN_BUILD] = ran(CLOCK_THREAD_CPUTIME_ID) - start;
    return status;
}
static int forward_seen(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                        void *stream, attn_error_t *error) {
    const double start = begin(IN_FORWARD);
    const int status = shim_target()->ops->forward(instance, args, space, stream, error);
    env.round->phase_s[IN_FORWARD] = ran(CLOCK_THREAD_CPUTIME_ID) - start;
    return status;
}
static const attn_backend_ops_t seen_ops = {
    .open = open_seen, .update_kv_cache = update_seen, .build_metadata = build_seen, .forward = forward_seen};

/* Until the other is through, or for as long as that should take, since it may wait for this one. */
static void on_stop(int signal) {
    const int kept = errno;
    const struct timespec t = {0, 100000};
    (void)signal;
    for (const double start = now(); !__atomic_load_n(&env.is_second_through, __ATOMIC_ACQUIRE) &&
                                     now() - start < 1e-6 * (double)env.stop_us;)
        nanosleep(&t, NULL);
    errno = kept;
}

static void *run_first(void *backend) {
    kit_run(backend, env.k, env.in, env.check->memory, &env.got[0]);
    __atomic_store_n(&env.is_first_through, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&env.has_begun, 1, __ATOMIC_RELEASE); /* also where a call before that one failed */
    return NULL;
}

/* What is wrong with the result of one of the two, into the round's text. */
static void compare(const char *whose, const kit_result_t *got, const kit_result_t *want) {
    first_round_t *r = env.round;
    if (r->wrong[0] != '\0') return;
    if (got->status != ATTN_OK) {
        snprintf(r->wrong, sizeof r->wrong, "%s: %s: %.300s", whose, got->operation, got->error.text);
        return;
    }
    const kit_difference_t d = kit_compare(env.k, got, want);
    if (!d.is_close) snprintf(r->wrong, sizeof r->wrong, "%s: %.300s", whose, d.text);
}

/* The process of one round. */
static void live(void) {
    first_round_t *r = env.round;
    const struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    pthread_t first;
    kit_result_t want;
    sigaction(SIGRTMIN + 1, &stop, NULL);
    const double start = now();
    if (pthread_create(&first, NULL, run_first, (void *)shim_make(env.check->backend, &seen_ops)) != 0)
        _exit(2);
    if (r->is_stopping) {
        clockid_t clock;
        while (!__atomic_load_n(&env.has_begun, __ATOMIC_ACQUIRE))
            sched_yield();
        if (pthread_getcpuclockid(first, &clock) == 0)
            while (!__atomic_load_n(&env.is_first_through, __ATOMIC_ACQUIRE) &&
                   ran(clock) - env.began_s < r->delay_s)
                sched_yield();
        pthread_kill(first, SIGRTMIN + 1);
        kit_run(env.check->backend, env.k, env.in, env.check->memory, &env.got[1]);
        __atomic_store_n(&env.is_second_through, 1, __ATOMIC_RELEASE);
    }
    pthread_join(first, NULL);
    r->all_s = now() - start;
    if (kit_run_oracle(&kit_oracle, env.k, env.in, &want) != ATTN_OK) _exit(2);
    if (r->is_stopping) compare("the thread that came second", &env.got[1], &want);
    compare(r->is_stopping ? "the thread that was stopped" : "alone", &env.got[0], &want);
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
    kit_case_t k;
    if (!check_start_without(c, &k)) return;
    kit_case_add(&k, 1, attn_role_has_cache(k.problem.role) ? 40 : 1);
    kit_case_add(&k, 3, attn_role_has_cache(k.problem.role) ? 20 : 3);
    check_running(c, &k);
    first_round_t *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL || shared == MAP_FAILED) {
        check_fail(c, "no memory");
        return;
    }
    env.round = shared;
    env.check = c;
    env.k = &k;
    env.in = in;
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
        shared->delay_s =
            times.phase_s[phase] * (double)(n * 7 % most) / most; /* 7 and most: no common factor */
        is_good = live_in_child(c);
    }
    munmap(shared, sizeof *shared);
    kit_inputs_free(in);
}

void check_first_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "threads", CHECK_RUNS_ON_CPU, first_calls, 0,
              "the first calls of a process, in two threads");
}
