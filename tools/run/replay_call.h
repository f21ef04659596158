/* SPDX-License-Identifier: Apache-2.0 */
/* replay_call.h: executes a recorded call, as its backend got it, on any backend. */
#ifndef ATTN_TOOLS_REPLAY_CALL_H
#define ATTN_TOOLS_REPLAY_CALL_H

#include <attn/attn.h>

#include "run/replay_file.h"

typedef struct replay_result {
    attn_selection_t *selection; /* NULL on early failure */
    const char *backend;         /* that computed the call; of the selection until then */
    float *output, *lse;         /* [T, Hq, Dv], [Hq, T]; lse NULL: not requested */
    size_t output_count, lse_count;
    double seconds;
} replay_result_t;

/* backend NULL: selected. Free the result in any case. */
int replay_call(attn_context_t *context, const replay_call_t *call, const char *backend,
                const attn_device_t *device, replay_result_t *result, attn_error_t *error);
void replay_result_free(replay_result_t *result);

/* float32, float16, bfloat16 and both fp8 types as float; count numbers of data that need not be aligned.
 * NULL: no memory. */
float *replay_floats(const void *data, uint32_t dtype, size_t count);

#endif
