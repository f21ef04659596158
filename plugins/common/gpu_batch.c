/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a problem and of a batch on a GPU: limits, where tensors lie, buffers. */
#include "gpu_batch.h"

#include <math.h>

int gpu_check_block_table(const batch_limits_t *l, const attn_batch_t *b, attn_error_t *error) {
    int status = batch_check_table(l, b, error);
    if (status != ATTN_OK || !l->has_cache || b->num_reqs == 0) return status;
    return gpu_check_tensor_device(b->block_table, "block_table", error);
}

int gpu_check_device_lengths(const attn_problem_t *p, const attn_batch_t *b, attn_error_t *error) {
    int status = batch_check_device_lengths(p, b, error);
    if (status != ATTN_OK || (p->features & ATTN_F_DEVICE_LENGTHS) == 0 || b->num_reqs == 0) return status;
    const DLTensor *const lists[] = {b->query_start_loc, b->seq_lens};
    static const char *const names[] = {"query_start_loc", "seq_lens"};
    for (int i = 0; i < 2 && status == ATTN_OK; i++) {
        status = gpu_check_tensor_device(lists[i], names[i], error);
        if (status == ATTN_OK && lists[i]->shape[0] > 1 && lists[i]->strides[0] != 1)
            status = attn_fail(error, ATTN_E_INVALID, names[i], "%s has a stride of %lld; expected 1",
                               names[i], (long long)lists[i]->strides[0]);
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

void gpu_check_limits(const attn_problem_t *p, int64_t max_tokens, attn_reasons_t *reasons) {
    char have[32], want[48];
    const struct {
        const char *name;
        int64_t have, most;
    } limits[] = {{"max_num_seqs", p->max_num_seqs, 65535},
                  {"max_num_batched_tokens", p->max_num_batched_tokens, max_tokens},
                  {"max_model_len", p->max_model_len, INT32_MAX - 65536},
                  {"num_blocks", p->num_blocks, INT32_MAX}};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (limits[i].have < 0 || limits[i].have > limits[i].most) {
            snprintf(have, sizeof have, "%lld", (long long)limits[i].have);
            snprintf(want, sizeof want, "0 to %lld", (long long)limits[i].most);
            attn_add_reason(reasons, ATTN_REASON_LIMIT, limits[i].name, have, want, "%s is %s; %s are served",
                            limits[i].name, have, want);
        }
    if (attn_role_has_cache(p->role) && p->block_size % 16 != 0) {
        snprintf(have, sizeof have, "%u", p->block_size);
        attn_add_reason(reasons, ATTN_REASON_BLOCK_SIZE, "block_size", have, "a multiple of 16",
                        "block_size is %s; multiples of 16 are served", have);
    }
    if (isfinite(p->scale) && fabs(p->scale) > 1e6) /* scores are float32 */
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, "scale", "beyond 1e6", "at most 1e6",
                        "scale is %g; at most 1e6 is served", p->scale);
}
