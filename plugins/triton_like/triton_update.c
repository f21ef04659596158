/* SPDX-License-Identifier: Apache-2.0 */
/* update_kv_cache: checks, which the rope has too, and one launch of the cache writer. */
#include "triton_instance.h"

int triton_prepare_write(const attn_instance_t *in, const attn_kv_update_t *args, triton_write_params_t *w,
                         attn_error_t *error) {
    attn_kv_update_t a;
    gpu_cache_view c;
    const triton_config_t *f = &in->config;
    int stride = -1;
    int status = attn_intake(&a, sizeof a, args, "args", error);
    if (status == ATTN_OK && !in->has_cache)
        status = attn_fail(error, ATTN_E_STATE, "kv_cache", "role %s has no cache to update",
                           attn_role_name(in->problem.role));
    if (status == ATTN_OK) status = triton_view_cache(in, a.kv_cache, a.v_cache, &c, error);
    if (status == ATTN_OK) status = gpu_check_slots(a.slot_mapping, INT32_MAX / 8, error);
    int64_t rows = status == ATTN_OK ? a.slot_mapping->shape[0] : 0;
    if (status == ATTN_OK)
        status = gpu_check_rows(a.key, "key", in->problem.dtype, in->kv_heads, f->d, rows, f->new_vec, error);
    if (status == ATTN_OK)
        status =
            gpu_check_rows(a.value, "value", in->problem.dtype, in->kv_heads, f->dv, rows, f->new_vec, error);
    if (status == ATTN_OK) status = gpu_check_scale(a.scales.k, "k_scale", in->kv_heads, &stride, error);
    memset(w, 0, sizeof *w);
    if (status == ATTN_OK)
        status = f->v_channels
                     ? triton_view_channels(in, a.scales.v, &w->v_scale_head, &w->v_scale_channel, error)
                     : gpu_check_scale(a.scales.v, "v_scale", in->kv_heads, &stride, error);
    if (status != ATTN_OK || rows == 0) return status;
    w->key = attn_data(a.key), w->value = attn_data(a.value), w->k_cache = c.k, w->v_cache = c.v;
    w->slots = attn_data(a.slot_mapping), w->num_slots = c.pages * f->page;
    if (attn_kv_has_static_scales(in->problem.kv_cache_dtype)) {
        w->k_scale = a.scales.k ? attn_data(a.scales.k) : NULL;
        w->v_scale = a.scales.v ? attn_data(a.scales.v) : NULL;
        w->scale_stride = stride > 0;
    }
    if (f->v_channels) w->v_scale = attn_data(a.scales.v);
    w->k_rows_scales = c.scales[0].at, w->v_rows_scales = c.scales[1].at;
    w->ks_page = c.scales[0].page, w->ks_token = c.scales[0].token, w->ks_head = c.scales[0].head;
    w->vs_page = c.scales[1].page, w->vs_token = c.scales[1].token, w->vs_head = c.scales[1].head;
    w->key_token = a.key->strides[0], w->key_head = a.key->strides[1];
    w->value_token = a.value->strides[0], w->value_head = a.value->strides[1];
    w->k_page = c.k_page, w->k_token = c.k_token, w->k_head = c.k_head;
    w->v_page = c.v_page, w->v_token = c.v_token, w->v_head = c.v_head;
    w->num_tokens = (int32_t)rows, w->num_kv_heads = in->kv_heads;
    return ATTN_OK;
}

int triton_update_kv_cache(attn_instance_t *in, const attn_kv_update_t *args, void *stream,
                           attn_error_t *error) {
    triton_write_params_t w;
    int status = triton_prepare_write(in, args, &w, error);
    if (status == ATTN_OK && w.num_tokens > 0) status = triton_driver_enter(&in->driver, error);
    if (status != ATTN_OK || w.num_tokens == 0) return status;
    void *params[1] = {&w};
    const int rows = in->config.eights ? 32 : 8; /* tokens and heads of a CTA */
    unsigned blocks = (unsigned)(((int64_t)w.num_tokens * in->kv_heads + rows - 1) / rows);
    int e = in->driver.launch(in->write, blocks, 1, 1, 256, 1, 1, 0, stream, params, NULL);
    triton_driver_leave(&in->driver);
    return e == 0 ? ATTN_OK : triton_driver_fail(&in->driver, e, "writing the cache", error);
}
