/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.c: weights of a folder in safetensors files (a header in JSON, then the values), which are
 * mapped and used where they lie; float16 alone is converted. Every size and offset is checked against the
 * file. And numbers of config.json, checked as far as every model asks for it.
 */
#include <attn/attn_plugin_util.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint.h"

enum { MAX_FILES = 64, MAX_WEIGHTS = 8192 };

struct checkpoint {
    int num_files, num_weights;
    struct {
        void *data;
        size_t size;
    } files[MAX_FILES];
    weight_t weights[MAX_WEIGHTS];
    void *converted[MAX_WEIGHTS];
};

void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", program);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

void *room(uint64_t bytes) {
    void *p = calloc(1, bytes != 0 ? bytes : 1);
    if (p == NULL) die("no memory for %llu bytes", (unsigned long long)bytes);
    return p;
}

static const void *to_float(checkpoint_t *c, const void *from, int64_t count) {
    float *to = room((uint64_t)count * sizeof *to);
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, (const char *)from + 2 * i, sizeof half);
        to[i] = (float)attn_from_f16(half);
    }
    return c->converted[c->num_weights] = to;
}

/* One entry of a header: {"dtype": "F32", "shape": [4, 8], "data_offsets": [0, 128]}. */
static void add_weight(checkpoint_t *c, const char *path, const char *name, json_t *entry, const char *values,
                       size_t size) {
    const char *dtype;
    json_t *shape;
    json_int_t begin, end;
    if (json_unpack(entry, "{s:s, s:o, s:[I, I]}", "dtype", &dtype, "shape", &shape, "data_offsets", &begin,
                    &end) != 0)
        die("%s: %s: not a tensor of safetensors", path, name);
    const size_t ndim = json_array_size(shape);
    const int is_float = strcmp(dtype, "F32") == 0, is_bf16 = strcmp(dtype, "BF16") == 0;
    weight_t w = {.rows = 1, .cols = 1, .is_bf16 = is_bf16};
    for (size_t i = 0; i < ndim; i++) {
        int64_t *n = i + 1 == ndim ? &w.cols : &w.rows, extent = json_integer_value(json_array_get(shape, i));
        if (extent < 1 || __builtin_mul_overflow(*n, extent, n)) die("%s: %s: bad shape", path, name);
    }
    if (c->num_weights == MAX_WEIGHTS) die("%s: more than %d weights", path, MAX_WEIGHTS);
    const int is_served = is_float || is_bf16 || strcmp(dtype, "F16") == 0;
    int64_t count, bytes;
    if (is_served) {
        if (__builtin_mul_overflow(w.rows, w.cols, &count) ||
            __builtin_mul_overflow(count, is_float ? 4 : 2, &bytes) || begin < 0 || end - begin != bytes ||
            (uint64_t)end > size)
            die("%s: %s: data_offsets do not fit its shape and the file", path, name);
        w.data = values + begin;
        if (!is_float && !is_bf16) w.data = to_float(c, w.data, count);
        if ((uintptr_t)w.data % (is_bf16 ? 2 : 4) != 0) die("%s: %s: not aligned", path, name);
    }
    w.name = strdup(name);
    c->weights[c->num_weights++] = w;
}

static void add_file(checkpoint_t *c, const char *path) {
    struct stat st;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &st) != 0 || c->num_files == MAX_FILES) die("%s: cannot be read", path);
    const size_t size = (size_t)st.st_size;
    char *data = size >= 8 ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    uint64_t header = 0;
    if (data != MAP_FAILED) memcpy(&header, data, sizeof header);
    if (data == MAP_FAILED || header > size - 8) die("%s: not a safetensors file", path);
    c->files[c->num_files].data = data;
    c->files[c->num_files++].size = size;
    json_t *root = json_loadb(data + 8, header, JSON_REJECT_DUPLICATES, NULL);
    const char *name;
    json_t *entry;
    if (!json_is_object(root)) die("%s: its header is no JSON object", path);
    json_object_foreach(root, name, entry) {
        if (strcmp(name, "__metadata__") != 0)
            add_weight(c, path, name, entry, data + 8 + header, size - 8 - header);
    }
    json_decref(root);
}

json_t *config_load(const char *path, int is_required) {
    json_error_t why;
    if (!is_required && access(path, F_OK) != 0) return NULL;
    json_t *root = json_load_file(path, 0, &why);
    if (!json_is_object(root)) die("%s:%d: %s", path, why.line, root == NULL ? why.text : "not an object");
    return root;
}

/* One file, or those that an index names. */
static void add_files(checkpoint_t *c, const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    json_t *index = config_load(path, 0), *seen = json_object(), *file;
    const char *name;
    json_object_foreach(json_object_get(index, "weight_map"), name, file) {
        const char *part = json_string_value(file);
        if (part == NULL || strchr(part, '/') != NULL)
            die("%s: the file of %s is not a file name", path, name);
        json_object_set_new(seen, part, json_true());
    }
    if (index == NULL) json_object_set_new(seen, "model.safetensors", json_true());
    json_object_foreach(seen, name, file) {
        snprintf(path, sizeof path, "%s/%s", folder, name);
        add_file(c, path);
    }
    json_decref(index);
    json_decref(seen);
}

double config_number(json_t *root, const char *name, double fallback) {
    json_t *value = json_object_get(root, name);
    if (value == NULL || json_is_null(value)) return fallback;
    if (!json_is_number(value) || !(json_number_value(value) > 0))
        die("config.json: %s: no number above 0", name);
    return json_number_value(value);
}

int64_t config_whole(json_t *root, const char *name, int64_t fallback) {
    double value = config_number(root, name, (double)fallback);
    if (value < 1 || value > INT32_MAX || value != (double)(int64_t)value)
        die("config.json: %s must be a whole number from 1", name);
    return (int64_t)value;
}

checkpoint_t *checkpoint_open(const char *folder) {
    checkpoint_t *c = room(sizeof *c);
    add_files(c, folder);
    return c;
}

const weight_t *checkpoint_get(checkpoint_t *c, int64_t rows, int64_t cols, int is_required,
                               const char *format, ...) {
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    for (int i = 0; i < c->num_weights; i++) {
        weight_t *w = &c->weights[i];
        if (strcmp(w->name, name) != 0) continue;
        if (w->rows != rows || w->cols != cols)
            die("%s is [%lld, %lld]; config.json wants [%lld, %lld]", name, (long long)w->rows,
                (long long)w->cols, (long long)rows, (long long)cols);
        if (w->data == NULL) die("%s is of a dtype that is not served; F32, F16 and BF16 are", name);
        w->is_used = 1;
        return w;
    }
    if (is_required) die("the checkpoint has no %s", name);
    return NULL;
}

void checkpoint_check_used(const checkpoint_t *c, const char *const *unused) {
    for (int i = 0; i < c->num_weights; i++) {
        int is_known = c->weights[i].is_used;
        for (const char *const *word = unused; *word != NULL; word++)
            is_known |= strstr(c->weights[i].name, *word) != NULL;
        if (!is_known)
            die("%s is a weight that this example does not know: the result would be wrong",
                c->weights[i].name);
    }
}

void checkpoint_close(checkpoint_t *c) {
    for (int i = 0; i < c->num_weights; i++) {
        free(c->weights[i].name);
        free(c->converted[i]);
    }
    for (int i = 0; i < c->num_files; i++)
        munmap(c->files[i].data, c->files[i].size);
    free(c);
}
