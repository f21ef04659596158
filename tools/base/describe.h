/* SPDX-License-Identifier: Apache-2.0 */
/* describe.h: capabilities, problems, reasons and selections as short text and as JSON. */
#ifndef ATTN_TOOLS_DESCRIBE_H
#define ATTN_TOOLS_DESCRIBE_H

#include <attn/attn.h>
#include <jansson.h>

/* Names of the bits of a set, joined by one space. kind: 'r' roles, 'd' dtypes, 'k' cache dtypes, 'f'
 * features, 'p' device types. */
void describe_set(int kind, uint64_t set, char *text, size_t size);
json_t *describe_set_json(int kind, uint64_t set);
/* "32-256 step 8, 576"; "any" for an empty list. */
void describe_ranges(const attn_range_t *ranges, uint32_t count, char *text, size_t size);
void describe_block_sizes(const attn_capabilities_t *can, char *text, size_t size);
json_t *describe_capabilities_json(const attn_capabilities_t *can);
/* The options of a plugin's table: name, default, values, doc. */
json_t *describe_options_json(const attn_plugin_t *plugin);

/* "32/8 heads of 128, bfloat16, window 4096, sink" */
void describe_problem(const attn_problem_t *problem, char *text, size_t size);
json_t *describe_problem_json(const attn_problem_t *problem);
json_t *describe_selection_json(const attn_selection_t *selection);
/* "FLASH_ATTN", or of two "decode TRITON_ATTN, prefill FLASH_ATTN" */
void describe_group_backends(const attn_group_t *group, char *text, size_t size);
/* 1536 -> "1.5 KiB" */
void describe_bytes(double bytes, char *text, size_t size);

#endif
