/* SPDX-License-Identifier: Apache-2.0 */
/* Latent attention whose cache is split over ranks (semantics 8): a world of two on one device. Slots and
 * local lengths come from the planning functions, each rank runs mla.so over its share,
 * attn_plan_merge_states joins the results by their LSE; wanted is what one rank with the whole cache
 * computes. MLA_TEST_PLUGINS names the folder of the plugin. */
#include "mla_step.h"
#include "plan_host.h"
#include "../tap.h"

#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

enum { WORLD = 2, REQS = 7, HEADS = 16, VALUE = 128, ROW = 576, PAGE = 64, LONGEST = 1000, WIDTH = 16 };

typedef struct result {
    float out[REQS * HEADS * VALUE]; /* [request][head][value], 0 where a rank has no key */
    float lse[HEADS * REQS];         /* [head][request], -inf there */
} result;

static attn_problem_t problem_of(uint32_t max_tokens) {
    return (attn_problem_t){.struct_size = sizeof(attn_problem_t),
                            .role = ATTN_ROLE_MLA,
                            .mask = ATTN_MASK_CAUSAL,
                            .dtype = ATTN_DTYPE_BFLOAT16,
                            .num_heads = HEADS,
                            .head_size = ROW,
                            .kv_lora_rank = 512,
                            .qk_rope_head_dim = 64,
                            .qk_nope_head_dim = 128,
                            .v_head_dim = VALUE,
                            .block_size = PAGE,
                            .scale = 0.02,
                            .max_num_seqs = REQS,
                            .max_num_batched_tokens = max_tokens,
                            .max_model_len = LONGEST,
                            .features = ATTN_F_LSE};
}

static float from_bf16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* One decode step. A request of which the rank holds nothing takes no part: its result is the empty one
 * (2.14). */
static int decode(mla_step *s, const int32_t *lens, result *r) {
    static uint16_t out[REQS * HEADS * VALUE];
    static float lse[HEADS * REQS];
    uint16_t *queries = malloc(sizeof(uint16_t) * REQS * HEADS * 192),
             *here = malloc(sizeof(uint16_t) * REQS * HEADS * 192);
    int32_t ones[REQS];
    int rows = 0;
    cudaMemcpy(queries, s->query, sizeof(uint16_t) * REQS * HEADS * 192, cudaMemcpyDeviceToHost);
    for (int i = 0; i < REQS; i++) {
        ones[i] = lens[i] > 0;
        if (ones[i])
            memcpy(here + rows++ * HEADS * 192, queries + i * HEADS * 192, sizeof(uint16_t) * HEADS * 192);
    }
    cudaMemcpy(s->query, here, sizeof(uint16_t) * (size_t)rows * HEADS * 192, cudaMemcpyHostToDevice);
    int status = mla_step_build(s, ones, lens, REQS, 0, 0, 0, NULL);
    if (status == ATTN_OK) status = mla_step_forward(s, NULL);
    cudaDeviceSynchronize();
    cudaMemcpy(s->query, queries, sizeof(uint16_t) * REQS * HEADS * 192, cudaMemcpyHostToDevice);
    cudaMemcpy(out, s->output, sizeof out, cudaMemcpyDeviceToHost);
    cudaMemcpy(lse, s->lse, sizeof lse, cudaMemcpyDeviceToHost);
    free(queries), free(here);
    for (int i = 0, row = 0; i < REQS; row += ones[i++])
        for (int h = 0; h < HEADS; h++) {
            r->lse[h * REQS + i] = ones[i] ? lse[h * REQS + row] : -INFINITY;
            for (int x = 0; x < VALUE; x++)
                r->out[(i * HEADS + h) * VALUE + x] =
                    ones[i] ? from_bf16(out[(row * HEADS + h) * VALUE + x]) : 0.f;
        }
    return status;
}

/* The rows that rank `rank` holds go from the cache of `whole` to that of `part`, to where the planning
 * function says. */
static int share_cache(const mla_step *whole, mla_step *part, const int32_t *lens, int rank, int interleave) {
    const size_t bytes = (size_t)whole->num_blocks * PAGE * ROW * 2;
    uint16_t *from = malloc(bytes), *to = malloc(bytes);
    int32_t tables[2][REQS * WIDTH], start[REQS + 1] = {0};
    static int64_t slots[REQS * LONGEST];
    attn_error_t error = {.struct_size = sizeof error};
    cudaMemcpy(from, whole->cache, bytes, cudaMemcpyDeviceToHost);
    cudaMemcpy(tables[0], whole->table[0], sizeof tables[0], cudaMemcpyDeviceToHost);
    cudaMemcpy(tables[1], part->table[0], sizeof tables[1], cudaMemcpyDeviceToHost);
    memset(to, 0xff, bytes); /* NaN: what is not the rank's must not be read */
    for (int i = 0; i < REQS; i++)
        start[i + 1] = start[i] + lens[i];
    const attn_slot_params_t params = {.struct_size = sizeof params,
                                       .block_size = PAGE,
                                       .cp_world = WORLD,
                                       .cp_rank = rank,
                                       .cp_interleave = interleave,
                                       .num_blocks = part->num_blocks};
    int status =
        attn_plan_slot_mapping(&params, start, lens, REQS, tables[1], WIDTH, start[REQS], slots, &error);
    for (int i = 0; i < REQS && status == ATTN_OK; i++)
        for (int p = 0; p < lens[i]; p++)
            if (slots[start[i] + p] >= 0)
                memcpy(to + slots[start[i] + p] * ROW,
                       from + ((int64_t)tables[0][i * WIDTH + p / PAGE] * PAGE + p % PAGE) * ROW, ROW * 2);
    if (status != ATTN_OK) diag("%s", error.text);
    cudaMemcpy(part->cache, to, bytes, cudaMemcpyHostToDevice);
    free(from), free(to);
    return status;
}

/* In units of 1 + the wanted number: results of both ranks and of the whole are rounded to bfloat16. */
static double largest_difference(const float *got, const float *want, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = got[i] == want[i] ? 0 : fabs((double)got[i] - want[i]) / (1 + fabs(want[i]));
        worst = d > worst || d != d ? d : worst;
    }
    return worst;
}

static void two_ranks(const attn_backend_t *backend, mla_step *whole, int interleave) {
    static const int32_t lens[REQS] = {1, 2, 63, 64, 65, 500, 1000};
    static result want, part[WORLD], got;
    attn_error_t error = {.struct_size = sizeof error};
    const attn_problem_t p = problem_of(REQS);
    int status = decode(whole, lens, &want), alone = 0;
    for (int rank = 0; rank < WORLD && status == ATTN_OK; rank++) {
        mla_step s;
        int32_t local[REQS];
        status = mla_step_open(&s, backend, &p, WIDTH);
        if (status != ATTN_OK) break;
        status = share_cache(whole, &s, lens, rank, interleave);
        for (int i = 0; i < REQS; i++) {
            local[i] = (int32_t)attn_plan_cp_local_len(lens[i], WORLD, rank, interleave);
            alone += local[i] == 0;
        }
        if (status == ATTN_OK) status = decode(&s, local, &part[rank]);
        mla_step_close(&s);
    }
    if (status == ATTN_OK)
        status = attn_plan_merge_states(part[0].out, part[0].lse, part[1].out, part[1].lse, REQS, HEADS,
                                        VALUE, REQS, got.out, got.lse, &error);
    ok(status == ATTN_OK && alone > 0, "interleave %d: both ranks run, %d shares are empty (%s)", interleave,
       alone, error.text);
    double out = largest_difference(got.out, want.out, REQS * HEADS * VALUE),
           lse = largest_difference(got.lse, want.lse, HEADS * REQS);
    double apart = largest_difference(part[0].out, want.out, REQS * HEADS * VALUE);
    ok(out < 0.01 && lse < 1e-3 && apart > 0.05,
       "interleave %d: the ranks' results merge to that of the whole cache (%.1e, LSE %.1e; rank 0 alone "
       "%.1e)",
       interleave, out, lse, apart);
}

int main(void) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) skip_all("no CUDA device");
    const char *dir = getenv("MLA_TEST_PLUGINS");
    char path[1200];
    snprintf(path, sizeof path, "%s/mla.so", dir ? dir : "plugins-built");
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const attn_plugin_t *plugin = NULL;
    if (file == NULL || (plugin = dlsym(file, ATTN_PLUGIN_SYMBOL_NAME)) == NULL)
        bail_out("%s: %s", path, dlerror());
    mla_step_host = &plan_host;
    mla_step whole;
    const attn_problem_t p = problem_of(REQS);
    if (mla_step_open(&whole, plugin->backends[0], &p, WIDTH) != ATTN_OK) bail_out("%s", whole.error.text);
    two_ranks(plugin->backends[0], &whole, 1);
    two_ranks(plugin->backends[0], &whole, PAGE);
    mla_step_close(&whole);
    return tap_done();
}
