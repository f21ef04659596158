/* SPDX-License-Identifier: Apache-2.0 */
/* The launch of the Hopper kernels of the index logits: tensor maps of queries, keys and scales, encoded anew
 * for each call because they hold addresses. What the kernels have no instance for goes to the portable
 * one. */
#include "indexer_logits_sm90.h"
#include "../tensor_map.h"

typedef int (*kernel_t)(const indexer_sm90_params *p, int ctas, void *stream);

static const struct {
    int heads, queries, paged;
    kernel_t kernel;
} instances[] = {
#define ROW(NAME, HEADS, QUERIES, PAGED) {HEADS, QUERIES, PAGED, NAME},
    INDEXER_SM90_INSTANCES(ROW)};
enum { NUM_INSTANCES = sizeof instances / sizeof instances[0] };

static int encode(void *encode_tiled, CUtensorMap *map, CUtensorMapDataType type, int rank, const void *base,
                  const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box) {
    static const cuuint32_t ones[3] = {1, 1, 1};
    return (int)((tensor_map_encode_t)encode_tiled)(
        map, type, (cuuint32_t)rank, (void *)(uintptr_t)base, dims, strides, box, ones,
        CU_TENSOR_MAP_INTERLEAVE_NONE, rank == 1 ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/* Strides of dimensions of size 1 may be anything; maps want sound ones. */
static cuuint64_t sound(int64_t size, int64_t stride, int64_t otherwise) {
    return (cuuint64_t)(size > 1 ? stride : otherwise);
}

static int make_maps(void *encode_tiled, indexer_sm90_params *sp, int queries) {
    const indexer_logits_params *p = &sp->p;
    const cuuint64_t q_dims[3] = {INDEXER_DIM, (cuuint64_t)p->num_heads, (cuuint64_t)p->num_rows};
    const cuuint64_t q_strides[2] = {sound(p->num_heads, p->query_head, INDEXER_DIM),
                                     sound(p->num_rows, p->query_row, (int64_t)p->num_heads * INDEXER_DIM)};
    const cuuint32_t q_box[3] = {INDEXER_DIM, (cuuint32_t)p->num_heads, (cuuint32_t)queries};
    int e = encode(encode_tiled, &sp->q_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, p->query, q_dims, q_strides,
                   q_box);
    if (p->table != NULL) {
        sp->box_rows = p->cache.page_size % 64 == 0 ? 64 : p->cache.page_size % 32 == 0 ? 32 : 16;
        const cuuint64_t dims[3] = {INDEXER_DIM, (cuuint64_t)p->cache.page_size,
                                    (cuuint64_t)(p->cache.num_pages > 0 ? p->cache.num_pages : 1)};
        const cuuint64_t strides[2] = {INDEXER_DIM, (cuuint64_t)p->cache.page_bytes};
        const cuuint32_t box[3] = {INDEXER_DIM, (cuuint32_t)sp->box_rows, 1};
        return e ? e
                 : encode(encode_tiled, &sp->k_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, p->cache.data, dims,
                          strides, box);
    }
    const cuuint64_t dims[2] = {INDEXER_DIM, (cuuint64_t)p->num_keys},
                     strides[1] = {sound(p->num_keys, p->key_row, INDEXER_DIM)},
                     s_dims[1] = {(cuuint64_t)p->num_keys};
    const cuuint32_t box[2] = {INDEXER_DIM, 128}, s_box[1] = {128};
    if (e == 0)
        e = encode(encode_tiled, &sp->k_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, p->keys, dims, strides, box);
    return e ? e
             : encode(encode_tiled, &sp->s_map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 1, p->key_scales, s_dims,
                      strides, s_box);
}

int indexer_logits_sm90(void *encode_tiled, const indexer_logits_params *p, int num_sms, void *stream) {
    if (p == NULL) {
        int e = 0;
        for (int i = 0; i < NUM_INSTANCES && e == 0; i++)
            e = instances[i].kernel(NULL, 0, NULL);
        return e;
    }
    for (int i = 0; i < NUM_INSTANCES; i++) {
        const int paged = p->table != NULL;
        if (instances[i].heads != p->num_heads || instances[i].paged != paged ||
            (paged && p->rows_per_request % instances[i].queries != 0))
            continue;
        indexer_sm90_params sp = {.p = *p};
        if (make_maps(encode_tiled, &sp, instances[i].queries) != 0) return (int)cudaErrorInvalidValue;
        return instances[i].kernel(&sp, num_sms, stream);
    }
    return indexer_logits_sm80(p, stream);
}
