/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_offsets.c: group offsets. Addresses are data + byte_offset + index * stride, in 64 bits: views with gaps, caches
 * of several layers, both layouts, and a cache whose blocks lie beyond 2^31 elements (untouched pages cost nothing).
 */
#include "check_engine.h"

#include <stdlib.h>
#include <sys/mman.h>

static int start(check_t *c, kit_case_t *k) {
    if (check_plain_case(c, k)) return 1;
    check_skip(c, "the kit has no cases for its roles");
    return 0;
}

static void strides(check_t *c) {
    kit_case_t k;
    if (!start(c, &k)) return;
    k.flags |= KIT_STRIDED;
    check_run(c, c->backend, &k, NULL);
    for (int n = 0; n < 6; n++) {
        check_random_case(c, &k, c->seed * 271 + (uint64_t)n, 80);
        k.flags |= KIT_STRIDED;
        check_run(c, c->backend, &k, NULL);
    }
}

static void layouts(check_t *c) {
    for (uint32_t layout = ATTN_LAYOUT_NHD; layout <= ATTN_LAYOUT_HND; layout++) {
        kit_case_t k;
        if (!start(c, &k)) return;
        if (k.problem.block_size == 0) {
            check_skip(c, "no role with a cache");
            return;
        }
        if (c->can.required_layout != 0 && c->can.required_layout != layout) continue;
        k.problem.kv_layout = layout;
        check_run(c, c->backend, &k, NULL);
    }
}

static void layers(check_t *c) {
    kit_case_t k;
    if (!start(c, &k)) return;
    if (k.problem.block_size == 0 || !(c->can.features & ATTN_F_BLOCK_STRIDE)) {
        check_skip(c, "block_stride is not in the table");
        return;
    }
    for (uint32_t layout = 0; layout <= ATTN_LAYOUT_HND; layout++) {
        if (c->can.required_layout != 0 && layout != 0 && layout != c->can.required_layout) continue;
        k.problem.kv_layout = layout;
        k.flags |= KIT_CROSS_LAYER;
        check_run(c, c->backend, &k, NULL);
    }
}

/* ------------------------------------------------------------ byte_offset */

enum { SHIFT = 4096, MAX_SHIFTED = 13 };
static DLTensor shifted_tensors[MAX_SHIFTED];
static int num_shifted;

/* The same tensor with its data pointer moved back and its byte_offset forward. */
static const DLTensor *shifted(const DLTensor *t) {
    if (t == NULL || t->data == NULL || num_shifted == MAX_SHIFTED) return t;
    DLTensor *s = &shifted_tensors[num_shifted++];
    *s = *t;
    s->data = (void *)((uintptr_t)t->data - SHIFT);
    s->byte_offset += SHIFT;
    return s;
}
static int shifted_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    attn_batch_t b = *batch;
    num_shifted = 0;
    b.block_table = shifted(b.block_table);
    b.seq_lens = shifted(b.seq_lens);
    b.query_start_loc = shifted(b.query_start_loc);
    return shim_target()->ops->build_metadata(instance, &b, space, stream, error);
}
static int shifted_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                          attn_error_t *error) {
    attn_kv_update_t a = *args;
    num_shifted = 0;
    a.key = shifted(a.key);
    a.value = shifted(a.value);
    a.kv_cache = shifted(a.kv_cache);
    a.v_cache = shifted(a.v_cache);
    a.slot_mapping = shifted(a.slot_mapping);
    a.scales.k = shifted(a.scales.k);
    a.scales.v = shifted(a.scales.v);
    return shim_target()->ops->update_kv_cache(instance, &a, stream, error);
}
static int shifted_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    num_shifted = 0;
    a.query = shifted(a.query);
    a.key = shifted(a.key);
    a.value = shifted(a.value);
    a.kv_cache = shifted(a.kv_cache);
    a.v_cache = shifted(a.v_cache);
    a.output = shifted(a.output);
    a.lse = shifted(a.lse);
    a.sinks = shifted(a.sinks);
    a.alibi_slopes = shifted(a.alibi_slopes);
    a.scales.k = shifted(a.scales.k);
    a.scales.v = shifted(a.scales.v);
    a.topk_indices = shifted(a.topk_indices);
    return shim_target()->ops->forward(instance, &a, space, stream, error);
}
static int shifted_prepare(attn_instance_t *instance, const attn_weights_t *args, void *stream,
                           attn_error_t *error) {
    attn_weights_t w = *args;
    num_shifted = 0;
    w.kv_b_proj = shifted(w.kv_b_proj);
    w.kv_b_proj_scale = shifted(w.kv_b_proj_scale);
    return shim_target()->ops->prepare_weights(instance, &w, stream, error);
}
static const attn_backend_ops_t shifted_ops = {.build_metadata = shifted_build,
                                               .update_kv_cache = shifted_update,
                                               .prepare_weights = shifted_prepare,
                                               .forward = shifted_forward};

static void byte_offsets(check_t *c) {
    kit_case_t k;
    if (!start(c, &k)) return;
    check_run(c, shim_make(c->backend, &shifted_ops), &k, NULL);
    for (int n = 0; n < 6; n++) {
        check_random_case(c, &k, c->seed * 577 + (uint64_t)n, 80);
        check_run(c, shim_make(c->backend, &shifted_ops), &k, NULL);
    }
}

/* ------------------------------------------------------------- far blocks */

/* The cache of the case, moved behind `first` blocks of a huge one: block ids and slots grow by first. */
static struct {
    int64_t first, block_size;
    char *base;
    size_t bytes;
    int64_t shape[4];
    DLTensor cache, table;
} far;

static check_t *current;

/* Address space without memory behind it. */
static void *far_alloc(size_t bytes) {
    if (current->memory->device_type != kDLCPU) return current->memory->alloc(NULL, bytes, 256);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p != MAP_FAILED ? p : NULL;
}

static const DLTensor *far_cache(const DLTensor *t) {
    if (far.base == NULL) {
        int64_t last = 1;
        far.first = (INT64_C(1) << 31) / t->strides[0] + 3;
        far.block_size = t->shape[t->ndim - 2];
        memcpy(far.shape, t->shape, (size_t)t->ndim * sizeof far.shape[0]);
        far.shape[0] += far.first;
        for (int i = 0; i < t->ndim; i++)
            last += (far.shape[i] - 1) * t->strides[i];
        far.bytes = (size_t)last * (t->dtype.bits / 8u);
        far.base = far_alloc(far.bytes);
        if (far.base == NULL) return NULL;
        /* an offset that lost its upper half comes out below, where nothing may be */
        if (current->memory->device_type == kDLCPU)
            mprotect(far.base, (size_t)(far.first * t->strides[0]) * (t->dtype.bits / 8u) / 65536 * 65536,
                     PROT_NONE);
    }
    far.cache = *t;
    far.cache.data = far.base;
    far.cache.byte_offset = 0;
    far.cache.shape = far.shape;
    return &far.cache;
}
/* Is the row of a slot, head 0, as the address space came? */
static int is_blank(const DLTensor *t, int64_t slot) {
    int64_t element = t->dtype.bits / 8;
    const char *row =
        (const char *)attn_data(t) +
        (slot / far.block_size * t->strides[0] + slot % far.block_size * t->strides[t->ndim - 2]) * element;
    for (int64_t i = 0; i < t->shape[t->ndim - 1] * element; i++)
        if (row[i] != 0) return 0;
    return 1;
}

/* The instance does not know how many blocks there will be. */
static int far_open(const attn_problem_t *problem, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p = *problem;
    p.num_blocks = 0;
    return shim_target()->ops->open(&p, device, options, num_options, host, instance, error);
}
static int far_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                      attn_error_t *error) {
    attn_kv_update_t a = *args;
    int64_t n = args->slot_mapping->shape[0], *slots = far_alloc((size_t)(n + 1) * sizeof *slots);
    DLTensor t = *args->slot_mapping;
    a.kv_cache = far_cache(args->kv_cache);
    if (slots == NULL || a.kv_cache == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "kit", "no address space for a cache of 2^31 elements");
    for (int64_t i = 0; i < n; i++) {
        int64_t slot = ((int64_t *)attn_data(args->slot_mapping))[i];
        slots[i] = slot < 0 ? slot : slot + far.first * far.block_size;
    }
    t.data = slots;
    t.byte_offset = 0;
    a.slot_mapping = &t;
    int status = shim_target()->ops->update_kv_cache(instance, &a, stream, error);
    for (int64_t i = 0; i < n && status == ATTN_OK; i++) /* the slots live until the process ends */
        if (slots[i] >= 0 && is_blank(a.kv_cache, slots[i]))
            check_fail(current, "slot %lld, beyond 2^31 elements, was not written", (long long)slots[i]);
    return status;
}
static int far_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                     void *stream, attn_error_t *error) {
    attn_batch_t b = *batch;
    int64_t n = batch->block_table->shape[0] * batch->block_table->shape[1];
    int32_t *table = far_alloc((size_t)(n + 1) * sizeof *table);
    if (table == NULL || far.base == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "kit", "no memory");
    for (int64_t i = 0; i < n; i++) {
        int32_t id = ((int32_t *)attn_data(batch->block_table))[i];
        table[i] = id < (1 << 24) ? id + (int32_t)far.first : id;
    }
    far.table = *batch->block_table;
    far.table.data = table;
    far.table.byte_offset = 0;
    b.block_table = &far.table;
    if (b.block_table_host != NULL) b.block_table_host = table;
    return shim_target()->ops->build_metadata(instance, &b, space, stream, error);
}
static int far_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    a.kv_cache = far_cache(args->kv_cache);
    return shim_target()->ops->forward(instance, &a, space, stream, error);
}
static const attn_backend_ops_t far_ops = {
    .open = far_open, .build_metadata = far_build, .update_kv_cache = far_update, .forward = far_forward};

static void far_blocks(check_t *c) {
    kit_case_t k;
    current = c;
    if (!start(c, &k)) return;
    if (!attn_role_has_cache(k.problem.role) || k.problem.role == ATTN_ROLE_ENCODER_DECODER ||
        c->backend->ops->update_kv_cache == NULL) {
        check_skip(c, "no role with a cache that each step writes");
        return;
    }
    void *test = mmap(NULL, (size_t)9 << 30, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (test == MAP_FAILED) {
        check_skip(c, "no address space of 9 GiB");
        return;
    }
    munmap(test, (size_t)9 << 30);
    check_run(c, shim_make(c->backend, &far_ops), &k, NULL);
}

void check_offsets_list(check_list_t *list, const check_t *c) {
    check_add(list, "offsets", 1, strides, 0, "query, key, value, output and lse with gaps");
    check_add(list, "offsets", 1, byte_offsets, 0, "byte_offset of every tensor");
    check_add(list, "offsets", 1, layouts, 0, "pages in NHD and in HND");
    check_add(list, "offsets", 1, layers, 0, "a cache that is one layer of three");
    (void)c;
    check_add(list, "offsets", 1, far_blocks, 0, "blocks beyond 2^31 elements");
}
