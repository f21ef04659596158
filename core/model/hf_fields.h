/* SPDX-License-Identifier: Apache-2.0 */
/* hf_fields.h: typed, checked access to the fields of a config.json. A reader remembers the first error;
 * later reads give their fallback, so that a column of reads is checked once at its end. */
#ifndef ATTNI_HF_FIELDS_H
#define ATTNI_HF_FIELDS_H

#include <attn/attn_types.h>
#include <jansson.h>

enum { HF_MAX_SEEN = 512 };

/* Which fields of which objects were read. */
typedef struct hf_seen {
    struct {
        const json_t *object;
        char name[48];
    } fields[HF_MAX_SEEN];
    size_t count;
} hf_seen_t;

typedef struct hf_reader {
    const json_t *object;
    const char *label; /* named in errors: the file */
    attn_error_t *error;
    int *failed;     /* shared by all readers of one file */
    hf_seen_t *seen; /* likewise */
} hf_reader_t;

/* names: alternatives separated by '|', the first that is there and not null counts. */
const json_t *attni_hf_field(const hf_reader_t *reader, const char *names);
int64_t attni_hf_int(const hf_reader_t *reader, const char *names, int64_t fallback); /* 0 .. 2^31-1 */
int64_t attni_hf_int_required(const hf_reader_t *reader, const char *names);          /* 1 .. 2^31-1 */
double attni_hf_real(const hf_reader_t *reader, const char *names, double fallback);
int attni_hf_bool(const hf_reader_t *reader, const char *names, int fallback);
const char *attni_hf_text(const hf_reader_t *reader, const char *names, const char *fallback);
/* A reader of an object inside; its object is NULL if there is none. */
hf_reader_t attni_hf_object(const hf_reader_t *reader, const char *names);
/* Whether a field of the reader's object was read under this name, and whether it was entered by
 * hf_object. */
int attni_hf_was_read(const hf_reader_t *reader, const char *name);
int attni_hf_was_entered(const hf_reader_t *reader, const json_t *value);
/* Undoes a read: the value was seen and had no effect. */
void attni_hf_forget(const hf_reader_t *reader, const char *names);
void attni_hf_fail(const hf_reader_t *reader, const char *field, const char *format, ...);

#endif
