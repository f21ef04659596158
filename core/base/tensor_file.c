/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_file.c: writes safetensors: 8 bytes of header length, a JSON header padded with blanks to 8 bytes,
 * the data. */
#include "base/tensor_file.h"
#include "base/out_file.h"

#include <attn/attn_plugin_util.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Names of the format, by ATTN_DTYPE_*. */
static const char *dtype_word(uint32_t dtype) {
    static const char *const words[] = {NULL, "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2",
                                        "I8", "U8",  "I32", "I64",  "F64"};
    return dtype < sizeof words / sizeof words[0] ? words[dtype] : NULL;
}

/* One more entry in an array that doubles; the array, or NULL. */
static void *grown(void *array, size_t count, size_t *room, size_t size) {
    if (count < *room) return array;
    size_t more = *room > 0 ? *room * 2 : 32;
    void *bigger = realloc(array, more * size);
    if (bigger != NULL) *room = more;
    return bigger;
}

static int reserve_bytes(struct attni_tensor_file *f, uint64_t bytes) {
    if (bytes > f->max_bytes || f->bytes > f->max_bytes - bytes) return -1;
    f->bytes += bytes;
    return 0;
}

void *attni_tensor_file_add(struct attni_tensor_file *f, const char *name, uint32_t dtype, uint32_t ndim,
                            const int64_t *shape) {
    uint64_t bytes = attn_dtype_size(dtype);
    if (dtype_word(dtype) == NULL || ndim > ATTNI_TENSOR_DIMS) return NULL;
    for (uint32_t i = 0; i < ndim; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)shape[i], &bytes)) return NULL;
    void *tensors = grown(f->tensors, f->num_tensors, &f->tensor_room, sizeof *f->tensors);
    if (tensors == NULL) return NULL;
    f->tensors = tensors;
    if (reserve_bytes(f, bytes) != 0) return NULL;
    struct attni_tensor_entry *t = &f->tensors[f->num_tensors];
    *t = (struct attni_tensor_entry){.dtype = dtype, .ndim = ndim, .bytes = bytes};
    snprintf(t->name, sizeof t->name, "%s", name);
    for (uint32_t i = 0; i < ndim; i++)
        t->shape[i] = shape[i];
    t->data = malloc((size_t)bytes + 1);
    if (t->data == NULL) {
        f->bytes -= bytes;
        return NULL;
    }
    f->num_tensors++;
    return t->data;
}

int attni_tensor_file_text(struct attni_tensor_file *f, const char *key, const char *value) {
    char *copy = strdup(value);
    void *texts = grown(f->texts, f->num_texts, &f->text_room, sizeof *f->texts);
    if (texts != NULL) f->texts = texts;
    if (copy == NULL || texts == NULL || reserve_bytes(f, strlen(value)) != 0) {
        free(copy);
        return -1;
    }
    size_t i = 0;
    while (i < f->num_texts && strcmp(f->texts[i].key, key) != 0)
        i++;
    if (i == f->num_texts) {
        snprintf(f->texts[f->num_texts++].key, sizeof f->texts[i].key, "%s", key);
    } else {
        f->bytes -= strlen(f->texts[i].value);
        free(f->texts[i].value);
    }
    f->texts[i].value = copy;
    return 0;
}

void attni_tensor_file_rewind(struct attni_tensor_file *f, size_t num_tensors) {
    while (f->num_tensors > num_tensors) {
        const struct attni_tensor_entry *t = &f->tensors[--f->num_tensors];
        f->bytes -= t->bytes;
        free(t->data);
    }
}

/* JSON of a text; bytes that are no ASCII text become question marks, as they need not be UTF-8. */
static void put_string(FILE *out, const char *text) {
    putc('"', out);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') putc('\\', out);
        putc(c < ' ' || c > '~' ? '?' : c, out);
    }
    putc('"', out);
}

static void put_header(FILE *out, const struct attni_tensor_file *f) {
    uint64_t at = 0;
    fputs("{\"__metadata__\":{", out);
    for (size_t i = 0; i < f->num_texts; i++) {
        if (i > 0) putc(',', out);
        put_string(out, f->texts[i].key);
        putc(':', out);
        put_string(out, f->texts[i].value);
    }
    putc('}', out);
    for (size_t i = 0; i < f->num_tensors; i++) {
        const struct attni_tensor_entry *t = &f->tensors[i];
        putc(',', out);
        put_string(out, t->name);
        fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtype_word(t->dtype));
        for (uint32_t d = 0; d < t->ndim; d++)
            fprintf(out, "%s%lld", d > 0 ? "," : "", (long long)t->shape[d]);
        fprintf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                (unsigned long long)(at + t->bytes));
        at += t->bytes;
    }
    putc('}', out);
}

int attni_tensor_file_write(const struct attni_tensor_file *f, const char *path) {
    char *text = NULL;
    size_t length = 0;
    unsigned char size[8];
    struct attni_bytes *parts = malloc((f->num_tensors + 2) * sizeof *parts);
    FILE *out = parts != NULL ? open_memstream(&text, &length) : NULL;
    if (out == NULL) {
        free(parts);
        return ENOMEM;
    }
    put_header(out, f);
    while (fflush(out) == 0 && length % 8 != 0)
        putc(' ', out);
    int failed = ferror(out) != 0 ? ENOMEM : 0;
    if (fclose(out) != 0) failed = ENOMEM;
    for (int i = 0; i < 8; i++)
        size[i] = (unsigned char)((uint64_t)length >> (8 * i));
    parts[0] = (struct attni_bytes){size, sizeof size};
    parts[1] = (struct attni_bytes){text, length};
    for (size_t i = 0; i < f->num_tensors; i++)
        parts[i + 2] = (struct attni_bytes){f->tensors[i].data, (size_t)f->tensors[i].bytes};
    /* mode 0600: a recording holds what users wrote */
    if (failed == 0) failed = attni_out_file_write(path, parts, f->num_tensors + 2, 0600);
    free(text);
    free(parts);
    return failed;
}

void attni_tensor_file_free(struct attni_tensor_file *f) {
    attni_tensor_file_rewind(f, 0);
    for (size_t i = 0; i < f->num_texts; i++)
        free(f->texts[i].value);
    free(f->tensors);
    free(f->texts);
    *f = (struct attni_tensor_file){0};
}
