/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a metadata buffer, alike in every backend on a GPU. The host buffer holds a header, all that
 * forward reads on the host, and behind it a mirror of the metadata. A build takes the mark off the header,
 * writes the mirror, sends what it used with asynchronous copies and sets the mark; forward and a new block
 * table want the mark. Kernels read counts and the address of the block table in the metadata, so that a
 * captured forward serves every later batch built there. */
#ifndef ATTN_GPU_METADATA_H
#define ATTN_GPU_METADATA_H

#include "gpu_batch.h"

/* What the header of a backend begins with. */
typedef struct gpu_header {
    uint64_t magic; /* of the backend: the mark that everything is in place */
    int32_t num_reqs, num_tokens;
} gpu_header;

/* How the buffers of an instance lie. */
typedef struct gpu_metadata {
    uint64_t magic;
    size_t mirror_at; /* in the host buffer */
    size_t bytes;     /* of the metadata and of the mirror */
    size_t workspace_bytes;
    /* Copies from the host buffer without waiting for it. */
    int (*copy)(const attn_instance_t *instance, void *to, const void *from, size_t bytes, void *stream,
                attn_error_t *error);
} gpu_metadata;

/* What space_needed says: host bytes follow. */
int gpu_give_space_needed(const gpu_metadata *m, uint64_t weight_bytes, attn_space_needed_t *needed,
                          attn_error_t *error);

/* The arguments of a build and of a new block table: batch and space, as large as said. */
int gpu_build_intake(const gpu_metadata *m, const attn_batch_t *batch, const attn_space_t *space,
                     attn_batch_t *b, attn_space_t *s, attn_error_t *error);

static inline gpu_header *gpu_header_of(const attn_space_t *s) {
    return s->host;
}
static inline char *gpu_mirror_of(const gpu_metadata *m, const attn_space_t *s) {
    return (char *)s->host + m->mirror_at;
}

/* Takes the mark off and returns the mirror. */
char *gpu_begin_build(const gpu_metadata *m, const attn_space_t *s);
/* Sends the first bytes of the mirror. The host buffer is free again when the stream has passed here. */
int gpu_send(const attn_instance_t *in, const gpu_metadata *m, const attn_space_t *s, size_t bytes,
             void *stream, attn_error_t *error);
/* The same of bytes anywhere. */
int gpu_send_part(const attn_instance_t *in, const gpu_metadata *m, const attn_space_t *s, size_t at,
                  size_t bytes, void *stream, attn_error_t *error);
/* Writes the header's beginning and sets the mark. */
void gpu_finish_build(const gpu_metadata *m, const attn_batch_t *b, const attn_space_t *s);

/* A new block table goes to metadata that was built for as many requests. */
int gpu_check_update(const gpu_metadata *m, const attn_batch_t *b, const attn_space_t *s,
                     attn_error_t *error);
/* Forward's buffers: as large as said, the metadata built. */
int gpu_check_forward(const gpu_metadata *m, const attn_space_t *s, attn_error_t *error);

#endif
