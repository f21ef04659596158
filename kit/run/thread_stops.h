/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread_stops.h: threads of this process are stopped in the middle of their work, one at a time and each
 * for longer than a call takes, while the others go on. One that does not wait for another then meets what
 * that has not written yet, on any machine and under any load.
 */
#ifndef ATTN_KIT_THREAD_STOPS_H
#define ATTN_KIT_THREAD_STOPS_H

#include <stdint.h>

/* Starts to stop threads for stop_us microseconds each. Returns 0, or -1 where that cannot be done: there is
 * no /proc, or no thread can be started. [one at a time in a process] */
int thread_stops_begin(int64_t stop_us, uint64_t seed);

/* Ends that, and returns how many stops there were. */
int thread_stops_end(void);

#endif
