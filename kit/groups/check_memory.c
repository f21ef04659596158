/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_memory.c: group memory. Outputs between canaries, buffers of exactly the size that space_needed says
 * between pages that fault, no allocation in the calls of a step, inputs that stay as they are, cache rows
 * that belong to no request.
 */
#include "../run/device_image.h"
#include "../run/surroundings.h"

#include <stdlib.h>

/* Limits of exactly this batch, so that space_needed has nothing to spare. */
static void tight_limits(kit_case_t *k) {
    uint32_t tokens = 0, keys = 0;
    int64_t longest = 1;
    for (int r = 0; r < k->num_reqs; r++) {
        const int32_t query = k->query_lens[r] + kit_case_more_tokens(k, r);
        tokens += (uint32_t)query;
        keys += (uint32_t)(k->seq_lens[r] + r % 3); /* and the rows that belong to nobody */
        if (k->seq_lens[r] > longest) longest = k->seq_lens[r];
        if (query > longest) longest = query;
    }
    k->problem.max_num_seqs = (uint32_t)k->num_reqs;
    k->problem.max_num_batched_tokens = tokens;
    if ((k->problem.features & ATTN_F_KEY_LENGTHS) != 0) k->problem.max_num_batched_keys = keys;
    k->problem.max_model_len = longest;
}

static void canaries(check_t *c) {
    for (uint32_t flags = 0; flags <= KIT_STRIDED; flags += KIT_STRIDED)
        for (int padded = 0; padded <= 5; padded += 5) {
            kit_case_t k;
            if (!check_start(c, &k)) return;
            k.flags |= flags;
            k.padded_tokens = padded;
            tight_limits(&k);
            check_run(c, c->backend, &k, NULL);
        }
}

/* ------------------------------------------------------- pages that fault */

static int at_end;
static uint32_t cache_alignment;
static int64_t guarded_page; /* tokens */
static guard_t metadata_guard, workspace_guard;
static guarded_t table_guard;
static attn_space_t guarded_space;

/* An OpenMP runtime's number of threads belongs to the program, which may change it. */
static int threads_change;
static void set_threads(int n) {
    if (threads_change) surroundings_set_threads(n);
}

static int guarded_open(const attn_problem_t *problem, const attn_device_t *device,
                        const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                        attn_instance_t **instance, attn_error_t *error) {
    set_threads(1);
    int status = shim_target()->ops->open(problem, device, options, num_options, host, instance, error);
    if (status != ATTN_OK) return status;
    attn_space_needed_t n = {.struct_size = sizeof n};
    attn_kv_cache_shape_t s = {.struct_size = sizeof s};
    status = shim_target()->ops->space_needed(*instance, &n, error);
    if (status == ATTN_OK) status = shim_target()->ops->kv_cache_shape(*instance, 0, &s, error);
    cache_alignment = s.alignment != 0 ? s.alignment : 16;
    guarded_page = s.block_size;
    set_threads(7);
    guarded_space = (attn_space_t){.struct_size = sizeof guarded_space,
                                   .metadata_bytes = n.metadata_bytes,
                                   .workspace_bytes = n.workspace_bytes};
    guarded_space.metadata = guard_alloc(&metadata_guard, n.metadata_bytes, n.alignment, at_end);
    guarded_space.workspace = guard_alloc(&workspace_guard, n.workspace_bytes, n.alignment, at_end);
    return status;
}

/* An array of the batch on the host, which ends at the page too, where that is asked for. */
enum { MOST_ARRAYS = 6 };
static guard_t arrays[MOST_ARRAYS];
static const void *guard_array(guard_t *g, const void *data, int64_t bytes, size_t alignment) {
    if (data == NULL || bytes <= 0) return data;
    void *copy = guard_alloc(g, (size_t)bytes, alignment, at_end);
    if (copy != NULL) memcpy(copy, data, (size_t)bytes);
    return copy != NULL ? copy : data;
}
static void guard_arrays(attn_batch_t *b) {
    const int64_t n = b->num_reqs, spans = b->mm_prefix_ranges != NULL ? b->mm_prefix_ranges->shape[1] : 0;
    b->query_start_loc_host = guard_array(&arrays[0], b->query_start_loc_host, (n + 1) * 4, 4);
    b->seq_lens_host = guard_array(&arrays[1], b->seq_lens_host, n * 4, 4);
    b->causal_host = guard_array(&arrays[2], b->causal_host, n, 1);
    b->mm_prefix_ranges_host = guard_array(&arrays[3], b->mm_prefix_ranges_host, n * spans * 8, 4);
    b->rswa_prefix_lens_host = guard_array(&arrays[4], b->rswa_prefix_lens_host, n * 4, 4);
    b->key_start_loc_host = guard_array(&arrays[5], b->key_start_loc_host, (n + 1) * 4, 4);
}

static int guarded_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    attn_batch_t b = *batch;
    guarded_space.host = space->host;
    guarded_space.host_bytes = space->host_bytes;
    DLTensor table;
    int64_t shape[2] = {0, 0};
    if (batch->block_table != NULL) { /* no more columns than the longest request has pages */
        table = *batch->block_table;
        shape[0] = table.shape[0];
        for (int32_t r = 0; r < batch->num_reqs; r++) {
            const int64_t pages =
                guarded_page > 0 ? (batch->seq_lens_host[r] + guarded_page - 1) / guarded_page : 0;
            if (pages > shape[1]) shape[1] = pages;
        }
        if (shape[1] > 0 && shape[1] < table.shape[1]) table.shape = shape;
        b.block_table = &table;
    }
    b.block_table = guard_tensor(&table_guard, b.block_table, 4, at_end);
    guard_arrays(&b);
    const int status = shim_target()->ops->build_metadata(instance, &b, &guarded_space, stream, error);
    for (int i = 0; i < MOST_ARRAYS; i++)
        guard_free(&arrays[i]);
    return status;
}

static int guarded_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                          attn_error_t *error) {
    attn_kv_update_t a = *args;
    guarded_t g[7] = {{.bytes = 0}};
    a.key = guard_tensor(&g[0], args->key, 16, at_end);
    a.value = guard_tensor(&g[1], args->value, 16, at_end);
    a.slot_mapping = guard_tensor(&g[2], args->slot_mapping, 16, at_end);
    a.scales.k = guard_tensor(&g[3], args->scales.k, 4, at_end);
    a.scales.v = guard_tensor(&g[4], args->scales.v, 4, at_end);
    if (args->v_cache == NULL) a.kv_cache = guard_tensor(&g[5], args->kv_cache, cache_alignment, at_end);
    int status = shim_target()->ops->update_kv_cache(instance, &a, stream, error);
    for (int i = 0; i < 7; i++)
        guard_return(&g[i], i == 5);
    return status;
}

static int guarded_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    (void)space;
    attn_forward_t a = *args;
    guarded_t g[15] = {{.bytes = 0}};
    a.query = guard_tensor(&g[0], args->query, 16, at_end);
    a.key = guard_tensor(&g[1], args->key, 16, at_end);
    a.value = guard_tensor(&g[2], args->value, 16, at_end);
    if (args->v_cache == NULL) a.kv_cache = guard_tensor(&g[3], args->kv_cache, cache_alignment, at_end);
    a.output = guard_tensor(&g[4], args->output, 16, at_end);
    a.lse = guard_tensor(&g[5], args->lse, 4, at_end);
    a.sinks = guard_tensor(&g[6], args->sinks, 4, at_end);
    a.alibi_slopes = guard_tensor(&g[7], args->alibi_slopes, 4, at_end);
    a.scales.q = guard_tensor(&g[8], args->scales.q, 4, at_end);
    a.scales.k = guard_tensor(&g[9], args->scales.k, 4, at_end);
    a.scales.v = guard_tensor(&g[10], args->scales.v, 4, at_end);
    a.output_block_scale = guard_tensor(&g[11], args->output_block_scale, 4, at_end);
    a.topk_indices = guard_tensor(&g[12], args->topk_indices, 4, at_end);
    a.rel_bias = guard_tensor(&g[13], args->rel_bias, 4, at_end);
    a.slot_mapping = guard_tensor(&g[14], args->slot_mapping, 16, at_end);
    int status = shim_target()->ops->forward(instance, &a, &guarded_space, stream, error);
    for (int i = 0; i < 15; i++)
        guard_return(&g[i], i == 3 || i == 4 || i == 5 || i == 11);
    guard_return(&table_guard, 0);
    guard_free(&metadata_guard);
    guard_free(&workspace_guard);
    return status;
}
/* The weights are read here and never again. */
static int guarded_prepare(attn_instance_t *instance, const attn_weights_t *args, void *stream,
                           attn_error_t *error) {
    attn_weights_t w = *args;
    guarded_t g = {.bytes = 0};
    w.kv_b_proj = guard_tensor(&g, args->kv_b_proj, 16, at_end);
    int status = shim_target()->ops->prepare_weights(instance, &w, stream, error);
    guard_return(&g, 0);
    return status;
}
static const attn_backend_ops_t guarded_ops = {.open = guarded_open,
                                               .build_metadata = guarded_build,
                                               .update_kv_cache = guarded_update,
                                               .prepare_weights = guarded_prepare,
                                               .forward = guarded_forward};

static void guard_pages(check_t *c) {
    at_end = (int)c->arg & 1;
    threads_change = (int)c->arg >> 1;
    for (int n = 0; n < (threads_change ? 4 : 15) && !c->report->is_failed; n++) {
        kit_case_t k;
        if (!check_start(c, &k)) return;
        if (n >= 13) { /* rows that a backend may cut into pieces of its keys, as many as there may be */
            if (k.problem.role != ATTN_ROLE_DECODER) break;
            k.num_reqs = 0;
            kit_case_add(&k, 1, 900);
            if (n == 14) kit_case_add(&k, 1, 2100), kit_case_add(&k, 1, 2100);
        } else if (n == 12) { /* the plain one, whose rows forward writes */
            if (k.problem.role != ATTN_ROLE_DECODER || !(c->can.features & ATTN_F_WRITE_IN_FORWARD)) continue;
            k.problem.features |= ATTN_F_WRITE_IN_FORWARD;
        } else if (n == 0) { /* the plain one, and last the longest, which fills its pages */
            const int32_t page = (int32_t)k.problem.block_size;
            if (page > 0 && attn_role_has_cache(k.problem.role)) kit_case_add(&k, 1, 64 / page * page + page);
        } else {
            check_random_case(c, &k, c->seed * 7919 + (uint64_t)n, 120);
            k.flags &= ~(uint32_t)KIT_CROSS_LAYER;
        }
        tight_limits(&k);
        k.padded_tokens = 0;
        check_run(c, shim_make(c->backend, &guarded_ops), &k, NULL);
    }
}

/* --------------------------------------------------- buffers of other sizes */

/* Aligned as asked and no better, and larger than asked, with poison to the end. */
static int other_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    attn_space_needed_t n = {.struct_size = sizeof n};
    int status = shim_target()->ops->space_needed(instance, &n, error);
    if (status != ATTN_OK) return status;
    guarded_space = *space;
    guarded_space.metadata_bytes = n.metadata_bytes + 1000;
    guarded_space.workspace_bytes = n.workspace_bytes + 3000;
    const size_t sizes[2] = {(size_t)guarded_space.metadata_bytes + n.alignment,
                             (size_t)guarded_space.workspace_bytes + n.alignment};
    char *buffers[2];
    for (int i = 0; i < 2; i++) {
        void *poison = malloc(sizes[i]);
        if (poison == NULL) abort();
        memset(poison, 0x3c, sizes[i]);
        buffers[i] = image_new(poison, sizes[i]);
        free(poison);
        if (buffers[i] == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory");
    }
    guarded_space.metadata = buffers[0] + n.alignment;
    guarded_space.workspace = buffers[1] + n.alignment;
    return shim_target()->ops->build_metadata(instance, batch, &guarded_space, stream, error);
}
static int other_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    (void)space;
    return shim_target()->ops->forward(instance, args, &guarded_space, stream, error);
}
static const attn_backend_ops_t other_ops = {.build_metadata = other_build, .forward = other_forward};

static void other_buffers(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    check_run(c, shim_make(c->backend, &other_ops), &k, NULL);
}

/* ------------------------------------------------------------- allocation */

static int watched_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    alloc_watch_on(1);
    int status = shim_target()->ops->build_metadata(instance, batch, space, stream, error);
    if (status == ATTN_OK && batch->block_table != NULL && shim_target()->ops->update_block_table != NULL)
        status = shim_target()->ops->update_block_table(instance, batch, space, stream, error);
    alloc_watch_on(0);
    return status;
}
static int watched_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                          attn_error_t *error) {
    alloc_watch_on(1);
    int status = shim_target()->ops->update_kv_cache(instance, args, stream, error);
    alloc_watch_on(0);
    return status;
}
static int watched_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    alloc_watch_on(1);
    int status = shim_target()->ops->forward(instance, args, space, stream, error);
    alloc_watch_on(0);
    return status;
}
static const attn_backend_ops_t watched_ops = {
    .build_metadata = watched_build, .update_kv_cache = watched_update, .forward = watched_forward};

static void allocations(check_t *c) {
    kit_case_t k;
    const char *last;
    if (!check_start(c, &k)) return;
    int num_watched = alloc_watch_start(c->options->path);
    check_run(c, shim_make(c->backend, &watched_ops), &k, NULL);
    for (int n = 0; n < 6; n++) {
        check_random_case(c, &k, c->seed * 104729 + (uint64_t)n, 100);
        check_run(c, shim_make(c->backend, &watched_ops), &k, NULL);
    }
    long count = alloc_watch_count(&last);
    if (count > 0)
        check_fail(c,
                   "%ld calls to the allocator (the last: %s) in build_metadata, update_block_table, "
                   "update_kv_cache or "
                   "forward; take "
                   "memory in open, or declare it in space_needed",
                   count, last);
    else if (num_watched == 0 && !c->report->is_failed)
        check_skip(c, "the plugin calls no allocator that could be watched");
}

/* ------------------------------------------------------- what stays as it is */

/* A fingerprint of the elements of a tensor. */
static uint64_t print_of(const DLTensor *t) {
    if (t == NULL) return 0;
    int64_t at[8] = {0}, element = t->dtype.bits / 8;
    uint64_t h = 0;
    if (image_bytes(t) == 0) return 0;
    char *image = image_of(t);
    for (;;) { /* row by row: the last dimension is dense */
        int64_t offset = 0;
        for (int i = 0; i < t->ndim - 1; i++)
            offset += at[i] * t->strides[i];
        h = attn_fingerprint64(h, image + offset * element, (size_t)(t->shape[t->ndim - 1] * element));
        int i = t->ndim - 2;
        while (i >= 0 && ++at[i] == t->shape[i])
            at[i--] = 0;
        if (i < 0) break;
    }
    free(image);
    return h;
}

static check_t *current;
static int forward_writes_cache;

static int unchanged_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                            attn_error_t *error) {
    uint64_t key = print_of(args->key), value = print_of(args->value), slots = print_of(args->slot_mapping);
    int status = shim_target()->ops->update_kv_cache(instance, args, stream, error);
    if (key != print_of(args->key) || value != print_of(args->value) || slots != print_of(args->slot_mapping))
        check_fail(current, "update_kv_cache changed key, value or slot_mapping");
    return status;
}
static uint64_t weights_print(const attn_forward_t *args) {
    if (args->weight_space == NULL) return 0;
    return image_print(args->weight_space, (size_t)args->weight_space_bytes);
}
static int unchanged_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                             void *stream, attn_error_t *error) {
    enum { NUM_INPUTS = 12 };
    const DLTensor *inputs[NUM_INPUTS] = {args->query,    args->key,      args->value,        args->kv_cache,
                                          args->v_cache,  args->sinks,    args->alibi_slopes, args->qq_bias,
                                          args->scales.k, args->scales.v, args->topk_indices, args->rel_bias};
    static const char *const names[NUM_INPUTS] = {"query",   "key",     "value",        "kv_cache",
                                                  "v_cache", "sinks",   "alibi_slopes", "qq_bias",
                                                  "k_scale", "v_scale", "topk_indices", "rel_bias"};
    uint64_t before[NUM_INPUTS], weights = weights_print(args);
    for (int i = 0; i < NUM_INPUTS; i++)
        before[i] = print_of(inputs[i]);
    int status = shim_target()->ops->forward(instance, args, space, stream, error);
    for (int i = 0; i < NUM_INPUTS; i++)
        if (before[i] != print_of(inputs[i]) && !(forward_writes_cache && (i == 3 || i == 4)))
            check_fail(current, "forward changed its input %s", names[i]);
    if (weights != weights_print(args)) check_fail(current, "forward changed the prepared weights");
    return status;
}
/* Whole rows of the table, and the host's lists. */
static uint64_t print_batch(const attn_batch_t *b) {
    const size_t n = (size_t)b->num_reqs;
    uint64_t h = attn_fingerprint64(0, b, sizeof *b);
    h = attn_fingerprint64(h, b->query_start_loc_host, (n + 1) * sizeof *b->query_start_loc_host);
    h = attn_fingerprint64(h, b->seq_lens_host, n * sizeof *b->seq_lens_host);
    if (b->block_table_host != NULL)
        h = attn_fingerprint64(h, b->block_table_host,
                               n * (size_t)b->block_table_host_stride * sizeof *b->block_table_host);
    const DLTensor *tensors[] = {b->query_start_loc, b->seq_lens,         b->block_table,
                                 b->causal,          b->mm_prefix_ranges, b->rswa_prefix_lens};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        h = h * 31 + print_of(tensors[i]);
    return h;
}
static int unchanged_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    const uint64_t before = print_batch(batch);
    const int status = shim_target()->ops->build_metadata(instance, batch, space, stream, error);
    if (print_batch(batch) != before)
        check_fail(current, "build_metadata changed the batch or one of its lists");
    return status;
}
static int unchanged_prepare(attn_instance_t *instance, const attn_weights_t *args, void *stream,
                             attn_error_t *error) {
    uint64_t before = print_of(args->kv_b_proj);
    int status = shim_target()->ops->prepare_weights(instance, args, stream, error);
    if (before != print_of(args->kv_b_proj)) check_fail(current, "prepare_weights changed kv_b_proj");
    return status;
}
static const attn_backend_ops_t unchanged_ops = {.build_metadata = unchanged_build,
                                                 .update_kv_cache = unchanged_update,
                                                 .prepare_weights = unchanged_prepare,
                                                 .forward = unchanged_forward};

static void inputs_stay(check_t *c) {
    kit_case_t k;
    current = c;
    forward_writes_cache = c->can.forward_writes_cache != 0;
    if (!check_start(c, &k)) return;
    check_run(c, shim_make(c->backend, &unchanged_ops), &k, NULL);
    for (int n = 0; n < 6; n++) {
        check_random_case(c, &k, c->seed * 31337 + (uint64_t)n, 100);
        check_run(c, shim_make(c->backend, &unchanged_ops), &k, NULL);
    }
}

/* Compares the rows of the cache that no slot names with what they were. Latent ones have no heads
 * dimension. */
static void compare_rows(const DLTensor *t, const char *was, const char *now, const unsigned char *is_named,
                         int64_t bs) {
    const int token = t->ndim - 2, row = t->ndim - 1;
    int64_t element = t->dtype.bits / 8, heads = token == 2 ? t->shape[1] : 1;
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < bs; i++) {
                int64_t offset = (b * t->strides[0] + h * t->strides[1] + i * t->strides[token]) * element;
                if (is_named[b * bs + i]) continue;
                if (memcmp(now + offset, was + offset, (size_t)(t->shape[row] * element)) == 0) continue;
                check_fail(current,
                           "update_kv_cache wrote block %lld, token %lld, head %lld, which no slot names",
                           (long long)b, (long long)i, (long long)h);
                return;
            }
}

static int has_rows; /* the cache has an axis of tokens, before that of their content */
static int sparing_open(const attn_problem_t *problem, const attn_device_t *device,
                        const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                        attn_instance_t **instance, attn_error_t *error) {
    attn_kv_cache_shape_t s = {.struct_size = sizeof s};
    int status = shim_target()->ops->open(problem, device, options, num_options, host, instance, error);
    if (status == ATTN_OK) status = shim_target()->ops->kv_cache_shape(*instance, 0, &s, error);
    has_rows = s.ndim >= 3 && s.axes[s.ndim - 2] == ATTN_AXIS_TOKEN;
    return status;
}
static int sparing_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                          attn_error_t *error) {
    const DLTensor *t = args->kv_cache;
    if (!has_rows || t->ndim < 3 || t->ndim > 4 || t->strides[t->ndim - 1] != 1)
        return shim_target()->ops->update_kv_cache(instance, args, stream, error);
    const int64_t bs = t->shape[t->ndim - 2];
    unsigned char *is_named = calloc((size_t)(t->shape[0] * bs), 1);
    if (is_named == NULL) abort();
    char *was = image_of(t);
    int64_t *slots = image_of(args->slot_mapping);
    for (int64_t i = 0; i < args->slot_mapping->shape[0]; i++)
        if (slots[i] >= 0) is_named[slots[i]] = 1;
    int status = shim_target()->ops->update_kv_cache(instance, args, stream, error);
    char *now = image_of(t);
    compare_rows(t, was, now, is_named, bs);
    free(now);
    free(slots);
    free(was);
    free(is_named);
    return status;
}
/* No rows, and rows of which none has a slot. */
static int empty_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                        attn_error_t *error) {
    attn_kv_update_t a = *args;
    DLTensor slots = *args->slot_mapping;
    int64_t shape[1] = {0};
    int status;
    slots.shape = shape;
    a.slot_mapping = &slots;
    status = shim_target()->ops->update_kv_cache(instance, &a, stream, error);
    if (status != ATTN_OK) return status;
    const int64_t n = args->slot_mapping->shape[0];
    int64_t *none = malloc((size_t)(n + 1) * sizeof *none);
    if (none == NULL) abort();
    for (int64_t i = 0; i < n; i++)
        none[i] = i % 2 ? INT64_MIN : -1;
    shape[0] = n;
    slots.data = image_new(none, (size_t)(n + 1) * sizeof *none);
    slots.byte_offset = 0;
    status = shim_target()->ops->update_kv_cache(instance, &a, stream, error);
    free(none);
    return status == ATTN_OK ? sparing_update(instance, args, stream, error) : status;
}
static const attn_backend_ops_t empty_ops = {.open = sparing_open, .update_kv_cache = empty_update};
static const attn_backend_ops_t sparing_ops = {.open = sparing_open, .update_kv_cache = sparing_update};

static void slots_only(check_t *c) {
    kit_case_t k;
    current = c;
    if (!check_start(c, &k)) return;
    if (k.problem.block_size == 0) {
        check_skip(c, "no role with a cache");
        return;
    }
    check_run(c, shim_make(c->backend, &sparing_ops), &k, NULL);
    check_run(c, shim_make(c->backend, &empty_ops), &k, NULL);
}

/* ---------------------------------------------------------- profiling run */

static int profiled_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                            void *stream, attn_error_t *error) {
    const DLTensor *t = args->output;
    const int64_t element = t->dtype.bits / 8;
    char *was = image_of(t);
    int status = shim_target()->ops->forward(instance, args, NULL, stream, error);
    if (status != ATTN_OK) check_fail(current, "forward without metadata: %d", status);
    char *now = image_of(t);
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            for (int64_t j = 0; j < t->shape[2] * element; j++)
                if (now[(i * t->strides[0] + h * t->strides[1]) * element + j] != 0) {
                    check_fail(current, "the profiling run (space NULL) left output[%lld][%lld] other than 0",
                               (long long)i, (long long)h);
                    i = t->shape[0] - 1, h = t->shape[1] - 1, j = t->shape[2] * element - 1;
                }
    image_restore(t, was);
    free(now);
    free(was);
    return shim_target()->ops->forward(instance, args, space, stream, error);
}
static const attn_backend_ops_t profiled_ops = {.forward = profiled_forward};

static void profiling(check_t *c) {
    kit_case_t k;
    current = c;
    if (!check_start(c, &k)) return;
    check_run(c, shim_make(c->backend, &profiled_ops), &k, NULL);
}

void check_metadata_list(check_list_t *list, const check_t *c); /* check_metadata.c */

void check_memory_list(check_list_t *list, const check_t *c) {
    check_add(list, "memory", 1, canaries, 0, "nothing is written around the outputs and after the tokens");
    check_add(list, "memory", CHECK_RUNS_ON_CPU, guard_pages, 1,
              "buffers of exactly space_needed that end at a faulting page");
    check_add(list, "memory", CHECK_RUNS_ON_CPU, guard_pages, 0, "buffers that start at a faulting page");
    check_add(list, "memory", CHECK_RUNS_ON_CPU, guard_pages, 3,
              "buffers of exactly space_needed, and more OpenMP threads than at open");
    check_add(list, "memory", 1, other_buffers, 0, "larger buffers, no better aligned than asked");
    check_add(list, "memory", CHECK_RUNS_ON_CPU, allocations, 0,
              "no allocation in build_metadata, update_kv_cache, forward");
    check_add(list, "memory", 1, inputs_stay, 0, "inputs are not changed");
    check_add(list, "memory", 1, slots_only, 0, "update_kv_cache writes the rows of its slots only");
    check_add(list, "memory", 1, profiling, 0, "the profiling run gives zeros");
    check_metadata_list(list, c);
    check_read_only_list(list, c);
    check_calls_list(list, c);
}
