/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one table of sections and keys that a configuration may hold: parsing, checking and printing come
 * from it.
 */
#ifndef ATTNI_CONFIG_SCHEMA_H
#define ATTNI_CONFIG_SCHEMA_H

#include "base/number_text.h"
#include "config/ini_table.h"

enum attni_value_type {
    ATTNI_VALUE_LIST,     /* names separated by commas */
    ATTNI_VALUE_NAME,     /* letters, digits, '_', '-' */
    ATTNI_VALUE_CHOICE,   /* one of choices */
    ATTNI_VALUE_BOOL,     /* yes no on off true false 1 0 */
    ATTNI_VALUE_COUNT,    /* a whole number from 0 to 2^31 - 1 */
    ATTNI_VALUE_POSITIVE, /* a number above 0 */
    ATTNI_VALUE_PATH,     /* not empty */
    ATTNI_VALUE_ABSOLUTE_PATH
};

struct attni_key {
    const char *section;  /* first word of the section's name */
    const char *argument; /* the section's second word if the key belongs to that one only, else NULL */
    const char *key;
    enum attni_value_type type;
    const char *fallback; /* the value if no source has the key; NULL: none */
    const char *choices;  /* of CHOICE, separated by one blank */
    const char *doc;
};

/* The table. Sets *count. */
const struct attni_key *attni_config_keys(size_t *count);

/* Checks section, key and value of one entry. [any thread] */
int attni_config_check(const struct attni_ini_entry *entry, attn_error_t *error);

/* "sm_90", "sm_100a", "cpu" as type and compute_capability (cpu: 0) of an attn_device_t. 0, or -1: it is no
 * such text. Kinds of plugins are not known yet when the configuration is read. */
int attni_device_key(const char *text, int32_t *type, int32_t *capability);

#endif
