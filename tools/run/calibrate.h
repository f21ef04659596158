/* SPDX-License-Identifier: Apache-2.0 */
/* calibrate.h: V of an activations file as an engine would hand it to a calibration. */
#ifndef ATTN_TOOLS_CALIBRATE_H
#define ATTN_TOOLS_CALIBRATE_H

#include <attn/attn_calibration.h>

#include "run/run_input.h"

/* The name under which a layer of a file is kept: the module's, or layers.N. */
const char *calibrate_name(const run_input_t *input, char *text, size_t size);
/* Adds every row of a layer's V. ATTN_E_UNSUPPORTED: a layer without such a cache. */
int calibrate_add(attn_calibration_t *calibration, const run_input_t *input, attn_error_t *error);

#endif
