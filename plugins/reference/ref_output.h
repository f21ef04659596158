/* SPDX-License-Identifier: Apache-2.0 */
/* ref_output.h: writes finished rows of double to the output tensor, quantised where asked, and the LSE. */
#ifndef ATTN_REFERENCE_OUTPUT_H
#define ATTN_REFERENCE_OUTPUT_H

#include "ref_instance.h"
#include "ref_rows.h"

/* Checks output, lse, output_scale and output_block_scale for T tokens of heads * size values. */
int ref_check_output(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens, int64_t size,
                     attn_error_t *error);

/* Output rows of token `row`: values [heads * size], lse [heads] or NULL. */
void ref_write_token(const attn_instance_t *in, const attn_forward_t *a, int64_t row, int64_t size,
                     const double *values, const double *lse);

#endif
