/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_read_only.c: the part of group memory about inputs that are written and put back: another stream
 * reads the same cache, another layer the same table. The tensors lie in pages that nobody may write while a
 * call runs, so that it is a crash.
 */
#include "../run/check_engine.h"
#include "../run/device_image.h"

#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 16 };
typedef struct lent {
    guarded_t tensors[MOST];
    int count;
} lent_t;
static lent_t of_build;
static int is_cache_written; /* by forward: its tensor is an output, too */

static const DLTensor *lend(lent_t *l, const DLTensor *t) {
    if (t == NULL || l->count == MOST) return t;
    guarded_t *g = &l->tensors[l->count];
    const DLTensor *copy = guard_tensor(g, t, 64, 0);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (copy == t) return t;
    l->count++;
    if (g->memory.mapped > 2 * page) mprotect(g->memory.base + page, g->memory.mapped - 2 * page, PROT_READ);
    return copy;
}
static void take_back(lent_t *l) {
    while (l->count > 0)
        guard_return(&l->tensors[--l->count], 0);
}

static int lent_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                      void *stream, attn_error_t *error) {
    attn_batch_t b = *batch;
    take_back(&of_build);
    b.query_start_loc = lend(&of_build, b.query_start_loc);
    b.seq_lens = lend(&of_build, b.seq_lens);
    b.block_table = lend(&of_build, b.block_table);
    b.causal = lend(&of_build, b.causal);
    b.mm_prefix_ranges = lend(&of_build, b.mm_prefix_ranges);
    b.rswa_prefix_lens = lend(&of_build, b.rswa_prefix_lens);
    return shim_target()->ops->build_metadata(instance, &b, space, stream, error);
}
static int lent_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                       attn_error_t *error) {
    attn_kv_update_t a = *args;
    lent_t l = {.count = 0};
    a.key = lend(&l, a.key);
    a.value = lend(&l, a.value);
    a.slot_mapping = lend(&l, a.slot_mapping);
    a.scales.k = lend(&l, a.scales.k);
    a.scales.v = lend(&l, a.scales.v);
    const int status = shim_target()->ops->update_kv_cache(instance, &a, stream, error);
    take_back(&l);
    return status;
}
static int lent_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                        void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    lent_t l = {.count = 0};
    a.query = lend(&l, a.query);
    a.key = lend(&l, a.key);
    a.value = lend(&l, a.value);
    if (!is_cache_written) a.kv_cache = lend(&l, a.kv_cache), a.v_cache = lend(&l, a.v_cache);
    a.sinks = lend(&l, a.sinks);
    a.alibi_slopes = lend(&l, a.alibi_slopes);
    a.scales.q = lend(&l, a.scales.q);
    a.scales.k = lend(&l, a.scales.k);
    a.scales.v = lend(&l, a.scales.v);
    const int status = shim_target()->ops->forward(instance, &a, space, stream, error);
    take_back(&l);
    return status;
}
static const attn_backend_ops_t lent_ops = {
    .build_metadata = lent_build, .update_kv_cache = lent_update, .forward = lent_forward};

static void only_read(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    is_cache_written = c->can.forward_writes_cache != 0;
    check_run(c, shim_make(c->backend, &lent_ops), &k, NULL);
    for (int n = 0; n < 12; n++) {
        check_random_case(c, &k, c->seed * 32771 + (uint64_t)n, 100);
        check_run(c, shim_make(c->backend, &lent_ops), &k, NULL);
    }
}

void check_read_only_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "memory", CHECK_RUNS_ON_CPU, only_read, 0, "inputs are not written and put back");
}
