/* SPDX-License-Identifier: Apache-2.0 */
/* option_value.h: one text under the type and bounds of an option. */
#ifndef ATTNI_OPTION_VALUE_H
#define ATTNI_OPTION_VALUE_H

#include <attn/attn_plugin.h>

/* Reads one text as the type of spec. origin is said in errors. value->s borrows text. */
int attni_option_parse(const attn_option_spec_t *spec, const char *text, const char *origin,
                       attn_option_value_t *value, attn_error_t *error);

#endif
