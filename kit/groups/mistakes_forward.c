/* SPDX-License-Identifier: Apache-2.0 */
/* mistakes_forward.c: bad arguments of forward. */
#include "../run/device_image.h"
#include "mistakes.h"

#include <stdlib.h>

/* Buffers as large as those of space that nothing was built in; 0 if no plugin could tell: only the device
 * sees them. */
int mistake_not_built(const check_t *c, attn_space_t *s, int byte) {
    const attn_space_t was = *s, *space = &was;
    const kit_memory_t *m = c->memory;
    if (space->metadata_bytes == 0 || (m->kind != NULL && space->host_bytes == 0)) return 0;
    void *image = malloc((size_t)space->metadata_bytes);
    if (image == NULL) abort();
    memset(image, byte, (size_t)space->metadata_bytes);
    s->metadata = image_new(image, (size_t)space->metadata_bytes);
    free(image);
    if (space->host_bytes == 0) return 1;
    s->host = malloc((size_t)space->host_bytes);
    if (s->host == NULL) abort();
    memset(s->host, byte, (size_t)space->host_bytes);
    return 1;
}

int mistake_in_forward(const check_t *c, mistake_t mistake, attn_forward_t *a, attn_space_t *s,
                       bent_tensor_t *b, int *code) {
    int is_made = 1;
    switch (mistake) {
    case FORWARD_NO_ARGS:
        break;
    case FORWARD_NO_QUERY:
        a->query = NULL;
        break;
    case FORWARD_NO_OUTPUT:
        a->output = NULL;
        break;
    case FORWARD_NO_CACHE:
        is_made = a->kv_cache != NULL;
        a->kv_cache = NULL;
        break;
    case FORWARD_QUERY_DTYPE:
        a->query = bend(b, a->query);
        b->t.dtype = attn_dl_dtype(ATTN_DTYPE_INT64);
        break;
    case FORWARD_QUERY_RANK:
        a->query = bend(b, a->query);
        b->t.ndim = 2;
        break;
    case FORWARD_QUERY_HEADS:
        a->query = bend(b, a->query);
        b->shape[1]++;
        break;
    case FORWARD_QUERY_SIZE:
        a->query = bend(b, a->query);
        b->shape[2]++;
        break;
    case FORWARD_OUTPUT_DTYPE:
        a->output = bend(b, a->output);
        b->t.dtype = attn_dl_dtype(ATTN_DTYPE_INT32);
        break;
    case FORWARD_OUTPUT_SIZE:
        a->output = bend(b, a->output);
        b->shape[2] /= 2;
        break;
    case FORWARD_OUTPUT_ROWS: /* on a GPU only the device knows how many tokens there are */
        is_made = c->memory->kind == NULL;
        a->output = bend(b, a->output);
        b->shape[0] = 1;
        break;
    case FORWARD_QUERY_ROWS:
        is_made = c->memory->kind == NULL;
        a->query = bend(b, a->query);
        b->shape[0] = 1;
        break;
    case FORWARD_LSE_ROWS:
        is_made = c->memory->kind == NULL && a->lse != NULL;
        if (!is_made) break;
        a->lse = bend(b, a->lse);
        b->shape[1] = 1;
        break;
    case FORWARD_CACHE_HEADS:
        is_made = a->kv_cache != NULL && a->kv_cache->ndim == 4;
        if (!is_made) break;
        a->kv_cache = bend(b, a->kv_cache);
        b->shape[1]++;
        break;
    case FORWARD_CACHE_ROW:
        is_made = a->kv_cache != NULL;
        if (!is_made) break;
        a->kv_cache = bend(b, a->kv_cache);
        b->shape[b->t.ndim - 1]++;
        break;
    case FORWARD_NO_WEIGHTS:
        is_made = a->weight_space != NULL;
        a->weight_space = NULL;
        a->weight_space_bytes = 0;
        break;
    case FORWARD_SMALL_WEIGHTS:
        is_made = a->weight_space_bytes > 0;
        a->weight_space_bytes--;
        break;
    case FORWARD_NO_TOPK:
        a->topk_indices = NULL;
        break;
    case FORWARD_TOPK_DTYPE:
        a->topk_indices = bend(b, a->topk_indices);
        b->t.dtype = attn_dl_dtype(ATTN_DTYPE_INT64);
        break;
    case FORWARD_TOPK_WIDTH:
        a->topk_indices = bend(b, a->topk_indices);
        b->shape[1]--;
        break;
    case FORWARD_NO_STRIDES:
        a->output = bend(b, a->output);
        b->t.strides = NULL;
        break;
    case FORWARD_SPARSE_ROWS:
        a->output = bend(b, a->output);
        b->strides[2] = 2;
        break;
    case FORWARD_SMALL_METADATA:
        is_made = s->metadata_bytes > 0;
        s->metadata_bytes--;
        *code = ATTN_E_SPACE;
        break;
    case FORWARD_SMALL_WORKSPACE:
        is_made = s->workspace_bytes > 0;
        s->workspace_bytes--;
        *code = ATTN_E_SPACE;
        break;
    case FORWARD_NO_METADATA:
        is_made = s->metadata_bytes > 0;
        s->metadata = NULL;
        break;
    case FORWARD_UNBUILT:
    case FORWARD_ZEROED:
        is_made = mistake_not_built(c, s, mistake == FORWARD_ZEROED ? 0 : 0xc7);
        break;
    case FORWARD_CACHE_DTYPE:
        is_made = a->kv_cache != NULL;
        if (is_made) a->kv_cache = bend_type(b, a->kv_cache, ATTN_DTYPE_INT64);
        break;
    case FORWARD_LSE_DTYPE:
        is_made = a->lse != NULL;
        if (is_made) a->lse = bend_type(b, a->lse, ATTN_DTYPE_INT32);
        break;
    case FORWARD_SINK_DTYPE:
        is_made = a->sinks != NULL;
        if (is_made) a->sinks = bend_type(b, a->sinks, ATTN_DTYPE_INT32);
        break;
    case FORWARD_SINK_ROWS:
        is_made = a->sinks != NULL;
        if (is_made) a->sinks = bend_rows(b, a->sinks);
        break;
    case FORWARD_SLOPE_ROWS:
        is_made = a->alibi_slopes != NULL;
        if (is_made) a->alibi_slopes = bend_rows(b, a->alibi_slopes);
        break;
    case FORWARD_SLOPE_DTYPE:
        is_made = a->alibi_slopes != NULL;
        if (is_made) a->alibi_slopes = bend_type(b, a->alibi_slopes, ATTN_DTYPE_INT32);
        break;
    case FORWARD_SCALE_DTYPE:
        is_made = a->scales.k != NULL;
        if (is_made) a->scales.k = bend_type(b, a->scales.k, ATTN_DTYPE_INT32);
        break;
    case FORWARD_V_SCALE_DTYPE:
        is_made = a->scales.v != NULL && c->role == 0;
        if (is_made) a->scales.v = bend_type(b, a->scales.v, ATTN_DTYPE_INT32);
        break;
    default: /* those of a write, where forward writes; without slots it writes nothing */
        is_made = a->slot_mapping != NULL && a->key != NULL && mistake != UPDATE_NO_SLOTS;
        if (is_made) {
            attn_kv_update_t u = {.struct_size = sizeof u,
                                  .key = a->key,
                                  .value = a->value,
                                  .kv_cache = a->kv_cache,
                                  .slot_mapping = a->slot_mapping};
            is_made = mistake_in_update(mistake, &u, b);
            a->key = u.key, a->value = u.value, a->kv_cache = u.kv_cache, a->slot_mapping = u.slot_mapping;
        }
    }
    return is_made;
}
