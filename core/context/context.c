/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creating a context: configuration, plugins, options, registry, in this order; after that it never
 * changes.
 */
#include "load/context.h"

#include "hook/hook_record.h"
#include "load/mm_encoder.h"
#include "base/nearest.h"
#include "base/reserved.h"
#include "base/trust.h"

#include <attn/attn_plugin_util.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef ATTN_DEFAULT_CONFIG_DIR
#define ATTN_DEFAULT_CONFIG_DIR "/usr/local/etc/attn"
#endif

static atomic_uint forks;

static void count_fork(void) {
    atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, count_fork);
}

unsigned attni_fork_generation(void) {
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

int attni_context_check(const attn_context_t *context, attn_error_t *error) {
    if (!context)
        return attn_fail(error, ATTN_E_INVALID, "context",
                         "context is NULL; create one with attn_context_create");
    if (context->fork_generation != attni_fork_generation())
        return attn_fail(error, ATTN_E_FORKED, "context",
                         "the context was created by the parent process; create a new one in this process");
    return ATTN_OK;
}

static int load_config(attn_context_t *context, const attn_context_options_t *options, attn_error_t *error) {
    struct attni_config_sources sources = {.plugin_dir = attni_plugins_beside(),
                                           .api_file = options->config_file,
                                           .api_text = options->config_text};
    if (!(options->flags & ATTN_CONTEXT_NO_SYSTEM_CONFIG)) {
        sources.system_dir = ATTN_DEFAULT_CONFIG_DIR;
        /* secure_getenv: in a setuid program the caller must not choose what code is loaded. */
        if (!options->config_file) sources.environment_file = secure_getenv("ATTN_CONFIG");
    }
    int code = attni_config_load(&context->config, &sources, error);
    if (code == ATTN_OK && options->plugin_dir)
        code = attni_config_set(&context->config, "attn", "plugin_dir", options->plugin_dir, error);
    return code;
}

static void set_log(attn_context_t *context, const attn_context_options_t *options) {
    context->log.write = options->log;
    context->log.ctx = options->log_ctx;
    context->log.level = options->log_level;
    if (!options->log_level)
        context->log.level = (uint32_t)attni_log_level(attni_config_get(&context->config, "attn", "log"));
}

static void host_log(void *ctx, uint32_t level, const char *text) {
    attni_log(&((attn_context_t *)ctx)->log, level, "%s", text);
}

/* What failed stays visible. Logged: what was requested by name, and every file that is there and cannot
 * be used. */
static void log_plugins(const attn_context_t *context) {
    for (size_t i = 0; i < context->plugins.count; i++) {
        const struct attni_plugin *plugin = context->plugins.items[i];
        if (plugin->refusal.code == ATTN_OK && plugin->is_replaced)
            attni_log(&context->log, ATTN_LOG_WARN, "plugin %s: %s", plugin->name, plugin->refusal.text);
        else if (plugin->refusal.code == ATTN_OK)
            attni_log(&context->log, ATTN_LOG_INFO, "plugin %s %s loaded from %s", plugin->info.name,
                      plugin->info.version, plugin->path);
        else if (plugin->refusal.code == ATTN_E_STATE || (plugin->is_default && plugin->is_absent))
            attni_log(&context->log, ATTN_LOG_DEBUG, "plugin %s: %s", plugin->name, plugin->refusal.text);
        else
            attni_log(&context->log, ATTN_LOG_WARN, "plugin %s was refused: %s", plugin->name,
                      plugin->refusal.text);
    }
}

static void keep_value(void *user, const struct attni_config_item *item) {
    attn_context_t *context = user;
    if (context->value_count == context->value_capacity) return;
    context->values[context->value_count++] =
        (attn_config_value_t){.struct_size = sizeof(attn_config_value_t),
                              .line = (int32_t)item->line,
                              .section = item->section,
                              .key = item->key,
                              .value = item->value,
                              .source = item->source};
}

static int keep_values(attn_context_t *context, attn_error_t *error) {
    context->value_capacity = attni_config_each(&context->config, NULL, NULL);
    context->values = calloc(context->value_capacity + 1, sizeof *context->values);
    if (!context->values)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the configuration");
    attni_config_each(&context->config, keep_value, context);
    return ATTN_OK;
}

static int fill(attn_context_t *context, const attn_context_options_t *options, attn_error_t *error) {
    int code = load_config(context, options, error);
    if (code != ATTN_OK) return code;
    set_log(context, options);
    if ((code = attni_mm_encoder_open(context, error))) return code;
    if ((code = keep_values(context, error))) return code;
    const char *held_back = options->flags & ATTN_CONTEXT_NO_PLUGINS
                                ? "the context was created with ATTN_CONTEXT_NO_PLUGINS"
                                : NULL;
    if ((code = attni_plugins_load(&context->plugins, &context->config, held_back, error))) return code;
    log_plugins(context);
    if ((code = attni_options_check(&context->plugins, &context->config, error))) return code;
    attni_options_stray(&context->plugins, &context->config, &context->log);
    if ((code = attni_registry_fill(&context->registry, &context->plugins, error))) return code;
    if (held_back || !attni_config_bool(&context->config, "attn", "load", 1)) return ATTN_OK;
    return attni_select_check(context, error);
}

static int read_options(const attn_context_options_t *given, attn_context_options_t *options,
                        attn_error_t *error) {
    *options = (attn_context_options_t){.struct_size = sizeof *options};
    int code = given ? attn_intake(options, sizeof *options, given, "options", error) : ATTN_OK;
    if (code == ATTN_OK) code = ATTNI_RESERVED(attn_context_options_t, options, error);
    if (code != ATTN_OK) return code;
    if (options->flags & ~(ATTN_CONTEXT_NO_SYSTEM_CONFIG | ATTN_CONTEXT_NO_PLUGINS))
        return attn_fail(error, ATTN_E_TOO_NEW, "flags",
                         "options.flags is 0x%x; this libattn knows 0x3: update it", options->flags);
    if (options->log_level > ATTN_LOG_DEBUG)
        return attn_fail(error, ATTN_E_INVALID, "log_level", "options.log_level is %u, expected 0 to %d",
                         options->log_level, ATTN_LOG_DEBUG);
    if (options->plugin_dir && options->plugin_dir[0] != '/')
        return attn_fail(error, ATTN_E_INVALID, "plugin_dir",
                         "options.plugin_dir '%s' is not absolute; write it from / on", options->plugin_dir);
    return ATTN_OK;
}

int attn_context_create(const attn_context_options_t *given, attn_context_t **context, attn_error_t *error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    attn_context_options_t options;
    if (!context)
        return attn_fail(error, ATTN_E_INVALID, "context", "context is NULL; pass the address of a pointer");
    int code = read_options(given, &options, error);
    if (code != ATTN_OK) return code;
    attn_context_t *made = calloc(1, sizeof *made);
    if (!made) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for a context");
    pthread_once(&once, watch_forks);
    made->fork_generation = attni_fork_generation();
    pthread_mutex_init(&made->lock, NULL);
    made->host = (attn_host_t){.struct_size = sizeof made->host,
                               .ctx = made,
                               .log = host_log,
                               .get_extension = attni_host_extension};
    code = fill(made, &options, error);
    if (code != ATTN_OK)
        attn_context_destroy(made);
    else
        *context = made;
    return code;
}

void attn_context_destroy(attn_context_t *context) {
    if (!context) return;
    unsigned groups = atomic_load(&context->num_groups);
    /* A child may drop the parent's objects in any order: the layers and groups that remain look at their
     * context. */
    if (groups && attni_context_check(context, NULL) != ATTN_OK) return;
    if (groups) {
        attni_log(&context->log, ATTN_LOG_ERROR,
                  "attn_context_destroy: %u groups are still open; close them first (the context stays)",
                  groups);
        return;
    }
    if (context->layers && context->free_layers) context->free_layers(context->layers);
    attni_mm_encoder_free(context->mm_encoder);
    attni_recorder_free(context->recorder);
    attni_registry_free(&context->registry);
    attni_plugins_free(&context->plugins);
    free(context->values);
    attni_config_free(&context->config);
    pthread_mutex_destroy(&context->lock);
    free(context);
}
