/* SPDX-License-Identifier: Apache-2.0 */
/* What plugins check of every problem alike when they open. The host checked the problem against the
 * capability table before; a program that uses a plugin without a host gets the same answers here. */
#ifndef ATTN_PROBLEM_CHECK_H
#define ATTN_PROBLEM_CHECK_H

#include <attn/attn_plugin.h>
#include <attn/attn_plugin_util.h>

/* Against the table first, then against what it cannot say; supports: the backend's supports_combination.
 * device may be
 * NULL: not known yet. */
int problem_check(const attn_problem_t *problem, const attn_device_t *device,
                  const attn_capabilities_t *table, const char *backend,
                  int (*supports)(const attn_problem_t *, const attn_device_t *, attn_reasons_t *),
                  attn_error_t *error);

#endif
