/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_mla.h: multi-head latent attention (semantics 3.5, 7.4, 9.2): one latent row of L + R values per token,
 * whose first L are the value too; queries absorb W_UK before, outputs go through W_UV after. Dense and
 * sparse differ in which keys are walked over. Used by the roles mla and mla_sparse; mla_prefill is plain
 * attention without a cache.
 */
#ifndef ATTN_REFERENCE_MLA_H
#define ATTN_REFERENCE_MLA_H

#include "ref_attend.h"

/* Where the latent rows are and what their bytes mean. */
struct ref_mla_cache {
    char *base;
    int64_t block_stride, token_stride; /* bytes */
    int64_t latent, rope;
    uint32_t kv, dtype;
    const DLTensor *scale; /* k_scale of fp8 caches, else NULL */
};

static inline int ref_is_mla(const attn_instance_t *in) {
    return in->p.role == ATTN_ROLE_MLA || in->p.role == ATTN_ROLE_MLA_SPARSE;
}

int ref_mla_check_cache(const attn_instance_t *in, const DLTensor *kv_cache, const DLTensor *v_cache,
                        attn_error_t *error);
ref_mla_cache_t ref_mla_cache(const attn_instance_t *in, const DLTensor *kv_cache,
                              const attn_scales_t *scales);
/* The latent and rope values of one token, L + R doubles. */
void ref_mla_load(const ref_mla_cache_t *c, int64_t block, int64_t token, double *out);
void ref_mla_store(const ref_mla_cache_t *c, int64_t block, int64_t token, const void *kv_c, const void *k_pe,
                   uint32_t dtype);

int ref_mla_update(attn_instance_t *in, const attn_kv_update_t *a, attn_error_t *error);

/* kv_b_proj as float32 behind a header that says for which sizes it was made. */
uint64_t ref_mla_weight_bytes(const attn_instance_t *in);
int ref_prepare_weights(attn_instance_t *in, const attn_weights_t *weights, void *stream,
                        attn_error_t *error);
/* Row j of head h: W_UK for j < P, W_UV behind; L floats. */
const float *ref_mla_weight_row(const attn_instance_t *in, const void *weight_space, int64_t head, int64_t j);
int ref_mla_check_weights(const attn_instance_t *in, const attn_forward_t *a, attn_error_t *error);

uint64_t ref_mla_workspace_doubles(const attn_instance_t *in);
int ref_mla_check_forward(const attn_instance_t *in, const attn_forward_t *a, const ref_metadata_t *m,
                          attn_error_t *error);
void ref_mla_run_tile(const attn_instance_t *in, const attn_forward_t *a, const ref_metadata_t *m, int32_t r,
                      const ref_tile_t *tile, const ref_mask_t *mask, double *workspace);

#endif
