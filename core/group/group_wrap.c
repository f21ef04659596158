/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group_wrap.c: layer families that a backend need not know. The core opens it with a plainer problem and
 * hands it rewritten batches: cross attention and static sink tokens on every device, chunked local attention
 * where the core can write the tables, that is on CPUs (semantics 2.11, 6.7, 6.8).
 */
#include "device/device.h"
#include "group/group.h"
#include "base/arith.h"
#include <attn/attn_plugin_util.h>

static int refuse(const char *param, const char *why, attn_error_t *error) {
    return attn_fail(error, ATTN_E_UNSUPPORTED, param, "%s: %s", param, why);
}

/* Chunks become requests of their own, with positions that begin anew. */
static int plan_chunks(const attn_problem_t *p, struct attni_wrap *w, attn_problem_t *inner,
                       attn_error_t *error) {
    const uint64_t positional =
        ATTN_F_MM_PREFIX | ATTN_F_RSWA | ATTN_F_QQ_BIAS | ATTN_F_DCP | ATTN_F_CAPTURE | ATTN_F_DEVICE_LENGTHS;
    if ((attn_problem_features(p) & positional) != 0)
        return refuse("chunk_size",
                      "this backend has no chunked local attention of its own, and splitting requests "
                      "excludes spans, R-SWA, qq_bias, DCP, capture and lengths on the device",
                      error);
    if (p->static_sink_len != 0)
        return refuse("chunk_size", "chunked local attention and static sink tokens exclude each other here",
                      error);
    w->chunk_size = p->chunk_size;
    int64_t reqs = p->max_num_seqs, tokens = p->max_num_batched_tokens;
    /* A request of q tokens makes at most 1 + cdiv(q - 1, C) pieces, and not more than q (one, if q is 0). */
    int64_t most = attni_min64(2 * reqs + tokens / p->chunk_size, reqs + tokens);
    if (most > INT32_MAX / 2)
        return attn_fail(error, ATTN_E_INVALID, "max_num_seqs",
                         "max_num_seqs %u with chunks of %u is too large", (unsigned)p->max_num_seqs,
                         (unsigned)p->chunk_size);
    w->max_virtual = (int32_t)most;
    w->max_columns = p->chunk_size / p->block_size;
    inner->chunk_size = 0;
    inner->max_num_seqs = (uint32_t)most;
    inner->max_model_len = p->chunk_size;
    inner->features &= ~ATTN_F_CASCADE;
    return ATTN_OK;
}

/* The sink tokens precede every request; everything that counts positions from the request's start would
 * shift. */
static int plan_sink(const attn_problem_t *p, struct attni_wrap *w, attn_problem_t *inner,
                     attn_error_t *error) {
    const uint64_t positional = ATTN_F_MM_PREFIX | ATTN_F_RSWA | ATTN_F_CHUNK_LOOKBACK | ATTN_F_DCP;
    if ((attn_problem_features(p) & positional) != 0 || p->chunk_size != 0)
        return refuse("static_sink_len",
                      "static sink tokens exclude chunks, chunk lookback, spans, R-SWA and DCP", error);
    if ((p->features & ATTN_F_CONTIGUOUS_KV) != 0)
        return refuse("static_sink_len",
                      "static sink tokens are read from the cache, so they exclude keys of the call "
                      "(contiguous_kv)",
                      error);
    if (p->max_model_len + p->static_sink_len > INT32_MAX)
        return refuse("static_sink_len", "max_model_len and static_sink_len together exceed a 32-bit length",
                      error);
    w->sink_len = p->static_sink_len;
    w->max_virtual = (int32_t)p->max_num_seqs;
    w->max_columns = attni_cdiv(p->max_model_len, p->block_size) + p->static_sink_len / p->block_size;
    inner->static_sink_len = 0;
    inner->features &= ~ATTN_F_STATIC_SINK;
    inner->max_model_len = p->max_model_len + p->static_sink_len;
    return ATTN_OK;
}

int attni_wrap_plan(const struct attni_backend *backend, const attn_device_t *device, const attn_problem_t *p,
                    struct attni_wrap *w, attn_problem_t *inner, attn_error_t *error) {
    int is_cpu = device->type == kDLCPU;
    uint64_t own = backend->capabilities.features;
    *w = (struct attni_wrap){.is_cross = p->role == ATTN_ROLE_ENCODER_DECODER};
    *inner = *p;
    if (p->chunk_size != 0 && (own & ATTN_F_CHUNKED_LOCAL) == 0) {
        if (is_cpu) return plan_chunks(p, w, inner, error);
        return refuse(
            "chunk_size",
            "this backend has no chunked local attention, and the core splits requests on CPUs only", error);
    }
    /* On a CPU the core writes the tables whether the backend knows the family or not. On a device that knows
     * it, the backend gets the engine's batch and the engine writes the sink tokens into their blocks. */
    w->is_device = p->static_sink_len != 0 && !is_cpu && (own & ATTN_F_STATIC_SINK) == 0;
    if (w->is_device && attn_device_kind(device->type) == NULL)
        return refuse("static_sink_len",
                      "this backend has no static sink tokens, and the core adds them only on devices whose "
                      "kind it knows (attn_device.h)",
                      error);
    return p->static_sink_len != 0 && (is_cpu || w->is_device) ? plan_sink(p, w, inner, error) : ATTN_OK;
}

/* ---------------------------------------------------------------- the room */

/* A tensor of a rewritten batch with the arrays that it points to. */
struct wrap_tensor {
    DLTensor t;
    int64_t shape[2], strides[2];
};

/* Head of the room; the arrays follow. */
struct wrap_room {
    struct wrap_tensor starts, lens, table;
};

enum { ROOM_ALIGNMENT = 64 };

/* What a device reads of a batch with sink tokens, in the room as it is there: sink slots, lengths, table. */
static uint64_t sink_slot_bytes(const struct attni_wrap *w) {
    return w->is_device ? 8 * (uint64_t)w->sink_len : 0;
}
static uint64_t sink_table_at(const struct attni_wrap *w) {
    return sink_slot_bytes(w) + 4 * ((uint64_t)w->max_virtual + 1);
}
uint64_t attni_wrap_device_bytes(const struct attni_wrap *w) {
    return w->is_device ? sink_table_at(w) + 4 * (uint64_t)w->max_virtual * (uint64_t)w->max_columns : 0;
}

uint64_t attni_wrap_bytes(const struct attni_wrap *w) {
    if (w->chunk_size == 0 && w->sink_len == 0) return 0;
    uint64_t reqs = (uint64_t)w->max_virtual, lists = w->chunk_size != 0 ? 4 : 1;
    /* starts and three lists of the virtual requests, or the lengths alone; then the table */
    return ROOM_ALIGNMENT + sizeof(struct wrap_room) + sink_slot_bytes(w) +
           4 * (lists * (reqs + 1) + reqs * (uint64_t)w->max_columns);
}

static const DLTensor *int32_list(struct wrap_tensor *w, int32_t *data, int64_t n) {
    w->shape[0] = n;
    w->strides[0] = 1;
    w->t = (DLTensor){.data = data,
                      .device = {kDLCPU, 0},
                      .ndim = 1,
                      .dtype = {kDLInt, 32, 1},
                      .shape = w->shape,
                      .strides = w->strides};
    return &w->t;
}

static const DLTensor *int32_table(struct wrap_tensor *w, int32_t *data, int64_t rows, int64_t columns) {
    int32_list(w, data, rows);
    w->shape[1] = columns;
    w->strides[0] = columns;
    w->strides[1] = 1;
    w->t.ndim = 2;
    return &w->t;
}

static void set_table(attn_batch_t *b, const DLTensor *table, const int32_t *data, int64_t columns) {
    b->block_table = table;
    b->block_table_host = data;
    b->block_table_host_stride = columns;
}

/* The table that can be read here: the host mirror or a CPU tensor. */
static const int32_t *readable_table(const attn_batch_t *b, int64_t *stride, int64_t *width) {
    *width = b->block_table->shape[1];
    *stride = b->block_table->strides[0];
    if (b->block_table_host == NULL) return (const int32_t *)attn_data(b->block_table);
    *width = attni_min64(*width, b->block_table_host_stride);
    *stride = b->block_table_host_stride;
    return b->block_table_host;
}

static int cut_batch(const attn_group_t *g, attn_batch_t *b, struct wrap_room *room, attn_error_t *error) {
    const struct attni_wrap *w = &g->wrap;
    int32_t *starts = (int32_t *)(room + 1), *lens = starts + w->max_virtual + 1,
            *origin = lens + w->max_virtual + 1, *first = origin + w->max_virtual + 1,
            *table = first + w->max_virtual + 1;
    int32_t count, chunk = (int32_t)w->chunk_size, bs = (int32_t)g->problem.block_size;
    int64_t stride, width, columns = w->max_columns;
    if (b->common_prefix_len > 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "common_prefix_len",
                         "common_prefix_len is %d; chunked local attention has no cascade",
                         (int)b->common_prefix_len);
    if ((b->flags & ATTN_BATCH_CAPTURE) != 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "flags",
                         "ATTN_BATCH_CAPTURE: requests that are split cannot be captured");
    int code = attn_plan_chunked_local_size(b->query_start_loc_host, b->seq_lens_host, b->num_reqs, chunk,
                                            &count, error);
    if (code == ATTN_OK)
        code = attn_plan_chunked_local(b->query_start_loc_host, b->seq_lens_host, b->num_reqs, chunk, bs,
                                       count, starts, lens, origin, first, error);
    if (code != ATTN_OK) return code;
    if (b->block_table != NULL) {
        const int32_t *ids = readable_table(b, &stride, &width);
        code = attn_plan_chunked_local_table(ids, stride, width, origin, first, count, (int32_t)columns,
                                             table, error);
        if (code != ATTN_OK) return code;
    }
    int32_t longest = 0;
    for (int32_t v = 0; v < count; v++)
        if (starts[v + 1] - starts[v] > longest) longest = starts[v + 1] - starts[v];
    b->num_reqs = count;
    b->max_query_len = longest;
    b->max_seq_len = chunk;
    b->query_start_loc_host = starts;
    b->seq_lens_host = lens;
    b->query_start_loc = int32_list(&room->starts, starts, count + 1);
    b->seq_lens = int32_list(&room->lens, lens, count);
    if (b->block_table != NULL)
        set_table(b, int32_table(&room->table, table, count, columns), table, columns);
    return ATTN_OK;
}

static int prepend_sink(const attn_group_t *g, attn_batch_t *b, struct wrap_room *room, attn_error_t *error) {
    const struct attni_wrap *w = &g->wrap;
    int32_t *lens = (int32_t *)(void *)((char *)(room + 1) + sink_slot_bytes(w)),
            *table = lens + w->max_virtual + 1, sink = (int32_t)w->sink_len;
    int64_t stride = 0, width = 0, columns = w->max_columns,
            sink_columns = w->sink_len / g->problem.block_size;
    const int32_t *ids = b->block_table != NULL ? readable_table(b, &stride, &width) : NULL;
    if (ids == NULL && b->num_reqs > 0)
        return attn_fail(error, ATTN_E_INVALID, "block_table",
                         "block_table is not given; sink tokens need one");
    if (w->is_device && b->block_table_host == NULL && b->num_reqs > 0)
        return attn_fail(error, ATTN_E_INVALID, "block_table_host",
                         "block_table_host is not given; before sink tokens it is needed on a device");
    /* The engine's table may be wider than any request needs; its surplus columns are not copied. */
    int64_t copied = attni_min64(width, columns - sink_columns);
    for (int32_t r = 0; r < b->num_reqs; r++) {
        int code = attn_plan_static_sink(&b->seq_lens_host[r], 1, ids + r * stride, copied, sink,
                                         (int32_t)g->problem.block_size, table + r * columns, columns,
                                         &lens[r], error);
        if (code != ATTN_OK) return code;
    }
    if (b->max_seq_len > 0) b->max_seq_len += sink;
    if (b->common_prefix_len > 0) b->common_prefix_len += sink;
    b->seq_lens_host = lens;
    b->seq_lens = int32_list(&room->lens, lens, b->num_reqs);
    set_table(b, int32_table(&room->table, table, b->num_reqs, columns), table, columns);
    return ATTN_OK;
}

/* The slots of the sink tokens, the rewritten lengths and the table, in one copy to their places behind the
 * backend's metadata. */
static int send_sink(const attn_group_t *g, struct wrap_room *room, const attn_space_t *space,
                     int32_t num_reqs, void *stream, attn_error_t *error) {
    const struct attni_wrap *w = &g->wrap;
    char *base = (char *)space->metadata + attni_wrap_device_offset(g);
    const uint64_t bytes = sink_table_at(w) + 4 * (uint64_t)num_reqs * (uint64_t)w->max_columns;
    memcpy(room + 1, g->sink_slots, (size_t)sink_slot_bytes(w));
    int code = attni_device_write(&g->device, base, room + 1, bytes, stream, error);
    room->lens.t.data = base + sink_slot_bytes(w);
    room->table.t.data = base + sink_table_at(w);
    room->lens.t.device = room->table.t.device = attni_device_of(g);
    return code;
}

/* Plugins read seq_lens alone, so the encoder's lengths take their place. The encoder tensor is already where
 * the device wants it: nothing has to be written. */
static int cross_batch(const attn_group_t *g, attn_batch_t *b, attn_error_t *error) {
    if (b->num_reqs > 0 && b->encoder_seq_lens == NULL && g->device.type != kDLCPU)
        return attn_fail(error, ATTN_E_INVALID, "encoder_seq_lens",
                         "encoder_seq_lens is not given; cross attention on a device needs the tensor");
    int64_t longest = 0;
    for (int32_t r = 0; r < b->num_reqs; r++)
        longest = attni_max64(longest, b->encoder_seq_lens_host[r]);
    b->max_seq_len = longest;
    b->seq_lens_host = b->encoder_seq_lens_host;
    b->seq_lens = b->encoder_seq_lens;
    b->encoder_seq_lens_host = NULL;
    b->encoder_seq_lens = NULL;
    return ATTN_OK;
}

int attni_wrap_batch(const attn_group_t *group, attn_batch_t *batch, void *room, const attn_space_t *space,
                     void *stream, attn_error_t *error) {
    struct wrap_room *r =
        (struct wrap_room *)(((uintptr_t)room + ROOM_ALIGNMENT - 1) / ROOM_ALIGNMENT * ROOM_ALIGNMENT);
    if (group->wrap.is_cross) return cross_batch(group, batch, error);
    if (group->wrap.chunk_size != 0) return cut_batch(group, batch, r, error);
    int code = group->wrap.sink_len != 0 ? prepend_sink(group, batch, r, error) : ATTN_OK;
    if (code == ATTN_OK && group->wrap.is_device)
        code = send_sink(group, r, space, batch->num_reqs, stream, error);
    return code;
}
