/* SPDX-License-Identifier: Apache-2.0 */
/* plan_host.h: the host that programs without a context give to a backend: it offers the planning functions,
 * as the core does, so that backends take the same way as in an engine. Programs that include it link with
 * core/libattn_core.la. */
#ifndef ATTN_TESTS_PLAN_HOST_H
#define ATTN_TESTS_PLAN_HOST_H

#include "../../core/load/context.h"

static void plan_host_log(void *ctx, uint32_t level, const char *text) {
    (void)ctx, (void)level, (void)text;
}

static const attn_host_t plan_host = {
    .struct_size = sizeof plan_host, .log = plan_host_log, .get_extension = attni_host_extension};

#endif
