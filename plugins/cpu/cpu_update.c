/* SPDX-License-Identifier: Apache-2.0 */
/* Scatters the new K and V rows into the cache, quantising where the format asks (semantics 1.3, 3.2, 3.4,
 * 3.11). */
#include "cpu_instance.h"
#include "cpu_threads.h"

struct update {
    const attn_instance_t *in;
    const attn_kv_update_t *a;
    struct cpu_rows rows[2], scales[2];
    int is_scaled;
    const float *channels; /* scales of V's, or NULL */
};

/* One token: all heads of K and V. */
static void write_token(void *arg, int64_t i, int worker) {
    const struct update *u = arg;
    const attn_instance_t *in = u->in;
    const int64_t slot = ((const int64_t *)attn_data(u->a->slot_mapping))[i];
    if (slot < 0) return;
    const int64_t block = slot / in->block_size, token = slot % in->block_size;
    for (int side = 0; side < 2; side++) {
        const DLTensor *t = side ? u->a->value : u->a->key;
        const DLTensor *scale = side ? u->a->scales.v : u->a->scales.k;
        const enum cpu_dtype from =
            cpu_dtype_of(attn_dtype_of(t->dtype) == ATTN_DTYPE_UINT8 ? in->storage : attn_dtype_of(t->dtype));
        const int n = side ? in->shape.head_size_v : in->shape.head_size;
        const struct cpu_rows *to = &u->rows[side], *sc = &u->scales[side];
        for (int h = 0; h < in->shape.num_kv_heads; h++) {
            const char *src =
                (const char *)attn_data(t) + i * attn_byte_stride(t, 0) + h * attn_byte_stride(t, 1);
            const int64_t at = block * to->block + token * to->token + h * to->head;
            if (side && u->channels != NULL) {
                in->k->write_channels(from, src, n, u->channels + (size_t)h * (size_t)n,
                                      (char *)to->base + at, in->rows + (size_t)worker * in->row_floats);
                continue;
            }
            in->k->write_row(from, src, n,
                             in->shape.kv_dtype != CPU_PACKED ? in->shape.kv_dtype
                             : side                           ? in->shape.v_row
                                                              : in->shape.k_row,
                             u->is_scaled ? cpu_scale_at(scale, h) : 1.0f, (char *)to->base + at,
                             sc->base != NULL
                                 ? (char *)sc->base + block * sc->block + token * sc->token + h * sc->head
                                 : NULL,
                             in->rows + (size_t)worker * in->row_floats);
        }
    }
}

/* One token of a latent cache: kv_c, and k_pe behind it, with one scale; in rows of fp8_ds_mla the scales of
 * kv_c's tiles lie between them, and k_pe is bfloat16. */
static void write_latent(void *arg, int64_t i, int worker) {
    const struct update *u = arg;
    const attn_instance_t *in = u->in;
    const int64_t slot = ((const int64_t *)attn_data(u->a->slot_mapping))[i];
    if (slot < 0) return;
    char *to = (char *)u->rows[0].base + slot / in->block_size * u->rows[0].block +
               slot % in->block_size * u->rows[0].token;
    const int is_ds = in->kv == ATTN_KV_FP8_DS_MLA;
    for (int side = 0; side < 2; side++) {
        const DLTensor *t = side ? u->a->value : u->a->key;
        const enum cpu_dtype type = !is_ds ? in->shape.kv_dtype : side ? CPU_BF16 : CPU_DS;
        const int n = (int)(side ? in->p.qk_rope_head_dim : in->p.kv_lora_rank);
        in->k->write_row(cpu_dtype_of(in->p.dtype), (const char *)attn_data(t) + i * attn_byte_stride(t, 0),
                         n, type, u->is_scaled ? cpu_scale_at(u->a->scales.k, 0) : 1.0f, to,
                         is_ds && !side ? to + ATTN_DS_MLA_SCALES_AT : NULL,
                         in->rows + (size_t)worker * in->row_floats);
        to += cpu_row_bytes(type, n);
    }
}

int cpu_update_kv_cache(attn_instance_t *in, const attn_kv_update_t *args, void *stream,
                        attn_error_t *error) {
    (void)stream;
    attn_kv_update_t a;
    int is_raw[2]; /* the writer sees it by the element type */
    const call_cache_t c = cpu_cache_of(in);
    int status = attn_intake(&a, sizeof a, args, "args", error);
    if (status == ATTN_OK && in->is_latent) {
        status = call_check_latent_cache(a.kv_cache, a.v_cache, in->storage, in->block_size,
                                         cpu_latent_row(in), error);
        if (status == ATTN_OK)
            status = call_check_latent_update(&a, in->p.dtype, in->p.kv_lora_rank, in->p.qk_rope_head_dim,
                                              in->block_size, error);
    } else if (status == ATTN_OK) {
        status = call_check_update(&c, &a, in->p.dtype, is_raw, error);
    }
    if (status != ATTN_OK) return status;
    struct update u = {.in = in, .a = &a, .is_scaled = attn_kv_has_static_scales(in->kv)};
    if (attn_kv_has_channel_scales(in->kv)) u.channels = cpu_channel_scales(in, a.scales.v);
    for (int side = 0; side < 2; side++)
        cpu_cache_rows(in, a.kv_cache, a.v_cache, side, &u.rows[side], &u.scales[side]);
    const struct cpu_loop loop = {a.slot_mapping->shape[0], in->is_latent ? write_latent : write_token};
    /* A few tokens are written faster than a region starts. */
    const int64_t values = loop.n * in->shape.num_kv_heads * (in->shape.head_size + in->shape.head_size_v);
    cpu_run_loops(values < 65536 ? 1 : in->limits.threads, &loop, 1, &u);
    return ATTN_OK;
}
