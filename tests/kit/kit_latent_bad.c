/* SPDX-License-Identifier: Apache-2.0 */
/* kit_latent_bad.c: the reference plugin's latent attention with one mistake, -DMISTAKE=name, for
 * tests/kit/kit_latent.sh: what the conformance kit has to catch. -DREFERENCE="path" is the plugin that does
 * the work. */
#define BAD_NAME "BAD_LATENT"
#include "over_reference.h"

#include <stdlib.h>

enum mistakes {
    NOTHING,
    FORGETS_TOPK_OFFSET,   /* byte_offset of topk_indices */
    FORGETS_WEIGHT_OFFSET, /* byte_offset of kv_b_proj */
    READS_BEHIND_TOPK,
    CHANGES_TOPK,
    CHANGES_WEIGHTS,
    WRITES_OTHER_ROWS, /* of the cache */
    WRAPS_FAR_SLOTS,
    KEEPS_WEIGHTS, /* of the last layer that it saw */
    TAKES_NO_WEIGHTS_FOR_GOOD,
    TAKES_NARROW_TOPK,
    DEPENDS_ON_BATCH,
    CHANGES_WITH_EVERY_CALL,
    ALLOCATES,
    FULL_IS_CAUSAL, /* with absorbed queries */
    FORGETS_ROPE,   /* of them */
    LOSES_FAR_SCORES,
    TAKES_SINKS /* which latent attention has not */
};

static const void *kept_weights;
static uint64_t kept_bytes;
static int num_calls;

static int open_latent(const attn_problem_t *args, const attn_device_t *device,
                       const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                       attn_instance_t **i, attn_error_t *error) {
    PASS_ON(open, args, device, options, num_options, host, i, error);
    attn_problem_t p = *args;
    if (MISTAKE == FULL_IS_CAUSAL && p.mask == ATTN_MASK_FULL) p.mask = ATTN_MASK_CAUSAL;
    return target->ops->open(&p, device, options, num_options, host, i, error);
}

static int supports(const attn_problem_t *args, const attn_device_t *device, attn_reasons_t *reasons) {
    if (args == NULL || args->struct_size != sizeof *args)
        return target->ops->supports_combination(args, device, reasons);
    attn_problem_t p = *args;
    if (MISTAKE == TAKES_SINKS) p.features &= ~(uint64_t)ATTN_F_SINK;
    return target->ops->supports_combination(&p, device, reasons);
}

static int prepare(attn_instance_t *i, const attn_weights_t *args, void *stream, attn_error_t *error) {
    PASS_ON(prepare_weights, i, args, stream, error);
    attn_weights_t w = *args;
    DLTensor t;
    if (MISTAKE == FORGETS_WEIGHT_OFFSET && w.kv_b_proj != NULL) {
        t = *w.kv_b_proj;
        t.byte_offset = 0;
        w.kv_b_proj = &t;
    }
    if (MISTAKE == KEEPS_WEIGHTS) {
        kept_weights = w.weight_space;
        kept_bytes = w.weight_space_bytes;
    }
    if (MISTAKE == TAKES_NO_WEIGHTS_FOR_GOOD && w.kv_b_proj == NULL) return ATTN_OK;
    return target->ops->prepare_weights(i, &w, stream, error);
}

static int update(attn_instance_t *i, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    PASS_ON(update_kv_cache, i, args, stream, error);
    attn_kv_update_t a = *args;
    DLTensor t;
    int64_t *slots = NULL;
    if (MISTAKE == WRAPS_FAR_SLOTS) {
        const int64_t n = args->slot_mapping->shape[0], bs = args->kv_cache->shape[1],
                      most = (INT64_C(1) << 31) / args->kv_cache->strides[0];
        slots = malloc((size_t)(n + 1) * sizeof *slots);
        for (int64_t j = 0; j < n; j++) {
            slots[j] = ((const int64_t *)attn_data(args->slot_mapping))[j];
            if (slots[j] / bs > most) slots[j] -= most * bs;
        }
        t = *args->slot_mapping;
        t.data = slots;
        t.byte_offset = 0;
        a.slot_mapping = &t;
    }
    int status = target->ops->update_kv_cache(i, &a, stream, error);
    free(slots);
    if (MISTAKE == WRITES_OTHER_ROWS && status == ATTN_OK) {
        const DLTensor *c = args->kv_cache;
        char *last =
            (char *)attn_data(c) +
            ((c->shape[0] - 1) * c->strides[0] + (c->shape[1] - 1) * c->strides[1]) * c->dtype.bits / 8;
        last[0] ^= 1;
    }
    return status;
}

static int forward(attn_instance_t *i, const attn_forward_t *args, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    PASS_ON(forward, i, args, space, stream, error);
    static volatile int32_t read;
    attn_forward_t a = *args;
    DLTensor t;
    int64_t shape[2];
    if (a.topk_indices != NULL) {
        int32_t *list = attn_data(a.topk_indices);
        const int64_t count = a.topk_indices->shape[0] * a.topk_indices->shape[1];
        t = *a.topk_indices;
        if (MISTAKE == FORGETS_TOPK_OFFSET) t.byte_offset = 0;
        if (MISTAKE == TAKES_NARROW_TOPK && t.shape[1] == 127) {
            shape[0] = t.shape[0];
            shape[1] = 128;
            t.shape = shape;
        }
        a.topk_indices = &t;
        if (MISTAKE == READS_BEHIND_TOPK) read = list[count];
        if (MISTAKE == CHANGES_TOPK) list[0] = 0;
    }
    if (MISTAKE == CHANGES_WEIGHTS && a.weight_space_bytes > 0)
        ((char *)(uintptr_t)a.weight_space)[a.weight_space_bytes - 1] ^= 1;
    if (MISTAKE == KEEPS_WEIGHTS && a.weight_space == NULL) {
        a.weight_space = kept_weights;
        a.weight_space_bytes = kept_bytes;
    }
    if (MISTAKE == FORGETS_ROPE && a.weight_space == NULL && a.query != NULL && a.query->ndim == 3)
        for (int64_t r = 0; r < a.query->shape[0]; r++)
            for (int64_t h = 0; h < a.query->shape[1]; h++)
                memset((char *)attn_data(a.query) + r * attn_byte_stride(a.query, 0) +
                           h * attn_byte_stride(a.query, 1) +
                           (a.query->shape[2] - 64) * a.query->dtype.bits / 8,
                       0, 64u * a.query->dtype.bits / 8);
    if (MISTAKE == ALLOCATES) {
        void *volatile p = malloc(100);
        free(p);
    }
    int status = target->ops->forward(i, &a, space, stream, error);
    if (status == ATTN_OK && space != NULL && args->output->dtype.bits == 16) {
        uint16_t *out = attn_data(args->output);
        if (MISTAKE == LOSES_FAR_SCORES && a.query != NULL && a.query->ndim == 3) {
            const uint16_t *q = attn_data(a.query);
            if ((q[a.query->shape[2] - 1] & 0x7fff) >= 0x457a) out[0] = 0; /* 4000 in bfloat16 */
        }
        if ((MISTAKE == CHANGES_WITH_EVERY_CALL && ++num_calls % 2 == 0) ||
            (MISTAKE == DEPENDS_ON_BATCH && args->query->shape[0] > 30))
            out[0] ^= 1;
    }
    return status;
}

static void put_mistakes(void) {
    can.roles = ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    ops.open = open_latent;
    ops.supports_combination = supports;
    ops.prepare_weights = prepare;
    ops.update_kv_cache = update;
    ops.forward = forward;
}
