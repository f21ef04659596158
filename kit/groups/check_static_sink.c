/* SPDX-License-Identifier: Apache-2.0 */
/* check_static_sink.c: the part of group numerics about static sink tokens (semantics 2.11). A backend that
 * lists them gets the engine's batch and puts pages 1 .. n before every request by itself; the oracle sees
 * the same keys as a prefix that all requests share. */
#include "../run/check_engine.h"

static check_t *current;
static int32_t sink_len, page_size;

static int open_with_sink(const attn_problem_t *problem, const attn_device_t *device,
                          const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                          attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p = *problem;
    p.static_sink_len = (uint32_t)sink_len;
    p.features |= ATTN_F_STATIC_SINK;
    return shim_target()->ops->open(&p, device, options, num_options, host, instance, error);
}

/* The batch as an engine has it: lengths and block table without the sink. */
static int build_without_sink(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                              void *stream, attn_error_t *error) {
    int32_t lens[KIT_MAX_REQS];
    const int32_t pages = sink_len / page_size;
    attn_batch_t b = *batch;
    DLTensor table = *batch->block_table, device_lens = *batch->seq_lens;
    int64_t shape[2] = {table.shape[0], table.shape[1] - pages};
    for (int32_t r = 0; r < b.num_reqs; r++)
        lens[r] = batch->seq_lens_host[r] - sink_len;
    const kit_memory_t *m = current->memory;
    size_t bytes = (size_t)b.num_reqs * sizeof *lens;
    device_lens.data = m->alloc(m->ctx, bytes, 64); /* metadata may refer to it until the process ends */
    device_lens.byte_offset = 0;
    if (device_lens.data == NULL || m->to_device(m->ctx, device_lens.data, lens, bytes) != 0)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for lengths");
    table.shape = shape;
    table.byte_offset += (uint64_t)pages * sizeof(int32_t);
    b.block_table = &table;
    b.block_table_host += pages;
    b.seq_lens_host = lens;
    b.seq_lens = &device_lens;
    return shim_target()->ops->build_metadata(instance, &b, space, stream, error);
}

static const attn_backend_ops_t sink_ops = {.open = open_with_sink, .build_metadata = build_without_sink};

/* Gives the shared prefix of all requests the pages 1 .. n; whoever had them gets the prefix's. */
static void place_sink(const kit_case_t *k, kit_inputs_t *in) {
    int64_t entries = k->num_reqs * in->table_width;
    for (int32_t page = 1; page <= sink_len / page_size; page++) {
        const int32_t old = in->block_table[page - 1];
        for (int64_t i = 0; i < entries; i++)
            if (in->block_table[i] == old)
                in->block_table[i] = page;
            else if (in->block_table[i] == page)
                in->block_table[i] = old;
    }
}

static void run_with_sink(check_t *c, kit_case_t *k) {
    k->common_prefix_len = sink_len;
    kit_inputs_t *in = kit_inputs_make(k);
    k->common_prefix_len = 0; /* the keys are shared; that this could be a cascade is not said */
    if (in == NULL) {
        check_fail(c, "out of memory for a case");
        return;
    }
    place_sink(k, in);
    check_run(c, shim_make(c->backend, &sink_ops), k, in);
    kit_inputs_free(in);
}

static void static_sink(check_t *c) {
    kit_case_t k;
    if (!check_plain_case(c, &k) || k.problem.role != ATTN_ROLE_DECODER) {
        check_skip(c, "no decoder");
        return;
    }
    const attn_problem_t plain = k.problem;
    current = c;
    page_size = (int32_t)k.problem.block_size;
    for (int32_t pages = 1; pages <= 3; pages += 2) {
        sink_len = pages * page_size;
        k.num_reqs = 0;
        kit_case_add(&k, 1, sink_len + 1);
        kit_case_add(&k, 1, sink_len + 5 * page_size + 3);
        kit_case_add(&k, 40, sink_len + 40);
        kit_case_add(&k, 3, sink_len + page_size);
        for (int i = 0; i < 4; i++) {
            k.problem = plain;
            if (i == 1)
                k.problem.sliding_window = (uint32_t)page_size + 5; /* reaches into the sink, or does not */
            if (i == 2) k.problem.features |= ATTN_F_SINK;
            if (i == 3) k.problem.kv_cache_dtype = ATTN_KV_FP8_E4M3;
            run_with_sink(c, &k); /* what the table does not list is left out there */
        }
    }
}

void check_static_sink_list(check_list_t *list, const check_t *c) {
    if (c->can.features & ATTN_F_STATIC_SINK)
        check_add(list, "numerics", 1, static_sink, 0, "static sink tokens");
}
