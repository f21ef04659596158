/* SPDX-License-Identifier: Apache-2.0 */
/* Opening: the problem becomes code for this device (from the folder or through NVRTC), loaded once, and
 * limits become buffer layouts; no later call compiles, allocates or waits. */
#include "../common/cache_shape.h"
#include "triton_instance.h"

#include <stdlib.h>

enum { ATTRIBUTE_MAX_DYNAMIC_SMEM = 8 };

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* One for each segment and each CTA that works on it; the last CTA merges, where the kernel can. */
size_t triton_tickets_bytes(const attn_instance_t *in) {
    return in->config.exact ? 0 : (size_t)in->limits.tickets * (size_t)in->kv_heads * 4;
}

static void lay_out(attn_instance_t *in) {
    const triton_plan_limits_t *l = &in->limits;
    size_t seqs = (size_t)l->seqs, at = sizeof(triton_counts_t);
    in->q_start_at = at, at += (seqs + 1) * 4;
    in->seq_lens_at = at, at += seqs * 4;
    if (in->features & ATTN_F_KEY_LENGTHS) in->k_start_at = at, at += seqs * 4;
    in->causal_at = at, at += seqs * 4;
    in->prefix_at = at, at += in->config.rswa ? seqs * 4 : 0;
    in->spans_at = at, at += seqs * (size_t)in->max_spans * 8;
    in->tickets_at = at, at += triton_tickets_bytes(in);
    at = round_up(at, 16);
    in->items_at = at, at += (size_t)l->items * sizeof(triton_item_t);
    in->splits_at = at, at += (size_t)l->splits * sizeof(triton_split_t);
    in->tiles_at = at, at += (size_t)l->tiles * sizeof(triton_tile_t);
    in->metadata = (gpu_metadata){.magic = TRITON_MAGIC,
                                  .mirror_at = TRITON_MIRROR_AT,
                                  .bytes = round_up(at, 256),
                                  .copy = triton_copy};
    size_t rows = (size_t)l->rows;
    in->part_lse_at = round_up(rows * (size_t)in->config.dv * 4, 256);
    in->rows_at = rows ? in->part_lse_at + round_up(rows * 4, 256) : 0;
    in->metadata.workspace_bytes = in->rows_at;
    if (in->config.out_group)
        in->metadata.workspace_bytes +=
            round_up((size_t)l->tokens * in->problem.num_heads * (size_t)in->config.dv *
                         attn_dtype_size(in->problem.dtype),
                     256);
}

static void plan_limits(attn_instance_t *in, int segments) {
    const attn_problem_t *p = &in->problem;
    const triton_config_t *c = &in->config;
    int tokens = c->decode_blocks * c->decode_rows / c->group, window = c->rswa || c->spans ? 0
                                                                        : c->chunk          ? c->chunk
                                                                                            : c->window;
    in->limits.seqs = (int)(p->max_num_seqs ? p->max_num_seqs : 256);
    in->limits.tokens = (int)(p->max_num_batched_tokens ? p->max_num_batched_tokens : 8192);
    in->limits.keys = (int)(p->max_model_len ? p->max_model_len : 131072);
    tokens = !c->has_decode ? 0 : tokens < 1 ? 1 : tokens;
    in->plan_input = (triton_plan_input_t){
        .group = c->group,
        .kv_heads = in->kv_heads,
        .decode_tokens = tokens,
        .decode_rows = c->decode_rows,
        .slots = in->driver.num_sms * (c->has_decode ? c->decode_ctas : 1),
        .least_keys = c->decode_threads,
        .block_rows = c->prefill_rows,
        .window = window,
        .causal = c->causal == 1,
        .cut_slots = triton_config_cuts(c) ? in->driver.num_sms * (c->ctas > 0 ? c->ctas : 1) : 0,
        .cut_grain = triton_config_grain(c),
        .segments = in->features & ATTN_F_BATCH_INVARIANT ? 1 : segments};
    triton_plan_capacity(&in->plan_input, &in->limits);
    in->max_spans = c->spans ? (int)(p->max_mm_ranges ? p->max_mm_ranges : 8) : 0;
    lay_out(in);
}

int triton_find_kernel(attn_instance_t *in, int program, const char *name, int smem, void **kernel,
                       attn_error_t *error) {
    /* a configuration whose kernels are one text has it in front; asking for what is not there would be an
     * error that tools see */
    void *module = in->modules[program] != NULL ? in->modules[program] : in->modules[TRITON_PROGRAM_PREFILL];
    int e = in->driver.module_function(kernel, module, name);
    if (e == 0 && smem > 48 * 1024 - 4096)
        e = in->driver.function_set(*kernel, ATTRIBUTE_MAX_DYNAMIC_SMEM, smem);
    int registers = 0;
    if (e ==
        0) /* touches the kernel: the driver loads lazily, which must not happen while a graph is captured */
        e = in->driver.function_get(&registers, 4, *kernel);
    return e == 0 ? ATTN_OK : triton_driver_fail(&in->driver, e, "loading a kernel", error);
}

int triton_load_modules(attn_instance_t *in, const triton_code_t *code, attn_error_t *error) {
    int e = 0;
    for (int i = 0; i < code->count && e == 0; i++)
        e = in->driver.module_load(&in->modules[code->kind[i]], code->cubin[i]);
    return e == 0 ? ATTN_OK : triton_driver_fail(&in->driver, e, "loading compiled kernels", error);
}

static int load_code(attn_instance_t *in, const triton_code_t *code, attn_error_t *error) {
    const triton_config_t *c = &in->config;
    const int has_wide = triton_config_wide(c, &in->wide) == 0;
    int status = triton_driver_enter(&in->driver, error);
    if (status != ATTN_OK) return status;
    const struct {
        int is_needed, program;
        const char *name;
        int smem;
        void **kernel;
    } kernels[] = {{1, TRITON_PROGRAM_PREFILL, "tl_prefill", c->prefill_smem, &in->prefill},
                   {c->has_decode, TRITON_PROGRAM_DECODE, "tl_decode", c->decode_smem, &in->decode},
                   {has_wide, TRITON_PROGRAM_WIDE, "tl_decode", in->wide.decode_smem, &in->decode_wide},
                   {c->has_decode && c->exact, TRITON_PROGRAM_PREFILL, "tl_reduce", 0, &in->reduce},
                   {in->has_cache, TRITON_PROGRAM_DECODE, "tl_write", 0, &in->write},
                   {c->out_group != 0, TRITON_PROGRAM_PREFILL, "tl_quantize", 0, &in->quantize}};
    status = triton_load_modules(in, code, error);
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0] && status == ATTN_OK; i++)
        if (kernels[i].is_needed)
            status = triton_find_kernel(in, kernels[i].program, kernels[i].name, kernels[i].smem,
                                        kernels[i].kernel, error);
    triton_driver_leave(&in->driver);
    return status;
}

triton_toolchain_t triton_toolchain_of(const attn_option_value_t *options, uint32_t num_options,
                                       const attn_host_t *host) {
    return (triton_toolchain_t){
        .cache_dir = num_options > TRITON_OPTION_CACHE_DIR ? options[TRITON_OPTION_CACHE_DIR].s : "",
        .nvrtc = num_options > TRITON_OPTION_NVRTC ? options[TRITON_OPTION_NVRTC].s : "",
        .host = host};
}

void triton_set_problem(attn_instance_t *in, const attn_problem_t *p) {
    in->problem = *p;
    in->features = attn_problem_features(p);
    in->kv_heads = (int)(p->num_kv_heads ? p->num_kv_heads : p->num_heads);
    in->has_cache = attn_role_has_cache(p->role);
    in->is_separate = (in->features & ATTN_F_SEPARATE_KV) != 0;
    in->layout = triton_layout(p);
}

static int prepare(attn_instance_t *in, const attn_device_t *device, const attn_option_value_t *options,
                   uint32_t num_options, const attn_host_t *host, attn_error_t *error) {
    triton_toolchain_t tools = triton_toolchain_of(options, num_options, host);
    triton_code_t code;
    int segments = 0;
    if (num_options > TRITON_OPTION_SEGMENTS) segments = (int)options[TRITON_OPTION_SEGMENTS].i;
    int status = triton_driver_open(&in->driver, device, 80, error);
    if (status != ATTN_OK) return status;
    if (triton_configure(&in->problem, in->driver.cc, &in->config) != 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "head_size",
                         "head sizes %d and %d do not fit the shared memory of sm_%d", in->config.d,
                         in->config.dv, in->driver.cc);
    plan_limits(in, segments);
    status = triton_make_code(&in->config, &tools, &code, error);
    if (status != ATTN_OK) return status;
    status = load_code(in, &code, error);
    triton_log(host, ATTN_LOG_INFO, "TRITON_ATTN: %d of %d programs for sm_%d were already compiled",
               code.from_cache, code.count, in->driver.cc);
    triton_free_code(&code);
    if (status != ATTN_OK) return status;
    in->tile_keys = malloc(((size_t)in->limits.tiles + 1) * sizeof *in->tile_keys);
    in->scratch = malloc(((size_t)in->limits.seqs + 1) * sizeof *in->scratch);
    in->cuts = malloc(((size_t)in->limits.seqs + 1) * sizeof *in->cuts);
    if (in->tile_keys == NULL || in->scratch == NULL || in->cuts == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "max_num_seqs",
                         "out of memory for the work lists of %d requests", in->limits.seqs);
    return ATTN_OK;
}

int triton_open(const attn_problem_t *problem, const attn_device_t *device,
                const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p;
    attn_device_t dev;
    int status = attn_intake(&p, sizeof p, problem, "problem", error);
    if (status == ATTN_OK) status = attn_intake_known(&dev, sizeof dev, device, "device", error);
    if (status == ATTN_OK) status = triton_check_problem(&p, &dev, error);
    if (status != ATTN_OK) return status;
    attn_instance_t *in = calloc(1, sizeof *in);
    if (in == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for an instance of %zu bytes",
                         sizeof *in);
    triton_set_problem(in, &p);
    status = prepare(in, &dev, options, num_options, host, error);
    if (status != ATTN_OK) {
        triton_close(in);
        return status;
    }
    *instance = in;
    return ATTN_OK;
}

void triton_close(attn_instance_t *in) {
    if (in == NULL) return;
    if (in->driver.context != NULL && triton_driver_enter(&in->driver, NULL) == ATTN_OK) {
        for (int i = 0; i < TRITON_MAX_PROGRAMS; i++)
            if (in->modules[i] != NULL) in->driver.module_unload(in->modules[i]);
        triton_driver_leave(&in->driver);
    }
    triton_driver_close(&in->driver);
    free(in->tile_keys);
    free(in->scratch);
    free(in->cuts);
    free(in);
}

int triton_kv_cache_shape(attn_instance_t *in, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                          attn_error_t *error) {
    return cache_shape_give(&in->problem, in->layout, (uint32_t)in->config.page, num_blocks, shape, error);
}

int triton_space_needed(attn_instance_t *in, attn_space_needed_t *needed, attn_error_t *error) {
    return gpu_give_space_needed(&in->metadata, 0, needed, error);
}
