/* SPDX-License-Identifier: Apache-2.0 */
/* device_kind.c: the list of kinds. It only grows, and an entry never changes, so that readers take no
 * lock. */
#include "device/device_kind.h"

#include <attn/attn_plugin_util.h>
#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_KINDS = 32, MIN_CAPABILITY = 10, MAX_CAPABILITY = 999 };

static const attn_device_kind_t *kinds[MAX_KINDS] = {&attni_device_cpu, &attni_device_cuda};
static atomic_uint num_kinds = 2;
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;

const attn_device_kind_t *attn_device_kind_at(uint32_t index) {
    return index < atomic_load_explicit(&num_kinds, memory_order_acquire) ? kinds[index] : NULL;
}

const attn_device_kind_t *attn_device_kind(int32_t type) {
    const attn_device_kind_t *kind;
    for (uint32_t i = 0; (kind = attn_device_kind_at(i)) != NULL; i++)
        if (kind->type == type) return kind;
    return NULL;
}

const attn_device_kind_t *attni_device_kind_named(const char *name, size_t length) {
    const attn_device_kind_t *kind;
    for (uint32_t i = 0; (kind = attn_device_kind_at(i)) != NULL; i++)
        if (strlen(kind->name) == length && strncasecmp(kind->name, name, length) == 0) return kind;
    return NULL;
}

/* ------------------------------------------------------------------ of plugins */

/* With the lock. *is_known: the list has this kind. */
static int check_others(const attn_device_kind_t *k, const char *bringer, int *is_known,
                        attn_error_t *error) {
    const attn_device_kind_t *same_type = attn_device_kind(k->type),
                             *same_name = attni_device_kind_named(k->name, strlen(k->name));
    *is_known = same_type != NULL && same_type == same_name;
    if (*is_known) return ATTN_OK;
    if (same_type != NULL)
        return attn_fail(
            error, ATTN_E_STATE, "device",
            "%s: device kind %s has type %d, which is already %s; use only one of the two plugins", bringer,
            k->name, (int)k->type, same_type->name);
    if (same_name != NULL)
        return attn_fail(error, ATTN_E_STATE, "device",
                         "%s: device kind %s has type %d, but already exists with type %d; use only one of "
                         "the two plugins",
                         bringer, k->name, (int)k->type, (int)same_name->type);
    if (atomic_load(&num_kinds) == MAX_KINDS)
        return attn_fail(error, ATTN_E_STATE, "device",
                         "%s: there are already %d kinds of devices; load fewer plugins", bringer, MAX_KINDS);
    return ATTN_OK;
}

int attni_device_kind_add(const attn_device_kind_t *raw, const char *bringer, attn_error_t *error) {
    attn_device_kind_t taken;
    int is_known = 0, code = attni_device_kind_check(raw, &taken, bringer, error);
    if (code != ATTN_OK) return code;
    pthread_mutex_lock(&adding);
    code = check_others(&taken, bringer, &is_known, error);
    if (code == ATTN_OK && !is_known) {
        attn_device_kind_t *kept = malloc(sizeof *kept);
        if (kept == NULL) {
            code = attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for device kind %s", taken.name);
        } else {
            const unsigned count = atomic_load(&num_kinds);
            *kept = taken;
            kinds[count] = kept;
            atomic_store_explicit(&num_kinds, count + 1, memory_order_release);
        }
    }
    pthread_mutex_unlock(&adding);
    return code;
}

/* ------------------------------------------------------------------------ text */

const char *attni_device_text(int32_t type, int32_t capability, char *text, size_t size) {
    const attn_device_kind_t *kind = attn_device_kind(type);
    if (kind == NULL)
        snprintf(text, size, "device type %d", (int)type);
    else if (kind->capability_prefix != NULL && capability != 0)
        snprintf(text, size, "%s%d", kind->capability_prefix, (int)capability);
    else
        snprintf(text, size, "%s", kind->name);
    return text;
}

/* The smallest and largest number are guards against typing errors. */
int32_t attni_device_capability(const char *text, const attn_device_kind_t **kind) {
    for (uint32_t i = 0; (*kind = attn_device_kind_at(i)) != NULL; i++) {
        const char *prefix = (*kind)->capability_prefix;
        if (prefix == NULL || strncasecmp(text, prefix, strlen(prefix)) != 0) continue;
        const char *digits = text + strlen(prefix);
        if (!isdigit((unsigned char)digits[0])) continue;
        char *end;
        const long value = strtol(digits, &end, 10);
        if (*end == 'a' || *end == 'f') end++;
        if (*end == '\0' && value >= MIN_CAPABILITY && value <= MAX_CAPABILITY) return (int32_t)value;
    }
    return -1;
}
