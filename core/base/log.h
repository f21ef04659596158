/* SPDX-License-Identifier: Apache-2.0 */
/* Messages go to the engine's function, one line each, or nowhere. The library never prints. */
#ifndef ATTNI_LOG_H
#define ATTNI_LOG_H

#include <attn/attn_plugin.h>

struct attni_log {
    void (*write)(void *ctx, uint32_t level, const char *text); /* NULL: nowhere */
    void *ctx;
    uint32_t level; /* ATTN_LOG_*: the least important that is passed on; 0: none */
};

/* Cuts at 1023 bytes and replaces control characters, so that a message is one line. [any thread] */
__attribute__((format(printf, 3, 4))) void attni_log(const struct attni_log *log, uint32_t level,
                                                     const char *format, ...);

/* "warn" as ATTN_LOG_WARN; off is 0; -1: no level. */
int attni_log_level(const char *name);

#endif
