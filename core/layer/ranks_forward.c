/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_forward.c: one attention call of a group over ranks (semantics 8.4, 8.6).
 *
 *   1. gather the ranks' queries, and put the heads of each KV head together
 *   2. attend to this rank's keys with all of them, in float32 where the backend has it
 *   3. join: exchange results and LSE and merge one's own heads, or gather the LSE, weigh and sum
 *
 * Every message begins with a word that says whether its rank can go on: if one cannot, all return.
 */
#include "layer/ranks_forward.h"

#include <math.h>
#include <stdlib.h>

enum { WORD = sizeof(struct attni_word) };

static uint64_t round64(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* A tensor of up to six dimensions over memory of ours. */
struct view {
    DLTensor t;
    int64_t shape[6], strides[6];
};

static const DLTensor *view(struct view *v, const void *data, uint32_t dtype, int ndim, const int64_t *shape,
                            const int64_t *strides) {
    int64_t dense = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        v->shape[i] = shape[i];
        v->strides[i] = strides != NULL ? strides[i] : dense;
        dense *= shape[i];
    }
    v->t = (DLTensor){.data = (void *)(uintptr_t)data,
                      .device = {kDLCPU, 0},
                      .ndim = ndim,
                      .dtype = attn_dl_dtype(dtype),
                      .shape = v->shape,
                      .strides = v->strides};
    return &v->t;
}

/* One call: its sizes and the regions of the workspace. */
struct call {
    const struct attni_ranks *k;
    int64_t n, tokens, heads, kv, group, all_heads; /* group: query heads of a rank per KV head */
    char *send, *recv, *query, *partial;
    float *lse, *own_lse;
};

static struct call call_of(const attn_group_t *g, const attn_space_t *s, int64_t tokens) {
    const struct attni_ranks *k = g->ranks;
    char *at = (char *)s->workspace + k->workspace_at;
    struct call c = {.k = k, .n = k->world, .tokens = tokens, .heads = k->heads, .kv = k->kv_heads};
    c.group = c.heads / c.kv;
    c.all_heads = c.n * c.heads;
    c.send = at;
    c.recv = c.send + k->send_bytes;
    c.query = c.recv + k->recv_bytes;
    c.partial = c.query + k->query_bytes;
    c.lse = (float *)(void *)(c.partial + k->partial_bytes);
    c.own_lse = (float *)(void *)((char *)c.lse + k->lse_bytes);
    return c;
}

static int is_good(int code) {
    return code == ATTN_OK;
}

/* The rows of the call's tokens, in the order of the tensor's strides. */
static const DLTensor *rows_of(struct view *v, const DLTensor *t, int64_t tokens) {
    const int64_t shape[3] = {tokens, t->shape[1], t->shape[2]};
    view(v, attn_data(t), attn_dtype_of(t->dtype), 3, shape, t->strides);
    v->t.dtype = t->dtype;
    return &v->t;
}

/* 1. Heads of all ranks, those of one KV head together: [T, kv, n, group, D]. */
static int gather_queries(struct call *c, const attn_forward_t *a, uint32_t dtype, uint64_t layer, int code,
                          attn_error_t *error) {
    struct attni_word *word = (struct attni_word *)(void *)c->send;
    const int64_t d = c->k->query_size, own[3] = {c->tokens, c->heads, d};
    const uint64_t size = attn_dtype_size(dtype),
                   bytes = round64(WORD + (uint64_t)(c->tokens * c->heads * d) * size);
    struct view from, to;
    if (is_good(code)) {
        view(&to, c->send + WORD, dtype, 3, own, NULL);
        code = attn_rows_copy(rows_of(&from, a->query, c->tokens), NULL, &to.t, NULL, error);
    }
    attni_word_say(word, ATTNI_WORD_QUERY, code, error);
    word->tokens = (int32_t)c->tokens;
    word->starts = layer;
    attn_error_t comm_error = {.struct_size = sizeof comm_error};
    int sent = c->k->comm.all_gather(c->k->comm.ctx, c->send, c->recv, bytes, NULL, &comm_error);
    if (!is_good(sent))
        return is_good(code) ? attn_fail(error, sent, comm_error.param, "%s", comm_error.text) : code;
    code = attni_words_check(c->k, ATTNI_WORD_QUERY, c->recv, bytes, code, error);
    for (int32_t r = 0; r < c->n && is_good(code); r++) {
        const struct attni_word *w = (const struct attni_word *)(const void *)(c->recv + (uint64_t)r * bytes);
        if (w->starts != layer)
            code = attn_fail(
                error, ATTN_E_STATE, "layer",
                "rank %d runs another layer than rank %d; run the layers in one order on every rank", (int)r,
                (int)c->k->rank);
    }
    if (!is_good(code)) return code;
    const int64_t shape[5] = {c->n, c->tokens, c->kv, c->group, d},
                  in[5] = {(int64_t)(bytes / size), c->heads * d, c->group * d, d, 1},
                  out[5] = {c->group * d, c->all_heads * d, c->n * c->group * d, d, 1};
    view(&from, c->recv + WORD, dtype, 5, shape, in);
    view(&to, c->query, dtype, 5, shape, out);
    return attn_rows_copy(&from.t, NULL, &to.t, NULL, error);
}

/* 2. All heads over this rank's keys. */
static int attend(attn_layer_t *layer, struct call *c, const attn_forward_t *args, const attn_space_t *space,
                  void *stream, attn_error_t *error) {
    const attn_group_t *g = layer->group;
    const struct attni_ranks_meta *meta = attni_ranks_meta(g, space);
    const int64_t query[3] = {c->tokens, c->all_heads, c->k->query_size},
                  output[3] = {c->tokens, c->all_heads, c->k->value_size}, lse[2] = {c->all_heads, c->tokens};
    const uint64_t row = (uint64_t)(c->all_heads * c->k->value_size) * attn_dtype_size(c->k->partial);
    struct view q, o, l;
    attn_forward_t a = *args;
    attn_space_t s = *space;
    a.query = view(&q, c->query, g->problem.dtype, 3, query, NULL);
    a.output = view(&o, c->partial, c->k->partial, 3, output, NULL);
    a.lse = view(&l, c->lse, ATTN_DTYPE_FLOAT32, 2, lse, NULL);
    a.key = a.value = a.sinks = NULL;
    s.workspace_bytes = g->inner_needed.workspace_bytes;
    int code = g->stage.ops.forward(g->stage.instance, &a, &s, stream, error);
    for (int64_t t = 0; t < c->tokens && is_good(code); t++)
        if (meta->is_empty[t]) {
            memset(c->partial + (uint64_t)t * row, 0, row);
            for (int64_t h = 0; h < c->all_heads; h++)
                c->lse[h * c->tokens + t] = -INFINITY;
        }
    return code;
}

/* 3a. The results of each rank's heads go there, LSE behind the rows; what comes are states to merge. */
static int join_all_to_all(struct call *c, const attn_forward_t *a, int code, attn_error_t *error) {
    const struct attni_ranks *k = c->k;
    const int64_t v = k->value_size, t = c->tokens;
    const uint64_t size = attn_dtype_size(k->partial), rows = round64((uint64_t)(t * c->heads * v) * size),
                   bytes = round64(WORD + rows + 4 * (uint64_t)(c->heads * t));
    /* [rank][T][kv][group][V] and [rank][kv][group][T] */
    const int64_t shape[5] = {c->n, t, c->kv, c->group, v},
                  in[5] = {c->group * v, c->all_heads * v, c->n * c->group * v, v, 1},
                  out[5] = {(int64_t)(bytes / size), c->heads * v, c->group * v, v, 1};
    const int64_t lse_shape[4] = {c->n, c->kv, c->group, t},
                  lse_in[4] = {c->group * t, c->n * c->group * t, t, 1},
                  lse_out[4] = {(int64_t)(bytes / 4), c->group * t, t, 1};
    struct view from, to;
    if (is_good(code)) {
        view(&from, c->partial, k->partial, 5, shape, in);
        view(&to, c->send + WORD, k->partial, 5, shape, out);
        code = attn_rows_copy(&from.t, NULL, &to.t, NULL, error);
    }
    if (is_good(code)) {
        view(&from, c->lse, ATTN_DTYPE_FLOAT32, 4, lse_shape, lse_in);
        view(&to, c->send + WORD + rows, ATTN_DTYPE_FLOAT32, 4, lse_shape, lse_out);
        code = attn_rows_copy(&from.t, NULL, &to.t, NULL, error);
    }
    for (int32_t r = 0; r < c->n; r++)
        attni_word_say((struct attni_word *)(void *)(c->send + (uint64_t)r * bytes), ATTNI_WORD_RESULT, code,
                       error);
    attn_error_t comm_error = {.struct_size = sizeof comm_error};
    int sent = k->comm.all_to_all(k->comm.ctx, c->send, c->recv, bytes, NULL, &comm_error);
    if (!is_good(sent))
        return is_good(code) ? attn_fail(error, sent, comm_error.param, "%s", comm_error.text) : code;
    code = attni_words_check(k, ATTNI_WORD_RESULT, c->recv, bytes, code, error);
    if (!is_good(code)) return code;
    for (int32_t r = 0; r < c->n; r++) {
        struct attni_ranks_state *s = &k->states[r];
        char *at = c->recv + (uint64_t)r * bytes + WORD;
        const int64_t os[3] = {t, c->heads, v}, ls[2] = {c->heads, t};
        struct view o, l;
        view(&o, at, k->partial, 3, os, NULL);
        view(&l, at + rows, ATTN_DTYPE_FLOAT32, 2, ls, NULL);
        memcpy(s->output_shape, o.shape, sizeof s->output_shape);
        memcpy(s->output_strides, o.strides, sizeof s->output_strides);
        memcpy(s->lse_shape, l.shape, sizeof s->lse_shape);
        memcpy(s->lse_strides, l.strides, sizeof s->lse_strides);
        s->output = o.t, s->lse = l.t;
        s->output.shape = s->output_shape, s->output.strides = s->output_strides;
        s->lse.shape = s->lse_shape, s->lse.strides = s->lse_strides;
        k->merged[r] = (attn_state_t){&s->output, &s->lse};
    }
    return attn_merge_states(k->merged, k->world, t, a->sinks, a->output, a->lse, NULL, error);
}

/* 3b. All LSE come together, each rank weighs its results, and the sum of each rank's heads goes there. */
static int join_reduce_scatter(struct call *c, const attn_forward_t *a, int code, attn_error_t *error) {
    const struct attni_ranks *k = c->k;
    const int64_t v = k->value_size, t = c->tokens;
    const uint64_t bytes = round64(WORD + 4 * (uint64_t)(c->all_heads * t));
    const int64_t all[3] = {t, c->all_heads, v}, all_lse[2] = {c->all_heads, t};
    struct view partial, total, from, to;
    attni_word_say((struct attni_word *)(void *)c->send, ATTNI_WORD_RESULT, code, error);
    if (is_good(code)) memcpy(c->send + WORD, c->lse, 4 * (size_t)(c->all_heads * t));
    attn_error_t comm_error = {.struct_size = sizeof comm_error};
    int sent = k->comm.all_gather(k->comm.ctx, c->send, c->recv, bytes, NULL, &comm_error);
    if (!is_good(sent))
        return is_good(code) ? attn_fail(error, sent, comm_error.param, "%s", comm_error.text) : code;
    code = attni_words_check(k, ATTNI_WORD_RESULT, c->recv, bytes, code, error);
    if (!is_good(code)) return code;
    for (int32_t r = 0; r < c->n; r++) {
        struct attni_ranks_state *s = &k->states[r];
        struct view l;
        view(&l, c->recv + (uint64_t)r * bytes + WORD, ATTN_DTYPE_FLOAT32, 2, all_lse, NULL);
        memcpy(s->lse_shape, l.shape, sizeof s->lse_shape);
        memcpy(s->lse_strides, l.strides, sizeof s->lse_strides);
        s->lse = l.t;
        s->lse.shape = s->lse_shape, s->lse.strides = s->lse_strides;
        k->lses[r] = &s->lse;
    }
    view(&partial, c->partial, k->partial, 3, all, NULL);
    view(&total, c->own_lse, ATTN_DTYPE_FLOAT32, 2, all_lse, NULL);
    code =
        attn_merge_weigh(&partial.t, k->lses, k->world, k->rank, t, NULL, &partial.t, &total.t, NULL, error);
    const int64_t shape[5] = {c->n, t, c->kv, c->group, v},
                  in[5] = {c->group * v, c->all_heads * v, c->n * c->group * v, v, 1};
    if (is_good(code)) {
        view(&from, c->partial, k->partial, 5, shape, in);
        view(&to, c->send, k->partial, 5, shape, NULL);
        code = attn_rows_copy(&from.t, NULL, &to.t, NULL, error);
    }
    if (is_good(code))
        code = k->comm.reduce_scatter(k->comm.ctx, c->send, c->recv, (uint64_t)(t * c->heads * v), k->partial,
                                      NULL, error);
    const int64_t own_lse[3] = {c->kv, c->group, t}, lse_in[3] = {c->n * c->group * t, t, 1};
    if (is_good(code)) { /* the total of the rank's own heads, over the gathered LSE, which are done with */
        view(&from, c->own_lse + k->rank * c->group * t, ATTN_DTYPE_FLOAT32, 3, own_lse, lse_in);
        view(&to, c->lse, ATTN_DTYPE_FLOAT32, 3, own_lse, NULL);
        code = attn_rows_copy(&from.t, NULL, &to.t, NULL, error);
    }
    if (!is_good(code)) return code;
    const int64_t own[3] = {t, c->heads, v}, lse[2] = {c->heads, t};
    view(&partial, c->recv, k->partial, 3, own, NULL);
    view(&total, c->lse, ATTN_DTYPE_FLOAT32, 2, lse, NULL);
    /* sinks and the output's type */
    return attn_merge_states(&(attn_state_t){&partial.t, &total.t}, 1, t, a->sinks, a->output, a->lse, NULL,
                             error);
}

int attni_ranks_forward(attn_layer_t *layer, const attn_forward_t *args, const attn_space_t *space, int code,
                        void *stream, attn_error_t *error) {
    const attn_group_t *g = layer->group;
    const struct attni_ranks *k = g->ranks;
    attn_error_t own = {.struct_size = sizeof own};
    if (error == NULL) error = &own;
    /* Without room nothing can be sent: the others end by the communicator's limit. */
    if (space->workspace == NULL || space->workspace_bytes < g->needed.workspace_bytes || !k->is_joined)
        return code;
    const int64_t tokens = is_good(code) ? attni_ranks_meta(g, space)->tokens : g->built_tokens;
    if (tokens == 0) return code;
    struct call c = call_of(g, space, tokens);
    const uint64_t name = attn_fingerprint64(0, layer->name, strlen(layer->name));
    code = gather_queries(&c, args, g->problem.dtype, name, code, error);
    if (!is_good(code)) return code;
    code = attend(layer, &c, args, space, stream, error);
    return (k->join == ATTN_JOIN_REDUCE_SCATTER ? join_reduce_scatter : join_all_to_all)(&c, args, code,
                                                                                         error);
}

int attni_ranks_weights(attn_layer_t *layer, const attn_weights_t *weights, int code, void *stream,
                        attn_error_t *error) {
    const attn_group_t *g = layer->group;
    struct attni_ranks *k = g->ranks;
    const attn_problem_t *p = &g->problem;
    const DLTensor *proj = weights->kv_b_proj;
    attn_error_t own = {.struct_size = sizeof own};
    if (error == NULL) error = &own;
    if (!k->is_joined)
        return attn_fail(
            error, ATTN_E_STATE, "group",
            "the group has dcp_world_size %d and no communicator; call attn_group_set_comm first",
            (int)k->world);
    const int64_t shape[2] = {(int64_t)p->num_heads * (p->qk_nope_head_dim + p->v_head_dim), p->kv_lora_rank};
    if (is_good(code) && (attn_dtype_of(proj->dtype) != p->dtype || weights->kv_b_proj_scale != NULL))
        code = attn_fail(
            error, ATTN_E_UNSUPPORTED, "kv_b_proj",
            "kv_b_proj is %s%s; over ranks the projections of all are gathered in the model's dtype %s, "
            "without a scale",
            attn_dtype_name(attn_dtype_of(proj->dtype)),
            weights->kv_b_proj_scale != NULL ? " with a scale" : "", attn_dtype_name(p->dtype));
    const uint64_t size = attn_dtype_size(p->dtype), rows = (uint64_t)(shape[0] * shape[1]) * size,
                   bytes = round64(WORD + rows);
    char *room = malloc(bytes * (uint64_t)(k->world + 1) + rows * (uint64_t)k->world);
    if (room == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the ranks' projections");
    char *recv = room + bytes, *joined = recv + bytes * (uint64_t)k->world;
    struct view from, to;
    if (is_good(code)) {
        view(&from, attn_data(proj), p->dtype, 2, shape, proj->strides);
        view(&to, room + WORD, p->dtype, 2, shape, NULL);
        code = attn_rows_copy(&from.t, NULL, &to.t, NULL, error);
    }
    attni_word_say((struct attni_word *)(void *)room, ATTNI_WORD_WEIGHTS, code, error);
    attn_error_t comm_error = {.struct_size = sizeof comm_error};
    int sent = k->comm.all_gather(k->comm.ctx, room, recv, bytes, NULL, &comm_error);
    if (!is_good(sent) && is_good(code))
        code = attn_fail(error, sent, comm_error.param, "%s", comm_error.text);
    if (is_good(sent)) code = attni_words_check(k, ATTNI_WORD_WEIGHTS, recv, bytes, code, error);
    if (is_good(code)) {
        const int64_t all[2] = {k->world * shape[0], shape[1]};
        attn_weights_t w = *weights;
        for (int32_t r = 0; r < k->world; r++)
            memcpy(joined + (uint64_t)r * rows, recv + (uint64_t)r * bytes + WORD, rows);
        w.kv_b_proj = view(&from, joined, p->dtype, 2, all, NULL);
        code = g->stage.ops.prepare_weights(g->stage.instance, &w, stream, error);
    }
    free(room);
    return code;
}
