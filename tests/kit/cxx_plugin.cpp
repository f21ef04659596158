// SPDX-License-Identifier: Apache-2.0
// cxx_plugin.cpp: a plugin in C++ that uses templates of the standard library, for installcheck.sh: what they
// instantiate must not become visible beside the plugin's own symbol. It serves nothing. With CXX_THROWS an
// exception leaves open, for faults/throws.cc.
#include <attn/attn_plugin_util.h>

#include <functional>
#include <map>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

struct attn_instance {
    std::map<std::string, std::vector<int>> names;
};

static int open_none(const attn_problem_t *, const attn_device_t *, const attn_option_value_t *, uint32_t,
                     const attn_host_t *, attn_instance_t **, attn_error_t *error) {
#ifdef CXX_THROWS
    throw std::runtime_error("no kernel for this problem");
#endif
    try {
        std::vector<std::string> words{"one", "two"};
        std::function<size_t()> count = [&] { return words.size(); };
        bool is_word = std::regex_match(words.back(), std::regex("t.*"));
        return attn_fail(error, ATTN_E_UNSUPPORTED, "problem", "none of %zu words (%d) is a problem", count(),
                         is_word);
    } catch (...) {
        return ATTN_E_NO_MEMORY;
    }
}
static void close_none(attn_instance_t *instance) {
    delete instance;
}
static int no_shape(attn_instance_t *, int64_t, attn_kv_cache_shape_t *, attn_error_t *) {
    return ATTN_E_STATE;
}
static int no_space(attn_instance_t *, attn_space_needed_t *, attn_error_t *) {
    return ATTN_E_STATE;
}
static int no_plan(attn_instance_t *, const attn_batch_t *, const attn_space_t *, void *, attn_error_t *) {
    return ATTN_E_STATE;
}
static int no_update(attn_instance_t *, const attn_kv_update_t *, void *, attn_error_t *) {
    return ATTN_E_STATE;
}
static int no_forward(attn_instance_t *, const attn_forward_t *, const attn_space_t *, void *,
                      attn_error_t *) {
    return ATTN_E_STATE;
}

static attn_capabilities_t make_capabilities() {
    attn_capabilities_t c{};
    c.struct_size = sizeof c;
    c.graph_support = ATTN_GRAPH_NEVER;
    c.roles = ATTN_BIT(ATTN_ROLE_DECODER);
    c.dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32);
    c.kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO);
    c.device_types = ATTN_BIT(kDLCPU);
    return c;
}
static attn_backend_ops_t make_ops() {
    attn_backend_ops_t o{};
    o.struct_size = sizeof o;
    o.open = open_none;
    o.close = close_none;
    o.kv_cache_shape = no_shape;
    o.space_needed = no_space;
    o.build_metadata = no_plan;
    o.update_kv_cache = no_update;
    o.forward = no_forward;
    return o;
}
static const attn_capabilities_t capabilities = make_capabilities();
static const attn_backend_ops_t ops = make_ops();
static const attn_backend_t backend = {sizeof backend, 0,    "CXX_ATTN", "Serves nothing.",
                                       &capabilities,  &ops, {}};
static const attn_backend_t *const backends[] = {&backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {ATTN_PLUGIN_MAGIC,
                                                             sizeof(attn_plugin_t),
                                                             ATTN_ABI_MAJOR,
                                                             ATTN_ABI_MINOR,
                                                             0,
                                                             "cxx",
                                                             "1",
                                                             "Example Kernels",
                                                             "Apache-2.0",
                                                             "",
                                                             1,
                                                             0,
                                                             backends,
                                                             nullptr,
                                                             {}};
