/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_write.c: the writer. Data first in memory order of the list, header padded with spaces to 8 bytes. */
#include <attn/attn_plugin_util.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "safetensors.h"
#include "st_dtypes.h"

static json_t *make_header(const st_tensor_t *tensors, size_t num_tensors, const st_pair_t *metadata,
                           size_t num_metadata) {
    json_t *header = json_object(), *pairs = json_object();
    for (size_t i = 0; i < num_metadata; i++)
        json_object_set_new(pairs, metadata[i].key, json_string(metadata[i].value));
    json_object_set_new(header, "__metadata__", pairs);
    uint64_t at = 0;
    for (size_t i = 0; i < num_tensors; i++) {
        const st_tensor_t *t = &tensors[i];
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t->ndim; d++)
            json_array_append_new(shape, json_integer(t->shape[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", st_dtype_word(t->dtype), "shape",
                                      shape, "data_offsets", (json_int_t)at, (json_int_t)(at + t->bytes)));
        at += t->bytes;
    }
    return header;
}

static int write_all(FILE *f, const char *header, const st_tensor_t *tensors, size_t num_tensors) {
    size_t length = strlen(header), padded = (length + 7) / 8 * 8;
    unsigned char size[8];
    for (int i = 0; i < 8; i++)
        size[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    if (fwrite(size, 1, 8, f) != 8 || fwrite(header, 1, length, f) != length) return -1;
    for (size_t i = length; i < padded; i++)
        if (fputc(' ', f) == EOF) return -1;
    for (size_t i = 0; i < num_tensors; i++)
        if (fwrite(tensors[i].data, 1, tensors[i].bytes, f) != tensors[i].bytes) return -1;
    return fflush(f);
}

int st_write(const char *path, const st_tensor_t *tensors, size_t num_tensors, const st_pair_t *metadata,
             size_t num_metadata, attn_error_t *error) {
    char part[4096];
    if (snprintf(part, sizeof part, "%s.part", path) >= (int)sizeof part)
        return attn_fail(error, ATTN_E_IO, "", "the name of the output file has over %zu characters",
                         sizeof part);
    struct stat there;
    /* a device, for instance: the rename below would put a file in its place */
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return attn_fail(error, ATTN_E_IO, "", "%s is there and is no regular file; name another", path);
    json_t *header = make_header(tensors, num_tensors, metadata, num_metadata);
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (text == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "%s: no memory", path);
    FILE *f = fopen(part, "wbe");
    int failed = f == NULL || write_all(f, text, tensors, num_tensors) != 0, why = errno;
    free(text);
    if (f != NULL && fclose(f) != 0 && !failed) {
        failed = 1;
        why = errno;
    }
    if (!failed && rename(part, path) != 0) {
        failed = 1;
        why = errno;
    }
    if (!failed) return ATTN_OK;
    if (f != NULL) unlink(part);
    return attn_fail(error, ATTN_E_IO, "", "%s: %s", path, strerror(why));
}
