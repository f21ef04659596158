/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_core_overhead.c: what the core costs per call: forward and cache write of layers of each family on a
 * backend that does nothing, beside a direct call of the backend's operation; and checking a batch, whose
 * tables lie here (a backend on the CPU, or a host mirror) or on a device. Prints a table; with --check
 * LIMIT_NS it fails where a layer's forward is above.
 *
 *     bench/bench_core_overhead [--check 200]
 */
#include "../tests/layer/layer_testing.h"

#include <time.h>

enum { CALLS = 1000, REPEATS = 300 }; /* short runs, so that some of them are not interrupted */
enum {
    HEADS = 32,
    KV_HEADS = 8,
    SIZE = 128,
    LATENT = 512,
    ROPE = 64,
    PAGE = 16,
    MAX_REQS = 1024,
    KEYS = 8192
};

static attn_error_t error = {.struct_size = sizeof error};
static attn_context_t *context;
static float numbers[4096] = {1}; /* what no bench reads lies here as well */

/* One layer with the calls of a step. */
struct layer {
    attn_group_t *group;
    attn_layer_t *layer;
    struct buffers buf;
    attn_kv_update_t update;
    attn_forward_t forward;
    struct tensor query, key, value, cache, output, slots, lse, sinks, scale, topk;
    int64_t slot[KEYS];
} now;
static attn_batch_t batch;
static int32_t starts[MAX_REQS + 1], lens[MAX_REQS], table[MAX_REQS * (KEYS / PAGE)];

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int call_forward(void) {
    return attn_layer_forward(now.layer, &now.forward, &now.buf.space, NULL, &error);
}
static int call_update(void) {
    return attn_layer_update_kv_cache(now.layer, &now.update, NULL, &error);
}
static int call_build(void) {
    return attn_group_build_metadata(now.group, &batch, &now.buf.space, NULL, &error);
}
static int call_backend(void) {
    return attn_group_backend(now.group)->ops->forward(NULL, &now.forward, &now.buf.space, NULL, &error);
}

/* The fastest of several runs: noise only adds. */
static double measure(int (*call)(void), int calls) {
    double best = 1e30;
    for (int r = 0; r < REPEATS; r++) {
        int bad = 0;
        double start = now_ns();
        for (int i = 0; i < calls; i++)
            bad |= call();
        double each = (now_ns() - start) / calls;
        if (bad) bail_out("a call failed: %s: %s", error.param, error.text);
        best = each < best ? each : best;
    }
    return best;
}

/* ----------------------------------------------------------------- families */

static attn_problem_t problem_of(uint32_t role, uint32_t kv, uint64_t features) {
    attn_problem_t p = small_problem(role);
    p.dtype = ATTN_DTYPE_BFLOAT16;
    p.num_heads = HEADS, p.num_kv_heads = KV_HEADS, p.head_size = SIZE;
    p.kv_cache_dtype = kv;
    p.features = features;
    p.max_num_seqs = MAX_REQS, p.max_num_batched_tokens = KEYS, p.max_model_len = KEYS;
    if (attn_role_has_cache(role)) p.block_size = PAGE, p.num_blocks = 1 << 20;
    if (attn_role_is_mla(role)) {
        p.num_kv_heads = 0, p.kv_lora_rank = LATENT, p.qk_rope_head_dim = ROPE, p.qk_nope_head_dim = SIZE;
        p.v_head_dim = SIZE, p.head_size = LATENT + ROPE;
    }
    return p;
}

/* Every tensor of the family; the address is one that can be read, and the sizes are those of one decoding
 * request. */
static void fill_calls(const attn_problem_t *p, uint32_t cache_dtype) {
    struct layer *l = &now;
    const int is_mla = attn_role_is_mla(p->role), has_cache = attn_role_has_cache(p->role);
    const uint32_t t = p->dtype;
    l->update = (attn_kv_update_t){.struct_size = sizeof l->update};
    l->forward = (attn_forward_t){.struct_size = sizeof l->forward};
    l->forward.query = tensor(&l->query, numbers, t, 3, 1, HEADS, is_mla ? SIZE + ROPE : SIZE, 0);
    l->forward.output = tensor(&l->output, numbers, t, 3, 1, HEADS, SIZE, 0);
    l->forward.key = is_mla ? tensor(&l->key, numbers, t, 2, 1, LATENT, 0, 0)
                            : tensor(&l->key, numbers, t, 3, 1, KV_HEADS, SIZE, 0);
    l->forward.value = is_mla ? tensor(&l->value, numbers, t, 2, 1, ROPE, 0, 0)
                              : tensor(&l->value, numbers, t, 3, 1, KV_HEADS, SIZE, 0);
    if (has_cache)
        l->forward.kv_cache = is_mla
                                  ? tensor(&l->cache, numbers, cache_dtype, 3, 32, PAGE, LATENT + ROPE, 0)
                                  : tensor(&l->cache, numbers, cache_dtype, 4, 32, KV_HEADS, PAGE, 2 * SIZE);
    if ((p->features & ATTN_F_LSE) != 0)
        l->forward.lse = tensor(&l->lse, numbers, ATTN_DTYPE_FLOAT32, 2, HEADS, 1, 0, 0);
    if ((p->features & ATTN_F_SINK) != 0)
        l->forward.sinks = tensor(&l->sinks, numbers, ATTN_DTYPE_FLOAT32, 1, HEADS, 0, 0, 0);
    if (p->role == ATTN_ROLE_MLA_SPARSE)
        l->forward.topk_indices = tensor(&l->topk, numbers, ATTN_DTYPE_INT32, 2, 1, p->topk, 0, 0);
    l->update.key = l->forward.key, l->update.value = l->forward.value;
    l->update.kv_cache = l->forward.kv_cache;
    l->update.slot_mapping = tensor(&l->slots, l->slot, ATTN_DTYPE_INT64, 1, 1, 0, 0, 0);
}

static void open_layer(const attn_problem_t *p, const attn_layer_options_t *options, uint32_t cache_dtype) {
    now.group = open_group(context, p, "FAKE_NOOP");
    now.buf = alloc_buffers(now.group);
    if (attn_layer_create(now.group, "bench.0", options, &now.layer, &error) != ATTN_OK)
        bail_out("layer: %s", error.text);
    fill_calls(p, cache_dtype);
    if (!attn_role_is_mla(p->role)) return;
    now.forward.weight_space = numbers; /* as a prepared layer hands it on */
    now.forward.weight_space_bytes = sizeof numbers;
}

static void close_layer(void) {
    attn_layer_destroy(now.layer);
    attn_group_close(now.group);
    free(now.buf.memory);
}

struct family {
    const char *name;
    uint32_t role, kv;
    uint64_t features;
    float scale;         /* of K and V, loaded numbers */
    int is_scale_tensor; /* one scale a head, given as tensors */
};
static const struct family families[] = {
    {"dense", ATTN_ROLE_DECODER, ATTN_KV_AUTO, 0, 0, 0},
    {"dense, sinks and LSE", ATTN_ROLE_DECODER, ATTN_KV_AUTO, ATTN_F_SINK | ATTN_F_LSE, 0, 0},
    {"dense, e4m3 cache", ATTN_ROLE_DECODER, ATTN_KV_FP8_E4M3, 0, 0.5F, 0},
    {"dense, e4m3 cache, scales by head", ATTN_ROLE_DECODER, ATTN_KV_FP8_E4M3, ATTN_F_PER_HEAD_SCALES, 0, 1},
    {"cross", ATTN_ROLE_ENCODER_DECODER, ATTN_KV_AUTO, 0, 0, 0},
    {"latent", ATTN_ROLE_MLA, ATTN_KV_AUTO, 0, 0, 0},
    {"latent, e4m3 cache, LSE", ATTN_ROLE_MLA, ATTN_KV_FP8_E4M3, ATTN_F_LSE, 0.5F, 0},
    {"sparse latent", ATTN_ROLE_MLA_SPARSE, ATTN_KV_AUTO, 0, 0, 0},
    {"encoder only", ATTN_ROLE_ENCODER_ONLY, ATTN_KV_AUTO, 0, 0, 0},
    {"multimodal encoder", ATTN_ROLE_MM_ENCODER, ATTN_KV_AUTO, 0, 0, 0},
};

static double bench_family(const struct family *f) {
    attn_problem_t p = problem_of(f->role, f->kv, f->features);
    if (!attn_role_has_cache(f->role)) p.kv_cache_dtype = 0;
    float by_head[KV_HEADS];
    for (int i = 0; i < KV_HEADS; i++)
        by_head[i] = 0.5F;
    ATTN_INIT(attn_layer_options_t, o);
    o.k_scale = o.v_scale = f->scale;
    if (f->is_scale_tensor)
        o.scales.k = o.scales.v = tensor(&now.scale, by_head, ATTN_DTYPE_FLOAT32, 1, KV_HEADS, 0, 0, 0);
    open_layer(&p, &o, f->kv == ATTN_KV_FP8_E4M3 ? ATTN_DTYPE_FP8_E4M3 : p.dtype);
    const double forward = measure(call_forward, CALLS) - measure(call_backend, CALLS);
    if (attn_role_has_cache(f->role))
        printf("# %-34s %8.1f %8.1f\n", f->name, forward, measure(call_update, CALLS));
    else
        printf("# %-34s %8.1f %8s\n", f->name, forward, "-");
    close_layer();
    return forward;
}

/* ----------------------------------------------------------- batches, slots */

/* Decoding requests of KEYS keys each. is_far: no ids to look at, as with a table on a device and no
 * mirror. */
static double bench_batch(int32_t num_reqs, int is_far) {
    struct tensor ttable;
    batch = (attn_batch_t){.struct_size = sizeof batch,
                           .num_reqs = num_reqs,
                           .num_actual_tokens = num_reqs,
                           .query_start_loc_host = starts,
                           .seq_lens_host = lens};
    batch.block_table = tensor(&ttable, table, ATTN_DTYPE_INT32, 2, MAX_REQS, KEYS / PAGE, 0, 0);
    ttable.t.device.device_type = is_far ? kDLCUDA : kDLCPU;
    return measure(call_build, num_reqs > 16 ? 20 : CALLS);
}

static void bench_batches(void) {
    attn_problem_t p = problem_of(ATTN_ROLE_DECODER, ATTN_KV_AUTO, 0);
    attn_device_t gpu = {
        .struct_size = sizeof gpu, .type = kDLCUDA, .compute_capability = 90, .num_sms = 132};
    double times[2][4];
    for (int far = 0; far < 2; far++) {
        attn_device_t d = far ? gpu : cpu();
        if (attn_group_open(context, &p, &d, far ? "FAKE_CUDA" : "FAKE_NOOP", &now.group, NULL, &error) !=
            ATTN_OK)
            bail_out("group: %s", error.text);
        now.buf = alloc_buffers(now.group);
        for (int i = 0; i < 4; i++)
            times[far][i] = bench_batch((int[]){1, 64, 256, 1024}[i], far);
        attn_group_close(now.group);
        free(now.buf.memory);
    }
    printf("# attn_group_build_metadata, requests of %d keys in blocks of %d, ns\n", KEYS, PAGE);
    printf("# %-34s %8s %8s %8s %8s\n", "block table", "1", "64", "256", "1024");
    printf("# %-34s %8.0f %8.0f %8.0f %8.0f\n", "on a device", times[1][0], times[1][1], times[1][2],
           times[1][3]);
    printf("# %-34s %8.0f %8.0f %8.0f %8.0f\n", "readable here", times[0][0], times[0][1], times[0][2],
           times[0][3]);
}

static void bench_slots(void) {
    attn_problem_t p = problem_of(ATTN_ROLE_DECODER, ATTN_KV_AUTO, 0);
    open_layer(&p, NULL, p.dtype);
    now.key.shape[0] = now.value.shape[0] = KEYS;
    printf("# attn_layer_update_kv_cache by slots that are readable here, ns\n# %-34s", "");
    for (int n = 1; n <= KEYS; n = n < 64 ? 64 : n * 16 < KEYS ? n * 16 : n < KEYS ? KEYS : n + 1) {
        now.slots.shape[0] = n;
        printf(" %d: %.0f", n, measure(call_update, n > 64 ? 20 : CALLS));
    }
    printf("\n");
    close_layer();
}

int main(int argc, char **argv) {
    double limit = argc > 2 && strcmp(argv[1], "--check") == 0 ? strtod(argv[2], NULL) : 0;
    for (int i = 0; i < KEYS; i++)
        now.slot[i] = i % (32 * PAGE);
    for (int r = 0; r < MAX_REQS; r++)
        starts[r + 1] = r + 1, lens[r] = KEYS;
    for (int i = 0; i < MAX_REQS * (KEYS / PAGE); i++)
        table[i] = i;
    context = fake_context("");
    printf("# ns per call, fastest of %d runs; forward without the backend's own time\n", REPEATS);
    printf("# %-34s %8s %8s\n", "layer", "forward", "update");
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        const double ns = bench_family(&families[i]);
        if (limit > 0)
            ok(ns < limit, "%s: the core takes less than %g ns per forward", families[i].name, limit);
    }
    bench_slots();
    bench_batches();
    attn_context_destroy(context);
    remove_fake();
    return limit > 0 ? tap_done() : 0;
}
