/* SPDX-License-Identifier: Apache-2.0 */
/* Which backends are tried for a role on a device, and who said so. */
#ifndef ATTNI_SELECT_RULES_H
#define ATTNI_SELECT_RULES_H

#include "base/arena.h"
#include "config/config.h"

#include <attn/attn.h>

struct attni_select_rule {
    const char *explicit_backend; /* NULL: by priority */
    int is_from_api;              /* the explicit backend comes from the call, not from the configuration */
    const char *const *names; /* the priority list; also filled beside an explicit backend, for a fallback */
    size_t count;
    const char *source;          /* of what is in force: "api", "FILE:LINE", "default" */
    const char *priority_source; /* of the list */
};

/* The built-in list of a role on a device (semantics 5.3, without backends that libattn does not have). */
const char *const *attni_default_priority(uint32_t role, const attn_device_t *device, size_t *count);

/* The plugin that holds a backend of the built-in lists, or NULL: for "its plugin did not load". */
const char *attni_plugin_of_backend(const char *backend);

/* The names of those backends. Returns how many were written. */
size_t attni_known_backends(const char *names[], size_t room);

/*
 * requested: the call's own request, NULL or "auto": none. Else [select ROLE DEVICE], then [select ROLE],
 * then the list built in. phase: 0, or the keys of one phase, for which no list is built in: a rule without
 * names then. What is made lives in arena. ATTN_E_NO_MEMORY is the only failure.
 */
int attni_select_rule(const struct attni_config *config, uint32_t role, uint32_t phase,
                      const attn_device_t *device, const char *requested, struct attni_arena *arena,
                      struct attni_select_rule *rule);

/* Adds to the warning of a record, which keeps a copy. */
void attni_selection_warn(attn_selection_t *selection, const char *warning);

#endif
