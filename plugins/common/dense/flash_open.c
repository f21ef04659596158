/* SPDX-License-Identifier: Apache-2.0 */
/* Opening: the problem and the device become kernel configurations, limits and the layout of the buffers;
 * kernels are loaded here, so that no later call allocates or compiles. */
#include "../cache_shape.h"
#include "../output_scales.h"
#include "flash_instance.h"

#include <stdlib.h>

static int query_device(attn_instance_t *in, const attn_device_t *device, attn_error_t *error) {
    gpu_device d;
    int status = gpu_find_device(device, in->backend->name, &d, error);
    if (status != ATTN_OK) return status;
    if (d.major < 8)
        return attn_fail(error, ATTN_E_DEVICE, "device", "compute capability %d.%d is below 8.0", d.major,
                         d.minor);
    in->device_id = d.id;
    if (!d.has_sm90a) in->shape.force_sm80 = 1;
    in->device = (flash_device){d.major, d.minor, d.num_sms, d.smem_optin, d.smem_per_sm};
    return ATTN_OK;
}

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* Rows of heads of one prefill tile on each SM. */
static size_t wave_rows(const attn_instance_t *in) {
    return (size_t)in->device.num_sms * (size_t)(in->prefill.block_rows * in->prefill.tile_heads);
}

static void lay_out(attn_instance_t *in) {
    const flash_plan_limits *l = &in->limits;
    size_t at = sizeof(flash_counts);
    const int is_quantised = output_is_quantised(in->features);
    in->step_at = at; /* behind the pointer in flash_counts: as aligned as that */
    if (is_quantised) at += sizeof(flash_step);
    in->q_start_at = in->k_start_at = at;
    at += ((size_t)l->max_seqs + 1) * 4;
    if (in->features & ATTN_F_KEY_LENGTHS) {
        in->k_start_at = at;
        at += ((size_t)l->max_seqs + 1) * 4;
    }
    at = round_up(at, 16);
    in->items_at = at;
    at += (size_t)l->max_items * sizeof(flash_item);
    in->tickets_at = at;
    at += (size_t)l->max_slots * (size_t)in->ticket_stride * sizeof(int32_t);
    in->draws_at = at;
    in->prefix_counts_at = at = round_up(at + sizeof(int32_t), 16);
    if (in->max_prefix_tiles > 0) at += sizeof(flash_counts);
    in->prefix_tiles_at = at = round_up(at, 16);
    at += (size_t)in->max_prefix_tiles * sizeof(flash_tile);
    in->tiles_at = at;
    at += (size_t)l->max_tiles * sizeof(flash_tile) + (size_t)l->max_spans * sizeof(flash_span);
    in->metadata = (gpu_metadata){
        .magic = FLASH_MAGIC, .mirror_at = FLASH_MIRROR_AT, .bytes = round_up(at, 256), .copy = flash_copy};
    size_t rows = (size_t)l->max_slots * (size_t)in->max_decode_tokens * in->problem.num_heads;
    in->part_lse_at = round_up(rows * (size_t)in->dv * 4, 256);
    in->metadata.workspace_bytes = rows ? in->part_lse_at + round_up(rows * 4, 256) : 0;
    /* pieces of tiles are float, a cascade's passes have the type of the output */
    size_t part_rows = (size_t)l->max_cut_rows, part_values = 2 * part_rows;
    if (in->max_prefix_tiles > 0) {
        /* pieces appear where tiles do not fill the machine, so they hold one wave of rows at most; and the
         * suffix */
        const size_t all = (size_t)l->max_tokens * in->problem.num_heads, wave = wave_rows(in),
                     passes = all + (all > wave ? all : wave);
        part_rows = passes > part_rows ? passes : part_rows;
        part_values = passes > part_values ? passes : part_values;
    }
    in->part_rows_at = in->metadata.workspace_bytes;
    in->part_rows_lse_at = in->part_rows_at + round_up(part_values * (size_t)in->dv * 2, 256);
    if (part_rows > 0) in->metadata.workspace_bytes = in->part_rows_lse_at + round_up(part_rows * 4, 256);
    in->output_at = in->metadata.workspace_bytes;
    if (is_quantised)
        in->metadata.workspace_bytes +=
            round_up((size_t)l->max_tokens * in->problem.num_heads * (size_t)in->dv * 2, 256);
}

int flash_row_tiles_of(const attn_instance_t *in, int tokens) {
    /* one kernel whatever the neighbours are */
    if (in->features & ATTN_F_BATCH_INVARIANT) return in->max_decode_tokens * in->group > 8 ? 2 : 1;
    return flash_row_tiles_for(&flash_classes[in->decode[0][0].class_index], tokens * in->group);
}

void flash_set_modes(const attn_instance_t *in, int row_tiles, flash_plan_input *pi) {
    pi->decode_rows = row_tiles * 8;
    for (int i = 0; i < FLASH_MODES; i++) {
        const flash_decode_config *c = &in->decode[row_tiles - 1][i];
        /* other CTAs add up in another order: not where a request must not feel its neighbours */
        int is_there = i == 0 || !(in->features & ATTN_F_BATCH_INVARIANT);
        pi->modes[i] = (flash_plan_mode){is_there ? in->device.num_sms * c->ctas_per_sm : 0, c->ctas_per_sm,
                                         c->warps * 16};
    }
}

/* Keys that a token sees at most; 0: no bound. */
static int32_t seen_keys(const attn_instance_t *in) {
    const int32_t window = (int32_t)in->problem.sliding_window;
    if (window == 0 || (in->features & ATTN_F_CHUNK_LOOKBACK) != 0) return 0;
    return in->problem.mask == ATTN_MASK_CAUSAL ? window : 2 * window - 1;
}

/* Configurations and limits: no device work, only what the numbers say. */
static int configure(attn_instance_t *in, attn_error_t *error) {
    const attn_problem_t *p = &in->problem;
    int max_tokens = (int)(p->max_num_batched_tokens ? p->max_num_batched_tokens : 8192);
    int rows = FLASH_MAX_GROUP_ROWS / in->group;
    in->max_decode_tokens = rows < 1 ? 1 : rows > 16 ? 16 : rows;
    if (in->max_decode_tokens > max_tokens) in->max_decode_tokens = max_tokens;
    in->shape = (flash_shape){in->q_dtype,
                              in->kv_dtype,
                              (int)p->num_heads,
                              in->kv_heads,
                              in->d,
                              in->dv,
                              in->has_cache ? in->page_size : 0,
                              p->logits_soft_cap > 0 || (in->features & ATTN_F_ALIBI) != 0 || p->scale < 0,
                              1,
                              in->shape.force_sm80,
                              seen_keys(in)};
    if (flash_choose_decode(&in->shape, &in->device, &in->decode[0][0]) ||
        flash_choose_prefill(&in->shape, &in->device, &in->prefill))
        return attn_fail(
            error, ATTN_E_UNSUPPORTED, "head_size",
            "head sizes %d/%d do not fit the %d bytes of shared memory that a block of this device has",
            in->d, in->dv, in->device.smem_optin);
    for (int i = DECODE_SM80_MOST_ROW_TILES - 1; i >= 0; i--)
        for (int mode = 0; mode < FLASH_MODES; mode++) {
            in->decode[i][mode] = in->decode[0][0];
            in->decode[i][mode].row_tiles = i + 1;
            flash_resize_decode(&in->shape, &in->device, mode, &in->decode[i][mode]);
        }
    const int decodes = flash_decode_of(in) != NULL;
    if (!decodes) in->max_decode_tokens = 0;
    rows = in->max_decode_tokens * in->group;
    const int least = rows > 8 ? 16 : 8; /* of a CTA, where there are several for a KV head */
    in->ticket_stride = in->kv_heads * ((rows + least - 1) / least);
    flash_plan_input *pi = &in->plan_input;
    int window = p->sliding_window ? (int)p->sliding_window - 1 : -1;
    int chunk = (int)p->chunk_size, lookback = 0;
    if ((in->features & ATTN_F_CHUNK_LOOKBACK) &&
        p->sliding_window) { /* replaces the window (semantics 2.5) */
        lookback = (int)p->chunk_lookback;
        chunk = (int)p->sliding_window / (lookback + 1);
        window = -1;
    }
    *pi = (flash_plan_input){.num_kv_heads = in->kv_heads,
                             .group = in->group,
                             .decode_tokens = in->max_decode_tokens,
                             .block_rows = in->prefill.block_rows,
                             .tile_heads = in->prefill.tile_heads,
                             .packed = in->prefill.packed,
                             .causal = p->mask == ATTN_MASK_CAUSAL,
                             .window_left = window,
                             .window_right = window,
                             .chunk = chunk,
                             .lookback = lookback,
                             .num_sms = in->device.num_sms,
                             .head_size = in->d,
                             .key_bytes = in->kv_dtype == FLASH_E4M3 ? 1 : 2,
                             .max_cluster = in->device.major == 9 && !in->shape.force_sm80 ? 8 : 0,
                             .num_splits = in->features & ATTN_F_BATCH_INVARIANT ? 1 : in->num_splits};
    in->limits.max_seqs = (int)(p->max_num_seqs ? p->max_num_seqs : 256);
    in->limits.max_tokens = max_tokens;
    flash_set_modes(in, 1, pi); /* no others have more CTAs at once */
    /* captured launches serve requests of any mask and number of keys but where the problem says them */
    if (p->mask == ATTN_MASK_FULL && !in->has_cache && !(in->features & ATTN_F_DEVICE_LENGTHS))
        flash_choose_resident(&in->shape, &in->device, &in->resident);
    /* pieces by distance have no way to say where their queries are */
    if (in->has_cache && flash_may_cut(pi) && !(in->features & (ATTN_F_ALIBI | ATTN_F_DEVICE_LENGTHS)))
        in->limits.max_cut_rows = cut_rows((int64_t)wave_rows(in), (int64_t)max_tokens * p->num_heads,
                                           (int32_t)(p->max_model_len ? p->max_model_len : 131072));
    flash_plan_capacity(&in->limits, pi);
    if (in->limits.max_items > 65535) in->limits.max_items = 65535;
    if (!decodes) in->limits.max_items = in->limits.max_slots = 0;
    if (in->features & ATTN_F_CASCADE) in->max_prefix_tiles = flash_prefix_capacity(pi, max_tokens);
    lay_out(in);
    return ATTN_OK;
}

/* Raises shared-memory limits and loads code of every kernel that this instance may launch. */
static int prepare_kernels(attn_instance_t *in, attn_error_t *error) {
    const flash_decode_func_t decode = flash_decode_of(in);
    int e = flash_runtime_init(&in->runtime, in->backend->kernels, in->device.num_sms,
                               in->prefill.kind != FLASH_PREFILL_SM80);
    for (int i = 0; i < DECODE_SM80_MOST_ROW_TILES && !e && decode != NULL; i++) {
        int is_used = 0;
        for (int tokens = 1; tokens <= in->max_decode_tokens; tokens++) {
            const int tiles = flash_row_tiles_of(in, tokens);
            is_used |= tiles == i + 1 || (tiles > FLASH_FEW_ROWS / 8 && i + 1 == FLASH_FEW_ROWS / 8);
        }
        /* the larger CTAs allow the smaller */
        if (is_used) e = decode(NULL, &in->decode[i][FLASH_LARGE_CTAS], 0, NULL);
    }
    if (!e && (in->max_prefix_tiles > 0 || in->limits.max_cut_rows > 0)) e = flash_merge(NULL, NULL);
    if (!e && (in->features & ATTN_F_DEVICE_LENGTHS)) e = flash_read_lengths(NULL, NULL, 0, NULL);
    if (!e && in->has_cache) e = flash_write_cache(NULL, NULL);
    if (!e)
        e = output_is_quantised(in->features) ? in->backend->quantise(NULL, NULL)
                                              : flash_zero_rows(NULL, 0, 0, 0, 0, 0, NULL);
    if (!e) e = flash_run_prefill(NULL, &in->shape, &in->prefill, 0, &in->runtime, NULL);
    if (!e && in->resident.kind)
        e = flash_run_prefill(NULL, &in->shape, &in->resident, 0, &in->runtime, NULL);
    return e ? gpu_fail(error, e, "loading the kernels") : ATTN_OK;
}

int flash_open(const flash_backend *backend, const attn_problem_t *problem, const attn_device_t *device,
               const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
               attn_instance_t **instance, attn_error_t *error) {
    (void)host;
    attn_problem_t p;
    attn_device_t dev;
    int status = attn_intake(&p, sizeof p, problem, "problem", error);
    if (status == ATTN_OK) status = attn_intake_known(&dev, sizeof dev, device, "device", error);
    if (status == ATTN_OK)
        status = problem_check(&p, &dev, backend->capabilities, backend->name, flash_supports, error);
    if (status != ATTN_OK) return status;
    attn_instance_t *in = calloc(1, sizeof *in);
    if (in == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for an instance of %zu bytes",
                         sizeof *in);
    in->backend = backend;
    in->problem = p;
    in->features = attn_problem_features(&p);
    in->out_dtype = p.dtype == ATTN_DTYPE_FLOAT16 ? FLASH_F16 : FLASH_BF16;
    in->q_dtype = p.query_dtype == ATTN_DTYPE_FP8_E4M3 ? FLASH_E4M3 : in->out_dtype;
    in->kv_dtype = p.kv_cache_dtype == ATTN_KV_FP8_E4M3 ? FLASH_E4M3 : in->out_dtype;
    in->kv_heads = (int)(p.num_kv_heads ? p.num_kv_heads : p.num_heads);
    in->group = (int)p.num_heads / in->kv_heads;
    in->d = (int)p.head_size;
    in->dv = (int)(p.role == ATTN_ROLE_MLA_PREFILL ? p.v_head_dim
                   : p.head_size_v                 ? p.head_size_v
                                                   : p.head_size);
    in->has_cache = attn_role_has_cache(p.role);
    in->is_separate = (in->features & ATTN_F_SEPARATE_KV) != 0;
    in->page_size = (int)(p.block_size ? p.block_size : backend->capabilities->preferred_block_size);
    if (num_options > FLASH_OPTION_ARCH) in->shape.force_sm80 = options[FLASH_OPTION_ARCH].i == 1;
    if (num_options > FLASH_OPTION_NUM_SPLITS) in->num_splits = (int)options[FLASH_OPTION_NUM_SPLITS].i;
    status = query_device(in, &dev, error);
    if (status == ATTN_OK) status = configure(in, error);
    gpu_device_guard guard;
    if (status == ATTN_OK && (status = gpu_enter(in->device_id, &guard, error)) == ATTN_OK) {
        status = prepare_kernels(in, error);
        gpu_leave(&guard);
    }
    if (status == ATTN_OK) {
        in->requests = malloc((size_t)in->limits.max_seqs * sizeof *in->requests);
        in->causal = malloc((size_t)in->limits.max_seqs * sizeof *in->causal);
        in->tile_keys = malloc(((size_t)in->limits.max_tiles + 1) * sizeof *in->tile_keys);
        in->cut_requests = malloc((size_t)in->limits.max_seqs * sizeof *in->cut_requests);
        if (in->requests == NULL || in->tile_keys == NULL || in->causal == NULL || in->cut_requests == NULL)
            status = attn_fail(error, ATTN_E_NO_MEMORY, "max_num_seqs",
                               "out of memory for the work lists of %d requests", in->limits.max_seqs);
    }
    if (status != ATTN_OK) {
        flash_close(in);
        return status;
    }
    *instance = in;
    return ATTN_OK;
}

void flash_close(attn_instance_t *in) {
    if (in == NULL) return;
    free(in->causal);
    free(in->requests);
    free(in->tile_keys);
    free(in->cut_requests);
    free(in);
}

int flash_kv_cache_shape(attn_instance_t *in, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                         attn_error_t *error) {
    return cache_shape_give(&in->problem, ATTN_LAYOUT_NHD, (uint32_t)in->page_size, num_blocks, shape, error);
}

int flash_space_needed(attn_instance_t *in, attn_space_needed_t *needed, attn_error_t *error) {
    return gpu_give_space_needed(&in->metadata, 0, needed, error);
}
