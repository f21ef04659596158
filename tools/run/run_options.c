/* SPDX-License-Identifier: Apache-2.0 */
/* run_options.c: a plugin's options as the configuration has them. */
#include "../../kit/run/check_engine.h"
#include "run/run_options.h"

#include <string.h>

int run_plugin_of(const attn_context_t *context, const attn_backend_t *backend, attn_plugin_info_t *info) {
    for (uint32_t i = 0;; i++) {
        *info = (attn_plugin_info_t){.struct_size = sizeof *info};
        if (attn_context_plugin(context, i, info) != ATTN_OK) return -1;
        for (uint32_t b = 0; info->plugin != NULL && b < info->plugin->num_backends; b++)
            if (strcmp(info->plugin->backends[b]->name, backend->name) == 0) return 0;
    }
}

static const char *configured(const attn_context_t *context, const char *section, const char *key) {
    ATTN_INIT(attn_config_value_t, value);
    for (uint32_t i = 0; attn_context_config(context, i, &value) == ATTN_OK; i++)
        if (strcmp(value.section, section) == 0 && strcmp(value.key, key) == 0) return value.value;
    return NULL;
}

uint32_t run_options_of(const attn_context_t *context, const attn_plugin_info_t *info,
                        attn_option_value_t values[RUN_MOST_OPTIONS]) {
    const attn_plugin_t *plugin = info->plugin;
    if (plugin->options == NULL) return 0;
    const uint32_t count = plugin->num_options < RUN_MOST_OPTIONS ? plugin->num_options : RUN_MOST_OPTIONS;
    char section[96];
    snprintf(section, sizeof section, "option %s", info->name);
    for (uint32_t i = 0; i < count; i++) {
        const attn_option_spec_t *spec = check_option_spec(plugin, i);
        const char *text = configured(context, section, spec->name);
        check_option_parse(spec, text != NULL ? text : spec->default_value, &values[i]);
    }
    return count;
}
