/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_write.c: the writer. Data first in memory order of the list, header padded with spaces to 8
 * bytes. */
#include <attn/attn_plugin_util.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "../../core/base/json_text.h"
#include "../../core/base/out_file.h"
#include "tensor/safetensors.h"
#include "tensor/st_dtypes.h"

/* Takes value; 0, or -1: no memory, or a text that is no UTF-8. */
static int set(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value);
}

/* The header's text, padded with blanks to 8 bytes, or NULL: what is missing would otherwise be missed in the
 * file. */
static char *make_header(const st_tensor_t *tensors, size_t num_tensors, const st_pair_t *metadata,
                         size_t num_metadata) {
    json_t *header = json_object(), *pairs = json_object();
    int failed = 0;
    for (size_t i = 0; i < num_metadata; i++)
        failed |= set(pairs, metadata[i].key, json_string(metadata[i].value));
    failed |= set(header, "__metadata__", pairs);
    uint64_t at = 0;
    for (size_t i = 0; i < num_tensors; i++) {
        const st_tensor_t *t = &tensors[i];
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t->ndim; d++)
            failed |= json_array_append_new(shape, json_integer(t->shape[d]));
        json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", st_dtype_word(t->dtype), "shape", shape,
                                  "data_offsets", (json_int_t)at, (json_int_t)(at + t->bytes));
        failed |= set(header, t->name, entry);
        at += t->bytes;
    }
    char *text = failed ? NULL : attni_json_text(header, JSON_COMPACT), *padded = NULL;
    json_decref(header);
    if (text != NULL && asprintf(&padded, "%s%*s", text, (int)(-strlen(text) & 7), "") < 0) padded = NULL;
    free(text);
    return padded;
}

int st_write(const char *path, const st_tensor_t *tensors, size_t num_tensors, const st_pair_t *metadata,
             size_t num_metadata, attn_error_t *error) {
    unsigned char size[8];
    struct attni_bytes *parts = malloc((num_tensors + 2) * sizeof *parts);
    char *header = make_header(tensors, num_tensors, metadata, num_metadata);
    if (parts == NULL || header == NULL) {
        free(parts);
        free(header);
        return attn_fail(error, ATTN_E_NO_MEMORY, "",
                         "%s is not written: out of memory, or a name that is not UTF-8", path);
    }
    for (int i = 0; i < 8; i++)
        size[i] = (unsigned char)((uint64_t)strlen(header) >> (8 * i));
    parts[0] = (struct attni_bytes){size, sizeof size};
    parts[1] = (struct attni_bytes){header, strlen(header)};
    for (size_t i = 0; i < num_tensors; i++)
        parts[i + 2] = (struct attni_bytes){tensors[i].data, (size_t)tensors[i].bytes};
    mode_t mask = umask(0);
    umask(mask);
    int failed = attni_out_file_write(path, parts, num_tensors + 2, 0666 & ~mask);
    free(parts);
    free(header);
    if (failed == ENOTSUP)
        return attn_fail(error, ATTN_E_IO, "", "%s exists and is not a regular file; name another", path);
    return failed == 0 ? ATTN_OK : attn_fail(error, ATTN_E_IO, "", "%s: %s", path, strerror(failed));
}
