/* SPDX-License-Identifier: Apache-2.0 */
/* One attention call: tensors are checked and become kernel parameters; then at most two launches: decode and
 * prefill. No allocation, no waiting. */
#include "../output_scales.h"
#include "flash_instance.h"

/* Bytes are loaded by 8, but where TMA moves them by 16. */
static int alignment_of(const attn_instance_t *in, int dtype) {
    return dtype == FLASH_E4M3 && in->prefill.kind == FLASH_PREFILL_SM80 ? 8 : 16;
}

int flash_view_cache(const attn_instance_t *in, const DLTensor *kv, const DLTensor *v, gpu_cache_view *view,
                     attn_error_t *error) {
    const call_cache_t c = {.role = in->problem.role,
                            .storage = in->kv_dtype == FLASH_E4M3 ? (uint32_t)ATTN_DTYPE_FP8_E4M3
                                                                  : in->problem.dtype,
                            .kv_heads = in->kv_heads,
                            .block_size = in->page_size,
                            .head_size = in->d,
                            .head_size_v = in->dv,
                            .is_separate = in->is_separate};
    return gpu_view_cache(&c, alignment_of(in, in->kv_dtype), kv, v, view, error);
}

/* Keys of the call. With lengths of their own a captured call serves batches with more rows, so the tensors
 * say how many there are; of none, the query's address, which nobody reads, stands for theirs. */
static int read_keys(const attn_instance_t *in, const attn_forward_t *a, int64_t rows, flash_params *p,
                     attn_error_t *error) {
    const uint32_t dtype = in->problem.dtype;
    int status = gpu_check_key_rows(a->key, "key", dtype, in->kv_heads, in->d, rows, 16, error);
    if (status == ATTN_OK)
        status = gpu_check_key_rows(a->value, "value", dtype, in->kv_heads, in->dv, rows, 16, error);
    if (status != ATTN_OK) return status;
    p->k = attn_data(a->key), p->v = attn_data(a->value), p->kv_rows = rows;
    p->k_token = a->key->strides[0], p->k_head = a->key->strides[1];
    p->v_token = a->value->strides[0], p->v_head = a->value->strides[1];
    if ((in->features & ATTN_F_KEY_LENGTHS) == 0) return ATTN_OK;
    p->kv_rows = a->key->shape[0] < a->value->shape[0] ? a->key->shape[0] : a->value->shape[0];
    if (p->kv_rows > 0) return ATTN_OK;
    p->k = p->v = attn_data(a->query);
    p->k_head = in->d, p->k_token = (int64_t)in->kv_heads * in->d;
    p->v_head = in->dv, p->v_token = (int64_t)in->kv_heads * in->dv;
    return ATTN_OK;
}

static int read_tensors(const attn_instance_t *in, const attn_forward_t *a, const flash_host_header *h,
                        flash_params *p, attn_error_t *error) {
    const int64_t tokens = h->head.num_tokens;
    int stride = -1, q_stride = -1;
    const uint32_t dtype = in->problem.dtype,
                   query = in->q_dtype == FLASH_E4M3 ? (uint32_t)ATTN_DTYPE_FP8_E4M3 : dtype;
    const int heads = (int)in->problem.num_heads;
    int status =
        gpu_check_rows(a->query, "query", query, heads, in->d, tokens, alignment_of(in, in->q_dtype), error);
    if (status == ATTN_OK) status = flash_check_output(in, a, tokens, error);
    if (status == ATTN_OK)
        status = gpu_check_vector(a->sinks, "sinks", "sink", (in->features & ATTN_F_SINK) != 0, heads, error);
    if (status == ATTN_OK)
        status = gpu_check_vector(a->alibi_slopes, "alibi_slopes", "alibi",
                                  (in->features & ATTN_F_ALIBI) != 0, heads, error);
    if (status == ATTN_OK) status = gpu_check_scale(a->scales.k, "k_scale", in->kv_heads, &stride, error);
    if (status == ATTN_OK) status = gpu_check_scale(a->scales.v, "v_scale", in->kv_heads, &stride, error);
    if (status == ATTN_OK && in->q_dtype == FLASH_E4M3)
        status = gpu_check_scale(a->scales.q, "q_scale", in->kv_heads, &q_stride, error);
    if (status == ATTN_OK) status = gpu_check_lse(a->lse, heads, tokens, error);
    if (status == ATTN_OK && in->has_cache) {
        gpu_cache_view c;
        status = flash_view_cache(in, a->kv_cache, a->v_cache, &c, error);
        if (status == ATTN_OK) {
            p->k = c.k, p->v = c.v, p->num_pages = c.pages, p->page_size = in->page_size;
            p->k_page = c.k_page, p->k_token = c.k_token, p->k_head = c.k_head;
            p->v_page = c.v_page, p->v_token = c.v_token, p->v_head = c.v_head;
        }
    } else if (status == ATTN_OK) {
        status = read_keys(in, a, h->num_key_rows, p, error);
    }
    if (status != ATTN_OK) return status;
    p->q = attn_data(a->query), p->q_token = a->query->strides[0], p->q_head = a->query->strides[1];
    if (a->lse != NULL)
        p->lse = attn_data(a->lse), p->lse_head = a->lse->strides[0], p->lse_token = a->lse->strides[1];
    p->sinks = a->sinks ? attn_data(a->sinks) : NULL;
    p->alibi = a->alibi_slopes ? attn_data(a->alibi_slopes) : NULL;
    if (in->kv_dtype == FLASH_E4M3) {
        p->k_scale = a->scales.k ? attn_data(a->scales.k) : NULL;
        p->v_scale = a->scales.v ? attn_data(a->scales.v) : NULL;
        p->scale_stride = stride > 0;
    }
    if (in->q_dtype == FLASH_E4M3 && a->scales.q != NULL)
        p->q_scale = attn_data(a->scales.q), p->q_scale_stride = q_stride > 0;
    return ATTN_OK;
}

/* Tiles of a causal prompt differ in length by up to a hundred times, so CTAs draw them. The counter returns
 * to 0 within each launch (flash_launch.h), so the passes of a cascade share it. */
static int run_prefill(attn_instance_t *in, const flash_params *p, const flash_prefill_config *c,
                       int num_tiles, int ctas, char *meta, void *stream) {
    const flash_prefill_more more = {.ticket = (int32_t *)(void *)(meta + in->draws_at), .ctas = ctas};
    return flash_run_prefill_more(p, &more, &in->shape, c, num_tiles, &in->runtime, stream);
}

/* The same into the workspace: parts from `first` on, rows of Q from first_row on, num_rows of each, of so
 * many bytes a value; the sink is the merge's. */
static flash_params as_parts(const attn_instance_t *in, const flash_params *p, char *work, int first,
                             int first_row, int num_rows, int bytes) {
    flash_params x = *p;
    x.parts_are_f32 = bytes == 4;
    x.out_head = in->dv, x.out_token = (int64_t)p->num_q_heads * in->dv;
    x.lse_token = 1, x.lse_head = num_rows;
    x.out_piece = x.out_token * num_rows, x.lse_piece = (int64_t)p->num_q_heads * num_rows;
    /* as numbers: what lies before the first row is nobody's */
    x.out = (void *)((uintptr_t)work + in->part_rows_at +
                     (uintptr_t)((first * x.out_piece - first_row * x.out_token) * bytes));
    x.lse = (float *)((uintptr_t)work + in->part_rows_lse_at +
                      (uintptr_t)((first * x.lse_piece - first_row) * (int)sizeof(float)));
    x.sinks = NULL;
    return x;
}

/* The pass over the common prefix: all tokens as one request, its pieces into the workspace. */
static int launch_prefix(attn_instance_t *in, const flash_host_header *h, const flash_params *p, char *meta,
                         char *work, void *stream) {
    flash_params x = as_parts(in, p, work, 0, 0, h->head.num_tokens, 2);
    x.counts = (const flash_counts *)(void *)(meta + in->prefix_counts_at);
    x.tiles = (const flash_tile *)(void *)(meta + in->prefix_tiles_at);
    x.piece_keys = h->prefix.piece_keys, x.keys_per_tile = h->prefix.piece_keys;
    return run_prefill(in, &x, &in->prefill, h->prefix.num_tiles, 0, meta, stream);
}

static flash_merge_params merge_of(const attn_instance_t *in, const flash_params *p, char *work,
                                   int first_row, int num_rows) {
    return (flash_merge_params){.part = work + in->part_rows_at,
                                .part_lse = (const float *)(void *)(work + in->part_rows_lse_at),
                                .out = p->out,
                                .lse = p->lse,
                                .sinks = p->sinks,
                                .out_token = p->out_token,
                                .out_head = p->out_head,
                                .lse_token = p->lse_token,
                                .lse_head = p->lse_head,
                                .first_row = first_row,
                                .num_rows = num_rows,
                                .num_q_heads = p->num_q_heads,
                                .head_size_v = in->dv,
                                .dtype = in->out_dtype};
}

/* Tiles and, of those that are cut, the merge. */
static int launch_tiles(attn_instance_t *in, const flash_host_header *h, const flash_params *p, char *meta,
                        char *work, void *stream) {
    const flash_cut *cut = &h->cut;
    if (cut->piece_keys == 0) return run_prefill(in, p, &h->tiles, h->grid_tiles, h->beside, meta, stream);
    flash_params x = as_parts(in, p, work, 0, cut->first_row, cut->num_rows, 4);
    x.piece_keys = cut->piece_keys;
    return run_prefill(in, &x, &h->tiles, h->grid_tiles, h->beside, meta, stream);
}

static int merge_tiles(attn_instance_t *in, const flash_host_header *h, const flash_params *p, char *work,
                       void *stream) {
    flash_merge_params m = merge_of(in, p, work, h->cut.first_row, h->cut.num_rows);
    m.spans = (const flash_span *)(const void *)(p->tiles + h->grid_tiles);
    m.num_spans = h->num_spans, m.all.q_len = h->longest_span, m.parts_are_f32 = 1;
    return flash_merge(&m, stream);
}

static int launch(attn_instance_t *in, const flash_host_header *h, const flash_params *p, char *meta,
                  char *work, void *stream) {
    flash_decode_config dc = in->decode[h->row_tiles - 1][h->mode];
    dc.cluster = h->cluster;
    flash_params decode = *p;
    decode.beside = h->beside > 0;
    decode.listed_items = h->listed_items;
    int e = 0;
    if (h->grid_items > 0 && !decode.beside) e = flash_decode_of(in)(&decode, &dc, h->grid_items, stream);
    if (!e && h->grid_tiles > 0 && h->device_lens != NULL) /* the decode kernel reads them itself */
        e = flash_read_lengths(p, (flash_tile *)(void *)(meta + in->tiles_at), h->grid_tiles, stream);
    if (!e && h->grid_tiles > 0) e = launch_tiles(in, h, p, meta, work, stream);
    if (!e && decode.beside) e = flash_decode_of(in)(&decode, &dc, h->grid_items, stream);
    if (!e && h->grid_tiles > 0 && h->cut.piece_keys > 0) e = merge_tiles(in, h, p, work, stream);
    return e;
}

/* Prefix, suffix, merge (semantics 6.4). The sink belongs to neither pass but to the merge, where it counts
 * once. */
static int launch_cascade(attn_instance_t *in, const flash_host_header *h, const flash_params *p, char *meta,
                          char *work, void *stream) {
    flash_params suffix = as_parts(in, p, work, h->prefix.pieces, 0, h->head.num_tokens, 2);
    suffix.first_key = h->first_key;
    flash_merge_params m = merge_of(in, p, work, 0, h->head.num_tokens);
    m.all = (flash_span){0, h->head.num_tokens, h->prefix.pieces + 1, 0};
    int e = launch_prefix(in, h, p, meta, work, stream);
    if (!e) e = launch(in, h, &suffix, meta, work, stream);
    return e ? e : flash_merge(&m, stream);
}

static int profile(attn_instance_t *in, const attn_forward_t *a, void *stream, attn_error_t *error) {
    const int status = flash_check_output_rows(in, a, 0, error);
    if (status != ATTN_OK || a->output->shape[0] == 0) return status;
    int e = flash_output_zero(in, a->output, stream);
    return e ? gpu_fail(error, e, "the profiling run") : ATTN_OK;
}

int flash_forward(attn_instance_t *in, const attn_forward_t *args, const attn_space_t *space, void *stream,
                  attn_error_t *error) {
    attn_forward_t a;
    attn_space_t s;
    gpu_device_guard guard;
    int status = attn_intake(&a, sizeof a, args, "args", error);
    if (status == ATTN_OK && space != NULL) status = attn_intake(&s, sizeof s, space, "space", error);
    if (status != ATTN_OK) return status;
    if (a.qq_bias != NULL)
        return attn_fail(error, ATTN_E_INVALID, "qq_bias",
                         "this backend has no query-query bias; leave the member NULL");
    if (space == NULL) {
        status = gpu_enter(in->device_id, &guard, error);
        if (status != ATTN_OK) return status;
        status = profile(in, &a, stream, error);
        gpu_leave(&guard);
        return status;
    }
    status = gpu_check_forward(&in->metadata, &s, error);
    if (status != ATTN_OK) return status;
    const flash_host_header *h = s.host;
    flash_params p;
    memset(&p, 0, sizeof p);
    status = read_tensors(in, &a, h, &p, error);
    attn_kv_update_t update;
    if (status == ATTN_OK) status = call_update_of_forward(&a, in->features, &update, error);
    if (status == ATTN_OK && update.slot_mapping != NULL)
        status = flash_update_kv_cache(in, &update, stream, error);
    if (status != ATTN_OK || h->head.num_tokens == 0) return status;
    char *meta = s.metadata;
    gpu_output_view view;
    const DLTensor *out = flash_output_begin(in, &a, &s, &view);
    p.out = attn_data(out), p.out_token = out->strides[0], p.out_head = out->strides[1];
    p.counts = (const flash_counts *)(void *)meta;
    p.q_start = (const int32_t *)(void *)(meta + in->q_start_at);
    p.k_start = in->has_cache ? NULL : (const int32_t *)(void *)(meta + in->k_start_at);
    if (h->device_lens != NULL) p.q_start = h->device_starts, p.k_start = h->device_lens;
    p.items = (const flash_item *)(void *)(meta + in->items_at);
    p.tickets = (int32_t *)(void *)(meta + in->tickets_at);
    p.tiles = (const flash_tile *)(void *)(meta + in->tiles_at);
    p.part_out = s.workspace;
    p.part_lse = s.workspace ? (float *)(void *)((char *)s.workspace + in->part_lse_at) : NULL;
    p.q_dtype = in->q_dtype, p.kv_dtype = in->kv_dtype, p.out_dtype = in->out_dtype;
    p.num_seqs = h->head.num_reqs, p.num_q_heads = (int)in->problem.num_heads, p.num_kv_heads = in->kv_heads;
    p.group = in->group, p.head_size = in->d, p.head_size_v = in->dv;
    p.window_left = in->plan_input.window_left, p.window_right = in->plan_input.window_right;
    p.chunk = in->plan_input.chunk, p.lookback = in->plan_input.lookback;
    p.max_rows = h->max_decode_tokens * p.num_q_heads;
    p.ticket_stride = in->ticket_stride, p.keys_per_tile = h->keys_per_tile;
    p.q_rows = h->head.num_tokens;
    p.scale = (float)in->problem.scale, p.soft_cap = (float)in->problem.logits_soft_cap;
    status = gpu_enter(in->device_id, &guard, error);
    if (status != ATTN_OK) return status;
    int e = h->first_key > 0 ? launch_cascade(in, h, &p, meta, s.workspace, stream)
                             : launch(in, h, &p, meta, s.workspace, stream);
    if (!e) e = flash_output_finish(in, &a, &s, h->head.num_tokens, stream);
    gpu_leave(&guard);
    if (e == FLASH_E_MAP_Q || e == FLASH_E_MAP_K || e == FLASH_E_MAP_V)
        return attn_fail(error, ATTN_E_INVALID,
                         e == FLASH_E_MAP_Q ? "query"
                         : in->has_cache    ? "kv_cache"
                                            : "key",
                         "the tensor's strides or size are beyond what TMA can address; set arch = sm80 in "
                         "[option flash]");
    return e ? gpu_fail(error, e, "launching a kernel") : ATTN_OK;
}
