/* SPDX-License-Identifier: Apache-2.0 */
/* case_text.h: what may follow the problem in `attn run --problem`: "| query_lens=1,5 seq_lens=77,77 seed=3",
 * as kit_case_text writes it (attn-problem(7)). Every word counts: one that is unknown, given twice or not a
 * value is refused. */
#ifndef ATTN_TOOLS_CASE_TEXT_H
#define ATTN_TOOLS_CASE_TEXT_H

#include "../../kit/case/attn_case.h"

/* Checks the words of tail (NULL: none). 0, or -1 after printing why. */
int case_text_check(const char *tail);
/* The value of KEY= in a checked tail, copied into value; NULL: not given. */
const char *case_text_value(const char *tail, const char *key, char *value, size_t size);
/* Lengths, "1,5,33"; how many, or -1 after printing why. */
int case_text_lens(const char *what, const char *text, int64_t *values);
/* What is given beside lengths and seed; c->num_reqs is known. 0, or -1 after printing why. */
int case_text_details(const char *tail, kit_case_t *c);

#endif
