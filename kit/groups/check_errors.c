/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_errors.c: group errors. A bad argument is refused with a code, a text and the name of the parameter,
 * and the instance then serves the good call as if nothing had been.
 */
#include "../run/device_image.h"
#include "mistakes.h"

#include <stdlib.h>

static check_t *current;
static mistake_t mistake;
static int num_made;

/* 1 if a name is that of another argument than the wanted one: the text may be right, but programs read the
 * name. */
static int names_another(const char *name, const char *wanted) {
    static const char *const arguments[] = {
        "query",    "output",       "kv_cache",  "lse",          "metadata",     "workspace",
        "sinks",    "alibi_slopes", "key",       "value",        "slot_mapping", "block_table",
        "num_reqs", "topk_indices", "kv_b_proj", "weight_space", "seq_lens",     "query_start_loc"};
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++)
        if (strcmp(name, arguments[i]) == 0) return strstr(name, wanted) == NULL;
    return 0;
}

/* The verdict on the refused call. */
static void expect_refusal(int status, const attn_error_t *e, int wanted_code) {
    const char *parameter = mistake_texts[mistake].parameter;
    num_made++;
    if (status == ATTN_OK)
        check_fail(current, "%s: it was accepted", mistake_texts[mistake].name);
    else if (status > 0 || status < -15)
        check_fail(current, "%s: %d is not a code of attn_types.h", mistake_texts[mistake].name, status);
    else if (status != ATTN_E_INVALID && status != ATTN_E_UNSUPPORTED && status != ATTN_E_STATE &&
             status != ATTN_E_SPACE)
        check_fail(current, "%s: code %d; a bad argument is ATTN_E_INVALID, a small buffer ATTN_E_SPACE",
                   mistake_texts[mistake].name, status);
    else if (wanted_code != 0 && status != wanted_code)
        check_fail(current, "%s: code %d, expected %d", mistake_texts[mistake].name, status, wanted_code);
    else if (memchr(e->text, 0, sizeof e->text) == NULL || memchr(e->param, 0, sizeof e->param) == NULL)
        check_fail(current, "%s: the error's text or parameter has no end", mistake_texts[mistake].name);
    else if (e->text[0] == '\0' || e->code != status)
        check_fail(current, "%s: the error has no text, or not the code %d that came back",
                   mistake_texts[mistake].name, status);
    else if (parameter != NULL &&
             (names_another(e->param, parameter) ||
              (strstr(e->param, parameter) == NULL && strstr(e->text, parameter) == NULL)))
        check_fail(current, "%s: the error names '%s' (%s), not %s", mistake_texts[mistake].name, e->param,
                   e->text, parameter);
}

/* Whoever gives no error struct gets the same answer. */
static void expect_the_same(int status, int without) {
    if (without != status && !current->report->is_failed)
        check_fail(current, "%s: %d, and %d without an error struct", mistake_texts[mistake].name, status,
                   without);
}

/* The bytes from the first to the last element of the outputs, and of a cache that forward writes. */
static uint64_t print_outputs(const attn_forward_t *args) {
    const DLTensor *outputs[] = {args->output, args->lse, args->slot_mapping != NULL ? args->kv_cache : NULL};
    uint64_t h = 0;
    for (int i = 0; i < 3; i++) {
        if (outputs[i] == NULL || image_bytes(outputs[i]) == 0) continue;
        void *image = image_of(outputs[i]);
        h = attn_fingerprint64(h, image, image_bytes(outputs[i]));
        free(image);
    }
    return h;
}

static int bad_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    attn_space_t s = *space;
    bent_tensor_t b;
    attn_error_t e = {.struct_size = sizeof e};
    int code = 0;
    if (mistake_in_forward(current, mistake, &a, &s, &b, &code)) {
        const uint64_t before = print_outputs(args);
        const attn_forward_t *given = mistake == FORWARD_NO_ARGS ? NULL : &a;
        int status = shim_target()->ops->forward(instance, given, &s, stream, &e);
        expect_refusal(status, &e, code);
        expect_the_same(status, shim_target()->ops->forward(instance, given, &s, stream, NULL));
        if (status != ATTN_OK && print_outputs(args) != before)
            check_fail(current, "%s: forward refused it but still wrote output, lse or the cache",
                       mistake_texts[mistake].name);
    }
    return shim_target()->ops->forward(instance, args, space, stream, error);
}

static int bad_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                      attn_error_t *error) {
    attn_kv_update_t a = *args;
    bent_tensor_t b;
    attn_error_t e = {.struct_size = sizeof e};
    if (mistake_in_update(mistake, &a, &b)) {
        const int status = shim_target()->ops->update_kv_cache(instance, &a, stream, &e);
        expect_refusal(status, &e, 0);
        expect_the_same(status, shim_target()->ops->update_kv_cache(instance, &a, stream, NULL));
    }
    return shim_target()->ops->update_kv_cache(instance, args, stream, error);
}

static int bad_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                     void *stream, attn_error_t *error) {
    attn_batch_t b = *batch;
    attn_space_t s = *space;
    bent_tensor_t t;
    attn_error_t e = {.struct_size = sizeof e};
    int code = 0;
    if (mistake_in_build(mistake, &b, &s, &t, &code)) {
        const attn_batch_t *given = mistake == BUILD_NO_BATCH ? NULL : &b;
        const int status = shim_target()->ops->build_metadata(instance, given, &s, stream, &e);
        expect_refusal(status, &e, code);
        expect_the_same(status, shim_target()->ops->build_metadata(instance, given, &s, stream, NULL));
    }
    return shim_target()->ops->build_metadata(instance, batch, space, stream, error);
}
static int bad_prepare(attn_instance_t *instance, const attn_weights_t *args, void *stream,
                       attn_error_t *error) {
    attn_weights_t w = *args;
    bent_tensor_t b;
    attn_error_t e = {.struct_size = sizeof e};
    int code = 0;
    if (mistake_in_prepare(mistake, &w, &b, &code)) {
        const int status = shim_target()->ops->prepare_weights(instance, &w, stream, &e);
        expect_refusal(status, &e, code);
        expect_the_same(status, shim_target()->ops->prepare_weights(instance, &w, stream, NULL));
    }
    return shim_target()->ops->prepare_weights(instance, args, stream, error);
}
static const attn_backend_ops_t bad_ops = {.build_metadata = bad_build,
                                           .update_kv_cache = bad_update,
                                           .prepare_weights = bad_prepare,
                                           .forward = bad_forward};

static void one_mistake(check_t *c) {
    kit_case_t k;
    current = c;
    mistake = (mistake_t)c->arg;
    num_made = 0;
    if (!check_start(c, &k)) return;
    const int is_sink = mistake == FORWARD_SINK_DTYPE || mistake == FORWARD_SINK_ROWS,
              is_slope = mistake == FORWARD_SLOPE_DTYPE || mistake == FORWARD_SLOPE_ROWS;
    if (!attn_role_is_mla(k.problem.role)) /* which REFERENCE serves with neither */
        k.problem.features |= c->can.features & (is_sink ? ATTN_F_SINK : is_slope ? ATTN_F_ALIBI : 0);
    if ((mistake == FORWARD_SCALE_DTYPE || mistake == FORWARD_V_SCALE_DTYPE) && check_fp8_cache(c) != 0 &&
        attn_role_has_cache(k.problem.role))
        k.problem.kv_cache_dtype = check_fp8_cache(c);
    check_run(c, shim_make(c->backend, &bad_ops), &k, NULL);
    if (num_made == 0) check_skip(c, "cannot be made with this backend");
    if (num_made == 0 || c->memory->kind != NULL || k.problem.role != ATTN_ROLE_DECODER ||
        !(c->can.features & ATTN_F_WRITE_IN_FORWARD))
        return;
    k.problem.features |= ATTN_F_WRITE_IN_FORWARD; /* nothing is written before all is looked at */
    if (check_is_served(c, &k)) check_run(c, shim_make(c->backend, &bad_ops), &k, NULL);
}

/* Errors are filled only if there is a struct to fill. */
static void no_error_struct(check_t *c) {
    kit_case_t k;
    attn_instance_t *instance = NULL;
    if (!check_start(c, &k)) return;
    if (check_open(c, &k.problem, &instance, NULL) != ATTN_OK) {
        check_fail(c, "open fails without an error struct");
        return;
    }
    attn_forward_t args = {.struct_size = sizeof args};
    attn_space_t space = {.struct_size = sizeof space};
    attn_batch_t batch = {.struct_size = sizeof batch, .num_reqs = -1};
    if (c->backend->ops->forward(instance, &args, &space, NULL, NULL) == ATTN_OK)
        check_fail(c, "forward with empty arguments was accepted");
    if (c->backend->ops->build_metadata(instance, &batch, &space, NULL, NULL) == ATTN_OK)
        check_fail(c, "build_metadata with empty arguments was accepted");
    c->backend->ops->close(instance);
    c->backend->ops->close(NULL);
}

/* An error struct of another age is written as far as it goes, and not at all on success. */
static void short_error_struct(check_t *c) {
    kit_case_t k;
    attn_instance_t *instance = NULL;
    union {
        attn_error_t e;
        unsigned char bytes[sizeof(attn_error_t) + 64];
    } u;
    const uint32_t size = (uint32_t)offsetof(attn_error_t, text) + 24;
    if (!check_start(c, &k)) return;
    memset(&u, 0xa5, sizeof u);
    u.e.struct_size = sizeof u.e;
    if (check_open(c, &k.problem, &instance, &u.e) != ATTN_OK) {
        check_fail(c, "open: %.200s", u.e.text);
        return;
    }
    for (size_t i = sizeof u.e.struct_size; i < sizeof u; i++)
        if (u.bytes[i] != 0xa5) {
            check_fail(c, "open succeeded and wrote byte %zu of the error", i);
            break;
        }
    attn_forward_t args = {.struct_size = sizeof args};
    attn_space_t space = {.struct_size = sizeof space};
    attn_batch_t batch = {.struct_size = sizeof batch, .num_reqs = -1};
    for (int i = 0; i < 3; i++) {
        attn_problem_t p = k.problem;
        attn_instance_t *none = NULL;
        memset(&u, 0xa5, sizeof u);
        u.e.struct_size = size;
        p.num_heads = 0;
        int status = i == 0   ? c->backend->ops->forward(instance, &args, &space, NULL, &u.e)
                     : i == 1 ? c->backend->ops->build_metadata(instance, &batch, &space, NULL, &u.e)
                              : check_open(c, &p, &none, &u.e);
        if (status == ATTN_OK) continue; /* which is said elsewhere */
        for (size_t j = size; j < sizeof u; j++)
            if (u.bytes[j] != 0xa5) {
                check_fail(c, "byte %zu of an attn_error_t with a struct_size of %u was written", j, size);
                break;
            }
        if (u.e.struct_size != size) check_fail(c, "the struct_size of the error was changed");
    }
    c->backend->ops->close(instance);
}

/* An error struct is filled by calls that fail, and by them alone (attn_types.h). */
static int untouched(const char *operation, int status, const attn_error_t *e, attn_error_t *error) {
    static const attn_error_t want = {
        .struct_size = sizeof want, .code = 77, .param = "before", .text = "before"};
    if (status != ATTN_OK && error != NULL)
        *error = *e;
    else if (status == ATTN_OK && memcmp(e, &want, sizeof want) != 0)
        check_fail(current, "%s succeeded and wrote to the error struct", operation);
    return status;
}
#define BEFORE                                                                                               \
    { .struct_size = sizeof(attn_error_t), .code = 77, .param = "before", .text = "before" }
static int quiet_open(const attn_problem_t *problem, const attn_device_t *device,
                      const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                      attn_instance_t **instance, attn_error_t *error) {
    attn_error_t e = BEFORE;
    return untouched("open",
                     shim_target()->ops->open(problem, device, options, num_options, host, instance, &e), &e,
                     error);
}
static int quiet_shape(attn_instance_t *v, int64_t n, attn_kv_cache_shape_t *shape, attn_error_t *error) {
    attn_error_t e = BEFORE;
    return untouched("kv_cache_shape", shim_target()->ops->kv_cache_shape(v, n, shape, &e), &e, error);
}
static int quiet_space(attn_instance_t *v, attn_space_needed_t *needed, attn_error_t *error) {
    attn_error_t e = BEFORE;
    return untouched("space_needed", shim_target()->ops->space_needed(v, needed, &e), &e, error);
}
static int quiet_build(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                       attn_error_t *error) {
    attn_error_t e = BEFORE;
    return untouched("build_metadata", shim_target()->ops->build_metadata(v, batch, space, stream, &e), &e,
                     error);
}
static int quiet_update(attn_instance_t *v, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    attn_error_t e = BEFORE;
    return untouched("update_kv_cache", shim_target()->ops->update_kv_cache(v, args, stream, &e), &e, error);
}
static int quiet_forward(attn_instance_t *v, const attn_forward_t *args, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    attn_error_t e = BEFORE;
    return untouched("forward", shim_target()->ops->forward(v, args, space, stream, &e), &e, error);
}
static const attn_backend_ops_t quiet_ops = {.open = quiet_open,
                                             .kv_cache_shape = quiet_shape,
                                             .space_needed = quiet_space,
                                             .build_metadata = quiet_build,
                                             .update_kv_cache = quiet_update,
                                             .forward = quiet_forward};
/* The plain case; on the host each cache format, where scales may be left out without them, and random cases:
 * what is not given is no error. */
static void quiet_success(check_t *c) {
    enum { RANDOM = 12 };
    kit_case_t k;
    current = c;
    if (!check_start(c, &k)) return;
    for (int i = 0; i < CHECK_NUM_KEPT && !c->report->is_failed; i++) {
        if (!check_kept_case(c, &k, i)) continue;
        if (attn_kv_format(k.problem.kv_cache_dtype)->scale == ATTN_KV_SCALE_STATIC) k.flags |= KIT_NO_SCALES;
        check_run(c, shim_make(c->backend, &quiet_ops), &k, NULL);
    }
    for (int n = 0; n < RANDOM && c->memory->kind == NULL && !c->report->is_failed; n++) {
        check_random_case(c, &k, c->seed * 977 + (uint64_t)n, 60);
        k.flags |= n % 2 != 0 ? KIT_BARE_BATCH : 0;
        check_run(c, shim_make(c->backend, &quiet_ops), &k, NULL);
    }
}

/* update_block_table with what build_metadata refuses as well. Metadata that was never built may be built by
 * it, and has to serve then. */
static attn_space_t taken;
static int bad_table_build(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    static const char *const what[] = {"without a batch", "without a table",
                                       "with a table of another element type",
                                       "with a table of fewer rows than requests", "without metadata"};
    const int status = shim_target()->ops->build_metadata(v, batch, space, stream, error);
    memset(&taken, 0, sizeof taken);
    for (int i = 0; i < 6 && status == ATTN_OK && batch->block_table != NULL; i++) {
        attn_batch_t b = *batch;
        attn_space_t s = *space;
        bent_tensor_t t;
        attn_error_t e = {.struct_size = sizeof e};
        if (i == 1) b.block_table = NULL;
        if (i == 2) b.block_table = bend_type(&t, b.block_table, ATTN_DTYPE_INT64);
        if (i == 3) b.block_table = bend_rows(&t, b.block_table);
        if (i == 4) s.metadata = NULL, s.metadata_bytes = 0;
        if (i == 5) {
            if (mistake_not_built(current, &s, 0xc7) &&
                shim_target()->ops->update_block_table(v, &b, &s, stream, &e) == ATTN_OK)
                taken = s;
            break;
        }
        const int is_taken =
            shim_target()->ops->update_block_table(v, i == 0 ? NULL : &b, &s, stream, &e) == ATTN_OK;
        num_made++;
        if (is_taken) check_fail(current, "update_block_table %s was accepted", what[i]);
        if (!is_taken && e.text[0] == 0) check_fail(current, "update_block_table %s: no text", what[i]);
    }
    return status;
}
static int bad_table_forward(attn_instance_t *v, const attn_forward_t *args, const attn_space_t *space,
                             void *stream, attn_error_t *error) {
    const int is_taken = taken.metadata != NULL;
    const int status = shim_target()->ops->forward(v, args, is_taken ? &taken : space, stream, error);
    if (is_taken && status != ATTN_OK)
        check_fail(current, "update_block_table took metadata that was never built, and forward does not: %d",
                   status);
    return status;
}
static const attn_backend_ops_t bad_table_ops = {.build_metadata = bad_table_build,
                                                 .forward = bad_table_forward};
static void bad_tables(check_t *c) {
    kit_case_t k;
    current = c;
    num_made = 0;
    if (!check_start(c, &k)) return;
    if (c->backend->ops->update_block_table == NULL) {
        check_skip(c, "no update_block_table");
        return;
    }
    check_run(c, shim_make(c->backend, &bad_table_ops), &k, NULL);
    if (num_made == 0) check_skip(c, "no role with a cache");
}

/* Keys and values of the call, where there is no cache: none, of another type, too few. */
static int bad_rows_forward(attn_instance_t *v, const attn_forward_t *args, const attn_space_t *space,
                            void *stream, attn_error_t *error) {
    static const char *const what[] = {"without keys",
                                       "without values",
                                       "with keys of another element type",
                                       "with values of another element type",
                                       "with fewer keys than rows",
                                       "with fewer values than rows"};
    void *out = image_of(args->output);
    for (int i = 0; i < 6 && !current->report->is_failed; i++) {
        attn_forward_t a = *args;
        bent_tensor_t b;
        attn_error_t e = {.struct_size = sizeof e};
        const DLTensor **t = i % 2 == 0 ? &a.key : &a.value, *given = *t;
        *t = i < 2 ? NULL : i < 4 ? bend_type(&b, given, ATTN_DTYPE_INT64) : bend_rows(&b, given);
        const char *const name = i % 2 == 0 ? "key" : "value";
        const int status = shim_target()->ops->forward(v, &a, space, stream, &e);
        if (status == ATTN_OK)
            check_fail(current, "forward %s was accepted", what[i]);
        else if (i < 4 && strstr(e.param, name) == NULL && strstr(e.text, name) == NULL)
            check_fail(current, "forward %s: the error names '%s' (%s), not %s", what[i], e.param, e.text,
                       name);
        void *now = image_of(args->output);
        if (status != ATTN_OK && memcmp(out, now, image_bytes(args->output)) != 0)
            check_fail(current, "forward %s: refused, but output was written", what[i]);
        free(now);
    }
    free(out);
    return shim_target()->ops->forward(v, args, space, stream, error);
}
static const attn_backend_ops_t bad_rows_ops = {.forward = bad_rows_forward};
static void bad_rows(check_t *c) {
    kit_case_t k;
    current = c;
    if (!check_start(c, &k)) return;
    k.problem.role = c->arg;
    k.problem.mask = ATTN_MASK_FULL;
    k.problem.block_size = k.problem.kv_cache_dtype = k.problem.kv_layout = 0;
    k.num_reqs = k.padded_tokens = 0;
    kit_case_add(&k, 20, 20);
    kit_case_add(&k, 7, 7);
    check_run(c, shim_make(c->backend, &bad_rows_ops), &k, NULL);
}

void check_errors_list(check_list_t *list, const check_t *c) {
    const uint32_t count = list->role == ATTN_ROLE_MLA_SPARSE ? NUM_MISTAKES
                           : list->role == ATTN_ROLE_MLA      ? FIRST_SPARSE
                                                              : FIRST_LATENT;
    for (uint32_t m = 0; m < count; m++)
        check_add(list, "errors", 1, one_mistake, m, "%s is refused, and the next good call is served",
                  mistake_texts[m].name);
    for (uint32_t role = 1; role < ATTN_ROLE_COUNT_ && list->role == 0; role++)
        if ((c->can.roles >> role & 1) && !attn_role_has_cache(role) && !attn_role_is_mla(role))
            check_add(list, "errors", 1, bad_rows, role, "%s: keys and values that are not there are refused",
                      attn_role_name(role));
    check_add(list, "errors", 1, quiet_success, 0, "an error struct is left alone by calls that succeed");
    check_add(list, "errors", CHECK_RUNS_ON_CPU, bad_tables, 0,
              "update_block_table refuses what it cannot use");
    check_add(list, "errors", 1, short_error_struct, 0, "an error struct is written within its struct_size");
    check_add(list, "errors", 1, no_error_struct, 0, "error may be NULL, close takes NULL");
}
