/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_far.c: the part of group offsets about products that do not fit 32 bits: blocks behind 2^31 and 2^32
 * elements, slots behind 2^31, rows and heads of the arguments and of the block table gigabytes apart.
 * Untouched pages cost nothing.
 */
#include "../run/device_image.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { BEYOND_SLOTS = 1 }; /* as argument of a check; else the power of two in elements */

/* The cache of the case, moved behind `first` blocks of a huge one: block ids and slots grow by first. */
static struct {
    int64_t first, block_size;
    int token; /* axis of tokens; -1: the pages are in an order of their own */
    char *base;
    size_t bytes;
    int64_t shape[ATTN_CACHE_MAX_DIMS];
    DLTensor cache, table;
} far;

static check_t *current;

/* Address space without memory behind it. */
static void *far_alloc(size_t bytes) {
    const kit_memory_t *m = current->memory;
    if (m->kind != NULL) return m->alloc(m->ctx, bytes, 256);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p != MAP_FAILED ? p : NULL;
}

static const DLTensor *far_cache(const DLTensor *t) {
    if (far.base == NULL) {
        int64_t last = 1;
        far.first = current->arg == BEYOND_SLOTS ? (INT64_C(1) << 31) / far.block_size + 3
                                                 : (INT64_C(1) << current->arg) / t->strides[0] + 3;
        memcpy(far.shape, t->shape, (size_t)t->ndim * sizeof far.shape[0]);
        far.shape[0] += far.first;
        for (int i = 0; i < t->ndim; i++)
            last += (far.shape[i] - 1) * t->strides[i];
        far.bytes = (size_t)last * (t->dtype.bits / 8u);
        far.base = far_alloc(far.bytes);
        if (far.base == NULL) return NULL;
        /* an offset that lost its upper half comes out below, where nothing may be */
        if (current->memory->kind == NULL)
            mprotect(far.base, (size_t)(far.first * t->strides[0]) * (t->dtype.bits / 8u) / 65536 * 65536,
                     PROT_NONE);
    }
    far.cache = *t;
    far.cache.data = far.base;
    far.cache.byte_offset = 0;
    far.cache.shape = far.shape;
    return &far.cache;
}
/* The row of a slot, head 0: made blank, or found so. */
enum { MAX_ROW = 4096 };
static int blank_row(const DLTensor *t, int64_t slot, int is_made) {
    if (far.token < 0) return is_made;
    const int64_t element = t->dtype.bits / 8;
    char *row =
        (char *)attn_data(t) +
        (slot / far.block_size * t->strides[0] + slot % far.block_size * t->strides[far.token]) * element;
    static const char zeros[MAX_ROW];
    char now[MAX_ROW];
    const int64_t size = t->shape[t->ndim - 1] * element;
    const size_t bytes = size < MAX_ROW ? (size_t)size : MAX_ROW;
    if (is_made)
        image_write(row, zeros, bytes);
    else
        image_read(now, row, bytes);
    return is_made || memcmp(now, zeros, bytes) == 0;
}

/* The instance does not know how many blocks there will be. */
static int far_open(const attn_problem_t *problem, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p = *problem;
    p.num_blocks = 0;
    attn_kv_cache_shape_t s = {.struct_size = sizeof s};
    int status = shim_target()->ops->open(&p, device, options, num_options, host, instance, error);
    if (status == ATTN_OK) status = shim_target()->ops->kv_cache_shape(*instance, 1, &s, error);
    far.block_size = s.block_size;
    far.token = -1;
    for (uint32_t i = 0; i < s.ndim && i < ATTN_CACHE_MAX_DIMS; i++)
        if (s.axes[i] == ATTN_AXIS_TOKEN) far.token = (int)i;
    return status;
}
static int far_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                      attn_error_t *error) {
    attn_kv_update_t a = *args;
    int64_t n = args->slot_mapping->shape[0], *slots = image_of(args->slot_mapping);
    DLTensor t = *args->slot_mapping;
    a.kv_cache = far_cache(args->kv_cache);
    if (a.kv_cache == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "kit", "no address space for such a cache");
    for (int64_t i = 0; i < n; i++) {
        slots[i] = slots[i] < 0 ? slots[i] : slots[i] + far.first * far.block_size;
        if (slots[i] >= 0) blank_row(a.kv_cache, slots[i], 1);
    }
    t.data = image_new(slots, (size_t)n * sizeof *slots); /* they live until the process ends */
    t.byte_offset = 0;
    a.slot_mapping = &t;
    int status = shim_target()->ops->update_kv_cache(instance, &a, stream, error);
    for (int64_t i = 0; i < n && status == ATTN_OK; i++)
        if (slots[i] >= 0 && blank_row(a.kv_cache, slots[i], 0))
            check_fail(current, "slot %lld, far from the start of the cache, was not written",
                       (long long)slots[i]);
    free(slots);
    return status;
}
static int far_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                     void *stream, attn_error_t *error) {
    attn_batch_t b = *batch;
    int64_t n = batch->block_table->shape[0] * batch->block_table->shape[1];
    if (far.base == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "kit", "out of memory");
    int32_t *table = image_of(batch->block_table);
    for (int64_t i = 0; i < n; i++)
        if (table[i] < (1 << 24)) table[i] += (int32_t)far.first;
    far.table = *batch->block_table;
    far.table.data = image_new(table, (size_t)n * sizeof *table);
    far.table.byte_offset = 0;
    b.block_table = &far.table;
    if (b.block_table_host != NULL) b.block_table_host = table;
    const int status = shim_target()->ops->build_metadata(instance, &b, space, stream, error);
    free(table);
    return status;
}
static int far_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    a.kv_cache = far_cache(args->kv_cache);
    return shim_target()->ops->forward(instance, &a, space, stream, error);
}
static const attn_backend_ops_t far_ops = {
    .open = far_open, .build_metadata = far_build, .update_kv_cache = far_update, .forward = far_forward};

static int has_address_space(size_t bytes) {
    void *test =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (test == MAP_FAILED) return 0;
    munmap(test, bytes);
    return 1;
}

static void far_blocks(check_t *c) {
    kit_case_t k;
    current = c;
    if (!check_start(c, &k)) return;
    if (!attn_role_has_cache(k.problem.role) || k.problem.role == ATTN_ROLE_ENCODER_DECODER ||
        c->backend->ops->update_kv_cache == NULL) {
        check_skip(c, "no role with a cache that each step writes");
        return;
    }
    if (c->arg == BEYOND_SLOTS) { /* as few bytes for each as there may be */
        k.problem.head_size = check_head_size(c, 8);
        k.problem.num_heads = k.problem.num_kv_heads = 1;
    }
    if (!has_address_space(c->arg == BEYOND_SLOTS ? (size_t)2 << 40 : (size_t)9 << (c->arg - 1))) {
        check_skip(c, "no address space for such a cache");
        return;
    }
    check_run(c, shim_make(c->backend, &far_ops), &k, NULL);
}

/* --------------------------------------------------------------- far rows */

/* Copies of tensors whose dimension `axis` has a stride of this many elements. */
static const int64_t far_stride = INT64_C(0x48000000); /* twice that is beyond 2^31, four times beyond 2^32 */
enum { MAX_SPREAD = 8 };
typedef struct spread {
    DLTensor t;
    const DLTensor *original;
    int64_t strides[4];
    char *base;
    size_t bytes;
} spread_t;
static spread_t spreads[MAX_SPREAD];
static int num_spread, is_full;

static void copy_rows(spread_t *s, int back) {
    const DLTensor *o = s->original;
    const int64_t element = o->dtype.bits / 8, inner = o->ndim > 2 ? o->shape[1] : 1,
                  n = o->shape[o->ndim - 1] * element;
    for (int64_t i = 0; i < o->shape[0]; i++)
        for (int64_t j = 0; j < inner; j++) {
            const int64_t second = o->ndim > 2 ? j : 0;
            char *near =
                     (char *)attn_data(o) +
                     (i * o->strides[0] + second * o->strides[o->ndim > 2 ? 1 : 0] * (o->ndim > 2)) * element,
                 *away =
                     s->base +
                     (i * s->strides[0] + second * s->strides[o->ndim > 2 ? 1 : 0] * (o->ndim > 2)) * element;
            memcpy(back ? near : away, back ? away : near, (size_t)n);
        }
}

static const DLTensor *spread(const DLTensor *t, int axis) {
    if (t == NULL || num_spread == MAX_SPREAD || t->shape[axis] < 2) return t;
    spread_t *s = &spreads[num_spread];
    s->original = t;
    s->t = *t;
    int64_t last = 1;
    for (int i = 0; i < t->ndim; i++) {
        s->strides[i] = t->strides[i];
        if (i == axis) s->strides[i] = far_stride;
        last += (t->shape[i] - 1) * s->strides[i];
    }
    s->bytes = (size_t)last * (t->dtype.bits / 8u);
    s->base = far_alloc(s->bytes);
    if (s->base == NULL) {
        is_full = 1;
        return t;
    }
    num_spread++;
    s->t.strides = s->strides;
    s->t.data = s->base;
    s->t.byte_offset = 0;
    copy_rows(s, 0);
    return &s->t;
}

static void give_back(int num_outputs) {
    for (int i = 0; i < num_outputs && i < num_spread; i++)
        copy_rows(&spreads[i], 1);
    for (int i = 0; i < num_spread; i++)
        munmap(spreads[i].base, spreads[i].bytes);
    num_spread = 0;
}

static int spread_axis;
static int rows_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                       attn_error_t *error) {
    attn_kv_update_t a = *args;
    a.key = spread(args->key, spread_axis);
    a.value = spread(args->value, spread_axis);
    int status = shim_target()->ops->update_kv_cache(instance, &a, stream, error);
    give_back(0);
    return status;
}
static spread_t table_spread;
static int rows_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                      void *stream, attn_error_t *error) {
    attn_batch_t b = *batch;
    b.block_table = spread(batch->block_table, 0);
    if (num_spread > 0) { /* metadata refers to it until the end */
        table_spread = spreads[0];
        table_spread.t.strides = table_spread.strides;
        b.block_table = &table_spread.t;
        num_spread = 0;
    }
    return shim_target()->ops->build_metadata(instance, &b, space, stream, error);
}
static int rows_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                        void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    a.output = spread(args->output, spread_axis);
    a.lse = spread(args->lse, 0);
    const int num_outputs = num_spread;
    a.query = spread(args->query, spread_axis);
    a.key = spread(args->key, spread_axis);
    a.value = spread(args->value, spread_axis);
    int status = shim_target()->ops->forward(instance, &a, space, stream, error);
    give_back(status == ATTN_OK ? num_outputs : 0);
    return status;
}
static const attn_backend_ops_t rows_ops = {
    .build_metadata = rows_build, .update_kv_cache = rows_update, .forward = rows_forward};

static void far_rows(check_t *c) {
    kit_case_t k;
    current = c;
    spread_axis = (int)(c->arg & 1);
    if (!check_start(c, &k)) return;
    if (c->arg > 1) { /* keys and values of the call */
        k.problem.role = c->arg >> 1;
        k.problem.mask = ATTN_MASK_FULL;
        k.problem.block_size = k.problem.kv_cache_dtype = k.problem.kv_layout = 0;
    }
    if (attn_role_is_mla(k.problem.role) && spread_axis == 1) {
        check_skip(c, "latent rows have no heads");
        return;
    }
    if (!has_address_space((size_t)1 << 40)) {
        check_skip(c, "no address space of a TiB");
        return;
    }
    k.padded_tokens = 0;
    k.num_reqs = 0;
    if (c->arg > 1)
        kit_case_add(&k, 3, 3), kit_case_add(&k, 1, 1), kit_case_add(&k, 5, 5);
    else {
        kit_case_add(&k, 1, 37);
        kit_case_add(&k, 5, 20);
        kit_case_add(&k, 1, 3);
        kit_case_add(&k, 1, 17);
        kit_case_add(&k, 2, 50);
    }
    check_run(c, shim_make(c->backend, &rows_ops), &k, NULL);
    if (is_full && !c->report->is_failed) check_skip(c, "no address space for such rows");
}

/* ------------------------------------------- a cache whose heads are far apart */

static struct {
    DLTensor t[2];
    int64_t strides[2][ATTN_CACHE_MAX_DIMS];
    int head; /* axis of heads; -1: none */
} apart[1];
static char *apart_base;

static int apart_open(const attn_problem_t *problem, const attn_device_t *device,
                      const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                      attn_instance_t **instance, attn_error_t *error) {
    attn_kv_cache_shape_t s = {.struct_size = sizeof s};
    int status = shim_target()->ops->open(problem, device, options, num_options, host, instance, error);
    if (status == ATTN_OK) status = shim_target()->ops->kv_cache_shape(*instance, 1, &s, error);
    apart->head = -1;
    for (uint32_t i = 0; i < s.ndim && i < ATTN_CACHE_MAX_DIMS; i++)
        if (s.axes[i] == ATTN_AXIS_HEAD) apart->head = (int)i;
    return status;
}

/* The cache of the case as [head][block][token][content], the heads gigabytes apart; planes of K and V, where
 * they are an axis of their own, stay in their blocks. */
static const DLTensor *heads_apart(const DLTensor *t, int which) {
    DLTensor *to = &apart->t[which];
    int64_t *strides = apart->strides[which];
    const int head = apart->head;
    if (head < 0) return t;
    *to = *t;
    memcpy(strides, t->strides, (size_t)t->ndim * sizeof *strides);
    strides[head] = far_stride;
    /* blocks of one head close up, so that heads at their packed distance come to lie in other blocks */
    if (head == 1 && strides[0] == t->shape[1] * t->strides[1]) strides[0] = t->strides[1];
    for (int i = 1; i < t->ndim; i++)
        if (i != head && strides[0] < strides[i]) return NULL;
    if (apart_base == NULL)
        apart_base = far_alloc((size_t)(t->shape[head] * far_stride) * (t->dtype.bits / 8u));
    if (apart_base == NULL) return NULL;
    to->strides = strides;
    to->data = apart_base;
    to->byte_offset = 0;
    return to;
}
static int apart_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                        attn_error_t *error) {
    attn_kv_update_t a = *args;
    a.kv_cache = heads_apart(args->kv_cache, 0);
    if (a.kv_cache == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "kit", "no address space");
    return shim_target()->ops->update_kv_cache(instance, &a, stream, error);
}
static int apart_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    a.kv_cache = heads_apart(args->kv_cache, 1);
    if (a.kv_cache == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "kit", "no address space");
    return shim_target()->ops->forward(instance, &a, space, stream, error);
}
static const attn_backend_ops_t apart_ops = {
    .open = apart_open, .update_kv_cache = apart_update, .forward = apart_forward};

static void far_cache_heads(check_t *c) {
    kit_case_t k;
    current = c;
    if (!check_start_decoder(c, &k)) return;
    if (c->can.forward_writes_cache || attn_kv_is_whole_page(k.problem.kv_cache_dtype)) {
        check_skip(c, "its cache is not written by update_kv_cache, or is whole pages");
        return;
    }
    if (!has_address_space((size_t)1 << 36)) {
        check_skip(c, "no address space for such a cache");
        return;
    }
    k.problem.num_kv_heads = 5;
    k.problem.num_heads = c->can.max_group == 1 ? 5 : 10;
    kit_case_add(&k, 1, 37);
    kit_case_add(&k, 5, 20);
    check_run(c, shim_make(c->backend, &apart_ops), &k, NULL);
}

void check_far_list(check_list_t *list, const check_t *c) {
    check_add(list, "offsets", 1, far_blocks, 31, "blocks beyond 2^31 elements");
    check_add(list, "offsets", CHECK_RUNS_ON_CPU, far_blocks, 32, "blocks beyond 2^32 elements");
    check_add(list, "offsets", CHECK_RUNS_ON_CPU, far_blocks, BEYOND_SLOTS, "slots beyond 2^31");
    check_add(list, "offsets", CHECK_RUNS_ON_CPU, far_rows, 0,
              "tokens and table rows beyond 2^31 and 2^32 elements");
    check_add(list, "offsets", CHECK_RUNS_ON_CPU, far_rows, 1, "heads beyond 2^31 and 2^32 elements");
    for (uint32_t role = 1; role < ATTN_ROLE_COUNT_ && list->role == 0; role++)
        if ((c->can.roles >> role & 1) && !attn_role_has_cache(role) && !attn_role_is_mla(role))
            check_add(list, "offsets", CHECK_RUNS_ON_CPU, far_rows, role << 1,
                      "%s: tokens beyond 2^31 and 2^32 elements", attn_role_name(role));
    if (list->role == 0 && (c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER)))
        check_add(list, "offsets", CHECK_RUNS_ON_CPU, far_cache_heads, 0,
                  "heads of a cache beyond 2^31 and 2^32 elements");
}
