/* SPDX-License-Identifier: Apache-2.0 */
/* hf_fields.c: typed access to JSON fields. */
#include "hf_fields.h"

#include <attn/attn_plugin_util.h>
#include <math.h>

void hf_fail(const hf_reader_t *reader, const char *field, const char *format, ...) {
    if (*reader->failed) return;
    char what[240];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    *reader->failed = attn_fail(reader->error, ATTN_E_PARSE, field, "%s: %.*s %s", reader->label,
                                (int)strcspn(field, "|"), field, what);
}

const json_t *hf_field(const hf_reader_t *reader, const char *names) {
    char name[64];
    for (const char *at = names;; at++) {
        size_t length = strcspn(at, "|");
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        const json_t *value = json_object_get(reader->object, name);
        if (value != NULL && !json_is_null(value)) return value;
        at += length;
        if (*at == '\0') return NULL;
    }
}

int64_t hf_int(const hf_reader_t *reader, const char *names, int64_t fallback) {
    const json_t *value = hf_field(reader, names);
    if (value == NULL || *reader->failed) return fallback;
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > INT32_MAX) {
        hf_fail(reader, names, "must be a whole number from 0 to %d", INT32_MAX);
        return fallback;
    }
    return json_integer_value(value);
}

int64_t hf_int_required(const hf_reader_t *reader, const char *names) {
    int64_t value = hf_int(reader, names, 0);
    if (value == 0) hf_fail(reader, names, "is missing or 0; it is needed to describe the attention layers");
    return value;
}

double hf_real(const hf_reader_t *reader, const char *names, double fallback) {
    const json_t *value = hf_field(reader, names);
    if (value == NULL || *reader->failed) return fallback;
    if (!json_is_number(value) || !isfinite(json_number_value(value))) {
        hf_fail(reader, names, "must be a number");
        return fallback;
    }
    return json_number_value(value);
}

int hf_bool(const hf_reader_t *reader, const char *names, int fallback) {
    const json_t *value = hf_field(reader, names);
    if (value == NULL || *reader->failed) return fallback;
    if (!json_is_boolean(value)) {
        hf_fail(reader, names, "must be true or false");
        return fallback;
    }
    return json_is_true(value);
}

const char *hf_text(const hf_reader_t *reader, const char *names, const char *fallback) {
    const json_t *value = hf_field(reader, names);
    if (value == NULL || *reader->failed) return fallback;
    if (!json_is_string(value)) {
        hf_fail(reader, names, "must be text");
        return fallback;
    }
    return json_string_value(value);
}

hf_reader_t hf_object(const hf_reader_t *reader, const char *names) {
    hf_reader_t inner = *reader;
    inner.object = hf_field(reader, names);
    if (inner.object != NULL && !json_is_object(inner.object)) {
        hf_fail(reader, names, "must be an object");
        inner.object = NULL;
    }
    return inner;
}
