/* SPDX-License-Identifier: Apache-2.0 */
/* A C++ exception leaves open. Caught by: manners */
#include <attn/attn_plugin.h>

#include <stdexcept>

static int bad_open(const attn_problem_t *, const attn_device_t *, const attn_option_value_t *, uint32_t,
                    const attn_host_t *, attn_instance_t **, attn_error_t *) {
    throw std::runtime_error("no kernel for this problem");
}
static void bad_close(attn_instance_t *) {}
static int bad_shape(attn_instance_t *, int64_t, attn_kv_cache_shape_t *, attn_error_t *) {
    return ATTN_OK;
}
static int bad_space(attn_instance_t *, attn_space_needed_t *, attn_error_t *) {
    return ATTN_OK;
}
static int bad_build(attn_instance_t *, const attn_batch_t *, const attn_space_t *, void *, attn_error_t *) {
    return ATTN_OK;
}
static int bad_update(attn_instance_t *, const attn_kv_update_t *, void *, attn_error_t *) {
    return ATTN_OK;
}
static int bad_forward(attn_instance_t *, const attn_forward_t *, const attn_space_t *, void *,
                       attn_error_t *) {
    return ATTN_OK;
}

static attn_capabilities_t make_capabilities() {
    attn_capabilities_t c = attn_capabilities_t();
    c.struct_size = sizeof c;
    c.graph_support = ATTN_GRAPH_NEVER;
    c.roles = ATTN_BIT(ATTN_ROLE_DECODER);
    c.dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32);
    c.kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO);
    c.device_types = ATTN_BIT(kDLCPU);
    return c;
}
static const attn_capabilities_t bad_capabilities = make_capabilities();

static attn_backend_ops_t make_ops() {
    attn_backend_ops_t o = attn_backend_ops_t();
    o.struct_size = sizeof o;
    o.open = bad_open;
    o.close = bad_close;
    o.kv_cache_shape = bad_shape;
    o.space_needed = bad_space;
    o.build_metadata = bad_build;
    o.update_kv_cache = bad_update;
    o.forward = bad_forward;
    return o;
}
static const attn_backend_ops_t bad_ops = make_ops();

static const attn_backend_t bad_backend = {sizeof(attn_backend_t), 0,        "BAD_ATTN",  "Throws.",
                                           &bad_capabilities,      &bad_ops, {0, 0, 0, 0}};
static const attn_backend_t *const bad_backends[] = {&bad_backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {ATTN_PLUGIN_MAGIC,
                                                             sizeof(attn_plugin_t),
                                                             ATTN_ABI_MAJOR,
                                                             ATTN_ABI_MINOR,
                                                             0,
                                                             "bad",
                                                             "1.0",
                                                             "tests",
                                                             "Apache-2.0",
                                                             "",
                                                             1,
                                                             0,
                                                             bad_backends,
                                                             nullptr,
                                                             {0, 0, 0, 0}};
