/* SPDX-License-Identifier: Apache-2.0 */
/* hook_open.c: which hooks the configuration requests, from the backend outward: trace (so that it times the
 * backend alone), record, check, shadow. */
#include "hook/hook.h"

#include <stdlib.h>
#include <string.h>

static uint64_t number(const struct attni_config *config, const char *section, const char *key) {
    const char *text = attni_config_get(config, section, key);
    return text != NULL ? strtoull(text, NULL, 10) : 0;
}

int attni_hooks_open(attn_group_t *group, attn_error_t *error) {
    const struct attni_config *config = &group->context->config;
    const char *file = attni_config_get(config, "hook trace", "file");
    const char *record = attni_config_get(config, "hook record", "file");
    const char *level = attni_config_get(config, "hook check", "level");
    const char *shadow = attni_config_get(config, "hook shadow", "backend");
    int code = ATTN_OK;
    if (file != NULL)
        code = attni_hook_trace_open(group, &group->stage, file,
                                     strcmp(attni_config_get(config, "hook trace", "format"), "chrome") == 0,
                                     number(config, "hook trace", "max_bytes"), error);
    if (code == ATTN_OK && record != NULL) code = attni_hook_record_open(group, &group->stage, record, error);
    if (code == ATTN_OK && level != NULL && strcmp(level, "off") != 0)
        code = attni_hook_check_open(group, &group->stage, strcmp(level, "all") == 0, error);
    if (code == ATTN_OK && shadow != NULL)
        code = attni_hook_shadow_open(group, &group->stage, shadow, number(config, "hook shadow", "sample"),
                                      error);
    return code;
}
