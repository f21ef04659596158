/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One source, many plugins: build with -DVARIANT_name. Without a variant it is a correct plugin that
 * computes nothing; each variant changes one thing that the loader must notice (tests/core/loader_test.c says
 * what it wants to hear).
 */
#include <attn/attn_plugin.h>
#include <stdlib.h>
#include <string.h>

#ifndef PLUGIN_NAME
#define PLUGIN_NAME "good"
#endif
#ifndef BACKEND_NAME
#define BACKEND_NAME "GOOD_ATTN"
#endif

#ifdef VARIANT_undefined
extern int attn_test_no_such_function(void);
#endif

struct attn_instance {
    char one;
};

static int open_instance(const attn_problem_t *problem, const attn_device_t *device,
                         const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                         attn_instance_t **instance, attn_error_t *error) {
    (void)problem, (void)device, (void)options, (void)num_options, (void)error;
    host->log(host->ctx, ATTN_LOG_INFO, "opened");
    *instance = calloc(1, sizeof **instance);
    return *instance ? ATTN_OK : ATTN_E_NO_MEMORY;
}

static void close_instance(attn_instance_t *instance) {
    free(instance);
}

static int kv_cache_shape(attn_instance_t *instance, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                          attn_error_t *error) {
    (void)instance, (void)num_blocks, (void)error;
    memset(shape, 0, sizeof *shape);
    shape->struct_size = sizeof *shape;
    return ATTN_OK;
}

static int space_needed(attn_instance_t *instance, attn_space_needed_t *needed, attn_error_t *error) {
    (void)instance, (void)error;
    memset(needed, 0, sizeof *needed);
    needed->struct_size = sizeof *needed;
    return ATTN_OK;
}

static int build_metadata(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    (void)instance, (void)batch, (void)space, (void)stream, (void)error;
#ifdef VARIANT_undefined
    return attn_test_no_such_function();
#endif
    return ATTN_OK;
}

static int forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                   void *stream, attn_error_t *error) {
    (void)instance, (void)args, (void)space, (void)stream, (void)error;
    return ATTN_OK;
}

/* Odd head sizes are refused in three ways, all of which a host must survive. */
static int supports_combination(const attn_problem_t *problem, const attn_device_t *device,
                                attn_reasons_t *reasons) {
    (void)device;
    if (problem->head_size == 72) {
        if (reasons->count < reasons->capacity) {
            attn_reason_t reason = {
                .code = ATTN_REASON_COMBINATION, .param = "head_size", .text = "72 is odd to me"};
            reasons->items[reasons->count] = reason;
        }
        reasons->count++;
    }
    return problem->head_size == 80 ? ATTN_E_UNSUPPORTED : ATTN_OK;
}

static const attn_backend_ops_t ops = {
    .struct_size = sizeof ops,
    .supports_combination = supports_combination,
    .open = open_instance,
    .close = close_instance,
    .kv_cache_shape = kv_cache_shape,
    .space_needed = space_needed,
    .build_metadata = build_metadata,
#ifndef VARIANT_no_forward
    .forward = forward,
#endif
};

static const attn_range_t head_sizes[] = {{16, 16, 0}, {64, 256, 8}};
#ifdef VARIANT_zero_block
static const attn_block_size_t block_sizes[] = {{0, 1}};
#else
static const attn_block_size_t block_sizes[] = {{32, 1}, {64, 0}};
#endif

static const attn_capabilities_t capabilities = {
    .struct_size = sizeof capabilities,
#ifdef VARIANT_no_roles
    .roles = 0,
#else
    .roles = ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER_ONLY),
#endif
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),
    .out_dtypes = ATTN_BIT(ATTN_DTYPE_FP8_E4M3),
    .kv_cache_dtypes = ATTN_BIT(ATTN_KV_BFLOAT16) | ATTN_BIT(ATTN_KV_FP8_E4M3),
#ifdef VARIANT_oracle
    .features = ATTN_F_KNOWN_,
#else
    .features = ATTN_F_SLIDING_WINDOW | ATTN_F_LSE | ATTN_F_DIFF_KV,
#endif
    .device_types = ATTN_BIT(kDLCPU),
#if defined VARIANT_null_list || defined VARIANT_oracle
    .head_sizes = NULL,
#else
    .head_sizes = head_sizes,
#endif
#ifdef VARIANT_oracle
    .num_head_sizes = 0,
#else
    .num_head_sizes = 2,
#endif
    .block_sizes = block_sizes,
    .num_block_sizes = sizeof block_sizes / sizeof *block_sizes,
    .required_layout = ATTN_LAYOUT_NHD,
    .max_group = 8,
};

/* A struct as a later header would have it: known members, then one more. */
static const struct {
    attn_backend_t known;
    uint64_t later;
} backend = {
    .known =
        {
#ifdef VARIANT_backend_newer
            .struct_size = sizeof backend,
#else
            .struct_size = sizeof(attn_backend_t),
#endif
#ifdef VARIANT_backend_flags
            .flags = 4,
#endif
#ifdef VARIANT_backend_bad_name
            .name = "GOOD ATTN",
#else
            .name = BACKEND_NAME,
#endif
            .capabilities = &capabilities,
#ifndef VARIANT_no_ops
            .ops = &ops,
#endif
#ifdef VARIANT_control_doc
            .doc = "\302\233" "31m red",
#endif
        },
    .later = 1,
};

#ifdef VARIANT_null_backend
static const attn_backend_t *const backends[] = {NULL};
#elif defined VARIANT_twice_backend
static const attn_backend_t *const backends[] = {&backend.known, &backend.known};
#else
static const attn_backend_t *const backends[] = {&backend.known};
#endif

static const attn_option_spec_t options[] = {
#ifdef VARIANT_bad_option
    {.struct_size = sizeof *options, .type = ATTN_OPTION_ENUM, .name = "mode", .default_value = "a"},
#elif defined VARIANT_bad_option_size
    {.struct_size = 4, .type = ATTN_OPTION_INT, .name = "splits", .default_value = "0"},
#elif defined VARIANT_default_out_of_bounds
    {.struct_size = sizeof *options,
     .type = ATTN_OPTION_INT,
     .name = "splits",
     .default_value = "99",
     .min_int = 0,
     .max_int = 64},
#elif defined VARIANT_bad_option_default
    {.struct_size = sizeof *options, .type = ATTN_OPTION_INT, .name = "splits", .default_value = "many"},
#else
    {.struct_size = sizeof *options,
     .type = ATTN_OPTION_INT,
     .name = "splits",
     .default_value = "2",
     .min_int = 1,
     .max_int = 64},
    {.struct_size = sizeof *options, .type = ATTN_OPTION_BOOL, .name = "fast", .default_value = "yes"},
    {.struct_size = sizeof *options,
     .type = ATTN_OPTION_DOUBLE,
     .name = "ratio",
     .default_value = "0.5",
     .min_double = 0.25,
     .max_double = 1},
    {.struct_size = sizeof *options,
     .type = ATTN_OPTION_ENUM,
     .name = "mode",
     .default_value = "auto",
     .choices = "auto short long"},
    {.struct_size = sizeof *options, .type = ATTN_OPTION_STRING, .name = "note", .default_value = ""},
    {.struct_size = sizeof *options, .type = ATTN_OPTION_INT, .name = "offset", .default_value = "-3"},
    {.struct_size = sizeof *options, .type = ATTN_OPTION_DOUBLE, .name = "bias", .default_value = "0"},
#endif
};

#ifdef VARIANT_no_symbol
#undef ATTN_PLUGIN_SYMBOL
#define ATTN_PLUGIN_SYMBOL attn_plugin_of_another_age
#endif

struct newer_plugin {
    attn_plugin_t known;
    uint64_t later;
};

#if defined VARIANT_tail_zero || defined VARIANT_tail_used
ATTN_PLUGIN_EXPORT const struct newer_plugin ATTN_PLUGIN_SYMBOL = {.known =
#else
ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL =
#endif
                                                                       {
#ifdef VARIANT_wrong_magic
                                                                           .magic = 42,
#elif defined VARIANT_before_freeze
    .magic = UINT64_C(0x3067756c506e7441), /* "AtnPlug0" */
#else
                                               .magic = ATTN_PLUGIN_MAGIC,
#endif
#ifdef VARIANT_short_struct
                                                                           .struct_size = 40,
#elif defined VARIANT_size_lie
                                               .struct_size = 4096,
#elif defined VARIANT_tail_zero || defined VARIANT_tail_used
    .struct_size = sizeof(struct newer_plugin),
#else
    .struct_size = sizeof(attn_plugin_t),
#endif
#ifdef VARIANT_abi_major
                                                                           .abi_major = ATTN_ABI_MAJOR + 7,
#else
                                               .abi_major = ATTN_ABI_MAJOR,
#endif
#ifdef VARIANT_abi_minor
                                                                           .abi_minor = ATTN_ABI_MINOR + 5,
#else
                                               .abi_minor = ATTN_ABI_MINOR,
#endif
#ifdef VARIANT_flags
                                                                           .flags = 1,
#endif
#ifdef VARIANT_bad_name
                                                                           .name = "not a name",
#elif !defined VARIANT_null_name
                                               .name = PLUGIN_NAME,
#endif
#ifndef VARIANT_null_version
                                                                           .version = "1.2",
#endif
#ifdef VARIANT_control_vendor
                                                                           .vendor = "\033]0;title\007",
#else
                                                                           .vendor = "test",
#endif
                                                                           .license = "Apache-2.0",
                                                                           .build_id = "",
#ifdef VARIANT_no_backends
                                                                           .num_backends = 0,
#else
                                               .num_backends = sizeof backends / sizeof *backends,
#endif
#ifdef VARIANT_many_options
                                                                           .num_options = 100000,
#else
                                               .num_options = sizeof options / sizeof *options,
#endif
                                                                           .backends = backends,
                                                                           .options = options,
                                                                       }
#ifdef VARIANT_tail_zero
                                                                   ,
                                                                   .later = 0}
#elif defined VARIANT_tail_used
,
                                       .later = 9
}
#endif
;
