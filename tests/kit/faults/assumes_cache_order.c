/* SPDX-License-Identifier: Apache-2.0 */
/* The cache is taken as dense in the order that the plugin recommends.
 * Caught by: offsets, one layer of three */
#include "bad.h"

static void bad_strides(const simple_layer_t *l, simple_cache_t *cache) {
    int64_t content = (l->head_size + l->head_size_v) * simple_size(l->storage);
    cache->head_stride = content;
    cache->token_stride = content * l->num_kv_heads;
    cache->block_stride = cache->token_stride * l->block_size;
}
#define simple_is_padding(slot) (bad_strides(l, &cache), simple_is_padding(slot))
#define simple_key_end(l, q, n) (bad_strides(l, (simple_cache_t *)(uintptr_t)cache), simple_key_end(l, q, n))

#include "bad_plugin.h"
