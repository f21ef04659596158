/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h: reads and writes safetensors files: 8 bytes of header length (little endian), a JSON header,
 * data. The reader trusts nothing: every offset, size and name is checked before a pointer is made. */
#ifndef ATTN_TOOLS_SAFETENSORS_H
#define ATTN_TOOLS_SAFETENSORS_H

#include <attn/attn_types.h>
#include <stddef.h>
#include <stdint.h>

#define ST_MAX_DIMS 8

typedef struct st_tensor {
    const char *name;
    const char *dtype_name; /* "F16" */
    uint32_t dtype;         /* ATTN_DTYPE_*, 0 if libattn has no such type */
    uint32_t ndim;
    int64_t shape[ST_MAX_DIMS];
    const unsigned char *data; /* not aligned */
    uint64_t bytes;
} st_tensor_t;

typedef struct st_file st_file_t;

/* Maps and checks a file. ATTN_E_IO or ATTN_E_PARSE with a text that names the file. */
int st_open(const char *path, st_file_t **file, attn_error_t *error);
/* The same for bytes in memory, which must outlive the file; label is named in errors. */
int st_parse(const void *bytes, size_t size, const char *label, st_file_t **file, attn_error_t *error);
void st_close(st_file_t *file);

size_t st_count(const st_file_t *file);
const st_tensor_t *st_at(const st_file_t *file, size_t index);
const st_tensor_t *st_find(const st_file_t *file, const char *name); /* NULL: none */
const char *st_metadata(const st_file_t *file, const char *key);     /* NULL: none */

typedef struct st_pair {
    const char *key, *value;
} st_pair_t;

/* Writes tensors (name, dtype, shape, data, bytes are read) and metadata. The file appears under its name
 * only when it is complete. */
int st_write(const char *path, const st_tensor_t *tensors, size_t num_tensors, const st_pair_t *metadata,
             size_t num_metadata, attn_error_t *error);

#endif
