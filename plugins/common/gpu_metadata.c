/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a metadata buffer: header, mirror, copies, mark. */
#include "gpu_metadata.h"

static uint64_t host_bytes(const gpu_metadata *m) {
    return m->mirror_at + m->bytes;
}

int gpu_give_space_needed(const gpu_metadata *m, uint64_t weight_bytes, attn_space_needed_t *needed,
                          attn_error_t *error) {
    const attn_space_needed_t full = {.struct_size = sizeof full,
                                      .alignment = 256,
                                      .metadata_bytes = m->bytes,
                                      .workspace_bytes = m->workspace_bytes,
                                      .host_bytes = host_bytes(m),
                                      .weight_bytes = weight_bytes};
    return attn_give(needed, &full, sizeof full, "needed", error);
}

int gpu_build_intake(const gpu_metadata *m, const attn_batch_t *batch, const attn_space_t *space,
                     attn_batch_t *b, attn_space_t *s, attn_error_t *error) {
    int status = attn_intake(b, sizeof *b, batch, "batch", error);
    if (status == ATTN_OK) status = attn_intake(s, sizeof *s, space, "space", error);
    return status == ATTN_OK ? gpu_check_space(s, m->bytes, host_bytes(m), error) : status;
}

char *gpu_begin_build(const gpu_metadata *m, const attn_space_t *s) {
    gpu_header_of(s)->magic = 0;
    return gpu_mirror_of(m, s);
}

int gpu_send_part(const attn_instance_t *in, const gpu_metadata *m, const attn_space_t *s, size_t at,
                  size_t bytes, void *stream, attn_error_t *error) {
    if (bytes == 0) return ATTN_OK;
    return m->copy(in, (char *)s->metadata + at, gpu_mirror_of(m, s) + at, bytes, stream, error);
}

int gpu_send(const attn_instance_t *in, const gpu_metadata *m, const attn_space_t *s, size_t bytes,
             void *stream, attn_error_t *error) {
    return gpu_send_part(in, m, s, 0, bytes, stream, error);
}

void gpu_finish_build(const gpu_metadata *m, const attn_batch_t *b, const attn_space_t *s) {
    *gpu_header_of(s) = (gpu_header){m->magic, b->num_reqs, b->num_actual_tokens};
}

int gpu_check_update(const gpu_metadata *m, const attn_batch_t *b, const attn_space_t *s,
                     attn_error_t *error) {
    const gpu_header *h = gpu_header_of(s);
    if (h->magic == m->magic && h->num_reqs == b->num_reqs) return ATTN_OK;
    return attn_fail(error, ATTN_E_STATE, "metadata",
                     "the metadata was not built for this batch; call build_metadata first");
}

int gpu_check_forward(const gpu_metadata *m, const attn_space_t *s, attn_error_t *error) {
    int status = gpu_check_space(s, m->bytes, host_bytes(m), error);
    if (status != ATTN_OK) return status;
    if (gpu_header_of(s)->magic != m->magic)
        return attn_fail(error, ATTN_E_STATE, "metadata",
                         "the metadata was never built, or building it failed; call build_metadata first");
    if (m->workspace_bytes > 0 && (s->workspace == NULL || s->workspace_bytes < m->workspace_bytes))
        return attn_fail(error, ATTN_E_SPACE, "workspace",
                         "the workspace has %llu bytes; space_needed says %llu",
                         (unsigned long long)(s->workspace ? s->workspace_bytes : 0),
                         (unsigned long long)m->workspace_bytes);
    return ATTN_OK;
}
