/* SPDX-License-Identifier: Apache-2.0 */
/* What the host offers to plugins by id: planning, and merging of states, because a plugin links to nothing
 * of libattn. */
#include "load/context.h"

#include <attn/attn_merge.h>
#include <string.h>

static const attn_plan_table_t plan_table = {.struct_size = sizeof(attn_plan_table_t),
                                             .split = attn_plan_split,
                                             .chunked_local_size = attn_plan_chunked_local_size,
                                             .chunked_local = attn_plan_chunked_local,
                                             .use_cascade = attn_plan_use_cascade,
                                             .cp_local_len = attn_plan_cp_local_len,
                                             .mla_workspace = attn_plan_mla_workspace,
                                             .mla_context_size = attn_plan_mla_context_size,
                                             .mla_context = attn_plan_mla_context};

static const attn_merge_table_t merge_table = {.struct_size = sizeof(attn_merge_table_t),
                                               .device_type = kDLCPU,
                                               .merge_states = attn_merge_states,
                                               .merge_weigh = attn_merge_weigh,
                                               .rows_copy = attn_rows_copy,
                                               .rows_gather = attn_rows_gather,
                                               .rows_scatter = attn_rows_scatter};

const void *attni_host_extension(void *ctx, const char *id) {
    (void)ctx;
    if (id == NULL) return NULL;
    if (strcmp(id, ATTN_MERGE_EXTENSION) == 0) return &merge_table;
    return strcmp(id, ATTN_PLAN_EXTENSION) == 0 ? &plan_table : NULL;
}
