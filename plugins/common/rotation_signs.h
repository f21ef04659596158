/* SPDX-License-Identifier: Apache-2.0 */
/* The signs of the randomised Hadamard transform of int4 rows (semantics 3.4): y = H (s .* x) with H[i][j] =
 * (-1)^popcount(i & j). s[i] is -1 iff bit 23 of output i of MT19937 (Matsumoto and Nishimura 1998), seeded
 * with 0x9e3779b9, is set. */
#ifndef ATTN_ROTATION_SIGNS_H
#define ATTN_ROTATION_SIGNS_H

#include <stdint.h>

enum { ROTATION_MAX_SIZE = 1024 };

/* Bit i % 32 of word i / 32: s[i] is -1. */
static const uint32_t rotation_negative[ROTATION_MAX_SIZE / 32] = {
    0x9a8ca6f2, 0x7f7fca4e, 0x59bbc293, 0x9480abc7, 0xb55b747e, 0x54503bbe, 0xcdf467b7, 0x05dfbc5f,
    0xb291e3cc, 0x57563834, 0xe46ae225, 0x67fc4ca6, 0xcfc78691, 0x32d9dff1, 0x365fdb89, 0x75625346,
    0x668ae4e3, 0xd9cf73a9, 0xeb0082b6, 0x0ca36fb4, 0xe29e7333, 0xa50d373f, 0x0f3cfceb, 0x1d541dfe,
    0xb2e4cf05, 0x1e32d587, 0x237771ac, 0xc78728fd, 0x4bee5a90, 0x56a40da0, 0xbb9454f0, 0xf6680674};

static inline int rotation_is_negative(int64_t i) {
    return rotation_negative[i / 32] >> i % 32 & 1;
}

#endif
