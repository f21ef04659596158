/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.c: the reader. Order of the checks: length, JSON, each entry, then all entries together (the
 * data must be covered without a hole and without an overlap, as the format demands). */
#include "tensor/safetensors.h"

#include <attn/attn_plugin_util.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../core/base/plain_text.h"
#include "tensor/st_dtypes.h"

#define MAX_HEADER (UINT64_C(100) << 20) /* as the format's own reader */

struct st_file {
    const char *label;
    char *own_label;
    json_t *header;
    st_tensor_t *tensors;
    size_t count;
    void *mapping;
    size_t mapped;
};

static uint64_t read_u64(const unsigned char *p) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

/* One non-negative integer of an array. */
static int get_count(const json_t *array, size_t index, uint64_t *value) {
    const json_t *item = json_array_get(array, index);
    if (!json_is_integer(item) || json_integer_value(item) < 0) return -1;
    *value = (uint64_t)json_integer_value(item);
    return 0;
}

static int read_entry(st_file_t *file, const char *name, const json_t *entry, const unsigned char *data,
                      uint64_t data_bytes, attn_error_t *error) {
    st_tensor_t *t = &file->tensors[file->count];
    const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    t->name = name;
    t->dtype_name = json_string_value(json_object_get(entry, "dtype"));
    if (t->dtype_name == NULL || !json_is_array(shape) || !json_is_array(offsets) ||
        json_array_size(offsets) != 2)
        return attn_fail(error, ATTN_E_PARSE, name,
                         "%s: tensor '%.60s' needs a dtype, a shape and two data_offsets, and lacks one",
                         file->label, name);
    const st_dtype_t *dtype = st_dtype_by_name(t->dtype_name);
    if (dtype == NULL)
        return attn_fail(error, ATTN_E_PARSE, name,
                         "%s: tensor '%.60s' has dtype '%.20s'; safetensors has no such dtype", file->label,
                         name, t->dtype_name);
    t->dtype = dtype->dtype;
    if (json_array_size(shape) > ST_MAX_DIMS)
        return attn_fail(error, ATTN_E_PARSE, name,
                         "%s: tensor '%.60s' has %zu dimensions; at most %d are read", file->label, name,
                         json_array_size(shape), ST_MAX_DIMS);
    t->ndim = (uint32_t)json_array_size(shape);
    uint64_t bits = dtype->bits;
    for (uint32_t i = 0; i < t->ndim; i++) {
        uint64_t n;
        if (get_count(shape, i, &n) != 0 || __builtin_mul_overflow(bits, n, &bits) || bits > INT64_MAX)
            return attn_fail(error, ATTN_E_PARSE, name, "%s: tensor '%.60s' has a wrong size in dimension %u",
                             file->label, name, i);
        t->shape[i] = (int64_t)n;
    }
    uint64_t begin, end;
    if (get_count(offsets, 0, &begin) != 0 || get_count(offsets, 1, &end) != 0 || begin > end ||
        end > data_bytes)
        return attn_fail(
            error, ATTN_E_PARSE, name,
            "%s: tensor '%.60s' lies outside the data, which has %llu bytes; is the file cut off?",
            file->label, name, (unsigned long long)data_bytes);
    if (bits % 8 != 0 || end - begin != bits / 8)
        return attn_fail(error, ATTN_E_PARSE, name,
                         "%s: tensor '%.60s' takes %llu bytes; its shape and dtype need %llu", file->label,
                         name, (unsigned long long)(end - begin), (unsigned long long)(bits / 8));
    t->data = data + begin;
    t->bytes = end - begin;
    file->count++;
    return ATTN_OK;
}

static int by_address(const void *a, const void *b) {
    const st_tensor_t *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int check_cover(const st_file_t *file, const unsigned char *data, uint64_t data_bytes,
                       attn_error_t *error) {
    const unsigned char *at = data;
    for (size_t i = 0; i < file->count; i++) {
        const st_tensor_t *t = &file->tensors[i];
        if (t->data != at)
            return attn_fail(error, ATTN_E_PARSE, t->name, "%s: tensor '%.60s' %s", file->label, t->name,
                             t->data < at ? "overlaps another one"
                                          : "is preceded by bytes that belong to no tensor");
        at += t->bytes;
    }
    if (at != data + data_bytes)
        return attn_fail(error, ATTN_E_PARSE, "", "%s: %llu bytes at the end belong to no tensor",
                         file->label, (unsigned long long)(data + data_bytes - at));
    return ATTN_OK;
}

/* Values of the metadata are shown to people. */
static int make_plain(const st_file_t *file, json_t *metadata, attn_error_t *error) {
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) {
        const char *text = json_string_value(value);
        if (text == NULL || attni_text_is_plain(text)) continue;
        char *copy = strdup(text);
        for (char *line = copy, *next; line != NULL; line = next) { /* its ends of lines may stay */
            next = strchr(line, '\n');
            if (next != NULL) *next = '\0';
            attni_text_make_plain(line, '?');
            if (next != NULL) *next++ = '\n';
        }
        int failed = copy == NULL || json_string_set(value, copy) != 0;
        free(copy);
        if (failed) return attn_fail(error, ATTN_E_NO_MEMORY, "", "%s: out of memory", file->label);
    }
    return ATTN_OK;
}

static int read_header(st_file_t *file, const unsigned char *bytes, size_t size, attn_error_t *error) {
    if (size < 8)
        return attn_fail(error, ATTN_E_PARSE, "", "%s: %zu bytes; a safetensors file has at least 8",
                         file->label, size);
    uint64_t length = read_u64(bytes);
    if (length > MAX_HEADER || length > size - 8)
        return attn_fail(
            error, ATTN_E_PARSE, "",
            "%s: the header should have %llu bytes, the file has %zu; not safetensors, or cut off",
            file->label, (unsigned long long)length, size);
    if (length == 0 || bytes[8] != '{')
        return attn_fail(error, ATTN_E_PARSE, "", "%s: the header does not begin with '{'; not safetensors",
                         file->label);
    json_error_t why;
    file->header = json_loadb((const char *)bytes + 8, (size_t)length, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(file->header))
        return attn_fail(error, ATTN_E_PARSE, "", "%s: header, column %d: %.120s", file->label, why.column,
                         why.text);
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    if (file->tensors == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "%s: out of memory", file->label);
    const unsigned char *data = bytes + 8 + length;
    uint64_t data_bytes = size - 8 - length;
    const char *name;
    json_t *entry;
    int code = ATTN_OK;
    json_object_foreach(file->header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) {
            if (!json_is_object(entry))
                return attn_fail(error, ATTN_E_PARSE, name, "%s: __metadata__ is not an object", file->label);
            code = make_plain(file, entry, error);
            if (code != ATTN_OK) return code;
            continue;
        }
        if (!attni_text_is_plain(name))
            return attn_fail(error, ATTN_E_PARSE, "", "%s: the name of a tensor has control characters",
                             file->label);
        code = read_entry(file, name, entry, data, data_bytes, error);
        if (code != ATTN_OK) return code;
    }
    if (file->count > 0) qsort(file->tensors, file->count, sizeof *file->tensors, by_address);
    return check_cover(file, data, data_bytes, error);
}

int st_parse(const void *bytes, size_t size, const char *label, st_file_t **file, attn_error_t *error) {
    st_file_t *made = calloc(1, sizeof *made);
    if (made == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "%s: out of memory", label);
    made->label = made->own_label = strdup(label);
    if (made->label == NULL) made->label = "safetensors";
    int code = read_header(made, bytes, size, error);
    if (code != ATTN_OK) {
        st_close(made);
        return code;
    }
    *file = made;
    return ATTN_OK;
}

int st_open(const char *path, st_file_t **file, attn_error_t *error) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return attn_fail(error, ATTN_E_IO, "", "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < 8) {
        close(fd);
        return attn_fail(error, ATTN_E_PARSE, "",
                         "%s: not a regular file of at least 8 bytes; not safetensors", path);
    }
    void *mapping = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (mapping == MAP_FAILED) return attn_fail(error, ATTN_E_IO, "", "%s: %s", path, strerror(errno));
    st_file_t *made = NULL;
    int code = st_parse(mapping, (size_t)st.st_size, path, &made, error);
    if (code != ATTN_OK) {
        munmap(mapping, (size_t)st.st_size);
        return code;
    }
    made->mapping = mapping;
    made->mapped = (size_t)st.st_size;
    *file = made;
    return ATTN_OK;
}

void st_close(st_file_t *file) {
    if (file == NULL) return;
    json_decref(file->header);
    free(file->tensors);
    free(file->own_label);
    if (file->mapping != NULL) munmap(file->mapping, file->mapped);
    free(file);
}

size_t st_count(const st_file_t *file) {
    return file->count;
}

const st_tensor_t *st_at(const st_file_t *file, size_t index) {
    return index < file->count ? &file->tensors[index] : NULL;
}

const st_tensor_t *st_find(const st_file_t *file, const char *name) {
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
    return NULL;
}

const char *st_metadata(const st_file_t *file, const char *key) {
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}
