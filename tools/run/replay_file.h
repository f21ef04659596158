/* SPDX-License-Identifier: Apache-2.0 */
/* replay_file.h: the calls in a file of the record hook. Nothing in the file is trusted: what does not fit
 * the call's own problem is refused here, what the library checks with every call is left to it. */
#ifndef ATTN_TOOLS_REPLAY_FILE_H
#define ATTN_TOOLS_REPLAY_FILE_H

#include "tensor/safetensors.h"

enum { REPLAY_MAX_DIMS = 8 };

typedef struct replay_call {
    int number;
    attn_problem_t problem; /* as the backend was opened */
    const char *backend, *device, *shapes;
    int has_tensors;
    const char *tensors; /* "yes", or why there are none */
    int has_returned;    /* 0: the process ended within the call */
    int status;          /* ATTN_OK or ATTN_E_* */
    const char *error;   /* with a status that is not ATTN_OK; or "" */
    uint32_t flags;
    int32_t num_reqs, num_tokens, common_prefix_len, num_mm_ranges;
    int32_t *starts, *lens;         /* encoder_decoder: lens are those of the encoder */
    int32_t *table, *rswa, *ranges; /* NULL: none */
    int32_t *key_starts;            /* with keys of lengths of their own, else NULL */
    uint8_t *causal;                /* likewise */
    int64_t table_columns, num_blocks;
    /* where K, V and scales lie in a cache row, see attn_kv_cache_shape_t */
    int block_axis;
    long long k_offset, v_offset, k_scale_offset, v_scale_offset;
    int num_axes;
    uint32_t axes[REPLAY_MAX_DIMS];
    /* NULL: not given */
    const st_tensor_t *query, *key, *value, *kv_cache, *v_cache, *q_scale, *k_scale, *v_scale, *output_scale,
        *sinks, *slopes, *rel_bias, *qq_bias, *topk_indices, *kv_b_proj, *kv_b_proj_scale, *output, *lse;
} replay_call_t;

/* How many calls the file has, or a negative ATTN_E_*. */
int replay_file_calls(const st_file_t *file, const char *path, attn_error_t *error);
/* Reads and checks one; free it in any case. */
int replay_file_read(const st_file_t *file, const char *path, int number, replay_call_t *call,
                     attn_error_t *error);
void replay_call_free(replay_call_t *call);

#endif
