/* SPDX-License-Identifier: Apache-2.0 */
/* tap_selftest.c: tap.h itself. A failing check must be counted and printed, or no test here means
 * anything. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tap.h"

/* Runs BODY in a child, its output in TEXT; the child's status. */
static int run_child(int (*body)(void), char *text, size_t size) {
    int pipe_ends[2];
    fflush(stdout);
    if (pipe(pipe_ends)) bail_out("no pipe");
    pid_t child = fork();
    if (child < 0) bail_out("no fork");
    if (child == 0) {
        dup2(pipe_ends[1], STDOUT_FILENO);
        close(pipe_ends[0]);
        close(pipe_ends[1]);
        memset(&tap_state, 0, sizeof tap_state);
        exit(body());
    }
    close(pipe_ends[1]);
    size_t used = 0;
    for (ssize_t n; used + 1 < size && (n = read(pipe_ends[0], text + used, size - 1 - used)) > 0;)
        used += (size_t)n;
    text[used] = '\0';
    close(pipe_ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int all_pass(void) {
    ok(1, "one");
    is_int(2, 2, "two");
    is_str("a", "a", "three");
    is_near(1.0, 1.0 + 1e-9, 1e-6, "four");
    is_near(INFINITY, INFINITY, 0, "five");
    has_str("abc", "bc", "six");
    return tap_done();
}

static int each_fails(void) {
    ok(0, "one");
    is_int(2, 3, "two");
    is_str("a", "b", "three");
    is_str(NULL, "b", "four");
    is_near(1.0, 1.1, 1e-6, "five");
    is_near(NAN, 1.0, 1e9, "six");
    is_near(INFINITY, -INFINITY, 1, "seven");
    has_str("abc", "x", "eight");
    return tap_done();
}

static int too_few(void) {
    plan(2);
    ok(1, "one # not a directive");
    return tap_done();
}

/* What exit runs while a thread still works with it. */
static void pull_away(void) {
    abort();
}
static void *give_up(void *unused) {
    (void)unused;
    bail_out("in a thread");
}
static int bails_in_a_thread(void) {
    pthread_t thread;
    atexit(pull_away);
    if (pthread_create(&thread, NULL, give_up, NULL) == 0) pthread_join(thread, NULL);
    return 0;
}

int main(void) {
    char text[8192];
    is_int(run_child(all_pass, text, sizeof text), 0, "status of checks that hold");
    has_str(text, "ok 6 - six", "the last check is printed");
    has_str(text, "1..6", "the plan comes at the end");
    is_int(run_child(each_fails, text, sizeof text), 1, "status of checks that fail");
    int printed = 0;
    for (const char *p = text; (p = strstr(p, "not ok ")); p++)
        printed++;
    is_int(printed, 8, "each of them is printed");
    has_str(text, "wanted 'b'", "with what was wanted");
    is_int(run_child(too_few, text, sizeof text), 1, "a check that is missing from the plan");
    ok(strstr(text, "one # not") == NULL, "a hash in a name is no directive");
    is_int(run_child(bails_in_a_thread, text, sizeof text), 99,
           "bail_out in a thread ends the program and runs nothing");
    has_str(text, "Bail out! in a thread", "with its words");
    uint64_t a = tap_seed(), b = a;
    ok(tap_rand(&a) == tap_rand(&b) && tap_rand(&a) != tap_rand(&b) + 1, "the stream follows the seed");
    return tap_done();
}
