/* SPDX-License-Identifier: Apache-2.0 */
/* mla_bench PLUGIN.so [PROJECTIONS [latent [TEXT]]]: times of one whole MLA layer step (absorption,
 * attention, merge, values) through the plugin ABI, as replays of one captured graph: median after 150 ms of
 * the same load. PROJECTIONS: the option, auto, cublas or own; latent: queries come absorbed and latents
 * leave (anything else: they do not). Rows whose name contains TEXT. MLA_LAYERS=N, at most 16: layers
 * with caches and weights of their own take turns, as a model's do. */
#include "mla_step.h"

#include <attn/attn_plugin.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { MOST_LAYERS = 16 };
static int layers = 1;
enum holes { NO_HOLES, HALF_AT_RANDOM, HALF_AT_END, NUM_HOLES };

/* Half of the positions of each list name nothing. */
static void make_holes(const mla_step *s, enum holes holes) {
    const size_t topk = s->problem.topk, count = topk * s->problem.max_num_batched_tokens;
    int32_t *lists = malloc(count * sizeof *lists);
    uint64_t seed = 11;
    cudaMemcpy(lists, s->topk, count * sizeof *lists, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < count; i++)
        if (holes == HALF_AT_RANDOM ? mla_step_random(&seed) & 1 : i % topk >= topk / 2) lists[i] = -1;
    cudaMemcpy(s->topk, lists, count * sizeof *lists, cudaMemcpyHostToDevice);
    free(lists);
}

static void run(const attn_backend_t *backend, const attn_problem_t *p, const char *name, int reqs,
                int query_len, int seq_len, enum holes holes) {
    mla_step all[MOST_LAYERS];
    int32_t q[256], lens[256];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t e0, e1;
    double us[200], spent = 0;
    int n = 0, status = ATTN_OK, at = 0;
    for (int r = 0; r < reqs; r++)
        q[r] = query_len, lens[r] = seq_len;
    cudaStreamCreate(&stream), cudaEventCreate(&e0), cudaEventCreate(&e1);
    for (int i = 0; i < layers && status == ATTN_OK; i++) {
        mla_step *s = &all[at = i];
        status = mla_step_open(s, backend, p, (seq_len + 63) / 64);
        if (status == ATTN_OK) status = mla_step_build(s, q, lens, reqs, 0, 0, 0, stream);
        if (status == ATTN_OK && holes) make_holes(s, holes);
    }
    if (status != ATTN_OK) {
        printf("%s: %s\n", name, all[at].error.text);
        return;
    }
    cudaStreamSynchronize(stream);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    for (int i = 0; i < layers && status == ATTN_OK; i++)
        status = mla_step_forward(&all[at = i], stream);
    cudaStreamEndCapture(stream, &graph);
    if (status != ATTN_OK || cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) {
        printf("%s: %s\n", name, all[at].error.text);
        return;
    }
    while (n < 200 && spent < 400e3) {
        float ms = 0;
        cudaEventRecord(e0, stream);
        for (int i = 0; i < 4; i++)
            cudaGraphLaunch(exec, stream);
        cudaEventRecord(e1, stream);
        cudaEventSynchronize(e1);
        cudaEventElapsedTime(&ms, e0, e1);
        spent += ms * 1e3;
        if (spent > 150e3 || n > 0) us[n++] = ms * 1e3 / (4 * layers);
    }
    qsort(us, (size_t)n, sizeof us[0], by_value);
    double keys = p->topk          ? holes ? p->topk / 2 : p->topk
                  : query_len > 16 ? seq_len - query_len / 2.0
                                   : seq_len;
    double flops = 2.0 * reqs * query_len * p->num_heads * keys * (576 + 512);
    double bytes = p->topk ? 0 : (double)reqs * seq_len * 1152;
    printf("%-38s %9.1f us  %6.0f TFLOP/s  %6.0f GB/s  (n = %d, %s)\n", name, us[n / 2],
           flops / us[n / 2] * 1e-6, bytes / us[n / 2] * 1e-3, n, cudaGetErrorString(cudaGetLastError()));
    fflush(stdout);
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
    for (int i = 0; i < layers; i++)
        mla_step_close(&all[i]);
}

int main(int argc, char **argv) {
    void *file = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    const attn_plugin_t *plugin = file ? dlsym(file, ATTN_PLUGIN_SYMBOL_NAME) : NULL;
    if (plugin == NULL || mla_test_set(MLA_TEST_PROJECTIONS, argc > 2 ? argv[2] : "auto") != 0) {
        fprintf(stderr, "usage: mla_bench PLUGIN.so [auto|cublas|own [latent]]\n%s\n",
                argc > 1 && file == NULL ? dlerror() : "");
        return 2;
    }
    const char *text = getenv("MLA_LAYERS");
    if (text != NULL) layers = atoi(text);
    if (layers < 1 || layers > MOST_LAYERS) {
        fprintf(stderr, "MLA_LAYERS is %s; wanted are 1 to %d layers\n", text, MOST_LAYERS);
        return 2;
    }
    const attn_backend_t *backend = plugin->backends[0];
    const int is_latent = argc > 3 && strcmp(argv[3], "latent") == 0;
    int is_sparse = (backend->capabilities->roles & ATTN_BIT(ATTN_ROLE_MLA_SPARSE)) != 0;
    static const struct {
        int sparse, heads, reqs, query_len, seq_len, has_holes;
    } cases[] = {{0, 128, 64, 1, 8192, 0},    {0, 128, 64, 2, 8192, 0},   {0, 16, 64, 1, 8192, 0},
                 {0, 128, 1, 1, 65536, 0},    {0, 128, 128, 1, 4096, 0},  {0, 128, 1, 1, 1024, 0},
                 {0, 16, 1, 2048, 2048, 0},   {1, 128, 128, 1, 32768, 0}, {1, 64, 128, 1, 32768, 0},
                 {1, 128, 1, 1024, 32768, 0}, {1, 128, 40, 1, 16384, 1},  {1, 64, 40, 1, 16384, 1},
                 {0, 128, 1, 1, 8192, 0},     {0, 128, 1, 1, 131072, 0},  {0, 16, 1, 1, 8192, 0},
                 {0, 16, 1, 1, 65536, 0},     {0, 128, 4, 1, 8192, 0},    {0, 128, 64, 4, 8192, 0},
                 {0, 128, 40, 2, 8192, 0},    {0, 128, 128, 2, 4096, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int fp8 = 0; fp8 < (is_sparse ? 2 : 3); fp8++) { /* the cache, the queries too */
            char name[96];
            if (cases[i].sparse != is_sparse) continue;
            attn_problem_t p = {.struct_size = sizeof p,
                                .role = is_sparse ? ATTN_ROLE_MLA_SPARSE : ATTN_ROLE_MLA,
                                .mask = ATTN_MASK_CAUSAL,
                                .dtype = ATTN_DTYPE_BFLOAT16,
                                .num_heads = (uint32_t)cases[i].heads,
                                .head_size = 576,
                                .kv_lora_rank = 512,
                                .qk_rope_head_dim = 64,
                                .qk_nope_head_dim = 128,
                                .v_head_dim = 128,
                                .block_size = 64,
                                .scale = 0.0722,
                                .max_num_seqs = (uint32_t)cases[i].reqs,
                                .max_num_batched_tokens = (uint32_t)(cases[i].reqs * cases[i].query_len),
                                .max_model_len = cases[i].seq_len,
                                .features = ATTN_F_LSE | ATTN_F_CAPTURE,
                                .topk = is_sparse ? 2048 : 0,
                                .query_dtype = fp8 == 2 ? ATTN_DTYPE_FP8_E4M3 : 0,
                                .kv_cache_dtype =
                                    fp8 ? is_sparse ? ATTN_KV_FP8_DS_MLA : ATTN_KV_FP8_E4M3 : 0};
            if (is_latent) p.features |= ATTN_F_LATENT, p.qk_nope_head_dim = p.v_head_dim = 0;
            snprintf(name, sizeof name, "H=%d %dx%d q=%d%s", cases[i].heads, cases[i].reqs, cases[i].seq_len,
                     cases[i].query_len,
                     fp8 == 0   ? ""
                     : fp8 == 1 ? " fp8"
                                : " fp8, queries too");
            for (int holes = 0; holes < (cases[i].has_holes ? NUM_HOLES : 1); holes++) {
                static const char *const names[] = {", no -1", ", half -1", ", -1 at the end"};
                char full[128];
                snprintf(full, sizeof full, "%s%s", name, cases[i].has_holes ? names[holes] : "");
                if (argc > 4 && strstr(full, argv[4]) == NULL) continue;
                run(backend, &p, full, cases[i].reqs, cases[i].query_len, cases[i].seq_len,
                    (enum holes)holes);
            }
        }
    return 0;
}
