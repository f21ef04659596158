/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Enumerations of attn_types.h by name, in both directions: configuration files, problem texts and
 * messages.
 */
#ifndef ATTNI_NAMES_H
#define ATTNI_NAMES_H

#include <stddef.h>
#include <stdint.h>

enum { ATTNI_NAMES_MAX = 64 };

struct attni_alias {
    const char *name; /* NULL ends the list */
    uint32_t value;
};

struct attni_names {
    const char *(*name_of)(uint32_t value);
    uint32_t first, last;              /* values that have names */
    const struct attni_alias *aliases; /* NULL: none; read, never written */
    const char *(*alias_of)(uint32_t value); /* NULL: none; where the aliases are in a table of the values */
};

extern const struct attni_names attni_roles, attni_masks, attni_dtypes, attni_kv_dtypes, attni_layouts;
extern const struct attni_names attni_reason_codes;
extern const struct attni_names attni_features; /* values are bit numbers */

/* The name of a value, or NULL if it has none. [any thread] */
const char *attni_name_of(const struct attni_names *table, uint32_t value);

/* The value of a name or alias (letter case ignored), or -1. [any thread] */
long attni_value_of(const struct attni_names *table, const char *name);

/* All names, for messages and near misses: at most ATTNI_NAMES_MAX. Returns how many. [any thread] */
size_t attni_names_list(const struct attni_names *table, const char *list[ATTNI_NAMES_MAX]);

#endif
