/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The off switch at build time. loader_open.c is compiled into this program as --disable-plugin-loading does,
 * and stands in the place of the library's own.
 */
#include "core_testing.h"
#include "load/loader.h"

int main(void) {
    make_scratch();
    copy_plugin("good.so", "good.so");
    attn_context_t *context;
    attn_error_t err = ERROR_INIT;
    attn_plugin_info_t info = {.struct_size = sizeof info};
    is_int(context_of("[attn]\nplugins = good\n", &context, &err), ATTN_OK, "a context can be made");
    is_int(attn_context_plugin(context, 0, &info), ATTN_OK, "the plugin is listed");
    is_int(info.status, ATTN_E_STATE, "but not loaded");
    has_str(info.reason, "built with --disable-plugin-loading", "and the reason says why");
    ok(!attn_context_backend(context, 0), "so there is no backend");
    attn_context_destroy(context);
    is_int(context_of("[plugin good]\nrequired = yes\n", &context, &err), ATTN_E_STATE,
           "a required one is missed");
    return tap_done();
}
