/* SPDX-License-Identifier: Apache-2.0 */
/* The record hook's file: one for all groups of a context. */
#ifndef ATTNI_HOOK_RECORD_H
#define ATTNI_HOOK_RECORD_H

struct attni_recorder;

/* Writes what has not been written yet. NULL is allowed. */
void attni_recorder_free(struct attni_recorder *recorder);

#endif
