/* SPDX-License-Identifier: Apache-2.0 */
/* ref_open.c: makes an instance of the reference backend, and answers for its cache shape and its buffers. */
#include "../common/cache_shape.h"
#include "../common/problem_check.h"
#include "ref_capabilities.h"
#include "ref_mla.h"

#include <stdlib.h>

int ref_open(const attn_problem_t *problem, const attn_device_t *device, const attn_option_value_t *options,
             uint32_t num_options, const attn_host_t *host, attn_instance_t **instance, attn_error_t *error) {
    (void)options, (void)num_options, (void)host;
    attn_problem_t p;
    int status = attn_intake(&p, sizeof p, problem, "problem", error);
    if (status == ATTN_OK)
        status = problem_check(&p, device, &ref_capabilities, "REFERENCE", ref_supports, error);
    if (status != ATTN_OK) return status;

    attn_instance_t *in = calloc(1, sizeof *in);
    if (in == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for an instance of %zu bytes",
                         sizeof *in);
    in->p = p;
    in->features = attn_problem_features(&p);
    in->out_dtype = p.out_dtype != 0 ? p.out_dtype : p.dtype;
    in->query_dtype = p.query_dtype != 0 ? p.query_dtype : p.dtype;
    in->kv = p.kv_cache_dtype != 0 ? p.kv_cache_dtype : (uint32_t)ATTN_KV_AUTO;
    in->storage = attn_kv_storage(in->kv, p.dtype);
    in->heads = p.num_heads;
    in->kv_heads = p.num_kv_heads != 0 ? p.num_kv_heads : p.num_heads;
    in->group = in->heads / in->kv_heads;
    in->d = p.head_size;
    in->dv = p.head_size_v != 0 ? p.head_size_v : p.head_size;
    if (attn_role_is_mla(p.role)) { /* one latent head, or the MHA part alone */
        int is_latent = ref_is_mla(in);
        if (is_latent) in->kv_heads = 1;
        in->group = in->heads / in->kv_heads;
        in->d = (is_latent ? p.kv_lora_rank : p.qk_nope_head_dim) + p.qk_rope_head_dim;
        in->dv = is_latent ? p.kv_lora_rank : p.v_head_dim;
        in->is_fp8_query = attn_problem_projects(&p) && in->query_dtype != p.dtype;
        if (in->is_fp8_query) in->query_dtype = p.dtype; /* forward quantises what it absorbed */
    }
    in->out_size = attn_output_size(&p);
    in->block_size = p.block_size != 0 ? p.block_size : ref_capabilities.preferred_block_size;
    in->max_seqs = p.max_num_seqs != 0 ? p.max_num_seqs : 256;
    in->max_tokens = p.max_num_batched_tokens != 0 ? p.max_num_batched_tokens : 8192;
    in->max_len = p.max_model_len != 0 ? p.max_model_len : 131072;
    in->max_spans = (in->features & ATTN_F_MM_PREFIX) == 0 ? 0 : p.max_mm_ranges != 0 ? p.max_mm_ranges : 8;
    in->has_cache = attn_role_has_cache(p.role);
    in->is_separate = (in->features & ATTN_F_SEPARATE_KV) != 0;
    in->metadata_bytes = ref_metadata_bytes(in->max_seqs, in->max_spans);
    if (in->metadata_bytes == UINT64_MAX) {
        free(in);
        return attn_fail(
            error, ATTN_E_UNSUPPORTED, "max_mm_ranges",
            "max_mm_ranges %u of max_num_seqs %u requests are more than can be counted; give less",
            p.max_mm_ranges, p.max_num_seqs);
    }
    in->workspace_bytes = ref_workspace_doubles(in) * sizeof(double);
    if ((in->features & ATTN_F_DEVICE_LENGTHS) != 0) in->workspace_bytes += in->metadata_bytes;
    *instance = in;
    return ATTN_OK;
}

void ref_close(attn_instance_t *instance) {
    free(instance);
}

/* With separate_kv the shape is that of the packed cache, whose K columns and V columns are a valid pair of
 * tensors; any other pair with its own strides serves as well. */
int ref_kv_cache_shape(attn_instance_t *in, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                       attn_error_t *error) {
    return cache_shape_give(&in->p, ATTN_LAYOUT_NHD, in->block_size, num_blocks, shape, error);
}

int ref_space_needed(attn_instance_t *in, attn_space_needed_t *needed, attn_error_t *error) {
    attn_space_needed_t full = {.struct_size = sizeof full, .alignment = 64};
    full.metadata_bytes = in->metadata_bytes;
    full.workspace_bytes = in->workspace_bytes;
    full.weight_bytes = attn_problem_projects(&in->p)                ? ref_mla_weight_bytes(in)
                        : (in->features & ATTN_F_FP8_ATTENTION) != 0 ? sizeof(attn_fp8_state_t)
                                                                     : 0;
    return attn_give(needed, &full, sizeof full, "needed", error);
}
