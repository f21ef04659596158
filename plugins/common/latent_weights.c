/* SPDX-License-Identifier: Apache-2.0 */
/* The checks around kv_b_proj that host backends have in common. */
#include "latent_weights.h"

#include "call_check.h"

#include <math.h>

int64_t latent_weights_rows(const attn_problem_t *p) {
    return (int64_t)p->num_heads * ((int64_t)p->qk_nope_head_dim + p->v_head_dim);
}

static int check_positive(float scale, attn_error_t *error) {
    if (scale > 0 && isfinite(scale)) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, "kv_b_proj_scale",
                     "kv_b_proj_scale has %g; expected positive numbers", (double)scale);
}

static int take_scale(const attn_weights_t *w, int is_e4m3, int64_t rows, int64_t columns, float *scale,
                      attn_error_t *error) {
    const DLTensor *t = w->kv_b_proj_scale;
    int is_blocks;
    *scale = 1.0f;
    int status = call_check_weight_scale(t, is_e4m3, rows, columns, &is_blocks, error);
    if (status != ATTN_OK || t == NULL) return status;
    for (int64_t r = 0; is_blocks && status == ATTN_OK && r < rows; r += CALL_WEIGHT_BLOCK)
        for (int64_t c = 0; status == ATTN_OK && c < columns; c += CALL_WEIGHT_BLOCK)
            status = check_positive(latent_weights_block(t, r, c), error);
    if (is_blocks) return status;
    *scale = *(const float *)attn_data(t);
    return check_positive(*scale, error);
}

int latent_weights_intake(const attn_problem_t *p, const attn_weights_t *w, uint64_t magic, uint64_t bytes,
                          latent_weights_t *header, attn_error_t *error) {
    const int64_t shape[2] = {latent_weights_rows(p), p->kv_lora_rank};
    const int is_fp8 = w->kv_b_proj != NULL && attn_dtype_of(w->kv_b_proj->dtype) == ATTN_DTYPE_FP8_E4M3;
    *header = (latent_weights_t){.magic = magic,
                                 .heads = p->num_heads,
                                 .nope = p->qk_nope_head_dim,
                                 .value = p->v_head_dim,
                                 .latent = p->kv_lora_rank,
                                 .dtype = is_fp8 ? (uint32_t)ATTN_DTYPE_FP8_E4M3 : p->dtype};
    int status = attn_check_tensor(w->kv_b_proj, "kv_b_proj", header->dtype, 2, shape, error);
    if (status == ATTN_OK) status = take_scale(w, is_fp8, shape[0], shape[1], &header->scale, error);
    if (status != ATTN_OK) return status;
    if (w->weight_space == NULL || w->weight_space_bytes < bytes)
        return attn_fail(error, ATTN_E_SPACE, "weight_space",
                         "weight_space has %llu bytes; space_needed says %llu",
                         (unsigned long long)(w->weight_space != NULL ? w->weight_space_bytes : 0),
                         (unsigned long long)bytes);
    return ATTN_OK;
}

int latent_weights_check(const attn_problem_t *p, const attn_forward_t *a, uint64_t magic, uint64_t bytes,
                         attn_error_t *error) {
    const latent_weights_t *h = a->weight_space;
    if (h == NULL || a->weight_space_bytes < bytes)
        return attn_fail(error, ATTN_E_INVALID, "weight_space",
                         "weight_space has %llu bytes, expected %llu; call prepare_weights after loading",
                         (unsigned long long)(h != NULL ? a->weight_space_bytes : 0),
                         (unsigned long long)bytes);
    if (h->magic != magic)
        return attn_fail(error, ATTN_E_STATE, "weight_space",
                         "weight_space was never filled; call prepare_weights after loading");
    if (h->heads != p->num_heads || h->nope != p->qk_nope_head_dim || h->value != p->v_head_dim ||
        h->latent != p->kv_lora_rank)
        return attn_fail(
            error, ATTN_E_INVALID, "weight_space",
            "weight_space was made for %u heads, P %u, V %u, L %u; this layer has %u, %u, %u, %u", h->heads,
            h->nope, h->value, h->latent, p->num_heads, p->qk_nope_head_dim, p->v_head_dim, p->kv_lora_rank);
    return ATTN_OK;
}
