/* SPDX-License-Identifier: Apache-2.0 */
/* hf_fields.c: typed access to JSON fields. */
#include "model/hf_fields.h"

#include <attn/attn_plugin_util.h>
#include <math.h>

void attni_hf_fail(const hf_reader_t *reader, const char *field, const char *format, ...) {
    if (*reader->failed) return;
    char what[240];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    *reader->failed = attn_fail(reader->error, ATTN_E_PARSE, field, "%s: %.*s %s", reader->label,
                                (int)strcspn(field, "|"), field, what);
}

static void remember(const hf_reader_t *reader, const json_t *object, const char *name) {
    hf_seen_t *seen = reader->seen;
    for (size_t i = 0; i < seen->count; i++)
        if (seen->fields[i].object == object && strcmp(seen->fields[i].name, name) == 0) return;
    if (seen->count == HF_MAX_SEEN || object == NULL) return;
    seen->fields[seen->count].object = object;
    snprintf(seen->fields[seen->count++].name, sizeof seen->fields[0].name, "%s", name);
}

static int is_remembered(const hf_reader_t *reader, const json_t *object, const char *name) {
    for (size_t i = 0; i < reader->seen->count; i++)
        if (reader->seen->fields[i].object == object && strcmp(reader->seen->fields[i].name, name) == 0)
            return 1;
    return 0;
}

int attni_hf_was_read(const hf_reader_t *reader, const char *name) {
    return is_remembered(reader, reader->object, name);
}

/* An object that was entered is in the list without a name. */
int attni_hf_was_entered(const hf_reader_t *reader, const json_t *value) {
    return is_remembered(reader, value, "");
}

/* The next of names, separated by '|'; NULL behind the last. */
static const char *next_name(const char *at, char *name, size_t size) {
    size_t length = strcspn(at, "|");
    snprintf(name, size, "%.*s", (int)length, at);
    return at[length] == '|' ? at + length + 1 : NULL;
}

void attni_hf_forget(const hf_reader_t *reader, const char *names) {
    char name[64];
    for (const char *at = names; at != NULL;) {
        at = next_name(at, name, sizeof name);
        for (size_t i = 0; i < reader->seen->count; i++)
            if (reader->seen->fields[i].object == reader->object &&
                strcmp(reader->seen->fields[i].name, name) == 0)
                reader->seen->fields[i].object = NULL;
    }
}

const json_t *attni_hf_field(const hf_reader_t *reader, const char *names) {
    char name[64];
    const json_t *first = NULL;
    for (const char *at = names; at != NULL;) {
        at = next_name(at, name, sizeof name);
        const json_t *value = json_object_get(reader->object, name);
        if (value != NULL) remember(reader, reader->object, name);
        if (first == NULL && value != NULL && !json_is_null(value)) first = value;
    }
    return first;
}

int64_t attni_hf_int(const hf_reader_t *reader, const char *names, int64_t fallback) {
    const json_t *value = attni_hf_field(reader, names);
    if (value == NULL || *reader->failed) return fallback;
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > INT32_MAX) {
        attni_hf_fail(reader, names, "must be a whole number from 0 to %d", INT32_MAX);
        return fallback;
    }
    return json_integer_value(value);
}

int64_t attni_hf_int_required(const hf_reader_t *reader, const char *names) {
    int64_t value = attni_hf_int(reader, names, 0);
    if (value == 0)
        attni_hf_fail(reader, names, "is missing or 0; it is needed to describe the attention layers");
    return value;
}

double attni_hf_real(const hf_reader_t *reader, const char *names, double fallback) {
    const json_t *value = attni_hf_field(reader, names);
    if (value == NULL || *reader->failed) return fallback;
    if (!json_is_number(value) || !isfinite(json_number_value(value))) {
        attni_hf_fail(reader, names, "must be a number");
        return fallback;
    }
    return json_number_value(value);
}

int attni_hf_bool(const hf_reader_t *reader, const char *names, int fallback) {
    const json_t *value = attni_hf_field(reader, names);
    if (value == NULL || *reader->failed) return fallback;
    if (!json_is_boolean(value)) {
        attni_hf_fail(reader, names, "must be true or false");
        return fallback;
    }
    return json_is_true(value);
}

const char *attni_hf_text(const hf_reader_t *reader, const char *names, const char *fallback) {
    const json_t *value = attni_hf_field(reader, names);
    if (value == NULL || *reader->failed) return fallback;
    if (!json_is_string(value)) {
        attni_hf_fail(reader, names, "must be text");
        return fallback;
    }
    return json_string_value(value);
}

hf_reader_t attni_hf_object(const hf_reader_t *reader, const char *names) {
    hf_reader_t inner = *reader;
    inner.object = attni_hf_field(reader, names);
    if (inner.object != NULL && !json_is_object(inner.object)) {
        attni_hf_fail(reader, names, "must be an object");
        inner.object = NULL;
    }
    if (inner.object != NULL) remember(reader, inner.object, "");
    return inner;
}
