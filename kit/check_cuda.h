/* SPDX-License-Identifier: Apache-2.0 */
/* check_cuda.h: the kit on a GPU: managed memory, and recording of graphs. All return 0 on success. */
#ifndef ATTN_KIT_CHECK_CUDA_H
#define ATTN_KIT_CHECK_CUDA_H

#include "check_engine.h"

/* Is there a GPU of that number? Fills what is known of it; memory cannot be had yet. Safe before fork. */
int cuda_memory_probe(kit_memory_t *memory, int ordinal);
/* In the process that will use it. */
int cuda_memory_start(kit_memory_t *memory, int ordinal);

/* A stream of its own. */
int cuda_stream(void **stream);
/* Records what work enqueues on the stream; work returns 0 or the code that comes back. */
int cuda_record(void *stream, int (*work)(void *arg), void *arg, void **exec);
/* Runs a recorded graph and waits for it. */
int cuda_replay(void *exec, void *stream);

#endif
