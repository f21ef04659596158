/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abi_ages_plugin.c: the example plugin as if built with another header. AGE_OPS, AGE_TABLE and AGE_BACKEND
 * are bytes that the ops, the capabilities and the backend are longer than this header's; AGE_USED puts a 1
 * into that tail. AGE_OLD_OPS makes the ops end before the operations that are optional. AGE_MINOR is the
 * minor that the plugin claims, AGE_MAGIC its magic.
 */
#include "faults/bad.h"
#include "faults/bad_kernel.h"

#ifndef AGE_OPS
#define AGE_OPS 0
#endif
#ifndef AGE_TABLE
#define AGE_TABLE 0
#endif
#ifndef AGE_BACKEND
#define AGE_BACKEND 0
#endif
#ifndef AGE_USED
#define AGE_USED 0
#endif
#ifndef AGE_MINOR
#define AGE_MINOR ATTN_ABI_MINOR
#endif
#ifndef AGE_MAGIC
#define AGE_MAGIC ATTN_PLUGIN_MAGIC
#endif

static const struct {
    attn_capabilities_t known;
    uint8_t tail[16];
} table = {.known = {.struct_size = sizeof(attn_capabilities_t) + AGE_TABLE,
                     .roles = ATTN_BIT(ATTN_ROLE_DECODER),
                     .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32),
                     .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO),
                     .features = SIMPLE_FEATURES,
                     .device_types = ATTN_BIT(kDLCPU)},
           .tail = {[8] = AGE_USED}};

static const struct {
    attn_backend_ops_t known;
    uint8_t tail[16];
} ops = {
    .known =
        {
#ifdef AGE_OLD_OPS
            .struct_size = offsetof(attn_backend_ops_t, prepare_weights),
            .prepare_weights = (int (*)(attn_instance_t *, const attn_weights_t *, void *, attn_error_t *))1,
#else
            .struct_size = sizeof(attn_backend_ops_t) + AGE_OPS,
#endif
            .open = simple_open,
            .close = simple_close,
            .kv_cache_shape = simple_kv_cache_shape,
            .space_needed = simple_space_needed,
            .build_metadata = simple_build_metadata,
            .update_kv_cache = simple_update_kv_cache,
            .forward = simple_forward},
    .tail = {[8] = AGE_USED}};

static const struct {
    attn_backend_t known;
    uint8_t tail[16];
} backend = {.known = {.struct_size = sizeof(attn_backend_t) + AGE_BACKEND,
                       .name = "AGED_ATTN",
                       .doc = "Of another age.",
                       .capabilities = &table.known,
                       .ops = &ops.known},
             .tail = {[8] = AGE_USED}};
static const attn_backend_t *const backends[] = {&backend.known};

__attribute__((visibility("default"))) extern const attn_plugin_t attn_plugin_v1;
const attn_plugin_t attn_plugin_v1 = {.magic = AGE_MAGIC,
                                      .struct_size = sizeof(attn_plugin_t),
                                      .abi_major = ATTN_ABI_MAJOR,
                                      .abi_minor = AGE_MINOR,
                                      .name = "aged",
                                      .version = "1",
                                      .vendor = "tests",
                                      .license = "Apache-2.0",
                                      .build_id = "",
                                      .num_backends = 1,
                                      .backends = backends};
