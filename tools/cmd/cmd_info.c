/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_info.c: `attn info`: what is there: plugins, backends, devices, configuration; or one plugin file
 * in detail. */
#include <attn/draft/attn_device.h>
#include <stdlib.h>
#include <string.h>

#include "base/describe.h"
#include "cmd/probe.h"
#include "base/term.h"
#include "base/tool.h"

static void print_plugins(const attn_context_t *context) {
    ATTN_INIT(attn_plugin_info_t, info);
    table_t *table = table_new("plugin|version|licence|file");
    uint32_t count = 0;
    for (; attn_context_plugin(context, count, &info) == ATTN_OK; count++) {
        int ok = info.status == ATTN_OK, is_absent = info.status == ATTN_E_NOT_FOUND;
        table_cell(table, ok ? TERM_GREEN : is_absent ? TERM_DIM : TERM_RED, "%s", info.name);
        table_cell(table, TERM_PLAIN, "%s", ok ? info.version : is_absent ? "absent" : "refused");
        table_cell(table, TERM_PLAIN, "%s", ok ? info.license : "");
        table_cell(table, TERM_PLAIN, "%s", info.path);
        if (!ok && !is_absent) table_note(table, "    %s: %s", attn_error_name(info.status), info.reason);
    }
    if (count == 0)
        table_note(table, "none: [attn] plugins is empty or loading is switched off (attn info --config)");
    table_print(table, stdout, "  ");
}

static void print_backends(const attn_context_t *context) {
    table_t *table = table_new("backend|devices|dtypes|head sizes|roles");
    uint32_t count = 0;
    for (const attn_backend_t *b; (b = attn_context_backend(context, count)) != NULL; count++) {
        const attn_capabilities_t *can = b->capabilities;
        char text[256];
        table_cell(table, TERM_BOLD, "%s", b->name);
        describe_set('p', can->device_types, text, sizeof text);
        if (can->num_compute_capabilities != 0) {
            char cc[64];
            describe_ranges(can->compute_capabilities, can->num_compute_capabilities, cc, sizeof cc);
            table_cell(table, TERM_PLAIN, "%s sm %s", text, cc);
        } else {
            table_cell(table, TERM_PLAIN, "%s", text);
        }
        describe_set('d', can->dtypes, text, sizeof text);
        table_cell(table, TERM_PLAIN, "%s", text);
        describe_ranges(can->head_sizes, can->num_head_sizes, text, sizeof text);
        table_cell(table, TERM_PLAIN, "%s", text);
        describe_set('r', can->roles, text, sizeof text);
        table_cell(table, TERM_PLAIN, "%s", text);
    }
    if (count == 0) table_note(table, "none: no plugin was loaded");
    table_print(table, stdout, "  ");
}

/* cpu, then cuda:0, cuda:1 and so on of each other kind, to a function that prints. The first device of a
 * kind is missed with a reason, a later one is not. */
static void each_device(void (*print)(void *user, const char *name, const attn_device_kind_t *kind,
                                      const attn_device_t *device, const attn_error_t *error),
                        void *user) {
    const attn_device_kind_t *kind;
    char name[48];
    for (uint32_t k = 0; (kind = attn_device_kind_at(k)) != NULL; k++)
        for (int i = 0;; i++) {
            ATTN_INIT(attn_device_t, device);
            ATTN_INIT(attn_error_t, error);
            if (kind->type == kDLCPU)
                snprintf(name, sizeof name, "%s", kind->name);
            else
                snprintf(name, sizeof name, "%s:%d", kind->name, i);
            const int found = attn_device_parse(name, &device, &error) == ATTN_OK;
            if (found || i == 0) print(user, name, kind, found ? &device : NULL, &error);
            if (!found || kind->type == kDLCPU) break;
        }
}

static void device_row(void *user, const char *name, const attn_device_kind_t *kind,
                       const attn_device_t *device, const attn_error_t *error) {
    char memory[32] = "", text[160];
    size_t used;
    table_cell(user, device != NULL ? TERM_GREEN : TERM_DIM, "%s", name);
    if (device == NULL) {
        table_cell(user, TERM_DIM, "none: %s", error->text);
        return;
    }
    used = (size_t)snprintf(text, sizeof text, "%s", device->name);
    if (kind->capability_prefix != NULL)
        used += (size_t)snprintf(text + used, sizeof text - used, ", %s%d", kind->capability_prefix,
                                 device->compute_capability);
    snprintf(text + used, sizeof text - used, ", %d %s", device->num_sms,
             kind->type == kDLCPU ? "threads" : "multiprocessors");
    if (device->memory_bytes != 0) describe_bytes((double)device->memory_bytes, memory, sizeof memory);
    table_cell(user, TERM_PLAIN, "%s%s%s", text, memory[0] != '\0' ? ", " : "", memory);
}

static void print_devices(void) {
    table_t *table = table_new("device|what");
    each_device(device_row, table);
    table_print(table, stdout, "  ");
}

static void device_json(void *user, const char *name, const attn_device_kind_t *kind,
                        const attn_device_t *device, const attn_error_t *error) {
    (void)kind, (void)error;
    if (device == NULL) return;
    json_array_append_new(user, json_pack("{s:s, s:s, s:i, s:i, s:I}", "device", name, "name", device->name,
                                          "compute_capability", device->compute_capability, "num_sms",
                                          device->num_sms, "memory_bytes", (json_int_t)device->memory_bytes));
}

static int print_config(const attn_context_t *context, int json) {
    ATTN_INIT(attn_config_value_t, value);
    json_t *list = json_array();
    table_t *table = table_new("section|key|value|source");
    for (uint32_t i = 0; attn_context_config(context, i, &value) == ATTN_OK; i++) {
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:i}", "section", value.section, "key",
                                              value.key, "value", value.value, "source", value.source, "line",
                                              value.line));
        table_cell(table, TERM_DIM, "[%s]", value.section);
        table_cell(table, TERM_BOLD, "%s", value.key);
        table_cell(table, TERM_PLAIN, "%s", value.value);
        if (value.line != 0)
            table_cell(table, TERM_PLAIN, "%s:%d", value.source, value.line);
        else
            table_cell(table, TERM_DIM, "%s", value.source);
    }
    if (json) {
        tool_print_json(list);
        table_free(table);
    } else {
        json_decref(list);
        table_print(table, stdout, "");
    }
    return TOOL_OK;
}

static json_t *info_json(const attn_context_t *context) {
    json_t *plugins = json_array(), *backends = json_array(), *devices = json_array();
    ATTN_INIT(attn_plugin_info_t, info);
    for (uint32_t i = 0; attn_context_plugin(context, i, &info) == ATTN_OK; i++)
        json_array_append_new(plugins,
                              json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "name", info.name, "status",
                                        info.status == ATTN_OK ? "loaded" : attn_error_name(info.status),
                                        "path", info.path, "version", info.version, "license", info.license,
                                        "build_id", info.build_id, "reason", info.reason));
    for (uint32_t i = 0; attn_context_backend(context, i) != NULL; i++) {
        const attn_backend_t *b = attn_context_backend(context, i);
        json_array_append_new(backends,
                              json_pack("{s:s, s:s, s:o}", "name", b->name, "doc", b->doc, "capabilities",
                                        describe_capabilities_json(b->capabilities)));
    }
    each_device(device_json, devices);
    return json_pack("{s:s, s:i, s:i, s:o, s:o, s:o}", "version", attn_version(), "abi_major", ATTN_ABI_MAJOR,
                     "abi_minor", ATTN_ABI_MINOR, "plugins", plugins, "backends", backends, "devices",
                     devices);
}

/* The loaded plugin that holds a backend. */
static const attn_plugin_t *plugin_of(const attn_context_t *context, const char *backend) {
    ATTN_INIT(attn_plugin_info_t, info);
    for (uint32_t i = 0; attn_context_plugin(context, i, &info) == ATTN_OK; i++)
        for (uint32_t j = 0; info.plugin != NULL && j < info.plugin->num_backends; j++)
            if (strcmp(info.plugin->backends[j]->name, backend) == 0) return info.plugin;
    return NULL;
}

static void print_options(const char *plugin, json_t *options) {
    size_t i;
    json_t *o;
    if (json_array_size(options) == 0) return;
    printf("\n[option %s]\n", plugin);
    table_t *table = table_new("key|default|values|what");
    json_array_foreach(options, i, o) {
        table_cell(table, TERM_BOLD, "%s", json_string_value(json_object_get(o, "name")));
        table_cell(table, TERM_PLAIN, "%s", json_string_value(json_object_get(o, "default")));
        table_cell(table, TERM_PLAIN, "%s", json_string_value(json_object_get(o, "values")));
        table_cell(table, TERM_PLAIN, "%s", json_string_value(json_object_get(o, "doc")));
    }
    table_print(table, stdout, "  ");
}

/* Everything that the table of one backend says, and the options of its plugin. */
static int print_backend(const attn_context_t *context, const char *name, int json) {
    ATTN_INIT(attn_error_t, error);
    const attn_backend_t *b = attn_context_find_backend(context, name, &error);
    if (b == NULL) {
        tool_error("%s", error.text);
        return TOOL_NO;
    }
    json_t *can = describe_capabilities_json(b->capabilities);
    const attn_plugin_t *plugin = plugin_of(context, b->name);
    json_t *plugin_options = plugin != NULL ? describe_options_json(plugin) : json_array();
    const char *plugin_name = plugin != NULL ? plugin->name : "";
    if (json) {
        tool_print_json(json_pack("{s:s, s:s, s:s, s:o, s:o}", "name", b->name, "doc", b->doc, "plugin",
                                  plugin_name, "capabilities", can, "options", plugin_options));
        return TOOL_OK;
    }
    term_print(TERM_BOLD, "%s", b->name);
    printf("  %s\n", b->doc);
    const char *key;
    json_t *value;
    json_object_foreach(can, key, value) {
        printf("  %-21s ", key);
        if (json_is_integer(value))
            printf("%lld", (long long)json_integer_value(value));
        else if (json_is_string(value))
            printf("%s", json_string_value(value));
        size_t i, column = 24;
        json_t *item;
        json_array_foreach(value, i, item) {
            if (column + json_string_length(item) > 100) column = (size_t)printf("\n%*s", 24, "") - 1;
            column += (size_t)printf("%s ", json_string_value(item));
        }
        printf("\n");
    }
    print_options(plugin_name, plugin_options);
    json_decref(can);
    json_decref(plugin_options);
    return TOOL_OK;
}

static int probe(const char *path, int json) {
    probe_result_t *r = calloc(1, sizeof *r);
    char *absolute = tool_absolute_path(path);
    if (r == NULL || absolute == NULL) {
        if (r == NULL) tool_error("%s: out of memory", path);
        free(r);
        free(absolute);
        return TOOL_INPUT;
    }
    int status = probe_plugin(absolute, 0, r);
    uint32_t shown = r->num_backends < PROBE_MAX_BACKENDS ? r->num_backends : PROBE_MAX_BACKENDS;
    json_t *backends = json_array();
    for (uint32_t i = 0; i < shown; i++)
        json_array_append_new(backends, json_string(r->backends[i].name));
    if (json) {
        tool_print_json(json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:o}", "file", absolute, "status",
                                  status == ATTN_OK ? "usable" : attn_error_name(status), "reason", r->text,
                                  "name", r->name, "version", r->version, "abi_major", (int)r->abi_major,
                                  "abi_minor", (int)r->abi_minor, "backends", backends));
    } else {
        printf("%s\n", absolute);
        if (status != ATTN_OK) {
            term_print(TERM_RED, "  not usable: ");
            printf("%s\n", r->text);
        } else {
            term_print(TERM_GREEN, "  usable: ");
            printf("%s %s by %s (%s), ABI %u.%u, %u options\n", r->name, r->version, r->vendor, r->license,
                   r->abi_major, r->abi_minor, r->num_options);
            for (uint32_t i = 0; i < shown; i++)
                printf("  %s  %s\n", r->backends[i].name, r->backends[i].doc);
        }
        json_decref(backends);
    }
    free(r);
    free(absolute);
    return status == ATTN_OK ? TOOL_OK : TOOL_NO;
}

int cmd_info(int argc, char **argv) {
    tool_common_t common = {0};
    const char *probe_file = NULL, *backend = NULL;
    int config = 0, words;
    const tool_option_t options[] = {
        {"config", NULL, TOOL_FLAG, &config, 0, 0, "each effective setting and where it came from"},
        {"backend", "NAME", TOOL_TEXT, &backend, 0, 0, "everything that one backend can do, and its options"},
        {"probe", "FILE", TOOL_TEXT, &probe_file, 0, 0, "examine a plugin file in a child process"},
        TOOL_COMMON_OPTIONS(common),
    };
    const tool_usage_t usage = {
        "info",
        "[options]",
        "Shows the plugins that were found or refused and why, the backends in them, and the devices.",
        "  attn info\n  attn info --config\n  attn info --probe ./my_plugin.so",
        options,
        sizeof options / sizeof options[0]};
    int status = tool_parse(&usage, argc, argv, &words);
    if (status >= 0) return status;
    if (words != 0) {
        tool_error("unexpected argument '%s'; see attn info --help", argv[0]);
        return TOOL_USAGE;
    }
    if (probe_file != NULL) return probe(probe_file, common.json);
    attn_context_t *context, *bare = NULL;
    /* The configuration is shown although a plugin or one of its options is at fault. */
    if (config && (status = tool_context_open(&common, ATTN_CONTEXT_NO_PLUGINS, &bare)) != TOOL_OK)
        return status;
    status = tool_context_open(&common, 0, &context);
    if (status != TOOL_OK && config)
        context = bare, status = TOOL_OK;
    else
        attn_context_destroy(bare);
    if (status != TOOL_OK) return status;
    if (config) {
        status = print_config(context, common.json);
    } else if (backend != NULL) {
        status = print_backend(context, backend, common.json);
    } else if (common.json) {
        tool_print_json(info_json(context));
    } else {
        printf("libattn %s, plugin ABI %d.%d\n\n", attn_version(), ATTN_ABI_MAJOR, ATTN_ABI_MINOR);
        print_plugins(context);
        printf("\n");
        print_backends(context);
        printf("\n");
        print_devices();
    }
    attn_context_destroy(context);
    return status;
}
