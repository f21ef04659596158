/* SPDX-License-Identifier: Apache-2.0 */
/* Sections: [attn] [select ROLE] [select ROLE DEVICE] [plugin NAME] [option NAME] [hook NAME]. */
#include "config/config_schema.h"
#include "device/device_kind.h"

#include <attn/attn_plugin_util.h>
#include "base/names.h"
#include "base/nearest.h"
#include "base/number_text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef ATTN_DEFAULT_PLUGINS
#define ATTN_DEFAULT_PLUGINS "flash, triton_like, mla, mla_sparse, mm_encoder, cpu, reference"
#endif
#ifndef ATTN_DEFAULT_PLUGIN_DIR
#define ATTN_DEFAULT_PLUGIN_DIR "/usr/local/lib/attn"
#endif

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct attni_key keys[] = {
    {"attn", NULL, "plugins", ATTNI_VALUE_LIST, ATTN_DEFAULT_PLUGINS, NULL, "plugins to load, in this order"},
    {"attn", NULL, "fallback", ATTNI_VALUE_CHOICE, "error", "error warn quiet",
     "what happens when a [select] backend does not serve a problem: an error, or the priority list with or "
     "without a warning"},
    {"attn", NULL, "load", ATTNI_VALUE_BOOL, "yes", NULL, "no: load no plugin at all"},
    {"attn", NULL, "plugin_dir", ATTNI_VALUE_ABSOLUTE_PATH, ATTN_DEFAULT_PLUGIN_DIR, NULL,
     "where plugins are looked for"},
    {"attn", NULL, "log", ATTNI_VALUE_CHOICE, "warn", "off error warn info debug",
     "lowest severity passed to the engine's log function"},
    {"attn", NULL, "rank_part_bytes", ATTNI_VALUE_COUNT, "8388608", NULL,
     "prompts over ranks: the least bytes of queries that are exchanged while others are attended to; 0: all "
     "are exchanged first"},
    {"attn", NULL, "q_scale_constant", ATTNI_VALUE_POSITIVE, "200", NULL,
     "calculate_kv_scales: q_scale is max|Q| over this (semantics 3.3)"},
    {"attn", NULL, "k_scale_constant", ATTNI_VALUE_POSITIVE, "200", NULL, "the same of K"},
    {"attn", NULL, "v_scale_constant", ATTNI_VALUE_POSITIVE, "100", NULL, "the same of V"},
    {"select", NULL, "priority", ATTNI_VALUE_LIST, NULL, NULL, "backends to try, best first"},
    {"select", NULL, "backend", ATTNI_VALUE_NAME, NULL, NULL, "the backend to use, or auto"},
    {"select", NULL, "prefill_backend", ATTNI_VALUE_NAME, NULL, NULL,
     "the backend to use for batches that hold prefill, where its cache is that of decode; or auto"},
    {"select", NULL, "prefill_priority", ATTNI_VALUE_LIST, NULL, NULL,
     "backends to try for such batches; where none can share the cache, one backend does both"},
    {"select", NULL, "decode_backend", ATTNI_VALUE_NAME, NULL, NULL,
     "the backend to use for batches of decode alone and for captured ones, likewise; or auto"},
    {"select", NULL, "decode_priority", ATTNI_VALUE_LIST, NULL, NULL, "backends to try for those"},
    {"plugin", NULL, "path", ATTNI_VALUE_PATH, NULL, NULL,
     "file; relative: below plugin_dir; default NAME.so"},
    {"plugin", NULL, "enabled", ATTNI_VALUE_BOOL, NULL, NULL, "no: do not load it (default yes)"},
    {"plugin", NULL, "required", ATTNI_VALUE_BOOL, NULL, NULL, "yes: no context without this plugin"},
    {"mm_encoder", NULL, "attn_dtype", ATTNI_VALUE_CHOICE, "auto", "auto fp8",
     "fp8: encoders of images and sound quantise Q, K and V (semantics 7.6)"},
    {"mm_encoder", NULL, "fp8_scale_path", ATTNI_VALUE_ABSOLUTE_PATH, NULL, NULL,
     "JSON file with the static scales of every layer; without it they are dynamic"},
    {"mm_encoder", NULL, "fp8_scale_save_path", ATTNI_VALUE_ABSOLUTE_PATH, NULL, NULL,
     "where dynamic scales are saved once the first layer has seen 16 calls"},
    {"mm_encoder", NULL, "fp8_scale_save_margin", ATTNI_VALUE_POSITIVE, "1.5", NULL,
     "factor of the scales that are saved"},
    {"hook", "trace", "file", ATTNI_VALUE_ABSOLUTE_PATH, NULL, NULL,
     "write every call as a line of JSON to this file"},
    {"hook", "trace", "format", ATTNI_VALUE_CHOICE, "lines", "lines chrome",
     "chrome: a timeline that a browser's trace viewer opens"},
    {"hook", "trace", "max_bytes", ATTNI_VALUE_COUNT, "67108864", NULL, "size at which the trace stops"},
    {"hook", "record", "file", ATTNI_VALUE_ABSOLUTE_PATH, NULL, NULL,
     "record calls to this safetensors file, for attn run --replay; %p in it is the process"},
    {"hook", "record", "calls", ATTNI_VALUE_COUNT, "1", NULL, "how many calls of forward to record"},
    {"hook", "record", "first", ATTNI_VALUE_COUNT, "0", NULL, "how many calls to skip first"},
    {"hook", "record", "tensors", ATTNI_VALUE_BOOL, "no", NULL,
     "yes: everything that the call reads and writes; no: shapes and lengths only"},
    {"hook", "record", "max_bytes", ATTNI_VALUE_COUNT, "268435456", NULL, "maximum size of the file"},
    {"hook", "check", "level", ATTNI_VALUE_CHOICE, "off", "off index all",
     "index: check lengths and indices of every call; all: also NaN, canaries and poisoned workspaces"},
    {"hook", "shadow", "backend", ATTNI_VALUE_NAME, NULL, NULL,
     "run this backend beside the chosen one and compare"},
    {"hook", "shadow", "sample", ATTNI_VALUE_COUNT, "100", NULL, "compare every n-th call"},
};

static const char *const section_kinds[] = {"attn", "select", "plugin", "option", "mm_encoder", "hook"};
static const char *const hook_names[] = {"trace", "record", "check", "shadow"};
const struct attni_key *attni_config_keys(size_t *count) {
    *count = COUNT(keys);
    return keys;
}

int attni_device_key(const char *text, int32_t *type, int32_t *capability) {
    const attn_device_kind_t *kind = attni_device_kind_named(text, strlen(text));
    *capability = 0;
    if (kind != NULL ? kind->capability_prefix != NULL
                     : (*capability = attni_device_capability(text, &kind)) < 0)
        return -1;
    *type = kind->type;
    return 0;
}

/* A section's name split at its blanks. */
struct section {
    char text[64];
    char *kind, *argument, *device; /* NULL where absent */
};

static int is_name(const char *text) {
    size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return length > 0 && length < 64 && !text[length];
}

static int wrong(const struct attni_ini_entry *at, attn_error_t *error, const char *what,
                 const char *wanted) {
    return attn_fail(error, ATTN_E_PARSE, at->key ? at->key : at->section, "%s:%u: %s; %s", at->source,
                     at->line, what, wanted);
}

/* "X is not known, did you mean Y; known are: A B C" */
static int unknown(const struct attni_ini_entry *at, attn_error_t *error, const char *what, const char *have,
                   const char *const *names, size_t count) {
    char near[96], list[256] = "", said[320];
    size_t used = 0;
    for (size_t i = 0; i < count && used < sizeof list - 1; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, " %s", names[i]);
    attni_did_you_mean(near, sizeof near, have, names, count);
    snprintf(said, sizeof said, "unknown %s%s", what, near);
    char wanted[288];
    snprintf(wanted, sizeof wanted, "known are:%s", list);
    return wrong(at, error, said, wanted);
}

static int split_section(const struct attni_ini_entry *at, struct section *out, attn_error_t *error) {
    snprintf(out->text, sizeof out->text, "%s", at->section);
    out->kind = out->text;
    out->argument = out->device = NULL;
    char *blank = strchr(out->text, ' ');
    if (blank) {
        *blank = 0;
        out->argument = blank + 1;
        if ((blank = strchr(out->argument, ' '))) {
            *blank = 0;
            out->device = blank + 1;
        }
    }
    for (size_t i = 0; i < COUNT(section_kinds); i++)
        if (!strcmp(out->kind, section_kinds[i])) return 0;
    char what[96];
    snprintf(what, sizeof what, "section [%s]", at->section);
    return unknown(at, error, what, out->kind, section_kinds, COUNT(section_kinds));
}

/* A role without a cache has no decode, and no cache that two backends could share. */
static int check_phase(const struct attni_ini_entry *at, uint32_t role, attn_error_t *error) {
    char what[160];
    if (!at->key || attn_role_has_cache(role) ||
        (strncmp(at->key, "prefill_", 8) != 0 && strncmp(at->key, "decode_", 7) != 0))
        return 0;
    snprintf(what, sizeof what, "'%s' in [%s], whose role has no cache and so no phases", at->key,
             at->section);
    return wrong(at, error, what, "write backend or priority");
}

static int check_select(const struct attni_ini_entry *at, const struct section *section,
                        attn_error_t *error) {
    if (!section->argument)
        return wrong(at, error, "[select] does not name a role", "write [select decoder]");
    uint32_t known = 0;
    for (uint32_t role = attni_roles.first; role <= attni_roles.last; role++)
        if (!strcmp(section->argument, attni_name_of(&attni_roles, role))) known = role;
    if (!known) {
        const char *list[ATTNI_NAMES_MAX];
        size_t count = attni_names_list(&attni_roles, list);
        char what[96];
        snprintf(what, sizeof what, "role '%s'", section->argument);
        return unknown(at, error, what, section->argument, list, count);
    }
    int32_t type, capability;
    if (section->device && attni_device_key(section->device, &type, &capability) != 0)
        return wrong(at, error, "the device of [select ROLE DEVICE] is not known", "write sm_90 or cpu");
    return check_phase(at, known, error);
}

static int check_section(const struct attni_ini_entry *at, const struct section *section,
                         attn_error_t *error) {
    if (!strcmp(section->kind, "select")) return check_select(at, section, error);
    if (!strcmp(section->kind, "attn"))
        return section->argument ? wrong(at, error, "[attn] takes no name", "write [attn]") : 0;
    if (!strcmp(section->kind, "mm_encoder"))
        return section->argument ? wrong(at, error, "[mm_encoder] takes no name", "write [mm_encoder]") : 0;
    if (!section->argument || section->device || !is_name(section->argument))
        return wrong(at, error, "the section needs exactly one name of letters, digits, '_' and '-'",
                     "write [plugin flash], [option flash] or [hook trace]");
    if (strcmp(section->kind, "hook")) return 0;
    for (size_t i = 0; i < COUNT(hook_names); i++)
        if (!strcmp(section->argument, hook_names[i])) return 0;
    char what[96];
    snprintf(what, sizeof what, "hook '%s'", section->argument);
    return unknown(at, error, what, section->argument, hook_names, COUNT(hook_names));
}

static int check_list(const struct attni_ini_entry *at, attn_error_t *error) {
    char text[ATTNI_INI_LINE_MAX + 2], *seen[64];
    size_t count = 0;
    snprintf(text, sizeof text, "%s", at->value);
    for (char *item = text, *next; item; item = next) {
        if ((next = strchr(item, ','))) *next++ = 0;
        while (*item == ' ' || *item == '\t')
            item++;
        size_t length = strlen(item);
        while (length && (item[length - 1] == ' ' || item[length - 1] == '\t'))
            item[--length] = 0;
        if (!is_name(item))
            return wrong(at, error,
                         length ? "a list entry has a character that is not allowed in names"
                                : "empty list entry",
                         "write names separated by commas");
        for (size_t i = 0; i < count; i++)
            if (!strcmp(seen[i], item))
                return wrong(at, error, "duplicate name in the list", "keep one of them");
        if (count == COUNT(seen)) return wrong(at, error, "more than 64 names in the list", "shorten it");
        seen[count++] = item;
    }
    return 0;
}

static int check_choice(const struct attni_ini_entry *at, const struct attni_key *key, attn_error_t *error) {
    char text[128];
    const char *list[16];
    size_t count = 0;
    snprintf(text, sizeof text, "%s", key->choices);
    for (char *save, *word = strtok_r(text, " ", &save); word && count < COUNT(list);
         word = strtok_r(NULL, " ", &save)) {
        if (!strcmp(word, at->value)) return 0;
        list[count++] = word;
    }
    char what[ATTNI_INI_LINE_MAX + 64];
    snprintf(what, sizeof what, "value '%.60s' of '%s'", at->value, at->key);
    return unknown(at, error, what, at->value, list, count);
}

/* Digits with a point and an exponent, whatever the locale says a number is. */
static int is_positive(const char *text) {
    double value = 0;
    return *text >= '0' && *text <= '9' && !*attni_double_parse(text, &value) && isfinite(value) && value > 0;
}

static int check_value(const struct attni_ini_entry *at, const struct attni_key *key, attn_error_t *error) {
    char what[160];
    snprintf(what, sizeof what, "'%s' has the invalid value '%.60s'", at->key, at->value);
    switch (key->type) {
    case ATTNI_VALUE_LIST:
        return check_list(at, error);
    case ATTNI_VALUE_CHOICE:
        return check_choice(at, key, error);
    case ATTNI_VALUE_NAME:
        return is_name(at->value) ? 0 : wrong(at, error, what, "write one name");
    case ATTNI_VALUE_BOOL:
        return attni_bool_value(at->value) >= 0 ? 0 : wrong(at, error, what, "write yes or no");
    case ATTNI_VALUE_PATH:
        return at->value[0] ? 0 : wrong(at, error, what, "write a file name");
    case ATTNI_VALUE_ABSOLUTE_PATH:
        return at->value[0] == '/' ? 0 : wrong(at, error, what, "write a path that starts with /");
    case ATTNI_VALUE_POSITIVE:
        return is_positive(at->value) ? 0 : wrong(at, error, what, "write a number above 0, like 1.5");
    case ATTNI_VALUE_COUNT:
        break;
    }
    size_t digits = strspn(at->value, "0123456789");
    int fits = digits && !at->value[digits] && digits <= 10 && strtoll(at->value, NULL, 10) <= INT32_MAX;
    return fits ? 0 : wrong(at, error, what, "write a whole number from 0 to 2147483647");
}

int attni_config_check(const struct attni_ini_entry *at, attn_error_t *error) {
    struct section section = {.kind = NULL};
    int code = split_section(at, &section, error);
    if (code == ATTN_OK) code = check_section(at, &section, error);
    /* The options of a plugin are checked against the plugin's own table once it is loaded. */
    if (code || !at->key || !strcmp(section.kind, "option")) return code;
    const char *names[COUNT(keys)];
    size_t count = 0;
    for (size_t i = 0; i < COUNT(keys); i++) {
        const struct attni_key *key = &keys[i];
        if (strcmp(key->section, section.kind) || (key->argument && strcmp(key->argument, section.argument)))
            continue;
        if (!strcmp(key->key, at->key)) return check_value(at, key, error);
        names[count++] = key->key;
    }
    char what[160];
    snprintf(what, sizeof what, "key '%s' in [%s]", at->key, at->section);
    return unknown(at, error, what, at->key, names, count);
}
