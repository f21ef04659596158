/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_errors.c: group errors. A bad argument is refused with a code, a text and the name of the parameter,
 * and the instance then serves the good call as if nothing had been.
 */
#include "../run/device_image.h"

#include <stdlib.h>

typedef enum mistake {
    FORWARD_NO_ARGS,
    FORWARD_NO_QUERY,
    FORWARD_NO_OUTPUT,
    FORWARD_NO_CACHE,
    FORWARD_QUERY_DTYPE,
    FORWARD_QUERY_RANK,
    FORWARD_QUERY_HEADS,
    FORWARD_QUERY_SIZE,
    FORWARD_OUTPUT_DTYPE,
    FORWARD_OUTPUT_SIZE,
    FORWARD_OUTPUT_ROWS,
    FORWARD_QUERY_ROWS,
    FORWARD_LSE_ROWS,
    FORWARD_CACHE_HEADS,
    FORWARD_NO_STRIDES,
    FORWARD_SPARSE_ROWS,
    FORWARD_SMALL_METADATA,
    FORWARD_SMALL_WORKSPACE,
    FORWARD_NO_METADATA,
    FORWARD_UNBUILT,
    FORWARD_ZEROED,
    FORWARD_CACHE_DTYPE,
    FORWARD_LSE_DTYPE,
    FORWARD_SINK_DTYPE,
    FORWARD_SINK_ROWS,
    FORWARD_SLOPE_ROWS,
    FORWARD_SCALE_DTYPE,
    FORWARD_V_SCALE_DTYPE,
    UPDATE_NO_KEY,
    UPDATE_NO_SLOTS,
    UPDATE_SLOT_DTYPE,
    UPDATE_CACHE_RANK,
    UPDATE_KEY_ROWS,
    UPDATE_NO_VALUE,
    UPDATE_VALUE_ROWS,
    UPDATE_VALUE_SIZE,
    UPDATE_VALUE_DTYPE,
    UPDATE_NO_CACHE,
    BUILD_NO_BATCH,
    BUILD_NEGATIVE,
    BUILD_TOO_MANY,
    BUILD_TOO_MANY_TOKENS,
    BUILD_NO_STARTS,
    BUILD_NO_LENS,
    BUILD_NO_TABLE,
    BUILD_SMALL_METADATA,
    BUILD_TABLE_DTYPE,
    BUILD_TABLE_ROWS,
    /* of latent attention: a cache of its own, weights, and from FORWARD_NO_TOPK on selected tokens */
    FORWARD_CACHE_ROW,
    FORWARD_NO_WEIGHTS,
    FORWARD_SMALL_WEIGHTS,
    PREPARE_NO_WEIGHTS,
    PREPARE_DTYPE,
    PREPARE_ROWS,
    PREPARE_LATENT,
    PREPARE_NO_SPACE,
    PREPARE_SMALL_SPACE,
    FORWARD_NO_TOPK,
    FORWARD_TOPK_DTYPE,
    FORWARD_TOPK_WIDTH,
    NUM_MISTAKES,
    FIRST_LATENT = FORWARD_CACHE_ROW,
    FIRST_SPARSE = FORWARD_NO_TOPK
} mistake_t;

static const struct {
    const char *name, *parameter; /* the error must name it; NULL: any */
} mistakes[NUM_MISTAKES] = {
    {"forward without arguments", NULL},
    {"forward without a query", "query"},
    {"forward without an output", "output"},
    {"forward without a cache", "kv_cache"},
    {"a query of another element type", "query"},
    {"a query of two dimensions", "query"},
    {"a query with one head too many", "query"},
    {"a query with one number too many", "query"},
    {"an output of another element type", "output"},
    {"an output with half the head size", "output"},
    {"an output with fewer rows than tokens", NULL},
    {"a query with fewer rows than tokens", NULL},
    {"an lse with fewer columns than tokens", NULL},
    {"a cache with one head too many", "kv_cache"},
    {"an output without strides", "output"},
    {"an output that is not dense in its last dimension", "output"},
    {"metadata smaller than space_needed in forward", "metadata"},
    {"workspace smaller than space_needed", "workspace"},
    {"no metadata buffer", "metadata"},
    {"metadata that was never built", NULL},
    {"metadata that is all zero", NULL},
    {"a cache of another element type", "kv_cache"},
    {"an lse of another element type", "lse"},
    {"sinks of another element type", "sink"},
    {"fewer sinks than heads", "sink"},
    {"fewer slopes than heads", "slope"},
    {"a scale of another element type", "scale"},
    {"a scale of values of another element type", "scale"},
    {"a cache update without keys", "key"},
    {"a cache update without slots", "slot_mapping"},
    {"slots of another element type", "slot_mapping"},
    {"a cache with one dimension too few", "kv_cache"},
    {"fewer keys than slots", NULL},
    {"a cache update without values", "value"},
    {"fewer values than slots", NULL},
    {"values with one number too many", "value"},
    {"values of another element type", "value"},
    {"a cache update without a cache", "kv_cache"},
    {"no batch", NULL},
    {"a negative number of requests", "num_reqs"},
    {"more requests than the problem declares", "num_reqs"},
    {"more tokens than the problem declares", NULL},
    {"no query_start_loc_host", "query_start_loc"},
    {"no seq_lens_host", "seq_lens"},
    {"no block_table", "block_table"},
    {"metadata smaller than space_needed in build_metadata", "metadata"},
    {"a block_table of another element type", "block_table"},
    {"a block_table with fewer rows than requests", "block_table"},
    {"a cache whose rows have one number too many", "kv_cache"},
    {"forward without prepared weights", "weight_space"},
    {"prepared weights smaller than space_needed", "weight_space"},
    {"prepare_weights without weights", "kv_b_proj"},
    {"weights of another element type", "kv_b_proj"},
    {"weights with one row too many", "kv_b_proj"},
    {"weights of another latent size", "kv_b_proj"},
    {"prepare_weights without room", "weight_space"},
    {"less room for weights than space_needed", "weight_space"},
    {"forward without selected tokens", "topk_indices"},
    {"selected tokens of another element type", "topk_indices"},
    {"fewer selected tokens than topk", "topk_indices"},
};

static check_t *current;
static mistake_t mistake;
static int num_made;
static uint32_t the_role;

/* A changed copy of a tensor. */
typedef struct bent_tensor {
    DLTensor t;
    int64_t shape[8], strides[8];
} bent_tensor_t;
static const DLTensor *bend(bent_tensor_t *b, const DLTensor *t) {
    b->t = *t;
    for (int i = 0; i < t->ndim && i < 8; i++)
        b->shape[i] = t->shape[i], b->strides[i] = t->strides[i];
    b->t.shape = b->shape;
    b->t.strides = b->strides;
    return &b->t;
}

static const DLTensor *of_type(bent_tensor_t *b, const DLTensor *t, uint32_t dtype) {
    bend(b, t);
    b->t.dtype = attn_dl_dtype(dtype);
    return &b->t;
}
static const DLTensor *shorter(bent_tensor_t *b, const DLTensor *t) {
    bend(b, t);
    b->shape[0]--;
    return &b->t;
}

/* Buffers as large as those of space that nothing was built in; 0 if no plugin could tell: only the device
 * sees them. */
static int not_built(const attn_space_t *space, int byte, attn_space_t *s) {
    const kit_memory_t *m = current->memory;
    if (space->metadata_bytes == 0 || (m->kind != NULL && space->host_bytes == 0)) return 0;
    void *image = malloc((size_t)space->metadata_bytes);
    if (image == NULL) abort();
    memset(image, byte, (size_t)space->metadata_bytes);
    s->metadata = image_new(image, (size_t)space->metadata_bytes);
    free(image);
    if (space->host_bytes == 0) return 1;
    s->host = malloc((size_t)space->host_bytes);
    if (s->host == NULL) abort();
    memset(s->host, byte, (size_t)space->host_bytes);
    return 1;
}

/* The verdict on the refused call. */
static void expect_refusal(int status, const attn_error_t *e, int wanted_code) {
    const char *parameter = mistakes[mistake].parameter;
    num_made++;
    if (status == ATTN_OK)
        check_fail(current, "%s: it was accepted", mistakes[mistake].name);
    else if (status > 0 || status < -15)
        check_fail(current, "%s: %d is not a code of attn_types.h", mistakes[mistake].name, status);
    else if (status != ATTN_E_INVALID && status != ATTN_E_UNSUPPORTED && status != ATTN_E_STATE &&
             status != ATTN_E_SPACE)
        check_fail(current, "%s: code %d; a bad argument is ATTN_E_INVALID, a small buffer ATTN_E_SPACE",
                   mistakes[mistake].name, status);
    else if (wanted_code != 0 && status != wanted_code)
        check_fail(current, "%s: code %d, expected %d", mistakes[mistake].name, status, wanted_code);
    else if (memchr(e->text, 0, sizeof e->text) == NULL || memchr(e->param, 0, sizeof e->param) == NULL)
        check_fail(current, "%s: the error's text or parameter has no end", mistakes[mistake].name);
    else if (e->text[0] == '\0' || e->code != status)
        check_fail(current, "%s: the error has no text, or not the code %d that came back",
                   mistakes[mistake].name, status);
    else if (parameter != NULL && strstr(e->param, parameter) == NULL && strstr(e->text, parameter) == NULL)
        check_fail(current, "%s: the error names '%s' (%s), not %s", mistakes[mistake].name, e->param,
                   e->text, parameter);
}

/* The bytes from the first to the last element of the outputs. */
static uint64_t print_outputs(const attn_forward_t *args) {
    const DLTensor *outputs[] = {args->output, args->lse};
    uint64_t h = 0;
    for (int i = 0; i < 2; i++) {
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
    int code = 0, is_made = 1;
    switch (mistake) {
    case FORWARD_NO_ARGS:
        break;
    case FORWARD_NO_QUERY:
        a.query = NULL;
        break;
    case FORWARD_NO_OUTPUT:
        a.output = NULL;
        break;
    case FORWARD_NO_CACHE:
        is_made = a.kv_cache != NULL;
        a.kv_cache = NULL;
        break;
    case FORWARD_QUERY_DTYPE:
        a.query = bend(&b, a.query);
        b.t.dtype = attn_dl_dtype(ATTN_DTYPE_INT64);
        break;
    case FORWARD_QUERY_RANK:
        a.query = bend(&b, a.query);
        b.t.ndim = 2;
        break;
    case FORWARD_QUERY_HEADS:
        a.query = bend(&b, a.query);
        b.shape[1]++;
        break;
    case FORWARD_QUERY_SIZE:
        a.query = bend(&b, a.query);
        b.shape[2]++;
        break;
    case FORWARD_OUTPUT_DTYPE:
        a.output = bend(&b, a.output);
        b.t.dtype = attn_dl_dtype(ATTN_DTYPE_INT32);
        break;
    case FORWARD_OUTPUT_SIZE:
        a.output = bend(&b, a.output);
        b.shape[2] /= 2;
        break;
    case FORWARD_OUTPUT_ROWS: /* on a GPU only the device knows how many tokens there are */
        is_made = current->memory->kind == NULL;
        a.output = bend(&b, a.output);
        b.shape[0] = 1;
        break;
    case FORWARD_QUERY_ROWS:
        is_made = current->memory->kind == NULL;
        a.query = bend(&b, a.query);
        b.shape[0] = 1;
        break;
    case FORWARD_LSE_ROWS:
        is_made = current->memory->kind == NULL && a.lse != NULL;
        if (!is_made) break;
        a.lse = bend(&b, a.lse);
        b.shape[1] = 1;
        break;
    case FORWARD_CACHE_HEADS:
        is_made = a.kv_cache != NULL && a.kv_cache->ndim == 4;
        if (!is_made) break;
        a.kv_cache = bend(&b, a.kv_cache);
        b.shape[1]++;
        break;
    case FORWARD_CACHE_ROW:
        is_made = a.kv_cache != NULL;
        if (!is_made) break;
        a.kv_cache = bend(&b, a.kv_cache);
        b.shape[b.t.ndim - 1]++;
        break;
    case FORWARD_NO_WEIGHTS:
        is_made = a.weight_space != NULL;
        a.weight_space = NULL;
        a.weight_space_bytes = 0;
        break;
    case FORWARD_SMALL_WEIGHTS:
        is_made = a.weight_space_bytes > 0;
        a.weight_space_bytes--;
        break;
    case FORWARD_NO_TOPK:
        a.topk_indices = NULL;
        break;
    case FORWARD_TOPK_DTYPE:
        a.topk_indices = bend(&b, a.topk_indices);
        b.t.dtype = attn_dl_dtype(ATTN_DTYPE_INT64);
        break;
    case FORWARD_TOPK_WIDTH:
        a.topk_indices = bend(&b, a.topk_indices);
        b.shape[1]--;
        break;
    case FORWARD_NO_STRIDES:
        a.output = bend(&b, a.output);
        b.t.strides = NULL;
        break;
    case FORWARD_SPARSE_ROWS:
        a.output = bend(&b, a.output);
        b.strides[2] = 2;
        break;
    case FORWARD_SMALL_METADATA:
        is_made = s.metadata_bytes > 0;
        s.metadata_bytes--;
        code = ATTN_E_SPACE;
        break;
    case FORWARD_SMALL_WORKSPACE:
        is_made = s.workspace_bytes > 0;
        s.workspace_bytes--;
        code = ATTN_E_SPACE;
        break;
    case FORWARD_NO_METADATA:
        is_made = s.metadata_bytes > 0;
        s.metadata = NULL;
        break;
    case FORWARD_UNBUILT:
    case FORWARD_ZEROED:
        is_made = not_built(space, mistake == FORWARD_ZEROED ? 0 : 0xc7, &s);
        break;
    case FORWARD_CACHE_DTYPE:
        is_made = a.kv_cache != NULL;
        if (is_made) a.kv_cache = of_type(&b, a.kv_cache, ATTN_DTYPE_INT64);
        break;
    case FORWARD_LSE_DTYPE:
        is_made = a.lse != NULL;
        if (is_made) a.lse = of_type(&b, a.lse, ATTN_DTYPE_INT32);
        break;
    case FORWARD_SINK_DTYPE:
        is_made = a.sinks != NULL;
        if (is_made) a.sinks = of_type(&b, a.sinks, ATTN_DTYPE_INT32);
        break;
    case FORWARD_SINK_ROWS:
        is_made = a.sinks != NULL;
        if (is_made) a.sinks = shorter(&b, a.sinks);
        break;
    case FORWARD_SLOPE_ROWS:
        is_made = a.alibi_slopes != NULL;
        if (is_made) a.alibi_slopes = shorter(&b, a.alibi_slopes);
        break;
    case FORWARD_SCALE_DTYPE:
        is_made = a.scales.k != NULL;
        if (is_made) a.scales.k = of_type(&b, a.scales.k, ATTN_DTYPE_INT32);
        break;
    case FORWARD_V_SCALE_DTYPE:
        is_made = a.scales.v != NULL && !attn_role_is_mla(the_role);
        if (is_made) a.scales.v = of_type(&b, a.scales.v, ATTN_DTYPE_INT32);
        break;
    default:
        is_made = 0;
    }
    if (is_made) {
        const uint64_t before = print_outputs(args);
        int status =
            shim_target()->ops->forward(instance, mistake == FORWARD_NO_ARGS ? NULL : &a, &s, stream, &e);
        expect_refusal(status, &e, code);
        if (status != ATTN_OK && print_outputs(args) != before)
            check_fail(current, "%s: forward refused it but still wrote output or lse",
                       mistakes[mistake].name);
    }
    return shim_target()->ops->forward(instance, args, space, stream, error);
}

static int bad_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                      attn_error_t *error) {
    attn_kv_update_t a = *args;
    bent_tensor_t b;
    attn_error_t e = {.struct_size = sizeof e};
    int is_made = 1;
    switch (mistake) {
    case UPDATE_NO_KEY:
        a.key = NULL;
        break;
    case UPDATE_NO_SLOTS:
        a.slot_mapping = NULL;
        break;
    case UPDATE_SLOT_DTYPE:
        a.slot_mapping = bend(&b, a.slot_mapping);
        b.t.dtype = attn_dl_dtype(ATTN_DTYPE_FLOAT32);
        break;
    case UPDATE_CACHE_RANK:
        a.kv_cache = bend(&b, a.kv_cache);
        b.t.ndim--;
        break;
    case UPDATE_KEY_ROWS:
        is_made = a.slot_mapping->shape[0] > 1;
        a.key = bend(&b, a.key);
        b.shape[0] = a.slot_mapping->shape[0] - 1;
        break;
    case UPDATE_NO_VALUE:
        a.value = NULL;
        break;
    case UPDATE_VALUE_ROWS:
        is_made = a.slot_mapping->shape[0] > 1;
        a.value = bend(&b, a.value);
        b.shape[0] = a.slot_mapping->shape[0] - 1;
        break;
    case UPDATE_VALUE_SIZE:
        a.value = bend(&b, a.value);
        b.shape[b.t.ndim - 1]++;
        break;
    case UPDATE_VALUE_DTYPE:
        a.value = of_type(&b, a.value, ATTN_DTYPE_INT64);
        break;
    case UPDATE_NO_CACHE:
        a.kv_cache = NULL;
        break;
    default:
        is_made = 0;
    }
    if (is_made) expect_refusal(shim_target()->ops->update_kv_cache(instance, &a, stream, &e), &e, 0);
    return shim_target()->ops->update_kv_cache(instance, args, stream, error);
}

static int bad_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                     void *stream, attn_error_t *error) {
    attn_batch_t b = *batch;
    attn_space_t s = *space;
    bent_tensor_t t;
    attn_error_t e = {.struct_size = sizeof e};
    int code = 0, is_made = 1;
    switch (mistake) {
    case BUILD_NO_BATCH:
        break;
    case BUILD_NEGATIVE:
        b.num_reqs = -1;
        break;
    case BUILD_TOO_MANY:
        b.num_reqs = KIT_MAX_REQS + 1000;
        break;
    case BUILD_TOO_MANY_TOKENS:
        b.num_actual_tokens = 1 << 24;
        break;
    case BUILD_NO_STARTS:
        b.query_start_loc_host = NULL;
        break;
    case BUILD_NO_LENS:
        b.seq_lens_host = NULL;
        break;
    case BUILD_NO_TABLE:
        is_made = b.block_table != NULL;
        b.block_table = NULL;
        break;
    case BUILD_TABLE_DTYPE:
        is_made = b.block_table != NULL;
        if (is_made) b.block_table = of_type(&t, b.block_table, ATTN_DTYPE_INT64);
        break;
    case BUILD_TABLE_ROWS:
        is_made = b.block_table != NULL;
        if (is_made) b.block_table = shorter(&t, b.block_table);
        break;
    case BUILD_SMALL_METADATA:
        is_made = s.metadata_bytes > 0;
        s.metadata_bytes--;
        code = ATTN_E_SPACE;
        break;
    default:
        is_made = 0;
    }
    if (is_made)
        expect_refusal(shim_target()->ops->build_metadata(instance, mistake == BUILD_NO_BATCH ? NULL : &b, &s,
                                                          stream, &e),
                       &e, code);
    return shim_target()->ops->build_metadata(instance, batch, space, stream, error);
}
static int bad_prepare(attn_instance_t *instance, const attn_weights_t *args, void *stream,
                       attn_error_t *error) {
    attn_weights_t w = *args;
    bent_tensor_t b;
    attn_error_t e = {.struct_size = sizeof e};
    int code = 0, is_made = 1;
    switch (mistake) {
    case PREPARE_NO_WEIGHTS:
        w.kv_b_proj = NULL;
        break;
    case PREPARE_DTYPE:
        w.kv_b_proj = bend(&b, w.kv_b_proj);
        b.t.dtype = attn_dl_dtype(ATTN_DTYPE_INT64);
        break;
    case PREPARE_ROWS:
        w.kv_b_proj = bend(&b, w.kv_b_proj);
        b.shape[0]++;
        break;
    case PREPARE_LATENT:
        w.kv_b_proj = bend(&b, w.kv_b_proj);
        b.shape[1]--;
        break;
    case PREPARE_NO_SPACE:
        is_made = w.weight_space_bytes > 0;
        w.weight_space = NULL;
        break;
    case PREPARE_SMALL_SPACE:
        is_made = w.weight_space_bytes > 0;
        w.weight_space_bytes--;
        code = ATTN_E_SPACE;
        break;
    default:
        is_made = 0;
    }
    if (is_made) expect_refusal(shim_target()->ops->prepare_weights(instance, &w, stream, &e), &e, code);
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
    const int is_sink = mistake == FORWARD_SINK_DTYPE || mistake == FORWARD_SINK_ROWS;
    if (!attn_role_is_mla(k.problem.role)) /* which REFERENCE serves with neither */
        k.problem.features |= c->can.features & (is_sink                         ? ATTN_F_SINK
                                                 : mistake == FORWARD_SLOPE_ROWS ? ATTN_F_ALIBI
                                                                                 : 0);
    the_role = k.problem.role;
    if ((mistake == FORWARD_SCALE_DTYPE || mistake == FORWARD_V_SCALE_DTYPE) &&
        (c->can.kv_cache_dtypes & ATTN_BIT(ATTN_KV_FP8_E4M3)) && attn_role_has_cache(k.problem.role))
        k.problem.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    check_run(c, shim_make(c->backend, &bad_ops), &k, NULL);
    if (num_made == 0) check_skip(c, "cannot be made with this backend");
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

void check_errors_list(check_list_t *list, const check_t *c) {
    (void)c;
    const uint32_t count = list->role == ATTN_ROLE_MLA_SPARSE ? NUM_MISTAKES
                           : list->role == ATTN_ROLE_MLA      ? FIRST_SPARSE
                                                              : FIRST_LATENT;
    for (uint32_t m = 0; m < count; m++)
        check_add(list, "errors", 1, one_mistake, m, "%s is refused, and the next good call is served",
                  mistakes[m].name);
    check_add(list, "errors", 1, short_error_struct, 0, "an error struct is written within its struct_size");
    check_add(list, "errors", 1, no_error_struct, 0, "error may be NULL, close takes NULL");
}
