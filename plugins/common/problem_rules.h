/* SPDX-License-Identifier: Apache-2.0 */
/* What the semantics rule out whatever the backend, as reasons. A backend's supports_combination says this
 * first and then what it alone does not serve. */
#ifndef ATTN_PROBLEM_RULES_H
#define ATTN_PROBLEM_RULES_H

#include <attn/attn_plugin.h>
#include <attn/attn_plugin_util.h>

/* A number as the text of a reason. */
#define NUMBER(BUFFER, VALUE) (snprintf(BUFFER, sizeof BUFFER, "%lld", (long long)(VALUE)), BUFFER)

/* features: attn_problem_features(problem). [pure] */
void problem_add_rules(const attn_problem_t *problem, uint64_t features, attn_reasons_t *reasons);

/* The 656-byte rows: fixed sizes, 16-bit inputs (semantics 3.5). [pure] */
void problem_add_ds_mla(const attn_problem_t *problem, attn_reasons_t *reasons);

#endif
