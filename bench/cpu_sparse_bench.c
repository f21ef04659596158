/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_sparse_bench: a DeepSeek-V3.2 layer on a CPU by CPU_ATTN and REFERENCE: attention over selected tokens
 * with its projections, and the calls of the indexer. One thread, in processor time, which a busy machine
 * disturbs little; rates beside the multiply-add rates of the same run. */
#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_indexer.h>

#include "../tools/measure/ceilings_cpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 64, TOPK = 2048, LATENT = 512, ROPE = 64, NOPE = 128, VALUE = 128, INDEX = 128 };
static uint64_t seed = 20261124;
static const char *only = ""; /* rows with this in their name; "index": those of the indexer */
static attn_error_t error = {.struct_size = sizeof error};

static uint32_t random32(void) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 32);
}
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct tensor {
    DLTensor t;
    int64_t shape[3], strides[3];
} tensor_t;

static const DLTensor *over(tensor_t *x, void *data, uint32_t dtype, int ndim, int64_t a, int64_t b,
                            int64_t c) {
    const int64_t shape[3] = {a, b, c};
    int64_t count = 1;
    *x = (tensor_t){.t = {.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = attn_dl_dtype(dtype)}};
    for (int i = ndim - 1; i >= 0; i--) {
        x->shape[i] = shape[i], x->strides[i] = count;
        count *= shape[i];
    }
    x->t.shape = x->shape, x->t.strides = x->strides;
    return &x->t;
}

/* n bytes; kind 0: zeros, 1: bfloat16 around 0, 2: e4m3 below 2. */
static void *room(size_t n, int kind) {
    char *p = aligned_alloc(64, (n + 127) / 64 * 64);
    if (p == NULL) exit(4);
    memset(p, 0, n);
    for (size_t i = 0; kind == 1 && i < n / 2; i++)
        ((uint16_t *)(void *)p)[i] = attn_to_bf16((double)(int32_t)random32() * 0x1p-33);
    for (size_t i = 0; kind == 2 && i < n; i++)
        p[i] = (char)(random32() & 0xbf);
    return p;
}
static void must(int status, const char *what) {
    if (status == ATTN_OK) return;
    fprintf(stderr, "cpu_sparse_bench: %s: %s\n", what, error.text);
    exit(4);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the calls in about a second, and at least one. */
static double median_of(int (*call)(void *), void *arg, const char *what) {
    enum { MOST = 1000 };
    static double taken[MOST];
    int n = 0;
    for (double start = seconds(), t = start; n < MOST && t - start < 1;) {
        must(call(arg), what);
        const double now = seconds();
        taken[n++] = now - t;
        t = now;
    }
    qsort(taken, (size_t)n, sizeof taken[0], by_size);
    return taken[n / 2];
}

/* The highest rate so far: other work on the machine only lowers it. */
static double best_rate(double (*measure)(void), double *best) {
    for (int i = 0; i < 5; i++) {
        const double rate = measure();
        *best = rate > *best ? rate : *best;
    }
    return *best;
}
static double multiply_add(void) {
    return ceiling_fma("avx512", 1) > 0 ? ceiling_fma("avx512", 1) : ceiling_fma("generic", 1);
}
static double dots(void) {
    return ceiling_bf16_tiles(1) > 0 ? ceiling_bf16_tiles(1) : ceiling_bf16_dot(1);
}

static void report(const char *name, const char *backend, double s, double flops) {
    static double best[2];
    printf("%-34s %-10s %10.3f ms", name, backend, 1e3 * s);
    if (flops > 0) {
        const double rate = flops / s * 1e-9, f = best_rate(multiply_add, &best[0]),
                     d = best_rate(dots, &best[1]);
        printf("  %7.1f GFLOP/s, %3.0f %% of FMA %.0f", rate, 100 * rate / f, f);
        if (d > 0) printf(", %3.0f %% of bf16 products %.0f", 100 * rate / d, d);
    }
    printf("\n");
    fflush(stdout);
}

typedef struct layer {
    const attn_backend_ops_t *ops;
    attn_instance_t *in;
    attn_forward_t args;
    attn_space_t space;
} layer_t;

static int forward(void *arg) {
    layer_t *l = arg;
    return l->ops->forward(l->in, &l->args, &l->space, NULL, &error);
}

static void attend(const attn_backend_t *b, const char *name, uint32_t heads, int32_t tokens, int32_t keys,
                   uint32_t kv, int every_other) {
    if (strstr(name, only) == NULL) return;
    const attn_problem_t p = {.struct_size = sizeof p,
                              .role = ATTN_ROLE_MLA_SPARSE,
                              .mask = ATTN_MASK_CAUSAL,
                              .dtype = ATTN_DTYPE_BFLOAT16,
                              .kv_cache_dtype = kv,
                              .num_heads = heads,
                              .head_size = LATENT + ROPE,
                              .kv_lora_rank = LATENT,
                              .qk_rope_head_dim = ROPE,
                              .qk_nope_head_dim = NOPE,
                              .v_head_dim = VALUE,
                              .block_size = PAGE,
                              .topk = TOPK,
                              .scale = 0.07,
                              .max_num_seqs = 1,
                              .max_num_batched_tokens = (uint32_t)tokens,
                              .max_model_len = keys};
    const int64_t blocks = keys / PAGE, row = kv != 0 ? 656 : (LATENT + ROPE) * 2;
    const uint32_t storage = kv != 0 ? ATTN_DTYPE_UINT8 : ATTN_DTYPE_BFLOAT16;
    attn_option_value_t options[2] = {{.struct_size = sizeof options[0], .s = "auto"},
                                      {.struct_size = sizeof options[1], .i = 1}};
    attn_space_needed_t need = {.struct_size = sizeof need};
    tensor_t tq, tc, to, tk, tt, tw;
    layer_t l = {.ops = b->ops};
    const uint32_t num = strcmp(b->name, "CPU_ATTN") == 0 ? 2 : 0;
    must(b->ops->open(&p, NULL, options, num, NULL, &l.in, &error), "open");
    must(b->ops->space_needed(l.in, &need, &error), "space_needed");
    l.space = (attn_space_t){.struct_size = sizeof l.space,
                             .metadata = room(need.metadata_bytes, 0),
                             .metadata_bytes = need.metadata_bytes,
                             .workspace = room(need.workspace_bytes, 0),
                             .workspace_bytes = need.workspace_bytes};
    attn_weights_t w = {.struct_size = sizeof w,
                        .weight_space = room(need.weight_bytes, 0),
                        .weight_space_bytes = need.weight_bytes};
    void *weights = room((size_t)heads * (NOPE + VALUE) * LATENT * 2, 1);
    w.kv_b_proj = over(&tw, weights, ATTN_DTYPE_BFLOAT16, 2, (int64_t)heads * (NOPE + VALUE), LATENT, 0);
    must(b->ops->prepare_weights(l.in, &w, NULL, &error), "prepare_weights");
    char *cache = room((size_t)(keys * row), kv != 0 ? 2 : 1);
    for (int32_t k = 0; kv != 0 && k < keys; k++)
        for (int i = 0; i < 4; i++)
            memcpy(cache + k * row + 512 + 4 * i, &(float){0.25f}, 4);
    int32_t *table = room((size_t)blocks * 4, 0), *topk = room((size_t)tokens * TOPK * 4, 0);
    for (int32_t i = 0; i < blocks; i++)
        table[i] = (int32_t)((i * INT64_C(7919)) % blocks);
    for (int64_t i = 0; i < (int64_t)tokens * TOPK; i++)
        topk[i] = every_other && i % 2 ? -1 : (int32_t)(random32() % (uint32_t)keys);
    const int32_t start[2] = {0, tokens}, len[1] = {keys};
    const attn_batch_t batch = {.struct_size = sizeof batch,
                                .num_reqs = 1,
                                .num_actual_tokens = tokens,
                                .query_start_loc_host = start,
                                .seq_lens_host = len,
                                .block_table = over(&tt, table, ATTN_DTYPE_INT32, 2, 1, blocks, 0)};
    must(b->ops->build_metadata(l.in, &batch, &l.space, NULL, &error), "build_metadata");
    void *query = room((size_t)tokens * heads * (NOPE + ROPE) * 2, 1),
         *out = room((size_t)tokens * heads * VALUE * 2, 0);
    l.args = (attn_forward_t){.struct_size = sizeof l.args,
                              .query = over(&tq, query, ATTN_DTYPE_BFLOAT16, 3, tokens, heads, NOPE + ROPE),
                              .kv_cache =
                                  over(&tc, cache, storage, 3, blocks, PAGE, kv != 0 ? 656 : LATENT + ROPE),
                              .output = over(&to, out, ATTN_DTYPE_BFLOAT16, 3, tokens, heads, VALUE),
                              .topk_indices = over(&tk, topk, ATTN_DTYPE_INT32, 2, tokens, TOPK, 0),
                              .weight_space = w.weight_space,
                              .weight_space_bytes = w.weight_space_bytes};
    const double n = every_other ? TOPK / 2 : TOPK;
    report(name, b->name, median_of(forward, &l, "forward"),
           2.0 * tokens * heads * (n * (2 * LATENT + ROPE) + (double)LATENT * (NOPE + VALUE)));
    b->ops->close(l.in);
    free(l.space.metadata), free(l.space.workspace), free(w.weight_space), free(weights);
    free(cache), free(table), free(topk), free(query), free(out);
}

typedef struct index_call {
    const attn_indexer_extension_t *x;
    attn_indexer_t *in;
    attn_indexer_paged_t paged;
    attn_indexer_select_t select;
} index_call_t;

static int logits(void *arg) {
    index_call_t *c = arg;
    return c->x->logits_paged(c->in, &c->paged, NULL, &error);
}
static int selection(void *arg) {
    index_call_t *c = arg;
    return c->x->select(c->in, &c->select, NULL, &error);
}

static void index_keys(const attn_backend_t *b, int32_t keys) {
    enum { HEADS = 64 };
    const attn_indexer_problem_t p = {.struct_size = sizeof p, .num_heads = HEADS};
    const attn_device_t device = {.struct_size = sizeof device, .type = kDLCPU};
    const int64_t blocks = keys / PAGE;
    tensor_t tq, tw, tc, tt, tn, tl, ti;
    index_call_t c = {.x = b->ops->get_extension(NULL, ATTN_INDEXER_EXTENSION)};
    must(c.x->open(&p, &device, NULL, &c.in, &error), "open");
    void *query = room(HEADS * INDEX, 2), *cache = room((size_t)keys * (INDEX + 4), 2);
    float *weights = room(HEADS * 4, 0), *out = room((size_t)keys * 4, 0);
    int32_t *table = room((size_t)blocks * 4, 0), *topk = room(TOPK * 4, 0);
    for (int i = 0; i < HEADS; i++)
        weights[i] = (float)(int32_t)random32() * 0x1p-31f;
    for (int32_t i = 0; i < blocks; i++) {
        table[i] = (int32_t)((i * INT64_C(7919)) % blocks);
        for (int k = 0; k < PAGE; k++)
            memcpy((char *)cache + (int64_t)i * PAGE * (INDEX + 4) + PAGE * INDEX + 4 * k,
                   &(float){0.5f + (float)(random32() % 64) / 64}, 4);
    }
    c.paged = (attn_indexer_paged_t){.struct_size = sizeof c.paged,
                                     .num_rows = 1,
                                     .query = over(&tq, query, ATTN_DTYPE_FP8_E4M3, 3, 1, HEADS, INDEX),
                                     .weights = over(&tw, weights, ATTN_DTYPE_FLOAT32, 2, 1, HEADS, 0),
                                     .cache = over(&tc, cache, ATTN_DTYPE_UINT8, 3, blocks, PAGE, INDEX + 4),
                                     .block_table = over(&tt, table, ATTN_DTYPE_INT32, 2, 1, blocks, 0),
                                     .row_lens = over(&tn, &keys, ATTN_DTYPE_INT32, 1, 1, 0, 0),
                                     .logits = over(&tl, out, ATTN_DTYPE_FLOAT32, 2, 1, keys, 0)};
    c.select = (attn_indexer_select_t){.struct_size = sizeof c.select,
                                       .num_rows = 1,
                                       .logits = &tl.t,
                                       .row_ends = &tn.t,
                                       .indices = over(&ti, topk, ATTN_DTYPE_INT32, 2, 1, TOPK, 0)};
    char name[64];
    snprintf(name, sizeof name, "index logits, 1 row, %d keys", keys);
    report(name, b->name, median_of(logits, &c, "logits"), 2.0 * HEADS * INDEX * keys);
    snprintf(name, sizeof name, "top %d of %d", TOPK, keys);
    report(name, b->name, median_of(selection, &c, "select"), 0);
    c.x->close(c.in);
    free(query), free(cache), free(weights), free(out), free(table), free(topk);
}

static const attn_backend_t *load(const char *path) {
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const attn_plugin_t *plugin = so ? dlsym(so, ATTN_PLUGIN_SYMBOL_NAME) : NULL;
    if (plugin == NULL) {
        fprintf(stderr, "cpu_sparse_bench: %s: %s\n", path, dlerror());
        exit(4);
    }
    return plugin->backends[0];
}

int main(int argc, char **argv) {
    const char *threads = getenv("OMP_NUM_THREADS");
    if (threads == NULL || strcmp(threads, "1") != 0) { /* OpenMP has read it by now: once more */
        setenv("OMP_NUM_THREADS", "1", 1);
        execvp(argv[0], argv);
    }
    for (int i = 1; i < argc; i++) {
        if (strstr(argv[i], ".so") == NULL) {
            only = argv[i];
            continue;
        }
        const attn_backend_t *b = load(argv[i]);
        attend(b, "decode, 16 heads, bf16", 16, 1, 32768, 0, 0);
        attend(b, "decode, 16 heads, 656 bytes", 16, 1, 32768, ATTN_KV_FP8_DS_MLA, 0);
        attend(b, "decode, 128 heads, bf16", 128, 1, 32768, 0, 0);
        attend(b, "decode, 128 heads, 656 bytes", 128, 1, 32768, ATTN_KV_FP8_DS_MLA, 0);
        attend(b, "128 heads, every other entry -1", 128, 1, 32768, ATTN_KV_FP8_DS_MLA, 1);
        if (strcmp(b->name, "REFERENCE") != 0)
            attend(b, "prefill 64, 128 heads, 656 bytes", 128, 64, 32768, ATTN_KV_FP8_DS_MLA, 0);
        if (strstr("index", only) != NULL) index_keys(b, 32768);
    }
    if (argc < 2) fprintf(stderr, "usage: cpu_sparse_bench [ROWS] PLUGIN.so [PLUGIN.so]\n");
    return argc < 2 ? 2 : 0;
}
