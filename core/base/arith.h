/* SPDX-License-Identifier: Apache-2.0 */
/* Integer helpers. */
#ifndef ATTNI_ARITH_H
#define ATTNI_ARITH_H

#include <stdint.h>

static inline int64_t attni_cdiv(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}
static inline int64_t attni_min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t attni_max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* The first of n numbers at or beyond `end`, n if there is none. Four at a time by the sign of their
 * distance, which is also set of numbers far below 0; the rest, and what comes after such numbers, one by
 * one. */
static inline int64_t attni_first_beyond(const int64_t *numbers, int64_t n, int64_t end) {
    const uint64_t last = (uint64_t)end - 1;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const int64_t *four = numbers + i;
        if ((((last - (uint64_t)four[0]) | (last - (uint64_t)four[1])) |
             ((last - (uint64_t)four[2]) | (last - (uint64_t)four[3]))) >>
            63)
            break;
    }
    while (i < n && numbers[i] < end)
        i++;
    return i;
}

#endif
