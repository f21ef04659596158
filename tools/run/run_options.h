/* SPDX-License-Identifier: Apache-2.0 */
/* run_options.h: the values of a plugin's options for a backend that is opened without a group. */
#ifndef ATTN_TOOLS_RUN_OPTIONS_H
#define ATTN_TOOLS_RUN_OPTIONS_H

#include <attn/attn.h>

enum { RUN_MOST_OPTIONS = 64 };

/* The plugin that a backend comes from: 0, or -1 where none of the context's has it. */
int run_plugin_of(const attn_context_t *context, const attn_backend_t *backend, attn_plugin_info_t *info);
/* Its options by the configuration, which has checked their text, or their defaults; returns how many.
 * Strings live as long as the context. */
uint32_t run_options_of(const attn_context_t *context, const attn_plugin_info_t *info,
                        attn_option_value_t values[RUN_MOST_OPTIONS]);

#endif
