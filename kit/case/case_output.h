/* SPDX-License-Identifier: Apache-2.0 */
/* case_output.h: the scales of a run's quantised output. */
#ifndef ATTN_KIT_CASE_OUTPUT_H
#define ATTN_KIT_CASE_OUTPUT_H

#include "case_run.h"

/* Makes x->block_scale for so many rows, where the problem has scales of groups. 0, or not: no memory. */
int kit_output_scales_make(kit_run_t *x, int64_t rows);
/* Distance in bytes of something in it that must not have been written, or that must be 0; -1: nothing. */
int64_t kit_output_scales_damage(kit_run_t *x);
/* The values that a head of a quantised output stands for, and what each was divided by. */
void kit_output_load(kit_run_t *x, int64_t token, int64_t head, double *out, double *unit);

#endif
