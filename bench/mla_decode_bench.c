/* SPDX-License-Identifier: Apache-2.0 */
/* mla_decode_bench: what the kernels of one absorbed layer step take on Hopper, in bfloat16, latent 512, rope
 * 64, nope and value 128, pages of 64 in random order. Replays of a graph that repeats absorb, attend, merge,
 * values or some of them, median after 150 ms of the same load. "attention" is the time of the first three
 * less that of the first, with our absorption. Projections by our kernel and by cuBLAS; a layer with ours,
 * with values by cuBLAS, and with both by cuBLAS: after
 * 1.2 s of it the mean of eight measurements each, in turn, because the clock of a GPU at its limit of power
 * swings within a second, and is high after a rest. A star: what the plugin does. Without the library of
 * cuBLAS its columns repeat ours. With the word e4m3: only caches of e4m3. */
#include "kernels/cuda/latent/mla_blas.h"
#include "kernels/cuda/latent/mla_config.h"
#include "kernels/cuda/latent/mla_decode_sm90.h"
#include "kernels/cuda/latent/mla_launch.h"
#include "kernels/cuda/latent/mla_plan.h"
#include "mla_step.h"

#include <stdio.h>
#include <string.h>

enum {
    ABSORB = 1,
    ATTEND = 2,
    MERGE = 4,
    VALUES = 8,
    ABSORB_BLAS = 16,
    VALUES_BLAS = 32,
    LATENT = 512,
    NOPE = 128,
    VALUE = 128,
    PAGE = 64
};

typedef struct step {
    void *encode_tiled;
    mla_blas *blas;
    mla_config config;
    mla_attend_params attend;
    mla_project_params absorb, values;
    int num_splits, status;
} step;

static int project(const step *s, mla_product product, const mla_project_params *p, int is_blas,
                   void *stream) {
    if (is_blas && s->blas != NULL && mla_blas_multiply(s->blas, product, p, stream) == 0) return 0;
    return mla_project(p, stream);
}

static void launch(step *s, int what, void *stream) {
    if (what & (ABSORB | ABSORB_BLAS) && !s->status)
        s->status = project(s, MLA_ABSORB, &s->absorb, what & ABSORB_BLAS, stream);
    if (what & ATTEND && !s->status)
        s->status = mla_decode_sm90_run(s->encode_tiled, &s->attend, s->config.ctas, s->config.parts, stream);
    if (what & MERGE && s->num_splits && !s->status)
        s->status = mla_decode_sm90_merge(&s->attend, s->num_splits, stream);
    if (what & (VALUES | VALUES_BLAS) && !s->status)
        s->status = project(s, MLA_VALUES, &s->values, what & VALUES_BLAS, stream);
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Microseconds of one repetition, after warm_us of the same load. */
static double time_of(step *s, int what, double warm_us, double us_in_all) {
    enum { REPEAT = 8, MAX_TIMES = 4000 };
    static float us[MAX_TIMES];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    double spent = 0;
    int n = 0;
    cudaStreamCreate(&stream), cudaEventCreate(&from), cudaEventCreate(&to);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    for (int i = 0; i < REPEAT; i++)
        launch(s, what, stream);
    cudaStreamEndCapture(stream, &graph);
    if (s->status || cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) return -1;
    while (n < MAX_TIMES && spent < us_in_all) {
        float ms = 0;
        cudaEventRecord(from, stream);
        cudaGraphLaunch(exec, stream);
        cudaEventRecord(to, stream);
        cudaEventSynchronize(to);
        cudaEventElapsedTime(&ms, from, to);
        spent += ms * 1e3;
        if (spent > warm_us) us[n++] = ms * 1e3f / REPEAT;
    }
    qsort(us, (size_t)n, sizeof us[0], by_value);
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
    return us[n / 2];
}

static void *on_device(const void *data, size_t bytes) {
    void *d = NULL;
    cudaMalloc(&d, bytes);
    cudaMemcpy(d, data, bytes, cudaMemcpyHostToDevice);
    return d;
}

static void run(int heads, int reqs, int query_len, int seq_len, int cache_kind, int num_sms, int clusters) {
    enum { MAX_REQS = 256 };
    int32_t q_start[MAX_REQS + 1], lens[MAX_REQS];
    const int row_bytes = cache_kind == MLA_CACHE_E4M3 ? 576 : 1152;
    const int tokens = reqs * query_len, pages = (seq_len + PAGE - 1) / PAGE;
    step s = {.status = 0};
    s.config = mla_config_choose(&(mla_config_input){.compute_capability = 90,
                                                     .num_sms = num_sms,
                                                     .clusters = clusters,
                                                     .heads = heads,
                                                     .latent = LATENT,
                                                     .value = VALUE,
                                                     .cache_kind = cache_kind,
                                                     .scale = 0.0722});
    for (int r = 0; r <= reqs; r++)
        q_start[r] = r * query_len;
    for (int r = 0; r < reqs; r++)
        lens[r] = seq_len;
    mla_plan_input in = {.q_start = q_start,
                         .seq_lens = lens,
                         .num_reqs = reqs,
                         .num_heads = heads,
                         .slots = s.config.slots,
                         .tile_rows = s.config.tile_rows,
                         .parts = s.config.parts,
                         .slice_tokens = tokens};
    mla_plan_limits l = {.max_seqs = reqs, .max_tokens = tokens};
    mla_plan_capacity(&l, &in);
    mla_slice slice;
    mla_item *items = calloc((size_t)l.max_items, sizeof *items);
    mla_split *splits = calloc((size_t)l.max_splits + 1, sizeof *splits);
    int32_t *parts = calloc((size_t)in.parts + 1, sizeof *parts), *table = calloc((size_t)pages * reqs, 4);
    mla_plan_build(&in, &l, &slice, items, splits, parts);
    uint64_t seed = 7;
    for (int i = 0; i < pages * reqs; i++)
        table[i] = i;
    for (int i = pages * reqs - 1; i > 0; i--) {
        int j = (int)(mla_step_random(&seed) % (uint32_t)(i + 1)), x = table[i];
        table[i] = table[j], table[j] = x;
    }
    const size_t rows = (size_t)tokens * (size_t)heads,
                 part_rows = (size_t)l.max_slots * (size_t)in.tile_rows;
    mla_counts counts = {.num_tokens = tokens,
                         .num_slices = 1,
                         .block_table = on_device(table, (size_t)pages * (size_t)reqs * 4),
                         .block_table_stride = pages,
                         .block_table_width = pages};
    void *cache = mla_step_fill((size_t)pages * (size_t)reqs * PAGE * (size_t)row_bytes, 1,
                                cache_kind == MLA_CACHE_E4M3, 1),
         *query = mla_step_fill(rows * (NOPE + 64) * 2, 1, 0, 2),
         *weights = mla_step_fill((size_t)heads * (NOPE + VALUE) * LATENT * 2, 4, 0, 4),
         *latent = mla_step_fill(rows * LATENT * 2, 1, 0, 3),
         *output = mla_step_fill(rows * VALUE * 2, 1, 0, 5), *part_out = NULL, *part_lse = NULL, *lse = NULL;
    cudaMalloc(&part_out, part_rows * LATENT * 4 + 16), cudaMalloc(&part_lse, part_rows * 4 + 16);
    cudaMalloc(&lse, rows * 4);
    void *device[] = {on_device(&counts, sizeof counts), on_device(&slice, sizeof slice),
                      on_device(items, (size_t)l.max_items * sizeof *items),
                      on_device(splits, ((size_t)l.max_splits + 1) * sizeof *splits),
                      on_device(parts, ((size_t)in.parts + 1) * sizeof *parts)};
    s.num_splits = slice.num_splits;
    s.attend = (mla_attend_params){.counts = device[0],
                                   .slice = device[1],
                                   .items = device[2],
                                   .splits = device[3],
                                   .parts = device[4],
                                   .absorbed = latent,
                                   .absorbed_row = LATENT,
                                   .latent = latent,
                                   .query = query,
                                   .q_token = (int64_t)heads * (NOPE + 64),
                                   .q_head = NOPE + 64,
                                   .cache = cache,
                                   .cache_page = PAGE * row_bytes,
                                   .cache_row = row_bytes,
                                   .num_pages = (int64_t)pages * reqs,
                                   .part_out = part_out,
                                   .part_lse = part_lse,
                                   .lse = lse,
                                   .lse_head = tokens,
                                   .lse_token = 1,
                                   .scale = 0.0722f,
                                   .num_heads = heads,
                                   .latent_rank = LATENT,
                                   .nope = NOPE,
                                   .page_size = PAGE,
                                   .dtype = MLA_BF16,
                                   .absorbed_rows = (int32_t)rows,
                                   .cache_kind = cache_kind,
                                   .tile_rows = in.tile_rows};
    s.absorb = (mla_project_params){.counts = device[0],
                                    .a = query,
                                    .b = weights,
                                    .c = latent,
                                    .a_token = s.attend.q_token,
                                    .a_head = s.attend.q_head,
                                    .b_head = (NOPE + VALUE) * LATENT,
                                    .b_row = LATENT,
                                    .c_token = (int64_t)heads * LATENT,
                                    .c_head = LATENT,
                                    .tokens = tokens,
                                    .num_heads = heads,
                                    .n = LATENT,
                                    .k = NOPE,
                                    .dtype = MLA_BF16};
    s.values = s.absorb;
    s.values.a = latent, s.values.a_token = s.absorb.c_token, s.values.a_head = LATENT;
    s.values.b = (uint16_t *)weights + NOPE * LATENT, s.values.c = output;
    s.values.c_token = (int64_t)heads * VALUE, s.values.c_head = VALUE;
    s.values.n = VALUE, s.values.k = LATENT, s.values.b_is_nk = s.values.early = 1;
    s.status = mla_decode_sm90_load(&s.encode_tiled, MLA_BF16, cache_kind, s.config.ctas);
    if (!s.status) s.status = mla_project(NULL, NULL);
    const char *why = "";
    s.blas = mla_blas_open(&(mla_blas_input){.heads = heads,
                                             .latent = LATENT,
                                             .nope = NOPE,
                                             .value = VALUE,
                                             .dtype = MLA_BF16,
                                             .max_tokens = tokens},
                           &why);
    static const int layers[3] = {ABSORB | VALUES, ABSORB | VALUES_BLAS, ABSORB_BLAS | VALUES_BLAS};
    const int chosen = s.blas == NULL ? 0 : tokens * heads <= s.config.own_rows ? 1 : 2;
    const double absorb = time_of(&s, ABSORB, 150e3, 350e3), values = time_of(&s, VALUES, 150e3, 350e3),
                 three = time_of(&s, ABSORB | ATTEND | MERGE, 150e3, 350e3),
                 absorb_blas = time_of(&s, ABSORB_BLAS, 150e3, 350e3),
                 values_blas = time_of(&s, VALUES_BLAS, 150e3, 350e3), us = three - absorb;
    double layer[3] = {0};
    time_of(&s, layers[chosen] | ATTEND | MERGE, 0, 1200e3);
    for (int i = 0; i < 24; i++)
        layer[i % 3] += time_of(&s, layers[i % 3] | ATTEND | MERGE, 10e3, 90e3) / 8;
    const double flop = 2.0 * tokens * heads * (double)seq_len * (LATENT + 64 + LATENT),
                 bytes = (double)reqs * seq_len * row_bytes;
    printf("| %d%s | %d x %d | %d | %.1f | %.0f | %.0f | %.1f, %.1f | %.1f, %.1f |", heads,
           cache_kind == MLA_CACHE_E4M3 ? ", e4m3" : "", reqs, seq_len, query_len, us, flop / us * 1e-6,
           bytes / us * 1e-3, absorb, absorb_blas, values, values_blas);
    for (int i = 0; i < 3; i++)
        printf("%s %.1f%s", i ? "," : "", layer[i], i == chosen ? "*" : "");
    printf(" | %d |\n", slice.num_splits);
    if (s.blas == NULL) printf("no cuBLAS: %s\n", why);
    mla_blas_close(s.blas);
    if (s.status) printf("%s\n", cudaGetErrorString((cudaError_t)s.status));
    fflush(stdout);
    void *all_memory[] = {cache,     query,     weights,
                          latent,    output,    part_out,
                          part_lse,  lse,       (void *)(uintptr_t)counts.block_table,
                          device[0], device[1], device[2],
                          device[3], device[4]};
    for (size_t i = 0; i < sizeof all_memory / sizeof all_memory[0]; i++)
        cudaFree(all_memory[i]);
    free(items), free(splits), free(parts), free(table);
}

int main(int argc, char **argv) {
    const int is_short = argc > 1 && strcmp(argv[1], "e4m3") == 0;
    static const int cases[][5] = {{128, 64, 1, 8192},
                                   {128, 64, 2, 8192},
                                   {128, 128, 1, 4096},
                                   {128, 1, 1, 65536},
                                   {128, 1, 1, 1024},
                                   {64, 64, 1, 8192},
                                   {16, 64, 1, 8192},
                                   {16, 64, 2, 8192},
                                   {16, 1, 1, 65536},
                                   {128, 64, 1, 8192, MLA_CACHE_E4M3},
                                   {64, 64, 1, 8192, MLA_CACHE_E4M3},
                                   {16, 64, 1, 8192, MLA_CACHE_E4M3},
                                   {32, 64, 1, 8192, MLA_CACHE_E4M3},
                                   {16, 64, 2, 8192, MLA_CACHE_E4M3},
                                   {128, 1, 1, 65536, MLA_CACHE_E4M3},
                                   {16, 1, 1, 65536, MLA_CACHE_E4M3}};
    int num_sms = 0, clusters = 0, major = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0);
    if (major != 9 || mla_decode_sm90_clusters(&clusters)) {
        fprintf(stderr, "mla_decode_bench: needs a Hopper device\n");
        return 2;
    }
    printf("| heads | requests x keys | query tokens | attention, us | TFLOP/s | GB/s | absorb: ours, "
           "cuBLAS, us | "
           "values: ours, cuBLAS, us | layer: ours, values by cuBLAS, both, us | merged tiles |\n"
           "|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (!is_short || cases[i][4] == MLA_CACHE_E4M3)
            run(cases[i][0], cases[i][1], cases[i][2], cases[i][3], cases[i][4], num_sms, clusters);
    return 0;
}
