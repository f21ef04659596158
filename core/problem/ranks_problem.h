/* SPDX-License-Identifier: Apache-2.0 */
/* What one rank of context parallelism asks of its backend (semantics 8.6). */
#ifndef ATTNI_RANKS_PROBLEM_H
#define ATTNI_RANKS_PROBLEM_H

#include <attn/attn.h>

/* Why a problem over ranks is not served by anyone, on a CPU or on a device: the member, and a sentence in
 * text. NULL: nothing. */
const char *attni_ranks_refusal(const attn_problem_t *p, int is_device, char *text, size_t size);

/* The problem of one rank's backend, whose table lists `features` and `out_dtypes`: the heads of all ranks
 * over the rank's keys, with LSE, without sinks, results in float32 where they can be. */
void attni_ranks_inner(const attn_problem_t *p, uint64_t features, uint64_t out_dtypes,
                       attn_problem_t *inner);

#endif
