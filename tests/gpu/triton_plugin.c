/* SPDX-License-Identifier: Apache-2.0 */
/* triton_like.so through the plugin ABI on a device: a grid and random cases within its capability table
 * against the reference plugin in double; capture and replay, bitwise repeatability, batch invariance,
 * errors, the folder of compiled kernels. Cases run in several processes, because most of a case's time is
 * compilation and the oracle. TRITON_TEST_GRID=N: N cases of the grid only (for compute-sanitizer);
 * TRITON_TEST_KIND=N: that kind of them alone; TRITON_TEST_CASES=N: random cases; TRITON_TEST_JOBS=N:
 * processes; TRITON_TEST_CACHE=DIR: keep the kernels there. */
#include "dense_step.h"
#include "triton_tasks.h"

#include <attn/attn_plugin_util.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static attn_backend_t wrapped;
static attn_backend_ops_t wrapped_ops;
static char cache_dir[512];
static attn_option_value_t options[3];

static void set_options(const char *dir, int segments) {
    static const char *const names[3] = {"cache_dir", "nvrtc", "segments"};
    for (int i = 0; i < 3; i++)
        options[i] = (attn_option_value_t){.struct_size = sizeof options[i],
                                           .type = i < 2 ? ATTN_OPTION_STRING : ATTN_OPTION_INT,
                                           .name = names[i],
                                           .s = ""};
    options[0].s = dir;
    options[2].i = segments;
}

/* The kit opens without options; this gives it ours. */
static int open_with_options(const attn_problem_t *problem, const attn_device_t *device,
                             const attn_option_value_t *none, uint32_t zero, const attn_host_t *host,
                             attn_instance_t **instance, attn_error_t *error) {
    (void)none, (void)zero;
    return triton->ops->open(problem, device, options, 3, host, instance, error);
}

/* One case on both; 1: passed, 0: failed, -1: not served. */
static int run_one(const kit_case_t *c, char *why, size_t size) {
    kit_difference_t d;
    if (!kit_is_served(triton, c, &gpu, why, size)) return -1;
    return kit_agrees(&wrapped, reference, c, NULL, &gpu, &d, why, size);
}

/* A quantised output: one scale, groups, groups with powers of two, 4 bits. */
static void ask_output(attn_problem_t *p, int kind) {
    static const uint64_t features[4] = {ATTN_F_OUT_FP8_STATIC, ATTN_F_OUT_FP8_GROUP,
                                         ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_SCALE_UE8M0, ATTN_F_OUT_NVFP4};
    p->features |= features[kind];
    p->out_dtype = kind == 3 ? ATTN_DTYPE_UINT8 : ATTN_DTYPE_FP8_E4M3;
}

/* Random cases take any head size; most here are moved to the sizes of real models, and some to the ends of
 * the range. */
static void make_random(kit_case_t *c, uint64_t seed, int i) {
    static const uint32_t sizes[] = {128, 64, 128, 80, 96, 256, 72, 192, 32, 320, 128, 100};
    uint64_t state = seed + 77;
    kit_case_random(c, triton->capabilities, seed, i % 5 == 0 ? 1500 : 300);
    c->problem.max_num_batched_tokens = 16384; /* encoders may have six long requests */
    if (kit_random_in(&state, 0, 3) == 0) return;
    c->problem.head_size = sizes[kit_random_in(&state, 0, 11)];
    if (c->problem.head_size_v != 0) c->problem.head_size_v = sizes[kit_random_in(&state, 0, 11)];
    c->problem.scale = 1.0 / sqrt((double)c->problem.head_size);
    if (kit_random_in(&state, 0, 7) == 0) {
        ask_output(&c->problem, kit_random_in(&state, 0, 1) && c->problem.num_heads % 2 == 0
                                    ? (int)kit_random_in(&state, 1, 3)
                                    : 0);
    }
}

/* Every feature alone on plain shapes, with lengths around tile, page and segment borders. */
enum { GRID_KINDS = 24, GRID_SHAPES = 14, GRID_CUT = 22, GRID_CUT_FULL = 23 };
static void make_grid(kit_case_t *c, int i) {
    static const struct {
        uint32_t dtype, kv, d, dv, heads, kv_heads, page;
    } shapes[GRID_SHAPES] = {{ATTN_DTYPE_BFLOAT16, ATTN_KV_AUTO, 128, 0, 8, 2, 16},
                             {ATTN_DTYPE_FLOAT16, ATTN_KV_AUTO, 64, 0, 4, 4, 32},
                             {ATTN_DTYPE_BFLOAT16, ATTN_KV_FP8_E4M3, 128, 0, 16, 1, 16},
                             {ATTN_DTYPE_BFLOAT16, ATTN_KV_INT8_PER_TOKEN_HEAD, 128, 0, 8, 2, 16},
                             {ATTN_DTYPE_FLOAT16, ATTN_KV_FP8_PER_TOKEN_HEAD, 80, 0, 6, 2, 48},
                             {ATTN_DTYPE_FLOAT32, ATTN_KV_AUTO, 64, 0, 8, 2, 16},
                             {ATTN_DTYPE_BFLOAT16, ATTN_KV_AUTO, 256, 0, 4, 1, 64},
                             {ATTN_DTYPE_BFLOAT16, ATTN_KV_AUTO, 192, 128, 4, 2, 16},
                             {ATTN_DTYPE_BFLOAT16, ATTN_KV_INT4_PER_TOKEN_HEAD, 128, 64, 8, 2, 16},
                             {ATTN_DTYPE_FLOAT16, ATTN_KV_TURBOQUANT_K8V4, 80, 0, 6, 2, 48},
                             {ATTN_DTYPE_BFLOAT16, ATTN_KV_TURBOQUANT_4BIT_NC, 128, 0, 16, 1, 16},
                             {ATTN_DTYPE_FLOAT16, ATTN_KV_TURBOQUANT_K3V4_NC, 64, 0, 4, 4, 32},
                             {ATTN_DTYPE_BFLOAT16, ATTN_KV_TURBOQUANT_3BIT_NC, 256, 0, 4, 1, 64},
                             {ATTN_DTYPE_FLOAT32, ATTN_KV_INT4_PER_TOKEN_HEAD, 64, 0, 8, 2, 16}};
    int kind = i % GRID_KINDS, s = i / GRID_KINDS;
    const int is_cut = kind == GRID_CUT || kind == GRID_CUT_FULL,
              is_direct = kind >= 17 && kind != 20 && !is_cut;
    kit_case_start(c,
                   kind == 17 || kind == 21 ? ATTN_ROLE_ENCODER_ONLY
                   : kind == 18             ? ATTN_ROLE_MM_ENCODER
                   : kind == 19             ? ATTN_ROLE_ENCODER
                   : kind == 16             ? ATTN_ROLE_ENCODER_DECODER
                                            : ATTN_ROLE_DECODER,
                   4000 + (uint64_t)i);
    attn_problem_t *p = &c->problem;
    p->dtype = shapes[s].dtype, p->head_size = shapes[s].d, p->head_size_v = shapes[s].dv,
    p->num_heads = shapes[s].heads;
    p->num_kv_heads = shapes[s].kv_heads, p->scale = 1.0 / sqrt((double)p->head_size),
    p->features = ATTN_F_LSE;
    if (!is_direct) p->kv_cache_dtype = shapes[s].kv, p->block_size = shapes[s].page;
    switch (kind) {
    case 1:
        p->sliding_window = 70;
        break;
    case 2:
        p->chunk_size = 2 * p->block_size, p->features |= ATTN_F_CHUNKED_LOCAL;
        break;
    case 3:
        p->sliding_window = 120, p->chunk_lookback = 2, p->features |= ATTN_F_CHUNK_LOOKBACK;
        break;
    case 4:
        p->rswa_window = 50;
        break;
    case 5:
        p->features |= ATTN_F_MM_PREFIX, c->num_spans = 2;
        break;
    case 6:
        p->features |= ATTN_F_MM_PREFIX | ATTN_F_MM_PREFIX_CLAMP, p->sliding_window = 40, c->num_spans = 2;
        break;
    case 7:
        p->features |= ATTN_F_ALIBI;
        break;
    case 8:
        p->features |= ATTN_F_ALIBI_SQRT;
        break;
    case 9:
        p->logits_soft_cap = 30.0;
        break;
    case 10:
        p->features |= ATTN_F_SINK;
        break;
    case 11:
        p->features |= ATTN_F_QQ_BIAS;
        break;
    case 12:
        p->mask = ATTN_MASK_FULL;
        break;
    case 13:
        p->mask = ATTN_MASK_PER_REQUEST, p->sliding_window = 90;
        break;
    case 14:
        ask_output(p, s % 4);
        break;
    case 15:
        p->features |= ATTN_F_SEPARATE_KV | ATTN_F_SINK, p->kv_layout = ATTN_LAYOUT_HND;
        break;
    case 17:
        p->sliding_window = 33;
        break;
    case 20:
        p->features |= ATTN_F_REL_BIAS, c->seed = 5 + (uint64_t)s; /* another reach for each shape */
        break;
    case 21:
        p->features |= ATTN_F_REL_BIAS, p->scale = 1.0;
        break;
    case GRID_CUT_FULL:
        p->mask = ATTN_MASK_FULL, p->features |= ATTN_F_SINK;
        break;
    default:
        break;
    }
    /* short prompts behind long contexts, whose blocks are cut into pieces */
    static const int32_t cut[][2] = {{1, 700}, {100, 3000}, {5, 90}, {40, 40}, {24, 2100}, {130, 1900}};
    for (int j = 0; is_cut && j < (kind == GRID_CUT ? 6 : 3); j++)
        kit_case_add(c, cut[j][0], cut[j][1]);
    if (is_cut) return;
    static const int32_t decoder[][2] = {{1, 1},  {1, 1300},  {1, 17},  {2, 129},
                                         {5, 64}, {130, 700}, {33, 33}, {1, 640}};
    static const int32_t direct[][2] = {{1, 1}, {64, 64}, {129, 129}, {300, 300}};
    int n = is_direct ? 4 : 8;
    for (int j = 0; j < n; j++) {
        int r = is_direct ? kit_case_add(c, direct[j][0], direct[j][1])
                          : kit_case_add(c, decoder[j][0], decoder[j][1]);
        c->causal[r] = (uint8_t)(j & 1);
        c->rswa_prefix_lens[r] = c->seq_lens[r] / 4;
        c->spans[r][0][0] = c->seq_lens[r] / 3, c->spans[r][0][1] = c->seq_lens[r] - 1;
        c->spans[r][1][0] = 2, c->spans[r][1][1] = 9;
    }
}

/* Children run every jobs-th case and report in a file; returns through *failed and *served. */
static void run_cases(uint64_t seed, int grid, int num_random, int jobs, int *failed, int *served) {
    char names[64][64];
    pid_t children[64];
    const char *kind = getenv("TRITON_TEST_KIND");
    int total = grid + num_random, step = grid < GRID_KINDS * GRID_SHAPES ? 11 : 1;
    fflush(stdout);
    for (int j = 0; j < jobs; j++) {
        snprintf(names[j], sizeof names[j], "/tmp/attn-triton-%ld-%d", (long)getpid(), j);
        children[j] = fork();
        if (children[j] != 0) continue;
        FILE *f = fopen(names[j], "w");
        if (f == NULL || gpu_start() != 0) _exit(2);
        int bad = 0, good = 0;
        for (int i = j; i < total; i += jobs) {
            kit_case_t c;
            char why[2048] = "";
            if (!part_in_time()) continue;
            if (i < grid)
                make_grid(&c, kind ? i * GRID_KINDS + atoi(kind) : i * step % (GRID_KINDS * GRID_SHAPES));
            else
                make_random(&c, seed + 160 + (uint64_t)(i - grid), i); /* the same in any grid */
            int r = run_one(&c, why, sizeof why);
            good += r >= 0, bad += r == 0;
            if (r == 0) fprintf(f, "case %d: %s\n", i, why);
        }
        fprintf(f, "= %d %d\n", good, bad);
        fclose(f);
        _exit(0);
    }
    int shown = 0;
    for (int j = 0; j < jobs; j++) {
        int status = 0, good = 0, bad = 1;
        char line[4096];
        waitpid(children[j], &status, 0);
        FILE *f = fopen(names[j], "r");
        while (f != NULL && fgets(line, sizeof line, f) != NULL)
            if (sscanf(line, "= %d %d", &good, &bad) != 2 && shown++ < 25) diag("%s", line);
        if (f != NULL) fclose(f);
        unlink(names[j]);
        if (status != 0) diag("process %d ended with %d", j, status);
        *failed += bad + (status != 0), *served += good;
    }
}

static void steps(void) {
    dense_step s;
    cudaStream_t stream;
    char *want = malloc(dense_step_bytes), *got = malloc(dense_step_bytes);
    cudaStreamCreate(&stream);
    if (dense_step_open(&s, triton, 0, options, 3)) {
        dense_step_replays(&s, 0, stream);
        dense_step_wild_pages(&s, "TRITON_ATTN", stream);
        dense_step_refusals(&s, stream);
        dense_step_close(&s);
    } else
        ok(0, "an instance opens");

    /* batch invariance: the first request alone and among neighbours, bit for bit */
    if (dense_step_open(&s, triton, ATTN_F_BATCH_INVARIANT, options, 3)) {
        dense_step_output(&s, dense_step_mixed, 8, 3, 0, 0, NULL, stream, want);
        dense_step_output(&s, dense_step_mixed, 2, 3, 0, 0, NULL, stream, got);
        ok(memcmp(got, want, 91 * (size_t)DENSE_STEP_ROW * 2) == 0,
           "batch invariant: two requests have the same bits with and without neighbours");
        dense_step_close(&s);
    } else
        ok(0, "an instance opens");
    cudaStreamDestroy(stream);
    free(want), free(got);
}

static void open_times(void) {
    char dir[] = "/tmp/attn-triton-cold-XXXXXX";
    attn_instance_t *instance;
    double cold = 0, warm = 1e9;
    if (mkdtemp(dir) == NULL) bail_out("no temporary folder");
    set_options(dir, 0);
    for (int i = 0; i < 4; i++) {
        attn_error_t e = {.struct_size = sizeof e};
        attn_device_t device = {
            .struct_size = sizeof device, .type = kDLCUDA, .compute_capability = gpu.compute_capability};
        attn_problem_t p = dense_step_problem;
        p.scale = 0.0625; /* another than before: what this process compiled it would not compile again */
        double start = part_seconds();
        int rc = triton->ops->open(&p, &device, options, 3, NULL, &instance, &e);
        double took = part_seconds() - start;
        if (rc != ATTN_OK) {
            ok(0, "an instance opens (%s)", e.text);
            return;
        }
        triton->ops->close(instance);
        if (i == 0)
            cold = took;
        else
            warm = took < warm ? took : warm;
    }
    diag("cold open %.3f s, warm open %.2f ms", cold, 1e3 * warm);
    ok(warm < cold / 4 || part_is_short(), "a warm open takes what is in the folder");
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0) diag("%s is left", dir);
    set_options(cache_dir, 0);
}

int main(void) {
    const char *text = getenv("TRITON_TEST_CASES"), *kept = getenv("TRITON_TEST_CACHE"),
               *part = getenv("TRITON_TEST_GRID");
    int num_random = text ? atoi(text) : 120, grid = part ? atoi(part) : GRID_KINDS * GRID_SHAPES;
    int failed = 0, served = 0;
    grid = grid < 0 || grid > GRID_KINDS * GRID_SHAPES ? GRID_KINDS * GRID_SHAPES : grid;
    const int is_kind = getenv("TRITON_TEST_KIND") != NULL;
    if (is_kind) grid = GRID_SHAPES, num_random = 0;
    tasks_load(getenv("TRITON_TEST_PLUGINS"));
    wrapped = *triton, wrapped_ops = *triton->ops;
    wrapped_ops.open = open_with_options;
    wrapped.ops = &wrapped_ops;
    snprintf(cache_dir, sizeof cache_dir, "%s", kept ? kept : "/tmp/attn-triton-test-XXXXXX");
    if (kept == NULL && mkdtemp(cache_dir) == NULL) bail_out("no temporary folder");
    set_options(cache_dir, 0);
    uint64_t seed = tap_seed();
    double start = part_seconds();
    run_cases(seed, grid, num_random, tasks_jobs(getenv("TRITON_TEST_JOBS")), &failed, &served);
    ok(failed == 0 && (served >= grid / 2 + num_random / 3 || (part_is_short() && served > 0)),
       "%d cases agree with the reference (%d failed, %.0f s)", served, failed, part_seconds() - start);
    if (gpu_start() != 0) bail_out("the device is gone");
    if (!is_kind) steps(), open_times();
    if (kept == NULL) tasks_end(cache_dir);
    return tap_done();
}
