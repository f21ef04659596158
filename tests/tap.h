/* SPDX-License-Identifier: Apache-2.0 */
/* tap.h: the Test Anything Protocol for C tests, in one header.
 *
 * A test program prints a plan and one line for each check, and ends with the number of failed checks as its
 * status. Each program is a process of its own with a time limit (build-aux/run-test).
 *
 *     int main(void) {
 *         uint64_t seed = tap_seed();          // prints the seed; ATTN_TEST_SEED=N gives it back
 *         plan(2);                             // or leave it out: tap_done() prints the plan then
 *         ok(f(3) == 9, "f squares %d", 3);
 *         is_str(name(), "flash", "name");
 *         return tap_done();
 *     }
 */
#ifndef ATTN_TESTS_TAP_H
#define ATTN_TESTS_TAP_H

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__GNUC__)
#define TAP_UNUSED       __attribute__((unused))
#define TAP_PRINTF(f, a) __attribute__((unused, format(printf, f, a)))
#define TAP_NORETURN     __attribute__((noreturn))
#else
#define TAP_UNUSED
#define TAP_NORETURN
#define TAP_PRINTF(f, a)
#endif

static struct {
    int planned; /* 0: not planned yet */
    int run;
    int failed;
} tap_state;

/* A line of explanation; it never counts as a check. */
TAP_PRINTF(1, 2) static void diag(const char *fmt, ...) {
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *line = text; line;) {
        char *next = strchr(line, '\n');
        if (next) *next++ = '\0';
        printf("# %s\n", line);
        line = next && *next ? next : NULL;
    }
    fflush(stdout);
}

TAP_UNUSED static void plan(int count) {
    tap_state.planned = count;
    printf("1..%d\n", count);
    fflush(stdout);
}

/* The whole program has nothing to do here, and says why. */
TAP_NORETURN TAP_PRINTF(1, 2) static void skip_all(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("1..0 # SKIP ");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    exit(0);
}

/* Nothing that follows would make sense: the whole program is an error. Any thread may say so, so nothing
 * that exit would run, handlers and destructors, pulls away what the others still use. */
TAP_NORETURN TAP_PRINTF(1, 2) static void bail_out(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("Bail out! ");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    fflush(stdout);
    _exit(99);
}

static int tap_result(int passed, const char *file, int line, const char *directive, const char *fmt,
                      va_list ap) {
    char text[1024];
    vsnprintf(text, sizeof text, fmt, ap);
    for (char *p = text; *p; p++)
        if (*p == '#' || *p == '\n') *p = ' '; /* both mean something to the reader of the stream */
    tap_state.run++;
    printf("%sok %d - %s%s\n", passed ? "" : "not ", tap_state.run, text, directive);
    if (!passed) {
        tap_state.failed++;
        printf("#   failed at %s:%d\n", file, line);
    }
    fflush(stdout);
    return passed;
}

TAP_PRINTF(4, 5) static int tap_ok(int passed, const char *file, int line, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    tap_result(passed, file, line, "", fmt, ap);
    va_end(ap);
    return passed;
}

/* COUNT checks that cannot be made here. */
TAP_PRINTF(2, 3) static void skip(int count, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (int i = 0; i < count; i++)
        printf("ok %d # SKIP %s\n", ++tap_state.run, text);
    fflush(stdout);
}

TAP_PRINTF(5, 6)
static int tap_is_int(long long got, long long want, const char *file, int line, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int passed = tap_result(got == want, file, line, "", fmt, ap);
    va_end(ap);
    if (!passed) diag("  got %lld, wanted %lld", got, want);
    return passed;
}

TAP_PRINTF(5, 6)
static int tap_is_str(const char *got, const char *want, const char *file, int line, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int same = got && want ? strcmp(got, want) == 0 : got == want;
    int passed = tap_result(same, file, line, "", fmt, ap);
    va_end(ap);
    if (!passed) diag("  got    '%s'\n  wanted '%s'", got ? got : "(null)", want ? want : "(null)");
    return passed;
}

/* HAVE must contain PART: for messages, whose exact words may change. */
TAP_PRINTF(5, 6)
static int tap_has_str(const char *have, const char *part, const char *file, int line, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int passed = tap_result(have && part && strstr(have, part) != NULL, file, line, "", fmt, ap);
    va_end(ap);
    if (!passed)
        diag("  got '%s'\n  wanted it to contain '%s'", have ? have : "(null)", part ? part : "(null)");
    return passed;
}

/* Within an absolute tolerance; equal infinities and a NaN that was wanted are near. */
TAP_PRINTF(6, 7)
static int tap_is_near(double got, double want, double tol, const char *file, int line, const char *fmt,
                       ...) {
    va_list ap;
    va_start(ap, fmt);
    int near = got == want || (isnan(got) && isnan(want)) || fabs(got - want) <= tol;
    int passed = tap_result(near, file, line, "", fmt, ap);
    va_end(ap);
    if (!passed) diag("  got %.17g, wanted %.17g within %.3g", got, want, tol);
    return passed;
}

#define ok(condition, ...) tap_ok((condition) ? 1 : 0, __FILE__, __LINE__, __VA_ARGS__)
#define is_int(got, want, ...)                                                                               \
    tap_is_int((long long)(got), (long long)(want), __FILE__, __LINE__, __VA_ARGS__)
#define is_str(got, want, ...)       tap_is_str((got), (want), __FILE__, __LINE__, __VA_ARGS__)
#define has_str(have, part, ...)     tap_has_str((have), (part), __FILE__, __LINE__, __VA_ARGS__)
#define is_near(got, want, tol, ...) tap_is_near((got), (want), (tol), __FILE__, __LINE__, __VA_ARGS__)

/* The seed of this run: ATTN_TEST_SEED, or always the same. Printed, so that a failure can be had again. */
TAP_UNUSED static uint64_t tap_seed(void) {
    const char *text = getenv("ATTN_TEST_SEED");
    uint64_t seed = text && *text ? strtoull(text, NULL, 0) : 20240607u;
    diag("seed %llu (ATTN_TEST_SEED gives another)", (unsigned long long)seed);
    return seed;
}

/* splitmix64: 64 good bits from any state, also from 0 (Steele, Lea, Flood: Fast splittable generators,
 * 2014). */
TAP_UNUSED static uint64_t tap_rand(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Whole number in [low, high], both included. */
TAP_UNUSED static int64_t tap_rand_in(uint64_t *state, int64_t low, int64_t high) {
    return low + (int64_t)(tap_rand(state) % (uint64_t)(high - low + 1));
}

/* Uniform in [0, 1). */
TAP_UNUSED static double tap_rand_unit(uint64_t *state) {
    return (double)(tap_rand(state) >> 11) * 0x1p-53;
}

/* Standard normal (Box and Muller 1958). */
TAP_UNUSED static double tap_rand_normal(uint64_t *state) {
    double u = 1.0 - tap_rand_unit(state), v = tap_rand_unit(state);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

/* The end of main: the plan if there was none, and the status. */
TAP_UNUSED static int tap_done(void) {
    if (!tap_state.planned) plan(tap_state.run);
    if (tap_state.planned != tap_state.run)
        diag("planned %d checks, made %d", tap_state.planned, tap_state.run);
    if (tap_state.failed) diag("%d of %d checks failed", tap_state.failed, tap_state.run);
    fflush(stdout);
    return tap_state.failed || tap_state.planned != tap_state.run ? 1 : 0;
}

#endif
