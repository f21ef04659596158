/* SPDX-License-Identifier: Apache-2.0 */
/* ref_mla_weights.c: kv_b_proj [N * (P + V), L] of one layer as float32, exactly as it is: the oracle
 * multiplies with W_UK and W_UV in the order of the formula, so nothing has to be transposed (semantics 7.4).
 * */
#include "ref_mla.h"

typedef struct weight_header {
    uint64_t magic;
    uint32_t heads, nope, value, latent;
    uint64_t reserved[5];
} weight_header_t;

#define WEIGHT_MAGIC UINT64_C(0x3067655741524c4d)

static int64_t rows_per_head(const attn_instance_t *in) {
    return (int64_t)in->p.qk_nope_head_dim + in->p.v_head_dim;
}

uint64_t ref_mla_weight_bytes(const attn_instance_t *in) {
    return sizeof(weight_header_t) +
           (uint64_t)in->heads * (uint64_t)rows_per_head(in) * in->p.kv_lora_rank * 4;
}

const float *ref_mla_weight_row(const attn_instance_t *in, const void *weight_space, int64_t head,
                                int64_t j) {
    const float *first = (const float *)(const void *)((const char *)weight_space + sizeof(weight_header_t));
    return first + (head * rows_per_head(in) + j) * in->p.kv_lora_rank;
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
    int64_t rows = in->heads * rows_per_head(in), latent = in->p.kv_lora_rank;
    const int64_t shape[2] = {rows, latent};
    int is_fp8 = w.kv_b_proj != NULL && attn_dtype_of(w.kv_b_proj->dtype) == ATTN_DTYPE_FP8_E4M3;
    status = attn_check_tensor(w.kv_b_proj, "kv_b_proj", is_fp8 ? (uint32_t)ATTN_DTYPE_FP8_E4M3 : in->p.dtype,
                               2, shape, error);
    if (status == ATTN_OK) status = call_check_scale(w.kv_b_proj_scale, "kv_b_proj_scale", 1, error);
    if (status == ATTN_OK) status = ref_fp8_check_scale(w.kv_b_proj_scale, "kv_b_proj_scale", error);
    if (status != ATTN_OK) return status;
    if (w.weight_space == NULL || w.weight_space_bytes < ref_mla_weight_bytes(in))
        return attn_fail(error, ATTN_E_SPACE, "weight_space",
                         "weight_space has %llu bytes; space_needed says %llu",
                         (unsigned long long)(w.weight_space != NULL ? w.weight_space_bytes : 0),
                         (unsigned long long)ref_mla_weight_bytes(in));
    weight_header_t header = {.heads = in->heads,
                              .nope = in->p.qk_nope_head_dim,
                              .value = in->p.v_head_dim,
                              .latent = in->p.kv_lora_rank};
    float *out = (float *)(void *)((char *)w.weight_space + sizeof header);
    double scale = ref_scale_of(w.kv_b_proj_scale, 0), piece[256];
    uint32_t dtype = is_fp8 ? (uint32_t)ATTN_DTYPE_FP8_E4M3 : in->p.dtype;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t at = 0; at < latent; at += 256) {
            int64_t n = latent - at < 256 ? latent - at : 256;
            ref_load_row(ref_at2(w.kv_b_proj, row, at), dtype, n, piece);
            for (int64_t i = 0; i < n; i++)
                out[row * latent + at + i] = (float)(piece[i] * scale);
        }
    header.magic = WEIGHT_MAGIC;
    memcpy(w.weight_space, &header, sizeof header);
    return ATTN_OK;
}

int ref_mla_check_weights(const attn_instance_t *in, const attn_forward_t *a, attn_error_t *error) {
    const weight_header_t *h = a->weight_space;
    if (h == NULL || a->weight_space_bytes < ref_mla_weight_bytes(in))
        return attn_fail(error, ATTN_E_INVALID, "weight_space",
                         "weight_space has %llu bytes, expected %llu; call prepare_weights after loading",
                         (unsigned long long)(h != NULL ? a->weight_space_bytes : 0),
                         (unsigned long long)ref_mla_weight_bytes(in));
    if (h->magic != WEIGHT_MAGIC)
        return attn_fail(error, ATTN_E_STATE, "weight_space",
                         "weight_space was never filled; call prepare_weights after loading");
    if (h->heads != in->heads || h->nope != in->p.qk_nope_head_dim || h->value != in->p.v_head_dim ||
        h->latent != in->p.kv_lora_rank)
        return attn_fail(
            error, ATTN_E_INVALID, "weight_space",
            "weight_space was made for %u heads, P %u, V %u, L %u; this layer has %u, %u, %u, %u", h->heads,
            h->nope, h->value, h->latent, in->heads, in->p.qk_nope_head_dim, in->p.v_head_dim,
            in->p.kv_lora_rank);
    return ATTN_OK;
}
