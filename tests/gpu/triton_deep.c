/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts of triton_like on a device whose scores lie far from zero, to 1e10 on both sides, in all keys of a
 * row and in its first ones only; whose biases are the lowest float; and with NaN among such, against
 * REFERENCE's double. Keys are the same but for that, since what they differ by would drown. Cases run in
 * several processes, because most of their time is compilation. DEEP_TEST_PLUGINS: the folder of the plugins;
 * DEEP_TEST_JOBS=N: processes; DEEP_TEST_ONLY: a text that a case's name must contain; DEEP_TEST_SPEED: how
 * long a prompt takes whose rows are all deep, or all NaN; ATTN_TEST_PART, ATTN_TEST_SECONDS: part.h. */
#include "triton_tasks.h"
#include "kit/case/case_families.h"

#include <attn/attn_plugin_util.h>
#include <float.h>
#include <math.h>

enum { LEVEL, TURN, NANS, LOWEST, NEAR_LOWEST, NUM_INPUTS };
static const char *const input_names[NUM_INPUTS] = {"far from zero", "far from zero at first",
                                                    "NaN among scores far from zero", "lowest biases",
                                                    "lowest biases of near keys"};
enum { F16 = ATTN_DTYPE_FLOAT16, BF16 = ATTN_DTYPE_BFLOAT16, F32 = ATTN_DTYPE_FLOAT32 };
typedef struct shape {
    const char *name;
    uint32_t dtype, kv, d, dv, page;
} shape_t;
static const shape_t shapes[] = {{"bf16", BF16, ATTN_KV_AUTO, 128, 0, 16},
                                 {"f16", F16, ATTN_KV_AUTO, 128, 0, 16},
                                 {"f16 of 64", F16, ATTN_KV_AUTO, 64, 0, 32},
                                 {"bf16 of 256", BF16, ATTN_KV_AUTO, 256, 0, 64},
                                 {"bf16 of 192 and 128", BF16, ATTN_KV_AUTO, 192, 128, 16},
                                 {"f16 of 37", F16, ATTN_KV_AUTO, 37, 0, 16},
                                 {"f32", F32, ATTN_KV_AUTO, 64, 0, 16},
                                 {"fp8", BF16, ATTN_KV_FP8_E4M3, 128, 0, 16},
                                 {"fp8, f16", F16, ATTN_KV_FP8_E5M2, 96, 0, 16},
                                 {"int8 of tokens", BF16, ATTN_KV_INT8_PER_TOKEN_HEAD, 128, 0, 16},
                                 {"fp8 of tokens", F16, ATTN_KV_FP8_PER_TOKEN_HEAD, 80, 0, 48},
                                 {"int8_static_v", BF16, ATTN_KV_INT8_STATIC_V, 128, 0, 16},
                                 {"int8_static_v, f16", F16, ATTN_KV_INT8_STATIC_V, 64, 0, 16},
                                 {"int8_k_only", F16, ATTN_KV_INT8_K_ONLY, 128, 0, 16},
                                 {"int4", BF16, ATTN_KV_INT4_PER_TOKEN_HEAD, 128, 64, 16},
                                 {"nvfp4", BF16, ATTN_KV_NVFP4, 128, 0, 16},
                                 {"k8v4", F16, ATTN_KV_TURBOQUANT_K8V4, 80, 0, 48},
                                 {"4bit", BF16, ATTN_KV_TURBOQUANT_4BIT_NC, 128, 0, 16},
                                 {"3bit", BF16, ATTN_KV_TURBOQUANT_3BIT_NC, 256, 0, 64}};
enum { NUM_SHAPES = sizeof shapes / sizeof shapes[0], MAX_TASKS = 200 };

typedef struct task {
    kit_case_t c;
    int inputs, kernel; /* cases of one number have the same kernels, and one process */
    char name[120], variant[120];
} task_t;
static task_t tasks[MAX_TASKS];
static int num_tasks, num_kernels;

static attn_problem_t *add(const shape_t *s, uint32_t role, int inputs, const char *name) {
    static attn_problem_t none;
    const char *only = getenv("DEEP_TEST_ONLY");
    if (num_tasks == MAX_TASKS) bail_out("more than %d cases", MAX_TASKS);
    task_t *t = &tasks[num_tasks];
    snprintf(t->name, sizeof t->name, "%s, %s%s", s->name, input_names[inputs], name);
    if (only != NULL && strstr(t->name, only) == NULL) return &none;
    const int has_bias = inputs == LOWEST || inputs == NEAR_LOWEST;
    snprintf(t->variant, sizeof t->variant, "%s, %d, %d, %s", s->name, (int)role, has_bias, name);
    t->kernel = num_kernels;
    for (int i = 0; i < num_tasks && t->kernel == num_kernels; i++)
        if (strcmp(tasks[i].variant, t->variant) == 0) t->kernel = tasks[i].kernel;
    num_kernels += t->kernel == num_kernels;
    num_tasks++;
    kit_case_start(&t->c, role, 700 + (uint64_t)num_tasks);
    t->inputs = inputs;
    t->c.family = KIT_EQUAL_KEYS;
    attn_problem_t *p = &t->c.problem;
    p->dtype = s->dtype, p->head_size = s->d, p->head_size_v = s->dv, p->num_heads = 8, p->num_kv_heads = 2;
    p->scale = has_bias ? 1.0 / sqrt((double)s->d) : 1e6;
    if (role == ATTN_ROLE_DECODER) p->kv_cache_dtype = s->kv, p->block_size = s->page;
    if (inputs < NANS && (s->kv == ATTN_KV_AUTO || inputs == LEVEL)) p->features |= ATTN_F_LSE;
    const int has_context = role == ATTN_ROLE_DECODER;
    kit_case_add(&t->c, 1, has_context ? 90 : 1);
    kit_case_add(&t->c, 5, has_context && !(p->features & ATTN_F_QQ_BIAS) ? 40 : 5);
    kit_case_add(&t->c, 150, has_context ? 170 : 150);
    kit_case_add(&t->c, 300, 300);
    t->c.spans[2][0][0] = 20, t->c.spans[2][0][1] = 130;
    for (int r = 0; r < t->c.num_reqs; r++)
        t->c.rswa_prefix_lens[r] = t->c.seq_lens[r] / 4;
    return p;
}

static void list_tasks(void) {
    attn_problem_t *p;
    for (int i = 0; i < NUM_SHAPES; i++) {
        add(&shapes[i], ATTN_ROLE_DECODER, LEVEL, "");
        add(&shapes[i], ATTN_ROLE_DECODER, TURN, "");
        add(&shapes[i], ATTN_ROLE_DECODER, LOWEST, "")->features |= ATTN_F_REL_BIAS;
        add(&shapes[i], ATTN_ROLE_DECODER, NEAR_LOWEST, "")->features |= ATTN_F_REL_BIAS;
        if (shapes[i].kv == ATTN_KV_AUTO) add(&shapes[i], ATTN_ROLE_DECODER, NANS, "");
    }
    for (int i = 0; i < 2; i++) {
        add(&shapes[i], ATTN_ROLE_DECODER, LOWEST, ", among queries")->features |= ATTN_F_QQ_BIAS;
        for (int inputs = LEVEL; inputs <= TURN; inputs++) {
            add(&shapes[i], ATTN_ROLE_DECODER, inputs, ", window")->sliding_window = 70;
            add(&shapes[i], ATTN_ROLE_DECODER, inputs, ", prefix and window")->rswa_window = 50;
            add(&shapes[i], ATTN_ROLE_DECODER, inputs, ", sinks")->features |= ATTN_F_SINK;
            add(&shapes[i], ATTN_ROLE_DECODER, inputs, ", soft cap")->logits_soft_cap = 3e9;
            p = add(&shapes[i], ATTN_ROLE_DECODER, inputs, ", spans");
            p->features |= ATTN_F_MM_PREFIX;
            if (num_tasks > 0 && p == &tasks[num_tasks - 1].c.problem) tasks[num_tasks - 1].c.num_spans = 1;
            p = add(&shapes[i], ATTN_ROLE_DECODER, inputs, ", fp8 output");
            p->features |= ATTN_F_OUT_FP8_STATIC, p->out_dtype = ATTN_DTYPE_FP8_E4M3;
            add(&shapes[i], ATTN_ROLE_ENCODER_ONLY, inputs, ", encoder");
            add(&shapes[i], ATTN_ROLE_MM_ENCODER, inputs, ", vision encoder");
        }
    }
}

static kit_inputs_t *make_inputs(const task_t *t) {
    kit_inputs_t *in = kit_inputs_make(&t->c);
    if (in == NULL) return NULL;
    const kit_sizes_t z = kit_sizes(&t->c.problem);
    const int64_t rel = 2 * in->rel_max + 1;
    if (t->inputs == LOWEST || t->inputs == NEAR_LOWEST) {
        for (int64_t j = 0; in->rel_bias != NULL && j < t->c.problem.num_heads * rel; j++)
            if (t->inputs == LOWEST || j % rel - in->rel_max > -3) in->rel_bias[j] = -FLT_MAX;
        for (int64_t j = 0; in->qq_bias != NULL && j < in->num_tokens * in->bias_width; j++)
            in->qq_bias[j] = -FLT_MAX;
        return in;
    }
    for (int64_t i = 0; i < in->num_tokens * z.heads; i++) /* one channel makes the scores, to 1.2e10 */
        for (int64_t d = 0; d < z.query; d++)
            in->query[i * z.query + d] = d == 0 ? ((float)(i * 5 % 16) - 7.5f) * 16.f : 0.f;
    for (int r = 0; r < t->c.num_reqs; r++)
        for (int64_t k = in->key_start[r]; k < in->key_start[r + 1]; k++)
            for (int64_t h = 0; h < z.kv_heads; h++) {
                const int64_t at = k - in->key_start[r];
                float *key = &in->key[(k * z.kv_heads + h) * z.key];
                key[0] = t->inputs != TURN || at < t->c.seq_lens[r] / 2 ? 96.f : 0.f;
                if (t->inputs == NANS && r == 3 && at == 100) key[1] = NAN;
            }
    return in;
}

static int run_task(const task_t *t, char *why, size_t size) {
    kit_difference_t d;
    if (!kit_is_served(triton, &t->c, &gpu, why, size)) return 0;
    kit_inputs_t *in = make_inputs(t);
    if (in == NULL) return 0;
    const int good = kit_agrees(triton, reference, &t->c, in, &gpu, &d, why, size);
    kit_inputs_free(in);
    return good;
}

/* One prompt of 4096 tokens, several times: ordinary, all of it deep, with a key of NaN in the middle. */
static void speed(void) {
    static const char *const names[3] = {"ordinary", "all rows deep", "NaN from the middle on"};
    for (int i = 0; i < 3; i++) {
        task_t t = {.inputs = i == 1 ? LEVEL : TURN};
        kit_difference_t d;
        char why[1300] = "";
        kit_case_start(&t.c, ATTN_ROLE_DECODER, 9);
        t.c.family = KIT_EQUAL_KEYS;
        attn_problem_t *p = &t.c.problem;
        p->dtype = BF16, p->head_size = 128, p->num_heads = 8, p->num_kv_heads = 2, p->block_size = 16;
        p->scale = i == 1 ? 1e6 : 0.088;
        kit_case_add(&t.c, 4096, 4096);
        kit_inputs_t *in = make_inputs(&t);
        if (in == NULL) return;
        if (i == 2)
            for (int64_t j = 0; j < 2 * 128; j++)
                in->key[2048 * 2 * 128 + j] = NAN;
        double best = 1e9;
        for (int n = 0; n < 4; n++) {
            kit_result_t r;
            const double start = part_seconds();
            const int status = kit_run(triton, &t.c, in, &gpu, &r);
            best = fmin(best, part_seconds() - start);
            kit_result_free(&r);
            if (status != ATTN_OK) diag("status %d", status);
        }
        (void)d, (void)why;
        diag("4096 tokens with opening and copies, %s: %.2f ms", names[i], 1e3 * best);
        kit_inputs_free(in);
    }
}

static char cache_dir[] = "/tmp/attn-triton-deep-XXXXXX";

static int run_one(int i, char *why, size_t size) {
    return run_task(&tasks[i], why, size);
}
static int process_of(int i) {
    return tasks[i].kernel;
}
static const char *name_of(int i) {
    return tasks[i].name;
}

int main(void) {
    tasks_load(getenv("DEEP_TEST_PLUGINS"));
    list_tasks();
    const double start = part_seconds();
    const task_list_t list = {num_tasks, run_one, process_of, name_of, 0};
    const int passed = tasks_run(&list, tasks_jobs(getenv("DEEP_TEST_JOBS")), cache_dir);
    ok(passed >= 0, "%d of %d prompts far from zero agree with REFERENCE (%.0f s)",
       passed < 0 ? -1 - passed : passed, num_tasks, part_seconds() - start);
    if (getenv("DEEP_TEST_SPEED") != NULL && gpu_start() == 0) speed();
    tasks_end(cache_dir);
    return tap_done();
}
