/* SPDX-License-Identifier: Apache-2.0 */
/* ref_update.c: scatters the new K and V rows into the cache, quantising where the format asks (semantics
 * 1.3, 3.11). */
#include "ref_mla.h"

int ref_update_kv_cache(attn_instance_t *in, const attn_kv_update_t *args, void *stream,
                        attn_error_t *error) {
    (void)stream;
    attn_kv_update_t a;
    int is_raw[2];
    int status = attn_intake(&a, sizeof a, args, "args", error);
    if (status == ATTN_OK && ref_is_mla(in)) return ref_mla_update(in, &a, error);
    const call_cache_t c = ref_cache_of(in);
    if (status == ATTN_OK) status = call_check_update(&c, &a, in->p.dtype, is_raw, error);
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
