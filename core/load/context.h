/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context holds, for the other files of core/. Everything but the layer table is fixed after
 * creation.
 */
#ifndef ATTNI_CONTEXT_H
#define ATTNI_CONTEXT_H

#include "config/config.h"
#include "load/loader.h"
#include "base/log.h"
#include "load/options.h"
#include "load/registry.h"

#include <attn/attn.h>
#include <pthread.h>
#include <stdatomic.h>

struct attn_context {
    struct attni_config config;
    struct attni_plugins plugins;
    struct attni_registry registry;
    struct attni_log log;
    attn_host_t host;         /* what instances get; host.ctx is this context */
    unsigned fork_generation; /* attni_fork_generation() at creation */

    attn_config_value_t *values; /* the effective configuration, for attn_context_config */
    size_t value_count, value_capacity;

    /* Groups and layers of this context (core/layer*.c, core/group*.c). */
    atomic_uint num_groups; /* open ones: they keep the context alive */
    pthread_mutex_t lock;
    void *layers;
    void (*free_layers)(void *layers);   /* called by attn_context_destroy if layers is set */
    struct attni_mm_encoder *mm_encoder; /* of [mm_encoder] */
    struct attni_recorder *recorder;     /* of [hook record], made with the first group; NULL: none */
};

/* Counts the forks between the start of the process and now; no system call. */
unsigned attni_fork_generation(void);

/* ATTN_E_FORKED in a child of the process that made the context, ATTN_E_INVALID for NULL. [any thread] */
int attni_context_check(const attn_context_t *context, attn_error_t *error);

/* The internal view of a backend handle that came from a context. */
static inline const struct attni_backend *attni_backend_of(const attn_backend_t *shown) {
    return (const struct attni_backend *)(const void *)shown;
}

/* Warns of names in [select] sections that no loaded plugin has. ATTN_E_NO_MEMORY is the only failure. */
int attni_select_check(const attn_context_t *context, attn_error_t *error);

/* A host extension by id for plugins, or NULL (attn_host_t.get_extension). */
const void *attni_host_extension(void *ctx, const char *id);

#endif
