/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.c: weights of a folder in safetensors files (a header in JSON, then the values), which are
 * mapped and used where they lie; float16 alone is converted. Every size and offset is checked against the
 * file.
 */
#include <attn/attn_plugin_util.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "llm.h"

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
    fprintf(stderr, "llm: ");
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
    if (!is_float && !is_bf16 && strcmp(dtype, "F16") != 0)
        die("%s: %s is %s; F32, F16 and BF16 are served", path, name, dtype);
    int64_t count, bytes;
    if (__builtin_mul_overflow(w.rows, w.cols, &count) ||
        __builtin_mul_overflow(count, is_float ? 4 : 2, &bytes) || begin < 0 || end - begin != bytes ||
        (uint64_t)end > size)
        die("%s: %s: data_offsets do not fit its shape and the file", path, name);
    if (c->num_weights == MAX_WEIGHTS) die("%s: more than %d weights", path, MAX_WEIGHTS);
    w.data = values + begin;
    if (!is_float && !is_bf16) w.data = to_float(c, w.data, count);
    if ((uintptr_t)w.data % (is_bf16 ? 2 : 4) != 0) die("%s: %s: not aligned", path, name);
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

static json_t *load_json(const char *path, int is_required) {
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
    json_t *index = load_json(path, 0), *seen = json_object(), *file;
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

static double number(json_t *root, const char *name, double fallback) {
    json_t *value = json_object_get(root, name);
    if (value == NULL || json_is_null(value)) return fallback;
    if (!json_is_number(value) || !(json_number_value(value) > 0))
        die("config.json: %s: no number above 0", name);
    return json_number_value(value);
}

static int64_t whole(json_t *root, const char *name, int64_t fallback) {
    double value = number(root, name, (double)fallback);
    if (value < 1 || value > INT32_MAX || value != (double)(int64_t)value)
        die("config.json: %s must be a whole number from 1", name);
    return (int64_t)value;
}

static void read_rope(json_t *root, config_t *c) {
    json_t *rope = json_object_get(root, "rope_parameters");
    if (rope == NULL) rope = json_object_get(root, "rope_scaling");
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (type == NULL) type = json_string_value(json_object_get(rope, "type"));
    if (type == NULL) type = "default";
    c->rope_theta = number(rope, "rope_theta", number(root, "rope_theta", 10000));
    c->rope_factor = 1;
    if (strcmp(type, "default") == 0) return;
    c->is_rope_llama3 = strcmp(type, "llama3") == 0;
    if (!c->is_rope_llama3 && strcmp(type, "linear") != 0)
        die("config.json: rope_type is '%s'; default, linear and llama3 are served", type);
    c->rope_factor = number(rope, "factor", 1);
    c->rope_low = number(rope, "low_freq_factor", 1);
    c->rope_high = number(rope, "high_freq_factor", 4);
    c->rope_old_len = number(rope, "original_max_position_embeddings", 8192);
}

/* The fields that concern attention are read by libattn; these are the rest. */
static void read_config(const char *folder, config_t *c) {
    static const char *const types[] = {"llama", "mistral", "qwen2", "qwen3"};
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *root = load_json(path, 1), *end = json_object_get(root, "eos_token_id");
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const char *act = json_string_value(json_object_get(root, "hidden_act"));
    int is_known = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        is_known |= type != NULL && strcmp(type, types[i]) == 0;
    if (!is_known)
        die("%s: model_type is '%s'; llama, mistral, qwen2 and qwen3 are served", path,
            type != NULL ? type : "");
    if (act != NULL && strcmp(act, "silu") != 0) die("%s: hidden_act is '%s'; silu is served", path, act);
    *c = (config_t){.hidden = whole(root, "hidden_size", 0),
                    .inner = whole(root, "intermediate_size", 0),
                    .layers = whole(root, "num_hidden_layers", 0),
                    .heads = whole(root, "num_attention_heads", 0),
                    .vocabulary = whole(root, "vocab_size", 0),
                    .max_len = whole(root, "max_position_embeddings", 2048),
                    .norm_eps = number(root, "rms_norm_eps", 1e-6)};
    c->kv_heads = whole(root, "num_key_value_heads", c->heads);
    c->head_size = whole(root, "head_dim", strcmp(type, "qwen3") == 0 ? 128 : c->hidden / c->heads);
    c->is_tied = json_is_true(json_object_get(root, "tie_word_embeddings"));
    read_rope(root, c);
    for (size_t i = 0; i < (json_is_array(end) ? json_array_size(end) : 1) && c->num_ends < 8; i++) {
        json_t *token = json_is_array(end) ? json_array_get(end, i) : end;
        if (json_is_integer(token)) c->ends[c->num_ends++] = (int32_t)json_integer_value(token);
    }
    json_decref(root);
}

checkpoint_t *checkpoint_open(const char *folder, config_t *config) {
    checkpoint_t *c = room(sizeof *c);
    read_config(folder, config);
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
        w->is_used = 1;
        return w;
    }
    if (is_required) die("the checkpoint has no %s", name);
    return NULL;
}

void checkpoint_check_used(const checkpoint_t *c) {
    for (int i = 0; i < c->num_weights; i++)
        if (!c->weights[i].is_used && strstr(c->weights[i].name, "rotary_emb.inv_freq") == NULL)
            die("%s is a weight that this example does not know: the result would be wrong",
                c->weights[i].name);
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
