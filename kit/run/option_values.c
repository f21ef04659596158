/* SPDX-License-Identifier: Apache-2.0 */
/* option_values.c: values of a plugin's options from text, as the host would parse them. */
#include "check_engine.h"

#include <stdlib.h>

enum { MAX_OPTIONS = 256 };
static _Thread_local attn_option_value_t defaults[MAX_OPTIONS]; /* checks open instances on several threads */
static char given[MAX_OPTIONS][128];                            /* by --option; "": the default */

const attn_option_spec_t *check_option_spec(const attn_plugin_t *plugin, uint32_t i) {
    return (const attn_option_spec_t *)(const void *)((const char *)plugin->options +
                                                      (size_t)i * plugin->options->struct_size);
}

void check_option_parse(const attn_option_spec_t *s, const char *text, attn_option_value_t *v) {
    *v = (attn_option_value_t){.struct_size = sizeof *v, .type = s->type, .name = s->name, .s = text};
    if (text == NULL) text = "";
    if (s->type == ATTN_OPTION_INT) v->i = strtoll(text, NULL, 0);
    if (s->type == ATTN_OPTION_DOUBLE) v->d = strtod(text, NULL);
    if (s->type == ATTN_OPTION_BOOL)
        v->i = strcmp(text, "yes") == 0 || strcmp(text, "true") == 0 || strcmp(text, "on") == 0 ||
               strcmp(text, "1") == 0;
    if (s->type == ATTN_OPTION_ENUM && s->choices != NULL) { /* index of the word */
        const char *c = s->choices;
        size_t n = strlen(text);
        for (int64_t index = 0; *c != '\0'; index++) {
            size_t word = strcspn(c, " ");
            if (word == n && memcmp(c, text, n) == 0) v->i = index;
            c += word + (c[word] == ' ');
        }
    }
}

const attn_option_value_t *check_option_defaults(const attn_plugin_t *plugin, uint32_t *count) {
    *count = plugin->options == NULL             ? 0
             : plugin->num_options < MAX_OPTIONS ? plugin->num_options
                                                 : MAX_OPTIONS;
    for (uint32_t i = 0; i < *count; i++)
        check_option_parse(check_option_spec(plugin, i),
                           given[i][0] != '\0' ? given[i] : check_option_spec(plugin, i)->default_value,
                           &defaults[i]);
    return *count > 0 ? defaults : NULL;
}

int check_options_give(const attn_plugin_t *plugin, const char *text, char *why, size_t size) {
    for (const char *at = text; at != NULL && *at != '\0';) {
        const size_t n = strcspn(at, ","), name = strcspn(at, "=");
        uint32_t i = 0;
        while (i < plugin->num_options && i < MAX_OPTIONS &&
               (strlen(check_option_spec(plugin, i)->name) != name ||
                strncmp(check_option_spec(plugin, i)->name, at, name) != 0))
            i++;
        if (name >= n || i == plugin->num_options || i == MAX_OPTIONS || n - name > sizeof given[0]) {
            snprintf(why, size, "--option %.*s: the plugin has no such option; write NAME=VALUE", (int)n, at);
            return -1;
        }
        snprintf(given[i], sizeof given[i], "%.*s", (int)(n - name - 1), at + name + 1);
        at += n + (at[n] == ',');
    }
    return 0;
}
