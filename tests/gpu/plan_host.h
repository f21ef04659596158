/* SPDX-License-Identifier: Apache-2.0 */
/* plan_host.h: the host that programs without a context give to a backend: it offers the planning functions, as the core
 * does, so that backends take the same way as in an engine. Programs that include it link with core/libattn_core.la. */
#ifndef ATTN_TESTS_PLAN_HOST_H
#define ATTN_TESTS_PLAN_HOST_H

#include <attn/attn_plan.h>
#include <attn/attn_plugin.h>
#include <string.h>

static void plan_host_log(void *ctx, uint32_t level, const char *text) {
    (void)ctx, (void)level, (void)text;
}

static const void *plan_host_extension(void *ctx, const char *id) {
    (void)ctx;
    static const attn_plan_table_t table = {.struct_size = sizeof(attn_plan_table_t),
                                            .split = attn_plan_split,
                                            .chunked_local_size = attn_plan_chunked_local_size,
                                            .chunked_local = attn_plan_chunked_local,
                                            .use_cascade = attn_plan_use_cascade,
                                            .cp_local_len = attn_plan_cp_local_len,
                                            .mla_workspace = attn_plan_mla_workspace,
                                            .mla_context_size = attn_plan_mla_context_size,
                                            .mla_context = attn_plan_mla_context};
    return strcmp(id, ATTN_PLAN_EXTENSION) == 0 ? &table : NULL;
}

static const attn_host_t plan_host = {
    .struct_size = sizeof plan_host, .log = plan_host_log, .get_extension = plan_host_extension};

#endif
