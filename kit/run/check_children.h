/* SPDX-License-Identifier: Apache-2.0 */
/* check_children.h: checks in processes of their own, several at once, with time limits. */
#ifndef ATTN_KIT_CHECK_CHILDREN_H
#define ATTN_KIT_CHECK_CHILDREN_H

#include "check_engine.h"

/* Processes that share the processors; each may be an OpenMP runtime of its own. */
enum { CHECK_MAX_JOBS = 64 };

/* The processors that this process may use, at most CHECK_MAX_JOBS. */
int check_usual_jobs(void);

/* Seconds since clock_gettime(CLOCK_MONOTONIC) gave `start`. */
double check_seconds_since(const struct timespec *start);

/* Runs entries in order, up to `jobs` at once. told gets them in order, too, each with its report in
 * c->report and the file that holds what it printed; a value other than 0 from it ends the run. Returns 0, or
 * -1 where there is no memory or no descriptor (errno). */
int check_run_children(check_t *c, const struct check_entry *const *entries, int count, int jobs,
                       int (*told)(void *user, const struct check_entry *e, int printed), void *user);

#endif
