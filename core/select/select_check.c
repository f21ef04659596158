/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A typo in the name of a backend would make a priority list skip it silently. Every name that the
 * [select] sections give is therefore looked up once, when a context is made.
 */
#include "load/context.h"
#include <attn/attn_plugin_util.h>
#include "base/nearest.h"
#include "select/select_rules.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_NAMES = 256 };

static void check_name(const attn_context_t *context, const struct attni_ini_entry *entry, const char *name) {
    const char *known[MAX_NAMES];
    char near[96];
    /* A backend of a plugin of ours that is not installed is not a typo: lists are shared between machines.
     * */
    if (attni_registry_find(&context->registry, name) || attni_plugin_of_backend(name)) return;
    if (!strcasecmp(name, "auto")) return;
    size_t count = attni_known_backends(known, MAX_NAMES);
    for (size_t i = 0; i < context->registry.count && count < MAX_NAMES; i++)
        known[count++] = context->registry.items[i]->shown.name;
    attni_log(&context->log, ATTN_LOG_WARN, "%s:%u: no loaded plugin has the backend '%s' of [%s] %s%s",
              entry->source, entry->line, name, entry->section, entry->key,
              attni_did_you_mean(near, sizeof near, name, known, count));
}

int attni_select_check(const attn_context_t *context, attn_error_t *error) {
    const struct attni_ini *ini = &context->config.ini;
    for (size_t i = 0; i < ini->count; i++) {
        const struct attni_ini_entry *entry = &ini->entries[i];
        char **names, *text;
        size_t count;
        if (!entry->key || strncmp(entry->section, "select ", 7) != 0) continue;
        int is_replaced = attni_ini_find(ini, entry->section, entry->key) != entry; /* by a later source */
        if (is_replaced) continue;
        if (attni_list_split(entry->value, &names, &count, &text))
            return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the names of [%s]",
                             entry->section);
        for (size_t j = 0; j < count; j++)
            check_name(context, entry, names[j]);
        free(text);
        free(names);
    }
    return ATTN_OK;
}
