/* SPDX-License-Identifier: Apache-2.0 */
/* attn.draft.indexer/0 of mla_sparse: opening, what needs no device, and the table of the extension. */
#include "indexer_instance.h"

#include "../common/indexer_plan.h"
#include "kernels/cuda/tensor_map.h"

#include <stdlib.h>

static int query_device(attn_indexer_t *x, const attn_device_t *device, attn_error_t *error) {
    gpu_device found;
    int status = gpu_find_device(device, "the indexer of FLASHMLA_SPARSE", &found, error);
    if (status != ATTN_OK) return status;
    if (found.major < 8 || found.smem_optin < 96 * 1024)
        return attn_fail(
            error, ATTN_E_DEVICE, "device",
            "compute capability %d.%d with %d bytes of shared memory for a block; 8.0 and 98304 are needed",
            found.major, found.minor, found.smem_optin);
    x->device_id = found.id;
    x->num_sms = found.num_sms;
    x->has_sm90 = found.has_sm90a;
    return ATTN_OK;
}

/* Loads the kernels, so that no later call has to. */
static int prepare(attn_indexer_t *x, attn_error_t *error) {
    int e = indexer_select_rows(NULL, 0, NULL);
    if (e == 0 && x->has_sm90) {
        e = indexer_select_cluster(NULL, 0, NULL);
        for (int i = 0; e == 0 && i < 2; i++)
            x->max_clusters[i] = indexer_max_clusters(16 >> i);
        if (e == 0) e = tensor_map_find(&x->encode_tiled);
        if (e == 0) e = indexer_logits_sm90(x->encode_tiled, NULL, 0, NULL);
    }
    return e == 0 ? ATTN_OK : gpu_fail(error, e, "loading the kernels of the indexer");
}

static int open_indexer(const attn_indexer_problem_t *problem, const attn_device_t *device,
                        const attn_host_t *host, attn_indexer_t **indexer, attn_error_t *error) {
    (void)host;
    attn_indexer_t x = {.r = {.device_type = (int)kDLCUDA, .alignment = 16}};
    attn_device_t dev;
    gpu_device_guard guard;
    int status = indexer_check_open(problem, device, indexer, &x.r.p, &dev, error);
    if (status == ATTN_OK) status = query_device(&x, &dev, error);
    if (status == ATTN_OK && (status = gpu_enter(x.device_id, &guard, error)) == ATTN_OK) {
        status = prepare(&x, error);
        gpu_leave(&guard);
    }
    if (status != ATTN_OK) return status;
    attn_indexer_t *made = malloc(sizeof *made);
    if (made == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for an indexer of %zu bytes",
                         sizeof *made);
    *made = x;
    *indexer = made;
    return ATTN_OK;
}

static void close_indexer(attn_indexer_t *x) {
    free(x);
}

static const attn_indexer_extension_t table = {
    .struct_size = sizeof(attn_indexer_extension_t),
    .open = open_indexer,
    .close = close_indexer,
    .cache_shape = indexer_cache_shape,
    .space_needed = indexer_space_needed,
    .plan_prefill = indexer_plan_prefill,
    .write_keys = indexer_write,
    .gather_keys = indexer_gather,
    .quantize_queries = indexer_quantize,
    .logits = indexer_logits,
    .logits_paged = indexer_logits_paged,
    .select = indexer_select,
};

const void *indexer_get_extension(attn_instance_t *instance, const char *id) {
    (void)instance;
    return id != NULL && strcmp(id, ATTN_INDEXER_EXTENSION) == 0 ? &table : NULL;
}
