/* SPDX-License-Identifier: Apache-2.0 */
/* mistakes.c: the names of all bad arguments, and those of the calls before forward. */
#include "mistakes.h"

const mistake_text_t mistake_texts[NUM_MISTAKES] = {
    {"forward without arguments", NULL},
    {"forward without a query", "query"},
    {"forward without an output", "output"},
    {"forward without a cache", "kv_cache"},
    {"a query of another element type", "query"},
    {"a query of two dimensions", "query"},
    {"a query with one head too many", "query"},
    {"a query with one number too many", "query"},
    {"an output of another element type", "output"},
    {"an output with half the head size", "output"},
    {"an output with fewer rows than tokens", NULL},
    {"a query with fewer rows than tokens", NULL},
    {"an lse with fewer columns than tokens", NULL},
    {"a cache with one head too many", "kv_cache"},
    {"an output without strides", "output"},
    {"an output that is not dense in its last dimension", "output"},
    {"metadata smaller than space_needed in forward", "metadata"},
    {"workspace smaller than space_needed", "workspace"},
    {"no metadata buffer", "metadata"},
    {"metadata that was never built", NULL},
    {"metadata that is all zero", NULL},
    {"a cache of another element type", "kv_cache"},
    {"an lse of another element type", "lse"},
    {"sinks of another element type", "sink"},
    {"fewer sinks than heads", "sink"},
    {"fewer slopes than heads", "slope"},
    {"slopes of another element type", "slope"},
    {"a scale of another element type", "scale"},
    {"a scale of values of another element type", "scale"},
    {"a cache update without keys", "key"},
    {"a cache update without slots", "slot_mapping"},
    {"slots of another element type", "slot_mapping"},
    {"a cache with one dimension too few", "kv_cache"},
    {"fewer keys than slots", NULL},
    {"a cache update without values", "value"},
    {"fewer values than slots", NULL},
    {"values with one number too many", "value"},
    {"values of another element type", "value"},
    {"a cache update without a cache", "kv_cache"},
    {"no batch", NULL},
    {"a negative number of requests", "num_reqs"},
    {"more requests than the problem declares", "num_reqs"},
    {"more tokens than the problem declares", NULL},
    {"no query_start_loc_host", "query_start_loc"},
    {"no seq_lens_host", "seq_lens"},
    {"no block_table", "block_table"},
    {"metadata smaller than space_needed in build_metadata", "metadata"},
    {"a block_table of another element type", "block_table"},
    {"a block_table with fewer rows than requests", "block_table"},
    {"a cache whose rows have one number too many", "kv_cache"},
    {"forward without prepared weights", "weight_space"},
    {"prepared weights smaller than space_needed", "weight_space"},
    {"prepare_weights without weights", "kv_b_proj"},
    {"weights of another element type", "kv_b_proj"},
    {"weights with one row too many", "kv_b_proj"},
    {"weights of another latent size", "kv_b_proj"},
    {"prepare_weights without room", "weight_space"},
    {"less room for weights than space_needed", "weight_space"},
    {"forward without selected tokens", "topk_indices"},
    {"selected tokens of another element type", "topk_indices"},
    {"fewer selected tokens than topk", "topk_indices"},
};

const DLTensor *bend(bent_tensor_t *b, const DLTensor *t) {
    b->t = *t;
    for (int i = 0; i < t->ndim && i < 8; i++)
        b->shape[i] = t->shape[i], b->strides[i] = t->strides[i];
    b->t.shape = b->shape;
    b->t.strides = b->strides;
    return &b->t;
}

const DLTensor *bend_type(bent_tensor_t *b, const DLTensor *t, uint32_t dtype) {
    bend(b, t);
    b->t.dtype = attn_dl_dtype(dtype);
    return &b->t;
}
const DLTensor *bend_rows(bent_tensor_t *b, const DLTensor *t) {
    bend(b, t);
    b->shape[0]--;
    return &b->t;
}

int mistake_in_update(mistake_t mistake, attn_kv_update_t *a, bent_tensor_t *b) {
    int is_made = 1;
    switch (mistake) {
    case UPDATE_NO_KEY:
        a->key = NULL;
        break;
    case UPDATE_NO_SLOTS:
        a->slot_mapping = NULL;
        break;
    case UPDATE_SLOT_DTYPE:
        a->slot_mapping = bend(b, a->slot_mapping);
        b->t.dtype = attn_dl_dtype(ATTN_DTYPE_FLOAT32);
        break;
    case UPDATE_CACHE_RANK:
        a->kv_cache = bend(b, a->kv_cache);
        b->t.ndim--;
        break;
    case UPDATE_KEY_ROWS:
        is_made = a->slot_mapping->shape[0] > 1;
        a->key = bend(b, a->key);
        b->shape[0] = a->slot_mapping->shape[0] - 1;
        break;
    case UPDATE_NO_VALUE:
        a->value = NULL;
        break;
    case UPDATE_VALUE_ROWS:
        is_made = a->slot_mapping->shape[0] > 1;
        a->value = bend(b, a->value);
        b->shape[0] = a->slot_mapping->shape[0] - 1;
        break;
    case UPDATE_VALUE_SIZE:
        a->value = bend(b, a->value);
        b->shape[b->t.ndim - 1]++;
        break;
    case UPDATE_VALUE_DTYPE:
        a->value = bend_type(b, a->value, ATTN_DTYPE_INT64);
        break;
    case UPDATE_NO_CACHE:
        a->kv_cache = NULL;
        break;
    default:
        is_made = 0;
    }
    return is_made;
}

int mistake_in_build(mistake_t mistake, attn_batch_t *batch, attn_space_t *s, bent_tensor_t *b, int *code) {
    int is_made = 1;
    switch (mistake) {
    case BUILD_NO_BATCH:
        break;
    case BUILD_NEGATIVE:
        batch->num_reqs = -1;
        break;
    case BUILD_TOO_MANY:
        batch->num_reqs = KIT_MAX_REQS + 1000;
        break;
    case BUILD_TOO_MANY_TOKENS:
        batch->num_actual_tokens = 1 << 24;
        break;
    case BUILD_NO_STARTS:
        batch->query_start_loc_host = NULL;
        break;
    case BUILD_NO_LENS:
        batch->seq_lens_host = NULL;
        break;
    case BUILD_NO_TABLE:
        is_made = batch->block_table != NULL;
        batch->block_table = NULL;
        break;
    case BUILD_TABLE_DTYPE:
        is_made = batch->block_table != NULL;
        if (is_made) batch->block_table = bend_type(b, batch->block_table, ATTN_DTYPE_INT64);
        break;
    case BUILD_TABLE_ROWS:
        is_made = batch->block_table != NULL;
        if (is_made) batch->block_table = bend_rows(b, batch->block_table);
        break;
    case BUILD_SMALL_METADATA:
        is_made = s->metadata_bytes > 0;
        s->metadata_bytes--;
        *code = ATTN_E_SPACE;
        break;
    default:
        is_made = 0;
    }
    return is_made;
}

int mistake_in_prepare(mistake_t mistake, attn_weights_t *w, bent_tensor_t *b, int *code) {
    int is_made = 1;
    switch (mistake) {
    case PREPARE_NO_WEIGHTS:
        w->kv_b_proj = NULL;
        break;
    case PREPARE_DTYPE:
        w->kv_b_proj = bend(b, w->kv_b_proj);
        b->t.dtype = attn_dl_dtype(ATTN_DTYPE_INT64);
        break;
    case PREPARE_ROWS:
        w->kv_b_proj = bend(b, w->kv_b_proj);
        b->shape[0]++;
        break;
    case PREPARE_LATENT:
        w->kv_b_proj = bend(b, w->kv_b_proj);
        b->shape[1]--;
        break;
    case PREPARE_NO_SPACE:
        is_made = w->weight_space_bytes > 0;
        w->weight_space = NULL;
        break;
    case PREPARE_SMALL_SPACE:
        is_made = w->weight_space_bytes > 0;
        w->weight_space_bytes--;
        *code = ATTN_E_SPACE;
        break;
    default:
        is_made = 0;
    }
    return is_made;
}
