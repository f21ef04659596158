/* SPDX-License-Identifier: Apache-2.0 */
/* part.h: ATTN_TEST_PART=K/N lets a long test take every N-th of its cases, from the K-th on, and
 * ATTN_TEST_SECONDS=S begin none S seconds after its start: for tools under which each takes a hundred times
 * as long (build-aux/check-sanitizer). What was left out for time is said at the end. */
#ifndef ATTN_TESTS_GPU_PART_H
#define ATTN_TESTS_GPU_PART_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static struct {
    int count, first, step, taken, left_out;
    double start, most_s; /* 0: as long as it takes */
} part;

static double part_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void part_end(void) {
    if (part.left_out > 0) printf("# left out for time: %d cases\n", part.left_out);
}

__attribute__((constructor)) static void part_begin(void) {
    const char *text = getenv("ATTN_TEST_PART"), *most = getenv("ATTN_TEST_SECONDS");
    part.start = part_seconds();
    part.most_s = most != NULL ? atof(most) : 0;
    if (text == NULL || sscanf(text, "%d/%d", &part.first, &part.step) != 2 || part.step < 1 ||
        part.first < 1) {
        part.first = part.step = 1;
        if (text != NULL) fprintf(stderr, "# ATTN_TEST_PART=%s is not K/N: all cases run\n", text);
    }
    atexit(part_end);
}

/* 1 if there is time for one more; the first always has it, so that no test passes with nothing. */
static int part_in_time(void) {
    if (part.most_s > 0 && part.taken > 0 && part_seconds() - part.start > part.most_s) {
        part.left_out++;
        return 0;
    }
    part.taken++;
    return 1;
}

/* 1 if the next case is of this part; without the variables every one is. */
__attribute__((unused)) static int part_takes(void) {
    return part.count++ % part.step == (part.first - 1) % part.step && part_in_time();
}

/* 1 if a tool runs the test, where repetitions for their time alone are worth nothing. */
__attribute__((unused)) static int part_is_short(void) {
    return part.step > 1 || part.most_s > 0;
}

#endif
