/* SPDX-License-Identifier: Apache-2.0 */
/* A safetensors file in the making: tensors and texts are collected in memory, up to a limit, and written at
 * once. */
#ifndef ATTNI_TENSOR_FILE_H
#define ATTNI_TENSOR_FILE_H

#include <attn/attn_types.h>

enum { ATTNI_TENSOR_NAME_MAX = 64, ATTNI_TENSOR_DIMS = 8 };

struct attni_tensor_entry {
    char name[ATTNI_TENSOR_NAME_MAX];
    uint32_t dtype, ndim; /* ATTN_DTYPE_* */
    int64_t shape[ATTNI_TENSOR_DIMS];
    void *data;
    uint64_t bytes;
};

/* A pair of __metadata__. */
struct attni_text_entry {
    char key[ATTNI_TENSOR_NAME_MAX];
    char *value;
};

struct attni_tensor_file {
    struct attni_tensor_entry *tensors;
    struct attni_text_entry *texts;
    size_t num_tensors, num_texts, tensor_room, text_room;
    uint64_t bytes, max_bytes; /* of data and texts together */
};

/* Room for a dense tensor's data, or NULL: out of memory, beyond max_bytes, or a type that the format has
 * not. */
void *attni_tensor_file_add(struct attni_tensor_file *f, const char *name, uint32_t dtype, uint32_t ndim,
                            const int64_t *shape);
/* Sets a text. 0, or -1: out of memory or beyond max_bytes. */
int attni_tensor_file_text(struct attni_tensor_file *f, const char *key, const char *value);
/* Takes back the tensors from number num_tensors on. */
void attni_tensor_file_rewind(struct attni_tensor_file *f, size_t num_tensors);
/* The file appears under its name only when it is complete, and only its owner may read it. 0 or an errno. */
int attni_tensor_file_write(const struct attni_tensor_file *f, const char *path);
void attni_tensor_file_free(struct attni_tensor_file *f);

#endif
