/* SPDX-License-Identifier: Apache-2.0 */
/* run_options.h: the values of a plugin's options for a backend that is opened without a group. */
#ifndef ATTN_TOOLS_RUN_OPTIONS_H
#define ATTN_TOOLS_RUN_OPTIONS_H

#include <attn/attn.h>

/* Those of the plugin of this backend, by the configuration or their defaults, at most `room`; returns how
 * many. Strings live as long as the context. */
uint32_t run_options_of(const attn_context_t *context, const char *backend, attn_option_value_t *values,
                        uint32_t room);

#endif
