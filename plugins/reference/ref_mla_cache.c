/* SPDX-License-Identifier: Apache-2.0 */
/* ref_mla_cache.c: latent caches: 16-bit and float32 rows, fp8 with one scale, and the 656-byte rows of
 * fp8_ds_mla (512 e4m3 values, four float32 scales, 64 bfloat16 rope values; semantics 3.5). */
#include "ref_mla.h"

#include <float.h>
#include <math.h>

enum { DS_LATENT = 512, DS_TILE = 128, DS_TILES = 4, DS_ROPE = 64 };

static int64_t row_elements(const attn_instance_t *in) {
    return in->kv == ATTN_KV_FP8_DS_MLA ? ATTN_DS_MLA_ROW
                                        : (int64_t)in->p.kv_lora_rank + in->p.qk_rope_head_dim;
}

int ref_mla_check_cache(const attn_instance_t *in, const DLTensor *kv_cache, const DLTensor *v_cache,
                        attn_error_t *error) {
    return call_check_latent_cache(kv_cache, v_cache, in->storage, in->block_size, row_elements(in), error);
}

ref_mla_cache_t ref_mla_cache(const attn_instance_t *in, const DLTensor *kv_cache,
                              const attn_scales_t *scales) {
    int is_scaled = in->kv == ATTN_KV_FP8_E4M3 || in->kv == ATTN_KV_FP8_E5M2;
    return (ref_mla_cache_t){
        .base = attn_data(kv_cache),
        .block_stride = attn_byte_stride(kv_cache, 0),
        .token_stride = attn_byte_stride(kv_cache, 1),
        .latent = in->p.kv_lora_rank,
        .rope = in->p.qk_rope_head_dim,
        .kv = in->kv,
        .dtype = in->storage,
        .scale = is_scaled ? scales->k : NULL,
    };
}

void ref_mla_load(const ref_mla_cache_t *c, int64_t block, int64_t token, double *out) {
    const char *row = c->base + block * c->block_stride + token * c->token_stride;
    if (c->kv == ATTN_KV_FP8_DS_MLA) {
        ref_load_row(row, ATTN_DTYPE_FP8_E4M3, DS_LATENT, out);
        for (int i = 0; i < DS_LATENT; i++)
            out[i] *= ref_read_float(row + ATTN_DS_MLA_SCALES_AT + i / DS_TILE * 4);
        ref_load_row(row + ATTN_DS_MLA_ROPE_AT, ATTN_DTYPE_BFLOAT16, DS_ROPE, out + DS_LATENT);
        return;
    }
    ref_load_row(row, c->dtype, c->latent + c->rope, out);
    if (c->scale == NULL) return;
    double scale = ref_scale_of(c->scale, 0);
    for (int64_t i = 0; i < c->latent + c->rope; i++)
        out[i] *= scale;
}

/* Tile scale max(absmax / 448, smallest normal float32); the layer's k_scale is not used (semantics 3.5). */
static void store_ds_row(char *row, const void *kv_c, const void *k_pe, uint32_t dtype) {
    double x[DS_TILE], rope[DS_ROPE];
    for (int tile = 0; tile < DS_TILES; tile++) {
        ref_load_row((const char *)kv_c + (size_t)(tile * DS_TILE) * attn_dtype_size(dtype), dtype, DS_TILE,
                     x);
        float absmax = 0.0f;
        for (int i = 0; i < DS_TILE; i++)
            if (fabs(x[i]) > absmax) absmax = (float)fabs(x[i]); /* NaN does not count */
        float scale = absmax / 448.0f;
        if (scale < FLT_MIN) scale = FLT_MIN;
        for (int i = 0; i < DS_TILE; i++)
            x[i] = (double)((float)x[i] / scale);
        ref_store_row(row + tile * DS_TILE, ATTN_DTYPE_FP8_E4M3, DS_TILE, x);
        memcpy(row + ATTN_DS_MLA_SCALES_AT + tile * 4, &scale, sizeof scale);
    }
    ref_load_row(k_pe, dtype, DS_ROPE, rope);
    ref_store_row(row + ATTN_DS_MLA_ROPE_AT, ATTN_DTYPE_BFLOAT16, DS_ROPE, rope);
}

void ref_mla_store(const ref_mla_cache_t *c, int64_t block, int64_t token, const void *kv_c, const void *k_pe,
                   uint32_t dtype) {
    char *row = c->base + block * c->block_stride + token * c->token_stride;
    if (c->kv == ATTN_KV_FP8_DS_MLA) {
        store_ds_row(row, kv_c, k_pe, dtype);
        return;
    }
    /* the writer of dense caches does the rest: both parts are rows with the same static scale */
    ref_cache_side_t part = {.size = c->latent, .dtype = c->dtype, .scale = c->scale};
    ref_cache_store(&part, (ref_cache_row_t){row, NULL}, 0, kv_c, dtype, 0);
    part.size = c->rope;
    row += c->latent * (int64_t)attn_dtype_size(c->dtype);
    ref_cache_store(&part, (ref_cache_row_t){row, NULL}, 0, k_pe, dtype, 0);
}

int ref_mla_update(attn_instance_t *in, const attn_kv_update_t *a, attn_error_t *error) {
    int status = ref_mla_check_cache(in, a->kv_cache, a->v_cache, error);
    if (status == ATTN_OK)
        status = call_check_latent_update(a, in->p.dtype, in->p.kv_lora_rank, in->p.qk_rope_head_dim,
                                          in->block_size, error);
    if (status != ATTN_OK) return status;
    const int64_t n = a->slot_mapping->shape[0];
    ref_mla_cache_t cache = ref_mla_cache(in, a->kv_cache, &a->scales);
    const int64_t *slot = attn_data(a->slot_mapping);
    for (int64_t i = 0; i < n; i++)
        if (slot[i] >= 0)
            ref_mla_store(&cache, slot[i] / in->block_size, slot[i] % in->block_size, ref_at2(a->key, i, 0),
                          ref_at2(a->value, i, 0), in->p.dtype);
    return ATTN_OK;
}
