/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_steps.c: group steps. What an engine does beyond one call: one build for several layers, layers in
 * turn, requests that grow from step to step, batches of every size on one instance, instances that end while
 * others live, calls from other threads. Nothing may be left over from the call before, and nothing used up.
 */
#include "../case/case_run.h"
#include "../run/device_image.h"

#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

enum { NUM_LAYERS = 3 };

enum { MOST_RUNS = 10 };
static kit_run_t runs[MOST_RUNS];
static kit_result_t results[MOST_RUNS];

/* The first stage that failed, as a failure of the check. */
static int is_well(check_t *c, const kit_run_t *x, int status) {
    if (status == ATTN_OK && x->result->fault[0] != '\0') return check_fail(c, "%s", x->result->fault);
    if (status == ATTN_OK) return 1;
    return check_fail(c, "%s: %d, %s: %s", x->result->operation, status, x->result->error.param,
                      x->result->error.text);
}

/* Inputs of another layer: the batch and its block table are those of in. */
static kit_inputs_t *inputs_of_layer(const kit_case_t *k, const kit_inputs_t *in, int layer) {
    kit_case_t other = *k;
    other.seed = k->seed + 1000u * (unsigned)layer;
    kit_inputs_t *out = kit_inputs_make(&other);
    if (out == NULL) abort();
    if (in != NULL && in->block_table != NULL)
        memcpy(out->block_table, in->block_table,
               (size_t)(k->num_reqs * in->table_width) * sizeof *in->block_table);
    return out;
}

/* Scratch memory of one call is not kept for the next. */
static void spoil_workspace(const kit_run_t *x, int byte) {
    const size_t bytes = (size_t)x->space.workspace_bytes;
    void *image = bytes > 0 && x->space.workspace != NULL ? malloc(bytes) : NULL;
    if (image == NULL) return;
    memset(image, byte, bytes);
    image_write(x->space.workspace, image, bytes);
    free(image);
}

static int forward_and_compare(check_t *c, kit_run_t *x) {
    int status = kit_run_poison(x);
    spoil_workspace(x, 0xff);
    if (status == ATTN_OK) status = kit_run_forward(x);
    if (status == ATTN_OK) status = kit_run_read(x);
    if (!is_well(c, x, status)) return 0;
    int close = check_against_oracle(c, x->c, x->in, x->result);
    kit_result_free(x->result);
    return close;
}

/* Layers 0, 1, 2 on one instance, then 2, 1, 0, 0: each has its own cache, inputs and outputs. */
static int layers_in_turn(check_t *c, const kit_case_t *k) {
    static const int order[] = {0, 1, 2, 2, 1, 0, 0, 1};
    static kit_case_t own[NUM_LAYERS];
    kit_inputs_t *in[NUM_LAYERS] = {NULL};
    check_running(c, k);
    for (int l = 0; l < NUM_LAYERS; l++) {
        in[l] = inputs_of_layer(k, in[0], l);
        own[l] = *k; /* the second one's pages are further apart */
        if (l == 1 && (c->can.features & ATTN_F_BLOCK_STRIDE) && attn_role_has_cache(k->problem.role))
            own[l].flags |= KIT_CROSS_LAYER;
        int status = l == 0 ? kit_run_open(&runs[0], c->backend, &own[0], in[0], c->memory, &results[0])
                            : kit_run_join(&runs[l], &runs[0], &own[l], in[l], &results[l]);
        if (status == ATTN_OK) status = kit_run_fill(&runs[l]);
        if (status == ATTN_OK) status = kit_run_prepare(&runs[l]);
        if (status == ATTN_OK) status = kit_run_outputs(&runs[l]);
        if (l > 0) runs[l].space = runs[0].space;
        if (!is_well(c, &runs[l], status)) return 0;
    }
    if (!is_well(c, &runs[0], kit_run_build(&runs[0]))) return 0;
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        kit_run_t *x = &runs[order[i]];
        int status = i < NUM_LAYERS ? kit_run_update(x) : ATTN_OK;
        if (status == ATTN_OK && i > 0 && i < NUM_LAYERS) status = kit_run_arguments(x);
        if (!is_well(c, x, status) || !forward_and_compare(c, x)) return 0;
    }
    attn_space_needed_t needed = {.struct_size = sizeof needed};
    attn_error_t error = {.struct_size = sizeof error};
    if (runs[0].ops->space_needed(runs[0].instance, &needed, &error) != ATTN_OK ||
        memcmp(&needed, &runs[0].needed, sizeof needed) != 0)
        check_fail(c, "space_needed is another one after a step; it follows from the problem alone");
    for (int l = NUM_LAYERS - 1; l >= 0; l--) {
        kit_run_close(&runs[l]);
        kit_inputs_free(in[l]);
    }
    return !c->report->is_failed;
}

static void one_build(check_t *c) {
    kit_case_t k;
    if (check_start(c, &k)) layers_in_turn(c, &k);
}

int check_layer_case(const check_t *c, kit_case_t *k, int i) {
    static const uint64_t own[CHECK_NUM_LAYER] = {
        ATTN_F_SINK,        ATTN_F_ALIBI,          ATTN_F_PER_HEAD_SCALES, 0,
        ATTN_F_QUANT_QUERY, ATTN_F_OUT_FP8_STATIC, ATTN_F_REL_BIAS};
    if (!check_plain_case(c, k) || (c->can.features & own[i]) != own[i]) return 0;
    k->problem.features |= own[i] & ~ATTN_F_QUANT_QUERY;
    if (own[i] == ATTN_F_PER_HEAD_SCALES) k->flags |= KIT_PER_HEAD;
    if (i >= 2 && i <= 4) {
        const uint32_t fp8 = check_fp8_cache(c);
        if (!attn_role_has_cache(k->problem.role) || fp8 == 0) return 0;
        k->problem.kv_cache_dtype = fp8;
        check_fit_size(c, k);
    }
    if (own[i] == ATTN_F_QUANT_QUERY) k->problem.query_dtype = ATTN_DTYPE_FP8_E4M3;
    if (own[i] == ATTN_F_OUT_FP8_STATIC) k->problem.out_dtype = ATTN_DTYPE_FP8_E4M3;
    return check_is_served(c, k);
}

/* The same with what else is a layer's own. */
static void layers_of_their_own(check_t *c) {
    for (int i = 0; i < CHECK_NUM_LAYER && !c->report->is_failed; i++) {
        kit_case_t k;
        if (check_layer_case(c, &k, i)) layers_in_turn(c, &k);
    }
    if (c->report->num_cases == 0) check_skip(c, "it serves none of what is a layer's own");
}

/* And with what a batch says of its requests, which metadata keeps for every layer. */
static void layers_of_one_batch(check_t *c) {
    for (int i = 0; i < CHECK_NUM_SAID && !c->report->is_failed; i++) {
        kit_case_t k;
        if (check_said_case(c, &k, i)) layers_in_turn(c, &k);
    }
    if (c->report->num_cases == 0) check_skip(c, "it serves none of what a batch says");
}

/* Each layer has an instance of its own; the one that built the metadata is closed before the others use
 * it. */
static void builder_closes(check_t *c) {
    kit_case_t k;
    kit_inputs_t *in[NUM_LAYERS] = {NULL};
    if (!check_start(c, &k)) return;
    check_running(c, &k);
    for (int l = 0; l < NUM_LAYERS; l++) {
        in[l] = inputs_of_layer(&k, in[0], l);
        int status = kit_run_open(&runs[l], c->backend, &k, in[l], c->memory, &results[l]);
        if (status == ATTN_OK) status = kit_run_fill(&runs[l]);
        if (status == ATTN_OK) status = kit_run_update(&runs[l]);
        if (status == ATTN_OK) status = kit_run_prepare(&runs[l]);
        if (status == ATTN_OK) status = kit_run_outputs(&runs[l]);
        if (!is_well(c, &runs[l], status)) return;
    }
    if (!is_well(c, &runs[0], kit_run_build(&runs[0]))) return;
    runs[0].ops->close(runs[0].instance);
    runs[0].instance = NULL;
    for (int l = 1; l < NUM_LAYERS; l++) {
        runs[l].space = runs[0].space;
        if (!is_well(c, &runs[l], kit_run_arguments(&runs[l])) || !forward_and_compare(c, &runs[l])) return;
    }
}

/* The inputs of a step: the first tokens of the whole ones, in the same pages. */
static kit_inputs_t *inputs_of_step(const kit_case_t *whole, const kit_inputs_t *all,
                                    const kit_case_t *step) {
    kit_inputs_t *in = kit_inputs_make(step);
    if (in == NULL) abort();
    const int64_t query = (int64_t)whole->problem.num_heads * whole->problem.head_size;
    const kit_sizes_t z = kit_sizes(&whole->problem);
    const int64_t key = z.kv_heads * z.key, value = z.kv_heads * z.value;
    int64_t row = 0, from = 0;
    in->num_blocks = all->num_blocks;
    for (int r = 0; r < step->num_reqs; r++) {
        const int64_t n = step->seq_lens[r], first = n - step->query_lens[r];
        memcpy(in->query + row * query, all->query + (from + first) * query,
               (size_t)(step->query_lens[r] * query) * sizeof(float));
        memcpy(in->key + in->key_start[r] * key, all->key + all->key_start[r] * key,
               (size_t)(n * key) * sizeof(float));
        memcpy(in->value + in->key_start[r] * value, all->value + all->key_start[r] * value,
               (size_t)(n * value) * sizeof(float));
        for (int64_t j = 0; j < in->table_width && j < all->table_width; j++)
            if (j * whole->problem.block_size < n)
                in->block_table[r * in->table_width + j] = all->block_table[r * all->table_width + j];
        row += step->query_lens[r];
        from += whole->seq_lens[r];
    }
    return in;
}

/* Requests grow in chunks and single tokens, in one cache and one set of buffers; one joins late. Each
 * token's output is also the one that the whole prompt at once gives. */
static void growing(check_t *c) {
    enum { NUM_STEPS = 6 };
    static const int32_t chunks[2][NUM_STEPS] = {{33, 1, 1, 16, 1, 18}, {0, 0, 40, 1, 1, 1}};
    kit_case_t whole, steps[NUM_STEPS];
    kit_inputs_t *in[NUM_STEPS] = {NULL};
    if (!check_start(c, &whole)) return;
    if (whole.problem.role != ATTN_ROLE_DECODER || whole.problem.mask != ATTN_MASK_CAUSAL) {
        check_skip(c, "not a causal decoder");
        return;
    }
    whole.num_reqs = 0;
    whole.padded_tokens = 0;
    kit_case_add(&whole, 70, 70);
    kit_case_add(&whole, 43, 43);
    check_running(c, &whole);
    kit_inputs_t *all = kit_inputs_make(&whole);
    kit_result_t want;
    if (all == NULL || kit_run_oracle(&kit_oracle, &whole, all, &want) != ATTN_OK) {
        check_fail(c, "the oracle failed");
        return;
    }
    const kit_sizes_t z = kit_sizes(&whole.problem);
    const int64_t width = z.heads * z.output;
    for (int s = 0; s < NUM_STEPS; s++) {
        steps[s] = whole;
        for (int r = 0; r < 2; r++) {
            steps[s].query_lens[r] = chunks[r][s];
            steps[s].seq_lens[r] = chunks[r][s] + (s > 0 ? steps[s - 1].seq_lens[r] : 0);
        }
        if (steps[s].seq_lens[1] == 0) steps[s].num_reqs = 1;
        in[s] = inputs_of_step(&whole, all, &steps[s]);
        kit_run_t *x = &runs[s];
        int status = s == 0 ? kit_run_open(x, c->backend, &steps[s], in[s], c->memory, &results[s])
                            : kit_run_join(x, &runs[0], &steps[s], in[s], &results[s]);
        if (status == ATTN_OK) status = s == 0 ? kit_run_fill(x) : kit_run_continue(x, &runs[0]);
        if (status == ATTN_OK) status = kit_run_update(x);
        if (status == ATTN_OK) status = kit_run_outputs(x);
        if (status == ATTN_OK) status = kit_run_build(x);
        spoil_workspace(x, 0x5a);
        if (status == ATTN_OK) status = kit_run_forward(x);
        if (status == ATTN_OK) status = kit_run_read(x);
        if (!is_well(c, x, status) || !check_against_oracle(c, &steps[s], in[s], &results[s])) return;
        for (int r = 0, row = 0; r < steps[s].num_reqs; row += chunks[r++][s]) {
            const int64_t first = (r == 0 ? 0 : 70) + steps[s].seq_lens[r] - chunks[r][s];
            double atol, rtol;
            kit_tolerance(&whole, &atol, &rtol);
            for (int64_t i = 0; i < chunks[r][s] * width; i++) {
                const double got = results[s].out[row * width + i], w = want.out[first * width + i];
                if (!(fabs(got - w) <= atol + rtol * fabs(w))) {
                    check_fail(c, "step %d: request %d in chunks gives %.9g, the whole prompt at once %.9g",
                               s, r, got, w);
                    return;
                }
            }
        }
    }
}

/* Batches of other sizes one after another on one instance, in one place. */
static void other_batches(check_t *c) {
    static const int32_t shapes[][3] = {{1, 1, 100}, {16, 1, 7}, {1, 60, 60}, {0, 0, 0},    {3, 5, 130},
                                        {3, 1, 1},   {16, 1, 7}, {1, 1, 300}, {1, 1, 9000}, {2, 3, 700}};
    enum { NUM = sizeof shapes / sizeof shapes[0] };
    static kit_case_t k[NUM];
    kit_inputs_t *in[NUM];
    for (int i = 0; i < NUM; i++) {
        if (!check_start(c, &k[i])) return;
        if (c->role == 0) k[i].problem.max_model_len = 16384;
        k[i].num_reqs = 0;
        k[i].seed += (uint64_t)i;
        for (int r = 0; r < shapes[i][0]; r++)
            kit_case_add(&k[i], shapes[i][1],
                         (c->role != 0 && shapes[i][2] > 1000 ? 1000 : shapes[i][2]) +
                             r % 3 * (shapes[i][2] > 5));
        if (shapes[i][0] == 0 && !attn_role_has_cache(k[i].problem.role)) k[i].num_reqs = 0;
        in[i] = kit_inputs_make(&k[i]);
        if (in[i] == NULL) abort();
    }
    int64_t most = 0;
    for (int i = 0; i < NUM; i++)
        if (in[i]->num_blocks > most) most = in[i]->num_blocks;
    for (int i = 0; i < NUM; i++) {
        in[i]->num_blocks = most;
        kit_run_t *x = &runs[i];
        check_running(c, &k[i]);
        int status = i == 0 ? kit_run_open(x, c->backend, &k[0], in[0], c->memory, &results[0])
                            : kit_run_join(x, &runs[0], &k[i], in[i], &results[i]);
        if (status == ATTN_OK) status = kit_run_fill(x);
        if (status == ATTN_OK) status = kit_run_update(x);
        if (status == ATTN_OK) status = kit_run_prepare(x);
        if (status == ATTN_OK) status = kit_run_outputs(x);
        if (status == ATTN_OK) status = kit_run_build(x);
        if (!is_well(c, x, status) || !forward_and_compare(c, x)) return;
    }
}

/* What a batch may have and the next one lacks: a common prefix, spans. On one instance, in one place. */
static void without_again(check_t *c) {
    static const uint64_t features[] = {ATTN_F_CASCADE, ATTN_F_MM_PREFIX};
    for (int f = 0; f < 2 && !c->report->is_failed; f++) {
        static kit_case_t k[2];
        kit_inputs_t *in[2];
        if (!check_start_without(c, &k[0])) return;
        if (k[0].problem.role != ATTN_ROLE_DECODER || !(c->can.features & features[f])) continue;
        k[0].problem.features |= features[f];
        const int32_t page = (int32_t)k[0].problem.block_size;
        for (int r = 0; r < 3; r++) {
            kit_case_add(&k[0], r == 1 ? 9 : 1, 2 * page + 20 + 7 * r);
            if (f == 1) k[0].spans[r][0][0] = page, k[0].spans[r][0][1] = 2 * page + 19;
        }
        k[1] = k[0];
        k[1].seed += 3;
        if (f == 0) k[0].common_prefix_len = 2 * page;
        if (f == 1) k[0].num_spans = 1;
        if (!check_is_served(c, &k[0])) continue;
        for (int i = 0; i < 2; i++)
            if ((in[i] = kit_inputs_make(&k[i])) == NULL) abort();
        if (in[0]->num_blocks < in[1]->num_blocks) in[0]->num_blocks = in[1]->num_blocks;
        in[1]->num_blocks = in[0]->num_blocks;
        for (int i = 0; i < 2; i++) {
            kit_run_t *x = &runs[i];
            check_running(c, &k[i]);
            int status = i == 0 ? kit_run_open(x, c->backend, &k[0], in[0], c->memory, &results[0])
                                : kit_run_join(x, &runs[0], &k[1], in[1], &results[1]);
            if (status == ATTN_OK) status = kit_run_fill(x);
            if (status == ATTN_OK) status = kit_run_update(x);
            if (status == ATTN_OK) status = kit_run_outputs(x);
            if (i == 1) x->space = runs[0].space; /* where the first batch's metadata lies */
            if (status == ATTN_OK) status = kit_run_build(x);
            if (!is_well(c, x, status) || !forward_and_compare(c, x)) return;
        }
        kit_run_close(&runs[1]);
        kit_run_close(&runs[0]);
        kit_inputs_free(in[0]);
        kit_inputs_free(in[1]);
    }
    if (c->report->num_cases == 0) check_skip(c, "neither cascade nor mm_prefix");
}

/* Pages that one request gave back are the next one's: the same instance, cache and table, other content. */
static void pages_again(check_t *c) {
    const uint32_t formats[] = {ATTN_KV_AUTO, check_fp8_cache(c)};
    for (int f = 0; f < 2 && !c->report->is_failed; f++) {
        static kit_case_t k[3];
        kit_inputs_t *in[3] = {NULL};
        if (!check_start(c, &k[0])) return;
        if (k[0].problem.role != ATTN_ROLE_DECODER) {
            check_skip(c, "not a decoder backend");
            return;
        }
        if (formats[f] == 0 || !(c->can.kv_cache_dtypes & ATTN_BIT(formats[f]))) continue;
        k[0].problem.kv_cache_dtype = formats[f];
        check_fit_size(c, &k[0]);
        k[0].num_reqs = 0;
        kit_case_add(&k[0], 70, 70);
        kit_case_add(&k[0], 45, 45);
        for (int s = 0; s < 3; s++) {
            if (s > 0) k[s] = k[0];
            k[s].seed = k[0].seed + 40u * (unsigned)(s % 2); /* the third has the first one's content */
            check_running(c, &k[s]);
            in[s] = kit_inputs_make(&k[s]);
            if (in[s] == NULL) abort();
            memcpy(in[s]->block_table, in[0]->block_table,
                   (size_t)(2 * in[0]->table_width) * sizeof *in[0]->block_table);
            kit_run_t *x = &runs[s];
            int status = s == 0 ? kit_run_open(x, c->backend, &k[0], in[0], c->memory, &results[0])
                                : kit_run_join(x, &runs[0], &k[s], in[s], &results[s]);
            if (status == ATTN_OK) status = s == 0 ? kit_run_fill(x) : kit_run_continue(x, &runs[0]);
            if (status == ATTN_OK) status = kit_run_update(x);
            if (status == ATTN_OK) status = kit_run_outputs(x);
            if (status == ATTN_OK) status = kit_run_build(x);
            if (!is_well(c, x, status) || !forward_and_compare(c, x)) return;
        }
        for (int s = 2; s >= 0; s--) {
            kit_run_close(&runs[s]);
            kit_inputs_free(in[s]);
        }
    }
}

/* ------------------------------------------------------- lives of instances */

/* One of another problem is closed, and another opened and closed, while this one works. */
static void others_end_of(check_t *c, const kit_case_t *of) {
    kit_case_t k = *of;
    attn_instance_t *before = NULL, *equal = NULL, *after = NULL;
    attn_error_t e = {.struct_size = sizeof e};
    kit_run_t *x = &runs[0];
    check_running(c, &k);
    kit_inputs_t *in = kit_inputs_make(&k);
    attn_problem_t other = k.problem;
    other.scale *= 2;
    other.max_num_seqs = 2;
    other.num_blocks = 8;
    if (check_open(c, &other, &before, &e) != ATTN_OK || check_open(c, &k.problem, &equal, &e) != ATTN_OK) {
        check_fail(c, "open: %s", e.text);
        return;
    }
    int status = kit_run_open(x, c->backend, &k, in, c->memory, &results[0]);
    c->backend->ops->close(before);
    if (status == ATTN_OK) status = kit_run_fill(x);
    if (status == ATTN_OK) status = kit_run_update(x);
    c->backend->ops->close(equal);
    if (status == ATTN_OK) status = kit_run_prepare(x);
    if (status == ATTN_OK) status = kit_run_outputs(x);
    if (status == ATTN_OK) status = kit_run_build(x);
    if (!is_well(c, x, status) || !forward_and_compare(c, x)) return;
    if (check_open(c, &other, &after, &e) != ATTN_OK) {
        check_fail(c, "open again: %s", e.text);
        return;
    }
    c->backend->ops->close(after);
    if (!forward_and_compare(c, x)) return;
    kit_run_close(x);
    if (check_run_alone(c, c->backend, &k, in, c->memory, &results[1])) { /* and once more from the start */
        check_against_oracle(c, &k, in, &results[1]);
        kit_result_free(&results[1]);
    }
    kit_inputs_free(in);
}

static void others_end(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    for (int i = 0; i < CHECK_NUM_KEPT && !c->report->is_failed; i++)
        if (check_kept_case(c, &k, i)) others_end_of(c, &k);
}

static int (*stage)(kit_run_t *x);
static const attn_backend_t *hopping_backend;
static const kit_memory_t *hopping_memory;
static kit_case_t hopping_case;
static kit_inputs_t *hopping_inputs;
static int stage_status;

static int open_stage(kit_run_t *x) {
    return kit_run_open(x, hopping_backend, &hopping_case, hopping_inputs, hopping_memory, &results[0]);
}
static int close_stage(kit_run_t *x) {
    kit_run_close(x);
    return ATTN_OK;
}
static sem_t is_done, is_over;
static void *do_stage(void *x) {
    stage_status = stage(x);
    sem_post(&is_done);
    while (sem_wait(&is_over) != 0) { /* it stays until the end, so that no two have one id */
    }
    return NULL;
}

/* An instance belongs to one thread at a time, not to the one that opened it. */
static void other_threads_of(check_t *c) {
    int (*const stages[])(kit_run_t *) = {open_stage,      kit_run_fill,    kit_run_update,
                                          kit_run_prepare, kit_run_outputs, kit_run_build,
                                          kit_run_forward, kit_run_forward, kit_run_read};
    check_running(c, &hopping_case);
    hopping_backend = c->backend;
    hopping_memory = c->memory;
    hopping_inputs = kit_inputs_make(&hopping_case);
    sem_init(&is_done, 0, 0);
    sem_init(&is_over, 0, 0);
    for (size_t i = 0; i < sizeof stages / sizeof stages[0]; i++) {
        pthread_t thread;
        stage = stages[i];
        if (pthread_create(&thread, NULL, do_stage, &runs[0]) != 0) abort();
        while (sem_wait(&is_done) != 0) {
        }
        pthread_detach(thread);
        if (!is_well(c, &runs[0], stage_status)) return;
    }
    check_against_oracle(c, &hopping_case, hopping_inputs, &results[0]);
    close_stage(&runs[0]);
}

static void other_threads(check_t *c) {
    if (!check_start(c, &hopping_case)) return;
    for (int i = 0; i < CHECK_NUM_KEPT && !c->report->is_failed; i++)
        if (check_kept_case(c, &hopping_case, i)) other_threads_of(c);
}

/* The profiling run comes before there is a cache or a batch: query and output are all it has. */
static void profile_first(check_t *c) {
    for (uint32_t flags = 0; flags < 8; flags++) { /* 5: with an LSE; 6, 7: outputs of other types */
        kit_case_t k;
        kit_run_t *x = &runs[0];
        if (!check_start(c, &k)) return;
        k.flags |= flags == 1 ? KIT_STRIDED : flags == 2 ? KIT_HEADS_FIRST : 0;
        if (flags == 1 && (c->can.dtypes & ATTN_BIT(ATTN_DTYPE_BFLOAT16)))
            k.problem.dtype = ATTN_DTYPE_BFLOAT16;
        if (flags == 2 && c->role == 0) k.problem.features |= c->can.features & ATTN_F_SINK;
        if ((flags == 1 || flags == 2) && !check_is_served(c, &k)) continue;
        if (flags == 3) { /* values of another size */
            if (!(c->can.features & ATTN_F_DIFF_KV) || attn_role_is_mla(k.problem.role)) continue;
            k.problem.head_size_v =
                c->can.num_head_sizes_v != 0 ? c->can.head_sizes_v[0].max : check_head_size(c, 64);
            if (k.problem.head_size_v > 512 || !check_is_served(c, &k)) continue;
        }
        if (flags >= 6) {
            const uint32_t out = flags == 6 ? ATTN_DTYPE_FLOAT32 : ATTN_DTYPE_FP8_E4M3;
            const uint64_t with = flags == 6 ? 0 : ATTN_F_OUT_FP8_STATIC;
            if (!(c->can.out_dtypes & ATTN_BIT(out)) || (c->can.features & with) != with || c->role != 0)
                continue;
            if (flags == 6 && (c->can.dtypes & ATTN_BIT(ATTN_DTYPE_BFLOAT16)))
                k.problem.dtype = ATTN_DTYPE_BFLOAT16;
            k.problem.out_dtype = out != k.problem.dtype ? out : 0;
            k.problem.features |= with;
            if (!check_is_served(c, &k)) continue;
        }
        if (flags == 4) { /* as many tokens as a step of an engine has */
            if (c->memory->kind != NULL || k.problem.role != ATTN_ROLE_DECODER) continue;
            for (int r = 0; r < 11; r++)
                kit_case_add(&k, 180, 180);
        }
        check_running(c, &k);
        kit_inputs_t *in = kit_inputs_make(&k);
        int status = kit_run_open(x, c->backend, &k, in, c->memory, &results[0]);
        if (status == ATTN_OK) status = kit_run_fill(x);
        if (status == ATTN_OK) status = kit_run_outputs(x);
        if (!is_well(c, x, status)) return;
        attn_forward_t args = {.struct_size = sizeof args, .query = &x->query->t, .output = &x->output->t};
        attn_error_t error = {.struct_size = sizeof error};
        if (x->cache == NULL) args.key = &x->key->t, args.value = &x->value->t;
        if (flags == 5) args.lse = x->lse != NULL ? &x->lse->t : NULL;
        status = x->ops->forward(x->instance, &args, NULL, c->memory->stream, &error);
        if (status == ATTN_OK) status = c->memory->sync(c->memory->ctx);
        if (status != ATTN_OK) {
            check_fail(c, "the profiling run (space NULL) with query and output alone: %d, %s", status,
                       error.text);
            return;
        }
        kit_tensor_fetch(&x->all, x->output);
        if (x->lse != NULL && !kit_tensor_fetch(&x->all, x->lse) && kit_tensor_damage(x->lse, 1, 0) >= 0)
            check_fail(c, "the profiling run wrote to the LSE");
        if (kit_tensor_damage(x->output, 0, x->output->shape[0]) >= 0)
            check_fail(c, "the profiling run wrote between or after the rows of output");
        for (int64_t t = 0; t < in->num_tokens; t++)
            for (int64_t h = 0; h < x->z.heads; h++) {
                const unsigned char *row = kit_tensor_at(x->output, t, h);
                for (size_t i = 0; i < (size_t)x->z.output * attn_dtype_size(x->out_dtype); i++)
                    if (row[i] != 0) {
                        check_fail(c, "the profiling run left output[%lld][%lld] other than 0", (long long)t,
                                   (long long)h);
                        return;
                    }
            }
        status = kit_run_update(x);
        if (status == ATTN_OK) status = kit_run_prepare(x);
        if (status == ATTN_OK) status = kit_run_build(x);
        if (!is_well(c, x, status) || !forward_and_compare(c, x)) return;
        kit_run_close(x);
        kit_inputs_free(in);
    }
}

void check_steps_list(check_list_t *list, const check_t *c) {
    check_add(list, "steps", 1, one_build, 0, "one build serves several layers, again and again");
    if (list->role == 0)
        check_add(list, "steps", 1, layers_of_their_own, 0,
                  "layers have sinks, slopes and scales of their own");
    if (list->role == 0 && (c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER)))
        check_add(list, "steps", 1, layers_of_one_batch, 0, "layers share masks, spans and prefixes");
    check_add(list, "steps", 1, builder_closes, 0, "metadata outlives the instance that built it");
    check_add(list, "steps", 1, other_batches, 0, "batches of other sizes on one instance");
    check_add(list, "steps", 1, others_end, 0, "instances end while others live");
    check_add(list, "steps", CHECK_RUNS_ON_CPU, other_threads, 0, "each call from another thread");
    check_add(list, "steps", 1, profile_first, 0, "the profiling run needs query and output alone");
    if (list->role == 0) check_add(list, "steps", 1, growing, 0, "requests that grow from step to step");
    if (list->role == 0 && (c->can.features & (ATTN_F_CASCADE | ATTN_F_MM_PREFIX)))
        check_add(list, "steps", 1, without_again, 0, "a batch lacks what the one before had");
    if (list->role == 0) check_add(list, "steps", 1, pages_again, 0, "pages that another request had before");
    check_many_list(list, c);
    check_next_list(list, c);
}
