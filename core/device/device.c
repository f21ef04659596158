/* SPDX-License-Identifier: Apache-2.0 */
/* device.c: devices by text: "cpu", "cuda", "cuda:1", the same of other kinds, and "sm_90" for one that
 * need not be here. */
#include "device/device.h"

#include <attn/attn_plugin_util.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ORDINAL = 1023 };

/* With a word for each kind that is known. */
static int unknown(const char *text, attn_error_t *error) {
    char words[200] = "";
    size_t used = 0;
    const attn_device_kind_t *kind;
    for (uint32_t i = 1; (kind = attn_device_kind_at(i)) != NULL && used < sizeof words; i++)
        used += (size_t)snprintf(words + used, sizeof words - used, "%s:0, ", kind->name);
    return attn_fail(error, ATTN_E_INVALID, "device",
                     "unknown device '%.40s'; write %s, %sor sm_90 for a device that is not present", text,
                     attn_device_kind_at(0)->name, words);
}

static int hypothetical_device(const attn_device_kind_t *kind, int32_t capability, attn_device_t *device) {
    ATTN_INIT(attn_device_t, d);
    d.type = kind->type;
    d.id = -1;
    d.compute_capability = capability;
    snprintf(d.name, sizeof d.name, "%s%d (not present)", kind->capability_prefix, (int)capability);
    *device = d;
    return ATTN_OK;
}

/* What a plugin's kind says of its device, made safe for a reader. */
static int describe(const attn_device_kind_t *kind, int32_t id, attn_device_t *device, attn_error_t *error) {
    ATTN_INIT(attn_device_t, d);
    const int code = kind->describe(id, &d, NULL, error);
    if (code != ATTN_OK) return code;
    d.type = kind->type;
    d.id = id;
    d.name[sizeof d.name - 1] = '\0';
    *device = d;
    return ATTN_OK;
}

/* Digits only; -1: anything else, or too large. */
static int32_t ordinal_of(const char *text) {
    if (!isdigit((unsigned char)text[0])) return -1;
    char *end;
    const long value = strtol(text, &end, 10);
    return *end != '\0' || value > MAX_ORDINAL ? -1 : (int32_t)value;
}

int attn_device_parse(const char *text, attn_device_t *device, attn_error_t *error) {
    if (device == NULL)
        return attn_fail(error, ATTN_E_INVALID, "device",
                         "device is NULL; pass the address of an attn_device_t");
    if (text == NULL) /* kinds of plugins are taken on demand, as their backends are */
        return describe(&attni_device_cuda, 0, device, NULL) == ATTN_OK
                   ? ATTN_OK
                   : describe(&attni_device_cpu, 0, device, error);
    const size_t length = strcspn(text, ":");
    const attn_device_kind_t *kind = attni_device_kind_named(text, length);
    if (kind != NULL) {
        const int32_t ordinal = text[length] == '\0' ? 0 : ordinal_of(text + length + 1);
        return ordinal < 0 ? unknown(text, error) : describe(kind, ordinal, device, error);
    }
    const int32_t capability = attni_device_capability(text, &kind);
    return capability < 0 ? unknown(text, error) : hypothetical_device(kind, capability, device);
}

/* ---------------------------------------------------------------------- memory */

static const attn_device_kind_t *kind_of(const attn_device_t *device, attn_error_t *error) {
    const attn_device_kind_t *kind = attn_device_kind(device->type);
    if (kind == NULL)
        attn_fail(error, ATTN_E_DEVICE, "device",
                  "libattn cannot reach the memory of device type %d; its plugin must bring a device kind "
                  "(attn_device.h)",
                  (int)device->type);
    return kind;
}

int attni_device_read(const attn_device_t *device, void *host, const void *from, size_t bytes, void *stream,
                      attn_error_t *error) {
    const attn_device_kind_t *kind = kind_of(device, error);
    return kind == NULL ? ATTN_E_DEVICE : kind->copy_from(device->id, host, from, bytes, stream, error);
}

int attni_device_write(const attn_device_t *device, void *to, const void *host, size_t bytes, void *stream,
                       attn_error_t *error) {
    const attn_device_kind_t *kind = kind_of(device, error);
    return kind == NULL ? ATTN_E_DEVICE : kind->copy_to(device->id, to, host, bytes, stream, error);
}

int attni_device_is_capturing(const attn_device_t *device, void *stream) {
    const attn_device_kind_t *kind = attn_device_kind(device->type);
    uint32_t capturing = 0;
    if (kind == NULL || kind->is_capturing == NULL) return 0;
    return kind->is_capturing(device->id, stream, &capturing, NULL) == ATTN_OK && capturing != 0;
}
