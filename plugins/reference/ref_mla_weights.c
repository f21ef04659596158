/* SPDX-License-Identifier: Apache-2.0 */
/* ref_mla_weights.c: kv_b_proj [N * (P + V), L] of one layer as float32, exactly as it is: the oracle
 * multiplies with W_UK and W_UV in the order of the formula, so nothing has to be transposed (semantics 7.4).
 * */
#include "ref_mla.h"

#include "../common/latent_weights.h"

#define WEIGHT_MAGIC UINT64_C(0x3067655741524c4d)

uint64_t ref_mla_weight_bytes(const attn_instance_t *in) {
    return sizeof(latent_weights_t) + (uint64_t)latent_weights_rows(&in->p) * in->p.kv_lora_rank * 4;
}

const float *ref_mla_weight_row(const attn_instance_t *in, const void *weight_space, int64_t head,
                                int64_t j) {
    const float *first = (const float *)(const void *)((const char *)weight_space + sizeof(latent_weights_t));
    return first + (head * ((int64_t)in->p.qk_nope_head_dim + in->p.v_head_dim) + j) * in->p.kv_lora_rank;
}

int ref_prepare_weights(attn_instance_t *in, const attn_weights_t *weights, void *stream,
                        attn_error_t *error) {
    (void)stream;
    attn_weights_t w;
    int status = attn_intake(&w, sizeof w, weights, "weights", error);
    if (status != ATTN_OK) return status;
    if ((in->features & ATTN_F_FP8_ATTENTION) != 0) return ref_fp8_prepare(in, &w, error);
    if (!attn_problem_projects(&in->p))
        return attn_fail(error, ATTN_E_STATE, "role", "role %s has no absorbed weights%s",
                         attn_role_name(in->p.role),
                         ref_is_mla(in) ? " with feature latent: the caller projects" : "");
    latent_weights_t header;
    status = latent_weights_intake(&in->p, &w, WEIGHT_MAGIC, ref_mla_weight_bytes(in), &header, error);
    if (status != ATTN_OK) return status;
    const int64_t rows = latent_weights_rows(&in->p), latent = in->p.kv_lora_rank;
    float *out = (float *)(void *)((char *)w.weight_space + sizeof header);
    const DLTensor *blocks = latent_weights_blocks(&w);
    double piece[256];
    for (int64_t row = 0; row < rows; row++)
        for (int64_t at = 0; at < latent; at += 256) {
            int64_t n = latent - at < 256 ? latent - at : 256;
            ref_load_row(ref_at2(w.kv_b_proj, row, at), header.dtype, n, piece);
            for (int64_t i = 0; i < n; i++)
                out[row * latent + at + i] =
                    (float)(piece[i] * (blocks ? latent_weights_block(blocks, row, at + i) : header.scale));
        }
    memcpy(w.weight_space, &header, sizeof header);
    return ATTN_OK;
}

int ref_mla_check_weights(const attn_instance_t *in, const attn_forward_t *a, attn_error_t *error) {
    return latent_weights_check(&in->p, a, WEIGHT_MAGIC, ref_mla_weight_bytes(in), error);
}
