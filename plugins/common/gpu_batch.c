/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a batch on a GPU: where its tensors lie, and its buffers. */
#include "gpu_batch.h"

int gpu_check_tensor_device(const DLTensor *t, const char *name, attn_error_t *error) {
    if (t->device.device_type == kDLCUDA || t->device.device_type == kDLCUDAManaged) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, name, "%s lies on device type %d; a CUDA tensor was wanted", name,
                     (int)t->device.device_type);
}

int gpu_check_block_table(const batch_limits_t *l, const attn_batch_t *b, attn_error_t *error) {
    int status = batch_check_table(l, b, error);
    if (status != ATTN_OK || !l->has_cache || b->num_reqs == 0) return status;
    return gpu_check_tensor_device(b->block_table, "block_table", error);
}

int gpu_check_space(const attn_space_t *s, uint64_t metadata_bytes, uint64_t host_bytes,
                    attn_error_t *error) {
    const struct {
        const char *name;
        const void *given;
        uint64_t bytes, wanted;
    } buffers[] = {{"metadata", s->metadata, s->metadata_bytes, metadata_bytes},
                   {"host", s->host, s->host_bytes, host_bytes}};
    for (int i = 0; i < 2; i++)
        if (buffers[i].given == NULL || buffers[i].bytes < buffers[i].wanted)
            return attn_fail(error, ATTN_E_SPACE, buffers[i].name,
                             "the %s buffer has %llu bytes; space_needed says %llu", buffers[i].name,
                             (unsigned long long)(buffers[i].given ? buffers[i].bytes : 0),
                             (unsigned long long)buffers[i].wanted);
    return ATTN_OK;
}
