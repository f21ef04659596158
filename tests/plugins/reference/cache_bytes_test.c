/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of the rows of a cache as plugins count them, format by format, with those of whole pages: both come
 * from one table. */
#include "plugins/common/call_check.h"
#include "tap.h"

int main(void) {
    const uint32_t models[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16};
    for (uint32_t kv = ATTN_KV_AUTO; kv < ATTN_KV_COUNT_; kv++) {
        const attn_kv_format_t *f = attn_kv_format(kv);
        if (!attn_kv_is_whole_page(kv) || attn_kv_is_turboquant(kv) || (f->roles & ATTN_KV_DENSE_ROLES) == 0)
            continue;
        for (int m = 0; m < 3; m++) {
            const call_cache_t c = {.role = ATTN_ROLE_DECODER,
                                    .kv = kv,
                                    .storage = ATTN_DTYPE_UINT8,
                                    .kv_heads = 2,
                                    .block_size = 16,
                                    .head_size = 64,
                                    .head_size_v = 64,
                                    .layout = ATTN_LAYOUT_NHD,
                                    .dtype = models[m]};
            const attn_kv_page_t page = call_cache_page(&c);
            for (int side = 0; side < 2; side++)
                is_int(call_cache_data_bytes(&c, side), page.values[side].row,
                       "%s of a %s model: a row of %s", f->name, attn_dtype_name(models[m]),
                       side ? "V" : "K");
        }
    }
    const call_cache_t c = {.role = ATTN_ROLE_DECODER,
                            .kv = ATTN_KV_INT8_K_ONLY,
                            .storage = ATTN_DTYPE_UINT8,
                            .head_size = 64,
                            .head_size_v = 64,
                            .dtype = ATTN_DTYPE_BFLOAT16};
    is_int(call_cache_data_bytes(&c, 0), 64, "int8_k_only keeps 64 bytes of K");
    is_int(call_cache_data_bytes(&c, 1), 128, "and V in the model's dtype, whatever the tensor's element is");
    return tap_done();
}
