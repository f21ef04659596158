/* SPDX-License-Identifier: Apache-2.0 */
/* bench_run.c: measures one row of `attn bench`. On a CPU every repetition has a ceiling measured next to it,
 * and medians are compared with medians; the ceilings of a GPU are those of the run. */
#include "measure/bench_run.h"

#include <attn/attn_plugin_util.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "measure/ceilings_cpu.h"
#include "measure/bench_setup.h"
#include "base/tool.h"

enum { MAX_REPETITIONS = 400, LEAST_REPETITIONS = 6 };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    if (count == 0) return 0;
    qsort(values, (size_t)count, sizeof *values, by_value);
    return count % 2 != 0 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

/* The pieces that a walk over the pages reads, in its order: tiles of 32 tokens, KV heads inside, pages of
 * the tile. */
static int make_pieces(bench_t *b) {
    if (!b->row->is_memory_bound || !b->has_cache || b->options->device->type != kDLCPU) return ATTN_OK;
    int64_t n = b->row->requests;
    b->piece_bytes = (size_t)(b->page_bytes / b->z.kv_heads) / 256 * 256;
    b->pieces = malloc((size_t)(n * b->pages * b->z.kv_heads) * sizeof *b->pieces);
    return b->pieces == NULL ? bench_no_memory(b) : ATTN_OK;
}

static void set_pieces(bench_t *b, int copy) {
    int64_t bs = b->problem.block_size, tile = bs >= 32 ? 1 : 32 / bs;
    const char *base = attn_data(&b->cache[copy].dl);
    b->num_pieces = 0;
    for (int64_t r = 0; r < b->row->requests; r++)
        for (int64_t first = 0; first < b->pages; first += tile)
            for (int64_t h = 0; h < b->z.kv_heads; h++)
                for (int64_t p = first; p < first + tile && p * bs < bench_len(b->row, r); p++)
                    b->pieces[b->num_pieces++] = base + b->table[r * b->pages + p] * b->page_bytes +
                                                 h * (b->page_bytes / b->z.kv_heads);
}

/* One call, on the copy of the cache whose turn it is. */
static int enqueue(void *user, void *stream) {
    bench_t *b = user;
    tensor_t *cache = b->has_cache ? &b->cache[b->next++ % b->num_copies] : NULL;
    if (b->row->is_write) {
        ATTN_INIT(attn_kv_update_t, update);
        update.key = &b->key.dl;
        update.value = &b->value.dl;
        update.kv_cache = &cache->dl;
        update.slot_mapping = &b->slots.dl;
        return attn_layer_update_kv_cache(b->layer, &update, stream, b->error);
    }
    ATTN_INIT(attn_forward_t, forward);
    forward.query = &b->query.dl;
    forward.output = &b->output.dl;
    forward.output_scale = b->output_scale.dl.data != NULL ? &b->output_scale.dl : NULL;
    forward.output_block_scale = b->block_scale.dl.data != NULL ? &b->block_scale.dl : NULL;
    forward.topk_indices = b->row->problem.topk != 0 ? &b->topk.dl : NULL;
    forward.key = b->has_cache ? NULL : &b->key.dl;
    forward.value = b->has_cache ? NULL : &b->value.dl;
    forward.kv_cache = cache != NULL ? &cache->dl : NULL;
    return attn_layer_forward(b->layer, &forward, &b->space, stream, b->error);
}

/* Seconds of one call on a CPU, which is over when it returns. Negative on failure. */
static double time_call(bench_t *b) {
    double started = tool_seconds();
    if (enqueue(b, NULL) != ATTN_OK) return -1;
    return tool_seconds() - started;
}

/* The multiply-add ceiling of a row on this CPU: for bf16 the fastest of its tiles (AMX), of its dot product
 * and of float32, which some CPUs turn it into. */
static double compute_ceiling(const bench_t *b, const char **name) {
    static const char *const levels[] = {"avx512", "avx2", "neon", "generic"};
    const char *level = b->options->level;
    int any = level == NULL || strcmp(level, "auto") == 0, threads = b->options->threads;
    double rate = 0, dot = 0;
    if (!any) rate = ceiling_fma(level, threads);
    for (size_t i = 0; any && rate <= 0 && i < sizeof levels / sizeof levels[0]; i++)
        rate = ceiling_fma(levels[i], threads);
    if (b->problem.dtype == ATTN_DTYPE_BFLOAT16 && (any || strcmp(level, "avx512bf16") == 0))
        dot = ceiling_bf16_dot(threads);
    double tiles = dot > 0 ? ceiling_bf16_tiles(threads) : 0;
    *name = tiles > dot && tiles > rate ? "bf16 tiles" : dot > rate ? "bf16 dot" : "f32 FMA";
    if (tiles > dot) dot = tiles;
    return dot > rate ? dot : rate;
}

static int measure_cpu(bench_t *b) {
    static double times[MAX_REPETITIONS], first[MAX_REPETITIONS * 2], second[MAX_REPETITIONS];
    static double order[CEILING_NUM_PREFETCH][MAX_REPETITIONS];
    bench_row_t *row = b->row;
    int n = 0, num_first = 0, num_second = 0, num_order[CEILING_NUM_PREFETCH] = {0};
    if (time_call(b) < 0) return b->error->code; /* warms up */
    double end = tool_seconds() + b->options->seconds;
    while (n < MAX_REPETITIONS && (n < LEAST_REPETITIONS || tool_seconds() < end)) {
        const char *name = "";
        if (!row->is_memory_bound) first[num_first++] = compute_ceiling(b, &name);
        times[n] = time_call(b);
        if (times[n] < 0) return b->error->code;
        if (!row->is_memory_bound) {
            first[num_first++] = compute_ceiling(b, &name);
            row->ceilings[0].name = name;
        } else if (b->pieces != NULL) {
            int kind = n % CEILING_NUM_PREFETCH; /* on the copy that was used longest ago */
            set_pieces(b, (n + 1 + b->num_copies / 2) % b->num_copies);
            order[kind][num_order[kind]++] = ceiling_read_pieces(
                b->pieces, b->num_pieces, b->piece_bytes, b->options->threads, (enum ceiling_prefetch)kind);
            if (n % 4 == 0)
                second[num_second++] = ceiling_read(b->stream_buffer, b->stream_bytes, b->options->threads);
        }
        n++;
    }
    row->repetitions = n;
    row->least = times[0];
    for (int i = 1; i < n; i++)
        if (times[i] < row->least) row->least = times[i];
    row->median = median(times, n);
    row->rate = (row->is_memory_bound ? row->bytes : row->flops) / row->median * 1e-9;
    if (!row->is_memory_bound) {
        row->ceilings[0].rate = median(first, num_first);
        return ATTN_OK;
    }
    row->ceilings[0].name = "same-order read";
    for (int kind = 0; kind < CEILING_NUM_PREFETCH; kind++) {
        double rate = median(order[kind], num_order[kind]);
        if (rate > row->ceilings[0].rate) row->ceilings[0].rate = rate;
    }
    row->ceilings[1].name = "read";
    row->ceilings[1].rate = row->read_ceiling = median(second, num_second);
    return ATTN_OK;
}

static int measure_gpu(bench_t *b) {
    bench_row_t *row = b->row;
    const gpu_ceilings_t *limits = b->options->limits;
    gpu_times_t t;
    b->error->code = ATTN_OK;
    if (bench_gpu_time(b->timer, enqueue, b, 1, &t) != 0) {
        if (b->error->code != ATTN_OK) return b->error->code;
        return attn_fail(b->error, ATTN_E_DEVICE, "", "the device reports a failed kernel");
    }
    row->median = t.sustained;
    row->least = t.least;
    row->burst = t.burst;
    row->host = t.host;
    row->repetitions = t.samples;
    row->rate = (row->is_memory_bound ? row->bytes : row->flops) / row->median * 1e-9;
    if (limits == NULL) return ATTN_OK;
    row->read_ceiling = limits->read;
    if (row->is_write)
        row->ceilings[0] = (bench_ceiling_t){"copy", limits->copy, limits->copy_burst};
    else if (row->is_memory_bound && limits->read > 0)
        row->ceilings[0] = (bench_ceiling_t){"read", limits->read, limits->read_burst};
    else if (row->is_memory_bound)
        row->ceilings[0] = (bench_ceiling_t){"copy", limits->copy, limits->copy_burst};
    else
        row->ceilings[0] = (bench_ceiling_t){"bf16 matmul", limits->matmul, limits->matmul_burst};
    return ATTN_OK;
}

/* The scale of a token's group, in the forms of make_block_scale. */
static double scale_of(const bench_t *b, const unsigned char *scales, int64_t token, int64_t group) {
    const DLTensor *t = &b->block_scale.dl;
    const uint64_t features = b->problem.features;
    float scale;
    if ((features & ATTN_F_OUT_NVFP4) != 0)
        return (double)bench_output_scale(&b->problem) *
               attn_from_e4m3(scales[(token / 128 * t->shape[1] + group / 4) * 512 + token % 32 * 16 +
                                     token / 32 % 4 * 4 + group % 4]);
    if ((features & ATTN_F_OUT_SCALE_UE8M0) != 0) return ldexp(1, scales[token * t->shape[1] + group] - 127);
    memcpy(&scale, scales + (token * t->shape[1] + group) * 4, sizeof scale);
    return (double)scale;
}

/* Codes of a quantised output as numbers; NULL without memory. */
static float *dequantise(const bench_t *b, const unsigned char *codes) {
    const int64_t width = b->z.heads * b->z.output, n = b->num_rows * width;
    const DLTensor *t = &b->block_scale.dl;
    const int64_t group = bench_output_group(&b->problem);
    size_t bytes = t->data != NULL ? t->dtype.bits / 8u : 0;
    for (int i = 0; bytes != 0 && i < t->ndim; i++)
        bytes *= (size_t)t->shape[i];
    unsigned char *scales = malloc(bytes + 1);
    float *out = malloc((size_t)n * sizeof *out);
    int failed = scales == NULL || out == NULL ||
                 (bytes != 0 && device_memory_read(b->memory, scales, attn_data(t), bytes) != 0);
    for (int64_t i = 0; !failed && i < n; i++) {
        const double scale = bytes != 0 ? scale_of(b, scales, i / width, i % width / group)
                                        : (double)bench_output_scale(&b->problem);
        const double code = (b->problem.features & ATTN_F_OUT_NVFP4) != 0
                                ? attn_from_e2m1(codes[i / 2] >> i % 2 * 4 & 15)
                                : attn_from_e4m3(codes[i]);
        out[i] = (float)(code * scale);
    }
    free(scales);
    if (!failed) return out;
    free(out);
    return NULL;
}

static void check(bench_t *b) {
    uint32_t dtype = b->problem.out_dtype != 0 ? b->problem.out_dtype : b->problem.dtype;
    size_t bytes =
        (size_t)(b->num_rows * b->z.heads * attn_output_columns(&b->problem)) * attn_dtype_size(dtype);
    void *output = malloc(bytes);
    b->row->error = -1;
    int failed =
        output == NULL || device_memory_read(b->memory, output, attn_data(&b->output.dl), bytes) != 0;
    if (!failed && (dtype == ATTN_DTYPE_FP8_E4M3 || dtype == ATTN_DTYPE_UINT8)) {
        float *numbers = dequantise(b, output);
        free(output);
        output = numbers;
        dtype = ATTN_DTYPE_FLOAT32;
        failed = output == NULL;
    }
    if (!failed) b->row->error = bench_error(b->row, output, dtype);
    free(output);
}

int bench_run(attn_context_t *context, const bench_options_t *options, bench_row_t *row) {
    ATTN_INIT(attn_error_t, error);
    bench_t *b = calloc(1, sizeof *b);
    row->error = -1;
    if (b == NULL) {
        snprintf(row->failure, sizeof row->failure, "out of memory");
        return ATTN_E_NO_MEMORY;
    }
    b->options = options;
    b->row = row;
    b->error = &error;
    int code = bench_setup(b, context);
    if (code == ATTN_OK) code = make_pieces(b);
    if (code == ATTN_OK) code = b->timer != NULL ? measure_gpu(b) : measure_cpu(b);
    if (code == ATTN_OK && !row->is_write) check(b);
    if (code != ATTN_OK) snprintf(row->failure, sizeof row->failure, "%s", error.text);
    bench_setup_end(b);
    free(b);
    return code;
}

int bench_limits(const attn_device_t *device, gpu_ceilings_t *limits) {
    device_memory_t *memory = NULL;
    int code = device_memory_open(device, &memory, NULL);
    device_timer_t *timer = code == ATTN_OK ? device_timer_open(device, NULL) : NULL;
    if (timer != NULL)
        bench_gpu_ceilings(device, memory, timer, limits);
    else
        code = ATTN_E_DEVICE;
    device_timer_close(timer);
    device_memory_close(memory);
    return code;
}
