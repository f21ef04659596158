/* SPDX-License-Identifier: Apache-2.0 */
/* ref_update.c: scatters the new K and V rows into the cache, quantising where the format asks (semantics
 * 1.3, 3.11). */
#include "ref_mla.h"

/* An fp8 input for an fp8 cache of the same kind is stored unchanged (semantics 3.2). */
static int check_input(const attn_instance_t *in, const DLTensor *t, const char *name, int64_t rows,
                       int64_t size, int *is_raw, attn_error_t *error) {
    const int64_t shape[3] = {-1, in->kv_heads, size};
    *is_raw = t != NULL && attn_dtype_of(t->dtype) == in->storage && attn_dtype_size(in->storage) == 1 &&
              !attn_kv_is_per_token_head(in->kv);
    int status = attn_check_tensor(t, name, *is_raw ? in->storage : in->p.dtype, 3, shape, error);
    if (status == ATTN_OK && t->shape[0] < rows)
        status = attn_fail(error, ATTN_E_INVALID, name, "%s has %lld rows; slot_mapping has %lld", name,
                           (long long)t->shape[0], (long long)rows);
    return status;
}

int ref_check_slots(const DLTensor *slots, int64_t end, attn_error_t *error) {
    const int64_t *slot = attn_data(slots);
    for (int64_t i = 0; i < slots->shape[0]; i++)
        if (slot[i] >= end)
            return attn_fail(error, ATTN_E_INVALID, "slot_mapping",
                             "slot_mapping[%lld] is %lld; the cache has %lld slots (negative: do not write)",
                             (long long)i, (long long)slot[i], (long long)end);
    return ATTN_OK;
}

static int check(const attn_instance_t *in, const attn_kv_update_t *a, int is_raw[2], attn_error_t *error) {
    if (!in->has_cache)
        return attn_fail(error, ATTN_E_STATE, "kv_cache", "role %s has no cache to update",
                         attn_role_name(in->p.role));
    int status = ref_check_caches(in, a->kv_cache, a->v_cache, error);
    if (status == ATTN_OK)
        status = attn_check_tensor(a->slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, NULL, error);
    if (status == ATTN_OK)
        status = check_input(in, a->key, "key", a->slot_mapping->shape[0], in->d, &is_raw[0], error);
    if (status == ATTN_OK)
        status = check_input(in, a->value, "value", a->slot_mapping->shape[0], in->dv, &is_raw[1], error);
    if (status == ATTN_OK) status = ref_check_scale(a->scales.k, "k_scale", in->kv_heads, error);
    if (status == ATTN_OK) status = ref_check_scale(a->scales.v, "v_scale", in->kv_heads, error);
    if (status == ATTN_OK)
        status = ref_check_slots(a->slot_mapping, a->kv_cache->shape[0] * in->block_size, error);
    return status;
}

int ref_check_update(const attn_instance_t *in, const attn_kv_update_t *a, attn_error_t *error) {
    int is_raw[2];
    return check(in, a, is_raw, error);
}

int ref_update_kv_cache(attn_instance_t *in, const attn_kv_update_t *args, void *stream,
                        attn_error_t *error) {
    (void)stream;
    attn_kv_update_t a;
    int is_raw[2];
    int status = attn_intake(&a, sizeof a, args, "args", error);
    if (status == ATTN_OK && ref_is_mla(in)) return ref_mla_update(in, &a, error);
    if (status == ATTN_OK) status = check(in, &a, is_raw, error);
    if (status != ATTN_OK) return status;

    const int64_t *slot = attn_data(a.slot_mapping);
    for (int side = 0; side < 2; side++) {
        const DLTensor *from = side == 0 ? a.key : a.value;
        ref_cache_side_t s = ref_cache_side(in, a.kv_cache, a.v_cache, &a.scales, side);
        uint32_t dtype = is_raw[side] ? in->storage : in->p.dtype;
        for (int64_t i = 0; i < a.slot_mapping->shape[0]; i++) {
            if (slot[i] < 0) continue;
            for (int64_t h = 0; h < in->kv_heads; h++)
                ref_cache_store(&s, ref_cache_row(&s, slot[i] / in->block_size, slot[i] % in->block_size, h),
                                h, ref_at2(from, i, h), dtype, is_raw[side]);
        }
    }
    return ATTN_OK;
}
