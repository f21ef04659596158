/* SPDX-License-Identifier: Apache-2.0 */
/* part.h: ATTN_TEST_PART=K/N lets a long test take every N-th of its cases, from the K-th on, for tools under
 * which each takes a hundred times as long (build-aux/check-sanitizer). */
#ifndef ATTN_TESTS_GPU_PART_H
#define ATTN_TESTS_GPU_PART_H

#include <stdio.h>
#include <stdlib.h>

/* 1 if the next case is of this part; without the variable every one is. */
static int part_takes(void) {
    static int count, first = 1, step;
    if (step == 0) {
        const char *text = getenv("ATTN_TEST_PART");
        if (text == NULL || sscanf(text, "%d/%d", &first, &step) != 2 || step < 1 || first < 1) {
            first = step = 1;
            if (text != NULL) fprintf(stderr, "# ATTN_TEST_PART=%s is not K/N: all cases run\n", text);
        }
    }
    return count++ % step == (first - 1) % step;
}

#endif
