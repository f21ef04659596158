/* SPDX-License-Identifier: Apache-2.0 */
/* What this CPU can do at best, measured: memory reads and multiply-add rates. Measure a ceiling right before
 * and after the thing it is compared with: shared machines change by the minute. */
#ifndef CEILINGS_CPU_H
#define CEILINGS_CPU_H

#include <stddef.h>
#include <stdint.h>

/* f32 fused multiply-add rate in GFLOP/s (2 per multiply-add) with a level's widest vectors: "generic" (the
 * baseline's multiply and add), "avx2", "avx512", "avx512bf16" (as avx512), "neon". 0: this CPU lacks it.
 * About 20 ms. */
double ceiling_fma(const char *level, int threads);

/* bf16 pair-dot rate in GFLOP/s (4 per word); 0 without AVX512-BF16. */
double ceiling_bf16_dot(int threads);

/* The same by AMX tiles; 0 without AMX, or where the process may not use it. */
double ceiling_bf16_tiles(int threads);

/* Simple additions in 10^9 per second, over about 0.1 ms: tells a moment when the threads have their cores
 * alone from one when a hyperthread beside them, another machine's perhaps, takes half of the issue slots. */
double ceiling_issue(int threads);

/* Streaming read in GB/s of a buffer several times L3; every thread its own part. */
double ceiling_read(const void *buffer, size_t bytes, int threads);

/* Read in GB/s of `count` pieces of `bytes` (a multiple of 256) each, in the order of the list, threads
 * taking equal consecutive shares: the read that a walk over cache pages cannot beat. Prefetches of the next
 * piece: */
enum ceiling_prefetch {
    CEILING_PREFETCH_NONE,
    CEILING_PREFETCH_HEAD,
    CEILING_PREFETCH_ALL,
    CEILING_NUM_PREFETCH
};
double ceiling_read_pieces(const char *const *pieces, size_t count, size_t bytes, int threads,
                           enum ceiling_prefetch prefetch);

/* Monotonic seconds. */
double ceiling_now(void);

#endif
