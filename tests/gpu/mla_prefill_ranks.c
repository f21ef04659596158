/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill of latent attention over two ranks (semantics 8.3 and 8.5), both on one device, as
 * plugins/mla/README.md describes it. Decode-context parallelism: each rank has half of the heads and half of
 * every request's cached rows; the context comes together chunk by chunk, rank after rank, so that its rows
 * are not in order, and the new tokens lie behind it. Prefill- context parallelism: each rank has all heads
 * and some of the new tokens. Wanted is what one rank alone computes. */
#include "mla_testing.h"
#include "plan_host.h"

#include <math.h>

enum { WORLD = 2, REQS = 5, TOKENS = 1024, HEADS = 16, NOPE = 128, VALUE = 128, LATENT = 512, ROPE = 64 };
enum { ROW = LATENT + ROPE, QUERY = NOPE + ROPE, PAGE = 64, WIDTH = 32, LONGEST = WIDTH * PAGE };
enum {
    PARTS = 2 * WORLD
}; /* of a request's new tokens: a rank takes one from either end, so that all work alike */

static const int32_t contexts[REQS] = {0, 1, 63, 700, 1500}, queries[REQS] = {300, 200, 130, 256, 97};

typedef struct rows {
    int32_t seq[REQS], new_start[REQS + 1], start[REQS + 1]; /* rows of new tokens, and of all */
    uint16_t *latent;                                        /* [start[REQS], ROW] */
} rows;

static attn_problem_t problem_of(uint32_t heads, uint32_t requests) {
    attn_problem_t p = mla_test_problem(ATTN_ROLE_MLA, heads, 0);
    p.max_num_seqs = requests, p.max_num_batched_tokens = TOKENS, p.max_model_len = LONGEST;
    p.scale = 0.02, p.features = ATTN_F_LSE;
    return p;
}

static void make_rows(rows *x) {
    uint64_t seed = 11;
    for (int r = 0; r < REQS; r++) {
        x->seq[r] = contexts[r] + queries[r];
        x->start[r + 1] = x->start[r] + x->seq[r];
        x->new_start[r + 1] = x->new_start[r] + queries[r];
    }
    const size_t n = (size_t)x->start[REQS] * ROW;
    x->latent = malloc(n * sizeof *x->latent);
    for (size_t i = 0; i < n; i++) /* +-0.5 .. 1 */
        x->latent[i] = (uint16_t)(0x3f00 + (mla_step_random(&seed) & 0x807f));
}

/* What a rank caches, by the plugin's own write; the rest of its cache is NaN. */
static int write_cache(mla_step *s, const rows *x, int rank, int world, int interleave) {
    const int32_t n = x->start[REQS];
    int32_t table[REQS * WIDTH];
    int64_t *slots = malloc((size_t)n * sizeof *slots), *on_device = NULL;
    char *rows_there = NULL;
    cudaMemset(s->cache, 0xff, (size_t)s->num_blocks * PAGE * ROW * 2);
    cudaMemcpy(table, s->table[0], sizeof table, cudaMemcpyDeviceToHost);
    const attn_slot_params_t params = {.struct_size = sizeof params,
                                       .block_size = PAGE,
                                       .cp_world = world,
                                       .cp_rank = rank,
                                       .cp_interleave = interleave,
                                       .num_blocks = s->num_blocks};
    int status = attn_plan_slot_mapping(&params, x->start, x->seq, REQS, table, WIDTH, n, slots, &s->error);
    cudaMalloc((void **)&on_device, (size_t)n * sizeof *slots);
    cudaMalloc((void **)&rows_there, (size_t)n * ROW * 2);
    cudaMemcpy(on_device, slots, (size_t)n * sizeof *slots, cudaMemcpyHostToDevice);
    cudaMemcpy(rows_there, x->latent, (size_t)n * ROW * 2, cudaMemcpyHostToDevice);
    mla_step names; /* for its shapes */
    DLTensor latent, rope, slot;
    const DLDataType bf16 = attn_dl_dtype(ATTN_DTYPE_BFLOAT16);
    mla_step_tensor(&names, 0, &latent, rows_there, bf16, 2, n, LATENT, 1);
    mla_step_tensor(&names, 1, &rope, rows_there + LATENT * 2, bf16, 2, n, ROPE, 1);
    mla_step_tensor(&names, 2, &slot, on_device, attn_dl_dtype(ATTN_DTYPE_INT64), 1, n, 1, 1);
    names.strides[0][0] = names.strides[1][0] = ROW;
    const attn_kv_update_t u = {.struct_size = sizeof u,
                                .key = &latent,
                                .value = &rope,
                                .kv_cache = &s->t_cache,
                                .slot_mapping = &slot};
    if (status == ATTN_OK) status = s->backend->ops->update_kv_cache(s->instance, &u, NULL, &s->error);
    cudaDeviceSynchronize();
    cudaFree(on_device), cudaFree(rows_there), free(slots);
    return status;
}

typedef struct answer {
    uint16_t out[TOKENS * HEADS * VALUE]; /* [token][head][value] */
    float lse[HEADS * TOKENS];            /* [head][token] */
} answer;

static int run(mla_step *s, const int32_t *query_lens, const int32_t *seq_lens, int requests, answer *a) {
    int status = mla_step_build(s, query_lens, seq_lens, requests, 0, 0, 0, NULL);
    if (status == ATTN_OK) status = mla_step_forward(s, NULL);
    cudaDeviceSynchronize();
    const size_t heads = s->problem.num_heads;
    cudaMemcpy(a->out, s->output, TOKENS * heads * VALUE * 2, cudaMemcpyDeviceToHost);
    cudaMemcpy(a->lse, s->lse, heads * TOKENS * 4, cudaMemcpyDeviceToHost);
    return status;
}

static double bf16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* The largest difference so far, in units of 1 + the wanted number: of results that are rounded to bfloat16,
 * and of LSEs. */
typedef struct difference {
    double out, lse;
} difference;
static void worse(double *worst, double got, double want) {
    double d = fabs(got - want) / (1 + fabs(want));
    if (d > *worst || d != d) *worst = d;
}
static void compare(difference *d, const answer *got, int row, int num_heads, const answer *want,
                    int want_row, int first_head) {
    for (int h = 0; h < num_heads; h++) {
        const uint16_t *x = got->out + (row * num_heads + h) * VALUE,
                       *y = want->out + (want_row * HEADS + first_head + h) * VALUE;
        for (int i = 0; i < VALUE; i++)
            worse(&d->out, bf16(x[i]), bf16(y[i]));
        worse(&d->lse, got->lse[h * TOKENS + row], want->lse[(first_head + h) * TOKENS + want_row]);
    }
}

/* The heads of a rank: their weights and queries. */
static int split_heads(mla_step *s, const mla_step *whole, int rank) {
    const size_t heads = s->problem.num_heads, weights = heads * (NOPE + VALUE) * LATENT * 2;
    cudaMemcpy(s->weights, (char *)whole->weights + (size_t)rank * weights, weights,
               cudaMemcpyDeviceToDevice);
    cudaMemcpy2D(s->query, heads * QUERY * 2, (char *)whole->query + (size_t)rank * heads * QUERY * 2,
                 HEADS * QUERY * 2, heads * QUERY * 2, TOKENS, cudaMemcpyDeviceToDevice);
    const attn_weights_t w = {.struct_size = sizeof w,
                              .kv_b_proj = &s->t_weights,
                              .weight_space = s->weight_space,
                              .weight_space_bytes = s->weight_bytes};
    return s->backend->ops->prepare_weights(s->instance, &w, NULL, &s->error);
}

/* A cache on the host, and where row `row` of a request lies in it. */
typedef struct host_cache {
    uint16_t *data;
    int32_t table[REQS * WIDTH];
    size_t bytes;
} host_cache;
static void open_host(host_cache *c, const mla_step *s) {
    c->bytes = (size_t)s->num_blocks * PAGE * ROW * 2;
    c->data = malloc(c->bytes);
    cudaMemcpy(c->data, s->cache, c->bytes, cudaMemcpyDeviceToHost);
    cudaMemcpy(c->table, s->table[0], sizeof c->table, cudaMemcpyDeviceToHost);
}
static uint16_t *row_of(const host_cache *c, int request, int row) {
    return c->data + ((int64_t)c->table[request * WIDTH + row / PAGE] * PAGE + row % PAGE) * ROW;
}

/* The stage of one rank: the context of each request, gathered from `ranks` ranks in chunks, then the new
 * tokens. lens: rows of each request. Returns the number of chunks, or -1. */
static int stage(mla_step *s, const host_cache *shares, int ranks, int interleave, const rows *x,
                 int32_t *lens) {
    enum { MAX_CHUNKS = 64 };
    static int32_t starts[MAX_CHUNKS * REQS], cu[MAX_CHUNKS * (REQS + 1)];
    const attn_mla_context_params_t params = {.struct_size = sizeof params,
                                              .block_size = PAGE,
                                              .workspace_tokens = 1024, /* small, so that there are chunks */
                                              .cp_world = WORLD,
                                              .cp_interleave = interleave};
    attn_mla_context_t c = {0};
    int status = attn_plan_mla_context_size(&params, x->new_start, x->seq, REQS, &c, &s->error);
    if (status != ATTN_OK || c.num_chunks > MAX_CHUNKS) return -1;
    status = attn_plan_mla_context(&params, x->new_start, x->seq, REQS, c.num_chunks, starts, cu, NULL, NULL,
                                   &s->error);
    if (status != ATTN_OK) return -1;
    host_cache to;
    open_host(&to, s);
    memset(to.data, 0xff, to.bytes);
    memset(lens, 0, REQS * sizeof *lens);
    for (int j = 0; j < c.num_chunks; j++)
        for (int r = 0; r < REQS; r++)
            for (int rank = 0; rank < ranks; rank++) {
                const int64_t local = attn_plan_cp_local_len(contexts[r], WORLD, rank, interleave);
                const int first = starts[j * REQS + r], *row = cu + j * (REQS + 1) + r;
                for (int i = first; i < first + row[1] - row[0] && i < local; i++)
                    memcpy(row_of(&to, r, lens[r]++), row_of(&shares[rank], r, i), ROW * 2);
            }
    for (int r = 0; r < REQS; r++)
        for (int i = contexts[r]; i < x->seq[r]; i++)
            memcpy(row_of(&to, r, lens[r]++), x->latent + (int64_t)(x->start[r] + i) * ROW, ROW * 2);
    cudaMemcpy(s->cache, to.data, to.bytes, cudaMemcpyHostToDevice);
    free(to.data);
    return c.num_chunks;
}

static void heads_and_cache_split(mla_step *whole, const rows *x, const answer *want, int interleave,
                                  const char *form) {
    static answer got;
    const attn_problem_t p = problem_of(HEADS / WORLD, REQS);
    host_cache shares[WORLD] = {0};
    difference merged = {0, 0}, alone = {0, 0};
    mla_step s;
    int status = mla_step_open(&s, whole->backend, &p, WIDTH), chunks = 0;
    if (status != ATTN_OK) bail_out("%s", s.error.text);
    for (int rank = 0; rank < WORLD && status == ATTN_OK; rank++) {
        status = write_cache(&s, x, rank, WORLD, interleave);
        open_host(&shares[rank], &s);
    }
    for (int rank = 0; rank < WORLD && status == ATTN_OK && chunks >= 0; rank++) {
        int32_t lens[REQS];
        status = split_heads(&s, whole, rank);
        for (int ranks = WORLD; ranks > 0; ranks--) { /* all shares, then the first alone */
            chunks = stage(&s, shares, ranks, interleave, x, lens);
            if (status == ATTN_OK && chunks >= 0) status = run(&s, queries, lens, REQS, &got);
            for (int t = 0; t < x->new_start[REQS]; t++)
                compare(ranks == WORLD ? &merged : &alone, &got, t, HEADS / WORLD, want, t,
                        rank * HEADS / WORLD);
        }
    }
    ok(status == ATTN_OK && chunks > 1 && merged.out < 0.01 && merged.lse < 1e-3 && alone.lse > 0.01,
       "%s, cache and heads over %d ranks, interleave %d, %d chunks: as one rank (%.1e, LSE %.1e; one share "
       "alone %.1e, %.1e) %s",
       form, WORLD, interleave, chunks, merged.out, merged.lse, alone.out, alone.lse, s.error.text);
    for (int rank = 0; rank < WORLD; rank++)
        free(shares[rank].data);
    mla_step_close(&s);
}

static void tokens_split(mla_step *whole, const rows *x, const answer *want, const char *form) {
    static answer got;
    const attn_problem_t p = problem_of(HEADS, 2 * REQS);
    difference d = {0, 0};
    mla_step s;
    int status = mla_step_open(&s, whole->backend, &p, WIDTH), seen = 0;
    if (status != ATTN_OK) bail_out("%s", s.error.text);
    int32_t table[2 * REQS * WIDTH];
    cudaMemcpy(table, whole->table[0], REQS * WIDTH * 4, cudaMemcpyDeviceToHost);
    for (int i = 2 * REQS - 1; i >= 0; i--) /* two requests read the pages of one */
        memmove(table + i * WIDTH, table + i / 2 * WIDTH, WIDTH * 4);
    cudaMemcpy(s.table[0], table, sizeof table, cudaMemcpyHostToDevice);
    cudaMemcpy(s.cache, whole->cache, (size_t)whole->num_blocks * PAGE * ROW * 2, cudaMemcpyDeviceToDevice);
    for (int rank = 0; rank < WORLD && status == ATTN_OK; rank++) {
        int32_t lens[2 * REQS], seqs[2 * REQS], from[2 * REQS];
        for (int i = 0, row = 0; i < 2 * REQS; row += lens[i++]) {
            const int r = i / 2, part = i % 2 ? PARTS - 1 - rank : rank;
            const int first = queries[r] * part / PARTS, end = queries[r] * (part + 1) / PARTS;
            lens[i] = end - first, seqs[i] = contexts[r] + end, from[i] = x->new_start[r] + first;
            cudaMemcpy((char *)s.query + (size_t)row * HEADS * QUERY * 2,
                       (char *)whole->query + (size_t)from[i] * HEADS * QUERY * 2,
                       (size_t)lens[i] * HEADS * QUERY * 2, cudaMemcpyDeviceToDevice);
        }
        status = run(&s, lens, seqs, 2 * REQS, &got);
        for (int i = 0, row = 0; i < 2 * REQS; i++)
            for (int k = 0; k < lens[i]; k++, row++, seen++)
                compare(&d, &got, row, HEADS, want, from[i] + k, 0);
    }
    ok(status == ATTN_OK && seen == x->new_start[REQS] && d.out < 0.01 && d.lse < 1e-3,
       "%s, new tokens over %d ranks: as one rank (%.1e, LSE %.1e) %s", form, WORLD, d.out, d.lse,
       s.error.text);
    mla_step_close(&s);
}

int main(void) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) skip_all("no CUDA device");
    const attn_backend_t *backend = mla_test_load("mla.so");
    static const char *const forms[] = {"absorbed", "projected"};
    static rows x;
    static answer want;
    make_rows(&x);
    mla_step_host = &plan_host;
    for (int form = 0; form < 2; form++) {
        const attn_problem_t p = problem_of(HEADS, REQS);
        mla_step whole;
        mla_test_set(MLA_TEST_PREFILL, forms[form]);
        int status = mla_step_open(&whole, backend, &p, WIDTH);
        if (status == ATTN_OK) status = write_cache(&whole, &x, 0, 1, 1);
        if (status == ATTN_OK) status = run(&whole, queries, x.seq, REQS, &want);
        ok(status == ATTN_OK, "%s: one rank computes %d tokens (%s)", forms[form], x.new_start[REQS],
           whole.error.text);
        if (status != ATTN_OK) continue;
        heads_and_cache_split(&whole, &x, &want, 1, forms[form]);
        heads_and_cache_split(&whole, &x, &want, PAGE, forms[form]);
        tokens_split(&whole, &x, &want, forms[form]);
        mla_step_close(&whole);
    }
    free(x.latent);
    return tap_done();
}
