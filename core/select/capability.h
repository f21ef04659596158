/* SPDX-License-Identifier: Apache-2.0 */
/* Capability tables: how queries read them, and the validation of a problem against one. */
#ifndef ATTNI_CAPABILITY_H
#define ATTNI_CAPABILITY_H

#include <attn/attn.h>

/* The table, members beyond its struct_size as zero. All zero for NULL. [any thread] */
attn_capabilities_t attni_capabilities(const attn_backend_t *backend);

/* Whether value is in one of the ranges. */
int attni_in_ranges(const attn_range_t *ranges, uint32_t count, uint32_t value);

/* "64, 80..256 step 16" in buffer; "any" for none. Returns buffer. */
const char *attni_ranges_text(const attn_range_t *ranges, uint32_t count, char *buffer, size_t size);

#endif
