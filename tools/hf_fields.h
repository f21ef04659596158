/* SPDX-License-Identifier: Apache-2.0 */
/* hf_fields.h: typed, checked access to the fields of a config.json. A reader remembers the first error; later reads give
 * their fallback, so that a column of reads is checked once at its end. */
#ifndef ATTN_TOOLS_HF_FIELDS_H
#define ATTN_TOOLS_HF_FIELDS_H

#include <attn/attn_types.h>
#include <jansson.h>

typedef struct hf_reader {
    const json_t *object;
    const char *label; /* stands in errors: the file */
    attn_error_t *error;
    int *failed; /* shared by all readers of one file */
} hf_reader_t;

/* names: alternatives separated by '|', the first that is there and not null counts. */
const json_t *hf_field(const hf_reader_t *reader, const char *names);
int64_t hf_int(const hf_reader_t *reader, const char *names, int64_t fallback); /* 0 .. 2^31-1 */
int64_t hf_int_required(const hf_reader_t *reader, const char *names);          /* 1 .. 2^31-1 */
double hf_real(const hf_reader_t *reader, const char *names, double fallback);
int hf_bool(const hf_reader_t *reader, const char *names, int fallback);
const char *hf_text(const hf_reader_t *reader, const char *names, const char *fallback);
/* A reader of an object inside; its object is NULL if there is none. */
hf_reader_t hf_object(const hf_reader_t *reader, const char *names);
void hf_fail(const hf_reader_t *reader, const char *field, const char *format, ...);

#endif
