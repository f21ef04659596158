/* SPDX-License-Identifier: Apache-2.0 */
/* The exact selection of an indexer's keys (semantics 9.5): the topk-th value by counting its bits from the
 * top, then everything above it and as many of its equals as there is room for, in the order of columns. */
#include "cpu_instance.h"

enum { BITS = 11, LOW = 32 - 2 * BITS };
_Static_assert(CPU_SELECT_COUNTS == 1 << BITS, "a count for each value of the highest bits");

/* A number that grows with the value; -0 is 0, and NaN is below everything. */
static uint32_t rank_of(float x) {
    uint32_t u;
    const float sum = x + 0.0f; /* makes 0 of -0 */
    memcpy(&u, &sum, sizeof u);
    return x != x ? 0 : u >> 31 ? ~u : u | UINT32_C(1) << 31;
}

/* Of the ranks whose bits from `shift + bits` up are those of *prefix: the value of the next `bits` bits that
 * holds the *left-th from the top goes to *prefix, and what is above it is taken off *left. */
static void count_bits(const float *values, int32_t n, int shift, int bits, uint32_t *prefix, int32_t *left,
                       int32_t *counts) {
    const uint32_t mask = (UINT32_C(1) << bits) - 1;
    memset(counts, 0, sizeof *counts << bits);
    if (shift + bits == 32)
        for (int32_t i = 0; i < n; i++)
            counts[rank_of(values[i]) >> shift]++;
    else
        for (int32_t i = 0; i < n; i++) {
            const uint32_t rank = rank_of(values[i]);
            if (rank >> (shift + bits) == *prefix) counts[rank >> shift & mask]++;
        }
    int32_t at = (int32_t)mask;
    for (; counts[at] < *left; at--)
        *left -= counts[at];
    *prefix = *prefix << bits | (uint32_t)at;
}

void cpu_index_select(const float *values, int32_t n, int32_t topk, int32_t *out, int32_t *counts) {
    uint32_t border = 0;
    int32_t equals = topk; /* in the end: how many of the border's own are taken */
    count_bits(values, n, LOW + BITS, BITS, &border, &equals, counts);
    count_bits(values, n, LOW, BITS, &border, &equals, counts);
    count_bits(values, n, 0, LOW, &border, &equals, counts);
    for (int32_t i = 0, at = 0; at < topk; i++) {
        const uint32_t rank = rank_of(values[i]);
        if (rank < border || (rank == border && equals-- <= 0)) continue;
        out[at++] = i;
    }
}
