/* SPDX-License-Identifier: Apache-2.0 */
/* run_replay.h: `attn run --replay`: recorded calls on a backend of choice, held against the recording and
 * the reference. */
#ifndef ATTN_TOOLS_RUN_REPLAY_H
#define ATTN_TOOLS_RUN_REPLAY_H

#include "run/run_layer.h"

/* options->backend NULL: the one that was recorded, or the selected one if that is not here. Returns an exit
 * code. */
int run_replay(attn_context_t *context, const char *path, const run_options_t *options, int json);

#endif
