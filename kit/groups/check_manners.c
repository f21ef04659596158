/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_manners.c: group manners. A plugin is a guest in another program's process: it prints nothing, leaves
 * the floating-point environment, signals, locale, folder and thread alone, and answers nonsense with an
 * error code instead of an exception or a crash.
 */
#include "../run/check_engine.h"
#include "../run/surroundings.h"

#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void silence(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    check_run(c, c->backend, &k, NULL);
    fflush(NULL);
    if (lseek(STDOUT_FILENO, 0, SEEK_END) > 0) /* both streams go to one file here */
        check_fail(c, "it prints; messages belong to the log function of attn_host_t");
}

static check_t *current;
static surroundings_t before;

static void compare(const char *operation) {
    surroundings_t now;
    char what[200];
    surroundings_read(&now);
    if (surroundings_differ(&before, &now, what, sizeof what)) check_fail(current, "%s %s", operation, what);
}

static int polite_open(const attn_problem_t *problem, const attn_device_t *device,
                       const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                       attn_instance_t **instance, attn_error_t *error) {
    int status = shim_target()->ops->open(problem, device, options, num_options, host, instance, error);
    compare("open");
    /* the program goes on with another number of threads, which is not to be set back */
    surroundings_set_threads(before.openmp[0] == 5 ? 6 : 5);
    surroundings_read(&before);
    return status;
}
static int polite_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                        void *stream, attn_error_t *error) {
    int status = shim_target()->ops->build_metadata(instance, batch, space, stream, error);
    compare("build_metadata");
    return status;
}
static int polite_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                         attn_error_t *error) {
    int status = shim_target()->ops->update_kv_cache(instance, args, stream, error);
    compare("update_kv_cache");
    return status;
}
static int polite_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    int status = shim_target()->ops->forward(instance, args, space, stream, error);
    compare("forward");
    return status;
}
static void polite_close(attn_instance_t *instance) {
    shim_target()->ops->close(instance);
    compare("close");
}
static int polite_shape(attn_instance_t *instance, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                        attn_error_t *error) {
    int status = shim_target()->ops->kv_cache_shape(instance, num_blocks, shape, error);
    compare("kv_cache_shape");
    return status;
}
static int polite_space(attn_instance_t *instance, attn_space_needed_t *needed, attn_error_t *error) {
    int status = shim_target()->ops->space_needed(instance, needed, error);
    compare("space_needed");
    return status;
}
static int polite_prepare(attn_instance_t *instance, const attn_weights_t *weights, void *stream,
                          attn_error_t *error) {
    int status = shim_target()->ops->prepare_weights(instance, weights, stream, error);
    compare("prepare_weights");
    return status;
}
static const attn_backend_ops_t polite_ops = {.open = polite_open,
                                              .close = polite_close,
                                              .kv_cache_shape = polite_shape,
                                              .space_needed = polite_space,
                                              .prepare_weights = polite_prepare,
                                              .build_metadata = polite_build,
                                              .update_kv_cache = polite_update,
                                              .forward = polite_forward};

static void surroundings(check_t *c) {
    kit_case_t k;
    current = c;
    if (!check_start(c, &k)) return;
    const int threads = surroundings_set_threads(3); /* which no plugin would choose */
    setlocale(LC_ALL, "C.UTF-8");                    /* likewise */
    surroundings_read(&before);
    surroundings_seed(&before);
    check_is_served(c, &k);
    compare("supports_combination");
    check_run(c, shim_make(c->backend, &polite_ops), &k, NULL);
    /* other formats and types, and a batch that is worth threads */
    for (int i = 1; i < CHECK_NUM_KEPT && !c->report->is_failed; i++) {
        if (!check_kept_case(c, &k, i)) continue;
        surroundings_read(&before);
        check_run(c, shim_make(c->backend, &polite_ops), &k, NULL);
    }
    static const uint64_t terms[] = {ATTN_F_SOFT_CAP, ATTN_F_SLIDING_WINDOW, ATTN_F_SINK,
                                     ATTN_F_ALIBI,    ATTN_F_ALIBI_SQRT,     ATTN_F_REL_BIAS};
    for (size_t i = 0; i < sizeof terms / sizeof terms[0] && !c->report->is_failed; i++) {
        if (!(c->can.features & terms[i]) || !check_start(c, &k)) continue;
        if (k.problem.role != ATTN_ROLE_DECODER) break;
        if (terms[i] == ATTN_F_SOFT_CAP) k.problem.logits_soft_cap = 20;
        if (terms[i] == ATTN_F_SLIDING_WINDOW) k.problem.sliding_window = 16;
        k.problem.features |= terms[i] & ~(ATTN_F_SOFT_CAP | ATTN_F_SLIDING_WINDOW);
        if (!check_is_served(c, &k)) continue;
        surroundings_read(&before);
        check_run(c, shim_make(c->backend, &polite_ops), &k, NULL);
    }
    if (!check_start(c, &k)) return;
    kit_case_add(&k, 130, attn_role_has_cache(k.problem.role) ? 190 : 130);
    surroundings_read(&before);
    check_run(c, shim_make(c->backend, &polite_ops), &k, NULL);
    surroundings_set_threads(threads);
}

/* What supports_combination says of a problem follows from the problem: the same before anything was opened,
 * beside an instance, and when it was closed. */
static int num_reasons(const check_t *c, const attn_problem_t *p) {
    attn_reason_t items[4] = {{0}};
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 4, .items = items};
    attn_device_t device;
    check_device(c, &device);
    if (c->backend->ops->supports_combination(p, &device, &reasons) != ATTN_OK) return -1;
    const int count = (int)reasons.count;
    /* without a device its questions are skipped (attn_backend_validate) */
    if (c->backend->ops->supports_combination(p, NULL, &reasons) != ATTN_OK)
        check_fail(current, "supports_combination without a device gives an error");
    return count;
}
static void same_answer(check_t *c) {
    kit_case_t k, other;
    current = c;
    attn_instance_t *instance = NULL;
    attn_error_t error = {.struct_size = sizeof error};
    if (!check_start(c, &k)) return;
    if (c->backend->ops->supports_combination == NULL) {
        check_skip(c, "no supports_combination");
        return;
    }
    other = k;
    other.problem.features |= c->can.features & (ATTN_F_SINK | ATTN_F_SOFT_CAP);
    if (other.problem.features & ATTN_F_SOFT_CAP) other.problem.logits_soft_cap = 20;
    other.problem.sliding_window = c->can.features & ATTN_F_SLIDING_WINDOW ? 16 : 0;
    const int first = num_reasons(c, &k.problem), second = num_reasons(c, &other.problem);
    for (int step = 0; step < 3; step++) {
        if (step == 1 && check_open(c, &k.problem, &instance, &error) != ATTN_OK) break;
        if (step == 2) c->backend->ops->close(instance);
        if (num_reasons(c, &k.problem) != first || num_reasons(c, &other.problem) != second)
            check_fail(c, "supports_combination gives other reasons %s",
                       step == 0   ? "when it is asked again"
                       : step == 1 ? "while an instance is open"
                                   : "when an instance was closed");
    }
}

/* A mode of rounding, or of subnormal numbers, that the caller has set neither breaks the backend nor gets
 * lost. */
static void other_rounding(check_t *c) {
    kit_case_t k;
    current = c;
    if (!check_start(c, &k)) return;
    kit_inputs_t *in = kit_inputs_make(&k);
    kit_result_t result;
    if (in == NULL) return;
    fesetround(FE_TOWARDZERO);
    surroundings_read(&before);
    if (check_run_alone(c, shim_make(c->backend, &polite_ops), &k, in, c->memory, &result))
        kit_result_free(&result);
    fesetround(FE_TONEAREST);
#if defined(__x86_64__)
    const unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 0x8040); /* subnormal numbers are zero, as engines like it */
    surroundings_read(&before);
    if (check_run_alone(c, shim_make(c->backend, &polite_ops), &k, in, c->memory, &result))
        kit_result_free(&result);
    __builtin_ia32_ldmxcsr(mode);
#endif
    kit_inputs_free(in);
}

/* A plain case in another memory. */
static void run_in(check_t *c, const kit_memory_t *memory) {
    kit_case_t k;
    kit_result_t got;
    if (!check_start(c, &k)) return;
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL) return;
    if (check_run_alone(c, c->backend, &k, in, memory, &got)) {
        check_against_oracle(c, &k, in, &got);
        kit_result_free(&got);
    }
    kit_inputs_free(in);
}

/* A stream is the device's; on a CPU an engine may give anything (attn_plugin.h). */
static void any_stream(check_t *c) {
    kit_memory_t memory = *c->memory;
    void *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory.stream = page != MAP_FAILED ? page : &memory; /* whoever looks there faults */
    run_in(c, &memory);
}

/* Of a device its type and number are known; the rest may be 0 (attn_types.h). */
static void unknown_device(check_t *c) {
    kit_memory_t memory = *c->memory;
    memory.num_sms = 0;
    run_in(c, &memory);
}

/* Problems with members at random: a code comes back, not a signal and not an exception. */
static void nonsense(check_t *c) {
    static const uint32_t odd[] = {0, 1, 2, 3, 5, 7, 16, 64, 255, 4096, 0x7fffffff, 0xffffffff};
    uint64_t state = c->seed;
    kit_case_t k;
    if (!check_start(c, &k)) return;
    /* what opens by luck may compile on a device, for seconds */
    int may_open = c->memory->kind != NULL ? 8 : 400;
    for (int n = 0; n < 400 && !c->report->is_failed; n++) {
        attn_problem_t p = k.problem;
        uint32_t *members[] = {&p.role,           &p.mask,           &p.dtype,       &p.out_dtype,
                               &p.query_dtype,    &p.kv_cache_dtype, &p.kv_layout,   &p.num_heads,
                               &p.num_kv_heads,   &p.head_size,      &p.head_size_v, &p.block_size,
                               &p.sliding_window, &p.chunk_size,     &p.rswa_window};
        for (int changes = 0; changes < 2; changes++)
            *members[kit_random_in(&state, 0, 14)] = odd[kit_random_in(&state, 0, 11)];
        if (n % 5 == 0) p.scale = n % 2 ? (double)NAN : (double)INFINITY;
        if (n % 7 == 0) p.features = kit_random(&state);
        kit_case_t shown = k;
        shown.problem = p;
        check_running(c, &shown);
        attn_instance_t *const nobody = (attn_instance_t *)(void *)&k, *instance = nobody;
        attn_error_t error = {.struct_size = sizeof error};
        attn_reasons_t reasons = {.struct_size = sizeof reasons};
        attn_device_t device;
        check_device(c, &device);
        attn_reason_t items[2];
        memset(items, 0xa5, sizeof items);
        reasons.capacity = 1;
        reasons.items = items;
        if (c->backend->ops->supports_combination != NULL)
            c->backend->ops->supports_combination(&p, &device, &reasons);
        for (size_t i = 0; i < sizeof items[1]; i++)
            if (((unsigned char *)&items[1])[i] != 0xa5) {
                check_fail(c, "supports_combination wrote beyond the capacity of 1 reason");
                break;
            }
        if (may_open == 0 && reasons.count == 0) continue;
        int status = check_open(c, &p, &instance, &error);
        may_open -= status == ATTN_OK;
        if (status > 0 || status < -15)
            check_fail(c, "open returned %d, which is not a code of attn_types.h", status);
        else if (status == ATTN_OK && (instance == NULL || instance == nobody))
            check_fail(c, "open returned 0 and no instance");
        else if (status == ATTN_OK)
            c->backend->ops->close(instance);
        else if (error.text[0] == '\0')
            check_fail(c, "open refused with %d and no text", status);
        else if (instance != nobody)
            check_fail(c, "open failed and still wrote *instance");
    }
}

void check_manners_list(check_list_t *list, const check_t *c) {
    check_add(list, "manners", 1, nonsense, 0, "nonsense in a problem gives an error code and nothing else");
    check_add(list, "manners", 1, silence, 0, "it prints nothing");
    check_add(list, "manners", 1, surroundings, 0,
              "floating point, signals, locale, folder, limits, thread and rand are left alone");
    check_add(list, "manners", 1, same_answer, 0, "supports_combination answers from the problem alone");
    check_add(list, "manners", 1, other_rounding, 0, "a caller's rounding mode survives");
    check_add(list, "manners", CHECK_RUNS_ON_CPU, any_stream, 0, "on a CPU the stream is not looked at");
    check_add(list, "manners", CHECK_RUNS_ON_CPU, unknown_device, 0, "a CPU whose threads are not known");
    check_state_list(list, c);
    check_left_list(list, c);
    check_team_list(list, c);
}
