/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the tensors of a call. */
#include "call_check.h"

int call_check_rows(const DLTensor *t, const char *name, uint32_t dtype, int64_t heads, int64_t size,
                    int64_t tokens, attn_error_t *error) {
    const int64_t shape[3] = {-1, heads, size};
    int status = attn_check_tensor(t, name, dtype, 3, shape, error);
    if (status == ATTN_OK && t->shape[0] < tokens)
        status = attn_fail(error, ATTN_E_INVALID, name, "%s has %lld rows; the batch has %lld tokens", name,
                           (long long)t->shape[0], (long long)tokens);
    return status;
}

int call_check_key_rows(const DLTensor *t, const char *name, uint32_t dtype, int64_t heads, int64_t size,
                        int64_t rows, attn_error_t *error) {
    int status = call_check_rows(t, name, dtype, heads, size, 0, error);
    if (status == ATTN_OK && t->shape[0] < rows)
        status = attn_fail(error, ATTN_E_INVALID, name, "%s has %lld rows; the batch has %lld rows of keys",
                           name, (long long)t->shape[0], (long long)rows);
    return status;
}

int call_check_vector(const DLTensor *t, const char *name, const char *feature, int is_wanted, int64_t heads,
                      attn_error_t *error) {
    const int64_t shape[1] = {heads};
    if (is_wanted) return attn_check_tensor(t, name, ATTN_DTYPE_FLOAT32, 1, shape, error);
    if (t != NULL)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s was given, but the problem has no feature %s; request it", name, feature);
    return ATTN_OK;
}

int call_check_rel_bias(const DLTensor *t, int is_wanted, int64_t heads, attn_error_t *error) {
    const int64_t shape[2] = {heads, -1};
    if (!is_wanted && t == NULL) return ATTN_OK;
    if (!is_wanted)
        return attn_fail(error, ATTN_E_INVALID, "rel_bias",
                         "rel_bias was given, but the problem has no feature rel_bias; request it");
    int status = attn_check_tensor(t, "rel_bias", ATTN_DTYPE_FLOAT32, 2, shape, error);
    if (status == ATTN_OK && (t->shape[1] % 2 == 0 || t->shape[1] > INT32_MAX))
        status = attn_fail(error, ATTN_E_INVALID, "rel_bias",
                           "rel_bias has %lld columns; expected an odd number below 2^31, 2 m + 1 for "
                           "distances -m to m",
                           (long long)t->shape[1]);
    return status;
}

int call_check_lse(const DLTensor *t, int64_t heads, int64_t tokens, attn_error_t *error) {
    const int64_t shape[2] = {heads, -1};
    if (t == NULL) return ATTN_OK;
    int status = attn_check_tensor(t, "lse", ATTN_DTYPE_FLOAT32, 2, shape, error);
    if (status == ATTN_OK && t->shape[1] < tokens)
        status = attn_fail(error, ATTN_E_INVALID, "lse", "lse has %lld columns; the batch has %lld tokens",
                           (long long)t->shape[1], (long long)tokens);
    return status;
}

static int check_bias(const DLTensor *t, uint64_t features, int64_t tokens, attn_error_t *error) {
    if ((features & ATTN_F_QQ_BIAS) == 0 && t == NULL) return ATTN_OK;
    if ((features & ATTN_F_QQ_BIAS) == 0)
        return attn_fail(error, ATTN_E_INVALID, "qq_bias",
                         "qq_bias was given, but the problem has no feature qq_bias; request it");
    int status = attn_check_tensor(t, "qq_bias", ATTN_DTYPE_FLOAT32, 2, NULL, error);
    if (status == ATTN_OK && t->shape[0] < tokens)
        status =
            attn_fail(error, ATTN_E_INVALID, "qq_bias", "qq_bias has %lld rows; the batch has %lld tokens",
                      (long long)t->shape[0], (long long)tokens);
    return status;
}

int call_check_scale(const DLTensor *t, const char *name, int64_t heads, attn_error_t *error) {
    if (t == NULL) return ATTN_OK;
    int status = attn_check_tensor(t, name, ATTN_DTYPE_FLOAT32, t->ndim == 0 ? 0 : 1, NULL, error);
    if (status == ATTN_OK && t->ndim != 0 && t->shape[0] != 1 && t->shape[0] != heads)
        status =
            attn_fail(error, ATTN_E_INVALID, name, "%s has %lld values; expected 1 or num_kv_heads (%lld)",
                      name, (long long)t->shape[0], (long long)heads);
    return status;
}

int call_check_channel_scale(const DLTensor *t, int64_t heads, int64_t size, attn_error_t *error) {
    const int64_t shape[2] = {heads, size};
    if (t == NULL)
        return attn_fail(error, ATTN_E_INVALID, "v_scale",
                         "v_scale is not given; this cache keeps V as int8 by a scale for each head and "
                         "channel, float32 [%lld, %lld]: calibrate them (attn calibrate)",
                         (long long)heads, (long long)size);
    if (t->ndim != 2 && (t->ndim > 2 || (t->ndim == 1 && t->shape[0] != 1)))
        return attn_fail(
            error, ATTN_E_INVALID, "v_scale",
            "v_scale has %d dimensions; expected [%lld, %lld], a scale for each head and channel, "
            "or one number",
            (int)t->ndim, (long long)heads, (long long)size);
    if (t->ndim != 2) return call_check_scale(t, "v_scale", 1, error);
    return attn_check_tensor(t, "v_scale", ATTN_DTYPE_FLOAT32, 2, shape, error);
}

int call_check_weight_scale(const DLTensor *t, int is_e4m3, int64_t rows, int64_t columns, int *is_blocks,
                            attn_error_t *error) {
    const char *name = "kv_b_proj_scale";
    const int64_t b = CALL_WEIGHT_BLOCK, shape[2] = {(rows + b - 1) / b, (columns + b - 1) / b};
    *is_blocks = 0;
    if (t == NULL) return ATTN_OK;
    if (t->ndim == 1 && t->shape[0] != 1)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s has %lld elements; expected 1, or [%lld, %lld], one for each 128 x 128 block",
                         name, (long long)t->shape[0], (long long)shape[0], (long long)shape[1]);
    if (t->ndim != 2) return call_check_scale(t, name, 1, error);
    if (!is_e4m3)
        return attn_fail(
            error, ATTN_E_INVALID, name,
            "%s has two dimensions, one scale for each block of fp8_e4m3 weights; kv_b_proj has the "
            "model's dtype: leave it NULL",
            name);
    *is_blocks = 1;
    return attn_check_tensor(t, name, ATTN_DTYPE_FLOAT32, 2, shape, error);
}

int call_check_extras(const attn_forward_t *a, uint64_t features, int64_t heads, int64_t kv_heads,
                      int64_t tokens, attn_error_t *error) {
    int status = call_check_vector(a->sinks, "sinks", "sink", (features & ATTN_F_SINK) != 0, heads, error);
    if (status == ATTN_OK)
        status = call_check_vector(a->alibi_slopes, "alibi_slopes", "alibi or alibi_sqrt",
                                   (features & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT)) != 0, heads, error);
    if (status == ATTN_OK)
        status = call_check_rel_bias(a->rel_bias, (features & ATTN_F_REL_BIAS) != 0, heads, error);
    if (status == ATTN_OK) status = call_check_scale(a->scales.q, "q_scale", kv_heads, error);
    if (status == ATTN_OK) status = call_check_scale(a->scales.k, "k_scale", kv_heads, error);
    if (status == ATTN_OK) status = call_check_scale(a->scales.v, "v_scale", kv_heads, error);
    return status == ATTN_OK ? check_bias(a->qq_bias, features, tokens, error) : status;
}

int call_update_of_forward(const attn_forward_t *a, uint64_t features, attn_kv_update_t *update,
                           attn_error_t *error) {
    *update = (attn_kv_update_t){.struct_size = sizeof *update,
                                 .key = a->key,
                                 .value = a->value,
                                 .kv_cache = a->kv_cache,
                                 .v_cache = a->v_cache,
                                 .slot_mapping = a->slot_mapping,
                                 .scales = {.k = a->scales.k, .v = a->scales.v}};
    if (a->slot_mapping == NULL || (features & ATTN_F_WRITE_IN_FORWARD) != 0) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, "slot_mapping",
                     "slot_mapping was given, but the problem has no feature write_in_forward; request it");
}

/* Pages of one piece each, in the layout of the instance; only the distance between them is free. */
static int check_whole_pages(const call_cache_t *c, const DLTensor *t, attn_error_t *error) {
    const attn_kv_page_t page = call_cache_page(c);
    const int64_t heads = (attn_kv_format(c->kv)->scale == ATTN_KV_SCALE_GROUP_APART ? 2 : 1) * c->kv_heads;
    const int64_t row = page.bytes / heads / c->block_size;
    const int64_t shape[4] = {-1, heads, c->block_size, row};
    const int hnd = c->layout == ATTN_LAYOUT_HND;
    const int64_t strides[3] = {page.bytes, hnd ? c->block_size * row : row, hnd ? row : heads * row};
    int status = attn_check_tensor(t, "kv_cache", c->storage, 4, shape, error);
    for (int i = 0; status == ATTN_OK && i < 3; i++)
        if (t->shape[i] > 1 && (i == 0 ? t->strides[i] < strides[i] : t->strides[i] != strides[i]))
            status = attn_fail(error, ATTN_E_INVALID, "kv_cache",
                               "kv_cache has stride %lld in dimension %d; a page of %s in layout %s is one "
                               "piece, which gives %s%lld",
                               (long long)t->strides[i], i, attn_kv_name(c->kv), hnd ? "hnd" : "nhd",
                               i == 0 ? "at least " : "", (long long)strides[i]);
    return status;
}

int call_check_caches(const call_cache_t *c, const DLTensor *kv_cache, const DLTensor *v_cache,
                      attn_error_t *error) {
    if (attn_kv_is_whole_page(c->kv) && v_cache == NULL) return check_whole_pages(c, kv_cache, error);
    const int64_t size = (int64_t)attn_dtype_size(c->storage), k_row = call_cache_row_bytes(c, 0) / size,
                  v_row = call_cache_row_bytes(c, 1) / size;
    const int64_t pad = attn_kv_format(c->kv)->row_multiple; /* of a packed row, in bytes */
    const int64_t packed = ((k_row + v_row) * size + pad - 1) / pad * pad / size;
    const int64_t shape[4] = {-1, c->kv_heads, c->block_size, c->is_separate ? k_row : packed};
    int status = attn_check_tensor(kv_cache, "kv_cache", c->storage, 4, shape, error);
    if (status != ATTN_OK) return status;
    const int64_t v_shape[4] = {kv_cache->shape[0], c->kv_heads, c->block_size, v_row};
    if (c->is_separate) return attn_check_tensor(v_cache, "v_cache", c->storage, 4, v_shape, error);
    if (v_cache != NULL)
        return attn_fail(
            error, ATTN_E_INVALID, "v_cache",
            "v_cache was given, but the problem has no feature separate_kv; request it in features");
    return ATTN_OK;
}

int call_check_slots(const DLTensor *slots, int64_t end, attn_error_t *error) {
    const int64_t *slot = attn_data(slots);
    for (int64_t i = 0; i < slots->shape[0]; i++)
        if (slot[i] >= end)
            return attn_fail(error, ATTN_E_INVALID, "slot_mapping",
                             "slot_mapping[%lld] is %lld; the cache has %lld slots (negative: do not write)",
                             (long long)i, (long long)slot[i], (long long)end);
    return ATTN_OK;
}

int call_check_update(const call_cache_t *c, const attn_kv_update_t *a, uint32_t dtype, int is_raw[2],
                      attn_error_t *error) {
    const struct {
        const DLTensor *t;
        const char *name;
        int64_t size;
    } sides[2] = {{a->key, "key", c->head_size}, {a->value, "value", c->head_size_v}};
    if (!attn_role_has_cache(c->role))
        return attn_fail(error, ATTN_E_STATE, "kv_cache", "role %s has no cache to update",
                         attn_role_name(c->role));
    int status = call_check_caches(c, a->kv_cache, a->v_cache, error);
    if (status == ATTN_OK)
        status = attn_check_tensor(a->slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, NULL, error);
    for (int i = 0; status == ATTN_OK && i < 2; i++) {
        const DLTensor *t = sides[i].t;
        const int64_t shape[3] = {-1, c->kv_heads, sides[i].size};
        is_raw[i] = t != NULL && attn_dtype_of(t->dtype) == c->storage && attn_dtype_size(c->storage) == 1 &&
                    attn_kv_format(c->kv)->scale == ATTN_KV_SCALE_STATIC;
        status = attn_check_tensor(t, sides[i].name, is_raw[i] ? c->storage : dtype, 3, shape, error);
        if (status == ATTN_OK && t->shape[0] < a->slot_mapping->shape[0])
            status =
                attn_fail(error, ATTN_E_INVALID, sides[i].name, "%s has %lld rows; slot_mapping has %lld",
                          sides[i].name, (long long)t->shape[0], (long long)a->slot_mapping->shape[0]);
    }
    if (status == ATTN_OK) status = call_check_scale(a->scales.k, "k_scale", c->kv_heads, error);
    if (status == ATTN_OK)
        status = attn_kv_has_channel_scales(c->kv)
                     ? call_check_channel_scale(a->scales.v, c->kv_heads, c->head_size_v, error)
                     : call_check_scale(a->scales.v, "v_scale", c->kv_heads, error);
    if (status == ATTN_OK)
        status = call_check_slots(a->slot_mapping, a->kv_cache->shape[0] * c->block_size, error);
    return status;
}

int call_check_latent_cache(const DLTensor *kv_cache, const DLTensor *v_cache, uint32_t storage,
                            int64_t block_size, int64_t row_elements, attn_error_t *error) {
    const int64_t shape[3] = {-1, block_size, row_elements};
    if (v_cache != NULL)
        return attn_fail(error, ATTN_E_INVALID, "v_cache",
                         "v_cache was given; latent caches have one tensor");
    return attn_check_tensor(kv_cache, "kv_cache", storage, 3, shape, error);
}

/* k_pe may have a dimension of one head. */
static int check_latent_rows(const DLTensor *t, const char *name, uint32_t dtype, int64_t rows, int64_t size,
                             attn_error_t *error) {
    const int64_t flat[2] = {-1, size}, one_head[3] = {-1, 1, size};
    const int is_flat = t == NULL || t->ndim != 3;
    int status = attn_check_tensor(t, name, dtype, is_flat ? 2 : 3, is_flat ? flat : one_head, error);
    if (status == ATTN_OK && t->shape[0] < rows)
        status = attn_fail(error, ATTN_E_INVALID, name, "%s has %lld rows; slot_mapping has %lld", name,
                           (long long)t->shape[0], (long long)rows);
    return status;
}

int call_check_latent_update(const attn_kv_update_t *a, uint32_t dtype, int64_t latent, int64_t rope,
                             int64_t block_size, attn_error_t *error) {
    int status = attn_check_tensor(a->slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, NULL, error);
    if (status != ATTN_OK) return status;
    const int64_t n = a->slot_mapping->shape[0];
    status = check_latent_rows(a->key, "key", dtype, n, latent, error);
    if (status == ATTN_OK) status = check_latent_rows(a->value, "value", dtype, n, rope, error);
    if (status == ATTN_OK) status = call_check_scale(a->scales.k, "k_scale", 1, error);
    return status == ATTN_OK ? call_check_slots(a->slot_mapping, a->kv_cache->shape[0] * block_size, error)
                             : status;
}

void call_zero_rows(const DLTensor *t) {
    const size_t row = (size_t)t->shape[2] * (t->dtype.bits / 8u);
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            memset((char *)attn_data(t) + i * attn_byte_stride(t, 0) + h * attn_byte_stride(t, 1), 0, row);
}

int call_check_topk(const DLTensor *t, int64_t topk, int64_t tokens, attn_error_t *error) {
    const int64_t shape[2] = {-1, topk};
    const int status = attn_check_tensor(t, "topk_indices", ATTN_DTYPE_INT32, 2, shape, error);
    if (status != ATTN_OK || t->shape[0] >= tokens) return status;
    return attn_fail(error, ATTN_E_INVALID, "topk_indices",
                     "topk_indices has %lld rows; the batch has %lld tokens", (long long)t->shape[0],
                     (long long)tokens);
}

int call_count_selected(const int32_t *row, int64_t topk, int64_t end, int32_t seq_len, int64_t token,
                        int32_t request, int32_t *count, attn_error_t *error) {
    int32_t n = 0, wrong = 0;
    for (int64_t j = 0; j < topk; j++) {
        n += row[j] >= 0 && row[j] < end;
        wrong |= row[j] >= seq_len && row[j] < end;
    }
    for (int64_t j = 0; wrong && j < topk; j++)
        if (row[j] >= seq_len && row[j] < end)
            return attn_fail(error, ATTN_E_INVALID, "topk_indices",
                             "topk_indices[%lld][%lld] is %d; request %d has %d tokens (-1: none)",
                             (long long)token, (long long)j, row[j], request, seq_len);
    *count = n;
    return ATTN_OK;
}
