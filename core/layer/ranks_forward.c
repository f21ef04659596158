/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_forward.c: one attention call of a group over ranks (semantics 8.4, 8.6).
 *
 *   1. gather the ranks' queries, and put the heads of each KV head together
 *   2. attend to this rank's keys with all of them, in float32 where the backend has it
 *   3. join: exchange results and LSE and merge one's own heads, or gather the LSE, weigh and sum
 *
 * On a CPU every message begins with a word that says whether its rank can go on: if one cannot, all
 * return. On a device nobody could look at it: a rank that cannot go on sends LSE that are not numbers,
 * which makes the others' results so, and says why before the next batch (ranks_agree.c).
 *
 * Where the ranks reach each other's memory, 1 and 3 are a kernel each: it stores the queries into the memory
 * of all, where attention reads them and leaves its results, which the other loads and merges.
 *
 * Where, besides, the batch is so large that the links take long, its tokens are cut into parts
 * (ranks_parts.c), and all but attention is put on a stream of the group's own: the queries of the parts one
 * after the other, and of each part its join once it has been attended to.
 */
#include "layer/ranks_forward.h"
#include "device/merge_kind.h"

#include <math.h>

enum { WORD = sizeof(struct attni_word) };

static uint64_t round64(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* A tensor of up to six dimensions over memory of ours. */
struct view {
    DLTensor t;
    int64_t shape[6], strides[6];
};

static const DLTensor *view_in(struct view *v, DLDevice device, const void *data, uint32_t dtype, int ndim,
                               const int64_t *shape, const int64_t *strides) {
    int64_t dense = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        v->shape[i] = shape[i];
        v->strides[i] = strides != NULL ? strides[i] : dense;
        dense *= shape[i];
    }
    v->t = (DLTensor){.data = (void *)(uintptr_t)data,
                      .device = device,
                      .ndim = ndim,
                      .dtype = attn_dl_dtype(dtype),
                      .shape = v->shape,
                      .strides = v->strides};
    return &v->t;
}

/* One call: its sizes and the regions of the workspace. */
struct call {
    const struct attni_ranks *k;
    int32_t parts, part; /* of the batch; `first` is the first token of part `part` */
    int64_t first, n, tokens, heads, kv, group, all_heads; /* group: query heads of a rank per KV head */
    int64_t columns;                                       /* of lse, whose last is -inf on a device */
    uint64_t word;                                         /* bytes before a message */
    DLDevice device;
    const attn_space_t *space;
    const attn_group_t *g;
    void *stream;
    int is_broken;                      /* the communicator failed */
    const attn_merge_table_t *by_peers; /* in the peers' memory, by these functions; NULL: by calls */
    char *send, *recv, *query, *partial;
    float *lse, *own_lse;
};

static const DLTensor *view(const struct call *c, struct view *v, const void *data, uint32_t dtype, int ndim,
                            const int64_t *shape, const int64_t *strides) {
    return view_in(v, c->device, data, dtype, ndim, shape, strides);
}
static int copy(const struct call *c, const struct view *from, const struct view *to, attn_error_t *error) {
    return attn_rows_copy(&from->t, NULL, &to->t, c->stream, error);
}

static struct call call_of(const attn_group_t *g, const attn_space_t *s, int64_t tokens, void *stream) {
    const struct attni_ranks *k = g->ranks;
    char *at = (char *)s->workspace + k->workspace_at;
    struct call c = {.k = k, .n = k->world, .tokens = tokens, .heads = k->heads, .kv = k->kv_heads};
    c.g = g, c.space = s;
    c.device = attni_device_of(g);
    c.stream = k->is_device ? stream : NULL;
    c.columns = attni_ranks_lse_columns(k, tokens);
    c.word = k->is_device ? 0 : WORD;
    c.group = c.heads / c.kv;
    c.all_heads = c.n * c.heads;
    c.send = at;
    c.recv = c.send + k->send_bytes;
    c.query = c.recv + k->recv_bytes;
    c.partial = c.query + k->query_bytes;
    c.lse = (float *)(void *)(c.partial + k->partial_bytes);
    c.own_lse = (float *)(void *)((char *)c.lse + k->lse_bytes);
    c.parts = attni_ranks_parts(k, tokens, g->built_flags);
    if (k->peer_tokens == 0) return c;
    at = k->peer_memory[k->rank];
    c.by_peers = attni_merge_kind(c.device.device_type);
    c.columns = k->peers.lse_columns;
    c.query = at + k->peers.query_at;
    c.partial = at + k->peers.output_at;
    c.lse = (float *)(void *)(at + k->peers.lse_at);
    return c;
}

static int is_good(int code) {
    return code == ATTN_OK;
}

/* The rows of the call's tokens, in the order of the tensor's strides. */
static const DLTensor *rows_of(struct view *v, const DLTensor *t, int64_t tokens) {
    const int64_t shape[3] = {tokens, t->shape[1], t->shape[2]};
    view_in(v, t->device, attn_data(t), attn_dtype_of(t->dtype), 3, shape, t->strides);
    v->t.dtype = t->dtype;
    return &v->t;
}

/* An exchange came back: the communicator's error, else this rank's own. */
static int after(struct call *c, int code, int sent, const attn_error_t *comm_error, attn_error_t *error) {
    if (is_good(sent)) return code;
    c->is_broken = 1;
    return is_good(code) ? attn_fail(error, sent, comm_error->param, "%s", comm_error->text) : code;
}

/* The received words say that all ranks go on. */
static int check_words(const struct call *c, uint32_t what, uint64_t bytes, int code, attn_error_t *error) {
    return c->k->is_device ? code : attni_words_check(c->k, what, c->recv, bytes, code, error);
}

/* Whether this rank fills what it sends: on a device always, with what makes results no numbers. */
static int fills(const struct call *c, int code) {
    return is_good(code) || c->k->is_device;
}

/* Whether the queries can be sent from where they are: no word before them, no gap in them or behind. */
static int is_message(const struct call *c, const DLTensor *query, uint64_t bytes) {
    const int64_t d = c->k->query_size;
    return c->k->is_device && query->strides[2] == 1 && query->strides[1] == d &&
           query->strides[0] == c->heads * d &&
           (uint64_t)(c->tokens * c->heads * d) * query->dtype.bits / 8 == bytes;
}

/* 1. Heads of all ranks, those of one KV head together: [T, kv, n, group, D]. */
static int gather_queries(struct call *c, const attn_forward_t *a, uint32_t dtype, uint64_t layer, int code,
                          attn_error_t *error) {
    const int64_t d = c->k->query_size, own[3] = {c->tokens, c->heads, d};
    const uint64_t size = attn_dtype_size(dtype),
                   bytes = round64(c->word + (uint64_t)(c->tokens * c->heads * d) * size);
    struct view from, to;
    const void *message = c->send;
    if (is_good(code) && is_message(c, a->query, bytes)) {
        message = attn_data(a->query);
    } else if (is_good(code)) {
        view(c, &to, c->send + c->word, dtype, 3, own, NULL);
        code = attn_rows_copy(rows_of(&from, a->query, c->tokens), NULL, &to.t, c->stream, error);
    }
    if (!c->k->is_device) {
        struct attni_word *word = (struct attni_word *)(void *)c->send;
        attni_word_say(word, ATTNI_WORD_QUERY, code, error);
        word->tokens = (int32_t)c->tokens;
        word->starts = layer;
    }
    attn_error_t comm_error = {.struct_size = sizeof comm_error};
    const int sent = c->k->comm.all_gather(c->k->comm.ctx, message, c->recv, bytes, c->stream, &comm_error);
    code = after(c, code, sent, &comm_error, error);
    if (!c->is_broken) code = check_words(c, ATTNI_WORD_QUERY, bytes, code, error);
    for (int32_t r = 0; r < c->n && is_good(code) && !c->k->is_device; r++) {
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
    view(c, &from, c->recv + c->word, dtype, 5, shape, in);
    view(c, &to, c->query, dtype, 5, shape, out);
    return copy(c, &from, &to, error);
}

/* 1 and 3 in the peers' memory. A rank that cannot go on stores no queries and takes no results, but none of
 * the others waits for it. */
static attn_peers_t peers_of(const struct call *c) {
    const struct attni_ranks *k = c->k;
    attn_peers_t p = k->peers;
    const uint64_t all = (uint64_t)(c->first * c->all_heads);
    p.first_token = (int32_t)c->first;
    p.part = c->parts - 1 - c->part; /* the last tokens are first */
    p.parts = c->parts;
    p.query_at += all * (uint64_t)k->query_size * attn_dtype_size(c->g->problem.dtype);
    p.output_at += all * (uint64_t)k->value_size * attn_dtype_size(k->partial);
    p.lse_at += 4 * (uint64_t)c->first;
    p.places_at += 8 * (uint64_t)c->first;
    return p;
}

static int query_by_peers(const struct call *c, const attn_forward_t *a, int code, attn_error_t *error) {
    const DLTensor *own = is_good(code) ? a->query : NULL;
    attn_error_t why = {.struct_size = sizeof why};
    const attn_peers_t peers = peers_of(c);
    const int put = c->by_peers->peers_query(&peers, own, c->tokens, c->stream, &why);
    return is_good(code) && !is_good(put) ? attn_fail(error, put, why.param, "%s", why.text) : code;
}

static int join_by_peers(const struct call *c, const attn_forward_t *a, int code, attn_error_t *error) {
    const int goes_on = is_good(code);
    attn_error_t why = {.struct_size = sizeof why};
    const attn_peers_t peers = peers_of(c);
    const int put =
        c->by_peers->peers_join(&peers, c->tokens, goes_on ? a->sinks : NULL, goes_on ? a->output : NULL,
                                goes_on ? a->lse : NULL, c->stream, &why);
    return goes_on && !is_good(put) ? attn_fail(error, put, why.param, "%s", why.text) : code;
}

/* What the kernels read and write without looking at its shape. */
static int check_rows(const struct call *c, const attn_forward_t *a, attn_error_t *error) {
    const char *name = a->query->shape[0] < c->tokens                   ? "query"
                       : a->output->shape[0] < c->tokens                ? "output"
                       : a->lse != NULL && a->lse->shape[1] < c->tokens ? "lse"
                                                                        : NULL;
    if (name == NULL) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, name, "%s has fewer rows than the batch has tokens, %lld", name,
                     (long long)c->tokens);
}

/* On a CPU: tokens of which this rank has no key. */
static void clear_empty(const struct call *c) {
    const struct attni_ranks_meta *meta = attni_ranks_meta(c->g, c->space);
    const uint64_t row = (uint64_t)(c->all_heads * c->k->value_size) * attn_dtype_size(c->k->partial);
    for (int64_t t = 0; t < c->tokens; t++)
        if (meta->is_empty[t]) {
            memset(c->partial + (uint64_t)t * row, 0, row);
            for (int64_t h = 0; h < c->all_heads; h++)
                c->lse[h * c->columns + t] = -INFINITY;
        }
}

/* 2. All heads over this rank's keys. */
static int attend(attn_layer_t *layer, struct call *c, const attn_forward_t *args, attn_error_t *error) {
    const attn_group_t *g = c->g;
    const int64_t query[3] = {c->tokens, c->all_heads, c->k->query_size},
                  output[3] = {c->tokens, c->all_heads, c->k->value_size}, lse[2] = {c->all_heads, c->tokens},
                  lse_strides[2] = {c->columns, 1};
    struct view q, o, l;
    attn_forward_t a = *args;
    attn_space_t s = attni_ranks_part_space(g, c->space, c->part);
    a.query = view(c, &q, c->query, g->problem.dtype, 3, query, NULL);
    a.output = view(c, &o, c->partial, c->k->partial, 3, output, NULL);
    a.lse = view(c, &l, c->lse + c->first, ATTN_DTYPE_FLOAT32, 2, lse, lse_strides);
    a.key = a.value = a.sinks = NULL;
    s.workspace_bytes = g->inner_needed.workspace_bytes;
    int code = layer->group->stage.ops.forward(attni_ranks_instance(g, c->parts), &a, &s, c->stream, error);
    if (is_good(code) && !c->k->is_device) clear_empty(c);
    return code;
}

/* The LSE of all heads to `to`, [T] first in `strides`, then `dims` more dimensions of heads: -inf for tokens
 * of which this rank has no key. */
static int send_lse(const struct call *c, int dims, const int64_t *heads, const int64_t *in, void *to,
                    const int64_t *strides, attn_error_t *error) {
    int64_t shape[5] = {c->tokens}, from_strides[5] = {1}, all = c->all_heads, none = 0;
    struct view from, target, rows, edge, value;
    for (int i = 0; i < dims; i++)
        shape[1 + i] = heads[i], from_strides[1 + i] = in[i];
    view(c, &target, to, ATTN_DTYPE_FLOAT32, 1 + dims, shape, strides);
    if (!c->k->is_device || !c->k->has_empty) {
        view(c, &from, c->lse, ATTN_DTYPE_FLOAT32, 1 + dims, shape, from_strides);
        return copy(c, &from, &target, error);
    }
    const struct attni_ranks_lists lists = attni_ranks_lists(c->g, c->space);
    const int64_t tokens = c->tokens;
    view(c, &value, lists.minus_infinity, ATTN_DTYPE_FLOAT32, 1, &all, &none);
    view(c, &edge, c->lse + c->columns - 1, ATTN_DTYPE_FLOAT32, 1, &all, &c->columns);
    int code = copy(c, &value, &edge, error);
    shape[0] = c->columns;
    view(c, &from, c->lse, ATTN_DTYPE_FLOAT32, 1 + dims, shape, from_strides);
    view(c, &rows, lists.lse_places, ATTN_DTYPE_INT64, 1, &tokens, NULL);
    return is_good(code) ? attn_rows_gather(&from.t, &rows.t, NULL, &target.t, c->stream, error) : code;
}

/* Keeps the shape and strides of v beside the tensor that points to them. */
static void keep(const struct view *v, DLTensor *t, int64_t *shape, int64_t *strides, size_t dims) {
    memcpy(shape, v->shape, dims * sizeof *shape);
    memcpy(strides, v->strides, dims * sizeof *strides);
    *t = v->t;
    t->shape = shape, t->strides = strides;
}

/* 3a. The results of each rank's heads go there, LSE behind the rows; what comes are states to merge. */
static int join_all_to_all(struct call *c, const attn_forward_t *a, int code, attn_error_t *error) {
    const struct attni_ranks *k = c->k;
    const int64_t v = k->value_size, t = c->tokens, lc = c->columns;
    const uint64_t size = attn_dtype_size(k->partial), rows = round64((uint64_t)(t * c->heads * v) * size),
                   bytes = round64(c->word + rows + 4 * (uint64_t)(c->heads * t));
    /* [rank][T][kv][group][V] and [T][rank][kv][group] */
    const int64_t shape[5] = {c->n, t, c->kv, c->group, v},
                  in[5] = {c->group * v, c->all_heads * v, c->n * c->group * v, v, 1},
                  out[5] = {(int64_t)(bytes / size), c->heads * v, c->group * v, v, 1};
    const int64_t heads[3] = {c->n, c->kv, c->group}, lse_in[3] = {c->group * lc, c->n * c->group * lc, lc},
                  lse_out[4] = {1, (int64_t)(bytes / 4), c->group * t, t};
    struct view from, to;
    if (is_good(code)) {
        view(c, &from, c->partial, k->partial, 5, shape, in);
        view(c, &to, c->send + c->word, k->partial, 5, shape, out);
        code = copy(c, &from, &to, error);
    }
    if (fills(c, code)) {
        const int lse_code = send_lse(c, 3, heads, lse_in, c->send + c->word + rows, lse_out, error);
        if (is_good(code)) code = lse_code;
    }
    for (int32_t r = 0; r < c->n && !k->is_device; r++)
        attni_word_say((struct attni_word *)(void *)(c->send + (uint64_t)r * bytes), ATTNI_WORD_RESULT, code,
                       error);
    attn_error_t comm_error = {.struct_size = sizeof comm_error};
    const int sent = k->comm.all_to_all(k->comm.ctx, c->send, c->recv, bytes, c->stream, &comm_error);
    code = after(c, code, sent, &comm_error, error);
    if (!c->is_broken) code = check_words(c, ATTNI_WORD_RESULT, bytes, code, error);
    if (!is_good(code)) return code;
    for (int32_t r = 0; r < c->n; r++) {
        struct attni_ranks_state *s = &k->states[r];
        char *at = c->recv + (uint64_t)r * bytes + c->word;
        const int64_t os[3] = {t, c->heads, v}, ls[2] = {c->heads, t};
        struct view o, l;
        view(c, &o, at, k->partial, 3, os, NULL);
        view(c, &l, at + rows, ATTN_DTYPE_FLOAT32, 2, ls, NULL);
        keep(&o, &s->output, s->output_shape, s->output_strides, 3);
        keep(&l, &s->lse, s->lse_shape, s->lse_strides, 2);
        k->merged[r] = (attn_state_t){&s->output, &s->lse};
    }
    return attn_merge_states(k->merged, k->world, t, a->sinks, a->output, a->lse, c->stream, error);
}

/* 3b. All LSE come together, each rank weighs its results, and the sum of each rank's heads goes there. */
static int join_reduce_scatter(struct call *c, const attn_forward_t *a, int code, attn_error_t *error) {
    const struct attni_ranks *k = c->k;
    const int64_t v = k->value_size, t = c->tokens;
    const uint64_t bytes = round64(c->word + 4 * (uint64_t)(c->all_heads * t));
    const int64_t all[3] = {t, c->all_heads, v}, all_lse[2] = {c->all_heads, t}, lse_out[2] = {1, t};
    struct view partial, total, from, to;
    if (!k->is_device) attni_word_say((struct attni_word *)(void *)c->send, ATTNI_WORD_RESULT, code, error);
    if (fills(c, code)) {
        const int lse_code = send_lse(c, 1, &c->all_heads, &c->columns, c->send + c->word, lse_out, error);
        if (is_good(code)) code = lse_code;
    }
    attn_error_t comm_error = {.struct_size = sizeof comm_error};
    int sent = k->comm.all_gather(k->comm.ctx, c->send, c->recv, bytes, c->stream, &comm_error);
    code = after(c, code, sent, &comm_error, error);
    if (c->is_broken) return code;
    code = check_words(c, ATTNI_WORD_RESULT, bytes, code, error);
    if (!fills(c, code)) return code;
    for (int32_t r = 0; r < c->n; r++) {
        struct attni_ranks_state *s = &k->states[r];
        struct view l;
        view(c, &l, c->recv + (uint64_t)r * bytes + c->word, ATTN_DTYPE_FLOAT32, 2, all_lse, NULL);
        keep(&l, &s->lse, s->lse_shape, s->lse_strides, 2);
        k->lses[r] = &s->lse;
    }
    view(c, &partial, c->partial, k->partial, 3, all, NULL);
    view(c, &total, c->own_lse, ATTN_DTYPE_FLOAT32, 2, all_lse, NULL);
    if (is_good(code))
        code = attn_merge_weigh(&partial.t, k->lses, k->world, k->rank, t, NULL, &partial.t, &total.t,
                                c->stream, error);
    const int64_t shape[5] = {c->n, t, c->kv, c->group, v},
                  in[5] = {c->group * v, c->all_heads * v, c->n * c->group * v, v, 1};
    if (is_good(code)) {
        view(c, &from, c->partial, k->partial, 5, shape, in);
        view(c, &to, c->send, k->partial, 5, shape, NULL);
        code = copy(c, &from, &to, error);
    }
    if (fills(c, code)) {
        sent = k->comm.reduce_scatter(k->comm.ctx, c->send, c->recv, (uint64_t)(t * c->heads * v), k->partial,
                                      c->stream, &comm_error);
        code = after(c, code, sent, &comm_error, error);
    }
    const int64_t own_lse[3] = {c->kv, c->group, t}, lse_in[3] = {c->n * c->group * t, t, 1};
    if (is_good(code)) { /* the total of the rank's own heads, over the gathered LSE, which are done with */
        view(c, &from, c->own_lse + k->rank * c->group * t, ATTN_DTYPE_FLOAT32, 3, own_lse, lse_in);
        view(c, &to, c->lse, ATTN_DTYPE_FLOAT32, 3, own_lse, NULL);
        code = copy(c, &from, &to, error);
    }
    if (!is_good(code)) return code;
    const int64_t own[3] = {t, c->heads, v}, lse[2] = {c->heads, t};
    view(c, &partial, c->recv, k->partial, 3, own, NULL);
    view(c, &total, c->lse, ATTN_DTYPE_FLOAT32, 2, lse, NULL);
    /* sinks and the output's type */
    return attn_merge_states(&(attn_state_t){&partial.t, &total.t}, 1, t, a->sinks, a->output, a->lse,
                             c->stream, error);
}

/* This rank makes its exchanges though it cannot go on: its LSE are not numbers, and before the next batch it
 * says why. */
static void poison(const struct call *c, int code, const attn_error_t *error) {
    struct attni_ranks *k = c->g->ranks;
    const size_t bytes = 4 * (size_t)(c->all_heads * c->columns);
    attni_word_say(&k->late, ATTNI_WORD_BATCH, code, error);
    k->kind->fill(k->device_id, c->lse, 0xff, bytes, c->stream, NULL);
}

/* ----------------------------------------------------------------------- parts */

/* A part's call, and the rows of the engine's tensors that are its own. */
struct part {
    struct call c;
    attn_forward_t args;
    DLTensor query, output, lse;
};

/* Tensor t from row `first` of dimension `dim` on; its shape is not looked at beyond that. */
static const DLTensor *rows_from(DLTensor *rows, const DLTensor *t, int dim, int64_t first) {
    if (t == NULL) return NULL;
    *rows = *t;
    rows->byte_offset += (uint64_t)(first * attn_byte_stride(t, dim));
    return rows;
}

static void make_part(struct part *p, const struct call *c, const attn_forward_t *a, int32_t i,
                      int is_whole) {
    const struct attni_ranks *k = c->k;
    const int64_t first = attni_ranks_part_begin(c->tokens, c->parts, i), all = first * c->all_heads;
    p->c = *c;
    p->c.part = i, p->c.first = first;
    p->c.tokens = attni_ranks_part_begin(c->tokens, c->parts, i + 1) - first;
    p->c.query += (uint64_t)(all * k->query_size) * attn_dtype_size(c->g->problem.dtype);
    p->c.partial += (uint64_t)(all * k->value_size) * attn_dtype_size(k->partial);
    p->args = *a;
    if (!is_whole) return; /* the arguments are not looked at */
    p->args.query = rows_from(&p->query, a->query, 0, first);
    p->args.output = rows_from(&p->output, a->output, 0, first);
    p->args.lse = rows_from(&p->lse, a->lse, 1, first);
}

/* What is put on `to` from here on runs after what `from` has. */
static int follow(const struct attni_ranks *k, void *from, void *to, attn_error_t *error) {
    const int code = k->kind->event_record(k->device_id, k->passed, from, error);
    return is_good(code) ? k->kind->stream_wait(k->device_id, to, k->passed, error) : code;
}

/* The last tokens first: they see the most keys, so their attention hides the most exchanges, and what is
 * left to exchange at the end is that of the first tokens. */
static int run_parts(attn_layer_t *layer, struct call *c, const attn_forward_t *args, int code,
                     attn_error_t *error) {
    const struct attni_ranks *k = c->k;
    const attn_device_kind_t *kind = k->kind;
    struct part list[ATTNI_RANKS_PARTS];
    const int is_whole = is_good(code);
    int on = follow(k, c->stream, k->side, error), is_said = 0;
    for (int32_t i = c->parts - 1; i >= 0 && is_good(on); i--) {
        struct call *beside = &list[i].c;
        make_part(&list[i], c, args, i, is_whole);
        beside->stream = k->side;
        code = query_by_peers(beside, &list[i].args, code, error);
        on = kind->event_record(k->device_id, k->gathered[i], k->side, error);
    }
    for (int32_t i = c->parts - 1; i >= 0 && is_good(on); i--) {
        struct call here = list[i].c;
        here.stream = c->stream;
        on = kind->stream_wait(k->device_id, c->stream, k->gathered[i], error);
        if (is_good(code) && is_good(on)) code = attend(layer, &here, &list[i].args, error);
        if (is_good(on)) on = follow(k, c->stream, k->side, error);
        if (!is_good(code) && !is_said) poison(&list[i].c, code, error), is_said = 1;
        if (is_good(on)) code = join_by_peers(&list[i].c, &list[i].args, code, error);
    }
    if (is_good(on)) on = follow(k, k->side, c->stream, error);
    return is_good(code) ? on : code;
}

int attni_ranks_forward(attn_layer_t *layer, const attn_forward_t *args, const attn_space_t *space, int code,
                        void *stream, attn_error_t *error) {
    const attn_group_t *g = layer->group;
    struct attni_ranks *k = g->ranks;
    attn_error_t own = {.struct_size = sizeof own};
    if (error == NULL) error = &own;
    /* Without room nothing can be sent: the others end by the communicator's limit. */
    if (space->workspace == NULL || space->workspace_bytes < g->needed.workspace_bytes || !k->is_joined)
        return code;
    const int64_t tokens =
        is_good(code) && !k->is_device ? attni_ranks_meta(g, space)->tokens : g->built_tokens;
    if (tokens == 0) return code;
    struct call c = call_of(g, space, tokens, stream);
    const uint64_t name = attn_fingerprint64(0, layer->name, strlen(layer->name));
    k->ran = attn_fingerprint64(k->ran, &name, sizeof name);
    if (c.by_peers != NULL && is_good(code)) code = check_rows(&c, args, error);
    if (c.parts > 1) return run_parts(layer, &c, args, code, error);
    code = c.by_peers != NULL ? query_by_peers(&c, args, code, error)
                              : gather_queries(&c, args, g->problem.dtype, name, code, error);
    if (!is_good(code) && (!k->is_device || c.is_broken)) return code;
    if (is_good(code)) code = attend(layer, &c, args, error);
    if (!is_good(code) && k->is_device) poison(&c, code, error);
    if (c.by_peers != NULL) return join_by_peers(&c, args, code, error);
    return (k->join == ATTN_JOIN_REDUCE_SCATTER ? join_reduce_scatter : join_all_to_all)(&c, args, code,
                                                                                         error);
}
