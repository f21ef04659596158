/* SPDX-License-Identifier: Apache-2.0 */
/* Inspecting tensors for the check hook, in host memory or copied there (host_copy.h). NULL, which is absent
 * or out of reach, passes. */
#ifndef ATTNI_HOOK_INSPECT_H
#define ATTNI_HOOK_INSPECT_H

#include <attn/attn_plugin_util.h>

#define WRONG(PARAM, ...)  return attn_fail(error, ATTN_E_INVALID, PARAM, "[hook check] " __VA_ARGS__)
#define BROKEN(PARAM, ...) return attn_fail(error, ATTN_E_INTERNAL, PARAM, "[hook check] " __VA_ARGS__)

/* A list in a tensor must say what the exact host list says. */
int attni_inspect_list(const DLTensor *t, const int32_t *host, int64_t n, const char *name,
                       attn_error_t *error);

/* Selected tokens of sparse attention: -1 or a position below longest. */
int attni_inspect_topk(const DLTensor *t, int64_t rows, int64_t longest, attn_error_t *error);

/* No NaN and no infinity in the first rows. An input that has one is the caller's fault, an output the
 * backend's. */
int attni_inspect_values(const DLTensor *t, int64_t rows, const char *name, int is_output,
                         attn_error_t *error);

/* lse [heads, tokens]: no NaN; -inf is the value of an empty row. */
int attni_inspect_lse(const DLTensor *lse, int64_t tokens, attn_error_t *error);

/* A fingerprint of the rows of an output that forward must not touch, from row `tokens` on. */
uint64_t attni_inspect_padding(const DLTensor *out, int64_t tokens);

#endif
