/* SPDX-License-Identifier: Apache-2.0 */
/* reference_setup.h: one small decoder problem set up by hand, for tests of single operations and of their
 * errors. */
#ifndef ATTN_TESTS_REFERENCE_SETUP_H
#define ATTN_TESTS_REFERENCE_SETUP_H

#include "kit/case/attn_case.h"

#include <attn/attn_plugin_util.h>

#include "tests/tap.h"

/* A dense tensor over memory of the test. */
typedef struct dense {
    DLTensor t;
    int64_t shape[4], strides[4];
} dense_t;

static void dense_set(dense_t *x, void *data, uint32_t dtype, int ndim, int64_t a, int64_t b, int64_t c,
                      int64_t d) {
    const int64_t shape[4] = {a, b, c, d};
    int64_t stride = 1;
    memset(x, 0, sizeof *x);
    for (int i = ndim - 1; i >= 0; i--) {
        x->shape[i] = shape[i];
        x->strides[i] = stride;
        stride *= shape[i];
    }
    x->t.data = data;
    x->t.device.device_type = kDLCPU;
    x->t.ndim = ndim;
    x->t.dtype = attn_dl_dtype(dtype);
    x->t.shape = x->shape;
    x->t.strides = x->strides;
}

static const attn_backend_t *load_reference(void) {
    char path[4096], why[256];
    const char *folder = getenv("ATTN_TEST_PLUGIN_DIR");
    snprintf(path, sizeof path, "%s/reference.so", folder != NULL ? folder : "plugins-built");
    const attn_backend_t *reference = kit_load(path, "REFERENCE", why, sizeof why);
    if (reference == NULL) bail_out("%s", why);
    return reference;
}

static const attn_device_t test_cpu = {.struct_size = sizeof(attn_device_t), .type = kDLCPU};

/* 2 heads over 1, D 4, pages of 2, 4 pages, float32. */
TAP_UNUSED static attn_problem_t small_problem(void) {
    attn_problem_t p = {.struct_size = sizeof p,
                        .role = ATTN_ROLE_DECODER,
                        .mask = ATTN_MASK_CAUSAL,
                        .dtype = ATTN_DTYPE_FLOAT32,
                        .num_heads = 2,
                        .num_kv_heads = 1,
                        .head_size = 4,
                        .block_size = 2,
                        .scale = 0.5,
                        .max_num_seqs = 4,
                        .max_num_batched_tokens = 8,
                        .max_model_len = 64};
    return p;
}

/* Everything that a call of the small problem needs: 2 requests, 1 and 2 new tokens, 3 and 4 tokens long. */
typedef struct small {
    attn_instance_t *instance;
    float query[8 * 2 * 4], key[8 * 4], value[8 * 4], output[8 * 2 * 4], lse[2 * 8], floats[64];
    unsigned char cache[4 * 2 * 64], v_cache[4 * 2 * 64];
    int64_t slots[8];
    int32_t start[3], seq[2], table[4], ints[16];
    _Alignas(64) unsigned char metadata[4096];
    _Alignas(64) unsigned char workspace[1 << 19];
    dense_t tq, tk, tv, to, tl, tc, tvc, ts, tt, tf, ti;
    attn_batch_t batch;
    attn_space_t space;
    attn_kv_update_t update;
    attn_forward_t forward;
    attn_error_t error;
} small_t;

TAP_UNUSED static void small_start(small_t *x, const attn_backend_t *b, const attn_problem_t *p) {
    memset(x, 0, sizeof *x);
    x->error.struct_size = sizeof x->error;
    if (b->ops->open(p, &test_cpu, NULL, 0, NULL, &x->instance, &x->error) != ATTN_OK)
        bail_out("open: %s", x->error.text);
    attn_space_needed_t needed = {.struct_size = sizeof needed};
    b->ops->space_needed(x->instance, &needed, &x->error);
    if (needed.metadata_bytes > sizeof x->metadata || needed.workspace_bytes > sizeof x->workspace)
        bail_out("the test's buffers are too small");
    for (int i = 0; i < 64; i++)
        x->query[i] = x->floats[i] = 0.25f * (float)(i % 7) - 0.5f;
    for (int i = 0; i < 32; i++)
        x->key[i] = 0.5f * (float)(i % 5) - 1, x->value[i] = (float)i;
    int32_t start[] = {0, 1, 3}, seq[] = {3, 4}, table[] = {2, 1, 3, 0};
    int64_t slots[] = {4, 5, 2, 6, 7, 0, 1, -1};
    memcpy(x->start, start, sizeof start);
    memcpy(x->seq, seq, sizeof seq);
    memcpy(x->table, table, sizeof table);
    memcpy(x->slots, slots, sizeof slots);
    dense_set(&x->tq, x->query, ATTN_DTYPE_FLOAT32, 3, 8, 2, 4, 0);
    dense_set(&x->tk, x->key, ATTN_DTYPE_FLOAT32, 3, 8, 1, 4, 0);
    dense_set(&x->tv, x->value, ATTN_DTYPE_FLOAT32, 3, 8, 1, 4, 0);
    dense_set(&x->to, x->output, ATTN_DTYPE_FLOAT32, 3, 8, 2, 4, 0);
    dense_set(&x->tl, x->lse, ATTN_DTYPE_FLOAT32, 2, 2, 8, 0, 0);
    dense_set(&x->tc, x->cache, ATTN_DTYPE_FLOAT32, 4, 4, 1, 2, 8);
    dense_set(&x->tvc, x->v_cache, ATTN_DTYPE_FLOAT32, 4, 4, 1, 2, 4);
    dense_set(&x->ts, x->slots, ATTN_DTYPE_INT64, 1, 8, 0, 0, 0);
    dense_set(&x->tt, x->table, ATTN_DTYPE_INT32, 2, 2, 2, 0, 0);
    dense_set(&x->tf, x->floats, ATTN_DTYPE_FLOAT32, 1, 2, 0, 0, 0);
    dense_set(&x->ti, x->ints, ATTN_DTYPE_INT32, 1, 2, 0, 0, 0);
    x->batch = (attn_batch_t){.struct_size = sizeof x->batch,
                              .num_reqs = 2,
                              .num_actual_tokens = 3,
                              .query_start_loc_host = x->start,
                              .seq_lens_host = x->seq,
                              .block_table = &x->tt.t};
    x->space = (attn_space_t){.struct_size = sizeof x->space,
                              .metadata = x->metadata,
                              .metadata_bytes = needed.metadata_bytes,
                              .workspace = x->workspace,
                              .workspace_bytes = needed.workspace_bytes};
    x->update = (attn_kv_update_t){.struct_size = sizeof x->update,
                                   .key = &x->tk.t,
                                   .value = &x->tv.t,
                                   .kv_cache = &x->tc.t,
                                   .slot_mapping = &x->ts.t};
    x->forward = (attn_forward_t){.struct_size = sizeof x->forward,
                                  .query = &x->tq.t,
                                  .key = &x->tk.t,
                                  .value = &x->tv.t,
                                  .kv_cache = &x->tc.t,
                                  .output = &x->to.t};
}

#endif
