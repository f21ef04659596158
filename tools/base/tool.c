/* SPDX-License-Identifier: Apache-2.0 */
/* tool.c: errors, the context of a command, JSON output, the clock. */
#include "base/tool.h"
#include "../../core/base/json_text.h"
#include "../../core/base/plain_text.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const char *command_name;

void tool_set_command(const char *name) {
    command_name = name;
}

void tool_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fflush(stdout);
    char text[4096]; /* the text may come from a file or a plugin */
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    attni_text_make_plain(text, '?');
    fprintf(stderr, "attn%s%s: %s\n", command_name != NULL ? " " : "",
            command_name != NULL ? command_name : "", text);
}

int tool_library_error(const char *what, int code, const attn_error_t *error) {
    tool_error("%s%s%s", what, *what != '\0' ? ": " : "",
               error->text[0] != '\0' ? error->text : attn_error_name(code));
    if (code == ATTN_E_UNSUPPORTED) return TOOL_NO;
    return TOOL_SETUP;
}

char *tool_absolute_path(const char *path) {
    char here[PATH_MAX], *absolute = NULL;
    if (access(path, F_OK) != 0 || (path[0] != '/' && getcwd(here, sizeof here) == NULL))
        tool_error("%s: %s", path, errno == ENOENT ? "no such file" : strerror(errno));
    else if (path[0] == '/')
        absolute = strdup(path);
    else if (asprintf(&absolute, "%s/%s", here, path) < 0)
        absolute = NULL;
    return absolute;
}

void tool_print_json(json_t *value) {
    char *text = attni_json_text(value, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(value);
    if (text == NULL) { /* the output is lost, and the exit status would not show it */
        tool_error("out of memory for the JSON");
        exit(TOOL_SETUP);
    }
    puts(text);
    free(text);
}

double tool_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int drops_selection; /* the command prints a selection's warnings itself */

static void print_log(void *ctx, uint32_t level, const char *text) {
    static const char *const names[] = {"", "error", "warning", "info", "debug"};
    (void)ctx;
    if (drops_selection && strncmp(text, "selection: ", 11) == 0) return;
    fprintf(stderr, "attn: %s: %s\n", names[level <= ATTN_LOG_DEBUG ? level : 0], text);
}

/* "--option cpu.level=avx2" becomes "[option cpu]\nlevel = avx2\n". Returns 0 on success. */
static int append_setting(char *text, size_t size, const char *setting) {
    const char *dot = strchr(setting, '.'), *equals = strchr(setting, '=');
    if (dot == NULL || equals == NULL || dot > equals || dot == setting || equals == dot + 1 ||
        strchr(setting, '\n') != NULL) {
        tool_error("--option is '%s'; expected PLUGIN.KEY=VALUE, as in cpu.num_threads=2", setting);
        return -1;
    }
    size_t used = strlen(text);
    int n = snprintf(text + used, size - used, "[option %.*s]\n%.*s = %s\n", (int)(dot - setting), setting,
                     (int)(equals - dot - 1), dot + 1, equals + 1);
    if (n < 0 || (size_t)n >= size - used) {
        tool_error("the values of --option are too long together");
        return -1;
    }
    return 0;
}

int tool_context_open(const tool_common_t *common, uint32_t flags, attn_context_t **context) {
    char text[4096] = "";
    for (size_t i = 0; i < common->settings.count; i++)
        if (append_setting(text, sizeof text, common->settings.items[i]) != 0) return TOOL_USAGE;
    if (common->ini != NULL) snprintf(text + strlen(text), sizeof text - strlen(text), "%s", common->ini);
    char *plugin_dir = NULL;
    if (common->plugin_dir != NULL) {
        plugin_dir = realpath(common->plugin_dir, NULL);
        if (plugin_dir == NULL) {
            tool_error("--plugin-dir is '%s'; no such folder", common->plugin_dir);
            return TOOL_USAGE;
        }
    }
    ATTN_INIT(attn_context_options_t, options);
    options.flags = flags;
    options.config_text = text[0] != '\0' ? text : NULL;
    options.config_file = common->config;
    options.plugin_dir = plugin_dir;
    options.log = print_log;
    drops_selection = common->prints_selection && !common->verbose;
    options.log_level = common->verbose ? ATTN_LOG_DEBUG : ATTN_LOG_WARN;
    ATTN_INIT(attn_error_t, error);
    int code = attn_context_create(&options, context, &error);
    free(plugin_dir);
    return code == ATTN_OK ? TOOL_OK : tool_library_error("", code, &error);
}

int tool_place_open(const tool_common_t *common, const char *device_text, attn_device_t *device,
                    attn_context_t **context) {
    ATTN_INIT(attn_error_t, error);
    const int status = tool_context_open(common, 0, context); /* its plugins may bring the device's kind */
    if (status != TOOL_OK) return status;
    const int code = attn_device_parse(device_text, device, &error);
    if (code == ATTN_OK) return TOOL_OK;
    attn_context_destroy(*context);
    return tool_library_error("--device", code, &error);
}
