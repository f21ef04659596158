/* SPDX-License-Identifier: Apache-2.0 */
/* run_options.c: a plugin's options as the configuration has them. */

#include "../../kit/run/check_engine.h"
#include "run/run_options.h"

#include <string.h>

static const attn_plugin_t *plugin_of(const attn_context_t *context, const char *backend, const char **name) {
    ATTN_INIT(attn_plugin_info_t, info);
    for (uint32_t i = 0; attn_context_plugin(context, i, &info) == ATTN_OK; i++)
        for (uint32_t b = 0; info.plugin != NULL && b < info.plugin->num_backends; b++)
            if (strcmp(info.plugin->backends[b]->name, backend) == 0) {
                *name = info.name;
                return info.plugin;
            }
    return NULL;
}

uint32_t run_options_of(const attn_context_t *context, const char *backend, attn_option_value_t *values,
                        uint32_t room) {
    const char *name;
    const attn_plugin_t *plugin = plugin_of(context, backend, &name);
    if (plugin == NULL || plugin->options == NULL) return 0;
    char section[96];
    snprintf(section, sizeof section, "option %s", name);
    const uint32_t count = plugin->num_options < room ? plugin->num_options : room;
    for (uint32_t i = 0; i < count; i++) {
        const attn_option_spec_t *spec = check_option_spec(plugin, i);
        const char *text = spec->default_value;
        ATTN_INIT(attn_config_value_t, value);
        for (uint32_t v = 0; attn_context_config(context, v, &value) == ATTN_OK; v++)
            if (strcmp(value.section, section) == 0 && strcmp(value.key, spec->name) == 0) text = value.value;
        check_option_parse(spec, text, &values[i]);
    }
    return count;
}
