/* SPDX-License-Identifier: Apache-2.0 */
/* calibration_file.c: calibrations as JSON: {"format": "attn-calibration/1", "layers": {NAME: {"tokens": n,
 * "v_max": [[..], ..]}}}, v_max by head and channel. */
#include "layer/calibration.h"

#include "base/json_text.h"
#include "base/need.h"
#include "base/out_file.h"

#include <attn/attn_plugin_util.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static const char format[] = "attn-calibration/1";

#define WRONG(...) attn_fail(error, ATTN_E_PARSE, "path", __VA_ARGS__)

/* One layer: every head as many channels as the first. */
static int read_layer(attn_calibration_t *c, const char *path, const char *name, const json_t *entry,
                      attn_error_t *error) {
    const json_t *rows = json_object_get(entry, "v_max"), *tokens = json_object_get(entry, "tokens");
    const size_t heads = json_array_size(rows), size = json_array_size(json_array_get(rows, 0));
    if (heads == 0 || size == 0 || heads > 65536 || size > 65536 || !json_is_integer(tokens) ||
        json_integer_value(tokens) < 0)
        return WRONG(
            "%s: layer '%.120s' needs \"tokens\", a whole number, and \"v_max\", a list of numbers for "
            "each head",
            path, name);
    struct attni_calibrated *l = attni_calibration_new(c, name, (int64_t)heads, (int64_t)size);
    if (l == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for %s", path);
    l->tokens = json_integer_value(tokens);
    for (size_t h = 0; h < heads; h++) {
        const json_t *row = json_array_get(rows, h);
        if (json_array_size(row) != size)
            return WRONG("%s: layer '%.120s' has %zu numbers for head %zu; expected %zu as for head 0", path,
                         name, json_array_size(row), h, size);
        for (size_t d = 0; d < size; d++) {
            const json_t *x = json_array_get(row, d);
            const float value = (float)json_number_value(x);
            if (!json_is_number(x) || !(value >= 0) || !isfinite(value))
                return WRONG(
                    "%s: layer '%.120s', v_max[%zu][%zu] is no magnitude; expected a finite number from "
                    "0",
                    path, name, h, d);
            l->largest[h * size + d] = value;
        }
    }
    return ATTN_OK;
}

/* A regular file as JSON: a pipe or a device would hang or never end. */
static int read_json(const char *path, json_t **root, attn_error_t *error) {
    json_error_t why;
    struct stat is;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return attn_fail(error, ATTN_E_IO, "path", "%s: %s", path, strerror(errno));
    if (fstat(fd, &is) != 0 || !S_ISREG(is.st_mode)) {
        close(fd);
        return attn_fail(error, ATTN_E_IO, "path", "%s is not a regular file", path);
    }
    *root = json_loadfd(fd, JSON_REJECT_DUPLICATES, &why);
    close(fd);
    if (*root == NULL)
        return WRONG("%s:%d:%d: %.120s; it is cut short, or no file of a calibration", path, why.line,
                     why.column, why.text);
    return ATTN_OK;
}

int attn_calibration_load(const char *path, attn_calibration_t **calibration, attn_error_t *error) {
    json_t *root;
    attn_calibration_t *c = NULL;
    ATTNI_NEED(path, "path", error);
    ATTNI_NEED(calibration, "calibration", error);
    int code = read_json(path, &root, error);
    if (code != ATTN_OK) return code;
    const char *found = json_string_value(json_object_get(root, "format"));
    json_t *layers = json_object_get(root, "layers");
    if (found == NULL || strcmp(found, format) != 0 || !json_is_object(layers))
        code =
            WRONG("%s is no calibration: \"format\" is %.80s; expected \"%s\", which attn calibrate writes",
                  path, found != NULL ? found : "not there", format);
    if (code == ATTN_OK) code = attn_calibration_create(&c, error);
    for (void *at = json_object_iter(layers); at != NULL && code == ATTN_OK;
         at = json_object_iter_next(layers, at))
        code = read_layer(c, path, json_object_iter_key(at), json_object_iter_value(at), error);
    json_decref(root);
    if (code == ATTN_OK)
        *calibration = c;
    else
        attn_calibration_destroy(c);
    return code;
}

static json_t *json_of(const struct attni_calibrated *l) {
    json_t *rows = json_array(), *entry = json_object();
    int failed = json_object_set_new(entry, "tokens", json_integer(l->tokens));
    for (int64_t h = 0; h < l->heads; h++) {
        json_t *row = json_array();
        for (int64_t d = 0; d < l->size; d++)
            failed |= json_array_append_new(row, json_real((double)l->largest[h * l->size + d]));
        failed |= json_array_append_new(rows, row);
    }
    failed |= json_object_set_new(entry, "v_max", rows);
    if (!failed) return entry;
    json_decref(entry);
    return NULL;
}

int attn_calibration_save(const attn_calibration_t *c, const char *path, attn_error_t *error) {
    ATTNI_NEED(c, "calibration", error);
    ATTNI_NEED(path, "path", error);
    json_t *root = json_object(), *layers = json_object();
    int failed = json_object_set_new(root, "format", json_string(format));
    for (uint32_t i = 0; i < c->count; i++)
        failed |= json_object_set_new(layers, c->layers[i].name, json_of(&c->layers[i]));
    failed |= json_object_set_new(root, "layers", layers);
    char *text = failed ? NULL : attni_json_text(root, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    json_decref(root);
    if (text == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "",
                         "cannot make the text of %s: a name that is no UTF-8, or "
                         "no memory",
                         path);
    const struct attni_bytes parts[2] = {{text, strlen(text)}, {"\n", 1}};
    const int why = attni_out_file_write(path, parts, 2, 0644);
    free(text);
    if (why == ENOTSUP)
        return attn_fail(error, ATTN_E_IO, "path", "%s exists and is not a regular file; name another", path);
    return why != 0 ? attn_fail(error, ATTN_E_IO, "path", "cannot write %s: %s", path, strerror(why))
                    : ATTN_OK;
}
