/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_metadata.c: the rest of group memory: metadata lies in the caller's buffer and nowhere else. Several
 * sets live at once, a set may be built again in place or by an equal instance, and nothing of the call that
 * built it is kept.
 */
#include "../run/device_image.h"

#include <stdlib.h>

/* The first request of a batch as a batch of its own; the tensors are copied into t. */
attn_batch_t first_request(const attn_batch_t *batch, DLTensor t[8], int64_t shape[8][4]) {
    attn_batch_t b = *batch;
    const DLTensor **members[8] = {&b.query_start_loc,  &b.seq_lens,          &b.block_table,
                                   &b.causal,           &b.mm_prefix_ranges,  &b.rswa_prefix_lens,
                                   &b.encoder_seq_lens, &b.dcp_local_seq_lens};
    b.num_reqs = 1;
    b.num_actual_tokens = batch->query_start_loc_host[1];
    b.common_prefix_len = 0;
    for (int i = 0; i < 8; i++) {
        if (*members[i] == NULL) continue;
        t[i] = **members[i];
        for (int j = 0; j < t[i].ndim && j < 4; j++)
            shape[i][j] = t[i].shape[j];
        shape[i][0] = i == 0 ? 2 : 1;
        t[i].shape = shape[i];
        *members[i] = &t[i];
    }
    return b;
}

static attn_space_t other_space;

static int build_first(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    DLTensor t[8];
    int64_t shape[8][4];
    attn_batch_t b = first_request(batch, t, shape);
    return shim_target()->ops->build_metadata(instance, &b, space, stream, error);
}

/* Builds the batch, then another one into a second set. */
static int build_two(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                     void *stream, attn_error_t *error) {
    int status = shim_target()->ops->build_metadata(instance, batch, space, stream, error);
    other_space = *space;
    other_space.metadata = image_new(NULL, (size_t)space->metadata_bytes);
    other_space.workspace = image_new(NULL, (size_t)space->workspace_bytes);
    if (space->host_bytes > 0) other_space.host = malloc((size_t)space->host_bytes);
    return status == ATTN_OK ? build_first(instance, batch, &other_space, stream, error) : status;
}
static const attn_backend_ops_t two_sets_ops = {.build_metadata = build_two};

/* The same lengths with other masks, spans and prefixes, as the host's lists say them. */
static int build_altered(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    static uint8_t causal[KIT_MAX_REQS];
    static int32_t prefixes[KIT_MAX_REQS], spans[KIT_MAX_REQS * KIT_MAX_SPANS * 2];
    attn_batch_t b = *batch;
    for (int32_t r = 0; r < batch->num_reqs; r++) {
        causal[r] = batch->causal_host != NULL && !batch->causal_host[r];
        prefixes[r] = batch->rswa_prefix_lens_host != NULL && batch->rswa_prefix_lens_host[r] == 0;
    }
    if (b.causal_host != NULL) b.causal_host = causal, b.causal = NULL;
    if (b.rswa_prefix_lens_host != NULL) b.rswa_prefix_lens_host = prefixes, b.rswa_prefix_lens = NULL;
    if (b.mm_prefix_ranges_host != NULL) b.mm_prefix_ranges_host = spans, b.mm_prefix_ranges = NULL;
    if (b.causal == batch->causal && b.rswa_prefix_lens == batch->rswa_prefix_lens &&
        b.mm_prefix_ranges == batch->mm_prefix_ranges)
        return ATTN_OK;
    return shim_target()->ops->build_metadata(instance, &b, space, stream, error);
}

/* Builds others, then this one in the same place. */
static int build_again(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    int status = build_first(instance, batch, space, stream, error);
    if (status == ATTN_OK) status = build_altered(instance, batch, space, stream, error);
    if (status != ATTN_OK) return status;
    return shim_target()->ops->build_metadata(instance, batch, space, stream, error);
}
static const attn_backend_ops_t again_ops = {.build_metadata = build_again};

/* The metadata comes from a twin of the instance. */
static attn_instance_t *twin;
static int open_twins(const attn_problem_t *problem, const attn_device_t *device,
                      const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                      attn_instance_t **instance, attn_error_t *error) {
    int status = shim_target()->ops->open(problem, device, options, num_options, host, &twin, error);
    if (status != ATTN_OK) return status;
    return shim_target()->ops->open(problem, device, options, num_options, host, instance, error);
}
static void close_twins(attn_instance_t *instance) {
    shim_target()->ops->close(instance);
    shim_target()->ops->close(twin);
}
static int build_by_twin(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    (void)instance;
    return shim_target()->ops->build_metadata(twin, batch, space, stream, error);
}
static const attn_backend_ops_t twin_ops = {
    .open = open_twins, .close = close_twins, .build_metadata = build_by_twin};

/* The cache is a twin's: one layer writes what several read, or it came from another engine. */
static int update_by_twin(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                          attn_error_t *error) {
    (void)instance;
    return shim_target()->ops->update_kv_cache(twin, args, stream, error);
}
static const attn_backend_ops_t reader_ops = {
    .open = open_twins, .close = close_twins, .update_kv_cache = update_by_twin};

/* Everything that the call may only borrow is overwritten after it: host arrays, and the tensors'
 * descriptions. */
static const void *borrow(const void *p, size_t bytes, void **copies, size_t *sizes, int *count) {
    if (p == NULL || bytes == 0) return p;
    void *copy = malloc(bytes);
    if (copy == NULL) abort();
    memcpy(copy, p, bytes);
    copies[*count] = copy;
    sizes[(*count)++] = bytes;
    return copy;
}
static int build_and_forget(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                            void *stream, attn_error_t *error) {
    void *copies[32];
    size_t sizes[32], n = (size_t)batch->num_reqs;
    int count = 0;
    attn_batch_t b = *batch;
    b.query_start_loc_host = borrow(b.query_start_loc_host, (n + 1) * 4, copies, sizes, &count);
    b.seq_lens_host = borrow(b.seq_lens_host, n * 4, copies, sizes, &count);
    b.causal_host = borrow(b.causal_host, n, copies, sizes, &count);
    b.block_table_host =
        borrow(b.block_table_host, n * (size_t)b.block_table_host_stride * 4, copies, sizes, &count);
    b.mm_prefix_ranges_host =
        borrow(b.mm_prefix_ranges_host, n * (size_t)b.num_mm_ranges * 8, copies, sizes, &count);
    b.rswa_prefix_lens_host = borrow(b.rswa_prefix_lens_host, n * 4, copies, sizes, &count);
    const DLTensor **members[6] = {&b.query_start_loc, &b.seq_lens,         &b.block_table,
                                   &b.causal,          &b.mm_prefix_ranges, &b.rswa_prefix_lens};
    for (int i = 0; i < 6; i++)
        *members[i] = borrow(*members[i], sizeof(DLTensor), copies, sizes, &count);
    int status = shim_target()->ops->build_metadata(instance, &b, space, stream, error);
    memset(&b, 0xff, sizeof b);
    for (int i = 0; i < count; i++)
        memset(copies[i], 0x5a, sizes[i]); /* not freed: reading it is wrong, not fatal */
    return status;
}
static const attn_backend_ops_t forget_ops = {.build_metadata = build_and_forget};

/* The workspace belongs to every layer of the stream: another one may have used it in between. */
static int forward_after_others(attn_instance_t *instance, const attn_forward_t *args,
                                const attn_space_t *space, void *stream, attn_error_t *error) {
    if (space->workspace != NULL) {
        void *others = malloc((size_t)space->workspace_bytes + 1);
        if (others == NULL) abort();
        memset(others, 0xff, (size_t)space->workspace_bytes);
        image_write(space->workspace, others, (size_t)space->workspace_bytes);
        free(others);
    }
    return shim_target()->ops->forward(instance, args, space, stream, error);
}
static const attn_backend_ops_t others_ops = {.forward = forward_after_others};

/* The table is exchanged after the build, from one whose rows lie `gap` entries further apart, and as `twice`
 * says for that one once more before. */
static int build_from_other(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                            void *stream, int gap, int twice, attn_error_t *error) {
    attn_batch_t b = *batch;
    DLTensor t = *batch->block_table;
    int64_t strides[2] = {t.strides[0] + gap, 1};
    t.strides = strides;
    const size_t bytes = (size_t)(t.shape[0] * t.strides[0]) * 4;
    int32_t *zeros = calloc(1, bytes + 4);
    if (zeros == NULL) abort();
    t.data = image_new(zeros, bytes + 4);
    t.byte_offset = 0;
    b.block_table = &t;
    if (b.block_table_host != NULL) b.block_table_host = zeros, b.block_table_host_stride = t.strides[0];
    int status = shim_target()->ops->build_metadata(instance, &b, space, stream, error);
    if (status == ATTN_OK && twice)
        status = shim_target()->ops->update_block_table(instance, &b, space, stream, error);
    free(zeros);
    if (status != ATTN_OK) return status;
    return shim_target()->ops->update_block_table(instance, batch, space, stream, error);
}
static int build_then_table(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                            void *stream, attn_error_t *error) {
    return build_from_other(instance, batch, space, stream, 5, 0, error);
}
static int build_then_two_tables(attn_instance_t *instance, const attn_batch_t *batch,
                                 const attn_space_t *space, void *stream, attn_error_t *error) {
    return build_from_other(instance, batch, space, stream, 0, 1, error);
}
static const attn_backend_ops_t table_ops = {.build_metadata = build_then_table};
static const attn_backend_ops_t two_tables_ops = {.build_metadata = build_then_two_tables};

/* The step before had other pages in the same table, at the same address and with the same lengths. */
static attn_batch_t built;
static int build_and_know(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    built = *batch; /* the run has what it points to until its end */
    return shim_target()->ops->build_metadata(instance, batch, space, stream, error);
}
static int forward_of_two_steps(attn_instance_t *instance, const attn_forward_t *args,
                                const attn_space_t *space, void *stream, attn_error_t *error) {
    if (space == NULL || built.block_table == NULL)
        return shim_target()->ops->forward(instance, args, space, stream, error);
    attn_batch_t before = built;
    const size_t bytes = image_bytes(built.block_table);
    void *pages = image_of(built.block_table);
    int32_t *zeros = calloc(1, bytes + 4);
    if (zeros == NULL) abort();
    if (before.block_table_host != NULL)
        before.block_table_host = zeros, before.block_table_host_stride = built.block_table->shape[1];
    image_write(attn_data(built.block_table), zeros, bytes);
    int status = shim_target()->ops->build_metadata(instance, &before, space, stream, error);
    if (status == ATTN_OK) status = shim_target()->ops->forward(instance, args, space, stream, error);
    image_write(attn_data(built.block_table), pages, bytes);
    free(zeros), free(pages);
    if (status == ATTN_OK)
        status = shim_target()->ops->build_metadata(instance, &built, space, stream, error);
    return status != ATTN_OK ? status : shim_target()->ops->forward(instance, args, space, stream, error);
}
static const attn_backend_ops_t steps_ops = {.build_metadata = build_and_know,
                                             .forward = forward_of_two_steps};

static int has_device_lengths;

/* The step before had one key fewer in each request, in the same table and the same buffers. */
static int build_of_before(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    static int32_t fewer[KIT_MAX_REQS];
    built = *batch;
    if (batch->block_table == NULL || has_device_lengths || batch->common_prefix_len != 0)
        return shim_target()->ops->build_metadata(instance, batch, space, stream, error);
    attn_batch_t before = *batch;
    for (int32_t r = 0; r < batch->num_reqs; r++) {
        const int32_t len = batch->seq_lens_host[r],
                      query = batch->query_start_loc_host[r + 1] - batch->query_start_loc_host[r];
        fewer[r] = len > query ? len - 1 : len;
    }
    before.seq_lens_host = fewer;
    before.seq_lens = NULL; /* the same in the memory of the device */
    return shim_target()->ops->build_metadata(instance, &before, space, stream, error);
}
static int forward_of_longer(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                             void *stream, attn_error_t *error) {
    int status = ATTN_OK; /* selected keys may be the last ones, which it did not have */
    if (args->topk_indices == NULL || space == NULL)
        status = shim_target()->ops->forward(instance, args, space, stream, error);
    if (space == NULL || status != ATTN_OK) return status;
    status = shim_target()->ops->build_metadata(instance, &built, space, stream, error);
    return status != ATTN_OK ? status : shim_target()->ops->forward(instance, args, space, stream, error);
}
static const attn_backend_ops_t longer_ops = {.build_metadata = build_of_before,
                                              .forward = forward_of_longer};

/* The rows of an update are the caller's again when the call, or the stream, has passed. */
static const kit_memory_t *memory;
static const DLTensor *lend(const DLTensor *t, DLTensor *copy, size_t *bytes) {
    *copy = *t;
    *bytes = image_bytes(t);
    if (*bytes == 0) return t;
    void *image = image_of(t);
    copy->data = image_new(image, *bytes);
    copy->byte_offset = 0;
    free(image);
    return copy;
}
static int update_and_forget(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                             attn_error_t *error) {
    attn_kv_update_t a = *args;
    DLTensor t[3];
    size_t bytes[3];
    a.key = lend(a.key, &t[0], &bytes[0]);
    a.value = lend(a.value, &t[1], &bytes[1]);
    a.slot_mapping = lend(a.slot_mapping, &t[2], &bytes[2]);
    const int status = shim_target()->ops->update_kv_cache(instance, &a, stream, error);
    memory->sync(memory->ctx);
    for (int i = 0; i < 3; i++) {
        void *other = malloc(bytes[i] + 1);
        if (other == NULL) abort();
        memset(other, i == 2 ? 0xff : 0x3e, bytes[i]); /* slots of -1 */
        if (bytes[i] > 0) image_write(t[i].data, other, bytes[i]);
        free(other);
    }
    return status;
}
static const attn_backend_ops_t lent_ops = {.update_kv_cache = update_and_forget};

static const attn_backend_ops_t *const variants[] = {&two_sets_ops,   &again_ops, &twin_ops,  &forget_ops,
                                                     &others_ops,     &table_ops, &lent_ops,  &reader_ops,
                                                     &two_tables_ops, &steps_ops, &longer_ops};

static void run_variant(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    if ((c->arg == 5 || c->arg == 8) &&
        (c->backend->ops->update_block_table == NULL || k.problem.block_size == 0)) {
        check_skip(c, "no update_block_table");
        return;
    }
    memory = c->memory;
    if ((c->arg == 6 || c->arg == 7) &&
        (c->backend->ops->update_kv_cache == NULL || k.problem.block_size == 0)) {
        check_skip(c, "no update_kv_cache");
        return;
    }
    has_device_lengths = 0;
    check_run(c, shim_make(c->backend, variants[c->arg]), &k, NULL);
    if (attn_role_has_cache(k.problem.role)) { /* rows that a backend may cut into pieces of its keys */
        kit_case_add(&k, 1, 1000);
        kit_case_add(&k, 1, 700);
        check_run(c, shim_make(c->backend, variants[c->arg]), &k, NULL);
    }
    if (c->arg >= 1 && c->arg <= 3 && check_plain_case(c, &k)) { /* more requests than a small array has */
        k.problem.max_num_seqs = 300;
        for (int r = 0; r < 150; r++)
            kit_case_add(&k, 1, attn_role_has_cache(k.problem.role) ? 2 + r % 37 : 1);
        check_run(c, shim_make(c->backend, variants[c->arg]), &k, NULL);
    }
    for (int i = 0; i < CHECK_NUM_SAID && !c->report->is_failed; i++) {
        if (!check_said_case(c, &k, i)) continue;
        if (c->arg == 5 || c->arg == 8) k.flags |= KIT_BARE_BATCH;
        has_device_lengths = (k.problem.features & ATTN_F_DEVICE_LENGTHS) != 0;
        check_run(c, shim_make(c->backend, variants[c->arg]), &k, NULL);
    }
    if (c->role == 0 && (c->can.features & ATTN_F_NON_CAUSAL) && check_plain_case(c, &k) &&
        k.problem.role == ATTN_ROLE_DECODER) { /* where the length alone says which key is the last */
        has_device_lengths = 0;
        k.problem.mask = ATTN_MASK_FULL;
        check_run(c, shim_make(c->backend, variants[c->arg]), &k, NULL);
    }
    for (int n = 0; n < 4; n++) {
        check_random_case(c, &k, c->seed * 65537 + (uint64_t)n, 100);
        if (c->arg >= 5 && k.problem.block_size == 0) continue;
        has_device_lengths = (k.problem.features & ATTN_F_DEVICE_LENGTHS) != 0;
        if (k.num_reqs > 0) check_run(c, shim_make(c->backend, variants[c->arg]), &k, NULL);
    }
}

void check_metadata_list(check_list_t *list, const check_t *c);
void check_metadata_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "memory", 1, run_variant, 0, "two sets of metadata live beside each other");
    check_add(list, "memory", 1, run_variant, 1, "metadata is built again in place");
    check_add(list, "memory", 1, run_variant, 2, "metadata of an equal instance serves");
    check_add(list, "memory", 1, run_variant, 3, "nothing of the batch is kept but the data of its tensors");
    check_add(list, "memory", 1, run_variant, 4, "the workspace keeps nothing from build to forward");
    check_add(list, "memory", 1, run_variant, 5, "update_block_table exchanges the table");
    check_add(list, "memory", 1, run_variant, 6, "nothing of an update's rows is kept");
    check_add(list, "memory", 1, run_variant, 7, "a cache that an equal instance wrote is read");
    check_add(list, "memory", 1, run_variant, 8, "update_block_table exchanges the table again");
    check_add(list, "memory", 1, run_variant, 9, "a table whose content is another at the next step");
    check_add(list, "memory", 1, run_variant, 10,
              "requests that are longer at the next step, all in one place");
}
