/* SPDX-License-Identifier: Apache-2.0 */
/* What plugins check of the tensors of a call alike: rows, small vectors, scales, dense caches. Where it
 * looks into a tensor, at slots, that is in host memory; gpu_tensor.h is for the others. */
#ifndef ATTN_CALL_CHECK_H
#define ATTN_CALL_CHECK_H

#include <attn/attn_plugin.h>
#include <attn/attn_plugin_util.h>

/* [rows or more, heads, size]; the message says that the batch has so many tokens. */
int call_check_rows(const DLTensor *t, const char *name, uint32_t dtype, int64_t heads, int64_t size,
                    int64_t tokens, attn_error_t *error);
/* The same of key and value without a cache, where batches have rows of their own for them. */
int call_check_key_rows(const DLTensor *t, const char *name, uint32_t dtype, int64_t heads, int64_t size,
                        int64_t rows, attn_error_t *error);
/* float32 [heads] if the feature is requested, else nothing. */
int call_check_vector(const DLTensor *t, const char *name, const char *feature, int is_wanted, int64_t heads,
                      attn_error_t *error);
/* float32 [heads, an odd number] if the feature rel_bias is requested, else nothing (semantics 2.15). */
int call_check_rel_bias(const DLTensor *t, int is_wanted, int64_t heads, attn_error_t *error);
/* NULL, or float32 [heads, tokens or more]. */
int call_check_lse(const DLTensor *t, int64_t heads, int64_t tokens, attn_error_t *error);
/* NULL, or float32: a scalar, or [1], or [heads]. */
int call_check_scale(const DLTensor *t, const char *name, int64_t heads, attn_error_t *error);

/* The v_scale of a format with scales of channels, which is required: one number, or [heads, size]. */
int call_check_channel_scale(const DLTensor *t, int64_t heads, int64_t size, attn_error_t *error);

/* kv_b_proj_scale of weights [rows, columns] (semantics 7.4): NULL, one float32, or of e4m3 weights one
 * for each block of 128 x 128, [rows / 128, columns / 128], both rounded up; then *is_blocks is 1. */
enum { CALL_WEIGHT_BLOCK = 128 };
int call_check_weight_scale(const DLTensor *t, int is_e4m3, int64_t rows, int64_t columns, int *is_blocks,
                            attn_error_t *error);

/* What is there by the features: sinks and ALiBi slopes, float32 [heads]; rel_bias; qq_bias, float32 [tokens
 * or more, any]; and the scales. */
int call_check_extras(const attn_forward_t *a, uint64_t features, int64_t heads, int64_t kv_heads,
                      int64_t tokens, attn_error_t *error);

/* The update that forward has to do first (semantics 3.11); its slot_mapping NULL: none. Refused without the
 * feature write_in_forward. */
int call_update_of_forward(const attn_forward_t *a, uint64_t features, attn_kv_update_t *update,
                           attn_error_t *error);

/* A dense cache as tensors: packed, K and V apart (semantics 3.4), or whole pages (3.6). */
typedef struct call_cache {
    uint32_t role, kv, storage; /* storage: ATTN_DTYPE_* of an element */
    int64_t kv_heads, block_size, head_size, head_size_v;
    int is_separate;
    uint32_t layout, dtype; /* of whole pages: ATTN_LAYOUT_*, the model's ATTN_DTYPE_* */
} call_cache_t;

/* Bytes of the values of a row of K (is_value 0) or V, and of the row with what is behind them. */
static inline int64_t call_cache_data_bytes(const call_cache_t *c, int is_value) {
    const attn_kv_format_t *f = attn_kv_format(c->kv);
    const int is_model =
        (is_value ? f->v_bits : f->k_bits) == ATTN_KV_MODEL_BITS; /* whatever K is stored as */
    return attn_kv_data_bytes(f, is_model ? c->dtype : c->storage, is_value ? c->head_size_v : c->head_size,
                              is_value);
}
static inline int64_t call_cache_row_bytes(const call_cache_t *c, int is_value) {
    const attn_kv_format_t *f = attn_kv_format(c->kv);
    return call_cache_data_bytes(c, is_value) + (is_value ? f->v_beside : f->k_beside);
}

/* The parts of a whole page. */
static inline attn_kv_page_t call_cache_page(const call_cache_t *c) {
    return attn_kv_page(attn_kv_format(c->kv), c->dtype, c->layout, c->kv_heads, c->block_size, c->head_size,
                        c->head_size_v);
}

int call_check_caches(const call_cache_t *c, const DLTensor *kv_cache, const DLTensor *v_cache,
                      attn_error_t *error);
/* update_kv_cache: the caches, the slots, and rows of K and V, of dtype or, for the tensors whose *is_raw
 * (of K, of V) is then 1, in the cache's own fp8 format, which is stored unchanged (semantics 3.2). */
int call_check_update(const call_cache_t *c, const attn_kv_update_t *a, uint32_t dtype, int is_raw[2],
                      attn_error_t *error);
/* A latent cache, [blocks, block_size, row_elements] in one tensor (semantics 3.5), and rows for it: key [n
 * or more, latent], value [n or more, rope] or [n or more, 1, rope], of dtype. */
int call_check_latent_cache(const DLTensor *kv_cache, const DLTensor *v_cache, uint32_t storage,
                            int64_t block_size, int64_t row_elements, attn_error_t *error);
int call_check_latent_update(const attn_kv_update_t *a, uint32_t dtype, int64_t latent, int64_t rope,
                             int64_t block_size, attn_error_t *error);
/* topk_indices [tokens or more, topk] (semantics 9.1); and of one row how many positions name a token of the
 * table's `end`: more than seq_len lets is the caller's mistake, of token `token` in request `request`. */
int call_check_topk(const DLTensor *t, int64_t topk, int64_t tokens, attn_error_t *error);
int call_count_selected(const int32_t *row, int64_t topk, int64_t end, int32_t seq_len, int64_t token,
                        int32_t request, int32_t *count, attn_error_t *error);
/* The slots, negative ones aside, lie below end. */
int call_check_slots(const DLTensor *slots, int64_t end, attn_error_t *error);

/* The profiling run: every element of [tokens, heads, size] becomes zero. */
void call_zero_rows(const DLTensor *t);

#endif
