/* SPDX-License-Identifier: Apache-2.0 */
/* Integer helpers and the checks that several planning functions begin with. */
#ifndef ATTNI_PLAN_ARITH_H
#define ATTNI_PLAN_ARITH_H

#include <attn/attn_plugin_util.h>

static inline int64_t attni_cdiv(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}
static inline int64_t attni_min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t attni_max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* The first of n numbers at or beyond `end`, n if there is none. Four at a time by the sign of their distance, which is also
 * set of numbers far below 0; the rest, and what comes after such numbers, one by one. */
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

/* attn_plan_check_batch of structs that are whole, as attn_intake leaves them: check_batch.c. */
int attni_check_batch(const attn_problem_t *problem, const attn_batch_t *batch, int64_t num_blocks,
                      attn_error_t *error);

/* A required pointer parameter. */
#define ATTNI_NEED(POINTER, NAME, ERROR)                                                                     \
    do {                                                                                                     \
        if ((POINTER) == NULL)                                                                               \
            return attn_fail(ERROR, ATTN_E_INVALID, NAME, "%s is NULL; it is required here", NAME);          \
    } while (0)

/* A parameter that has to be at least LEAST. */
#define ATTNI_AT_LEAST(VALUE, LEAST, NAME, ERROR)                                                            \
    do {                                                                                                     \
        if ((int64_t)(VALUE) < (int64_t)(LEAST))                                                             \
            return attn_fail(ERROR, ATTN_E_INVALID, NAME, "%s is %lld; it must be at least %lld", NAME,      \
                             (long long)(VALUE), (long long)(LEAST));                                        \
    } while (0)

/* query_start_loc is an exclusive prefix sum: [0] = 0 and never falling. */
static inline int attni_check_starts(const int32_t *starts, int32_t num_reqs, attn_error_t *error) {
    ATTNI_AT_LEAST(num_reqs, 0, "num_reqs", error);
    ATTNI_NEED(starts, "query_start_loc", error);
    if (starts[0] != 0)
        return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                         "query_start_loc[0] is %d; a prefix sum starts with 0", (int)starts[0]);
    for (int32_t r = 0; r < num_reqs; r++)
        if (starts[r + 1] < starts[r])
            return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                             "query_start_loc[%d] is %d after %d; it must not decrease", (int)r + 1,
                             (int)starts[r + 1], (int)starts[r]);
    return ATTN_OK;
}

/* Every request's total length covers its new tokens. */
static inline int attni_check_lens(const int32_t *starts, const int32_t *seq_lens, int32_t num_reqs,
                                   attn_error_t *error) {
    if (num_reqs > 0) ATTNI_NEED(seq_lens, "seq_lens", error);
    for (int32_t r = 0; r < num_reqs; r++)
        if (seq_lens[r] < starts[r + 1] - starts[r])
            return attn_fail(
                error, ATTN_E_INVALID, "seq_lens",
                "seq_lens[%d] is %d with %d new tokens; it counts them too, so it cannot be less", (int)r,
                (int)seq_lens[r], (int)(starts[r + 1] - starts[r]));
    return ATTN_OK;
}

#endif
