/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata: the batch is checked, lengths and work lists are written to the host mirror and copied to the
 * device with one asynchronous copy. Kernels read counts and the address of the block table there, so a
 * captured forward serves every later batch that is built into the same buffers. */
#include "../output_scales.h"
#include "flash_instance.h"

static batch_limits_t limits_of(const attn_instance_t *in) {
    return (batch_limits_t){.max_seqs = in->limits.max_seqs,
                            .max_tokens = in->limits.max_tokens,
                            .max_model_len = in->problem.max_model_len ? in->problem.max_model_len : 131072,
                            .has_cache = in->has_cache,
                            .seq_counts_query = in->problem.role == ATTN_ROLE_DECODER,
                            .max_keys = batch_max_keys(&in->problem),
                            .page_size = in->page_size};
}

/* A cascade excludes every mask that looks at distances (semantics 6.4). Its launches differ from those
 * without it, so it is never captured. */
static int check_prefix(const attn_instance_t *in, const attn_batch_t *b, attn_error_t *error) {
    int32_t prefix = b->common_prefix_len;
    if (prefix == 0) return ATTN_OK;
    if (in->max_prefix_tiles == 0 || prefix < 0 || prefix % in->page_size != 0)
        return attn_fail(error, in->max_prefix_tiles == 0 ? ATTN_E_UNSUPPORTED : ATTN_E_INVALID,
                         "common_prefix_len",
                         "common_prefix_len is %d; expected 0 or, where the problem has cascade, a positive "
                         "multiple of the block size %d",
                         prefix, in->page_size);
    const flash_plan_input *pi = &in->plan_input;
    if (pi->window_left >= 0 || pi->chunk > 0 || (in->features & (ATTN_F_ALIBI | ATTN_F_BATCH_INVARIANT)) ||
        (b->flags & ATTN_BATCH_CAPTURE))
        return attn_fail(
            error, ATTN_E_UNSUPPORTED, "common_prefix_len",
            "cascade attention excludes windows, ALiBi, chunks, batch invariance and graph capture; "
            "pass common_prefix_len 0");
    return batch_check_prefix(b, error);
}

/* The lengths and, in counts, the block table. */
static int read_batch(const attn_instance_t *in, const attn_batch_t *b, flash_counts *counts,
                      attn_error_t *error) {
    const batch_limits_t limits = limits_of(in);
    int status = batch_check_lengths(&limits, b, error);
    if (status == ATTN_OK) status = gpu_check_block_table(&limits, b, error);
    if (status == ATTN_OK) status = gpu_check_device_lengths(&in->problem, b, error);
    if (status == ATTN_OK && in->has_cache && b->num_reqs > 0) {
        counts->block_table = attn_data(b->block_table);
        counts->block_table_stride = b->block_table->strides[0];
    }
    return status;
}

static int copy_causal(const attn_instance_t *in, const attn_batch_t *b, int32_t *out, attn_error_t *error) {
    if (in->problem.mask == ATTN_MASK_PER_REQUEST && b->causal_host == NULL && b->num_reqs > 0)
        return attn_fail(error, ATTN_E_INVALID, "causal", "causal_host is required with mask per_request");
    for (int32_t r = 0; r < b->num_reqs; r++)
        out[r] = in->problem.mask == ATTN_MASK_CAUSAL ? 1
                 : in->problem.mask == ATTN_MASK_FULL ? 0
                                                      : b->causal_host[r] != 0;
    return ATTN_OK;
}

/* Of a later batch that a captured launch serves. The kernel of short encoders has a CTA for each, there or
 * not. */
static int32_t most_tiles(const attn_instance_t *in, int num_reqs, int longest,
                          const flash_prefill_config *c) {
    const int64_t most = (int64_t)num_reqs * ((longest + c->block_rows - 1) / c->block_rows);
    const int is_less = c->kind == FLASH_PREFILL_RESIDENT && most < in->limits.max_whole_tiles;
    return is_less ? (int32_t)most : in->limits.max_whole_tiles;
}

int flash_copy(const attn_instance_t *in, void *to, const void *from, size_t bytes, void *stream,
               attn_error_t *error) {
    return gpu_copy_to_device(in->device_id, to, from, bytes, stream, error);
}

int flash_build_metadata(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    flash_counts table = {0, 0, 0, 0, NULL, 0};
    int status = gpu_build_intake(&in->metadata, batch, space, &b, &s, error);
    if (status != ATTN_OK) return status;
    flash_host_header *h = s.host;
    char *mirror = gpu_begin_build(&in->metadata, &s);
    status = read_batch(in, &b, &table, error);
    if (status == ATTN_OK) status = check_prefix(in, &b, error);
    if (status == ATTN_OK) status = copy_causal(in, &b, in->causal, error);
    if (status != ATTN_OK) return status;
    const batch_limits_t limits = limits_of(in);
    const int32_t *key_start = batch_key_starts(&limits, &b);
    memcpy(mirror + in->q_start_at, b.query_start_loc_host, ((size_t)(uint32_t)b.num_reqs + 1) * 4);
    if (output_is_quantised(in->features)) {
        const int is_counted = (in->features & ATTN_F_DEVICE_LENGTHS) != 0 && b.num_reqs > 0;
        const flash_step step = {is_counted ? attn_data(b.query_start_loc) : NULL, b.num_actual_tokens,
                                 b.num_reqs};
        memcpy(mirror + in->step_at, &step, sizeof step);
    }
    if (in->k_start_at != in->q_start_at)
        memcpy(mirror + in->k_start_at, key_start, ((size_t)(uint32_t)b.num_reqs + 1) * 4);

    /* Longest query among those that decode: it decides how many rows a CTA takes. */
    int longest = 0, longest_decode = 1;
    for (int32_t r = 0; r < b.num_reqs; r++) {
        int q = b.query_start_loc_host[r + 1] - b.query_start_loc_host[r];
        longest = q > longest ? q : longest;
        if (q <= in->max_decode_tokens && q > longest_decode) longest_decode = q;
    }
    int capture = (b.flags & ATTN_BATCH_CAPTURE) != 0;
    if (capture) { /* any batch with queries up to max_query_len may be replayed */
        longest = b.max_query_len > longest ? b.max_query_len : longest;
        longest_decode = longest < in->max_decode_tokens ? longest : in->max_decode_tokens;
        longest_decode = longest_decode < 1 ? 1 : longest_decode;
    }
    flash_plan_input pi = in->plan_input;
    pi.q_start = b.query_start_loc_host;
    pi.seq_lens = b.seq_lens_host;
    pi.causal_per_seq = in->causal;
    pi.k_start = in->has_cache ? NULL : key_start;
    pi.num_seqs = b.num_reqs;
    pi.first_key = b.common_prefix_len;
    const int row_tiles = flash_choose_row_tiles(&pi, flash_row_tiles_of(in, longest_decode), capture);
    flash_set_modes(in, row_tiles, &pi);
    /* Few tokens a request may be tiles of several heads. A captured launch has both kernels then, and each
     * later batch is items or tiles as its lengths are: those of one block of tokens are the same whatever
     * the heads of a tile. */
    flash_prefill_config packed;
    flash_plan_limits limits_now = in->limits;
    if (capture)
        limits_now.max_cut_rows = 0; /* pieces are part of the launch, and later batches have others */
    flash_prefill_config resident;
    const int is_resident =
        in->resident.kind != 0 && !(capture && (in->features & ATTN_F_KEY_LENGTHS)) &&
        flash_plan_resident(&pi, &in->limits, &in->resident, capture ? longest : 0, &resident);
    const int may_pack = !is_resident && longest * in->group > pi.decode_rows &&
                         (!capture || longest <= in->max_decode_tokens) &&
                         flash_pack_prefill(&in->shape, &in->prefill, longest, &packed) == 0;
    const int is_packed = may_pack && flash_plan_packed(&pi, &limits_now, packed.block_rows,
                                                        packed.tile_heads, in->cut_requests, &h->cut);
    if (!may_pack) flash_plan_cut(&pi, &limits_now, in->cut_requests, &h->cut);
    if (is_packed) {
        pi.decode_tokens = 0;
        pi.block_rows = packed.block_rows, pi.tile_heads = packed.tile_heads;
    }
    const int has_packed =
        is_packed || (may_pack && capture && flash_may_be_packed(&pi, longest, packed.tile_heads));
    const flash_prefill_config *tiles = is_resident ? &resident : has_packed ? &packed : &in->prefill;
    if (is_resident) pi.block_rows = tiles->block_rows, pi.tile_heads = 1;
    h->tiles = *tiles;
    pi.piece_keys = h->cut.piece_keys;
    if (capture)
        pi.captured =
            b.num_reqs * in->kv_heads * ((longest_decode * in->group + pi.decode_rows - 1) / pi.decode_rows);
    flash_plan plan = {.requests = in->requests,
                       .tile_keys = in->tile_keys,
                       .items = (flash_item *)(void *)(mirror + in->items_at),
                       .tiles = (flash_tile *)(void *)(mirror + in->tiles_at)};
    if (flash_plan_build(&pi, &in->limits, &plan))
        return attn_fail(error, ATTN_E_INTERNAL, "batch",
                         "the work lists of this batch exceed their capacity");
    plan.counts.block_table = table.block_table;
    plan.counts.block_table_stride = table.block_table_stride;
    memcpy(mirror, &plan.counts, sizeof plan.counts);
    memset(mirror + in->tickets_at, 0, in->draws_at + sizeof(int32_t) - in->tickets_at);
    const int on_device = (in->features & ATTN_F_DEVICE_LENGTHS) != 0 && b.num_reqs > 0;
    h->device_starts = on_device ? attn_data(b.query_start_loc) : NULL;
    h->device_lens = on_device ? attn_data(b.seq_lens) : NULL;
    h->first_key = pi.first_key;
    if (flash_plan_prefix(&pi, b.num_actual_tokens, in->max_prefix_tiles,
                          (flash_tile *)(void *)(mirror + in->prefix_tiles_at), &h->prefix))
        return attn_fail(error, ATTN_E_INTERNAL, "batch", "the prefix's work list exceeds its capacity");
    if (in->max_prefix_tiles > 0) {
        flash_counts prefix = {0, 0, h->prefix.num_tiles, 0, table.block_table, table.block_table_stride};
        memcpy(mirror + in->prefix_counts_at, &prefix, sizeof prefix);
    }

    h->grid_items = plan.counts.num_items;
    h->listed_items = capture ? 0 : h->grid_items;
    h->grid_tiles = plan.counts.num_tiles;
    h->max_decode_tokens = longest_decode;
    h->row_tiles = row_tiles;
    h->mode = plan.mode;
    h->cluster = plan.cluster;
    h->keys_per_tile = plan.keys_per_tile;
    h->num_spans = plan.num_spans, h->longest_span = plan.longest_span;
    h->num_key_rows = in->has_cache ? 0 : key_start[b.num_reqs];
    /* a replay's batch may need other shares, or have no prompts at all */
    h->beside =
        capture || is_resident || in->prefill.kind == FLASH_PREFILL_SM80 ? 0 : flash_plan_beside(&pi, &plan);
    if (capture) { /* worst cases for this many requests; what is not there returns at once */
        h->grid_items = b.num_reqs + in->limits.max_slots < in->limits.max_items
                            ? b.num_reqs + in->limits.max_slots
                            : in->limits.max_items;
        h->grid_items = (h->grid_items + plan.cluster - 1) / plan.cluster * plan.cluster;
        if (plan.most_items > 0) h->grid_items = plan.most_items;
        h->grid_tiles = longest > in->max_decode_tokens ? most_tiles(in, b.num_reqs, longest, tiles)
                        : has_packed                    ? b.num_reqs
                                                        : 0;
        if (has_packed) h->keys_per_tile = 0; /* later batches may have many */
    }
    size_t used = in->tiles_at + (size_t)plan.counts.num_tiles * sizeof(flash_tile) +
                  (size_t)plan.num_spans * sizeof(flash_span);
    status = gpu_send(in, &in->metadata, &s, used, stream, error);
    if (status == ATTN_OK) gpu_finish_build(&in->metadata, &b, &s);
    return status;
}

int flash_update_block_table(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                             void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    flash_counts table = {0, 0, 0, 0, NULL, 0};
    int status = gpu_build_intake(&in->metadata, batch, space, &b, &s, error);
    if (status == ATTN_OK) status = read_batch(in, &b, &table, error);
    if (status == ATTN_OK) status = gpu_check_update(&in->metadata, &b, &s, error);
    if (status != ATTN_OK) return status;
    flash_counts *counts = (flash_counts *)(void *)gpu_mirror_of(&in->metadata, &s);
    counts->block_table = table.block_table;
    counts->block_table_stride = table.block_table_stride;
    size_t bytes = sizeof *counts;
    if (in->max_prefix_tiles >
        0) { /* the prefix pass has counts of its own; what lies between did not change */
        flash_counts *prefix = (flash_counts *)(void *)((char *)counts + in->prefix_counts_at);
        prefix->block_table = table.block_table;
        prefix->block_table_stride = table.block_table_stride;
        bytes = in->prefix_counts_at + sizeof *prefix;
    }
    return gpu_send(in, &in->metadata, &s, bytes, stream, error);
}
