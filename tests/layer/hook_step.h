/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder step of one request over a small cache, for the tests of the hooks. */
#ifndef ATTN_TESTS_HOOK_STEP_H
#define ATTN_TESTS_HOOK_STEP_H

#include "layer_testing.h"

static attn_error_t error = {.struct_size = sizeof error};

enum { T = 4 };
static uint64_t step_features = ATTN_F_LSE; /* of the next open_step */

/* A decoder step of one request over an own cache. */
struct step {
    attn_group_t *g;
    attn_layer_t *layer;
    struct buffers buf;
    float q[6][2][8], k[6][1][8], v[6][1][8], out[6][2][8], lse[2][6], cache[32 * 4 * 16];
    int64_t slots[T];
    int32_t starts[2], lens[1], table[1][2], tensor_lens[1], tensor_starts[2];
    struct tensor tq, tk, tv, tout, tlse, tcache, tslots, ttable, tlens, tstarts;
    attn_batch_t b;
    attn_kv_update_t u;
    attn_forward_t f;
};

static void open_step(struct step *s, attn_context_t *context, const char *backend) {
    memset(s, 0, sizeof *s);
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.features = step_features;
    s->g = open_group(context, &p, backend);
    s->buf = alloc_buffers(s->g);
    fill(&s->q[0][0][0], 6 * 16, 1), fill(&s->k[0][0][0], 6 * 8, 2), fill(&s->v[0][0][0], 6 * 8, 3);
    s->starts[1] = s->lens[0] = s->tensor_lens[0] = s->tensor_starts[1] = T;
    s->table[0][0] = 3;
    for (int i = 0; i < T; i++)
        s->slots[i] = 12 + i;
    s->b = (attn_batch_t){.struct_size = sizeof s->b,
                          .num_reqs = 1,
                          .num_actual_tokens = T,
                          .query_start_loc_host = s->starts,
                          .seq_lens_host = s->lens};
    s->b.block_table = tensor(&s->ttable, s->table, ATTN_DTYPE_INT32, 2, 1, 2, 0, 0);
    s->b.seq_lens = tensor(&s->tlens, s->tensor_lens, ATTN_DTYPE_INT32, 1, 1, 0, 0, 0);
    s->b.query_start_loc = tensor(&s->tstarts, s->tensor_starts, ATTN_DTYPE_INT32, 1, 2, 0, 0, 0);
    s->u = (attn_kv_update_t){.struct_size = sizeof s->u,
                              .key = tensor(&s->tk, s->k, ATTN_DTYPE_FLOAT32, 3, 6, 1, 8, 0),
                              .value = tensor(&s->tv, s->v, ATTN_DTYPE_FLOAT32, 3, 6, 1, 8, 0),
                              .kv_cache = tensor(&s->tcache, s->cache, ATTN_DTYPE_FLOAT32, 4, 32, 1, 4, 16),
                              .slot_mapping = tensor(&s->tslots, s->slots, ATTN_DTYPE_INT64, 1, T, 0, 0, 0)};
    s->f = (attn_forward_t){.struct_size = sizeof s->f,
                            .query = tensor(&s->tq, s->q, ATTN_DTYPE_FLOAT32, 3, 6, 2, 8, 0),
                            .output = tensor(&s->tout, s->out, ATTN_DTYPE_FLOAT32, 3, 6, 2, 8, 0),
                            .lse = tensor(&s->tlse, s->lse, ATTN_DTYPE_FLOAT32, 2, 2, 6, 0, 0),
                            .kv_cache = &s->tcache.t};
    if (attn_layer_create(s->g, "l.0", NULL, &s->layer, &error) != ATTN_OK) bail_out("layer: %s", error.text);
}

static void close_step(struct step *s) {
    attn_layer_destroy(s->layer);
    attn_group_close(s->g);
    free(s->buf.memory);
}

static int build(struct step *s) {
    error.param[0] = error.text[0] = '\0';
    return attn_group_build_metadata(s->g, &s->b, &s->buf.space, NULL, &error);
}
static int update(struct step *s) {
    return attn_layer_update_kv_cache(s->layer, &s->u, NULL, &error);
}
static int forward(struct step *s) {
    error.param[0] = error.text[0] = '\0';
    return attn_layer_forward(s->layer, &s->f, &s->buf.space, NULL, &error);
}

#endif
