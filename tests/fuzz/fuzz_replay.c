/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_replay.c: any bytes as a file of the record hook. What is accepted fits its own problem and lies
 * within the bytes. */
// SOURCES: tools/run/replay_file.c tools/tensor/safetensors*.c tools/base/tool.c tools/base/args.c core/*/*.c
#include <stdlib.h>
#include <string.h>

#include "run/replay_file.h"

#include <attn/attn.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_CALLS = 4 };

static volatile unsigned char sink;

static void check_list(const int32_t *list, int64_t count) {
    for (int64_t i = 0; list != NULL && i < count; i++)
        sink = (unsigned char)list[i];
}

static void check_tensor(const st_tensor_t *t, const uint8_t *data, size_t size) {
    if (t == NULL || t->bytes == 0) return;
    if (t->data < data || t->data + t->bytes > data + size) abort();
    sink = (unsigned char)(t->data[0] ^ t->data[t->bytes - 1]);
}

static void check_call(const replay_call_t *c, const uint8_t *data, size_t size) {
    attn_error_t error = {.struct_size = sizeof error};
    if (attn_problem_check(&c->problem, &error) != ATTN_OK) abort();
    if (c->num_reqs < 0 || c->num_tokens < 0 || (c->num_reqs > 0 && (c->starts == NULL || c->lens == NULL)))
        abort();
    check_list(c->starts, (int64_t)c->num_reqs + (c->starts != NULL));
    check_list(c->lens, c->num_reqs);
    check_list(c->rswa, c->num_reqs);
    check_list(c->table, c->num_reqs * c->table_columns);
    check_list(c->ranges, (int64_t)c->num_reqs * c->num_mm_ranges * 2);
    if (c->num_axes > REPLAY_MAX_DIMS || c->num_blocks < 0) abort();
    const st_tensor_t *const tensors[] = {c->query,   c->key,     c->value,   c->kv_cache,     c->v_cache,
                                          c->q_scale, c->k_scale, c->v_scale, c->output_scale, c->sinks,
                                          c->slopes,  c->qq_bias, c->output,  c->lse};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        check_tensor(tensors[i], data, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    st_file_t *file = NULL;
    attn_error_t err = {.struct_size = sizeof err};
    if (st_parse(data, size, "fuzz", &file, &err) != ATTN_OK) return 0;
    int count = replay_file_calls(file, "fuzz", &err);
    if (count < 0 && (err.code != count || !err.text[0])) abort();
    for (int i = 0; i < count && i < MAX_CALLS; i++) {
        replay_call_t call = {0};
        err.code = 0;
        err.text[0] = '\0';
        int code = replay_file_read(file, "fuzz", i, &call, &err);
        if (code != ATTN_OK && (code > 0 || err.code != code || !err.text[0])) abort();
        if (code == ATTN_OK) check_call(&call, data, size);
        replay_call_free(&call);
    }
    st_close(file);
    return 0;
}
