/* SPDX-License-Identifier: Apache-2.0 */
/* mla_prefill_bench MLA.so FLASH.so [PROJECTIONS]: prefill of latent attention. First the attention alone, as
 * FLASH.so serves role mla_prefill (192 and 128 columns a head); then whole layers of MLA.so, in the
 * multi-head form (gather, up-projection, attention, merge) and in the absorbed one. Each is the median over
 * about 300 ms after 150 ms of the same load. */
#include "mla_step.h"
#include "plan_host.h"

#include <attn/attn_plugin.h>
#include <dlfcn.h>
#include <stdio.h>

typedef struct work {
    int (*run)(void *ctx, void *stream);
    void *ctx;
} work;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of one call; a negative number if it failed. */
static double time_of(work w, void *stream) {
    cudaEvent_t e0, e1;
    double us[400], spent = 0;
    int n = 0, calls = 1;
    cudaEventCreate(&e0), cudaEventCreate(&e1);
    if (w.run(w.ctx, stream) != ATTN_OK || cudaStreamSynchronize(stream) != cudaSuccess) return -1;
    while (n < 400 && spent < 450e3) {
        float ms = 0;
        cudaEventRecord(e0, stream);
        for (int i = 0; i < calls; i++)
            if (w.run(w.ctx, stream) != ATTN_OK) return -1;
        cudaEventRecord(e1, stream);
        cudaEventSynchronize(e1);
        cudaEventElapsedTime(&ms, e0, e1);
        spent += ms * 1e3;
        if (spent > 150e3) us[n++] = ms * 1e3 / calls;
        if (ms < 1 && calls < 16) calls *= 2;
    }
    cudaEventDestroy(e0), cudaEventDestroy(e1);
    qsort(us, (size_t)n, sizeof us[0], by_value);
    return n > 0 && cudaGetLastError() == cudaSuccess ? us[n / 2] : -1;
}

/* Normal random bfloat16 over what a device buffer holds: what numbers a GPU multiplies decides how fast it
 * may run, and normal ones are what other kernels are measured with. */
static void fill_normal(void *device, size_t bytes, double sigma, uint64_t seed) {
    const size_t part = bytes < (1u << 22) ? bytes : (1u << 22);
    uint16_t *h = malloc(part + 2);
    for (size_t i = 0; i < part / 2; i++) {
        double sum = -6; /* of twelve uniform numbers: close enough to normal */
        for (int k = 0; k < 12; k++)
            sum += mla_step_random(&seed) / 4294967296.0;
        float x = (float)(sum * sigma);
        uint32_t bits;
        memcpy(&bits, &x, 4);
        h[i] = (uint16_t)(bits >> 16);
    }
    for (size_t at = 0; at < bytes; at += part)
        cudaMemcpy((char *)device + at, h, bytes - at < part ? bytes - at : part, cudaMemcpyHostToDevice);
    free(h);
}

static void report(const char *name, double us, double flops) {
    printf("%-44s %10.1f us  %6.0f TFLOP/s\n", name, us, flops / us * 1e-6);
    fflush(stdout);
}

static attn_problem_t problem_of(uint32_t role, int heads, int reqs, int query, int seq) {
    return (attn_problem_t){.struct_size = sizeof(attn_problem_t),
                            .role = role,
                            .mask = ATTN_MASK_CAUSAL,
                            .dtype = ATTN_DTYPE_BFLOAT16,
                            .num_heads = (uint32_t)heads,
                            .head_size = role == ATTN_ROLE_MLA ? 576 : 192,
                            .kv_lora_rank = 512,
                            .qk_rope_head_dim = 64,
                            .qk_nope_head_dim = 128,
                            .v_head_dim = 128,
                            .block_size = role == ATTN_ROLE_MLA ? 64 : 0,
                            .scale = 0.0722,
                            .max_num_seqs = (uint32_t)reqs,
                            .max_num_batched_tokens = (uint32_t)(reqs * query),
                            .max_model_len = seq,
                            .features = ATTN_F_LSE};
}

/* Multiplications and additions of the multi-head form without the projections (M2). */
static double attention_flops(int heads, int reqs, double query, double seq) {
    return 2.0 * reqs * heads * query * (seq - (query - 1) / 2) * (192 + 128);
}

/* ------------------------------------------------------- the attention alone */

typedef struct dense {
    const attn_backend_ops_t *ops;
    attn_instance_t *instance;
    attn_space_t space;
    attn_forward_t forward;
    attn_error_t error;
} dense;

static int run_dense(void *ctx, void *stream) {
    dense *d = ctx;
    return d->ops->forward(d->instance, &d->forward, &d->space, stream, &d->error);
}

static void bench_dense(const attn_backend_t *backend, int heads, int tokens, void *stream) {
    attn_problem_t p = problem_of(ATTN_ROLE_MLA_PREFILL, heads, 1, tokens, tokens);
    attn_device_t device = {.struct_size = sizeof device, .type = kDLCUDA};
    mla_step s; /* for its tensors */
    dense d = {.ops = backend->ops, .error.struct_size = sizeof d.error};
    memset(&s, 0, sizeof s);
    if (d.ops->open(&p, &device, NULL, 0, &plan_host, &d.instance, &d.error) != ATTN_OK) {
        printf("attention alone: %s\n", d.error.text);
        return;
    }
    attn_space_needed_t need = {.struct_size = sizeof need};
    d.ops->space_needed(d.instance, &need, &d.error);
    d.space = (attn_space_t){.struct_size = sizeof d.space,
                             .metadata_bytes = need.metadata_bytes,
                             .workspace_bytes = need.workspace_bytes,
                             .host_bytes = need.host_bytes};
    cudaMalloc(&d.space.metadata, need.metadata_bytes + 1);
    cudaMalloc(&d.space.workspace, need.workspace_bytes + 1);
    cudaMallocHost(&d.space.host, need.host_bytes + 1);
    const DLDataType bf16 = attn_dl_dtype(ATTN_DTYPE_BFLOAT16);
    DLTensor t[4];
    const int columns[4] = {192, 192, 128, 128};
    void *data[4];
    for (int i = 0; i < 4; i++) {
        const size_t bytes = (size_t)tokens * (size_t)heads * (size_t)columns[i] * 2;
        data[i] = mla_step_fill(bytes, 1, 0, (uint64_t)i + 1);
        fill_normal(data[i], bytes, 1, (uint64_t)i + 1);
        mla_step_tensor(&s, i, &t[i], data[i], bf16, 3, tokens, heads, columns[i]);
    }
    const int32_t start[2] = {0, tokens}, lens[1] = {tokens};
    int32_t *on_device[2];
    DLTensor q_start, seq_lens;
    cudaMalloc((void **)&on_device[0], 8), cudaMalloc((void **)&on_device[1], 4);
    cudaMemcpy(on_device[0], start, 8, cudaMemcpyHostToDevice);
    cudaMemcpy(on_device[1], lens, 4, cudaMemcpyHostToDevice);
    mla_step_tensor(&s, 4, &q_start, on_device[0], attn_dl_dtype(ATTN_DTYPE_INT32), 1, 2, 1, 1);
    mla_step_tensor(&s, 5, &seq_lens, on_device[1], attn_dl_dtype(ATTN_DTYPE_INT32), 1, 1, 1, 1);
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = 1,
                      .num_actual_tokens = tokens,
                      .query_start_loc_host = start,
                      .seq_lens_host = lens,
                      .query_start_loc = &q_start,
                      .seq_lens = &seq_lens};
    d.forward = (attn_forward_t){
        .struct_size = sizeof d.forward, .query = &t[0], .key = &t[1], .value = &t[2], .output = &t[3]};
    double us = -1;
    if (d.ops->build_metadata(d.instance, &b, &d.space, stream, &d.error) == ATTN_OK)
        us = time_of((work){run_dense, &d}, stream);
    char name[80];
    snprintf(name, sizeof name, "M2 attention alone H=%d S=%d", heads, tokens);
    if (us > 0)
        report(name, us, attention_flops(heads, 1, tokens, tokens));
    else
        printf("%s: %s\n", name, d.error.text);
    d.ops->close(d.instance);
    for (int i = 0; i < 4; i++)
        cudaFree(data[i]);
    cudaFree(on_device[0]), cudaFree(on_device[1]);
    cudaFree(d.space.metadata), cudaFree(d.space.workspace), cudaFreeHost(d.space.host);
}

/* --------------------------------------------------------------- whole layers */

static int run_layer(void *ctx, void *stream) {
    return mla_step_forward(ctx, stream);
}

static void bench_layer(const attn_backend_t *backend, int heads, int reqs, int query, int seq, int fp8,
                        int form, void *stream) {
    static const char *const forms[] = {"auto", "absorbed", "projected"};
    attn_problem_t p = problem_of(ATTN_ROLE_MLA, heads, reqs, query, seq);
    int32_t q[256], lens[256];
    mla_step s;
    char name[80];
    snprintf(name, sizeof name, "layer H=%d %dx%d of %d%s, %s", heads, reqs, query, seq, fp8 ? " fp8" : "",
             forms[form]);
    p.kv_cache_dtype = fp8 ? ATTN_KV_FP8_E4M3 : 0;
    for (int r = 0; r < reqs; r++)
        q[r] = query, lens[r] = seq;
    mla_test_set(MLA_TEST_PREFILL, forms[form]);
    int status = mla_step_open(&s, backend, &p, (seq + 63) / 64);
    if (status == ATTN_OK) {
        const size_t rows = (size_t)reqs * (size_t)query * (size_t)heads, pages = (size_t)s.num_blocks;
        fill_normal(s.query, rows * 192 * 2, 1, 2);
        fill_normal(s.weights, (size_t)heads * 256 * 512 * 2, 0.0442, 4); /* 1 / sqrt(512) */
        if (!fp8) fill_normal(s.cache, pages * 64 * 576 * 2, 1, 1);
        attn_weights_t w = {
            .struct_size = sizeof w, .kv_b_proj = &s.t_weights, .weight_space = s.weight_space};
        w.weight_space_bytes = s.weight_bytes;
        status = backend->ops->prepare_weights(s.instance, &w, NULL, &s.error);
    }
    if (status == ATTN_OK) status = mla_step_build(&s, q, lens, reqs, 0, 0, 0, stream);
    double us = status == ATTN_OK ? time_of((work){run_layer, &s}, stream) : -1;
    if (us > 0)
        report(name, us, attention_flops(heads, reqs, query, seq));
    else
        printf("%s: %s\n", name, s.error.text);
    if (status == ATTN_OK) mla_step_close(&s);
}

static const attn_backend_t *first_of(const char *path) {
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const attn_plugin_t *plugin = file ? dlsym(file, ATTN_PLUGIN_SYMBOL_NAME) : NULL;
    if (plugin == NULL) fprintf(stderr, "%s: %s\n", path, dlerror());
    return plugin ? plugin->backends[0] : NULL;
}

int main(int argc, char **argv) {
    const attn_backend_t *mla = argc > 2 ? first_of(argv[1]) : NULL,
                         *flash = argc > 2 ? first_of(argv[2]) : NULL;
    if (mla == NULL || flash == NULL ||
        mla_test_set(MLA_TEST_PROJECTIONS, argc > 3 ? argv[3] : "auto") != 0) {
        fprintf(stderr, "usage: mla_prefill_bench MLA.so FLASH.so [auto|cublas|own]\n");
        return 2;
    }
    cudaStream_t stream;
    mla_step_host = &plan_host;
    if (cudaStreamCreate(&stream) != cudaSuccess) {
        printf("no CUDA device\n");
        return 1;
    }
    bench_dense(flash, 128, 8192, stream);
    bench_dense(flash, 16, 8192, stream);
    static const struct {
        int heads, reqs, query, seq, fp8, absorbed;
    } layers[] = {{128, 1, 8192, 8192, 0, 1}, {16, 1, 8192, 8192, 0, 1}, {16, 16, 512, 512, 0, 1},
                  {16, 1, 2048, 65536, 0, 1}, {16, 8, 512, 32768, 0, 0}, {128, 1, 4096, 65536, 0, 0},
                  {16, 1, 512, 131072, 0, 1}, {16, 1, 2048, 65536, 1, 0}};
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        for (int form = 2; form >= (layers[i].absorbed ? 1 : 2); form--)
            bench_layer(mla, layers[i].heads, layers[i].reqs, layers[i].query, layers[i].seq, layers[i].fp8,
                        form, stream);
    return 0;
}
