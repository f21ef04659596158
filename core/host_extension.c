/* SPDX-License-Identifier: Apache-2.0 */
/* What the host offers to plugins by id: the planning functions, because a plugin links to nothing of libattn. */
#include "context.h"

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

const void *attni_host_extension(void *ctx, const char *id) {
    (void)ctx;
    return id != NULL && strcmp(id, ATTN_PLAN_EXTENSION) == 0 ? &plan_table : NULL;
}
