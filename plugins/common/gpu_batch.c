/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a batch. */
#include "gpu_batch.h"

int gpu_check_tensor_device(const DLTensor *t, const char *name, attn_error_t *error) {
    if (t->device.device_type == kDLCUDA || t->device.device_type == kDLCUDAManaged) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, name, "%s lies on device type %d; a CUDA tensor was wanted", name,
                     (int)t->device.device_type);
}

int gpu_check_lengths(const gpu_batch_limits *l, const attn_batch_t *b, attn_error_t *error) {
    if (b->num_reqs < 0 || b->num_reqs > l->max_seqs)
        return attn_fail(error, ATTN_E_INVALID, "num_reqs",
                         "num_reqs is %d; 0 to %d (max_num_seqs) were wanted", b->num_reqs, l->max_seqs);
    if (b->num_actual_tokens < 0 || b->num_actual_tokens > l->max_tokens)
        return attn_fail(error, ATTN_E_INVALID, "num_actual_tokens",
                         "num_actual_tokens is %d; 0 to %d (max_num_batched_tokens) were wanted",
                         b->num_actual_tokens, l->max_tokens);
    if (b->query_start_loc_host == NULL || (b->seq_lens_host == NULL && b->num_reqs > 0))
        return attn_fail(error, ATTN_E_INVALID,
                         b->query_start_loc_host == NULL ? "query_start_loc" : "seq_lens",
                         "query_start_loc_host and seq_lens_host are required");
    const int32_t *start = b->query_start_loc_host;
    if (start[0] != 0 || start[b->num_reqs] != b->num_actual_tokens)
        return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                         "query_start_loc goes from %d to %d; 0 to num_actual_tokens (%d) was wanted",
                         start[0], start[b->num_reqs], b->num_actual_tokens);
    for (int32_t r = 0; r < b->num_reqs; r++) {
        int64_t query = (int64_t)start[r + 1] - start[r], seq = b->seq_lens_host[r];
        if (query < 0)
            return attn_fail(error, ATTN_E_INVALID, "query_start_loc",
                             "query_start_loc falls from %d to %d at request %d; it must not decrease",
                             start[r], start[r + 1], r);
        if (seq < 0 || seq > l->max_model_len)
            return attn_fail(error, ATTN_E_INVALID, "seq_lens",
                             "seq_lens[%d] is %lld; 0 to %lld (max_model_len) were wanted", r, (long long)seq,
                             (long long)l->max_model_len);
        if (l->seq_counts_query && seq < query)
            return attn_fail(error, ATTN_E_INVALID, "seq_lens",
                             "seq_lens[%d] is %lld, less than its %lld query tokens; it counts them", r,
                             (long long)seq, (long long)query);
        if (!l->has_cache && seq != query)
            return attn_fail(
                error, ATTN_E_INVALID, "seq_lens",
                "seq_lens[%d] is %lld but the request has %lld tokens; without a cache they are equal", r,
                (long long)seq, (long long)query);
    }
    return ATTN_OK;
}

int gpu_check_block_table(const gpu_batch_limits *l, const attn_batch_t *b, attn_error_t *error) {
    const DLTensor *t = b->block_table;
    if (!l->has_cache || b->num_reqs == 0) return ATTN_OK;
    int status = attn_check_tensor(t, "block_table", ATTN_DTYPE_INT32, 2, NULL, error);
    if (status == ATTN_OK) status = gpu_check_tensor_device(t, "block_table", error);
    if (status == ATTN_OK && t->shape[0] < b->num_reqs)
        status = attn_fail(error, ATTN_E_INVALID, "block_table", "block_table has %lld rows for %d requests",
                           (long long)t->shape[0], b->num_reqs);
    for (int32_t r = 0; r < b->num_reqs && status == ATTN_OK; r++) {
        int64_t blocks = ((int64_t)b->seq_lens_host[r] + l->page_size - 1) / l->page_size;
        if (b->query_start_loc_host[r + 1] > b->query_start_loc_host[r] && blocks > t->shape[1])
            status =
                attn_fail(error, ATTN_E_INVALID, "block_table",
                          "block_table has %lld columns; seq_lens[%d] = %d needs %lld blocks of %d tokens",
                          (long long)t->shape[1], r, b->seq_lens_host[r], (long long)blocks, l->page_size);
    }
    return status;
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
