/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of attn_merge.h on devices, as plugins bring them. */
#ifndef ATTNI_MERGE_KIND_H
#define ATTNI_MERGE_KIND_H

#include <attn/attn_merge.h>

/* Takes what a plugin brings: a copy stays until the process ends; a second table of a device type is not
 * used. bringer names the plugin in errors. ATTN_E_ABI: the table is not whole. [any thread] */
int attni_merge_kind_add(const attn_merge_table_t *raw, const char *bringer, attn_error_t *error);

/* Of a DLDeviceType; NULL: no plugin has brought any. [any thread] */
const attn_merge_table_t *attni_merge_kind(int32_t type);

#endif
