/* SPDX-License-Identifier: Apache-2.0 */
/* mm_scale_file.c: reading, searching and writing the JSON file of fp8 scales, through jansson. */
#include "load/mm_scale_file.h"
#include "base/json_text.h"
#include "base/out_file.h"

#include <attn/attn_plugin_util.h>

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const scale_keys[ATTNI_MM_SCALES][2] = {
    {"q", "q_scale"}, {"k", "k_scale"}, {"v", "v_scale"}};

int attni_mm_table_add(struct attni_mm_table *table, const char *layer, const double *scale) {
    struct attni_mm_entry *more = realloc(table->entries, (table->count + 1) * sizeof *more);
    if (!more) return -1;
    table->entries = more;
    char *name = strdup(layer);
    if (!name) return -1;
    more[table->count].layer = name;
    memcpy(more[table->count].scale, scale, sizeof more->scale);
    table->count++;
    return 0;
}

void attni_mm_table_free(struct attni_mm_table *table) {
    for (size_t i = 0; i < table->count; i++)
        free(table->entries[i].layer);
    free(table->entries);
    *table = (struct attni_mm_table){NULL, 0};
}

/* One scale of the whole tensor: a list would be scales of another granularity. */
static int parse_scale(const char *path, const char *layer, const char *key, const json_t *value,
                       double *scale, attn_error_t *error) {
    if (json_is_array(value))
        return attn_fail(
            error, ATTN_E_PARSE, key,
            "%s: '%s' of layer '%.120s' is a list of %zu; expected one number for the whole tensor", path,
            key, layer, json_array_size(value));
    *scale = json_number_value(value); /* 0 for what is not a number */
    if (!json_is_number(value) || !isfinite(*scale) || !(*scale > 0) || (float)*scale == 0 ||
        !isfinite((float)*scale))
        return attn_fail(error, ATTN_E_PARSE, key,
                         "%s: '%s' of layer '%.120s' is not a number above 0; write a positive float32 scale",
                         path, key, layer);
    return ATTN_OK;
}

static int parse_layer(struct attni_mm_table *table, const char *path, const char *layer,
                       const json_t *object, attn_error_t *error) {
    double scale[ATTNI_MM_SCALES];
    for (int i = 0; i < ATTNI_MM_SCALES; i++) {
        const char *key = scale_keys[i][0];
        const json_t *value = json_object_get(object, key);
        if (!value) value = json_object_get(object, key = scale_keys[i][1]);
        if (!value) return ATTN_OK; /* incomplete entries are skipped (semantics 7.6) */
        int code = parse_scale(path, layer, key, value, &scale[i], error);
        if (code != ATTN_OK) return code;
    }
    if (attni_mm_table_add(table, layer, scale))
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the scales of %s", path);
    return ATTN_OK;
}

int attni_mm_table_read(struct attni_mm_table *table, const char *path, attn_error_t *error) {
    json_error_t why;
    *table = (struct attni_mm_table){NULL, 0};
    if (access(path, R_OK))
        return attn_fail(error, ATTN_E_IO, "fp8_scale_path", "%s: %s", path, strerror(errno));
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return attn_fail(error, ATTN_E_PARSE, "fp8_scale_path", "%s:%d:%d: %.120s", path, why.line,
                         why.column, why.text);
    json_t *layers = json_object_get(root, "layers");
    if (!json_is_object(layers)) layers = root;
    int code = ATTN_OK;
    if (!json_is_object(layers))
        code = attn_fail(error, ATTN_E_PARSE, "fp8_scale_path",
                         "%s: not a JSON object; expected layer names with {\"q\", \"k\", \"v\"}", path);
    for (void *at = json_object_iter(layers); at && code == ATTN_OK; at = json_object_iter_next(layers, at))
        if (json_is_object(json_object_iter_value(at)))
            code = parse_layer(table, path, json_object_iter_key(at), json_object_iter_value(at), error);
    json_decref(root);
    if (code != ATTN_OK) attni_mm_table_free(table);
    return code;
}

const struct attni_mm_entry *attni_mm_table_find(const struct attni_mm_table *table, const char *path,
                                                 const char *layer, attn_error_t *error) {
    char list[240] = "";
    size_t used = 0;
    for (size_t i = 0; i < table->count; i++)
        if (!strcmp(table->entries[i].layer, layer)) return &table->entries[i];
    for (size_t i = 0; i < table->count && used < sizeof list; i++)
        used +=
            (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", table->entries[i].layer);
    attn_fail(error, ATTN_E_NOT_FOUND, "fp8_scale_path", "%s has no scales of layer '%.80s'; it has: %s",
              path, layer, table->count ? list : "no layer");
    return NULL;
}

static json_t *json_of(const struct attni_mm_table *table, double margin) {
    json_t *root = json_object();
    for (size_t i = 0; root && i < table->count; i++) {
        const double *s = table->entries[i].scale;
        json_t *entry = json_pack("{s:f, s:f, s:f}", scale_keys[0][0], s[0] * margin, scale_keys[1][0],
                                  s[1] * margin, scale_keys[2][0], s[2] * margin);
        if (!entry || json_object_set_new(root, table->entries[i].layer, entry)) {
            json_decref(root);
            root = NULL;
        }
    }
    return root;
}

int attni_mm_table_write(const struct attni_mm_table *table, const char *path, double margin,
                         attn_error_t *error) {
    json_t *root = json_of(table, margin);
    char *text = attni_json_text(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    json_decref(root);
    if (!text) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the scales of %s", path);
    const struct attni_bytes parts[2] = {{text, strlen(text)}, {"\n", 1}};
    int failed = attni_out_file_write(path, parts, 2, 0644);
    free(text);
    if (failed == ENOTSUP)
        return attn_fail(error, ATTN_E_IO, "fp8_scale_save_path",
                         "%s exists and is not a regular file; name another", path);
    if (failed)
        return attn_fail(error, ATTN_E_IO, "fp8_scale_save_path", "cannot write %s: %s", path,
                         strerror(failed));
    return ATTN_OK;
}
