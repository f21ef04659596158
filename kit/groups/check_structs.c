/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_structs.c: group structs. Callers of other ages: a shorter struct (garbage lies behind it), a longer
 * one whose tail is zero, a longer one that uses its tail, an unknown feature bit.
 */
#include "../run/check_engine.h"

#include <stdlib.h>

enum {
    IN_PROBLEM,
    IN_DEVICE,
    IN_BATCH,
    IN_SPACE,
    IN_UPDATE,
    IN_FORWARD,
    IN_HOST,
    IN_SPACE_OF_BUILD,
    IN_BATCH_OF_TABLE,
    IN_SPACE_OF_TABLE,
    NUM_INPUTS
};
enum { SHORTER, LONGER, LONGER_USED };

static const struct {
    const char *name;
    size_t size;
    size_t short_size,
        latent_short_size; /* members behind are zero in a call of the plain case; of a latent one */
} inputs[NUM_INPUTS] = {
    {"attn_problem_t", sizeof(attn_problem_t), offsetof(attn_problem_t, kv_lora_rank),
     offsetof(attn_problem_t, dcp_world_size)},
    {"attn_device_t", sizeof(attn_device_t), offsetof(attn_device_t, memory_bytes), 0},
    {"attn_batch_t", sizeof(attn_batch_t), offsetof(attn_batch_t, mm_prefix_ranges_host), 0},
    {"attn_space_t", sizeof(attn_space_t), offsetof(attn_space_t, host), 0},
    {"attn_kv_update_t", sizeof(attn_kv_update_t), offsetof(attn_kv_update_t, scales), 0},
    {"attn_forward_t", sizeof(attn_forward_t), offsetof(attn_forward_t, output_scale),
     offsetof(attn_forward_t, reserved)},
    {"attn_host_t", sizeof(attn_host_t), offsetof(attn_host_t, reserved), 0},
    {"attn_space_t of build_metadata alone", sizeof(attn_space_t), offsetof(attn_space_t, host), 0},
    {"attn_batch_t of update_block_table", sizeof(attn_batch_t),
     offsetof(attn_batch_t, mm_prefix_ranges_host), 0},
    {"attn_space_t of update_block_table", sizeof(attn_space_t), offsetof(attn_space_t, host), 0},
};

/* Which struct of which call is bent, and how. */
static struct {
    int input, how, is_latent;
    long num_bent;
    _Alignas(16) unsigned char bytes[1024];
} bend;

static const void *bent(int input, const void *src) {
    if (input != bend.input || src == NULL) return src;
    if ((input == IN_SPACE || input == IN_SPACE_OF_BUILD || input == IN_SPACE_OF_TABLE) &&
        bend.how == SHORTER && ((const attn_space_t *)src)->host_bytes != 0)
        return src;
    const size_t shorter = bend.is_latent && inputs[input].latent_short_size != 0
                               ? inputs[input].latent_short_size
                               : inputs[input].short_size;
    uint32_t size = bend.how == SHORTER ? (uint32_t)shorter : (uint32_t)inputs[input].size + 24;
    memset(bend.bytes, bend.how == SHORTER ? 0xa5 : 0, sizeof bend.bytes);
    memcpy(bend.bytes, src, bend.how == SHORTER ? size : inputs[input].size);
    memcpy(bend.bytes, &size, sizeof size);
    if (bend.how == LONGER_USED) bend.bytes[inputs[input].size + 16] = 1;
    bend.num_bent++;
    return bend.bytes;
}

static int bent_open(const attn_problem_t *problem, const attn_device_t *device,
                     const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                     attn_instance_t **instance, attn_error_t *error) {
    return shim_target()->ops->open(bent(IN_PROBLEM, problem), bent(IN_DEVICE, device), options, num_options,
                                    bent(IN_HOST, host != NULL ? host : &check_host), instance, error);
}
static int bent_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                      void *stream, attn_error_t *error) {
    const int status = shim_target()->ops->build_metadata(
        instance, bent(IN_BATCH, batch),
        bent(bend.input == IN_SPACE_OF_BUILD ? IN_SPACE_OF_BUILD : IN_SPACE, space), stream, error);
    if (status != ATTN_OK || bend.input < IN_BATCH_OF_TABLE || batch->block_table == NULL ||
        !ATTN_HAS_OP(shim_target()->ops, update_block_table))
        return status;
    return shim_target()->ops->update_block_table(instance, bent(IN_BATCH_OF_TABLE, batch),
                                                  bent(IN_SPACE_OF_TABLE, space), stream, error);
}
static int bent_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                       attn_error_t *error) {
    return shim_target()->ops->update_kv_cache(instance, bent(IN_UPDATE, args), stream, error);
}
static int bent_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                        void *stream, attn_error_t *error) {
    return shim_target()->ops->forward(instance, bent(IN_FORWARD, args), bent(IN_SPACE, space), stream,
                                       error);
}
static const attn_backend_ops_t bent_ops = {
    .open = bent_open, .build_metadata = bent_build, .update_kv_cache = bent_update, .forward = bent_forward};

/* What only describes or offers requests nothing: more of it is no reason to refuse. */
static int is_description(int input) {
    return input == IN_DEVICE || input == IN_HOST;
}

static void run_bent(check_t *c) {
    kit_case_t k;
    bend.input = (int)(c->arg / 4);
    bend.how = (int)(c->arg % 4);
    bend.is_latent = c->role != 0;
    bend.num_bent = 0;
    if (!check_start(c, &k)) return;
    const attn_backend_t *shim = shim_make(c->backend, &bent_ops);
    if (bend.how == LONGER_USED && !is_description(bend.input)) {
        kit_inputs_t *in = kit_inputs_make(&k);
        kit_result_t result;
        check_running(c, &k);
        int status = kit_run(shim, &k, in, c->memory, &result);
        if (bend.num_bent > 0 && status != ATTN_E_TOO_NEW)
            check_fail(
                c,
                "%s with an unknown member in use: %d came back, expected ATTN_E_TOO_NEW (%d); an ignored "
                "member is a wrong number",
                inputs[bend.input].name, status, ATTN_E_TOO_NEW);
        kit_result_free(&result);
        kit_inputs_free(in);
    } else {
        check_run(c, shim, &k, NULL);
    }
    if (bend.num_bent == 0) check_skip(c, "this struct is not used by the plain case");
}

static void unknown_feature(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    for (int bit = 40; bit < 64; bit += 23) {
        attn_instance_t *instance = NULL;
        attn_error_t error = {.struct_size = sizeof error};
        k.problem.features |= UINT64_C(1) << bit;
        if (check_open(c, &k.problem, &instance, &error) == ATTN_OK)
            check_fail(
                c, "open accepted the unknown feature bit %d; a bit that is not listed must be refused", bit);
        else if (error.param[0] == '\0')
            check_fail(c, "open refuses the unknown feature bit %d, and param of its error is empty", bit);
        k.problem.features &= ~(UINT64_C(1) << bit);
    }
}

/* Structs that operations fill: no byte behind the caller's struct_size may change. */
static void outputs(check_t *c) {
    kit_case_t k;
    attn_instance_t *instance = NULL;
    attn_error_t error = {.struct_size = sizeof error};
    if (!check_start(c, &k)) return;
    check_running(c, &k);
    k.problem.num_blocks = 8;
    if (check_open(c, &k.problem, &instance, &error) != ATTN_OK) {
        check_fail(c, "open: %s", error.text);
        return;
    }
    static const struct {
        const char *name;
        size_t size, part;
    } which[2] = {
        {"attn_kv_cache_shape_t", sizeof(attn_kv_cache_shape_t), offsetof(attn_kv_cache_shape_t, reserved)},
        {"attn_space_needed_t", sizeof(attn_space_needed_t), offsetof(attn_space_needed_t, weight_bytes)}};
    for (int i = 0; i < 2; i++)
        for (int is_longer = 0; is_longer < 2; is_longer++) {
            unsigned char bytes[1024];
            uint32_t size = (uint32_t)(is_longer ? which[i].size + 32 : which[i].part);
            memset(bytes, 0xa5, sizeof bytes);
            memset(bytes, 0, size);
            memcpy(bytes, &size, sizeof size);
            int status = i == 0 ? c->backend->ops->kv_cache_shape(instance, 8, (void *)bytes, &error)
                                : c->backend->ops->space_needed(instance, (void *)bytes, &error);
            if (status != ATTN_OK)
                check_fail(c, "%s of %u bytes: %d, %s", which[i].name, size, status, error.text);
            for (size_t j = size; j < sizeof bytes; j++)
                if (bytes[j] != 0xa5) {
                    check_fail(c, "%s: byte %zu was written, the caller's struct_size is %u", which[i].name,
                               j, size);
                    break;
                }
        }
    c->backend->ops->close(instance);
}

void check_structs_list(check_list_t *list, const check_t *c) {
    static const char *const how[] = {
        "a shorter %s reads as zero behind its end", "a longer %s with a zero tail is accepted",
        "a longer %s that uses its tail is refused", "a longer %s that describes more is accepted"};
    (void)c;
    for (int input = 0; input < NUM_INPUTS; input++)
        for (int h = SHORTER; h <= LONGER_USED; h++) {
            char name[100];
            snprintf(name, sizeof name, how[h == LONGER_USED && is_description(input) ? h + 1 : h],
                     inputs[input].name);
            /* of a device each check here is a process with a context of its own */
            check_add(list, "structs", input >= IN_SPACE_OF_BUILD ? CHECK_RUNS_ON_CPU : 1, run_bent,
                      (uint32_t)(input * 4 + h), "%s", name);
        }
    check_add(list, "structs", 1, unknown_feature, 0, "unknown feature bits are refused");
    check_add(list, "structs", 1, outputs, 0, "results are written within the caller's struct_size");
}
