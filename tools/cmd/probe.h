/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.h: examines a plugin file in a child process, so that a crash or a hang in it is a result, not a
 * failure of the command. The examination is the loader's own, step by step: the verdicts are the same. It
 * serves `attn info --probe` and the first step of `attn check`.
 */
#ifndef ATTN_TOOLS_PROBE_H
#define ATTN_TOOLS_PROBE_H

#include <attn/attn_plugin.h>

enum { PROBE_MAX_BACKENDS = 16 };

typedef struct probe_backend {
    char name[64], doc[160];
    attn_capabilities_t
        capabilities; /* the lists behind its pointers are not copied: all pointers are NULL */
} probe_backend_t;

typedef struct probe_result {
    int status;     /* ATTN_OK, or ATTN_E_*: why the file is not a plugin that could be used */
    char text[512]; /* one line for a person: what is wrong and what to do; "" if nothing */
    int is_mapped;  /* the dynamic linker took it and its descriptor was found */
    uint32_t abi_major, abi_minor;
    char name[64], version[64], vendor[64], license[64], build_id[128];
    uint32_t num_backends; /* as the plugin says; at most PROBE_MAX_BACKENDS of them are stored */
    uint32_t num_options;
    probe_backend_t backends[PROBE_MAX_BACKENDS];
} probe_result_t;

/* path is absolute. Loads it in a child and reads its tables there; after timeout_ms (0: 5000) the child is
 * killed. Returns result->status; the result is filled as far as the examination got. */
int probe_plugin(const char *path, unsigned timeout_ms, probe_result_t *result);

#endif
