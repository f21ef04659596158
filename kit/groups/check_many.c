/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_many.c: the part of group steps about how often: an engine calls an instance millions of times and
 * opens thousands. Counters of 8 and of 16 bits wrap here, and what is good for so many uses is worn out.
 */
#include "../case/case_run.h"
#include "../run/check_engine.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LEAST_STEPS = 1100, MOST_STEPS = 66000, LEAST_OPENS = 300 };

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int start(check_t *c, kit_case_t *k) {
    if (!check_start_without(c, k)) return 0;
    k->padded_tokens = 0;
    if (attn_role_has_cache(k->problem.role))
        kit_case_add(k, 1, 5);
    else
        kit_case_add(k, 2, 2);
    return 1;
}

/* The slots of the step's rows, or NULL where nothing is to be written. */
static const DLTensor *slots_of(kit_run_t *x) {
    int64_t slot;
    if (x->cache == NULL || x->c->problem.role == ATTN_ROLE_ENCODER_DECODER) return NULL;
    if (x->ops->update_kv_cache == NULL) return NULL;
    slot = kit_run_slot(x, 0, 4);
    kit_tensor_t *t = kit_run_ints(x, "slot_mapping", &slot, ATTN_DTYPE_INT64, 1, 0, 0);
    return t != NULL ? &t->t : NULL;
}

static int one_step(check_t *c, kit_run_t *x, const DLTensor *slots) {
    attn_kv_update_t u = {.struct_size = sizeof u,
                          .key = &x->key->t,
                          .value = &x->value->t,
                          .slot_mapping = slots,
                          .scales = kit_run_scales(x)};
    attn_error_t *e = &x->result->error;
    int status = ATTN_OK;
    if (slots != NULL) {
        u.kv_cache = &x->k_view->t;
        status = x->ops->update_kv_cache(x->instance, &u, c->memory->stream, e);
    }
    if (status == ATTN_OK)
        status = x->ops->build_metadata(x->instance, &x->batch, &x->space, c->memory->stream, e);
    if (status == ATTN_OK) status = x->ops->forward(x->instance, &x->args, &x->space, c->memory->stream, e);
    if (status == ATTN_OK && c->memory->sync(c->memory->ctx) != 0) status = ATTN_E_DEVICE;
    return status;
}

/* Step after step on one instance, until a counter of 16 bits has wrapped or a second of work is over: the
 * same bits in each. */
static void many_steps(check_t *c) {
    static kit_run_t x;
    kit_result_t result;
    kit_case_t k;
    if (!start(c, &k)) return;
    check_running(c, &k);
    kit_inputs_t *in = kit_inputs_make(&k);
    int status = kit_run_open(&x, c->backend, &k, in, c->memory, &result);
    if (status == ATTN_OK) status = kit_run_fill(&x);
    if (status == ATTN_OK) status = kit_run_update(&x);
    if (status == ATTN_OK) status = kit_run_prepare(&x);
    if (status == ATTN_OK) status = kit_run_outputs(&x);
    if (status == ATTN_OK) status = kit_run_arguments(&x);
    const DLTensor *slots = status == ATTN_OK ? slots_of(&x) : NULL;
    unsigned char *first = status == ATTN_OK ? malloc(x.output->bytes) : NULL;
    const double until = cpu_seconds() + (c->role == 0 ? 1 : 0.3);
    const int is_here = c->memory->kind == NULL;
    for (int n = 0; status == ATTN_OK && first != NULL && n < MOST_STEPS; n++) {
        if (n >= LEAST_STEPS && (!is_here || cpu_seconds() > until)) break;
        const int is_seen = is_here || n % 64 == 0;
        if (is_seen) kit_run_poison(&x);
        status = one_step(c, &x, slots);
        if (status == ATTN_OK && is_seen && kit_tensor_fetch(&x.all, x.output)) status = ATTN_E_NO_MEMORY;
        if (status != ATTN_OK) {
            check_fail(c, "step %d on one instance: %d, %s", n + 1, status, result.error.text);
        } else if (is_seen && n == 0) {
            memcpy(first, x.output->host, x.output->bytes);
        } else if (is_seen && memcmp(first, x.output->host, x.output->bytes) != 0) {
            check_fail(c, "step %d on one instance gives other bits than the first, which was the same",
                       n + 1);
            break;
        }
    }
    if (status == ATTN_OK && !c->report->is_failed && kit_run_read(&x) == ATTN_OK)
        check_against_oracle(c, &k, in, &result);
    else if (!c->report->is_failed)
        check_fail(c, "%s: %d, %s", result.operation, status, result.error.text);
    free(first);
    kit_run_close(&x);
    kit_result_free(&result);
    kit_inputs_free(in);
}

/* One instance after another, each closed before the next is opened. */
static void many_opens(check_t *c) {
    kit_case_t k;
    attn_error_t e = {.struct_size = sizeof e};
    if (!start(c, &k)) return;
    const double until = cpu_seconds() + (c->role == 0 ? 0.5 : 0.2);
    for (int n = 0; n < MOST_STEPS && (n < LEAST_OPENS || cpu_seconds() < until); n++) {
        attn_instance_t *instance = NULL;
        if (check_open(c, &k.problem, &instance, &e) != ATTN_OK) {
            check_fail(c, "open number %d of a process: %.300s", n + 1, e.text);
            return;
        }
        c->backend->ops->close(instance);
    }
    check_run(c, c->backend, &k, NULL);
}

void check_many_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "steps", 1, many_steps, 0, "thousands of steps on one instance");
    check_add(list, "steps", CHECK_RUNS_ON_CPU, many_opens, 0, "thousands of instances in turn");
}
